"""Fast versions of recurrent captioners: a time step computes only the captions that still have a word, as packed rows
(`ragged`)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vision_attn.attention.soft import AttentionOutput
from vision_attn.contracts import PAD, AttentionMap, Caption
from vision_attn.contracts.nested import Nested, map_tensors
from vision_attn.fast import ragged
from vision_attn.fast.accumulate import accumulating
from vision_attn.fast.cast import casting_weights
from vision_attn.fast.likelihood import FastWordLogProb
from vision_attn.fast.linear import FastLinear
from vision_attn.fast.time_loops import over_time
from vision_attn.fast.versions import fast_version
from vision_attn.layers.dropout import Dropout
from vision_attn.layers.linear import Linear
from vision_attn.layers.precision import at_least_float32, product_dtype
from vision_attn.models.encoder_decoder import RNNsearch
from vision_attn.models.recurrent import OwnWords, RecurrentCaptioner, RecurrentMemory
from vision_attn.models.show_attend_tell import Gate, ShowAttendTell
from vision_attn.models.top_down import TopDown


class Packed(ragged.HasRows, RecurrentCaptioner):
    """A recurrent captioner whose `forward` runs each time step on the captions that still have a word. Computations
    that do not depend on the previous state run on all time steps at once."""

    word_log_prob: FastWordLogProb

    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"], runs: int = 1) -> Caption:
        with casting_weights(self), over_time(self):
            if not self.word_log_prob.weighted:
                return self._forward(regions, words, runs)
            image, row = longest_first(words)  # of samples, which come in any order
            caption = self._forward(regions[image], words[image[:, None], row], runs)
            return in_order(caption, image, row, runs)

    def _forward(self, regions: Tensor, words: Tensor, runs: int) -> Caption:
        words = words.repeat_interleave(runs, dim=1) if runs > 1 else words
        self.count_batch()
        steps = ragged.schedule(words, self.lengths)
        position = torch.cat([step.position for step in steps])
        before = F.pad(words, (1, -1)).flatten()[position]
        sizes = [len(step.position) for step in steps]
        own = OwnWords(self, runs) if self.training and self.own_words else None
        if own:
            given = before.split(sizes)
        else:
            embedded = self.embed(before)
            given = self.from_words(before, embedded).split(sizes)

        memory, state = self.start(regions, words.shape[1])
        memory, mask = memory._replace(regions=accumulating(memory.regions)), memory.expectation_mask
        real, state, chosen = memory.real, packed(state), []
        queries, outputs, all_seen = [], [], []
        for step, from_word in zip(steps, given, strict=True):
            if step.images < len(memory.regions):
                memory = ragged.leading(memory._replace(step=None), step.images)
            memory, state = memory._replace(step=step), leading(state, step)
            if own:
                if own.sampled is not None and step.kept is not None:
                    own.sampled = own.sampled.index_select(0, step.kept)
                chosen.append(self.embed(own.mixed(from_word)))
                from_word = self.word_to_lstm(chosen[-1])
            state, seen, query, output = self.look(from_word, state, memory, runs)
            if own:
                own.sample(chosen[-1], output)
            queries.append(query)
            outputs.append(output)
            all_seen.append(seen)
        del from_word, given  # the largest of what the loop read

        if own:
            embedded = torch.cat(chosen)
        deep = self.deep(embedded, *(torch.cat(steps) for steps in zip(*outputs, strict=True)), runs=runs)
        log_prob, mean = self.word_log_prob(
            self.output, deep, words, with_mean=self.with_mean, bars_pad=self.bars_pad, position=position
        )
        word_mask = words != PAD
        alpha = ragged.padded([seen.alpha for seen in all_seen], words) * word_mask[..., None]
        regions_seen = [seen.region for seen in all_seen if seen.region is not None]
        if not regions_seen:
            return Caption(log_prob, alpha, real=real, mean_log_prob=mean)
        region = ragged.padded(regions_seen, words)
        seen_from = [ragged.spread(query.detach(), step) for query, step in zip(queries, steps, strict=True)]
        choice = self.attention.choice(alpha, region, word_mask, mask, ragged.padded(seen_from, words))
        return Caption(log_prob, alpha, region, choice, real, mean)

    def attend(self, query: Tensor, state: Nested, memory: RecurrentMemory) -> tuple[AttentionOutput, Nested]:
        """Attend to the regions. The context has the layout of the query."""
        seen, carry = super().attend(ragged.spread(query, memory.step), state, memory)
        context = ragged.collect(seen.context, memory.step)
        return AttentionOutput(context, *seen[1:]), carry  # torch 2.11 compiles no `_replace` of what a step returns

    def for_rows(
        self, vectors: Float[Tensor, "B N"], memory: RecurrentMemory, like: Tensor
    ) -> Float[Tensor, "*rows N"]:
        if memory.step is None:
            return super().for_rows(vectors, memory, like)
        return ragged.collect(vectors[:, None].expand(-1, memory.step.rows, -1), memory.step)

    def step(
        self, word: Int[Tensor, "B R"], state: Nested, memory: RecurrentMemory
    ) -> tuple[Tensor, Nested, AttentionMap]:
        """Perform `step` with, on a GPU, a single cast of an input that several layers read."""
        if not word.is_cuda:
            return super().step(word, state, memory)
        with over_time(self):
            return super().step(word, state, memory)

    def from_words(self, words: Int[Tensor, "N"], embedded: Float[Tensor, "N E"]) -> Float[Tensor, "N gates"]:
        """Return the term of the words in the LSTM's input, `word_to_lstm(embedded)`. On a CPU it is computed once for
        each different word, if most words occur several times."""
        if words.device.type == "cpu":
            different, number = words.unique(return_inverse=True)
            if 2 * len(different) < len(words):  # F.embedding adds its gradients fast, and in float32
                return F.embedding(number, at_least_float32(self.word_to_lstm(self.embed(different))))
        return self.word_to_lstm(embedded)


class FastGate(FastLinear, Gate):
    def forward(self, *inputs: Float[Tensor, "*rows _"]) -> Float[Tensor, "*rows D"]:
        hidden, seen = inputs
        return gated(FastLinear.forward(self, hidden), seen)


class FusedOutput(RecurrentCaptioner):
    """A captioner with the deep output of Show, Attend and Tell: on a GPU sum and tanh are one kernel."""

    drop: Dropout
    hidden_to_output: Linear
    context_to_output: Linear

    def deep(self, embedded: Tensor, *outputs: Tensor, runs: int = 1) -> Tensor:
        hidden, context = outputs
        hidden = self.drop(hidden, shared=runs)
        deep = tanh_of_sum(embedded, self.hidden_to_output(hidden), self.context_to_output(context))
        return self.drop(deep, shared=runs)


def tanh_of_sum(
    a: Float[Tensor, "*rows D"], b: Float[Tensor, "*rows D"], c: Float[Tensor, "*rows D"]
) -> Float[Tensor, "*rows D"]:
    """Return tanh(a + b + c); on a GPU by one kernel, in the precision of the following products."""
    if a.shape == b.shape == c.shape and (kernels := fast_version("pointwise", a, b, c)):
        return kernels.TanhOfSum.apply(a, b, c, product_dtype(a))
    return (a + b + c).tanh()


def gated(gate: Float[Tensor, "*rows G"], x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
    """Return sigmoid(gate) x, with one gate for each row or each feature; on a GPU by one kernel."""
    kernels = fast_version("pointwise", gate, x)
    if kernels and gate.shape[-1] in (1, x.shape[-1]) and x.shape[-1] <= kernels.MOST:
        return kernels.Gated.apply(gate, x)
    return gate.sigmoid() * x


class FastShowAttendTell(FusedOutput, Packed, ShowAttendTell):
    pass


class FastTopDown(Packed, TopDown):
    pass


class FastRNNsearch(FusedOutput, Packed, RNNsearch):
    pass


def packed(state: Nested) -> Nested:
    """Return the state of a loop over given words, whose hidden states and cells are packed rows."""
    *recurrent, carry, seen_before = state
    return type(state)(*map_tensors(lambda tensor: tensor.flatten(0, 1), recurrent), carry, seen_before)


def leading(state: Nested, step: ragged.PackedStep) -> Nested:
    """Select, from a state of packed rows, the captions that have a word at `step`."""
    *recurrent, carry, seen_before = state
    if step.kept is not None:
        recurrent = [None if tensor is None else tensor.index_select(0, step.kept) for tensor in recurrent]
    if carry is not None or seen_before is not None:
        carry, seen_before = ragged.leading((carry, seen_before), step.images, step.rows)
    return type(state)(*recurrent, carry, seen_before)


def longest_first(words: Int[Tensor, "B R T"]) -> tuple[Int[Tensor, "B"], Int[Tensor, "B R"]]:
    """Return the order in which captioners run fastest (`ragged`): images by their longest caption, and the captions of
    each image, in the new order, longest first."""
    lengths = (words != PAD).sum(dim=-1)
    image = lengths.amax(dim=1).argsort(descending=True, stable=True)
    return image, lengths[image].argsort(dim=1, descending=True, stable=True)


def in_order(caption: Caption, image: Int[Tensor, "B"], row: Int[Tensor, "B R"], runs: int) -> Caption:
    """Undo the order that `longest_first` returned.

    runs: the number of runs of each row.
    """
    image = image.argsort()
    row = row.argsort(dim=1)[image]
    row = (row[..., None] * runs + torch.arange(runs, device=row.device)).flatten(1)

    def before(tensor: Tensor) -> Tensor:
        index = row.view(*row.shape, *[1] * (tensor.dim() - 2)).expand(-1, -1, *tensor.shape[2:])
        return tensor[image].gather(1, index)

    real = None if caption.real is None else caption.real[image]
    return map_tensors(before, caption._replace(real=None))._replace(real=real)

"""Captioners with a recurrent state that attends to the regions once for each word: what they share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.hard import sample
from vision_attn.attention.scores import Score
from vision_attn.attention.soft import Attention, AttentionOutput, EachRegion
from vision_attn.contracts import PAD, AttentionMap, Caption, Captioner
from vision_attn.contracts.nested import Nested, map_tensors
from vision_attn.layers import ragged
from vision_attn.layers.accumulate import accumulating
from vision_attn.layers.cast import casting_weights
from vision_attn.layers.padding import without_padding
from vision_attn.layers.precision import at_least_float32
from vision_attn.layers.unrolled import repeated, sharing_casts, unrolled
from vision_attn.system.checks import check_range, require
from vision_attn.system.console import with_article


class Memory(NamedTuple):
    """Held once per image."""

    regions: Float[Tensor, "B L D"]
    """Annotation vectors a_i."""
    keys: Float[Tensor, "B L A"]
    """Their projections, which the score compares with the state."""
    expectation_mask: Bool[Tensor, "B"] | None
    """Hard attention in training: whether the image's samples are replaced by their expectation."""
    real: Bool[Tensor, "B L"] | None = None
    """Which regions are not padding; None: all."""
    from_mean: Float[Tensor, "B gates"] | None = None
    """What the LSTM gets of the mean region at every word; None: nothing."""


class Turn(NamedTuple):
    """What a captioner computes for one word of each row; its tensors are packed rows in a loop over given words."""

    state: Nested
    seen: AttentionOutput
    query: Float[Tensor, "*rows H"]
    """The hidden state that the map was computed from."""
    outputs: tuple[Float[Tensor, "*rows _"], ...]
    """What `deep` computes the word from."""


class RecurrentCaptioner(Captioner):
    """A captioner with a recurrent state that attends to the regions once for each word.

    Override `start`, `look` and `deep`, and make `embedding`, `word_to_lstm` and `output`, a linear layer. The state is
    a NamedTuple of hidden states and cells, with what the score and the attention remember, `carry` and `seen_before`,
    as its last two fields. The first word's embedding is zero: word 0 pads captions and starts them.

    score: called with the sizes of an annotation vector and of the state that maps are computed from.
    attention: what is seen of the regions: `Soft`, `Hard` or `StraightThrough`.
    """

    tied = False
    """Whether the output layer's weights are the embeddings; see `tie`."""
    own_words, own_words_batches = 0.0, 0
    """Scheduled sampling; see `schedule_sampling`."""

    def __init__(
        self,
        region_size: int,
        hidden_size: int,
        word_size: int,
        score: Callable[[int, int], Score],
        attention: Callable[[], Attention],
    ):
        super().__init__()
        check_range(type(self).__name__, 1, 10**12, hidden_size=hidden_size, word_size=word_size)
        self.region_size, self.state_size = region_size, hidden_size
        self.score = score(region_size, hidden_size)
        self.attention = attention()
        self.reinforced, self.modes = self.attention.reinforced, self.attention.modes

    def leave_out_padding(self) -> None:
        if self.score.counts_regions:
            raise ValueError(
                f"{type(self.score).__name__} counts regions, so it cannot leave out padding: take another"
            )
        self.attention.pads = True

    def compile(self, **options) -> None:
        """Compile a time step, not the loop over words, whose length changes from batch to batch.

        options: as of `torch.compile`; sizes are dynamic by default.
        """
        self.look = torch.compile(self.look, **{"dynamic": True} | options)

    @property
    def mode(self) -> str | None:
        return self.attention.mode

    def in_mode(self, mode: str) -> AbstractContextManager[None]:
        return self.attention.in_mode(mode)

    @contextmanager
    def seeing_each(self) -> Iterator[None]:
        attention, self.attention = self.attention, EachRegion()
        try:
            yield
        finally:
            self.attention = attention

    def tie(self) -> None:
        """Let the output layer's weights be the embeddings (Press and Wolf 2017). Called by constructors, at their end.

        Embeddings are then multiplied by sqrt(E), as in a Transformer, so that each use begins at its usual scale. Row
        0 of the weights belongs to the output alone: the embedding of word 0 stays zero. Raises ValueError where the
        input of the output layer has another size.
        """
        size = self.embedding.embedding_dim
        if self.output.in_features != size:
            owner, inputs = type(self).__name__, self.output.in_features
            raise ValueError(f"{owner}: tied embeddings need a word_size of {inputs}, that of the output layer's input")
        nn.init.normal_(self.embedding.weight, std=size**-0.5)
        self.output.weight, self.tied = self.embedding.weight, True
        self.register_buffer("word_scale", torch.tensor(size**0.5))

    def embed(self, words: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows E"]:
        """The embeddings of words; zero for word 0."""
        embedded = self.embedding(words)
        return embedded * (self.word_scale * (words != PAD))[..., None] if self.tied else embedded

    @torch.no_grad()
    def sharpen(self, temperature: float) -> None:
        super().sharpen(temperature)
        if self.tied:
            self.word_scale.mul_(temperature)  # embeddings stay as they are

    def schedule_sampling(self, probability: float, batches: int) -> None:
        """Let each word before be, in training, one that the captioner itself samples, with a probability that rises
        linearly over `batches` training batches (Bengio et al. 2015, section 2.4). Called by constructors."""
        owner = type(self).__name__
        check_range(owner, 0, 1, scheduled_sampling=probability)
        check_range(owner, 0, 10**12, scheduled_sampling_batches=batches)
        self.own_words, self.own_words_batches = probability, batches
        if probability and batches:
            self.count_batches()

    def count_batches(self) -> None:
        """Count the training batches, as `batches`, a part of a checkpoint."""
        self.register_buffer("batches", torch.zeros(()))

    def restart(self) -> None:
        self.attention.restart()
        if "batches" in self._buffers:
            self.batches.zero_()

    def look(
        self, from_word: Tensor, state: Nested, memory: Memory, runs: int = 1, step: ragged.Step | None = None
    ) -> Turn:
        """One time step. `from_word` is what the LSTM gets of the word before. With `step`, `from_word` and the hidden
        states and cells are packed rows, and `attend` takes them as they are."""
        raise NotImplementedError

    def deep(self, embedded: Tensor, *outputs: Tensor, runs: int = 1) -> Float[Tensor, "*rows E"]:
        """The input of the vocabulary layer, of the embedding of the word before and the `outputs` of `look`."""
        raise NotImplementedError

    def memory(self, regions: Float[Tensor, "B L D"], real: Bool[Tensor, "B L"] | None = None) -> Memory:
        """The memory of `regions`."""
        if torch.is_autocast_enabled(regions.device.type) and not regions.requires_grad:  # or each word would cast them
            regions = regions.to(torch.get_autocast_dtype(regions.device.type))
        keys = self.score.project(regions)
        return Memory(regions, keys, self.attention.sample_expectation_mask(regions.shape[0], regions), real)

    def attend(
        self, query: Tensor, state: Nested, memory: Memory, step: ragged.Step | None = None
    ) -> tuple[AttentionOutput, Nested]:
        """Attention computed from a hidden state. Returns what is seen, by image and row, and the score's next carry.
        With `step`, the query is packed rows."""
        scored = self.score(ragged.spread(query, step), memory.keys, state.carry)
        if not isinstance(scored, tuple) or len(scored) != 2:
            given = with_article(type(scored).__name__)
            raise ValueError(f"{type(self.score).__name__} must return (scores, carry), not {given}")
        scores, carry = scored
        if scores.dim() != 3 or scores.shape[2] != memory.regions.shape[1]:
            sizes = {"B": memory.regions.shape[0], "L": memory.regions.shape[1]}
            require("scores", scores, "B R L", "float", hint=f", of {type(self.score).__name__}", **sizes)
        scores = without_padding(scores, memory.real)
        seen = self.attention(scores, memory.regions, memory.expectation_mask, state.seen_before)
        return seen, self.score.after(carry, seen.alpha)

    def step(
        self, word: Int[Tensor, "B R"], state: Nested, memory: Memory
    ) -> tuple[Float[Tensor, "B R V"], Nested, AttentionMap]:
        require("word", word, "B R", "integer", B=memory.regions.shape[0])
        embedded = self.embed(word)
        with sharing_casts():
            state, seen, _, outputs = self.look(self.word_to_lstm(embedded), state, memory)
        return self.output(self.deep(embedded, *outputs)), state, AttentionMap(seen.alpha, seen.region)

    @casting_weights
    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"], runs: int = 1) -> Caption:
        """Each time step runs on the captions that still have a word. What does not depend on the previous state
        (embeddings, the deep output, the vocabulary layer) runs on all time steps at once."""
        require("words", words, "B R T", "integer", B=regions.shape[0], hint=": ids of R captions per image")
        words = words.repeat_interleave(runs, dim=1) if runs > 1 else words
        if self.training and "batches" in self._buffers:
            self.batches += 1
        steps = ragged.schedule(words)
        position = torch.cat([step.position for step in steps])
        before = F.pad(words, (1, -1)).flatten()[position]
        embedded, sizes = self.embed(before), [len(step.position) for step in steps]
        from_words = self.from_words(before, embedded).split(sizes)
        own = OwnWords(self, before.split(sizes), runs) if self.training and self.own_words else None

        memory, state = self.start(regions, words.shape[1])
        memory, mask = memory._replace(regions=accumulating(memory.regions)), memory.expectation_mask
        real, state = memory.real, packed(state)
        queries, outputs, looks = [], [], []
        with unrolled():
            for step, from_word in zip(steps, from_words, strict=True):
                memory, state = ragged.leading(memory, step.images), leading(state, step)
                from_word = own.from_word(step) if own else from_word
                state, seen, query, output = self.look(from_word, state, memory, runs, step)
                if own:
                    own.sample(output)
                queries.append(query)
                outputs.append(output)
                looks.append(seen)
        del from_word, from_words  # the largest of what the loop read

        embedded = self.embed(torch.cat(own.words)) if own else embedded
        deep = self.deep(embedded, *(torch.cat(parts) for parts in zip(*outputs, strict=True)), runs=runs)
        log_prob, mean = ragged.caption_log_prob(self.output, deep, words, position, with_mean=self.with_mean)
        word_mask = words != PAD
        alpha = ragged.padded([seen.alpha for seen in looks], words) * word_mask[..., None]
        if looks[0].region is None:
            return Caption(log_prob, alpha, real=real, mean_log_prob=mean)
        region = ragged.padded([seen.region for seen in looks], words)
        seen_from = [ragged.spread(query.detach(), step) for query, step in zip(queries, steps, strict=True)]
        choice = self.attention.choice(alpha, region, word_mask, mask, ragged.padded(seen_from, words))
        return Caption(log_prob, alpha, region, choice, real, mean)

    def from_words(self, words: Int[Tensor, "N"], embedded: Float[Tensor, "N E"]) -> Float[Tensor, "N gates"]:
        """What the LSTM gets of words, `word_to_lstm(embedded)`: on a CPU computed once for each different word, where
        most occur several times."""
        if words.device.type == "cpu":
            different, number = words.unique(return_inverse=True)
            if 2 * len(different) < len(words):  # F.embedding adds its gradients fast, and in float32
                return F.embedding(number, at_least_float32(self.word_to_lstm(self.embed(different))))
        return self.word_to_lstm(embedded)


class OwnWords:
    """Scheduled sampling in a loop over given words (Bengio et al. 2015): the words before of each time step, some of
    which the captioner samples. Samples have no gradient."""

    def __init__(self, model: RecurrentCaptioner, given: Sequence[Tensor], runs: int) -> None:
        self.model, self.given, self.runs = model, given, runs
        self.words: list[Tensor] = []
        self.sampled: Tensor | None = None
        rising = (model.batches / model.own_words_batches).clamp(max=1) if model.own_words_batches else 1.0
        self.probability = model.own_words * rising

    def from_word(self, step: ragged.Step) -> Float[Tensor, "N gates"]:
        """What the LSTM gets of the words before of the next time step."""
        words = self.given[len(self.words)]
        if self.sampled is not None:
            sampled = self.sampled if step.kept is None else self.sampled.index_select(0, step.kept)
            words = torch.where(torch.rand(len(words), device=words.device) < self.probability, sampled, words)
        self.words.append(words)
        return repeated(self.model.word_to_lstm, self.model.embed(words))

    @torch.no_grad()
    def sample(self, outputs: tuple[Tensor, ...]) -> None:
        """Sample a word of each caption from p(y_t), but not PAD."""
        deep = self.model.deep(self.model.embed(self.words[-1]), *outputs, runs=self.runs)
        p = at_least_float32(self.model.output(deep)).softmax(dim=-1)
        p[:, PAD] = 0
        self.sampled = sample(p)


def packed(state: Nested) -> Nested:
    """The state of a loop over given words, whose hidden states and cells are packed rows."""
    *recurrent, carry, seen_before = state
    return type(state)(*map_tensors(lambda part: part.flatten(0, 1), recurrent), carry, seen_before)


def leading(state: Nested, step: ragged.Step) -> Nested:
    """A state of packed rows, for the captions that have a word at `step`."""
    *recurrent, carry, seen_before = state
    if step.kept is not None:
        recurrent = map_tensors(lambda part: part.index_select(0, step.kept), recurrent)
    return type(state)(*recurrent, *ragged.leading((carry, seen_before), step.images, step.rows))

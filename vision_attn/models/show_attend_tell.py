"""Show, Attend and Tell (Xu et al., ICML 2015): an LSTM that looks at the image once for each word."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.scores import Additive, Score
from vision_attn.attention.soft import Attention, AttentionOutput, Soft
from vision_attn.contracts import PAD, AttentionMap, Caption, Captioner
from vision_attn.contracts.nested import Nested
from vision_attn.layers import ragged
from vision_attn.layers.accumulate import accumulating
from vision_attn.layers.cast import casting_weights
from vision_attn.layers.dropout import Dropout, dropout
from vision_attn.layers.linear import Linear
from vision_attn.layers.lstm import lstm
from vision_attn.layers.padding import mean_region, real_regions, without_padding
from vision_attn.layers.pointwise import gated, tanh_of_sum
from vision_attn.layers.precision import at_least_float32
from vision_attn.layers.unrolled import repeated, sharing_casts, unrolled
from vision_attn.system.checks import check_range, require


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


class State(NamedTuple):
    """Held once per row; beams reorder it. In a loop over given words, h and c are packed rows (`layers.ragged`)."""

    hidden: Float[Tensor, "*rows H"]
    cell: Float[Tensor, "*rows H"]
    carry: Nested
    """What the score remembers, such as the previous map."""
    seen_before: Nested = None
    """What the attention remembers, such as the column that it has reached."""

    def leading(self, step: ragged.Step) -> "State":
        """The state of the captions that have a word at `step`."""
        hidden, cell = (
            part if step.kept is None else part.index_select(0, step.kept) for part in (self.hidden, self.cell)
        )
        return State(hidden, cell, *ragged.leading((self.carry, self.seen_before), step.images, step.rows))


class ShowAttendTell(Captioner):
    """p(y_t | y_1..t-1, image) = softmax(L_o tanh(E y_{t-1} + L_h h_t + L_z z_t)) (Xu et al. 2015, eq. 7).

    h_t is the state of an LSTM over (E y_{t-1}, h_{t-1}, z_t) (Xu et al. 2015, eq. 1, eq. 2 and eq. 3). alpha_t is the
    softmax (eq. 5) of scores computed from h_{t-1} (eq. 4), and z_t = beta_t phi({a_i}, {alpha_ti}) (eq. 6), where the
    gate beta_t multiplies what `Attention` returns. The first word's embedding is zero: word 0 pads captions and starts
    them.

    Differs from the paper: the tanh before L_o, the dropout on h_t and before L_o, and the tanh of the initial state
    come from the authors' code, as does the gate of hard attention.
    """

    def __init__(
        self,
        num_words: int,
        region_size: int,
        *,
        hidden_size: int = 512,
        word_size: int = 512,
        score: Callable[[int, int], Score] = Additive,
        attention: Callable[[], Attention] = Soft,
        num_gates: int = 1,
        dropout: float = 0.5,
        context_dropout: float = 0.0,
        context_dropout_after: int = 0,
    ):
        """
        score: f_att; called with the sizes of an annotation vector and of the state. See `attention/scores.py`.
        attention: phi, what is seen of the regions: `Soft`, `Hard` or `StraightThrough`.
        num_gates: 1 for the paper's scalar beta_t, `region_size` for the vector of popular replications.
        context_dropout: the probability, in training, of hiding z_t from the LSTM, but not from the word predicted at
            t.
            Differs from the paper, where it is 0: a captioner that cannot rely on its memory of an object looks at it
            again.
        context_dropout_after: training batches before z_t is hidden for the first time. To choose which object to name
            next, a
            captioner compares objects that it remembers: it learns that first, and then to look again.
        """
        super().__init__()
        check_range("ShowAttendTell", 1, 10**12, hidden_size=hidden_size, word_size=word_size)
        check_range("ShowAttendTell", 0, 1, context_dropout=context_dropout)
        check_range("ShowAttendTell", 0, 10**12, context_dropout_after=context_dropout_after)
        if num_gates not in (1, region_size):
            raise ValueError(f"num_gates is {num_gates}: 1 (scalar, the paper) or {region_size} (one per feature)")
        self.region_size, self.state_size = region_size, hidden_size
        self.score = score(region_size, hidden_size)
        self.attention = attention()
        self.reinforced, self.modes = self.attention.reinforced, self.attention.modes
        self.gate = Linear(hidden_size, num_gates)  # f_beta
        self.initial_hidden = _initial(region_size, hidden_size, dropout)  # f_init,h
        self.initial_cell = _initial(region_size, hidden_size, dropout)  # f_init,c
        self.embedding = nn.Embedding(num_words, word_size, padding_idx=0)  # E
        self.word_to_lstm = Linear(word_size, 4 * hidden_size)
        self.hidden_to_lstm = Linear(hidden_size, 4 * hidden_size, bias=False)
        self.context_to_lstm = Linear(region_size, 4 * hidden_size, bias=False)
        self.hidden_to_output = Linear(hidden_size, word_size)  # L_h
        self.context_to_output = Linear(region_size, word_size, bias=False)  # L_z
        self.output = Linear(word_size, num_words)  # L_o
        self.dropout, self.context_dropout, self.context_dropout_after = dropout, context_dropout, context_dropout_after
        if context_dropout_after:
            self.register_buffer("batches", torch.zeros(()))

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

    def restart(self) -> None:
        self.attention.restart()
        if self.context_dropout_after:
            self.batches.zero_()

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> tuple[Memory, State]:
        require("regions", regions, "B L D", "float", D=self.region_size)
        real = real_regions(regions) if self.attention.pads else None
        return self.started(regions, mean_region(regions, real), rows, real)

    def started(
        self, regions: Tensor, summary: Float[Tensor, "B _"], rows: int, real: Tensor | None = None
    ) -> tuple[Memory, State]:
        """The memory of `regions`, and the state that f_init computes from a summary of them."""
        hidden, cell = (
            initial(summary)[:, None].expand(-1, rows, -1) for initial in (self.initial_hidden, self.initial_cell)
        )
        if torch.is_autocast_enabled(regions.device.type) and not regions.requires_grad:  # or each word would cast them
            regions = regions.to(torch.get_autocast_dtype(regions.device.type))
        keys = self.score.project(regions)
        memory = Memory(regions, keys, self.attention.sample_expectation_mask(regions.shape[0], regions), real)
        return memory, State(hidden, cell, self.score.start(keys, rows), self.attention.start(regions, rows))

    def step(
        self, word: Int[Tensor, "B R"], state: State, memory: Memory
    ) -> tuple[Float[Tensor, "B R V"], State, AttentionMap]:
        require("word", word, "B R", "integer", B=memory.regions.shape[0])
        embedded = self.embedding(word)
        with sharing_casts():
            state, seen, context = self.look(self.word_to_lstm(embedded), state, memory)
        logits = self.output(self.deep(embedded, state.hidden, context))
        return logits, state, AttentionMap(seen.alpha, seen.region)

    @casting_weights
    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"], runs: int = 1) -> Caption:
        """Each time step runs on the captions that still have a word. What does not depend on the previous state
        (embeddings, the deep output, the vocabulary layer) runs on all time steps at once."""
        require("words", words, "B R T", "integer", B=regions.shape[0], hint=": ids of R captions per image")
        words = words.repeat_interleave(runs, dim=1) if runs > 1 else words
        if self.training and self.context_dropout_after:
            self.batches += 1
        steps = ragged.schedule(words)
        position = torch.cat([step.position for step in steps])
        before = F.pad(words, (1, -1)).flatten()[position]
        embedded = self.embedding(before)
        from_words = self.from_words(before, embedded).split([len(step.position) for step in steps])

        memory, state = self.start(regions, words.shape[1])
        memory, mask = memory._replace(regions=accumulating(memory.regions)), memory.expectation_mask
        real = memory.real
        state = state._replace(hidden=state.hidden.flatten(0, 1), cell=state.cell.flatten(0, 1))
        states, hidden, contexts, looks = [], [], [], []
        with unrolled(len(steps)) if regions.is_cuda else nullcontext():  # on a CPU fewer and fewer rows go on
            for step, from_word in zip(steps, from_words, strict=True):
                memory, state = ragged.leading(memory, step.images), state.leading(step)
                states.append(state.hidden)
                state, seen, context = self.look(from_word, state, memory, runs, step)
                hidden.append(state.hidden)
                contexts.append(context)
                looks.append(seen)
        del from_word, from_words  # the largest of what the loop read

        deep = self.deep(embedded, torch.cat(hidden), torch.cat(contexts), runs)
        log_prob, mean = ragged.caption_log_prob(  # applies L_o and the softmax of eq. 7
            self.output, deep, words, position, with_mean=self.with_mean
        )
        word_mask = words != PAD
        alpha = ragged.padded([seen.alpha for seen in looks], words) * word_mask[..., None]
        if looks[0].region is None:
            return Caption(log_prob, alpha, real=real, mean_log_prob=mean)
        region = ragged.padded([seen.region for seen in looks], words)
        seen_from = [ragged.spread(state.detach(), step) for state, step in zip(states, steps, strict=True)]
        choice = self.attention.choice(alpha, region, word_mask, mask, ragged.padded(seen_from, words))
        return Caption(log_prob, alpha, region, choice, real, mean)

    def from_words(self, words: Int[Tensor, "N"], embedded: Float[Tensor, "N E"]) -> Float[Tensor, "N gates"]:
        """What the LSTM gets of words, `word_to_lstm(embedded)`: on a CPU computed once for each different word, where
        most occur several times."""
        if words.device.type == "cpu":
            different, number = words.unique(return_inverse=True)
            if 2 * len(different) < len(words):  # F.embedding adds its gradients fast, and in float32
                return F.embedding(number, at_least_float32(self.word_to_lstm(self.embedding(different))))
        return self.word_to_lstm(embedded)

    def look(
        self, from_word: Tensor, state: State, memory: Memory, runs: int = 1, step: ragged.Step | None = None
    ) -> tuple[State, AttentionOutput, Tensor]:
        """One time step: attention computed from h_{t-1}, the gate beta_t (section 4.2.1), and the LSTM. Also returns
        z_t. With `step`, the input, h, c and z are packed rows."""
        scored = self.score(ragged.spread(state.hidden, step), memory.keys, state.carry)
        if not isinstance(scored, tuple) or len(scored) != 2:
            raise ValueError(f"{type(self.score).__name__} must return (scores, carry), not a {type(scored).__name__}")
        scores, carry = scored
        if scores.dim() != 3 or scores.shape[2] != memory.regions.shape[1]:
            sizes = {"B": memory.regions.shape[0], "L": memory.regions.shape[1]}
            require("scores", scores, "B R L", "float", hint=f", of {type(self.score).__name__}", **sizes)
        scores = without_padding(scores, memory.real)
        seen = self.attention(scores, memory.regions, memory.expectation_mask, state.seen_before)
        context = gated(repeated(self.gate, state.hidden), ragged.collect(seen.context, step))
        remembered = self.remembered(context, runs) if self.training and self.context_dropout else context
        from_hidden, from_context = (
            repeated(layer, input)
            for layer, input in ((self.hidden_to_lstm, state.hidden), (self.context_to_lstm, remembered))
        )
        hidden, cell = lstm(from_word, state.cell, from_hidden, from_context)
        return State(hidden, cell, self.score.after(carry, seen.alpha), seen.carry), seen, context

    def remembered(self, context: Tensor, runs: int) -> Tensor:
        """z_t as the LSTM sees it in training: zero for some words, the same in all runs of a caption."""
        p = (
            self.context_dropout * (self.batches > self.context_dropout_after)
            if self.context_dropout_after
            else self.context_dropout
        )
        *images, rows, _ = context.shape
        kept = torch.rand(*images, rows // runs, 1, device=context.device) >= p
        return context * kept.repeat_interleave(runs, dim=-2)

    def deep(self, embedded: Tensor, hidden: Tensor, context: Tensor, runs: int = 1) -> Tensor:
        """The deep output (Xu et al. 2015, eq. 7) before L_o: tanh(E y_{t-1} + L_h h_t + L_z z_t), (..., E)."""
        hidden = dropout(hidden, self.dropout, self.training, shared=runs)
        deep = tanh_of_sum(embedded, self.hidden_to_output(hidden), self.context_to_output(context))
        return dropout(deep, self.dropout, self.training, shared=runs)


def _initial(region_size: int, size: int, dropout: float) -> nn.Sequential:
    """The MLP from the mean annotation vector to h_0 or c_0 (section 3.1.2)."""
    return nn.Sequential(Linear(region_size, size), nn.ReLU(), Dropout(dropout), Linear(size, size), nn.Tanh())

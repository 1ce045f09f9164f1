"""Show, Attend and Tell (Xu et al., ICML 2015): an LSTM that looks at the image once for each word."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.attention.scores import Additive, Score
from vision_attn.attention.soft import Attention, Soft
from vision_attn.contracts.nested import Nested
from vision_attn.layers.cells import GATES, Cell, gru
from vision_attn.layers.dropout import Dropout
from vision_attn.layers.linear import Linear
from vision_attn.layers.lstm import LSTMCell
from vision_attn.layers.padding import mean_region, real_regions
from vision_attn.models.recurrent import RecurrentCaptioner, RecurrentMemory, StepOutput
from vision_attn.system.checks import check_range, require
from vision_attn.system.errors import UserError


class ShowAttendTellState(NamedTuple):
    """The state of the decoder. Held once per row; beams reorder it."""

    hidden: Float[Tensor, "*rows H"]
    cell: Float[Tensor, "*rows H"] | None
    """None for a GRU."""
    carry: Nested
    """The carry of the score, such as the previous map."""
    seen_before: Nested = None
    """The carry of the attention, such as the column that it has reached."""


class Gate(Linear):
    """The gate of the context: beta_t phi with beta_t = sigmoid(f_beta(h_{t-1})) (Xu et al. 2015, section 4.2.1), one
    number, or one for each feature.

    Fast version: `fast.models.recurrent.FastGate`.
    """

    def forward(self, *inputs: Float[Tensor, "*rows _"]) -> Float[Tensor, "*rows D"]:
        """Gate phi (..., D), the second input, by h_{t-1} (..., H), the first one."""
        hidden, seen = inputs
        return super().forward(hidden).sigmoid() * seen


class ShowAttendTell(RecurrentCaptioner):
    """p(y_t | y_1..t-1, image) = softmax(L_o tanh(E y_{t-1} + L_h h_t + L_z z_t)) (Xu et al. 2015, eq. 7).

    h_t is the state of an LSTM over (E y_{t-1}, h_{t-1}, z_t) (Xu et al. 2015, eq. 1, eq. 2 and eq. 3). alpha_t is the
    softmax (eq. 5) of scores computed from h_{t-1} (eq. 4), and z_t = beta_t phi({a_i}, {alpha_ti}) (eq. 6), where the
    gate beta_t multiplies the context vector that `Attention` returns. The first word's embedding is zero: word 0 pads
    captions and starts them.

    Differs from the paper: the tanh before L_o, the dropout on h_t and before L_o, and the tanh of the initial state
    come from the authors' code, as does the gate of hard attention.

    Fast version: `fast.models.recurrent.FastShowAttendTell`.
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
        cell: Cell = "lstm",
        num_gates: int = 1,
        dropout: float = 0.5,
        context_dropout: float = 0.0,
        context_dropout_after: int = 0,
        tied: bool = False,
        scheduled_sampling: float = 0.0,
        scheduled_sampling_batches: int = 0,
    ):
        """
        score: f_att; constructed with the sizes of an annotation vector and of the state. See `attention/scores.py`.
        attention: phi, makes the context vector from the scores: `Soft`, `Hard`, or another `Attention`.
        cell: "lstm" (the paper) or "gru" (Cho et al. 2014), which has three quarters of the weights and no c_t.
        num_gates: 1 for the paper's scalar beta_t, `region_size` for the vector of popular replications.
        context_dropout: the probability, in training, that z_t is hidden from the LSTM, but not from the prediction of
            word t. Differs from the paper, where it is 0: a captioner that cannot rely on its memory of an object looks
            at the object again.
        context_dropout_after: training batches before z_t is hidden for the first time. A captioner first learns to
            compare the objects that it remembers, to choose which one to name next; only then it learns to look again.
        tied: whether the weights of L_o are the embeddings E (Press and Wolf 2017). Differs from the paper: they
            are not.
        scheduled_sampling: the probability, in training, that the previous word is replaced by a sample of the
            captioner (Bengio et al. 2015). Differs from the paper, where it is 0.
        scheduled_sampling_batches: training batches over which this probability rises linearly from 0.
        """
        super().__init__(region_size, hidden_size, word_size, score, attention)
        check_range("ShowAttendTell", 0, 1, context_dropout=context_dropout)
        check_range("ShowAttendTell", 0, 10**12, context_dropout_after=context_dropout_after)
        if num_gates not in (1, region_size):
            raise UserError(f"num_gates is {num_gates}: 1 (scalar, the paper) or {region_size} (one per feature)")
        self.gate = Gate(hidden_size, num_gates)  # f_beta
        self.initial_hidden = _initial(region_size, hidden_size, dropout)  # f_init,h
        if cell == "lstm":
            self.lstm = LSTMCell()
            self.initial_cell = _initial(region_size, hidden_size, dropout)  # f_init,c
        self.embedding = nn.Embedding(num_words, word_size, padding_idx=0)  # E
        gates = GATES[cell] * hidden_size
        self.word_to_lstm = Linear(word_size, gates)
        self.hidden_to_lstm = Linear(hidden_size, gates, bias=cell == "gru")  # whose reset gate multiplies it
        self.context_to_lstm = Linear(region_size, gates, bias=False)
        self.hidden_to_output = Linear(hidden_size, word_size)  # L_h
        self.context_to_output = Linear(region_size, word_size, bias=False)  # L_z
        self.output = Linear(word_size, num_words)  # L_o
        self.cell = cell
        self.drop = Dropout(dropout)
        self.context_dropout, self.context_dropout_after = context_dropout, context_dropout_after
        if context_dropout_after:
            self.count_batches()
        if tied:
            self.tie()
        self.schedule_sampling(scheduled_sampling, scheduled_sampling_batches)

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> tuple[RecurrentMemory, ShowAttendTellState]:
        require("regions", regions, "B L D", "float", D=self.region_size)
        real = real_regions(regions) if self.attention.pads else None
        return self.started(regions, mean_region(regions, real), rows, real)

    def started(
        self, regions: Tensor, summary: Float[Tensor, "B _"], rows: int, real: Tensor | None = None
    ) -> tuple[RecurrentMemory, ShowAttendTellState]:
        """Return the memory of `regions`, and the state that f_init computes from a summary of them."""
        initial = [self.initial_hidden, self.initial_cell] if self.cell == "lstm" else [self.initial_hidden]
        hidden, *cells = (network(summary)[:, None].expand(-1, rows, -1) for network in initial)
        memory = self.memory(regions, real)
        cell = cells[0] if cells else None
        state = ShowAttendTellState(
            hidden, cell, self.score.start(memory.keys, rows), self.attention.start(regions, rows)
        )
        return memory, state

    def look(self, from_word: Tensor, state: ShowAttendTellState, memory: RecurrentMemory, runs: int = 1) -> StepOutput:
        """Attend with h_{t-1}, apply the gate beta_t (section 4.2.1), and update the LSTM or GRU. The outputs are h_t
        and z_t."""
        seen, carry = self.attend(state.hidden, state, memory)
        context = self.gate(state.hidden, seen.context)
        remembered = self.remembered(context, runs) if self.training and self.context_dropout else context
        from_hidden, from_context = self.hidden_to_lstm(state.hidden), self.context_to_lstm(remembered)
        if self.cell == "gru":
            hidden, cell = gru(from_word + from_context, from_hidden, state.hidden), None
        else:
            hidden, cell = self.lstm(state.cell, from_word, from_hidden, from_context)
        return StepOutput(ShowAttendTellState(hidden, cell, carry, seen.carry), seen, state.hidden, (hidden, context))

    def remembered(self, context: Tensor, runs: int) -> Tensor:
        """Return z_t as the LSTM sees it in training: zero for some words, the same words in all runs of a caption."""
        p = (
            self.context_dropout * (self.batches > self.context_dropout_after)
            if self.context_dropout_after
            else self.context_dropout
        )
        *images, rows, _ = context.shape
        kept = torch.rand(*images, rows // runs, 1, device=context.device) >= p
        return context * kept.repeat_interleave(runs, dim=-2)

    def deep(self, embedded: Tensor, *outputs: Tensor, runs: int = 1) -> Tensor:
        """Compute the deep output (Xu et al. 2015, eq. 7) before L_o: tanh(E y_{t-1} + L_h h_t + L_z z_t), (..., E)."""
        hidden, context = outputs
        hidden = self.drop(hidden, shared=runs)
        deep = (embedded + self.hidden_to_output(hidden) + self.context_to_output(context)).tanh()
        return self.drop(deep, shared=runs)


def _initial(region_size: int, size: int, dropout: float) -> nn.Sequential:
    """Build the MLP from the mean annotation vector to h_0 or c_0 (section 3.1.2)."""
    return nn.Sequential(Linear(region_size, size), nn.ReLU(), Dropout(dropout), Linear(size, size), nn.Tanh())

"""Top-down attention (Anderson et al., CVPR 2018): one LSTM says where to look, a second one what to say."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.attention.scores import Additive, Score
from vision_attn.attention.soft import Attention, Soft
from vision_attn.contracts.nested import Nested
from vision_attn.layers.dropout import Dropout
from vision_attn.layers.linear import Linear
from vision_attn.layers.lstm import LSTMCell
from vision_attn.layers.padding import mean_region, real_regions
from vision_attn.models.recurrent import RecurrentCaptioner, RecurrentMemory, StepOutput
from vision_attn.system.checks import require


class TopDownState(NamedTuple):
    """The states of both LSTMs. Held once per row; beams reorder it."""

    hidden: Float[Tensor, "*rows H"]
    """h1, the state of the attention LSTM."""
    cell: Float[Tensor, "*rows H"]
    language_hidden: Float[Tensor, "*rows H"]
    """h2, the state of the language LSTM."""
    language_cell: Float[Tensor, "*rows H"]
    carry: Nested
    """The carry of the score, such as the previous map."""
    seen_before: Nested = None
    """The carry of the attention, such as the column that it has reached."""


class TopDown(RecurrentCaptioner):
    """p(y_t | y_1..t-1, image) = softmax(W_p h2_t + b_p) (Anderson et al. 2018, eq. 7), with two LSTMs (eq. 1).

    The attention LSTM runs over x1_t = [h2_{t-1}, v_mean, W_e y_{t-1}] (Anderson et al. 2018, eq. 2). Its state h1_t
    knows the word before, the whole image and what has been said, and scores each region (eq. 3); alpha_t is the
    softmax of the scores (eq. 4), and the context z_t = sum_i alpha_ti v_i (eq. 5). The language LSTM runs over
    x2_t = [z_t, h1_t] (eq. 6). Regions may be those of any encoder; in the paper they are boxes of a detector
    ("bottom-up").

    As in the authors' code, the biases of the forget gates start at 1, and the states of both LSTMs at zero.

    Differs from the paper: the first word's embedding is zero, where the authors' code takes that of END; the scores
    have a bias; dropout before W_p.

    Fast version: `fast.models.recurrent.FastTopDown`.
    """

    def __init__(
        self,
        num_words: int,
        region_size: int,
        *,
        hidden_size: int = 1000,
        word_size: int = 1000,
        score: Callable[[int, int], Score] = Additive,
        attention: Callable[[], Attention] = Soft,
        dropout: float = 0.0,
        tied: bool = False,
        scheduled_sampling: float = 0.0,
        scheduled_sampling_batches: int = 0,
    ):
        """
        score: constructed with the sizes of an annotation vector and of h1. See `attention/scores.py`.
        attention: makes the context vector from the scores: `Soft`, `Hard`, or another `Attention`.
        dropout: the dropout of h2 before W_p.
        tied: whether the weights of W_p are the embeddings W_e (Press and Wolf 2017), for a `word_size` that is
            `hidden_size`. Differs from the paper: they are not.
        scheduled_sampling: the probability, in training, that the previous word is replaced by a sample of the
            captioner (Bengio et al. 2015). Differs from the paper, where it is 0.
        scheduled_sampling_batches: training batches over which this probability rises linearly from 0.
        """
        super().__init__(region_size, hidden_size, word_size, score, attention)
        self.embedding = nn.Embedding(num_words, word_size, padding_idx=0)  # W_e
        self.word_to_lstm = Linear(word_size, 4 * hidden_size)
        self.mean_to_lstm = Linear(region_size, 4 * hidden_size, bias=False)
        self.hidden_to_lstm = Linear(2 * hidden_size, 4 * hidden_size, bias=False)  # of h2 and h1
        self.to_language = Linear(region_size + 2 * hidden_size, 4 * hidden_size)  # of z, h1 and h2
        self.output = Linear(hidden_size, num_words)  # W_p
        self.lstm, self.language_lstm = LSTMCell(), LSTMCell()
        self.drop = Dropout(dropout)
        with torch.no_grad():
            for layer in (self.word_to_lstm, self.to_language):
                layer.bias[hidden_size : 2 * hidden_size] = 1
        if tied:
            self.tie()
        self.schedule_sampling(scheduled_sampling, scheduled_sampling_batches)

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> tuple[RecurrentMemory, TopDownState]:
        require("regions", regions, "B L D", "float", D=self.region_size)
        real = real_regions(regions) if self.attention.pads else None
        memory = self.memory(regions, real)
        zeros = self.embedding.weight.new_zeros(regions.shape[0], rows, self.state_size)
        carry, seen_before = self.score.start(memory.keys, rows), self.attention.start(regions, rows)
        state = TopDownState(zeros, zeros, zeros, zeros, carry, seen_before)
        return memory._replace(from_mean=self.mean_to_lstm(mean_region(regions, real))), state

    def look(self, from_word: Tensor, state: TopDownState, memory: RecurrentMemory, runs: int = 1) -> StepOutput:
        """Update the attention LSTM (Anderson et al. 2018, eq. 2), attend with h1_t (eq. 3, eq. 4 and eq. 5), and
        update the language LSTM (eq. 6). The output is h2_t."""
        assert memory.from_mean is not None
        from_hidden = self.hidden_to_lstm(state.language_hidden, state.hidden)
        hidden, cell = self.lstm(state.cell, from_word, from_hidden, self.for_rows(memory.from_mean, memory, from_word))
        seen, carry = self.attend(hidden, state, memory)
        gates = self.to_language(seen.context, hidden, state.language_hidden)
        language_hidden, language_cell = self.language_lstm(state.language_cell, gates)
        state = TopDownState(hidden, cell, language_hidden, language_cell, carry, seen.carry)
        return StepOutput(state, seen, hidden, (language_hidden,))

    def deep(self, embedded: Tensor, *outputs: Tensor, runs: int = 1) -> Tensor:
        (language_hidden,) = outputs
        return self.drop(language_hidden, shared=runs)

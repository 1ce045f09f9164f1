"""RNN encoder-decoders over the columns of a line: RNNsearch (Bahdanau et al. 2015), which attends to the annotations
of all columns for each character, and its predecessor (Cho et al. 2014), which sees one fixed vector."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.scores import Additive, Score
from vision_attn.attention.soft import Attention, Soft
from vision_attn.contracts import Caption, Captioner
from vision_attn.contracts.nested import map_tensors
from vision_attn.layers.cells import CELLS, Cell, RecurrentState, over_steps
from vision_attn.layers.dropout import Dropout
from vision_attn.layers.likelihood import WordLogProb
from vision_attn.layers.linear import Linear
from vision_attn.models.recurrent import RecurrentMemory
from vision_attn.models.show_attend_tell import ShowAttendTell, ShowAttendTellState
from vision_attn.system.checks import require


class Recurrent(nn.Module):
    """A bidirectional recurrent network over columns: h_j = [forward h_j; backward h_j], the annotations (Bahdanau et
    al. 2015, section 3.2; eq. 7)."""

    def __init__(self, region_size: int, hidden_size: int, cell: str, both_ways: bool):
        super().__init__()
        self.both_ways = both_ways
        self.network = CELLS[cell](region_size, hidden_size, batch_first=True, bidirectional=both_ways)
        self.size = hidden_size * (2 if both_ways else 1)

    def forward(self, regions: Float[Tensor, "B L D"]) -> tuple[Float[Tensor, "B L A"], Float[Tensor, "B H"]]:
        """Return the annotations and the last state of the backward direction, or of the forward one if there is no
        other."""
        annotations, last = self.network(regions)
        hidden = last[0] if isinstance(last, tuple) else last
        return annotations, hidden[-1]


class RNNsearch(ShowAttendTell):
    """The decoder of Show, Attend and Tell over the annotations of a bidirectional recurrent network. The initial state
    follows from the last backward state, s_0 = tanh(W_s h_1) (Bahdanau et al. 2015, section A.2.2).

    Its score e_ij = a(s_{i-1}, h_j), weights and context are the paper's (eq. 6 and eq. 5): `Additive` and `Soft`.
    Any other score and attention can take their place.

    encoder_size: hidden size of each direction.
    encoder: the recurrent network of the encoder, "gru" (the paper) or "lstm".
    both_ways: False: forward only, for a decoder that can run while the line is still being written
        (`attention/monotonic.py`).
    cell: the recurrent cell of the decoder, "lstm" or "gru" (the paper).
    hidden_size, word_size, score, attention, dropout: as for `ShowAttendTell`.

    Differs from the paper: an annotation also holds the column itself after h_j, so that a context shows characters
    before the recurrent network has learned to; the decoder is an LSTM by default, with the gate of the context and the
    tanh before the output layer that Show, Attend and Tell has; the paper has a maxout layer.

    Fast version: `fast.models.recurrent.FastRNNsearch`.
    """

    def __init__(
        self,
        num_words: int,
        region_size: int,
        *,
        encoder_size: int = 128,
        encoder: Cell = "lstm",
        both_ways: bool = True,
        cell: Cell = "lstm",
        hidden_size: int = 256,
        word_size: int = 64,
        score: Callable[[int, int], Score] = Additive,
        attention: Callable[[], Attention] = Soft,
        dropout: float = 0.0,
    ):
        annotation_size = encoder_size * (2 if both_ways else 1) + region_size
        super().__init__(
            num_words, annotation_size, hidden_size=hidden_size, word_size=word_size, score=score, attention=attention,
            cell=cell, dropout=dropout,
        )  # fmt: skip
        self.column_size = region_size
        self.encoder = Recurrent(region_size, encoder_size, encoder, both_ways)
        self.initial_hidden = nn.Sequential(Linear(encoder_size, hidden_size), nn.Tanh())  # W_s
        if cell == "lstm":
            self.initial_cell = nn.Sequential(Linear(encoder_size, hidden_size), nn.Tanh())

    def leave_out_padding(self) -> None:
        """Raises UserError: its recurrent network would read the padding."""
        Captioner.leave_out_padding(self)

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> tuple[RecurrentMemory, ShowAttendTellState]:
        require("regions", regions, "B L D", "float", D=self.column_size)
        annotations, last = self.encoder(regions)
        return self.started(torch.cat([annotations, regions], dim=-1), last, rows)


class EncoderDecoder(Captioner):
    """The RNN encoder-decoder with one fixed vector c, the last state of the encoder (Cho et al. 2014, section 2.2):
    h_t = f(h_{t-1}, y_{t-1}, c), p(y_t) = g(h_t, y_{t-1}, c). No attention: the whole line has to fit into c.

    encoder_size: hidden size of each direction of the encoder.
    encoder, cell: the recurrent networks of the encoder and of the decoder, "gru" (the paper) or "lstm".

    Differs from the paper: c comes from both directions, and f is an LSTM by default.
    """

    def __init__(
        self,
        num_words: int,
        region_size: int,
        *,
        encoder_size: int = 128,
        encoder: Cell = "lstm",
        cell: Cell = "lstm",
        hidden_size: int = 256,
        word_size: int = 64,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.word_log_prob, self.region_size = WordLogProb(), region_size
        self.encoder = CELLS[encoder](region_size, encoder_size, batch_first=True, bidirectional=True)
        self.initial = Linear(2 * encoder_size, (2 if cell == "lstm" else 1) * hidden_size)
        self.embedding = nn.Embedding(num_words, word_size, padding_idx=0)
        self.lstm = CELLS[cell](word_size + 2 * encoder_size, hidden_size, batch_first=True)
        self.deep = Linear(hidden_size + word_size + 2 * encoder_size, word_size)
        self.output = Linear(word_size, num_words)
        self.dropout = Dropout(dropout)

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> tuple[Float[Tensor, "B A"], RecurrentState]:
        """Return the fixed vector c, the only memory of the line, and the initial state."""
        require("regions", regions, "B L D", "float", D=self.region_size)
        _, last = self.encoder(regions)
        both = last[0] if isinstance(last, tuple) else last
        fixed = torch.cat([both[0], both[1]], dim=-1)
        initial = self.initial(fixed).tanh()[:, None].expand(-1, rows, -1)
        hidden, *cell = initial.split(self.lstm.hidden_size, dim=-1)
        return fixed, RecurrentState(hidden, cell[0] if cell else None)

    def step(
        self, word: Int[Tensor, "B R"], state: RecurrentState, memory: Float[Tensor, "B A"]
    ) -> tuple[Float[Tensor, "B R V"], RecurrentState, None]:
        deep, state = self._decode(word[..., None], state, memory)
        return self.output(deep.squeeze(2)), state, None

    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"]) -> Caption:
        require("words", words, "B R T", "integer", B=len(regions), hint=": ids of R transcripts per image")
        memory, state = self.start(regions, words.shape[1])
        deep, _ = self._decode(F.pad(words, (1, -1)), state, memory)
        log_prob, mean = self.word_log_prob(self.output, deep, words, with_mean=self.with_mean, bars_pad=self.bars_pad)
        return Caption(log_prob, mean_log_prob=mean)

    def _decode(
        self, words: Int[Tensor, "B R T"], state: RecurrentState, fixed: Float[Tensor, "B A"]
    ) -> tuple[Float[Tensor, "B R T E"], RecurrentState]:
        """Run the decoder over `words`, up to the input of the output layer."""
        rows = words.shape[:2]
        inputs = torch.cat([self.embedding(words), fixed[:, None, None].expand(*words.shape, -1)], dim=-1)
        before = map_tensors(lambda tensor: tensor.flatten(0, 1), state)
        hidden, *after = over_steps(self.lstm, inputs.flatten(0, 1), *before)
        deep = self.deep(torch.cat([self.dropout(hidden).unflatten(0, rows), inputs], dim=-1)).tanh()
        return self.dropout(deep), RecurrentState(*map_tensors(lambda tensor: tensor.unflatten(0, rows), after))

"""Connectionist temporal classification (Graves et al., ICML 2006): each column is labelled with a character or a
blank, and the probability of a transcript is the sum over all alignments that spell it."""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vision_attn.contracts import END, PAD, AttentionMap, Caption, Captioner
from vision_attn.layers.dropout import Dropout
from vision_attn.layers.likelihood import class_log_prob
from vision_attn.layers.linear import Linear
from vision_attn.layers.precision import at_least_float32
from vision_attn.models.encoder_decoder import Recurrent
from vision_attn.system.checks import require

BLANK = PAD
"""The label of columns without a character. PAD is never a character of a transcript, so it has no other use here."""
NEVER = -1e30
"""The logarithm of 0. Unlike -inf, sums of it have no NaN."""


class PrefixState(NamedTuple):
    """The forward variables of each row's prefix: log p of all alignments of columns 0..l that spell the prefix."""

    blank: Float[Tensor, "B R L"]
    """log p of the alignments that end in a blank."""
    character: Float[Tensor, "B R L"]
    """log p of the alignments that end in the last character of the prefix."""
    last: Int[Tensor, "B R"]
    """The last character of the prefix; BLANK for the empty one."""


class CTC(Captioner):
    """A bidirectional recurrent network that labels columns: p(k, l) = softmax of its output (Graves et al. 2006,
    section 3.1). Spaces of transcripts are characters like others.

    Alignments are monotonic, so only its recurrent network can change the order of characters. A strip needs a column
    for each character, and one more between equal neighbours.

    `forward` returns log p of a whole transcript at its END (eq. 3; torch's `ctc_loss` computes the sum), and zeros at
    its characters. A transcript without END has been cut: then its last character has log p of all transcripts that
    begin with it (section 3.2). `step` returns the factors of the same product, p(next | prefix), by prefix search
    (section 3.2). So any decoding works; `decode/ctc.py` is faster.

    encoder: the recurrent network, "gru" or "lstm".
    both_ways: False for a network that reads from left to right only.
    """

    def __init__(
        self,
        num_words: int,
        region_size: int,
        *,
        hidden_size: int = 128,
        encoder: Literal["gru", "lstm"] = "lstm",
        both_ways: bool = True,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.region_size = region_size
        self.encoder = Recurrent(region_size, hidden_size, encoder, both_ways)
        self.dropout = Dropout(dropout)
        self.output = Linear(self.encoder.size, num_words)

    def frames(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L V"]:
        """Return log p of each character at each column; 0 is the blank. END is no label."""
        require("regions", regions, "B L D", "float", D=self.region_size)
        annotations, _ = self.encoder(regions)
        scores = self.output(self.dropout(annotations))
        end = torch.arange(scores.shape[-1], device=scores.device) == END
        return class_log_prob(at_least_float32(scores).masked_fill(end, NEVER))

    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"]) -> Caption:
        """Run on given transcripts. If a strip has too few columns for its transcript, log p is -inf."""
        require("words", words, "B R T", "integer", B=len(regions), hint=": ids of R transcripts per image")
        B, R, T = words.shape
        frames = self.frames(regions).repeat_interleave(R, dim=0).transpose(0, 1)  # (L, B R, V)
        flat = words.flatten(0, 1)
        length = (flat > END).sum(dim=-1)
        columns = torch.full_like(length, len(frames))
        cut = (length > 0) & (flat != END).all(dim=-1)
        if frames.device.type == "cpu":
            total = -F.ctc_loss(frames, flat, columns, length, blank=BLANK, reduction="none", zero_infinity=True)
            if len(some := cut.nonzero().squeeze(1)):
                total = total.index_copy(0, some, forward_variables(frames[:, some], flat[some])[1])
        else:  # torch's loss waits for a GPU to read the lengths, so that no graph could capture it
            whole, begun = forward_variables(frames, flat)
            total = torch.where(cut, begun, whole)
        repeated = ((flat[:, 1:] == flat[:, :-1]) & (flat[:, 1:] > END)).sum(dim=-1)
        total = torch.where(length + repeated <= columns, total, -torch.inf)
        spoken = (flat != PAD).sum(dim=-1)
        last = torch.arange(T, device=words.device) == spoken[:, None] - 1
        return Caption(torch.where(last, total[:, None], 0.0).unflatten(0, (B, R)))

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> tuple[Float[Tensor, "B L V"], PrefixState]:
        """Return the state of the empty prefix: every column so far is blank."""
        frames = self.frames(regions)
        blank = frames[..., BLANK].cumsum(dim=1)[:, None].expand(-1, rows, -1)
        last = torch.full(blank.shape[:2], BLANK, device=frames.device)
        return frames, PrefixState(blank, torch.full_like(blank, NEVER), last)

    def step(
        self, word: Int[Tensor, "B R"], state: PrefixState, memory: Float[Tensor, "B L V"]
    ) -> tuple[Float[Tensor, "B R V"], PrefixState, AttentionMap]:
        """Return log p(prefix, then the character or END) as logits; -inf for prefixes that do not fit into the strip.
        The map tells where the next character begins."""
        going = (word > END)[..., None]  # PAD starts a transcript; rows that have ended are not used
        extended = self._extended(word, state, memory)
        state = PrefixState(
            torch.where(going, extended.blank, state.blank),
            torch.where(going, extended.character, state.character),
            torch.where(going[..., 0], extended.last, state.last),
        )
        begins = _before(state)[..., None] + memory[:, None]  # (B, R, L, V): all c but the last one
        last = state.last[..., None]
        emitted = memory[:, None].expand_as(begins).gather(-1, last[..., None].expand(*begins.shape[:3], 1))
        again = _shifted(state.blank, state.last == BLANK)[..., None] + emitted
        begins = begins.scatter(-1, last[..., None].expand_as(again), again)
        begins[..., BLANK] = NEVER
        logits = begins.logsumexp(dim=2)
        ends = torch.logaddexp(state.blank[..., -1], state.character[..., -1])
        logits[..., END] = ends
        logits = logits.masked_fill(logits < NEVER / 2, -torch.inf)
        return logits, state, AttentionMap(begins.logsumexp(dim=-1).softmax(dim=-1))

    def _extended(self, word: Tensor, state: PrefixState, frames: Tensor) -> PrefixState:
        """Return the forward variables of the prefix with one more character."""
        word_log_prob = frames.mT.gather(1, word[..., None].expand(-1, -1, frames.shape[1]))  # (B, R, L)
        same = (word == state.last)[..., None]
        before = torch.where(same, _shifted(state.blank, state.last == BLANK), _before(state))
        blank, character = torch.full_like(before[..., 0], NEVER), torch.full_like(before[..., 0], NEVER)
        blanks, characters = [], []
        for column in range(frames.shape[1]):
            blank, character = (
                torch.logaddexp(blank, character) + frames[:, column, BLANK, None],
                torch.logaddexp(character, before[..., column]) + word_log_prob[..., column],
            )
            blanks.append(blank)
            characters.append(character)
        return PrefixState(torch.stack(blanks, dim=-1), torch.stack(characters, dim=-1), word)


def forward_variables(
    frames: Float[Tensor, "L N V"], words: Int[Tensor, "N T"]
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
    """Return log p of each transcript, and of all transcripts that begin with it.

    words: the characters of each transcript; the second result needs at least one.

    Both follow from the forward variables alpha_t(s) of Graves et al. 2006 (eq. 6 to eq. 8), over the characters with
    blanks between them. After the last character of a beginning, labels are free: its probability is the sum over the
    columns at which this character may begin (section 3.2).
    """
    words = words * (words > END)
    labels = torch.stack([torch.full_like(words, BLANK), words], dim=-1).flatten(1)  # blank, y_1, blank, y_2, ..
    labels = F.pad(labels, (0, 1), value=BLANK)
    skips = (labels != BLANK) & (labels != F.pad(labels, (2, 0))[:, :-2])
    emitted = frames.gather(-1, labels.expand(len(frames), -1, -1))
    value = torch.full_like(emitted[0], NEVER).index_fill(1, labels.new_zeros(1), 0)  # before the first column
    arrivals = []
    for column in emitted:
        previous, second = (F.pad(value, (n, 0), value=NEVER)[:, :-n] for n in (1, 2))
        arrives = torch.logaddexp(previous, second.where(skips, NEVER)) + column
        value = torch.logaddexp(value + column, arrives)
        arrivals.append(arrives)
    last = 2 * (words > 0).sum(dim=-1, keepdim=True) - 1
    character = value.gather(1, last.clamp(min=0)).where(last > 0, NEVER)  # no transcript ends with it if there is none
    whole = torch.logaddexp(value.gather(1, last + 1), character).squeeze(1)
    return whole, torch.stack(arrivals).logsumexp(dim=0).gather(1, last.clamp(min=0)).squeeze(1)


def _before(state: PrefixState) -> Float[Tensor, "B R L"]:
    """Return log p of the prefix in the columns before each column."""
    return _shifted(torch.logaddexp(state.blank, state.character), state.last == BLANK)


def _shifted(columns: Float[Tensor, "B R L"], empty: Tensor) -> Float[Tensor, "B R L"]:
    """Return each column's left neighbour. Before the first column only the empty prefix is possible."""
    first = torch.where(empty, 0.0, NEVER)[..., None].to(columns.dtype)
    return torch.cat([first, columns[..., :-1]], dim=-1)

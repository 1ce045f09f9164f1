"""Show, Attend and Tell (Xu et al., ICML 2015): an LSTM that looks at the image once for each word it says."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention import hard
from vision_attn.attention.reinforce import Choice
from vision_attn.attention.scores import Additive
from vision_attn.attention.soft import Soft
from vision_attn.models.likelihood import word_log_prob
from vision_attn.models.linear import Linear
from vision_attn.models.lstm import lstm
from vision_attn.models.outputs import Caption
from vision_attn.shapes import require


class Memory(NamedTuple):
    """What is held once per image."""

    regions: Float[Tensor, "B L D"]
    keys: Float[Tensor, "B L A"]
    expected: Bool[Tensor, "B"] | None
    """Hard attention in training: whether the image is seen as expected. See `Hard.coins`."""


class State(NamedTuple):
    """What is held once per row, and what beams reorder."""

    hidden: Float[Tensor, "B R H"]
    cell: Float[Tensor, "B R H"]
    alpha: Float[Tensor, "B R L"]
    region: Int[Tensor, "B R"] | None
    """The one region seen last; None where all were."""


class ShowAttendTell(nn.Module):
    """p(y_t | y_1..t-1, image) = softmax(L_o tanh(E y_{t-1} + L_h h_t + L_z z_t)), the deep output of eq. 7.

    h_t is an LSTM's state over (E y_{t-1}, h_{t-1}, z_t). z_t = beta_t phi({a_i}, {alpha_ti}) is the gated look of
    h_{t-1}, soft or hard: the expected annotation vector, or that of one region. The first word's embedding is zero:
    word 0 pads, and starts.

    Differs from the paper: nothing. From the authors' code come the dropout on h_t and before L_o, and the tanh of the
    initial state.
    """

    def __init__(
        self,
        num_words: int,
        region_size: int,
        *,
        hidden_size: int = 512,
        word_size: int = 512,
        score: Callable[[int, int], nn.Module] = Additive,
        attention: Callable[[], nn.Module] = Soft,
        num_gates: int = 1,
        dropout: float = 0.5,
        forget_looks: float = 0.0,
    ):
        """`score`: called with the sizes of an annotation vector and of the state; see `attention/scores.py`.

        `attention`: what is seen of the regions (phi): `Soft`, `Hard` or `StraightThrough`.

        `num_gates`: 1 for the paper's scalar beta_t, `region_size` for the vector of popular replications.

        `forget_looks`: the share of looks z_t that training hides from the LSTM, though not from the word said then.
        Differs from the paper, where it is 0: a captioner that cannot count on remembering what it saw looks again.
        """
        super().__init__()
        if num_gates not in (1, region_size):
            raise ValueError(f"num_gates is {num_gates}: 1 (scalar, the paper) or {region_size} (one per feature)")
        self.region_size, self.hidden_size = region_size, hidden_size
        self.score = score(region_size, hidden_size)
        self.attention = attention()
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
        self.dropout = nn.Dropout(dropout)
        self.forget_looks = forget_looks

    def compile(self, **options) -> None:
        """Compile a turn, not the loop over words: its length changes from batch to batch."""
        self.look = torch.compile(self.look, dynamic=True, **options)

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> tuple[Memory, State]:
        """The memory of each image, and the state of `rows` rows of it before the first word."""
        require("regions", regions, "B L D", "float", D=self.region_size)
        mean = regions.mean(dim=1)
        hidden, cell = (
            initial(mean)[:, None].expand(-1, rows, -1) for initial in (self.initial_hidden, self.initial_cell)
        )
        alpha = hidden.new_zeros(len(regions), rows, regions.shape[1])
        memory = Memory(regions, self.score.project(regions), self.attention.coins(len(regions), regions))
        return memory, State(hidden, cell, alpha, None)

    def step(self, word: Int[Tensor, "B R"], state: State, memory: Memory) -> tuple[Float[Tensor, "B R V"], State]:
        """Logits of the next word after `word`, and the state that saw where to look for it."""
        require("word", word, "B R", "integer", B=len(memory.regions))
        embedded = self.embedding(word)
        state, context = self.look(self.word_to_lstm(embedded), state, memory)
        return self.output(self.deep(embedded, state.hidden, context)), state

    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"]) -> Caption:
        """Teacher forcing. Each turn runs on the images and rows that still have a word; whatever does not depend on
        the state before (embeddings, the vocabulary layer) runs on all turns at once."""
        require("words", words, "B R T", "integer", B=len(regions), hint=": ids of R captions per image")
        turns = _turns(words)
        place = torch.arange(words.numel(), device=words.device).view(words.shape)
        place = torch.cat([place[:b, :r, t].flatten() for t, (b, r) in enumerate(turns)])
        embedded = self.embedding(F.pad(words, (1, -1)).flatten()[place])
        from_words = self.word_to_lstm(embedded).split([b * r for b, r in turns])

        memory, state = self.start(regions, words.shape[1])
        expected = memory.expected
        contexts, states = [], [state]
        for (b, r), from_word in zip(turns, from_words, strict=True):
            memory, state = _cut(memory, b), _cut(states[-1], b, r)
            state, context = self.look(from_word.view(b, r, -1), state, memory)
            contexts.append(context.flatten(0, 1))
            states.append(state)

        hidden = torch.cat([state.hidden.flatten(0, 1) for state in states[1:]])
        deep = self.deep(embedded, hidden, torch.cat(contexts))
        log_prob = _log_prob(self.output, deep, words.flatten(), place)
        alpha = _padded([state.alpha for state in states[1:]], words) * (words != 0)[..., None]
        if state.region is None:
            return Caption(log_prob.view(words.shape), alpha)
        region = _padded([state.region for state in states[1:]], words)
        choice = None
        if self.attention.reinforced and self.attention.look == "draw":
            drawn = words != 0 if expected is None else (words != 0) & ~expected[:, None, None]
            seen_from = _padded([state.hidden.detach() for state in states[:-1]], words)
            choice = Choice(hard.log_prob(alpha, region) * drawn, hard.entropy(alpha), drawn, seen_from)
        return Caption(log_prob.view(words.shape), alpha, region, choice)

    def look(self, from_word: Tensor, state: State, memory: Memory) -> tuple[State, Float[Tensor, "B R D"]]:
        """One turn: where h_{t-1} looks, and the LSTM's step on what it sees there."""
        alpha = self.score(state.hidden, memory.keys, state.alpha).softmax(dim=-1)
        seen, region = self.attention(alpha, memory.regions, memory.expected)
        context = self.gate(state.hidden).sigmoid() * seen
        kept = F.dropout(context.new_ones(*context.shape[:2], 1), self.forget_looks, self.training)
        gates = from_word + self.hidden_to_lstm(state.hidden) + self.context_to_lstm(context * kept)
        return State(*lstm(gates, state.cell), alpha, region), context

    def deep(self, embedded: Tensor, hidden: Tensor, context: Tensor) -> Tensor:
        """The deep output layer, before L_o: (..., E)."""
        deep = embedded + self.hidden_to_output(self.dropout(hidden)) + self.context_to_output(context)
        return self.dropout(deep.tanh())


def _initial(region_size: int, size: int, dropout: float) -> nn.Sequential:
    """The MLP from the mean annotation vector to h_0 or c_0."""
    return nn.Sequential(Linear(region_size, size), nn.ReLU(), nn.Dropout(dropout), Linear(size, size), nn.Tanh())


def _cut(whole: tuple, images: int, rows: int | None = None) -> tuple:
    """The leading images, and rows, of a memory or a state. What is not cut is left alone, for the gradient of a cut is
    as large as the whole."""

    def cut(part: Tensor | None) -> Tensor | None:
        if part is None or (len(part) == images and (rows is None or part.shape[1] == rows)):
            return part
        return part[:images] if rows is None else part[:images, :rows]

    return type(whole)(*map(cut, whole))


def _padded(turns: list[Tensor], words: Int[Tensor, "B R T"]) -> Tensor:
    """What the turns left of each image and row, (b, r, ...), as one (B, R, T, ...) with zeros for those that ended."""
    B, R, T = words.shape
    sizes = [(0, 0) * (turn.dim() - 2) + (0, R - turn.shape[1], 0, B - turn.shape[0]) for turn in turns]
    stacked = torch.stack([F.pad(turn, size) for turn, size in zip(turns, sizes, strict=True)], dim=2)
    return F.pad(stacked, (0, 0) * (stacked.dim() - 3) + (0, T - len(turns)))


def _turns(words: Int[Tensor, "B R T"]) -> list[tuple[int, int]]:
    """For each turn, how many leading images and leading rows still have a word.

    With images and rows sorted by falling length, little padding is left within. On a GPU everything runs to the end:
    there a synchronisation costs more than padding.
    """
    B, R, T = words.shape
    if words.is_cuda:
        return [(B, R)] * T
    alive = words != 0
    images = (alive.any(1) * torch.arange(1, B + 1)[:, None]).amax(0).tolist()
    rows = (alive.any(0) * torch.arange(1, R + 1)[:, None]).amax(0).tolist()
    return [(b, r) for b, r in zip(images, rows, strict=True) if b]


def _log_prob(output: nn.Linear, deep: Tensor, words: Tensor, place: Tensor) -> Tensor:
    """log p of each word, zero at padding; `deep` holds the turn that says the word at each `place`."""
    target = words[place]
    if not words.is_cuda:
        said = target.nonzero().squeeze(1)
        deep, target, place = deep[said], target[said], place[said]
    log_prob = word_log_prob(output, deep, target).where(target != 0, 0)
    return log_prob.new_zeros(words.shape).scatter(0, place, log_prob)

"""Lines of characters: a training step of RNNsearch against a plain one, and decoding many lines at once against one at
a time. Both sides have the same layers, and begin with the columns of a line as a convolutional encoder returns them.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measure import accelerated, seconds, table
from benchmarks.shapes import END, Shapes
from vision_attn.attention.scores import Additive
from vision_attn.decode import greedy
from vision_attn.decode.ctc import prefix_beam_search
from vision_attn.models.ctc import CTC
from vision_attn.models.encoder_decoder import RNNsearch

CHARACTERS = 12
COLUMNS = 62
"""Columns of a strip of 12 digits, one for every 4 pixels."""


class Plain(nn.Module):
    """RNNsearch as it is usually written: a loop over an LSTM cell, in which the annotations are projected for every
    character, and the output layer runs once per character."""

    def __init__(self, num_words: int, column: int, encoder: int, hidden: int, word: int, attention: int):
        super().__init__()
        self.encoder = nn.LSTM(column, encoder, batch_first=True, bidirectional=True)
        self.initial = nn.Linear(encoder, 2 * hidden)
        self.embedding = nn.Embedding(num_words, word)
        self.key = nn.Linear(2 * encoder, attention)
        self.query = nn.Linear(hidden, attention)
        self.score = nn.Linear(attention, 1, bias=False)
        self.cell = nn.LSTMCell(word + 2 * encoder, hidden)
        self.deep = nn.Linear(word + hidden + 2 * encoder, word)
        self.output = nn.Linear(word, num_words)

    def forward(self, columns: Tensor, words: Tensor) -> Tensor:
        annotations, (last, _) = self.encoder(columns)
        hidden, cell = self.initial(last[-1]).tanh().chunk(2, dim=-1)
        before, loss = torch.zeros_like(words[:, 0]), 0.0
        for word in words.unbind(1):
            energies = self.score(torch.tanh(self.key(annotations) + self.query(hidden)[:, None])).squeeze(-1)
            context = (energies.softmax(dim=-1)[..., None] * annotations).sum(dim=1)
            embedded = self.embedding(before)
            hidden, cell = self.cell(torch.cat([embedded, context], dim=-1), (hidden, cell))
            logits = self.output(self.deep(torch.cat([embedded, hidden, context], dim=-1)).tanh())
            loss = loss + F.cross_entropy(logits, word)
            before = word
        return loss


def strings(shapes: Shapes, repeats: int) -> str:
    """The tables of training and of decoding lines."""
    lines, size = (2, 8) if shapes.quick else (64, 128)
    torch.manual_seed(0)
    columns = torch.randn(lines, COLUMNS, size // 2).relu()
    words = torch.randint(3, 13, (lines, CHARACTERS + 1))
    words[:, -1] = END
    ours = RNNsearch(
        13, size // 2, encoder_size=size, hidden_size=2 * size, word_size=size // 2,
        score=partial(Additive, attention_size=2 * size),
    )  # fmt: skip
    ours = accelerated(ours)
    plain = Plain(13, size // 2, size, 2 * size, size // 2, 2 * size)

    def train_ours() -> None:
        ours.zero_grad()
        (-ours(columns, words[:, None]).log_prob.sum() / lines).backward()

    def train_plain() -> None:
        plain.zero_grad()
        plain(columns, words).backward()

    taken = seconds({"ours": train_ours, "plain": train_plain}, repeats, "strings, training")
    rows = [(f"RNNsearch, {CHARACTERS} characters", *_rates(lines, taken["ours"], taken["plain"]))]
    trained = table("Training, lines/s", ("", "ours", "plain", "ratio"), rows)
    return trained + "\n" + _decoding(shapes, repeats, size, ours)


@torch.no_grad()
def _decoding(shapes: Shapes, repeats: int, size: int, search: RNNsearch) -> str:
    lines = 4 if shapes.quick else 256
    columns = torch.randn(lines, COLUMNS, size // 2).relu()
    ctc = CTC(13, size // 2, hidden_size=size).eval()
    search.eval()
    limit = {"max_words": CHARACTERS + 1, "min_words": CHARACTERS}

    def by_search(part: Tensor) -> None:
        greedy(search, part, **limit)

    def by_ctc(part: Tensor) -> None:
        prefix_beam_search(ctc.frames(part), beams=8)

    rows = []
    for name, decode in {"RNNsearch, greedy": by_search, "CTC, prefix beam of 8": by_ctc}.items():
        runs = {
            "together": partial(decode, columns),
            "alone": lambda decode=decode: [decode(one) for one in columns.split(1)],
        }
        taken = seconds(runs, repeats, f"strings, {name}")
        rows.append((name, *_rates(lines, taken["together"], taken["alone"])))
    return table(f"Decoding, lines/s: {lines} together", ("", "together", "one at a time", "ratio"), rows)


def _rates(lines: int, mine: float, other: float) -> tuple[str, str, str]:
    return f"{lines / mine:.0f}", f"{lines / other:.0f}", f"{other / mine:.1f}"

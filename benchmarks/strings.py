"""Measure models of lines of characters: a training step of RNNsearch, fast and by plain torch, and decoding many lines
at once against one at a time. Both begin with the columns of a line as a convolutional encoder returns them.
"""

from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import seconds, table
from benchmarks.shapes import END, Shapes
from vision_attn.attention.scores import Additive
from vision_attn.decode import greedy
from vision_attn.decode.ctc import prefix_beam_search
from vision_attn.fast import accelerate
from vision_attn.models.ctc import CTC
from vision_attn.models.encoder_decoder import RNNsearch

CHARACTERS = 12
COLUMNS = 62
"""The number of columns of a strip of 12 digits, one for every 4 pixels."""


def strings(shapes: Shapes, repeats: int) -> str:
    """The tables of training and of decoding lines."""
    lines, size = (2, 8) if shapes.quick else (64, 128)
    torch.manual_seed(0)
    columns = torch.randn(lines, COLUMNS, size // 2).relu()
    words = torch.randint(3, 13, (lines, CHARACTERS + 1))
    words[:, -1] = END
    ours, plain = (
        RNNsearch(
            13, size // 2, encoder_size=size, hidden_size=2 * size, word_size=size // 2,
            score=partial(Additive, attention_size=2 * size),
        )
        for _ in range(2)
    )  # fmt: skip
    accelerate(ours)

    def train(model: RNNsearch) -> None:
        model.zero_grad()
        (-model(columns, words[:, None]).log_prob.sum() / lines).backward()

    runs = {"ours": partial(train, ours), "plain": partial(train, plain)}
    taken = seconds(runs, repeats, "strings, training")
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

    def by_search(columns: Tensor) -> None:
        greedy(search, columns, **limit)

    def by_ctc(columns: Tensor) -> None:
        prefix_beam_search(ctc.frames(columns), beams=8)

    rows = []
    for name, decode in {"RNNsearch, greedy": by_search, "CTC, prefix beam of 8": by_ctc}.items():
        runs = {
            "together": partial(decode, columns),
            "alone": lambda decode=decode: [decode(strip) for strip in columns.split(1)],
        }
        taken = seconds(runs, repeats, f"strings, {name}")
        rows.append((name, *_rates(lines, taken["together"], taken["alone"])))
    return table(f"Decoding, lines/s: {lines} together", ("", "together", "one at a time", "ratio"), rows)


def _rates(lines: int, mine: float, other: float) -> tuple[str, str, str]:
    return f"{lines / mine:.0f}", f"{lines / other:.0f}", f"{other / mine:.1f}"

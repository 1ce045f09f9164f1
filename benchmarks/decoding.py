"""Measure decoding: images per second of beam search and of greedy decoding, as runs have it and by plain torch.

Untrained captioners do not end their captions, and two trained ones would end them at different words. So the ends are
forced on both sides: at each word the logit of END is set to +1000 for images whose caption ends there, and to -1000
for the others.

Weights are constant from batch to batch, as in `vision-attn eval`.
"""

from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import precisions, seconds, table
from benchmarks.shapes import END, Shapes, random_batch, random_lengths
from benchmarks.show_attend_tell import ours, plain
from vision_attn.contracts import Captioner
from vision_attn.decode import beam_search, greedy
from vision_attn.fast.linear import constant_weights

BEAMS = 3
SIDES = {"ours": ours, "plain": plain}


class Ending(Captioner):
    """A captioner whose captions end where `ends` tells. `ends` (images, words) holds logits of END."""

    def __init__(self, captioner: Captioner, ends: Tensor):
        super().__init__()
        self.captioner, self.ends, self.accelerated = captioner, ends, captioner.accelerated

    def start(self, regions: Tensor, rows: int):
        memory, state = self.captioner.start(regions, rows)
        number = torch.zeros(len(regions), rows, dtype=torch.long, device=regions.device)
        return (memory, self.ends), (number, state)

    def step(self, word: Tensor, state, memory):
        (memory, ends), (number, state) = memory, state
        logits, state, map = self.captioner.step(word, state, memory)
        logits[..., END] = ends.gather(1, number)
        return logits, (number + 1, state), map


def random_ends(shapes: Shapes, device: str = "cpu") -> Tensor:
    """(images, words): the logit of END at each word, for captions of random lengths."""
    last = torch.tensor(random_lengths(shapes, shapes.images)) - 1
    last = last[torch.randperm(len(last), generator=torch.Generator().manual_seed(0))]
    return torch.where(torch.arange(int(last.max()) + 1) == last[:, None], 1000.0, -1000.0).to(device)


def decoding(shapes: Shapes, repeats: int, device: str = "cpu") -> str:
    """The table of decoding speed."""
    rows = []
    for lengths in ("12 to 20 words", "COCO's lengths"):
        for precision in precisions(device):
            rows += _rows(shapes._replace(lengths=lengths), repeats, device, bf16=precision == "bf16")
    return table(f"Decoding {shapes.images} images, images/s", ("", "ours", "plain", "ratio"), rows)


def _rows(shapes: Shapes, repeats: int, device: str, *, bf16: bool) -> list[tuple[str, ...]]:
    regions, ends = random_batch(shapes).regions.to(device), random_ends(shapes, device)
    max_words = ends.shape[1]
    models = {name: Ending(side(shapes, device).model.eval(), ends) for name, side in SIDES.items()}
    searches = {
        f"beam {BEAMS}": partial(beam_search, regions=regions, beams=BEAMS, max_words=max_words),
        "greedy": partial(greedy, regions=regions, max_words=max_words),
    }
    rows = []
    for name, search in searches.items():
        what = f"{name}, {shapes.lengths}{', bf16 autocast' * bf16}"
        runs = {side: partial(search, model) for side, model in models.items()}
        with constant_weights(models["ours"]), torch.autocast(device, torch.bfloat16, enabled=bf16):
            taken = seconds(runs, repeats, what)
        rate = {side: shapes.images / spent for side, spent in taken.items()}
        rows.append((what, f"{rate['ours']:.1f}", f"{rate['plain']:.1f}", f"{rate['ours'] / rate['plain']:.1f}x"))
    return rows

"""Measure the worth of each part of a Transformer on drawn scenes: `python -m benchmarks parts`.

Every variant changes one thing of the same small captioner (`configs/transformer_scenes.yaml` with `SETTINGS`), and is
trained with several seeds. Runs that are finished are kept in runs/parts and not trained again.
"""

from math import nan
from pathlib import Path

import torch

from benchmarks.measure import spread, table
from benchmarks.shapes import Shapes
from vision_attn.configuration.config import build, read
from vision_attn.engine.fit import fit
from vision_attn.system.files import scratch

CONFIG = Path(__file__).parent.parent / "configs" / "transformer_scenes.yaml"
FOLDER = Path("runs", "parts")
SETTINGS = {
    "data.mixture": "[0.3,0.7,0]", "data.epoch_images": 36000, "data.val_images": 300, "data.batch_size": 16,
    "task.encoder.width": 16, "task.encoder.region_size": 64, "task.validate_with": "[BLEU-4]",
    "task.model.hidden_size": 64, "task.model.feedforward_size": 128,
    "optimizer.lr": 3e-3, "run.epochs": 1, "run.show": 0, "run.device": "cpu", "run.sanity_check": "false",
}  # fmt: skip
QUICK = {"data.epoch_images": 16, "data.val_images": 4, "run.warmup": 0}
BASE = "4 heads, sinusoids, 2 layers, pre-norm"
VARIANTS = {
    BASE: {},
    "1 head": {"num_heads": 1},
    "2 heads": {"num_heads": 2},
    "8 heads": {"num_heads": 8},
    "learned positions": {"positions": "learned"},
    "no positions": {"positions": "none"},
    "1 layer": {"num_layers": 1},
    "3 layers": {"num_layers": 3},
    "post-norm": {"norm": "post"},
    "values are the keys": {"shared_values": "true"},
}
COLUMNS = {"BLEU-4": (100, 1), "nll": (1, 3), "pointing": (100, 1), "mass": (100, 1), "entropy": (1, 2)}
"""Metrics of validation after the only epoch, so that nothing is selected: the factor and the decimals of each."""


def train(variant: str, seed: int, folder: Path, settings: dict[str, object]) -> dict[str, float]:
    """Train a variant, unless its run is finished, and return its metrics."""
    options = settings | {f"task.model.{name}": value for name, value in VARIANTS[variant].items()}
    options |= {
        "run.threads": torch.get_num_threads(),
        "run.seed": seed,
        "run.folder": folder / f"{'_'.join(variant.replace(',', '').split())}_{seed}",
    }
    return fit(**build(read(CONFIG, [f"--{name}={value}" for name, value in options.items()])))


def parts(shapes: Shapes, repeats: int) -> str:
    """The table; `repeats` is the number of seeds."""
    results: dict[str, list[dict[str, float]]] = {}
    with scratch("parts") as temporary:
        folder, settings = (temporary, SETTINGS | QUICK) if shapes.quick else (FOLDER, SETTINGS)
        for seed in range(repeats):  # all variants of a seed first: one seed is a table as well
            for variant in shapes.some(list(VARIANTS)):
                results.setdefault(variant, []).append(train(variant, seed, folder, settings))
    rows = [
        [variant, *(spread([run.get(name, nan) for run in runs], *COLUMNS[name]) for name in COLUMNS)]
        for variant, runs in results.items()
    ]
    uniform = f"uniform maps point to {100 * results[BASE][0]['pointing_uniform']:.1f}%"
    title = f"Parts of a Transformer on drawn scenes: mean and standard deviation of {repeats} seeds; {uniform}"
    return table(title, ["variant", *COLUMNS], rows)

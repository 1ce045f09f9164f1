"""Measure how well each view of a map shows the place of the weight: `python -m benchmarks.overlays FOLDER ...`.

Each FOLDER holds photographs in `images` and their splits in `captions.json`. The same number of test photographs is
taken from each quartile of lightness. The map of each has a blob of weight at a random place of a grid of 14 x 14
regions. The rest of the map is 0, or noise of up to 0.5 or 0.8 of the blob's height. (In maps of the included
captioner, the largest weight farther than three regions from the maximum is 0.45 of the maximum in the median, and 0.83
in one map of ten.) The picture with this map is compared with the picture with a uniform map on the same scale. Both
are blurred, as by a viewer.

found: the share of photographs where the largest difference in CIE Lab lies in the blob.
kept: the correlation of the gradients of lightness with those of the photograph, outside the blob: its mean, and the
    share of photographs where it is at least 0.9.
"""

import argparse
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.nn import functional as F

from vision_attn.geometry.extents import middles, positions
from vision_attn.system.console import progress
from vision_attn.system.errors import UserError
from vision_attn.viz.overlay.views import VIEWS, overlaid
from vision_attn.viz.panel_sheets import fitted

SIDE, CELLS = 224, 14
SIZE = 1.2
"""Standard deviation of the blob, in regions."""
EDGE = 0.25
"""The blob is where its weight is at least this share of its largest."""
BLUR = 1 / 64
"""Standard deviation of the viewer's blur, as a share of the picture: a sixth of a degree for a picture of 12 cm at
65 cm."""
QUARTERS = 4
OTHERS = {"the blob alone": 0.0, "others up to 0.5": 0.5, "others up to 0.8": 0.8}


Draw = Callable[[Image.Image, Tensor, float], Image.Image]
"""A picture with a map (Y, X) on it, where the scale ends at a weight."""


class Seen(NamedTuple):
    """Measurements of one picture with a map."""

    found: bool
    kept: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlays", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="two photographs: tests that it runs, measures nothing")
    options = parser.parse_args()
    chosen = random.Random(0)
    photographs = by_lightness(options.folders, 2 if options.quick else options.images, chosen)
    places = [(chosen.uniform(2, CELLS - 2), chosen.uniform(2, CELLS - 2)) for _ in photographs]
    print(table(photographs, places))


def by_lightness(folders: Sequence[Path], number: int, chosen: random.Random) -> list[Image.Image]:
    """Photographs of test splits, as many from each quarter of lightness."""
    files = [file for folder in folders for file in test_split(folder)]
    several = [opened(file) for file in chosen.sample(files, min(len(files), 5 * number))]
    several.sort(key=lambda picture: float(np.asarray(picture.convert("L")).mean()))
    bounds = [round(quarter * len(several) / QUARTERS) for quarter in range(QUARTERS + 1)]
    counts = [(quarter + 1) * number // QUARTERS - quarter * number // QUARTERS for quarter in range(QUARTERS)]
    quarters = zip(bounds, bounds[1:], counts, strict=False)
    return [picture for first, last, count in quarters for picture in chosen.sample(several[first:last], count)]


def test_split(folder: Path) -> list[Path]:
    """The photographs of the test split of a folder, in the order of their names."""
    listed = json.loads((folder / "captions.json").read_text(encoding="utf-8"))["images"]
    files = sorted(folder / "images" / record["file_name"] for record in listed if record.get("split") == "test")
    if not files:
        raise UserError(f"{folder}/captions.json has no photograph of the split test")
    return files


def opened(file: Path) -> Image.Image:
    with Image.open(file) as picture:
        return fitted(picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC), SIDE)


def blob(place: tuple[float, float], others: float, seed: int) -> Float[Tensor, "Y X"]:
    """A map whose largest weight is at a place, in regions from the upper left, and `others` of that height elsewhere,
    in smooth noise."""
    x, y = (torch.arange(CELLS) + 0.5 - at for at in place)
    peak = torch.exp(-(y[:, None] ** 2 + x**2) / (2 * SIZE**2))
    generator = torch.Generator().manual_seed(seed)
    grains = F.interpolate(torch.rand(1, 1, 5, 5, generator=generator), (CELLS, CELLS), mode="bicubic")[0, 0]
    grains = (grains - grains.min()) / (grains.max() - grains.min())
    alpha = torch.maximum(peak, others * grains)
    return alpha / alpha.sum()


def within(place: tuple[float, float]) -> Float[Tensor, "SIDE SIDE"]:
    """The pixels of the blob."""
    x, y = ((middles(SIDE) + 1) / 2 * CELLS - at for at in place)
    return torch.exp(-(y[:, None] ** 2 + x**2) / (2 * SIZE**2)) >= EDGE


def before(picture: Image.Image, alpha: Tensor, top: float) -> Image.Image:
    """The light of version 1.1: Gaussians of 0.8 regions, and a darker picture around them."""
    place = positions(SIDE, CELLS)
    spread = torch.softmax(-((place[:, None] - torch.arange(CELLS)) ** 2) / (2 * 0.8**2), dim=1)
    lit = spread @ alpha @ spread.mT
    mask = Image.fromarray((lit / lit.max() * alpha.max() / top * 255).round().byte().numpy())
    veiled = Image.blend(picture, Image.new("RGB", picture.size, "white"), 0.3)
    dark = ImageEnhance.Brightness(ImageEnhance.Color(picture).enhance(0.5)).enhance(0.3)
    return Image.composite(veiled, dark, mask)


def look(draw: Draw, picture: Image.Image, alpha: Tensor, inside: Tensor) -> Seen:
    """Measure what a viewer sees of a map that is drawn on a picture."""
    top = float(alpha.max())
    with_map, with_even = (lab(draw(picture, map, top)) for map in (alpha, torch.full_like(alpha, 1 / alpha.numel())))
    difference = blurred(with_map - with_even).square().sum(dim=0)
    outside = ~grown(inside)[:-1, :-1]
    is_inside = bool(inside.flatten()[difference.argmax()])
    borders = [
        torch.cat([slope[outside] for slope in gradients(lab_picture[0])]) for lab_picture in (with_map, lab(picture))
    ]
    return Seen(is_inside, float(torch.corrcoef(torch.stack(borders))[0, 1]))


def lab(picture: Image.Image) -> Float[Tensor, "3 Y X"]:
    """A picture in CIE Lab (D65)."""
    rgb = torch.from_numpy(np.asarray(picture).astype(np.float32)).permute(2, 0, 1) / 255
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = torch.tensor([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = torch.einsum("ij,jyx->iyx", to_xyz / to_xyz.sum(dim=1, keepdim=True), linear)
    x, y, z = (
        torch.where(v > (6 / 29) ** 3, v.clamp(min=1e-9) ** (1 / 3), v * (29 / 6) ** 2 / 3 + 4 / 29) for v in (x, y, z)
    )
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def blurred(values: Float[Tensor, "3 Y X"]) -> Float[Tensor, "3 Y X"]:
    sigma = BLUR * SIDE
    reach = round(3 * sigma)
    kernel = torch.exp(-(torch.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    kernel = kernel / kernel.sum()
    wide = F.pad(values[:, None], (reach,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(wide, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1))[:, 0]


def grown(inside: Tensor) -> Tensor:
    """The blob with its border, where light and colour fade."""
    reach = round(SIDE / CELLS)
    across = F.max_pool2d(inside[None].float(), (1, 2 * reach + 1), 1, (0, reach))
    return F.max_pool2d(across, (2 * reach + 1, 1), 1, (reach, 0))[0] > 0


def gradients(values: Float[Tensor, "Y X"]) -> tuple[Tensor, Tensor]:
    return values.diff(dim=1)[:-1], values.diff(dim=0)[:, :-1]


def table(photographs: Sequence[Image.Image], places: Sequence[tuple[float, float]]) -> str:
    """The table, in Markdown."""
    views = {"light before": before} | {
        view: lambda picture, alpha, top, view=view: overlaid(picture, alpha, view, top=top) for view in VIEWS
    }
    lines = ["| View | map | found | kept | kept, at least 0.9 |", "|---|---|---|---|---|"]
    for view, draw in views.items():
        for name, others in OTHERS.items():
            examples = zip(photographs, places, strict=True)
            seen_views = [
                look(draw, picture, blob(place, others, seed), within(place))
                for seed, (picture, place) in enumerate(progress(examples, what=view, unit="image"))
            ]
            hits, kept = (sum(values) / len(seen_views) for values in zip(*seen_views, strict=True))
            most = sum(seen.kept >= 0.9 for seen in seen_views) / len(seen_views)
            lines.append(f"| {view} | {name} | {hits:.1%} | {kept:.3f} | {most:.1%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

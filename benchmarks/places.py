"""Compare the places that cells of encoders see with the places where their maps are drawn: `python -m
benchmarks.places ENCODER ...`.

A coloured square is put on photographs, and the centre of the change of the annotation vectors is compared with the
place of the square: once with regions that are spread evenly over the image, and once where `Encoder.extent` says that
they lie. An encoder is that of a run, or NETWORK:NODE:RESOLUTION of torchvision with random weights, or with :FILE
after it, of weights whose mean and standard deviation are 0.5.
"""

import argparse
import random
from pathlib import Path

import torch
from torch import Tensor

from vision_attn.configuration.run_folder import open_run
from vision_attn.contracts import Encoder
from vision_attn.data.images.squares import read_image
from vision_attn.encoders.backbone import Backbone
from vision_attn.geometry.extents import WHOLE, Extent, middles
from vision_attn.system.console import progress
from vision_attn.system.files import shipped

PHOTOGRAPHS = Path(__file__).parent.parent / "docs" / "photographs"
COLOURS = ((255, 40, 40), (40, 90, 255), (255, 220, 40), (20, 20, 20))


def opened(name: str) -> Encoder:
    """The encoder of a run, or of torchvision: see above."""
    if ":" not in name:
        return open_run(shipped(name))[0].encoder
    network, node, resolution, *file = name.split(":", 3)
    halves = {"weights": file[0], "mean": (0.5,) * 3, "std": (0.5,) * 3} if file else {}
    encoder = Backbone(name=network, node=node, resolution=int(resolution), **halves)
    encoder.initialise()
    return encoder


@torch.no_grad()
def changes(encoder: Encoder, marks: int) -> tuple[Tensor, Tensor]:
    """Return the change of each region for each mark, (N, grid rows, grid columns), and the places of marks, (x, y) in
    [-1, 1]."""
    side, chosen = encoder.resolution, random.Random(0)
    half = max(1, side // 56)
    differences, places = [], []
    for file in progress(sorted(PHOTOGRAPHS.glob("*.jpg")), what="photographs", unit="image"):
        image = read_image(file, side)
        before = encoder(image[None])
        for _ in range(marks):
            x, y = (chosen.randint(round(0.3 * side), round(0.7 * side)) for _ in range(2))
            marked = image.clone()
            marked[:, y - half : y + half, x - half : x + half] = torch.tensor(chosen.choice(COLOURS))[:, None, None]
            differences.append((encoder(marked[None]) - before).square().sum(dim=2).view(encoder.grid))
            places.append((2 * x / side - 1, 2 * y / side - 1))
    return torch.stack(differences).double(), torch.tensor(places, dtype=torch.float64)


def offsets(change: Tensor, places: Tensor, extent: Extent) -> tuple[float, float]:
    """The distance, right and down, of the drawn change from the marks, as a share of the side."""
    change = change / change.sum(dim=(1, 2), keepdim=True)
    x = change.sum(dim=1) @ middles(change.shape[2], extent.x0, extent.x1)
    y = change.sum(dim=2) @ middles(change.shape[1], extent.y0, extent.y1)
    return float((x - places[:, 0]).mean() / 2), float((y - places[:, 1]).mean() / 2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.places", description=__doc__)
    parser.add_argument("encoders", nargs="*", metavar="ENCODER", default=["weights/photographs"])
    parser.add_argument("--marks", type=int, default=12, help="on each of the photographs")
    parser.add_argument("--quick", action="store_true", help="a small network: tests that it runs, measures nothing")
    options = parser.parse_args()
    torch.manual_seed(0)
    print("| Encoder | regions | spread evenly: right, below | placed: right, below |\n|---|---|---|---|")
    for name in ["squeezenet1_1:features.5:64"] if options.quick else options.encoders:
        encoder = opened(name).eval()
        change, places = changes(encoder, 1 if options.quick else options.marks)
        columns = [offsets(change, places, extent) for extent in (WHOLE, encoder.extent())]
        shown = " | ".join(", ".join(f"{value:.3f}" for value in column) for column in columns)
        print(f"| {name.rpartition('/')[2]} | {encoder.grid[0]}x{encoder.grid[1]} | {shown} |", flush=True)


if __name__ == "__main__":
    main()

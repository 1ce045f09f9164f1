"""Caption photographs with a trained run, and draw where each word looked.

Prints FILE, a tab and the caption, a line for each photograph; in a folder, all images are captioned. Needs the run's
best/ alone, not the data it was trained on.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from vision_attn.commands._opened import add_run_arguments, open_with

BATCH = 16
SIDE = 672  # pixels of a photograph in the drawings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn caption`."""
    add_run_arguments(parser)
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="a photograph, or a folder of them")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="also draw there: a PNG for each, and one HTML page")


def run(arguments: argparse.Namespace) -> int:
    """Caption all that can be read; the exit status is 1 when something could not be."""
    import torch

    task, _, _, device = open_with(arguments)
    if not hasattr(task, "describe"):
        raise ValueError(f"{arguments.folder} holds a {type(task).__name__}, which writes no captions")
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # names of files may be any bytes
    complaints: list[str] = []
    done: list[tuple[Path, Any]] = []
    readable = read(photographs(arguments.images, complaints), task.encoder.resolution, complaints)
    while batch := list(islice(readable, BATCH)):
        images = torch.stack([image for _, image in batch]).to(device)
        for (path, _), described in zip(batch, task.describe(images), strict=True):
            print(f"{path}\t{described.text}", flush=True)
            if arguments.out:
                done.append((path, described))
    if done:
        print(f"drawn: {draw_all(done, arguments.out)}", file=sys.stderr)
    for complaint in complaints:
        print(f"vision-attn: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def photographs(places: Iterable[Path], complaints: list[str]) -> Iterator[Path]:
    """The files that are named, and all images in the folders that are."""
    from PIL import Image

    for place in places:
        if not place.is_dir():
            yield place
            continue
        found = [path for path in sorted(place.iterdir()) if path.suffix.lower() in Image.registered_extensions()]
        if not found:
            complaints.append(f"{place}: no images in this folder")
        yield from found


def read(paths: Iterable[Path], resolution: int, complaints: list[str]) -> Iterator[tuple[Path, Any]]:
    """Each photograph as the encoder sees it; those that cannot be read are complained of."""
    from vision_attn.data.images import in_threads, read_image

    def attempt(path: Path) -> tuple[Path, Any]:
        try:
            return path, read_image(path, resolution)
        except ValueError as error:
            return path, error

    for path, image in in_threads(attempt, paths):
        if isinstance(image, ValueError):
            complaints.append(str(image))
        else:
            yield path, image


def draw_all(done: list[tuple[Path, Any]], folder: Path) -> Path:
    """A sheet for each photograph and one page for all, in `folder`; returns the page."""
    from vision_attn.data.images import open_square
    from vision_attn.viz.captions import write_pictures

    pictures = []
    for path, _ in done:
        square = open_square(path, at_least=SIDE)
        square.thumbnail((SIDE, SIDE))
        pictures.append(square)
    return write_pictures([path.name for path, _ in done], pictures, [described for _, described in done], folder)[0]

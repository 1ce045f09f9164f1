"""Show where any model looks: for its answer, for a text, or for each word that it writes.

MODEL is the folder of a run (or a copy of its best/), the name of a network of torchvision, timm:NAME,
transformers:NAME-or-folder, or module:function with --trust. Classifiers show what led to their answer, or with --text
CLASS to another one; CLIP and its relatives show where an image matches each --text; captioners write a caption and
show a map for each word.

Prints FILE, a tab and the answer with its probability, a line for each photograph. Writes a sheet for each photograph
and one page for all, with sliders for the layer and the head. By default a map is the gradient-weighted relevance of
the answer (Chefer et al. 2021); Grad-CAM for convolutional networks and Swin; for captioners the mean of all heads and
layers, or with --relevance the relevance of the image for each word.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision_attn.commands._collection import collected_later
from vision_attn.commands._find_images import photographs
from vision_attn.commands._output import check_writable
from vision_attn.explain.methods import METHODS
from vision_attn.system.console import complain, progress, say, to_the_end
from vision_attn.system.machine import torch_device

if TYPE_CHECKING:  # or `--help` would import torch
    from vision_attn.results.explainer import Explainer, ExplanationResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn look`."""
    parser.add_argument("model", metavar="MODEL", help="a run folder, a torchvision name, timm:NAME, transformers:NAME")
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="a photograph, or a folder of them")
    parser.add_argument("--recursive", action="store_true", help="look at the photographs in subfolders too")
    parser.add_argument(
        "--text", action="append", default=[], metavar="TEXT",
        help="a text to match, a class to explain, or the beginning of the caption; may be repeated",
    )  # fmt: skip
    parser.add_argument("--layer", type=int, metavar="N", help="attention of this layer, from 0; -1 is the last")
    parser.add_argument("--head", type=int, metavar="N", help="attention of this head, from 0 (default: their mean)")
    ways = parser.add_mutually_exclusive_group()
    for method, text in METHODS.items():
        ways.add_argument(f"--{method}", action="store_const", const=method, default="auto", dest="method", help=text)
    parser.add_argument("--out", type=Path, default=Path("look"), metavar="FOLDER", help="draw there (default: look)")
    parser.add_argument(
        "--weights", metavar="FILE", help="of torchvision and timm: a file of weights, or none for random ones"
    )
    parser.add_argument("--device", default="auto", help="auto (a GPU where there is one), cpu, cuda, cuda:1, ...")
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="let the model import this package, which runs it",
    )


def run(arguments: argparse.Namespace) -> int:
    """Look at all that can be read; the exit status is 1 when something could not be."""
    torch_device(arguments.device)
    check_writable(arguments.out, "--out")
    found = photographs(arguments.images, recursive=arguments.recursive)
    complaints = list(found.complaints)
    looker = opened(arguments)
    options = {"texts": arguments.text, "method": arguments.method, "layer": arguments.layer, "head": arguments.head}
    done: list[ExplanationResult] = []
    with to_the_end():
        for path, picture in opened_one_by_one(found.files, looker.at_least, complaints):
            done.append(looker.see(path.name, picture, **options))
            say(str(path), done[-1].text)
        if done:
            complain(f"drawn: {draw(done, arguments.out)}")
        for line in (*found.notes, *complaints):
            complain(line)
    return 1 if complaints else 0


@collected_later()
def opened(arguments: argparse.Namespace) -> "Explainer":
    """The model that `arguments` name."""
    from vision_attn.results.explainer import open_explainer

    options = {"weights": arguments.weights, "device": arguments.device, "trust": arguments.trust}
    return open_explainer(arguments.model, **options)


def opened_one_by_one(files: Sequence[Path], at_least: int, complaints: list[str]) -> Iterator[tuple[Path, Any]]:
    """Each photograph, with `at_least` pixels on a side; what cannot be read is complained of."""
    from vision_attn.data.images.decode import open_photograph

    for path in progress(files, what="look", unit="image"):
        try:
            photograph = open_photograph(path, at_least)
        except ValueError as error:
            complaints.append(str(error))
            continue
        yield path, photograph


def draw(done: Sequence["ExplanationResult"], folder: Path) -> Path:
    """Write a sheet for each picture and one page for all; returns the page."""
    from vision_attn.viz.sheet import picture_name

    for number, result in enumerate(progress(done, what="pictures", unit="image"), start=1):
        result.save(folder / picture_name(number, result.title))
    page = folder / "index.html"
    type(done[0]).write_together(page, done)
    return page

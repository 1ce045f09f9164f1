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
from pathlib import Path
from typing import TYPE_CHECKING

from vision_attn.commands._collection import collected_later
from vision_attn.commands._find_images import photographs
from vision_attn.commands._output import check_writable
from vision_attn.explain.methods import METHODS
from vision_attn.system.console import complain, progress, say, to_the_end
from vision_attn.system.machine import torch_device

if TYPE_CHECKING:  # or `--help` would import torch
    from vision_attn.results.explainer import ExplanationResult


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
    methods = parser.add_mutually_exclusive_group()
    for method, text in METHODS.items():
        methods.add_argument(
            f"--{method}", action="store_const", const=method, default="auto", dest="method", help=text
        )
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
    with collected_later():
        from vision_attn.results.explainer import open_explainer

        options = {"weights": arguments.weights, "device": arguments.device, "trust": arguments.trust}
        explainer = open_explainer(arguments.model, **options)
    files = iter(progress(found.files, what="look", unit="image"))
    options = {"method": arguments.method, "layer": arguments.layer, "head": arguments.head, "unreadable": complaints}
    done: list[ExplanationResult] = []
    with to_the_end():
        for result in explainer.look(files, arguments.text, **options):
            done.append(result)
            say(result.file, result.text)
        if done:
            complain(f"drawn: {done[0].write_folder(arguments.out, done)}")
        for line in (*found.notes, *complaints):
            complain(line)
    return 1 if complaints else 0

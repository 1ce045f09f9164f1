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

from vision_attn.commands._files import images_of
from vision_attn.commands._run_options import NO_IMAGES, add_model_and_images, add_overlay, load_with_images, look_of
from vision_attn.explain.methods import METHODS
from vision_attn.system.console import complain, say
from vision_attn.system.errors import UserError

if TYPE_CHECKING:  # or `--help` would import torch
    from vision_attn.results.explainer import ExplanationResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn look`."""
    add_model_and_images(
        parser, "look at", text="a text to match, a class to explain, or the beginning of the caption", out=Path("look")
    )
    parser.add_argument("--layer", type=int, metavar="N", help="attention of this layer, from 0; -1 is the last")
    parser.add_argument("--head", type=int, metavar="N", help="attention of this head, from 0 (default: their mean)")
    add_overlay(parser)
    methods = parser.add_mutually_exclusive_group()
    for method, text in METHODS.items():
        methods.add_argument(
            f"--{method}", action="store_const", const=method, default="auto", dest="method", help=text
        )


def run(arguments: argparse.Namespace) -> int:
    """Look at all that can be read; the exit status is 1 when something could not be."""
    options = {"method": arguments.method, "layer": arguments.layer, "head": arguments.head}
    done: list[ExplanationResult] = []
    with images_of(arguments, "look") as (files, found):
        model = load_with_images(arguments)
        for result in model.look(files, arguments.text, unreadable=found.complaints, **options):
            done.append(result)
            say(result.file, result.text)
        if not arguments.images:
            raise UserError(NO_IMAGES)
        if done:
            complain(f"drawn: {done[0].write_folder(arguments.out, done, **look_of(arguments))}")
    return 1 if found.complaints else 0

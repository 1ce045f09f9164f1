"""Show where any model looks: for its answer, for a text, or for each word that it writes.

MODEL is the folder of a run (or a copy of its best/), the name of a network of torchvision, timm:NAME,
transformers:NAME-or-folder, or module:function with --trust. Classifiers show what led to their answer, or with --text
CLASS to another one; CLIP and its relatives show where an image matches each --text; captioners write a caption and
show a map for each word.

Prints FILE, a tab and the answer with its probability, a line for each photograph. Writes a sheet for each photograph
and one page for all, with sliders for the layer and the head. By default a map is the gradient-weighted relevance of
the answer (Chefer et al. 2021); Grad-CAM for convolutional networks and Swin; for captioners the mean of all heads and
layers, or with --relevance the relevance of the image for each word.

--figure fig.pdf draws a figure for a paper: a row for each photograph, with a column for each of --methods, and for
each further model that --models names.
"""

import argparse
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vision_attn.commands._files import (
    add_figure_arguments,
    add_words,
    figure_options,
    images_of,
    no_images,
    write_figure,
)
from vision_attn.commands._run_options import (
    NO_IMAGES,
    add_model_and_images,
    add_overlay,
    load_with_images,
    named,
    view_of,
)
from vision_attn.explain.methods import METHODS
from vision_attn.system.console import complain, say
from vision_attn.system.errors import UserError

if TYPE_CHECKING:  # or `--help` would import torch
    from vision_attn.results.explained import ExplanationResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn look`."""
    add_model_and_images(
        parser, "look at", text="a text to match, a class to explain, or the beginning of the caption", out=Path("look")
    )
    parser.add_argument("--layer", type=int, metavar="N", help="attention of this layer, from 0; -1 is the last")
    parser.add_argument("--head", type=int, metavar="N", help="attention of this head, from 0 (default: their mean)")
    box, own = "X0,Y0,X1,Y1", "print the answer before and after attention to"
    parser.add_argument("--without", type=box_of, metavar=box, help=f"{own} this box is taken away; from -1 to 1")
    parser.add_argument("--only", type=box_of, metavar=box, help=f"{own} all but this box is taken away")
    add_overlay(parser)
    methods = parser.add_mutually_exclusive_group()
    for method, text in METHODS.items():
        methods.add_argument(
            f"--{method}", action="store_const", const=method, default="auto", dest="method", help=text
        )
    methods.add_argument(
        "--methods", nargs="+", choices=["attention", *METHODS], metavar="METHOD",
        help=f"of --figure: a column for each of these: attention, {', '.join(METHODS)}",
    )  # fmt: skip
    parser.add_argument(
        "--models", nargs="+", type=named, metavar="MODEL", help="of --figure: columns of these models too"
    )
    add_figure_arguments(parser, "a row for each photograph")
    add_words(parser)


def box_of(text: str) -> tuple[float, ...]:
    """Parse the box of --without or --only."""
    with suppress(ValueError):
        if len(box := tuple(float(coordinate) for coordinate in text.split(","))) == 4:
            return box
    raise argparse.ArgumentTypeError(f"{text!r}: give four numbers, as in -0.5,-0.5,0,0.5")


def intervene(arguments: argparse.Namespace) -> int:
    """Print for each photograph FILE, the answer, its probability before and after, and the likeliest answer after."""
    with images_of(arguments, "look") as (files, paths):
        model = load_with_images(arguments)
        options = {"without": arguments.without, "only": arguments.only}
        layers = None if arguments.layer is None else [arguments.layer]
        for result in model.intervene(files, arguments.text, layers=layers, unreadable=paths.complaints, **options):
            then = f"{result.likeliest[0][0]} ({result.likeliest[0][1]:.2f})" if result.likeliest else ""
            for word, before, after in zip(result.words, result.before, result.after, strict=True):
                say(result.file, word, f"{before:.3f}", f"{after:.3f}", *[then] * bool(then))
    return 1 if paths.complaints else 0


def run(arguments: argparse.Namespace) -> int:
    """Explain every image that can be read; the exit status is 1 if one could not be."""
    if arguments.without or arguments.only:
        return intervene(arguments)
    figure = figure_options(arguments)
    for option in ("methods", "models"):
        if getattr(arguments, option) and not arguments.figure:
            raise UserError(f"--{option} applies to a figure: add --figure FILE.pdf")
    no_images("models", arguments.models)
    options = {"layer": arguments.layer, "head": arguments.head}
    method, *others = arguments.methods or [arguments.method]
    done: list[ExplanationResult] = []
    with images_of(arguments, "look") as (files, paths):
        model, *further = [load_with_images(name) for name in of_each_model(arguments)]
        for result in model.look(files, arguments.text, unreadable=paths.complaints, method=method, **options):
            done.append(result)
            say(result.file, result.text, *([result.model] if further else []))
        if not arguments.images:
            raise UserError(NO_IMAGES)
        if done:
            complain(f"drawn: {done[0].write_folder(arguments.out, done, **view_of(arguments))}")
        columns = list(done)
        for opened in (model, *further):
            for other in others if opened is model else (method, *others):
                seen = opened.look(list(paths.files), arguments.text, unreadable=[], method=other, **options)
                columns += seen
                for result in seen if other == method else ():
                    say(result.file, result.text, result.model)
        write_figure(arguments, columns, figure | view_of(arguments))
    return 1 if paths.complaints else 0


def of_each_model(arguments: argparse.Namespace) -> Iterator[argparse.Namespace]:
    """Yield the arguments with each of the models. A file of weights is for the first model only; random weights are
    for all but runs."""
    from vision_attn.results.explainer import is_run_name

    yield arguments
    for name in arguments.models or ():
        weights = "none" if arguments.weights == "none" and not is_run_name(name) else None
        yield argparse.Namespace(**vars(arguments) | {"model": name, "weights": weights})

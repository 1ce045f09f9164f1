"""Classify images with a trained run, and draw the path of its glimpses.

Prints a line for each image: FILE, a tab, the most likely class, a tab and its probability. In a folder, all images are
classified, with --recursive also those of its subfolders. Images may have any size and any colours: they are converted
to those of the training images. A run whose model takes glimpses sees an image at its own size, unless the run was
trained on photographs of a certain size; other models see it resized. An image larger than memory can be given as an
array of uint8 in a .npy file, of which only the glimpses are read. Standard error names images that could not be read
(exit status 1). Only the run's best/ is needed, not its training data.
"""

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vision_attn.commands._files import (
    add_figure_arguments,
    add_image_arguments,
    add_locations,
    figure_options,
    images_of,
    write_figure,
)
from vision_attn.commands._run_options import add_run_arguments, open_with, take_images
from vision_attn.system.console import complain, say

if TYPE_CHECKING:  # or `--help` would import torch
    from vision_attn.results.classified import ClassificationResult
    from vision_attn.results.model import Model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn classify`."""
    add_run_arguments(parser, captioner=False)
    out = " where the model looked"
    add_image_arguments(parser, "classify", image="an image", out=out, json="all probabilities")
    add_figure_arguments(parser, "a row for each image: where the model looked, and what it saw there")
    add_locations(parser, "x,y of each glimpse, or x0,y0,x1,y1 of DRAW")
    parser.add_argument("--invert", action="store_true", help="swap black and white: for dark digits on white paper")


def run(arguments: argparse.Namespace) -> int:
    """Classify every image that can be read; the exit status is 1 if one could not be."""
    take_images(arguments, "classify")
    figure = figure_options(arguments)
    model = open_with(arguments)
    from vision_attn.contracts import Reads
    from vision_attn.data.images.lazy import OPENED
    from vision_attn.results.classified import ClassificationResult
    from vision_attn.viz.classified import GLIMPSES, READS, write_classified_page
    from vision_attn.viz.index import IndexEntry
    from vision_attn.viz.panel_sheets import picture_name

    doubts, drawn, pictured = list[str](), list[IndexEntry](), list[ClassificationResult]()
    with images_of(arguments, "classify", endings=OPENED) as (files, paths):
        results = model.classify(
            files, invert=arguments.invert, locations=arguments.locations, unreadable=paths.complaints
        )
        for number, result in enumerate(results, start=1):
            if arguments.json:
                say(json.dumps({"file": result.file} | result.record()))
            else:
                say(result.file, result.name, f"{result.probability:.3f}")
            doubts += reasons_to_doubt(model, result, inverted=arguments.invert)
            pictured += [result] * bool(arguments.figure)
            if arguments.out and result.view is not None:
                place = result.save(arguments.out / picture_name(number, result.title))
                drawn.append(IndexEntry(place, f"{result.file}: {result.text}"))
        if drawn:
            guide = READS if isinstance(result.view, Reads) else GLIMPSES
            complain(f"drawn: {write_classified_page(arguments.out, drawn, guide)}")
        elif arguments.out and not paths.complaints:
            complain("no pictures: this model sees the whole image at once")
        write_figure(arguments, pictured, figure)
        paths.notes.extend(doubts[:6])
        if len(doubts) > 6:
            paths.notes.append(f"{len(doubts) - 6} more remarks of this kind; name fewer images to see them")
    return 1 if paths.complaints else 0


def reasons_to_doubt(model: "Model", result: "ClassificationResult", *, inverted: bool) -> Iterator[str]:
    """Yield reasons why an answer may be wrong: the image is much larger than the training images, not white on black,
    or both."""
    from vision_attn.attention.images import overview
    from vision_attn.data.labelled.labelled_images import LabelledImages

    height, width = model.task.image_shape[1:]  # 0 if training images differ in size
    if width and result.full_size:
        X, Y = result.full_size
        if max(X / width, Y / height) > 2:
            known = f"the model learned from {width} x {height}"
            then = "what is larger or smaller there may be misread; crop or resize it"
            yield f"{result.file} is seen with {X} x {Y} pixels, but {known}: {then}"
    if not isinstance(model.source, LabelledImages) and overview(result.seen, 16).mean() > 0.5:
        then = "after --invert; leave it out" if inverted else "--invert swaps them"
        yield f"{result.file} is mostly bright, but the model learned from white digits on black: {then}"

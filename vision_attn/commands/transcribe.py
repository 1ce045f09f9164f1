"""Transcribe images of lines with a trained run, and draw where each character was read.

Prints a line for each image: FILE, a tab and the transcript. In a folder, all images are transcribed, with --recursive
also those of its subfolders. An image holds one line of characters; it is resized to the height of the training images,
and its paper, dark or light, becomes black. Standard error names images that could not be read (exit status 1). Only
the run's best/ is needed, not its training data.
"""

import argparse
import json
from typing import Any

from vision_attn.commands._files import add_image_arguments, add_locations, images_of
from vision_attn.commands._run_options import add_run_arguments, open_with, take_images
from vision_attn.system.console import complain, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn transcribe`."""
    add_run_arguments(parser)
    out = ": an alignment for each, and a page"
    add_image_arguments(parser, "transcribe", image="an image of a line", out=out, json="log p of each character")
    add_locations(parser, "x,y of each glimpse of the first character, then of the second")


def run(arguments: argparse.Namespace) -> int:
    """Transcribe every image that can be read; the exit status is 1 if one could not be."""
    take_images(arguments, "transcribe")
    model = open_with(arguments)
    from vision_attn.metrics.variety import cut_short

    cut, drawn = [], []
    with images_of(arguments, "transcribe", unit="line") as (files, paths):
        options: dict[str, Any] = {"placed": arguments.out is not None, "locations": arguments.locations}
        for result in model.transcribe(files, **options, unreadable=paths.complaints):
            cut.append(result.cut)
            if arguments.json:  # in a line of ASCII characters
                say(json.dumps({"file": result.file} | result.record()))
            else:
                say(result.file, result.text)
            if arguments.out:
                drawn.append(result)
        if drawn:
            complain(f"drawn: {drawn[0].write_folder(arguments.out, drawn)}")
        paths.notes.extend(cut_short({"cut": sum(cut) / max(1, len(cut))}))
    return 1 if paths.complaints else 0

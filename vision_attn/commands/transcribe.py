"""Transcribe images of lines with a trained run, and draw where each character was read.

Prints FILE, a tab and the transcript, a line for each image; in a folder, all images are transcribed, and with
--recursive those of its subfolders too. An image holds one line of characters; it is resized to the height that the run
was trained on, and its paper, dark or light, becomes black. What could not be read is named on standard error (exit
status 1). Needs the run's best/ alone, not the data it was trained on.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from vision_attn.commands._find_images import photographs, print_any_name
from vision_attn.commands._output import check_writable
from vision_attn.commands._run_options import add_run_arguments, is_run, missing, names_after_options, open_with
from vision_attn.system.console import complain, progress, say, to_the_end

if TYPE_CHECKING:  # or `--help` would import torch
    from vision_attn.results.decoded import TranscriptResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn transcribe`."""
    add_run_arguments(parser)
    parser.add_argument("images", nargs="*", type=Path, metavar="IMAGE", help="an image of a line, or a folder of them")
    parser.add_argument("--recursive", action="store_true", help="transcribe the images in subfolders too")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="also draw there: an alignment for each, and a page")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each image, with log p")


def run(arguments: argparse.Namespace) -> int:
    """Transcribe all that can be read; the exit status is 1 when something could not be."""
    names, arguments.overrides = names_after_options(arguments.overrides, lambda word: not is_run(Path(word)))
    arguments.images = [*arguments.images, *map(Path, names)]
    if not arguments.images:
        raise ValueError(missing("transcribe", arguments.folder))
    model = open_with(arguments)
    from vision_attn.kernels.choice import without_loops
    from vision_attn.metrics.variety import cut_short

    print_any_name()
    if arguments.out:
        check_writable(arguments.out, "--out")
    found = photographs(arguments.images, recursive=arguments.recursive)
    complaints, cut = list(found.complaints), list[bool]()
    drawn: list[TranscriptResult] = []
    files = iter(progress(found.files, what="transcribe", unit="line"))
    results = model.transcribe(files, placed=arguments.out is not None, unreadable=complaints)
    with to_the_end(arguments.out is not None), without_loops(len(found.files) <= 16):
        for result in results:
            cut.append(result.cut)
            if arguments.json:  # in a line of ASCII characters
                say(json.dumps({"file": result.file} | result.record()))
            else:
                say(result.file, result.text)
            if arguments.out:
                drawn.append(result)
        if drawn:
            complain(f"drawn: {drawn[0].write_folder(arguments.out, drawn)}")
        for line in (*found.notes, *cut_short({"cut": sum(cut) / max(1, len(cut))}), *complaints):
            complain(line)
    return 1 if complaints else 0

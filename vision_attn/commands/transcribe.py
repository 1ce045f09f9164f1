"""Transcribe images of lines with a trained run, and draw where each character was read.

Prints FILE, a tab and the transcript, a line for each image; in a folder, all images are transcribed, and with
--recursive those of its subfolders too. An image holds one line of characters; it is resized to the height that the run
was trained on, and its paper, dark or light, becomes black. What could not be read is named on standard error (exit
status 1). Needs the run's best/ alone, not the data it was trained on.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision_attn.commands._find_images import photographs, print_any_name
from vision_attn.commands._output import check_writable
from vision_attn.commands._run_options import Opened, add_run_arguments, is_run, missing, names_after_options, open_with
from vision_attn.system.console import complain, progress, say, to_the_end

if TYPE_CHECKING:  # or `--help` would import torch
    from vision_attn.viz.alignment import Strip


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
    opened = open_with(arguments)
    from vision_attn.metrics.variety import cut_short
    from vision_attn.tasks.transcribe import Transcription  # has been imported to open the run
    from vision_attn.viz.alignment import write_transcripts

    if not isinstance(opened.task, Transcription):
        raise ValueError(f"{arguments.folder} holds a {opened.task.kind}, which transcribes no lines")
    print_any_name()
    if arguments.out:
        check_writable(arguments.out, "--out")
    found = photographs(arguments.images, recursive=arguments.recursive)
    complaints, drawn, cut = list(found.complaints), [], list[bool]()
    with to_the_end(arguments.out is not None):
        for path, strip in transcripts(opened, found.files, complaints, drawn=bool(arguments.out)):
            (item,) = strip.items
            cut.append(item.cut)
            say(*([record(path, item)] if arguments.json else [str(path), item.text]))
            if arguments.out:
                drawn.append(strip)
        if drawn:
            complain(f"drawn: {write_transcripts(drawn, arguments.out)[0]}")
        for line in (*found.notes, *cut_short({"cut": sum(cut) / max(1, len(cut))}), *complaints):
            complain(line)
    return 1 if complaints else 0


def transcripts(
    opened: Opened, paths: Sequence[Path], complaints: list[str], *, drawn: bool
) -> Iterator[tuple[Path, "Strip"]]:
    """Each image that can be read, with its transcript and what is needed to draw it; others are complained of.

    Lines are read one by one, so that a transcript does not depend on the other lines.
    """
    from vision_attn.data.lines.text_lines import max_width_of, read_line
    from vision_attn.kernels.choice import without_loops

    max_width = max_width_of(opened.source)
    for path in progress(paths, what="transcribe", unit="line"):
        try:
            ink = read_line(path, opened.task.resolution, max_width)
        except ValueError as error:
            complaints.append(str(error))
            continue
        with without_loops(len(paths) <= 16):
            yield path, opened.task.strip(ink, path.name, glimpses=drawn)


def record(path: Path, item: Any) -> str:
    """An image and its transcript in JSON, in a line of ASCII characters: log p of each character is in nats, and null
    for a model that labels columns, which knows that of whole transcripts alone."""
    known = item.log_prob or [None] * len(item.words)
    characters = [{"character": word, "log_prob": log_prob} for word, log_prob in zip(item.words, known, strict=True)]
    return json.dumps({"file": str(path), "text": item.text, "characters": characters})

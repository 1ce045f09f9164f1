"""Caption photographs with a trained run, and draw where each word looked.

RUN may also be a captioner of transformers: transformers:NAME-or-folder, such as BLIP, with its own settings and
--prompt; --task.dtype=bfloat16 and --task.device_map=auto say how it is loaded. Without a RUN, the captioner of
photographs in weights/photographs, which is included, writes the captions. Prints a line for each photograph: FILE, a
tab and the caption. In a folder, all images are captioned, with --recursive also those of its subfolders (hidden files
and links to folders are skipped). Control characters of names are written as escapes such as
\\n. Standard error names files that could not be read (exit status 1) and files that are no images, and warns of empty
captions and of the same caption everywhere. Only the run's best/ is needed, not its training data. A captioner of films
takes files of films, folders of frames, and folders of these.

With --captions N, a line for each of N captions, best first: the N best of the beam, or with --diverse or --sample
captions that differ more. --out draws the best, and --csv writes all into a table, which `score` reads. Keys of
decoding can also be set, such as --task.min_words=12.

--figure fig.pdf draws a figure for a paper: every word of one photograph, or a row for each of several; with
--words dog frisbee, which come last, the map and the overlay of these words.
"""

import argparse
import csv
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision_attn.commands._files import (
    add_figure_arguments,
    add_image_arguments,
    add_words,
    check_file,
    figure_options,
    images_of,
    place,
    write_figure,
)
from vision_attn.commands._hints import shown
from vision_attn.commands._run_options import (
    SHIPPED,
    add_overlay,
    add_run_arguments,
    is_run,
    names_after_options,
    open_with,
    view_of,
)
from vision_attn.system.console import complain, few, progress, say
from vision_attn.system.errors import UserError
from vision_attn.system.files import is_pretrained, replacing, shipped

if TYPE_CHECKING:  # or `--help` would import torch
    from vision_attn.results.decoded import CaptionResult

MOST = 100  # captions of a photograph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn caption`."""
    add_run_arguments(parser, optional=True, pretrained=True)
    out = ": a PNG for each, and one HTML page"
    add_image_arguments(parser, "caption", image="a photograph", out=out, json="log p of each word")
    add_figure_arguments(parser, "the map of each word of a photograph, or a row for each of several")
    add_words(parser)
    parser.add_argument(
        "--with", action="append", default=[], dest="others", metavar="RUN", help="caption with an ensemble of this too"
    )
    parser.add_argument(
        "--csv", type=place, metavar="FILE", help="write image,caption there: the best of each photograph"
    )
    parser.add_argument("--captions", type=int, default=1, metavar="N", help="captions of each photograph, best first")
    strategies = parser.add_mutually_exclusive_group()
    for option, strategy, text in (
        ("--diverse", "diverse", "let the captions differ: the best of each of N groups of beams"),
        ("--sample", "sampled", "sample the captions at random"),
    ):
        strategies.add_argument(
            option, action="store_const", const=strategy, default="best", dest="strategy", help=text
        )
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="of --sample: below 1, likely words are likelier"
    )
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="of --sample: only the likeliest words with probability P in all"
    )
    parser.add_argument("--seed", type=int, help="of --sample (default: that of the run, so that samples repeat)")
    parser.add_argument(
        "--attend", action="append", default=[], metavar="WORD:PLACE",
        help="look there for a word, counted from 1: 3:0.3,-0.2 (a point x,y in [-1, 1] of the photograph), "
        "3:-0.5,-0.5,0,0 (a box), 3-5:mask.png (words 3 to 5; white counts), of films with a frame at the end; repeat "
        "for several",
    )  # fmt: skip
    parser.add_argument(
        "--strength", type=float, metavar="S", help="of --attend: from 0 (its own map) to 1 (only there, the default)"
    )
    add_overlay(parser)


def run(arguments: argparse.Namespace) -> int:
    """Caption every image that can be read; the exit status is 1 if one could not be."""
    arguments.folder, arguments.images = run_and_images(arguments)
    if arguments.csv:
        check_file(arguments.csv, "--csv")
    figure = figure_options(arguments)
    model, options = open_with(arguments), decoding(arguments)
    best: list[CaptionResult] = []
    fewer, films = 0, model.task.frames > 1
    what = "films" if films else "photographs"
    with images_of(arguments, "captions", unit=model.task.unit, films=films) as (files, paths):
        options |= {"placed": bool(arguments.out or arguments.figure), "unreadable": paths.complaints}
        for several in model.caption(files, **options):
            file = several[0].file
            if arguments.json:  # in a line of ASCII characters
                say(json.dumps({"file": file, "captions": [result.record() for result in several]}))
            else:
                for result in several:
                    say(file, result.text)
            best.append(several[0])
            fewer += len(several) < arguments.captions
        wanted = arguments.out or arguments.figure
        drawable = readable_again(best, what, paths.complaints) if wanted else []
        if arguments.out and drawable:
            complain(f"drawn: {drawable[0].write_folder(arguments.out, drawable, **view_of(arguments))}")
        if arguments.csv:
            write_table(arguments.csv, best)
        write_figure(arguments, drawable, figure | view_of(arguments))
        if fewer:
            complain(f"{fewer} of {len(best)} {what} have fewer than {arguments.captions} different captions")
        if arguments.attend:
            paths.notes.extend(unmoved(best, model.caption, options))
        words = getattr(model.task, "vocabulary", None)
        paths.notes.extend(remarks(best, model.task.unit, pretrained=is_pretrained(model.name), words=words))
    return 1 if paths.complaints else 0


def run_and_images(arguments: argparse.Namespace) -> tuple[Path, list[Path]]:
    """Return the run and the images that are named; without a run, the included captioner.

    The first name is a run if it is the folder of one, or if nothing has this name and it is not that of an image. The
    parser leaves names after an option in `arguments.overrides`; they are taken from there.
    """
    from vision_attn.data.images.open import ENDINGS
    from vision_attn.data.photographs.annotation_files.hub_datasets import NAME

    def image(name: str | Path) -> bool:
        there = os.path.lexists(name) or NAME.fullmatch(str(name))
        return Path(name).suffix.lower() in ENDINGS or bool(there and not is_run(Path(name)))

    places = [Path(arguments.folder), *arguments.images] if arguments.folder else list(arguments.images)
    names, arguments.overrides = names_after_options(arguments.overrides, image)
    places += map(Path, names)
    if image(places[0]):
        return shown(shipped(SHIPPED)), places
    if len(places) == 1:
        if not is_run(shipped(places[0])):
            raise UserError(f"{places[0]}: no such file or folder")
        raise UserError(f"name a photograph, or a folder of them: vision-attn caption {places[0]} IMAGE")
    return places[0], places[1:]


def decoding(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `Model.caption` that the arguments ask for."""
    if not 1 <= arguments.captions <= MOST:
        raise UserError(f"--captions is {arguments.captions}, but must be from 1 to {MOST}")
    names = ("temperature", "top_p", "seed")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if given and arguments.strategy != "sampled":
        raise UserError(f"--{next(iter(given)).replace('_', '-')} is for sampled captions: add --sample")
    if arguments.captions == 1 and arguments.strategy == "diverse":
        raise UserError("--diverse is for several captions: add --captions N")
    if arguments.strength is not None and not arguments.attend:
        raise UserError("--strength applies to the places of --attend: add --attend WORD:x,y")
    if arguments.attend:
        given["attend"] = attended(arguments.attend)
        given["strength"] = 1.0 if arguments.strength is None else arguments.strength
    return {"captions": arguments.captions, "strategy": arguments.strategy, **given}


def attended(places: Sequence[str]) -> dict[int | tuple[int, int], Any]:
    """Return the places of `--attend` by their word, or by the first and the last of several words. Raises UserError
    for other values."""
    steering: dict[int | tuple[int, int], Any] = {}
    for text in places:
        words, colon, place = text.partition(":")
        ends = words.split("-")
        if not (colon and place and len(ends) <= 2 and all(end.isascii() and end.isdigit() for end in ends)):
            raise UserError(
                f"--attend {text}: give the number of a word in the caption, from 1, and a place, "
                "such as 3:0.3,-0.2 or 3-5:mask.png"
            )
        between = (int(ends[0]), int(ends[1])) if len(ends) == 2 else int(ends[0])
        if between in steering:
            raise UserError(f"--attend {text}: word {words} has a place already")
        try:
            steering[between] = tuple(map(float, place.split(",")))
        except ValueError:
            steering[between] = mask_of(place)
    return steering


def mask_of(name: str) -> Any:
    """Read the weights of a picture's pixels, in [0, 1]: white is 1."""
    import numpy as np

    from vision_attn.data.images.open import open_photograph

    return np.asarray(open_photograph(name).convert("L"), dtype=np.float32) / 255


def write_table(path: Path, results: Sequence[Any]) -> None:
    """Write `image,caption` for each result, in UTF-8; bytes of names that are not UTF-8 are written as escapes."""
    with (
        replacing(path) as temporary,
        open(temporary, "w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("image", "caption"))
        rows.writerows((result.file, result.text) for result in results)


def readable_again(results: Sequence[Any], what: str, complaints: list[str]) -> list[Any]:
    """Return the results whose pictures can still be read."""
    again = []
    for result in progress(results, what=what, unit="film" if what == "films" else "image"):
        try:
            _ = result.picture
            again.append(result)
        except UserError as error:
            complaints.append(str(error))
    return again


def unmoved(results: Sequence[Any], caption: Any, options: dict[str, Any]) -> Iterator[str]:
    """Yield a line on how many captions are the same without `--attend`; this needs another search for each
    photograph."""
    own = {key: value for key, value in options.items() if key not in ("attend", "strength")}
    own |= {"placed": False, "unreadable": []}
    plain = {several[0].file: several[0].text for several in caption((result.image for result in results), **own)}
    same = [result for result in results if plain.get(result.file) == result.text]
    looked = [result.file for result in same if result.steered]
    early = [result.file for result in same if not result.steered]
    if looked:
        yield f"looked at the place of --attend, and the caption stays what it was: {few(looked)}"
    if early:
        yield f"--attend changed nothing, since the caption ends before its words, or its --strength is 0: {few(early)}"


def remarks(results: Sequence[Any], unit: str, *, pretrained: bool, words: Any = None) -> Iterator[str]:
    """Yield remarks on all captions: that some are empty or cut, or that nearly all are the same.

    unit: the name of the captioned items, such as image.
    pretrained: whether a captioner of transformers wrote them.
    words: the vocabulary.
    """
    from vision_attn.data.words import Spaces
    from vision_attn.metrics.variety import cut_short, same_caption, sameness

    silent = [result.file for result in results if not result.text]
    if silent:
        names = ", ".join(silent[:3]) + ", ..." * (len(silent) > 3)
        yield f"captions without a word: {len(silent)} of {len(results)} ({names}); the captioner ended at once"
    yield from cut_short({"cut": sum(result.cut for result in results) / max(1, len(results))}, pretrained=pretrained)
    same = same_caption(result.text for result in results)
    usual = words is None or isinstance(words.splitter, Spaces)  # as in finetune_photographs
    yield from sameness(same, unit, pretrained=pretrained, photographs=unit == "image" and usual)

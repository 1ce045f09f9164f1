"""Caption photographs with a trained run, and draw where each word looked.

Without a RUN, the captioner of photographs in weights/photographs, which is included, writes the captions.
Prints FILE, a tab and the caption, a line for each photograph; in a folder, all images are captioned, and with
--recursive those of its subfolders too (hidden files are left out, links to folders are not followed). Control
characters of names are written as escapes such as \\n. What is worth knowing of the whole is said on standard error:
what could not be read (exit status 1), files that are no images, captions without a word, and the same caption
everywhere. Needs the run's best/ alone, not the data it was trained on.

With --captions N, a line for each of N captions, best first: the N best of the beam, or with --diverse or --sample
captions that differ more. --out draws the best. Keys of decoding can be set too, such as --task.min_words=12.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from vision_attn.commands._find_images import photographs, print_any_name
from vision_attn.commands._output import check_writable
from vision_attn.commands._run_options import (
    add_run_arguments,
    is_run,
    names_after_options,
    open_with,
    shipped_captioner,
)
from vision_attn.system.console import complain, progress, say, to_the_end
from vision_attn.system.files import shipped

BATCH = 16
SIDE = 672  # pixels of a photograph in the drawings
MOST = 100  # captions of a photograph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn caption`."""
    add_run_arguments(parser, optional=True)
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="a photograph, or a folder of them")
    parser.add_argument("--recursive", action="store_true", help="caption the photographs in subfolders too")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="also draw there: a PNG for each, and one HTML page")
    parser.add_argument(
        "--with",
        action="append",
        default=[],
        dest="others",
        metavar="RUN",
        help="caption with an ensemble of this run too",
    )
    parser.add_argument("--captions", type=int, default=1, metavar="N", help="captions of each photograph, best first")
    ways = parser.add_mutually_exclusive_group()
    for option, way, text in (
        ("--diverse", "diverse", "let the captions differ: the best of each of N groups of beams"),
        ("--sample", "sampled", "sample the captions at random"),
    ):
        ways.add_argument(option, action="store_const", const=way, default="best", dest="way", help=text)
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="of --sample: below 1, likely words are likelier"
    )
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="of --sample: only the likeliest words with probability P in all"
    )
    parser.add_argument("--seed", type=int, help="of --sample (default: that of the run, so that samples repeat)")
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object for each photograph, with log p of each word"
    )


def run(arguments: argparse.Namespace) -> int:
    """Caption all that can be read; the exit status is 1 when something could not be."""
    arguments.folder, arguments.images = run_and_images(arguments)
    task, _, _, device = open_with(arguments)
    from vision_attn.tasks.caption import Captioning  # has been imported to open the run

    if not isinstance(task, Captioning):
        raise ValueError(f"{arguments.folder} holds a {task.kind}, which writes no captions")
    if not task.sees_squares:
        raise ValueError(f"{arguments.folder} reads lines: use `vision-attn transcribe {arguments.folder} IMAGE`")
    print_any_name()
    if arguments.out:
        check_writable(arguments.out, "--out")
    found = photographs(arguments.images, recursive=arguments.recursive)
    complaints = list(found.complaints)
    captions: list[tuple[Path, Any]] = []
    fewer = 0
    done: list[tuple[Path, Any]] = []
    describe = describing(task, arguments)
    with to_the_end(arguments.out is not None):
        for path, several in caption_all(describe, task.resolution, task.fit, device, found.files, complaints):
            if arguments.json:
                say(record(path, several))
            else:
                for described in several:
                    say(str(path), described.text)
            captions.append((path, several[0]))
            fewer += len(several) < arguments.captions
            if arguments.out:
                done.append((path, several[0]))
        if done and (page := draw_all(done, task.fit, arguments.out, complaints)):
            complain(f"drawn: {page}")
        if fewer:
            complain(f"{fewer} of {len(captions)} photographs have fewer than {arguments.captions} different captions")
        for line in (*found.notes, *remarks(captions), *complaints):
            complain(line)
    return 1 if complaints else 0


def run_and_images(arguments: argparse.Namespace) -> tuple[Path, list[Path]]:
    """The run and the images that are named: without a run, the included captioner.

    The first name is a run if it is the folder of one, or if there is nothing of this name and it is no image's. Names
    after an option are left in `arguments.overrides` by the parser, and are taken from there.
    """
    from vision_attn.data.images.decode import ENDINGS

    def image(name: str | Path) -> bool:
        return Path(name).suffix.lower() in ENDINGS or (os.path.lexists(name) and not is_run(Path(name)))

    places = [Path(arguments.folder), *arguments.images] if arguments.folder else list(arguments.images)
    names, arguments.overrides = names_after_options(arguments.overrides, image)
    places += map(Path, names)
    if image(places[0]):
        return shipped_captioner(), places
    if len(places) == 1:
        if not is_run(shipped(places[0])):
            raise ValueError(f"{places[0]}: no such file or folder")
        raise ValueError(f"name a photograph, or a folder of them: vision-attn caption {places[0]} IMAGE")
    return places[0], places[1:]


def describing(task: Any, arguments: argparse.Namespace) -> Callable[[Any], list[list[Any]]]:
    """The function from images to the captions of each, as the options ask for."""
    import torch

    if not 1 <= arguments.captions <= MOST:
        raise ValueError(f"--captions is {arguments.captions}, but must be from 1 to {MOST}")
    for name in ("temperature", "top_p", "seed"):
        if (number := getattr(arguments, name)) is not None:
            if arguments.way != "sampled":
                raise ValueError(f"--{name.replace('_', '-')} is for sampled captions: add --sample")
            if name == "seed":
                torch.manual_seed(number)
            else:
                task.decoding = task.decoding.changed(**{name: number})
    if arguments.captions == 1 and arguments.way == "diverse":
        raise ValueError("--diverse is for several captions: add --captions N")
    placed = bool(arguments.out)  # text needs no places
    if arguments.captions == 1 and arguments.way == "best":
        return lambda images: [[described] for described in task.describe(images, placed=placed)]
    return partial(task.describe, captions=arguments.captions, way=arguments.way, placed=placed)


def record(path: Path, several: Sequence[Any]) -> str:
    """A photograph and its captions in JSON, in a line of ASCII characters: log p of each word is in nats, and `score`
    is what captions are ordered by."""
    captions = [
        {
            "caption": described.text,
            "score": described.score,
            "cut": described.cut,
            "words": [
                {"word": word, "log_prob": log_prob}
                for word, log_prob in zip(described.words, described.log_prob, strict=True)
            ],
        }
        for described in several
    ]
    return json.dumps({"file": str(path), "captions": captions})


def caption_all(
    describe: Callable[[Any], list[list[Any]]],
    resolution: int,
    fit: str,
    device: Any,
    paths: Sequence[Path],
    complaints: list[str],
) -> Iterator[tuple[Path, list[Any]]]:
    """Each photograph with the `DecodedCaption` of each caption, in batches; what cannot be read is complained of."""
    import torch

    from vision_attn.kernels.choice import without_loops

    readable = read(progress(paths, what="captions", unit="image"), resolution, fit, complaints)
    while batch := list(islice(readable, BATCH)):
        images = torch.stack([image for _, image in batch]).to(device)
        with without_loops(len(paths) <= BATCH):
            described = describe(images)
        yield from zip([path for path, _ in batch], described, strict=True)


def read(paths: Iterable[Path], resolution: int, fit: str, complaints: list[str]) -> Iterator[tuple[Path, Any]]:
    """Each photograph as the encoder sees it; those that cannot be read are complained of."""
    from vision_attn.data.images.squares import in_threads, read_image

    def attempt(path: Path) -> tuple[Path, Any]:
        try:
            return path, read_image(path, resolution, fit)
        except ValueError as error:
            return path, error

    for path, image in in_threads(attempt, paths):
        if isinstance(image, ValueError):
            complaints.append(str(image))
        else:
            yield path, image


def remarks(captions: Sequence[tuple[Path, Any]]) -> Iterator[str]:
    """What is worth knowing of all captions: that some are empty or cut, or that nearly all are the same."""
    from vision_attn.metrics.variety import cut_short, same_caption, sameness

    silent = [path for path, described in captions if not described.text]
    if silent:
        names = ", ".join(map(str, silent[:3])) + ", ..." * (len(silent) > 3)
        yield f"captions without a word: {len(silent)} of {len(captions)} ({names}); the captioner ended at once"
    yield from cut_short({"cut": sum(described.cut for _, described in captions) / max(1, len(captions))})
    yield from sameness(same_caption(described.text for _, described in captions))


def draw_all(done: Sequence[tuple[Path, Any]], fit: str, folder: Path, complaints: list[str]) -> Path | None:
    """A sheet for each photograph and one page for all, in `folder`; returns the page, if there is anything on it."""
    from vision_attn.data.images.squares import open_seen
    from vision_attn.viz.captions import write_pictures

    drawn, pictures = [], []
    for path, described in progress(done, what="photographs", unit="image"):
        try:
            part = open_seen(path, fit, at_least=SIDE)
        except ValueError as error:  # it could be read a moment ago
            complaints.append(str(error))
            continue
        part.thumbnail((SIDE, SIDE))
        pictures.append(part)
        drawn.append((path.name, described))
    titles, captions = [name for name, _ in drawn], [described for _, described in drawn]
    return write_pictures(titles, pictures, captions, folder)[0] if drawn else None

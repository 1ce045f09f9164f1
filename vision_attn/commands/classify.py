"""Classify images with a trained run, and draw the path of its glimpses.

Prints FILE, a tab, the most likely class, a tab and its probability, a line for each image; in a folder, all images are
classified, and with --recursive those of its subfolders too. Images may have any size and any colours: they are
converted to those that the run was trained on. A run whose model takes glimpses sees an image at its own size, unless
the run was trained on photographs of a certain size; other models see it resized. An image larger than memory can be
given as an array of uint8 in a .npy file: only what the model looks at is read. What could not be read is named on
standard error (exit status 1). Needs the run's best/ alone, not the data it was trained on.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vision_attn.commands._find_images import photographs, print_any_name
from vision_attn.commands._output import check_writable
from vision_attn.commands._run_options import Opened, add_run_arguments, is_run, missing, names_after_options, open_with
from vision_attn.system.console import complain, progress, say, to_the_end
from vision_attn.system.files import shipped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn classify`."""
    add_run_arguments(parser, captioner=False)
    parser.add_argument("images", nargs="*", type=Path, metavar="IMAGE", help="an image, or a folder of them")
    parser.add_argument("--recursive", action="store_true", help="classify the images in subfolders too")
    parser.add_argument("--invert", action="store_true", help="swap black and white: for dark digits on white paper")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="also draw there where the model looked")
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object for each image, with all probabilities"
    )


def run(arguments: argparse.Namespace) -> int:
    """Classify all that can be read; the exit status is 1 when something could not be."""
    names, arguments.overrides = names_after_options(arguments.overrides, lambda word: not is_run(Path(word)))
    arguments.images = [*arguments.images, *map(Path, names)]
    arguments.folder = shipped(arguments.folder)
    if not arguments.images:
        raise ValueError(missing("classify", arguments.folder))
    opened = open_with(arguments)
    from vision_attn.contracts import Reads
    from vision_attn.data.images.lazy import OPENED
    from vision_attn.tasks.classify import Classification  # has been imported to open the run
    from vision_attn.viz.classified import GLIMPSES, READS, write_looks
    from vision_attn.viz.index import Entry
    from vision_attn.viz.sheet import picture_name

    if not isinstance(opened.task, Classification):
        raise ValueError(
            f"{arguments.folder} holds a {opened.task.kind}, which classifies no images: for a captioner use "
            "vision-attn caption, for others see vision-attn --help"
        )
    print_any_name()
    if arguments.out:
        check_writable(arguments.out, "--out")
    found = photographs(arguments.images, recursive=arguments.recursive, endings=OPENED)
    complaints, doubts, drawn = list(found.complaints), list[str](), list[Entry]()
    with to_the_end(arguments.out is not None):
        for number, (path, images, answer) in enumerate(answers(opened, found.files, arguments, complaints), start=1):
            if arguments.json:
                say(record(opened.task, path, answer))
            else:
                say(str(path), answer.name, f"{answer.probabilities.max():.3f}")
            doubts += reasons_to_doubt(opened, path, images, inverted=arguments.invert)
            if arguments.out:
                place = arguments.out / picture_name(number, path.name)
                if opened.task.draw(images, answer, place, title=path.name):
                    drawn.append(Entry(place, f"{path}: {answer.name}, p {answer.probabilities.max():.2f}"))
        if arguments.out and not drawn and not complaints:
            complain("no pictures: this model sees the whole image at once")
        elif drawn:
            guide = READS if isinstance(answer.view, Reads) else GLIMPSES
            complain(f"drawn: {write_looks(arguments.out, drawn, guide)}")
        several = [f"{len(doubts) - 6} more remarks of this kind; name fewer images to see them"] * (len(doubts) > 6)
        for line in (*found.notes, *doubts[:6], *several, *complaints):
            complain(line)
    return 1 if complaints else 0


def answers(
    opened: Opened, paths: Sequence[Path], arguments: argparse.Namespace, complaints: list[str]
) -> Iterator[tuple[Path, Any, Any]]:
    """Each image that can be read, as the model sees it, with the answer; others are complained of.

    Glimpses of each image are sampled from the seed of the run, so that an answer does not depend on other images.
    """
    from vision_attn.kernels.choice import without_loops

    few, seed = len(paths) <= 16, opened.config.get("run", {}).get("seed", 0)
    for path in progress(paths, what="classify", unit="image"):
        try:
            images = seen(opened, path, arguments.invert)
        except ValueError as error:
            complaints.append(str(error))
            continue
        with without_loops(few):
            yield path, images, opened.task.answer(images, seed)[0]


def seen(opened: Opened, path: Path, invert: bool) -> Any:
    """An image as the model sees it: `Images`, or a tensor of the one size that it takes."""
    from vision_attn.data.images.lazy import Inverted, open_pixels
    from vision_attn.data.labelled.labelled_images import LabelledImages

    pixels = opened.source.open(path) if isinstance(opened.source, LabelledImages) else open_pixels(path)
    return opened.task.seen(Inverted(pixels) if invert else pixels)


def reasons_to_doubt(opened: Opened, path: Path, images: Any, *, inverted: bool) -> list[str]:
    """Return why an answer may be wrong: the image is much larger than the training images, not white on black, or
    both."""
    from vision_attn.attention.images import Images, overview
    from vision_attn.data.labelled.labelled_images import LabelledImages

    reasons = []
    height, width = opened.task.image_shape[1:]  # 0 if training images differ in size
    if width and isinstance(images, Images):
        X, Y = images.extents[0].tolist()
        if max(X / width, Y / height) > 2:
            known = f"the model learned from {width} x {height}"
            then = "what is larger or smaller there may be misread; crop or resize it"
            reasons.append(f"{path} is seen with {X} x {Y} pixels, but {known}: {then}")
    if not isinstance(opened.source, LabelledImages) and overview(images, 16).mean() > 0.5:
        then = "after --invert; leave it out" if inverted else "--invert swaps them"
        reasons.append(f"{path} is mostly bright, but the model learned from white digits on black: {then}")
    return reasons


def record(task: Any, path: Path, answer: Any) -> str:
    """An image and its answer in JSON: the probability of each class, and where each glimpse was, from -1 to 1."""
    names = task.class_names or [str(number) for number in range(len(answer.probabilities))]
    locations = answer.glance.locations
    found = {
        "file": str(path),
        "answer": answer.name,
        "probability": float(answer.probabilities.max()),
        "probabilities": dict(zip(names, answer.probabilities.tolist(), strict=True)),
        "locations": None if locations is None else locations[0, 0].tolist(),
    }
    return json.dumps(found)

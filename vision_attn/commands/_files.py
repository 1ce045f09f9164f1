"""Find the images that a command line names, and check that outputs can be written before long work."""

import argparse
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vision_attn.system.console import complain, plural, printable, progress, to_the_end
from vision_attn.system.errors import UserError
from vision_attn.system.files import scratch
from vision_attn.system.inputs import keeps, reads, writes

if TYPE_CHECKING:
    from vision_attn.data.images.open import Encoded


class ImagePaths(NamedTuple):
    """The images to read, notes and errors; each text is one line."""

    files: "list[Path | Encoded]"
    notes: list[str]
    complaints: list[str]


def place(text: str) -> Path:
    """Convert an argument that names a file or a folder. An empty name, which would be the current folder, is an
    error."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty: name a file or a folder, such as . for the current one")
    return Path(text)


def add_image_arguments(parser: argparse.ArgumentParser, verb: str, *, image: str, out: str, json: str) -> None:
    """Add the images and the options of commands that read them; the texts are their help."""
    several = "+" if verb == "caption" else "*"  # without a RUN, the first image stands in its place
    parser.add_argument("images", nargs=several, type=place, metavar="IMAGE", help=f"{image}, or a folder of them")
    parser.add_argument("--recursive", action="store_true", help=f"{verb} the images in subfolders too")
    parser.add_argument("--out", type=place, metavar="FOLDER", help=f"also draw there{out}")
    parser.add_argument("--json", action="store_true", help=f"print a JSON object for each image, with {json}")


def add_locations(parser: argparse.ArgumentParser, places: str) -> None:
    """Declare --locations, which says where a model takes its glimpses."""
    help_ = f"where to look: {places}, from -1 to 1; - is the model's own"
    parser.add_argument("--locations", type=_places, metavar='"X,Y - X,Y"', help=help_)


def _places(text: str) -> list[tuple[float, ...] | None]:
    try:
        return [None if place == "-" else tuple(float(part) for part in place.split(",")) for place in text.split()]
    except ValueError:
        raise argparse.ArgumentTypeError(f'{text!r}: give numbers, as in "0.3,-0.2 - 0,0.5"') from None


def add_figure_arguments(parser: argparse.ArgumentParser, figure: str) -> None:
    """Add --figure and its size; `figure` says what it shows."""
    parser.add_argument(
        "--figure", type=place, metavar="FILE", help=f"also write a figure for a paper, .pdf, .svg or .png: {figure}"
    )
    parser.add_argument("--width", type=float, metavar="INCHES", help="of --figure (default: 6.5)")
    parser.add_argument("--dpi", type=int, metavar="N", help="dots per inch of photographs in --figure (default: 300)")
    parser.add_argument("--dark", action="store_true", help="of --figure: light text on a dark ground")


def add_words(parser: argparse.ArgumentParser) -> None:
    """Add --words, for figures of captions."""
    parser.add_argument(
        "--words", nargs="+", metavar="WORD",
        help="of --figure: a row for each photograph, with the map and the overlay of each of these words",
    )  # fmt: skip


def figure_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `result.write_figure` that the arguments give. Raises UserError, before long work, if the
    figure cannot be written, or if there are options of a figure without --figure."""
    given = {name: getattr(arguments, name) for name in ("width", "dpi", "dark")}
    given["words"] = vars(arguments).get("words")
    options = {name: value for name, value in given.items() if value not in (None, False)}
    no_images("words", given["words"])
    if arguments.figure is None:
        if options:
            raise UserError(f"--{next(iter(options))} applies to a figure: add --figure FILE.pdf")
        return {}
    from vision_attn.viz.figures.paper import Paper, ending_of
    from vision_attn.viz.figures.signature import is_signed

    Paper(**{name: value for name, value in options.items() if name != "words"}).checked()
    ending_of(arguments.figure)
    if arguments.figure.is_file() and not is_signed(arguments.figure):
        keeps(arguments.figure, "--figure")
    check_file(arguments.figure, "--figure")
    return options


def write_figure(arguments: argparse.Namespace, results: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Write the figure of one result or of several together, if --figure was given, and say where."""
    from vision_attn.results.result_list import ResultList

    if arguments.figure and results:
        drawn = results[0] if len(results) == 1 else ResultList(results)
        complain(f"drawn: {drawn.write_figure(arguments.figure, **options)}")


def no_images(option: str, values: Sequence[str] | None) -> None:
    """Raise UserError if an option with several values has also taken the photograph that follows it."""
    from vision_attn.data.images.open import ENDINGS

    for value in values or ():
        if Path(value).suffix.lower() in ENDINGS:
            raise UserError(f"--{option} takes all that follows, also {value}: name photographs before it")


@contextmanager
def images_of(
    arguments: argparse.Namespace,
    what: str,
    *,
    unit: str = "image",
    endings: Collection[str] | None = None,
    films: bool = False,
    pictured: bool = True,
) -> Iterator[tuple[Iterator["Path | Encoded"], ImagePaths]]:
    """Context manager: provide all images that a command names, for the command to make and print their results.

    Returns the images with a progress bar, and the `ImagePaths`. The command may add to its notes and complaints, which
    are printed at the end. With `--out` or `--figure`, everything is written even if the reader of the output leaves.
    Pictures of an earlier call are removed from `--out`; other files stay (`_old_pictures`).

    what, unit: the texts of the progress bar.
    endings, films: as for `photographs`.
    pictured: whether a picture of each image is written into `--out`.
    """
    from vision_attn.commands._old_pictures import old_pictures_removed, others_kept
    from vision_attn.fast.versions import without_loops
    from vision_attn.results.images import name_of
    from vision_attn.results.result_list import BATCH
    from vision_attn.viz.panel_sheets import picture_name

    if hasattr(sys.stdout, "reconfigure"):  # names of files may be any bytes
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    if arguments.out:
        check_writable(arguments.out, "--out")
    paths = photographs(arguments.images, recursive=arguments.recursive, endings=endings, films=films)
    for file in paths.files:
        if isinstance(file, Path):
            reads(file)
    if arguments.out:
        others_kept(arguments.out)
        writes(arguments.out / "index.html", "--out")
        for number, file in enumerate(paths.files if pictured else (), start=1):
            picture = arguments.out / picture_name(number, Path(name_of(file, number)).name)
            for name in (picture, picture.with_suffix(".gif")) if films else (picture,):
                writes(name, "--out")

    def files() -> Iterator["Path | Encoded"]:
        yield from progress(paths.files, what=what, unit=unit)

    written = arguments.out is not None or vars(arguments).get("figure") is not None
    with to_the_end(written), without_loops(len(paths.files) <= BATCH), old_pictures_removed(arguments.out):
        yield files(), paths
        for line in paths.notes:
            complain(line)
        for line in paths.complaints:
            complain(line, error=True)


def photographs(
    places: Iterable[Path],
    *,
    recursive: bool = False,
    endings: Collection[str] | None = None,
    films: bool = False,
) -> ImagePaths:
    """Return the named files and the images in the named folders, sorted by name; with `films` the films, which are
    files or folders of frames.

    Images are recognised by their extensions: `endings`, or those of photographs. Hidden files and folders are ignored,
    links to folders are not followed (they could form a cycle), and files that are not regular (pipes, devices) are
    skipped with a note. All photographs of a dataset (`hub_datasets`) are included.
    """
    from vision_attn.data.films.files import FILM_ENDINGS, is_film
    from vision_attn.data.images.open import ENDINGS
    from vision_attn.data.photographs.annotation_files.hub_datasets import is_dataset, photographs_of

    paths = ImagePaths([], [], [])
    recognised = endings or (FILM_ENDINGS if films else ENDINGS)
    for place in places:
        if films and os.path.isdir(place) and is_film(place):
            paths.files.append(place)
        elif place.suffix.lower() not in ENDINGS and is_dataset(place):
            reads(place)
            paths.files.extend(photographs_of(place))
        elif os.path.isdir(place):  # Path.is_dir raises for names that are too long
            _search(place, recursive, paths, recognised, is_film if films else None)
        elif not films and place.suffix.lower() in FILM_ENDINGS - ENDINGS:
            paths.complaints.append(
                f"{place} is a film: name a captioner of films before it, as weights/drawn_films is"
            )
        else:
            paths.files.append(place)
    return paths


def _search(
    place: Path, recursive: bool, paths: ImagePaths, endings: Collection[str], is_film: Callable[[Path], bool] | None
) -> None:
    """Add the images of the folder `place` to `paths` or, with `is_film`, its films."""
    before, subfolders, links = len(paths.files), 0, 0
    others: list[str] = []
    for folder, below, names in _walk(place, paths.complaints):
        links += sum(os.path.islink(folder / name) for name in below)
        below[:] = [name for name in below if not os.path.islink(folder / name)]
        for name in names:
            path = folder / name
            if path.suffix.lower() not in endings:
                others.append(name)
            elif os.path.exists(path) and not os.path.isfile(path):
                paths.notes.append(f"{path} is not a regular file and was skipped")
            else:
                paths.files.append(path)
        framed = [name for name in below if is_film and is_film(folder / name)]
        paths.files.extend(folder / name for name in framed)
        below[:] = [name for name in below if name not in framed]
        subfolders += len(below)
        if not recursive:
            below.clear()
    what, article = ("film", "a") if is_film else ("image", "an")
    none, some = len(paths.files) == before, ", ".join(map(printable, others[:3])) + ", ..." * (len(others) > 3)
    told = {
        f"no {what}s in this folder": none,
        f"skipped {plural(len(others), 'file')} without {article} {what} extension ({some})": others,
        f"--recursive includes {plural(subfolders, 'subfolder')}": subfolders and not recursive,
        f"{plural(links, 'link')} to folders not followed": links and recursive,
    }
    if any(told.values()):
        lines = paths.complaints if none else paths.notes
        lines.append(f"{place}: {'; '.join(line for line, holds in told.items() if holds)}")


def _walk(place: Path, complaints: list[str]) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Walk the folders from `place` down, with sorted names; the caller may clear the list of subfolders."""

    def refused(error: OSError) -> None:
        complaints.append(f"{error.filename}: this folder cannot be read ({error.strerror})")

    for folder, below, names in os.walk(place, onerror=refused):
        below[:] = sorted(name for name in below if not name.startswith("."))
        yield Path(folder), below, sorted(name for name in names if not name.startswith("."))


def writable(folder: Path, option: str) -> Path:
    """Create `folder` if necessary and return it. Raises UserError, which mentions `option`, if it is not writable.

    Also removes temporary files of killed processes from it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with scratch("check", folder):
            pass
    except FileExistsError as error:
        raise UserError(f"{folder} is a file, not a folder: name another with {option}") from error
    except OSError as error:
        what = "written" if folder.is_dir() else "created"
        raise UserError(
            f"{folder} cannot be {what} ({error.strerror or error}): name another folder with {option}"
        ) from error
    return folder


def check_file(file: Path, option: str) -> None:
    """Raise UserError, which mentions `option`, if `file` cannot be written because of its folder, or is a folder, an
    input or another output of the command."""
    if file.is_dir():
        raise UserError(f"{file} is a folder: {option} must name a file")
    writes(file, option)
    writable(file.parent, option)


def check_writable(folder: Path, option: str) -> None:
    """Raise UserError, which mentions `option`, if `folder` cannot be created or written; leave no new folder.

    Only for commands that run in one process: otherwise one process would remove a folder that another has just
    created.
    """
    new = list(takewhile(lambda parent: not parent.exists(), (folder, *folder.parents)))
    writable(folder, option)
    with suppress(OSError):
        for parent in new:
            parent.rmdir()

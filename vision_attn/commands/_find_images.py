"""Search for the images that a command line names, as files or as folders."""

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from vision_attn.system.console import printable

NAMED = 3
"""How many of the files that are skipped are named."""


class Found(NamedTuple):
    """The images to read, notes and errors; each text is one line."""

    files: list[Path]
    notes: list[str]
    complaints: list[str]


def print_any_name() -> None:
    """Let standard output print names of files as they are: they may be any bytes."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


def photographs(places: Iterable[Path], *, recursive: bool = False, endings: Collection[str] | None = None) -> Found:
    """Return the named files, and the images in the named folders, sorted by name.

    Images are recognised by their extensions: `endings`, or those of photographs. Hidden files and folders are
    ignored, links to folders are not followed (they could form a cycle), and files that are not regular (pipes,
    devices) are skipped with a note.
    """
    from vision_attn.data.images.open import ENDINGS

    found = Found([], [], [])
    for place in places:
        if os.path.isdir(place):  # Path.is_dir raises for names that are too long
            _search(place, recursive, found, ENDINGS if endings is None else endings)
        else:
            found.files.append(place)
    return found


def _search(place: Path, recursive: bool, found: Found, endings: Collection[str]) -> None:
    """Add the images of the folder `place` to `found`."""
    before, subfolders, links = len(found.files), 0, 0
    others: list[str] = []
    for folder, below, names in _walk(place, found.complaints):
        links += sum(os.path.islink(folder / name) for name in below)
        subfolders += sum(not os.path.islink(folder / name) for name in below)
        for name in names:
            path = folder / name
            if path.suffix.lower() not in endings:
                others.append(name)
            elif os.path.exists(path) and not os.path.isfile(path):
                found.notes.append(f"{path} is not a regular file and was skipped")
            else:
                found.files.append(path)
        if not recursive:
            below.clear()
    told = {
        "no images in this folder": len(found.files) == before,
        f"skipped {_count(len(others), 'file')} without an image extension ({_few(others)})": others,
        f"--recursive includes {_count(subfolders, 'subfolder')}": subfolders and not recursive,
        f"{_count(links, 'link')} to folders not followed": links and recursive,
    }
    if any(told.values()):
        lines = found.complaints if len(found.files) == before else found.notes
        lines.append(f"{place}: {'; '.join(line for line, holds in told.items() if holds)}")


def _walk(place: Path, complaints: list[str]) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Walk the folders from `place` down, with sorted names; the caller may clear the list of subfolders."""

    def refused(error: OSError) -> None:
        complaints.append(f"{error.filename}: this folder cannot be read ({error.strerror})")

    for folder, below, names in os.walk(place, onerror=refused):
        below[:] = sorted(name for name in below if not name.startswith("."))
        yield Path(folder), below, sorted(name for name in names if not name.startswith("."))


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(printable, names[:NAMED])) + ", ..." * (len(names) > NAMED)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"

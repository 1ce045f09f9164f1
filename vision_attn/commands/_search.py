"""Which files are meant by the photographs and folders that a command line names."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Found(NamedTuple):
    """The photographs to read, what is worth knowing, and what went wrong; each text is one line."""

    files: list[Path]
    notes: list[str]
    complaints: list[str]


def photographs(places: Iterable[Path], *, recursive: bool = False) -> Found:
    """The files that are named, and the images in the folders that are, in the order of their names.

    Images are known by their endings. Hidden files and folders are left out, links to folders are not followed (so
    that no folder is read twice or for ever), and what is no regular file (a pipe, a device) is skipped and told.
    """
    found = Found([], [], [])
    for place in places:
        if os.path.isdir(place):  # Path.is_dir raises for names that are too long
            _search(place, recursive, found)
        else:
            found.files.append(place)
    return found


def _search(place: Path, recursive: bool, found: Found) -> None:
    """Add what lies in the folder `place`."""
    from vision_attn.data.photographs import ENDINGS

    before, others, subfolders, links = len(found.files), 0, 0, 0
    for folder, below, names in _walk(place, found.complaints):
        links += sum(os.path.islink(folder / name) for name in below)
        subfolders += sum(not os.path.islink(folder / name) for name in below)
        for name in names:
            path = folder / name
            if path.suffix.lower() not in ENDINGS:
                others += 1
            elif os.path.exists(path) and not os.path.isfile(path):
                found.notes.append(f"{path} is no regular file and was skipped")
            else:
                found.files.append(path)
        if not recursive:
            below.clear()
    told = {
        "no images in this folder": len(found.files) == before,
        f"skipped {_count(others, 'file')} without the ending of an image": others,
        f"--recursive also looks into {_count(subfolders, 'subfolder')}": subfolders and not recursive,
        f"{_count(links, 'link')} to folders not followed": links and recursive,
    }
    if any(told.values()):
        lines = found.complaints if len(found.files) == before else found.notes
        lines.append(f"{place}: {'; '.join(line for line, holds in told.items() if holds)}")


def _walk(place: Path, complaints: list[str]) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Each folder from `place` down, with the names in it, sorted; the caller may clear its subfolders."""

    def refused(error: OSError) -> None:
        complaints.append(f"{error.filename}: this folder cannot be read ({error.strerror})")

    for folder, below, names in os.walk(place, onerror=refused):
        below[:] = sorted(name for name in below if not name.startswith("."))
        yield Path(folder), below, sorted(name for name in names if not name.startswith("."))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"

"""Photographs in a column of a table: bytes, or files in the folder of the table, each photograph under one name."""

import hashlib
import logging
import os
import re
import stat
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from vision_attn.data.images.open import Encoded
from vision_attn.system.console import printable
from vision_attn.system.errors import UserError
from vision_attn.system.files import brief, contents
from vision_attn.system.splits import SPLITS, split_named

LONGEST_PATH = 4096
"""Characters of the path of a file; no system has longer ones."""
log = logging.getLogger(__name__)


class Held(NamedTuple):
    """What tells the photograph of a row from others."""

    name: str
    """The path that the table gives it, or the one of its file below the folder; "" if there is none."""
    size: int
    """Bytes; -1 if there are none."""
    more: bytes | int = b""
    """A hash of the bytes where others have this name and size; of a row without a photograph or a name its number."""


def encoded(path: Path, column: Any, names: Sequence[Any] | None, folders: Sequence[Path]) -> list[Encoded]:
    """The photograph of each row of a column, of bytes or `{bytes, path}`. Rows of the same photograph, which has the
    same path and the same bytes, have the same name: one of `names`, or else that of its file if it is unique, or its
    path, or the number of its first row.

    path: of the table, for messages. folders: where the files lie that it may name as photographs. Raises UserError
    for a file elsewhere, or that is not regular: reading a pipe would wait, and a device may never end.
    """
    from pyarrow import compute

    struct = column.type.num_fields > 0
    content = compute.struct_field(column, "bytes") if struct else column
    keys = [part.name for part in column.type] if struct else []
    paths = compute.struct_field(column, "path").to_pylist() if "path" in keys else [None] * len(column)
    sizes = compute.fill_null(compute.binary_length(content), -1).to_pylist()
    files: list[Path | None] = [None] * len(column)
    for row, (said, size) in enumerate(zip(paths, sizes, strict=True)):
        if said and ("\0" in said or len(said) > LONGEST_PATH):
            paths[row] = said = None
        if size < 0 and said:
            folder, file = _found(f"{path}: row {row + 1}", said, folders)
            files[row], sizes[row], paths[row] = file, _size(file), file.relative_to(folder).as_posix()
    held = _told_apart(content, [_below(said) if said else "" for said in paths], sizes)
    given = None if names is None else _told_apart(content, [_below(str(name)) for name in names], sizes)
    if given is None or len({*given}) > len({one.name for one in given}):  # a name of two photographs is none
        titles = _titles(held)
    else:
        titles = [one.name for one in given]
    return [
        Encoded(title, partial(_read, f"{path}: row {row + 1}", content, row, files[row]), sizes[row])
        for row, title in enumerate(titles)
    ]


def apart(path: Path, rows: Sequence[tuple[Any, Encoded | None]]) -> list[bool]:
    """Which of these rows, of all splits of a dataset, to keep, so that no photograph is in two splits: those of
    testing before those of validation and of training. A photograph is the same if it has the same name, without the
    split, and the same bytes. A line says how many there are."""
    photographs = {file.name: file for _, file in rows if file is not None and file.size != -1}
    purposes: dict[str, int] = {}
    for split, file in rows:
        if file is not None and file.name in photographs:
            purposes[file.name] = max(purposes.get(file.name, -1), _purpose(split))
    alike: dict[tuple, list[str]] = {}
    for name, file in photographs.items():
        alike.setdefault((name.partition("/")[2], file.size), []).append(name)
    left_out: dict[str, str] = {}
    for some in alike.values():
        last: dict[bytes, str] = {}
        for name in sorted(some, key=purposes.__getitem__, reverse=True) if len(some) > 1 else ():
            other = last.setdefault(hashlib.sha256(photographs[name].read()).digest(), name)
            if purposes[name] < purposes[other]:
                left_out[name] = other
    if left_out:
        name, other = next(iter(left_out.items()))
        text = (
            "%s: photographs that are in two splits, and are kept for testing or validation alone: %d, such as %s, %s"
        )
        log.warning(text, path, len(left_out), printable(name), printable(other))
    return [file is None or file.name not in left_out for _, file in rows]


def regular(file: Path, folder: Path) -> Path:
    """A regular file below a folder that another file names. Links are followed. Raises UserError if it is none."""
    inside = Path(os.path.normpath(file.absolute()))
    if not inside.is_relative_to(os.path.normpath(folder.absolute())):
        raise UserError(f"it names {brief(str(file))}, which is not in {folder}")
    if not os.path.isfile(inside):
        raise UserError(f"it names {brief(str(file))}, which is not a regular file")
    return inside


def _purpose(split: Any) -> int:
    split = split_named(split)
    return SPLITS.index(split) if split in SPLITS else 0 if split == "restval" else -1


def _found(where: str, said: str, folders: Sequence[Path]) -> tuple[Path, Path]:
    """The folder and the path of a file that a row names. Raises UserError if it is in none of the folders."""
    inside = []
    for folder in map(Path, map(os.path.abspath, folders)):
        file = Path(os.path.normpath(os.path.join(folder, said)))
        if file.is_relative_to(folder) and file != folder:
            inside.append((folder, file))
    if not inside:
        raise UserError(
            f"{where} holds no photograph, but names the file {brief(said)}, which is not in {folders[0]}: only files "
            "there are opened; copy it there, or save the dataset with the bytes of its photographs"
        )
    folder, file = next((one for one in inside if os.path.lexists(one[1])), inside[0])
    if os.path.exists(file) and not os.path.isfile(file):
        raise UserError(f"{where} names {brief(said)}, which is not a regular file")
    return folder, file


def _size(file: Path) -> int:
    """The bytes of a file; -1 if there is none."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _told_apart(content: Any, names: Sequence[str], sizes: Sequence[int]) -> list[Held]:
    """What tells photographs apart: name and size, and the bytes where these agree."""
    found = [*map(Held, names, sizes)]
    times = Counter(found)
    for row, one in enumerate(found):
        if times[one] > 1 and (held := content[row].as_buffer()) is not None:
            found[row] = one._replace(more=hashlib.sha256(held).digest())
        elif not one.name and one.size < 0:
            found[row] = one._replace(more=row)
    return found


def _titles(held: Sequence[Held]) -> list[str]:
    """A name for the photograph of each row, different ones for different photographs."""
    first: dict[Held, int] = {}
    for row, one in enumerate(held):
        first.setdefault(one, row)
    plain = {one: PurePosixPath(one.name).name for one in first}
    files, paths = Counter(plain.values()), Counter(one.name for one in first)
    titles = {}
    for one in first:
        if one.name and files[plain[one]] == 1:
            titles[one] = plain[one]
        elif one.name and paths[one.name] == 1:
            titles[one] = one.name
    taken = {*titles.values()}
    for one, row in first.items():
        if one not in titles:
            number = f"{row:06}"
            while number in taken:
                number += "_"
            titles[one] = number
    return [titles[one] for one in held]


def _below(name: str) -> str:
    """A name as that of a file below some folder."""
    parts = re.split(r"[/\\]", " ".join(name.split()))
    return "/".join(part for part in parts if part.strip(". ") and not part.endswith(":")) or "photograph"


def _read(where: str, content: Any, row: int, file: Path | None) -> bytes:
    """The bytes of the photograph of a row, or of the file that it names."""
    found = content[row].as_py()
    if found is not None:
        return found
    if file is None:
        raise UserError(f"{where} has no photograph: neither bytes nor the path of a file")
    if os.path.exists(file) and not os.path.isfile(file):  # it was one when the table was read
        raise UserError(f"{file} is not a regular file")
    return contents(file)

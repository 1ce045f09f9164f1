"""Read the photographs in a column of a table, as bytes or as files in its folder, and give each different photograph
one name."""

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
"""The largest number of characters of a path; no system has longer paths."""
log = logging.getLogger(__name__)


class Held(NamedTuple):
    """The key that distinguishes the photograph of a row from others."""

    name: str
    """The path in the table, or the path of the file relative to the folder; "" if there is none."""
    size: int
    """Bytes; -1 if there are none."""
    more: bytes | int = b""
    """A hash of the bytes if other photographs have the same name and size; the number of a row without a photograph or
    a name."""


def encoded(path: Path, column: Any, names: Sequence[Any] | None, folders: Sequence[Path]) -> list[Encoded]:
    """Return the photograph of each row of a column. Rows with the same path and the same bytes hold the same
    photograph and get the same name: that of `names`, or else the name of the file if it is unique, the path, or the
    number of the first row.

    path: the path of the table, for messages.
    column: values of bytes or `{bytes, path}`.
    folders: the folders whose files the table may name.

    Raises UserError for a file elsewhere, and for one that is not regular: reading a pipe would wait, and a device may
    never end.
    """
    from pyarrow import compute

    struct = column.type.num_fields > 0
    content = compute.struct_field(column, "bytes") if struct else column
    keys = [field.name for field in column.type] if struct else []
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
    if given is None or len({*given}) > len(
        {photograph.name for photograph in given}
    ):  # a name of two photographs is none
        titles = _titles(held)
    else:
        titles = [photograph.name for photograph in given]
    return [
        Encoded(title, partial(_read, f"{path}: row {row + 1}", content, row, files[row]), sizes[row])
        for row, title in enumerate(titles)
    ]


def apart(path: Path, dataset_rows: Sequence[tuple[Any, Encoded | None]]) -> list[bool]:
    """Return which rows of all splits of a dataset to keep, so that no photograph is in two splits: testing takes
    precedence over validation, and validation over training. Photographs are the same if they have the same bytes and,
    apart from the split, the same name. The number of dropped rows is logged."""
    photographs = {file.name: file for _, file in dataset_rows if file is not None and file.size != -1}
    purposes: dict[str, int] = {}
    for split, file in dataset_rows:
        if file is not None and file.name in photographs:
            purposes[file.name] = max(purposes.get(file.name, -1), _purpose(split))
    alike: dict[tuple, list[str]] = {}
    for name, file in photographs.items():
        alike.setdefault((name.partition("/")[2], file.size), []).append(name)
    left_out: dict[str, str] = {}
    for names in alike.values():
        last: dict[bytes, str] = {}
        for name in sorted(names, key=purposes.__getitem__, reverse=True) if len(names) > 1 else ():
            other = last.setdefault(hashlib.sha256(photographs[name].read()).digest(), name)
            if purposes[name] < purposes[other]:
                left_out[name] = other
    if left_out:
        name, other = next(iter(left_out.items()))
        text = (
            "%s: photographs that are in two splits, and are kept for testing or validation alone: %d, such as %s, %s"
        )
        log.warning(text, path, len(left_out), printable(name), printable(other))
    return [file is None or file.name not in left_out for _, file in dataset_rows]


def regular(file: Path, folder: Path) -> Path:
    """Return `file` after following links. Raises UserError if it is not a regular file below `folder`."""
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
    """Return the folder and the path of a file that a row names. Raises UserError if it is in none of the folders."""
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
    folder, file = next((candidate for candidate in inside if os.path.lexists(candidate[1])), inside[0])
    if os.path.exists(file) and not os.path.isfile(file):
        raise UserError(f"{where} names {brief(said)}, which is not a regular file")
    return folder, file


def _size(file: Path) -> int:
    """Return the bytes of a file; -1 if there is none."""
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _told_apart(content: Any, names: Sequence[str], sizes: Sequence[int]) -> list[Held]:
    """Return the keys that distinguish photographs: name and size, and a hash of the bytes if these agree."""
    photographs = [*map(Held, names, sizes)]
    times = Counter(photographs)
    for row, photograph in enumerate(photographs):
        if times[photograph] > 1 and (held := content[row].as_buffer()) is not None:
            photographs[row] = photograph._replace(more=hashlib.sha256(held).digest())
        elif not photograph.name and photograph.size < 0:
            photographs[row] = photograph._replace(more=row)
    return photographs


def _titles(held: Sequence[Held]) -> list[str]:
    """Return the name of the photograph of each row; different photographs have different names."""
    first: dict[Held, int] = {}
    for row, photograph in enumerate(held):
        first.setdefault(photograph, row)
    plain = {photograph: PurePosixPath(photograph.name).name for photograph in first}
    files, paths = Counter(plain.values()), Counter(photograph.name for photograph in first)
    titles = {}
    for photograph in first:
        if photograph.name and files[plain[photograph]] == 1:
            titles[photograph] = plain[photograph]
        elif photograph.name and paths[photograph.name] == 1:
            titles[photograph] = photograph.name
    taken = {*titles.values()}
    for photograph, row in first.items():
        if photograph not in titles:
            number = f"{row:06}"
            while number in taken:
                number += "_"
            titles[photograph] = number
    return [titles[photograph] for photograph in held]


def _below(name: str) -> str:
    """Convert a name to the relative path of a file."""
    segments = re.split(r"[/\\]", " ".join(name.split()))
    return (
        "/".join(segment for segment in segments if segment.strip(". ") and not segment.endswith(":")) or "photograph"
    )


def _read(where: str, content: Any, row: int, file: Path | None) -> bytes:
    """Return the bytes of the photograph of a row, or of the file that it names."""
    stored = content[row].as_py()
    if stored is not None:
        return stored
    if file is None:
        raise UserError(f"{where} has no photograph: neither bytes nor the path of a file")
    if os.path.exists(file) and not os.path.isfile(file):  # it was one when the table was read
        raise UserError(f"{file} is not a regular file")
    return contents(file)

"""Records about images, CSV whose first row names the columns or JSON lines of objects, and the splits of images."""

import csv
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from vision_attn.system.files import brief, read_json

TABLES = (".csv", ".tsv")
"""Endings of files with a row for each record."""
Records = list[tuple[str, dict[str, Any]]]
"""Each record, and where it is, for messages."""


def read_records(path: Path, *columns: str) -> Records:
    """Read the records of a file; each of them may also have a `split`. Raises ValueError naming the file and, if one
    is wrong, the record: no CSV in UTF-8, not all `columns` in its first row, more fields than columns, no object."""
    return _csv(path, columns) if path.suffix.lower() in TABLES else _json(path, columns)


def hashed_split(name: str) -> str:
    """The split of an image by a hash of its name, a tenth for testing and a tenth for validation: images keep theirs
    when others are added."""
    tenth = int.from_bytes(sha256(name.encode(errors="surrogateescape")).digest()[:4], "big") % 10
    return {0: "test", 1: "val"}.get(tenth, "train")


def divided(names: Sequence[str]) -> list[str]:
    """A split for each image, by `hashed_split`. Of three images or more, each split has one."""
    splits = [hashed_split(name) for name in names]
    for split in ("val", "test"):
        if split not in splits and splits.count("train") > 1:  # of few images, chance may give it none
            splits[len(splits) - 1 - splits[::-1].index("train")] = split
    return splits


def split_named(name: Any) -> Any:
    """The split that a word names, in any case; "validation" is val. Other values are returned as they are."""
    if not isinstance(name, str):
        return name
    word = name.strip().lower()
    return {"validation": "val", "valid": "val"}.get(word, word)


def check_inside(where: str, name: str, folder: Path) -> None:
    """Raise ValueError naming the record if the name of an image leads out of the folder of images."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"{where}: image {brief(name)} must be the name of a file in {folder}")


def _csv(path: Path, columns: tuple[str, ...]) -> Records:
    """Records of a file with commas, or with semicolons or tabs, as spreadsheets write them. Names of columns may have
    capitals; empty rows are left out."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.DictReader(file, delimiter=_delimiter(first, columns), strict=True)
            found = reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
            records = [(f"{path}: line {reader.line_num}", record) for record in reader if any(record.values())]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8, as which a spreadsheet can save it: {error}") from error
    except (OSError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as CSV: {error}") from error
    if not set(columns) <= set(found):
        wanted = " and ".join(f'"{name}"' for name in columns)
        first = brief(", ".join(found))
        raise ValueError(f'{path}: the first row must name the columns {wanted}, and may name "split"; it is {first}')
    for where, record in records:
        if None in record:  # where csv puts what no column takes
            raise ValueError(
                f"{where}: more fields than columns: a {columns[-1]} with a comma needs quotation marks around it"
            )
    return records


def _delimiter(first: str, columns: tuple[str, ...]) -> str:
    """What separates the fields of a file with this first row."""
    for delimiter in ";\t":
        if set(columns) <= {name.strip().strip('"').lower() for name in first.split(delimiter)}:
            return delimiter
    return ","


def _json(path: Path, columns: tuple[str, ...]) -> Records:
    content = read_json(path, lines=True)
    records = content if isinstance(content, list) else [content]
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise ValueError(f"{path}: record {number} is {brief(record)}, not an object with {' and '.join(columns)}")
    return [(f"{path}: record {number}", record) for number, record in enumerate(records, start=1)]

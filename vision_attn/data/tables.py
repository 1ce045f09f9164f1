"""Tables in text files: CSV, TSV and other separators, with or without a row that names the columns."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.data.films.decode import ENDINGS as FILM_ENDINGS
from vision_attn.data.images.open import ENDINGS
from vision_attn.system.files import brief
from vision_attn.system.splits import SPLITS, UNSPLIT, split_named

SEPARATORS = {",": "CSV", ";": "semicolon-separated text", "\t": "TSV", "|": "|-separated text"}
ALIASES = {
    "image": (
        "image", "file_name", "filename", "image_name", "image_file", "image_path", "file", "path", "file_path",
        "filepath", "img", "img_name", "photo", "photograph", "video", "video_id", "videoid", "clip",
        "name", "image_id",
    ),
    "caption": ("caption", "captions", "text", "sentence", "sentences", "comment", "description", "raw", "encap"),
    "split": ("split", "subset", "partition"),
}  # fmt: skip
"""The names under which data sets have a column, the likeliest first."""
FREE = ("caption", "text")
"""Columns of free text: of a row with more fields than columns, they take those in excess."""
_NAMED = "|".join(map(re.escape, sorted(ENDINGS | FILM_ENDINGS)))
IMAGE = re.compile(rf"(https?://.*|[^\t|]*(?:{_NAMED})(?:\.\d+)?(?:#\d+)?)", re.IGNORECASE)
"""A file name or an address of a photograph or a film. Flickr8k's and Flickr30k's files number captions: `a.jpg#0`."""
SAMPLE = 100
"""Rows from which columns without a name are recognised."""
LONGEST_ROW = 100
"""Lines of a row, whose quoted fields may have line breaks."""


class Layout(NamedTuple):
    """How the rows of a table are to be read."""

    shape: str
    separator: str
    names: list[str]
    """Of all columns; "" where they have none."""
    places: dict[str, list[int]]
    """The columns that hold what is wanted, counted from 0. Captions may stand in several."""
    header: bool
    numbered: bool = False
    """Whether names of images are followed by the number of the caption, `a.jpg#0`."""

    def record(self, fields: list[str]) -> dict[str, Any]:
        """The fields of a row by the names of their columns, and those that are wanted; None: the row ends before."""
        record: dict[str, Any] = dict(zip(self.names, fields, strict=False))
        for column, places in self.places.items():
            found = [fields[place] for place in places if place < len(fields)]
            record[column] = None if not found else found[0] if len(places) == 1 else [*filter(None, found)]
        if self.numbered and record["image"]:
            record["image"] = re.sub(r"#\d+$", "", record["image"])
        return record


class Table(NamedTuple):
    """The records of a table."""

    shape: str
    rows: list[tuple[int, dict[str, Any]]]
    """The line, counted from 1, and the fields by the names of their columns, and of those that are wanted."""
    short: list[int]
    """Lines that lack a column, and are left out."""


def read_table(path: Path, text: str, columns: Sequence[str], named: Mapping[str, str | int]) -> Table:
    """Read the records of a table that has `columns` and may have a `split`.

    named: for columns that are not recognised, their names in the table or, counted from 1, their numbers.

    Raises ValueError naming the file, the line and what to do.
    """
    lines = text.split("\n")
    layout = _by_header(lines, columns, named) or _by_content(path, lines, columns, named)
    if layout is None:
        raise ValueError(_unknown(path, lines, columns))
    width = len(layout.names)
    free = layout.places[columns[-1]][-1] if columns[-1] in FREE else None
    rows: list[tuple[int, dict[str, Any]]] = []
    short = []
    for line, fields in islice(_rows(lines, layout.separator), int(layout.header), None):
        while len(fields) > width and not fields[-1].strip():
            fields.pop()
        if (excess := len(fields) - width) > 0:
            if free is None:
                raise ValueError(
                    f"{path}: line {line}: more fields than columns: a {columns[-1]} with a comma needs quotation "
                    "marks around it"
                )
            fields[free : free + excess + 1] = [layout.separator.join(fields[free : free + excess + 1])]
        record = layout.record([field.strip() for field in fields])
        if free is not None and any(record[column] is None for column in columns):
            short.append(line)
        else:
            rows.append((line, record))
    if short and len(short) >= len(rows):
        raise ValueError(f"{path}: line {short[0]} has fewer columns than {' and '.join(columns)}: {layout.shape}?")
    return Table(layout.shape, rows, short)


def places_of(names: Sequence[str], columns: Sequence[str], named: Mapping[str, str | int]) -> dict[str, list[int]]:
    """Where `columns`, and a split, are among these names, as far as they are. Of captions, all columns whose names
    differ in a number at the end: `caption_1`, `caption_2`."""
    plain = [_plain(name) for name in names]
    stems = [re.sub(r"[ _]?\d+$", "", name) for name in plain]
    places: dict[str, list[int]] = {}
    for column in (*columns, "split"):
        known = [_plain(named[column])] if column in named else ALIASES.get(column, (column,))
        stated = stems if column == "caption" and column not in named else plain
        alias = next((alias for alias in known if alias in stated), None)
        found = [place for place, name in enumerate(stated) if name == alias]
        if found:
            places[column] = found if stated is stems else found[:1]
    return places


def _plain(name: Any) -> str:
    """The name of a column without capitals, and with underscores between its words."""
    return re.sub(r"[\s-]+", "_", str(name).strip().lower())


def _by_header(lines: list[str], columns: Sequence[str], named: Mapping[str, str | int]) -> Layout | None:
    """The layout of a table whose first row names the columns."""
    for separator, shape in SEPARATORS.items():
        _, names = next(_rows(lines, separator), (0, []))
        if {*columns, *named} <= (places := places_of(names, columns, named)).keys():
            return Layout(f"{shape} with a header", separator, [*map(_plain, names)], places, True)
    return None


def _by_content(path: Path, lines: list[str], columns: Sequence[str], named: Mapping[str, str | int]) -> Layout | None:
    """The layout of a table of photographs and free text whose columns have no known names, or numbers for names."""
    free = columns[-1]
    for separator, shape in reversed(SEPARATORS.items() if free in FREE else ()):
        sample = [fields for _, fields in islice(_rows(lines, separator), SAMPLE)]
        width = min(map(len, sample), default=0)
        kinds = [_kind([row[place] for row in sample[1:] or sample], free) for place in range(width)]
        merged = separator in ",;"  # captions may have commas without quotation marks
        for column, number in named.items():
            if str(number).isdecimal() and 1 <= (place := int(number)) <= width:
                others = (
                    kinds[place:] if merged and column == free else [_other(kind, column) for kind in kinds[place:]]
                )
                kinds = [*(_other(kind, column) for kind in kinds[: place - 1]), column, *others]
        if "image" not in kinds or free not in kinds:
            continue
        image = kinds.index("image")
        header = "image" == _kind([sample[-1][image]], free) != _kind([sample[0][image]], free)
        if merged and not header:
            kinds = [kind for kind, several in groupby(kinds) for _ in ([1] if kind == free else several)]
        places = {
            column: found
            for column in (*columns, "split")
            if (found := [place for place, kind in enumerate(kinds) if kind == column])
        }
        for column, found in places.items():
            if len(found) > 1:
                numbers = " and ".join(str(place + 1) for place in found)
                raise ValueError(
                    f"{path}: columns {numbers} may each be the {column}: name one in the first row, or by its number, "
                    f"--data.columns.{column}={found[0] + 1}"
                )
        if numbered := all(re.search(r"#\d+$", row[image]) for row in sample[header:]):
            shape = f"{shape} of NAME#NUMBER and {free}"
        names = [*map(_plain, sample[0])] if header else [""] * len(kinds)
        return Layout(f"{shape} with{'' if header else 'out'} a header", separator, names, places, header, numbered)
    return None


def _other(kind: str, column: str) -> str:
    return "other" if kind == column else kind


def _kind(cells: list[str], free: str) -> str:
    """What a column holds: image, split, other, or free text."""
    cells = [cell.strip() for cell in cells]
    if sum(bool(IMAGE.fullmatch(cell)) for cell in cells) >= 0.8 * len(cells):
        return "image"
    if all(split_named(cell) in (*SPLITS, *UNSPLIT) for cell in cells):
        return "split"
    return "other" if all(re.fullmatch(r"[\d.,-]*", cell) for cell in cells) else free


def _unknown(path: Path, lines: list[str], columns: Sequence[str]) -> str:
    """The message for a table whose columns are not recognised."""
    wanted = " and ".join(f'"{name}"' for name in columns)
    line, first = next(((number, line) for number, line in enumerate(lines, start=1) if line.strip()), (1, ""))
    hint = "; or name them: --data.columns.image=NAME --data.columns.caption=NAME, or their numbers, as image=1"
    hint = hint if columns[-1] == "caption" else ""
    return (
        f'{path}: the first row must name the columns {wanted}, and may name "split"{hint}; line {line} is '
        f"{brief(first)}"
    )


def _rows(lines: list[str], separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line of each row that is not empty, counted from 1, and its fields."""
    number = 0
    while number < len(lines):
        fields, size = _row(lines, number, separator)
        if any(map(str.strip, fields)):
            yield number + 1, fields
        number += size


def _row(lines: list[str], number: int, separator: str) -> tuple[list[str], int]:
    """The fields of the row that begins at a line, and its number of lines. A quoted field may hold separators and line
    breaks; quotation marks that do not enclose a field are text."""
    first = lines[number]
    spaced = f'{separator} "' in first
    for size in range(1, LONGEST_ROW + 1 if '"' in first else 1):
        part = lines[number : number + size]
        if size > 1 and (len(part) < size or _starts_row(part[-1], separator)):
            break
        if '"' in part[-1]:
            try:
                (fields,) = csv.reader(["\n".join(part)], delimiter=separator, skipinitialspace=spaced, strict=True)
                return fields, size
            except csv.Error as error:
                if "unexpected end" not in str(error):
                    break
    return first.split(separator), 1


def _starts_row(line: str, separator: str) -> bool:
    fields = line.split(separator)
    return len(fields) > 1 and any(IMAGE.fullmatch(field.strip()) for field in fields)

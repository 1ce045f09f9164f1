"""Read tables from text files: CSV, TSV or other separators, with or without a header."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.data.films.decode import ENDINGS as FILM_ENDINGS
from vision_attn.data.images.open import ENDINGS
from vision_attn.data.table_rows import rows_of
from vision_attn.system.errors import UserError
from vision_attn.system.files import brief
from vision_attn.system.splits import SPLITS, UNSPLIT, split_named

SEPARATORS = {",": "CSV", ";": "semicolon-separated text", "\t": "TSV", "|": "|-separated text"}
ALIASES = {
    "image": (
        "image", "file_name", "filename", "image_name", "image_file", "image_path", "file", "path", "file_path",
        "filepath", "img", "img_name", "photo", "photograph", "video", "video_id", "videoid", "clip",
        "images", "image_paths", "file_names", "filenames", "name", "image_id",
    ),
    "caption": (
        "caption", "captions", "text", "sentence", "sentences", "comment", "description", "raw", "report", "findings",
        "impression", "encap",
    ),
    "split": ("split", "subset", "partition"),
}  # fmt: skip
"""The names that data sets use for a column, the likeliest first."""
FREE = ("caption", "text")
"""Columns of free text. If a row has more fields than columns, the excess fields are joined to this column."""
_NAMED = "|".join(map(re.escape, sorted(ENDINGS | FILM_ENDINGS)))
IMAGE = re.compile(rf"(https?://.*|[^\t|]*(?:{_NAMED})(?:\.\d+)?(?:#\d+)?)", re.IGNORECASE)
"""Matches a file name or an address of a photograph or a film. Flickr8k's and Flickr30k's files number captions:
`a.jpg#0`."""
SAMPLE = 100
"""The number of rows from which columns without a name are recognised."""
SHOWN = 30
"""The largest number of names of columns in a message."""
log = logging.getLogger(__name__)


class TableLayout(NamedTuple):
    """The layout of a table: its separator, its columns, and the places of the wanted columns."""

    shape: str
    separator: str
    names: list[str]
    """The names of all columns; "" for a column without one."""
    places: dict[str, list[int]]
    """The numbers of the wanted columns, counted from 0. Captions may be in several columns."""
    header: bool
    numbered: bool = False
    """Whether the number of the caption follows the name of an image, as in `a.jpg#0`."""

    def record(self, fields: list[str]) -> dict[str, Any]:
        """Return the fields of a row by the names of the columns and by the names of the wanted columns; None if the
        row is too short."""
        record: dict[str, Any] = dict(zip(self.names, fields, strict=False))
        for column, places in self.places.items():
            cells = [fields[place] for place in places if place < len(fields)]
            record[column] = None if not cells else cells[0] if len(places) == 1 else [*filter(None, cells)]
        if self.numbered and record["image"]:
            record["image"] = re.sub(r"#\d+$", "", record["image"])
        return record


class Table(NamedTuple):
    """The records of a table."""

    shape: str
    table_rows: list[tuple[int, dict[str, Any]]]
    """The line of each record, counted from 1, and its fields; see `TableLayout.record`."""
    short: list[int]
    """The numbers of lines that lack a column and are left out."""


def read_table(path: Path, text: str, columns: Sequence[str], named: Mapping[str, str | int]) -> Table:
    """Read the records of a table that has `columns` and may have a `split`.

    columns: the wanted columns, such as image and caption.
    named: for wanted columns that are not recognised, their names in the table or their numbers, counted from 1.

    Raises UserError naming the file, the line and what to do.
    """
    try:
        layout = _by_header(text, columns, named) or _by_content(text, columns, named)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    if layout is None:
        raise UserError(_unknown(path, text, columns, named))
    width = len(layout.names)
    free = layout.places[columns[-1]][-1] if columns[-1] in FREE else None
    table_rows: list[tuple[int, dict[str, Any]]] = []
    short, torn = [], []
    for line, fields in islice(rows_of(text, layout.separator), int(layout.header), None):
        while len(fields) > width and not fields[-1].strip():
            fields.pop()
        if (excess := len(fields) - width) > 0:
            if free is None:
                raise UserError(
                    f"{path}: line {line}: more fields than columns: a {columns[-1]} with a comma needs quotation "
                    "marks around it"
                )
            fields[free : free + excess + 1] = [layout.separator.join(fields[free : free + excess + 1])]
        torn += [line] * any(_reads_as_rows(field, layout.separator) for field in fields)
        record = layout.record([field.strip() for field in fields])
        if free is not None and any(record[column] is None for column in columns):
            short.append(line)
        else:
            table_rows.append((line, record))
    if short and len(short) >= len(table_rows):
        raise UserError(f"{path}: line {short[0]} has fewer columns than {' and '.join(columns)}: {layout.shape}?")
    if torn:
        log.warning(
            "%s: fields in quotation marks whose lines read like rows: %d, such as that of line %d: is a mark missing?",
            path, len(torn), torn[0],
        )  # fmt: skip
    return Table(layout.shape, table_rows, short)


def places_of(names: Sequence[str], columns: Sequence[str], named: Mapping[str, str | int]) -> dict[str, list[int]]:
    """Return the numbers of the wanted columns, and of a split, among the names of all columns. Captions may have
    several columns, whose names differ in a number at the end: `caption_1`, `caption_2`.

    Raises UserError if `named` gives a column two meanings.
    """
    plain = [_plain(name) for name in names]
    stems = [_unnumbered(name) for name in plain]
    places: dict[str, list[int]] = {}
    for column in (*columns, "split"):
        if column in named:
            if _plain(named[column]) in plain:
                places[column] = [plain.index(_plain(named[column]))]
            continue
        stated = stems if column == "caption" else plain
        alias = next((alias for alias in ALIASES.get(column, (column,)) if alias in stated), None)
        matches = [place for place, name in enumerate(stated) if name == alias]
        if matches:
            places[column] = matches if stated is stems else matches[:1]
    _check_apart(places, named, names)
    return places


def _check_apart(places: Mapping[str, Sequence[int]], named: Mapping[str, str | int], names: Iterable[Any]) -> None:
    """Raise UserError if a column that `named` gives for one purpose is found for another purpose, too."""
    for column in named.keys() & places.keys():
        for other in places.keys() - {column}:
            if places[column][0] in places[other]:
                raise UserError(
                    f"data.columns.{column} names {brief(named[column])}, which is the column of the {other}: name "
                    f"another of {_listed(names)}, or name that of the {other} too"
                )


def absent(where: str, column: str, name: str | int, names: Iterable[Any]) -> UserError:
    """Return the error for a column that `data.columns` names but that does not exist."""
    return UserError(f"{where} has no column {brief(name)}, as data.columns.{column} says, but {_listed(names)}")


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(str(name)[:60] for name in islice(names, SHOWN))


def _unnumbered(name: str) -> str:
    """Remove the number at the end of a name. A regular expression would take a minute for 40,000 digits."""
    stem = name.rstrip("0123456789")
    return stem.removesuffix("_") if stem != name else name


def _plain(name: Any) -> str:
    """Return the name of a column without capitals, and with underscores between its words."""
    return re.sub(r"[\s-]+", "_", str(name).strip().lower())


def _by_header(text: str, columns: Sequence[str], named: Mapping[str, str | int]) -> TableLayout | None:
    """Return the layout of a table whose first row names the columns."""
    for separator, shape in SEPARATORS.items():
        _, names = next(rows_of(text, separator), (0, []))
        names = [*map(_plain, names)]
        given = {column: [place] for column in named if (place := _place(named[column], names, len(names))) is not None}
        places = places_of(names, columns, {}) | given
        said = places.keys() - {column for column in given if _plain(named[column]) not in names}
        if said and {*columns, *named} <= places.keys() and given.keys() == named.keys():
            _check_apart(places, named, names)
            return TableLayout(f"{shape} with a header", separator, names, places, True)
    return None


def _by_content(text: str, columns: Sequence[str], named: Mapping[str, str | int]) -> TableLayout | None:
    """Return the layout of a table of photographs and free text by the contents of its columns, if it has no header
    with known names. Columns in `named` are found by their name in the first row, or by their number."""
    free = columns[-1]
    for separator, shape in reversed(SEPARATORS.items() if free in FREE else ()):
        sample = [fields for _, fields in islice(rows_of(text, separator), SAMPLE)]
        width = min(map(len, sample), default=0)
        first = [*map(_plain, sample[0])] if sample else []
        given = {column: place for column in named if (place := _place(named[column], first, width)) is not None}
        if given.keys() != named.keys():
            continue
        contents = [_content_of([row[place] for row in sample[1:] or sample], free) for place in range(width)]
        image = given.get("image", contents.index("image") if "image" in contents else None)
        if image is None:
            continue
        header = any(_plain(name) in first for name in named.values()) or (
            "image" == _content_of([sample[-1][image]], free) != _content_of([sample[0][image]], free)
        )
        merged = separator in ",;" and not header  # captions may have commas without quotation marks
        for column, place in given.items():
            end = place if merged and column == free else width  # what follows a caption may be a part of it
            contents[:end] = ["other" if content == column else content for content in contents[:end]]
        for column, place in given.items():
            contents[place] = column
        _check_apart({column: [place] for column, place in given.items()}, named, first)
        if "image" not in contents or free not in contents:
            continue
        if merged:
            contents = [
                content for content, several in groupby(contents) for _ in ([1] if content == free else several)
            ]
        places = _places_by_content(contents, columns)
        if numbered := all(re.search(r"#\d+$", row[image]) for row in sample[header:]):
            shape = f"{shape} of NAME#NUMBER and {free}"
        names = first if header else [""] * len(contents)
        return TableLayout(
            f"{shape} with{'' if header else 'out'} a header", separator, names, places, header, numbered
        )
    return None


def _places_by_content(contents: Sequence[str], columns: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of the wanted columns.

    contents: the kind of content of each column; see `_content_of`.

    Raises UserError if several columns fit one purpose.
    """
    places = {}
    for column in (*columns, "split"):
        candidates = [place for place, content in enumerate(contents) if content == column]
        if len(candidates) > 1:
            numbers = " and ".join(str(place + 1) for place in candidates)
            raise UserError(
                f"columns {numbers} may each be the {column}: name one in the first row, or by its number, "
                f"--data.columns.{column}={candidates[0] + 1}"
            )
        if candidates:
            places[column] = candidates
    return places


def _place(name: str | int, first: Sequence[str], width: int) -> int | None:
    """Return the number of the column with this name in the first row, or with this number, counted from 1; None if
    there is none."""
    if _plain(name) in first[:width]:
        return first.index(_plain(name))
    number = int(name) if str(name).isdecimal() and len(str(name)) < 10 else 0
    return number - 1 if 1 <= number <= width else None


def _content_of(cells: list[str], free: str) -> str:
    """Recognise the content of a column: "image", "split", "other", or free text (`free`)."""
    cells = [cell.strip() for cell in cells]
    if sum(bool(IMAGE.fullmatch(cell)) for cell in cells) >= 0.8 * len(cells):
        return "image"
    if all(split_named(cell) in (*SPLITS, *UNSPLIT) for cell in cells):
        return "split"
    return "other" if all(re.fullmatch(r"[\d.,-]*", cell) for cell in cells) else free


def _unknown(path: Path, text: str, columns: Sequence[str], named: Mapping[str, str | int]) -> str:
    """Return the message for a table whose columns are not recognised."""
    first_rows = [next(rows_of(text, separator), (1, [""]))[1] for separator in SEPARATORS]
    first = max(first_rows, key=len)
    for column, name in named.items():
        if _place(name, [*map(_plain, first)], len(first)) is None:
            return str(absent(str(path), column, name, first))
    wanted = " and ".join(f'"{name}"' for name in columns)
    start = text[: len(text) - len(text.lstrip())].count("\n")
    line = next(iter(text.lstrip().split("\n", 1)))
    hint = "; or name them: --data.columns.image=NAME --data.columns.caption=NAME, or their numbers, as image=1"
    hint = hint if columns[-1] == "caption" else ""
    return (
        f'{path}: the first row must name the columns {wanted}, and may name "split"{hint}; line {start + 1} is '
        f"{brief(line)}"
    )


def _reads_as_rows(field: str, separator: str) -> bool:
    """Return whether a field has two or more further lines that all look like rows."""
    lines = field.split("\n")[1:]
    return len(lines) > 1 and all(_starts_row(line, separator) for line in lines)


def _starts_row(line: str, separator: str) -> bool:
    fields = line.split(separator)
    return len(fields) > 1 and any(IMAGE.fullmatch(field.strip()) for field in fields)

"""Read records about images from a table, JSON, JSON lines, Parquet or Arrow, recognised by content; choose splits for
images without one."""

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.data.tables import absent, places_of, read_table
from vision_attn.data.text_encoding import read_text
from vision_attn.system.console import printable, reason_of
from vision_attn.system.errors import UserError
from vision_attn.system.files import brief, parse_json

log = logging.getLogger(__name__)
MAGIC = {b"PAR1": "Parquet", b"ARROW1": "Arrow", b"\xff\xff\xff\xff": "Arrow stream"}
"""The first bytes of files with columns."""


MOST_ROWS, MOST_BYTES = 20_000_000, 2 * 10**9
"""The largest number of rows, and of bytes of the columns that are read, in a Parquet or Arrow file. The largest data
sets of captions fit."""


class Content(NamedTuple):
    """The content of a file: a value of JSON, a list of records, or the text of a table."""

    shape: str
    value: Any


class Records(NamedTuple):
    """The records of a file."""

    shape: str
    records: list[tuple[str, dict[str, Any]]]
    """Each record with its place in the file, for messages."""
    short: list[int]
    """Lines of a table that lack a column, and are left out."""


def read_content(path: Path) -> Content:
    """Read a file in the format that its content shows. Raises UserError naming the file if it cannot be read."""
    try:
        with open(path, "rb") as file:
            first = file.read(8)
    except (OSError, ValueError) as error:  # UserError: a name that no file can have
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if shape := next((shape for magic, shape in MAGIC.items() if first.startswith(magic)), None):
        return Content(shape, _columnar(path, shape))
    text = read_text(path)
    if not (stripped := text.lstrip()):
        raise UserError(f"{path} is empty")
    if stripped[0] not in "{[":
        return Content("table", text)
    value = parse_json(path, text, lines=True)
    lines = isinstance(value, list) and stripped[0] == "{"
    return Content("JSON lines" if lines else "JSON", value)


def read_records(
    path: Path, *columns: str, named: Mapping[str, str | int] | None = None, content: Content | None = None
) -> Records:
    """Read records that each have `columns` and may have a `split`. Other names of these columns that data sets use are
    recognised, too.

    named: the names of columns that are not recognised.
    content: the result of `read_content`, if the file has been read already.

    Raises UserError naming the file and the record that is wrong.
    """
    shape, value = content or read_content(path)
    named = named or {}
    check_purposes(named, columns)
    if shape == "table":
        table = read_table(path, value, columns, named)
        return Records(table.shape, [(f"{path}: line {line}", row) for line, row in table.table_rows], table.short)
    records = value if isinstance(value, list) else [value]
    located = []
    known: dict[tuple[str, ...], dict[str, list[int]]] = {}
    for number, record in enumerate(records, start=1):
        where = f"{path}: record {number}"
        if not isinstance(record, dict):
            raise UserError(f"{where} is {brief(record)}, not an object with {' and '.join(columns)}")
        keys = tuple(record)
        if keys not in known:
            try:
                known[keys] = places_of(keys, columns, named)
            except UserError as error:
                raise UserError(f"{where}: {error}") from error
        fields = {column: [record[keys[place]] for place in places] for column, places in known[keys].items()}
        nothing = dict.fromkeys(named.keys() - fields.keys())  # rather than what else has that key
        located.append(
            (where, record | nothing | {key: values if values[1:] else values[0] for key, values in fields.items()})
        )
    for column in named:
        if located and not any(column in places for places in known.values()):
            raise absent(str(path), column, named[column], dict.fromkeys(chain.from_iterable(known)))
    return Records(shape, located, [])


def check_purposes(named: Mapping[str, str | int], columns: Sequence[str]) -> None:
    """Raise UserError if `named` has a key other than `columns` and "split"."""
    if unknown := named.keys() - {*columns, "split"}:
        raise UserError(f"columns can be named for {', '.join((*columns, 'split'))}, not {', '.join(sorted(unknown))}")


def _columnar(path: Path, shape: str) -> list[dict[str, Any]]:
    """Return the rows of a Parquet or an Arrow file, without columns of bytes, such as photographs."""
    try:
        import pyarrow
        from pyarrow import ipc, parquet
    except ImportError as error:
        raise UserError(f"{path} is a {shape} file, which needs pyarrow: pip install 'vision-attn[scale]'") from error
    try:
        with open(path, "rb") as file:  # not by its name, which could be that of another file system
            if shape == "Parquet":
                opened = parquet.ParquetFile(file)
                names, kept = opened.schema_arrow.names, _without_bytes(opened.schema_arrow)
                _check_size(path, opened.metadata.num_rows, 0)
                table = _limited(path, opened.schema_arrow, kept, opened.iter_batches(256, columns=kept))
            else:
                mapped = pyarrow.memory_map(str(path))
                opened = (ipc.open_file if shape == "Arrow" else ipc.open_stream)(mapped)
                names, kept = opened.schema.names, _without_bytes(opened.schema)
                table = _limited(path, opened.schema, kept, _batches(opened))
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # of the names of columns
        raise UserError(f"{path} is not a readable {shape} file: {reason_of(error)}") from error
    if not places_of(kept, ["image"], {}) and places_of(names, ["image"], {}):
        raise UserError(
            f"{path} holds the photographs themselves, not their names, and {shape} files of that kind are not read: "
            "write Parquet, or save it with the library datasets (`save_to_disk`)"
        )
    return values_of(path, table)


def values_of(path: Path, table: Any) -> list[Any]:
    """Return the rows of a table of pyarrow, or the values of a column. Raises UserError naming the file for a value
    that Python cannot represent, such as a time after the year 9999."""
    try:
        return table.to_pylist()
    except Exception as error:  # what is raised depends on the type of the column
        raise UserError(f"{path} holds a value that cannot be read: {reason_of(error)}") from error


def _without_bytes(schema: Any) -> list[str]:
    return [field.name for field in schema if "binary" not in str(field.type)]


def _batches(opened: Any) -> Iterator[Any]:
    """Yield the batches of an Arrow file or of an Arrow stream."""
    if hasattr(opened, "num_record_batches"):
        return map(opened.get_batch, range(opened.num_record_batches))
    return iter(opened)


def _limited(path: Path, schema: Any, kept: Sequence[str], batches: Iterable[Any]) -> Any:
    """Read some columns of batches into a table, within limits, since a small file may declare any number of rows of
    any length."""
    from pyarrow import Table
    from pyarrow import schema as schema_of

    selected, num_rows, size = [], 0, 0
    for batch in batches:
        columns = batch.select(kept)
        columns.validate(full=True)  # a place beyond the end of the file would kill the process
        num_rows, size = num_rows + columns.num_rows, size + columns.nbytes
        _check_size(path, num_rows, size)
        selected.append(columns)
    return Table.from_batches(selected, schema_of([schema.field(name) for name in kept]))


def _check_size(path: Path, num_rows: int, size: int) -> None:
    if num_rows > MOST_ROWS or size > MOST_BYTES:
        raise UserError(f"{path} has more than {MOST_ROWS:,} rows, or more than {MOST_BYTES / 1e9:.0f} GB of text")


def hashed_split(name: str) -> str:
    """Return the split of an image by a hash of its name, a tenth for testing and a tenth for validation. Images keep
    their split when others are added."""
    try:
        content = name.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # half a character of UTF-16, which no file has in its name, and so is left out later
        content = name.encode(errors="surrogatepass")
    tenth = int.from_bytes(sha256(content).digest()[:4], "big") % 10
    return {0: "test", 1: "val"}.get(tenth, "train")


def divided(names: Sequence[str]) -> list[str]:
    """Return a split for each image, by `hashed_split`. With three images or more, each split has at least one."""
    splits = [hashed_split(name) for name in names]
    for split in ("val", "test"):
        if split not in splits and splits.count("train") > 1:  # of few images, chance may give it none
            splits[len(splits) - 1 - splits[::-1].index("train")] = split
    return splits


def with_endings(folder: Path, names: Iterable[str], endings: Collection[str]) -> dict[str, str]:
    """Complete names without an ending to the only file with that stem in a folder. Return the completed name of each;
    the caller logs them by `say_endings`.

    Raises UserError naming both files if two have the same stem.
    """
    listed: dict[str, dict[str, list[str]]] = {}
    completed: dict[str, str] = {}
    for name in names:
        if os.path.splitext(name)[1].lower() in endings:
            continue
        parent, stem = os.path.split(name)
        if parent not in listed:
            listed[parent] = _by_stem(folder / parent, endings)
        if several := listed[parent].get(stem):
            if len(several) > 1:
                raise UserError(
                    f"{brief(name)} may be {several[0]} or {several[1]} in {folder / parent}: write its ending"
                )
            completed[name] = os.path.join(parent, several[0])
    return completed


def say_endings(completed: Mapping[str, str], what: str) -> None:
    """Log how many names `with_endings` has completed, if any.

    what: what the message calls the files.
    """
    if completed:
        name, file = next(iter(completed.items()))
        text = "names of %s without an ending, each taken as the only file of that name: %d, such as %s as %s"
        log.warning(text, what, len(completed), printable(name), printable(file))


def _by_stem(folder: Path, endings: Collection[str]) -> dict[str, list[str]]:
    """Return the names of the files in a folder by their stems."""
    by_stem: dict[str, list[str]] = {}
    with suppress(OSError, ValueError):  # of a folder that does not exist, or a name that is none
        for name in sorted(os.listdir(folder)):
            stem, ending = os.path.splitext(name)
            if ending.lower() in endings:
                by_stem.setdefault(stem, []).append(name)
    return by_stem


def plain_path(name: str) -> str:
    """Return the name of a file in normal form: `a.jpg` for `./a.jpg`, `b/a.jpg` for `b//a.jpg` and for `b/./a.jpg`."""
    return Path(name).as_posix()


def check_inside(where: str, name: str, folder: Path) -> None:
    """Raise UserError naming the record if the name of an image leads out of the image folder."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise UserError(f"{where}: image {brief(name)} must be the name of a file in {folder}")

"""Captioned photographs of Hugging Face's library `datasets`: a name on the hub, a folder of `save_to_disk`, or Parquet
and Arrow files that hold the photographs themselves.

The photographs stay in the library's memory-mapped files, and each is read when it is needed. The library turns Parquet
into such files once, in a cache of its own (HF_DATASETS_CACHE). Needs the extra `[hub]`.
"""

import hashlib
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from os.path import isdir, isfile  # a name that is too long is no error for them
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from vision_attn.data.images.open import Encoded
from vision_attn.data.photographs.caption_values import marks_in
from vision_attn.data.tables import places_of
from vision_attn.system.console import reason_of
from vision_attn.system.files import contents, find
from vision_attn.system.splits import SPLITS, split_named

NAME = re.compile(r"hf:/+datasets/([\w.-]+/[\w.-]+?)(?:@([\w.-]+))?(?:/([\w.-]+))?")
"""USER/NAME, REVISION and SUBSET. With one slash too, as `Path` leaves it."""
SAVED = ("dataset_dict.json", "dataset_info.json")
"""Files that the library's `save_to_disk` writes."""
log = logging.getLogger(__name__)
PARQUET, ARROW = b"PAR1", b"\xff\xff\xff\xff"
"""The first bytes of files with columns that the library opens."""


class Row(NamedTuple):
    """What a row of a dataset says, with its photographs if the dataset holds them."""

    fields: dict[str, Any]
    """image (a name or a list of names), caption and, if the dataset says it, split and what marks a caption."""
    files: tuple[Encoded, ...]


def located(path: str | Path) -> Path:
    """The path of a file or a folder, see `system.files.find`; the name of a dataset on the hub as it is."""
    return Path(path) if NAME.fullmatch(str(path)) else find(path)


def is_dataset(path: Path) -> bool:
    """Whether this is the name of a dataset on the hub, a folder that the library saved, or a file or a folder of files
    with a column of photographs."""
    if NAME.fullmatch(str(path)) or any(isfile(path / name) for name in SAVED):
        return True
    return any(photographs_in(_schema(file), None) for file in _files(path)[:1])


def photographs_of(path: Path) -> list[Encoded]:
    """The photographs that a dataset holds, each once, also without captions. Raises ValueError if it cannot be opened,
    or holds none."""
    rows = read_rows(path, {}, download=True, needed=())
    files = {file.name: file for row in rows for file in row.files}
    if not files:
        raise ValueError(f"{path} holds no photographs")
    return [*files.values()]


def read_rows(
    path: Path, columns: Mapping[str, str | int], *, download: bool, needed: Sequence[str] = ("caption", "image")
) -> list[Row]:
    """The rows of all splits of a dataset. Rows of the same photograph have the same name.

    columns: the names of columns that are not recognised. `needed`: those that must be there; photographs that the
    dataset holds need no names. A row has the split of its column, or else the dataset's own one, if it has several.

    Raises ValueError, which says what to do, if the dataset cannot be opened or a column is missing.
    """
    tables = _tables(path, download)
    rows: list[Row] = []
    for own, table in tables.items():
        inside = photographs_in(table.schema, columns.get("image"))
        named = {key: name for key, name in columns.items() if name != inside}
        fields = _texts(path, table, named, [key for key in needed if not (inside and key == "image")])
        files: list[tuple[Encoded, ...]] = [()] * len(table)
        if inside:
            files = _of_rows(table.column(inside), fields.get("image"))
            if len(tables) > 1:  # photographs of two splits may have the same name
                files = [tuple(one._replace(name=f"{own}/{one.name}") for one in some) for some in files]
            fields["image"] = [some[0].name if len(some) == 1 else [one.name for one in some] for some in files]
        if len(tables) > 1:
            said = split_named(own)
            fields.setdefault("split", [said if said in (*SPLITS, "restval") else "unused"] * len(table))
        each = zip(*fields.values(), strict=True)
        found = [Row(dict(zip(fields, some, strict=True)), held) for some, held in zip(each, files, strict=True)]
        if inside and (empty := files.count(())):
            log.warning("%s: rows without a photograph, which are left out: %d", path, empty)
            found = [row for row in found if row.files]
        rows += found
    return rows


def _texts(path: Path, table: Any, named: Mapping[str, str | int], needed: Sequence[str]) -> dict[str, list[Any]]:
    """The columns image, caption and split of a table; "" where a row has none. Raises ValueError naming the columns
    that there are if a needed one is not recognised."""
    names = [field.name for field in table.schema if not _holds_bytes(field.type)]
    places = places_of(names, ("image", "caption"), named)
    for key in needed:
        if key not in places:
            raise ValueError(
                f"{path} has no column of {key}s that is recognised, but {', '.join(table.column_names[:30])}: "
                f"name one with --data.columns.{key}=NAME"
            )
    fields = {}
    for key, found in places.items():
        values = [["" if one is None else one for one in table.column(names[place]).to_pylist()] for place in found]
        fields[key] = values[0] if len(values) == 1 else [[*filter(None, row)] for row in zip(*values, strict=True)]
    return fields | {name: table.column(name).to_pylist() for name, _ in marks_in(tuple(names))}


def photographs_in(schema: Any, named: str | int | None) -> str | None:
    """The name of the column that holds photographs: bytes, or `{bytes, path}`; None if there is none."""
    held = {field.name: field.type for field in schema if _holds_bytes(field.type)}
    if named in held:
        return str(named)
    if found := places_of([*held], ("image",), {}).get("image"):
        return [*held][found[0]]
    images = [name for name, kind in held.items() if kind.num_fields]
    return images[0] if len(images) == 1 else None


def _holds_bytes(kind: Any) -> bool:
    parts = [kind.field(number) for number in range(kind.num_fields)] if str(kind).startswith("struct") else []
    return "binary" in str(kind) and (not parts or any(part.name == "bytes" for part in parts))


def _files(path: Path) -> list[Path]:
    """The files with columns at a path: the file, or those of a folder or of its folder `data`."""
    if isdir(path):
        return next(filter(None, (sorted(place.glob("*.parquet")) for place in (path, path / "data"))), [])
    if not isfile(path):
        return []
    with suppress(OSError), open(path, "rb") as file:
        return [path] if file.read(4) in (PARQUET, ARROW) else []
    return []


def _schema(file: Path) -> Any:
    """The columns of a file; none if it cannot be read, which shows where it is."""
    try:
        from pyarrow import ArrowException, ipc, memory_map, parquet
    except ImportError:
        return ()
    try:
        if _is_parquet(file):
            return parquet.read_schema(file)
        with memory_map(str(file)) as mapped:
            return ipc.open_stream(mapped).schema
    except (ArrowException, OSError):
        return ()


def _is_parquet(file: Path) -> bool:
    with open(file, "rb") as opened:
        return opened.read(4) == PARQUET


def _tables(path: Path, download: bool) -> dict[str, Any]:
    """The table of each split of a dataset, memory-mapped. Raises ValueError if it cannot be opened."""
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"{path} is a dataset, which needs the package datasets: pip install 'vision-attn[hub]'"
        ) from error
    if found := NAME.fullmatch(str(path)):
        name, revision, subset = found.groups()
        with _told(name, download), _offline(datasets.config, not download):
            opened = datasets.load_dataset(name, subset, revision=revision)
    else:
        try:
            opened = _local(datasets, path)
        except Exception as error:  # a damaged file can make the library raise almost anything
            raise ValueError(f"{path} is not a dataset that can be read: {reason_of(error)}") from error
    parts = opened if isinstance(opened, dict) else {"": opened}
    return {str(split): part.with_format("arrow")[:] for split, part in parts.items() if len(part)}


def _local(datasets: Any, path: Path) -> Any:
    files = _files(path)
    if not files:
        return datasets.load_from_disk(str(path))
    if not _is_parquet(files[0]):
        return datasets.Dataset.from_file(str(files[0]))
    splits: dict[str, list[str]] = {}
    for file in files:  # as the hub names them: train-00000-of-00002.parquet
        said = re.split(r"[-.]", file.name)[0]
        splits.setdefault(said if split_named(said) in (*SPLITS, "restval") else "train", []).append(str(file))
    return datasets.load_dataset("parquet", data_files=splits)


@contextmanager
def _offline(config: Any, only: bool) -> Iterator[None]:
    """Within, the library takes nothing but its cache."""
    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = before or only
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before


@contextmanager
def _told(name: str, download: bool) -> Iterator[None]:
    """Within, what fails is a ValueError that says how a dataset of the hub comes here."""
    try:
        yield
    except Exception as error:  # of httpx, huggingface_hub or datasets
        short = name.split("/")[1]
        save = f"import datasets; datasets.load_dataset('{name}').save_to_disk('{short}')"
        raise ValueError(
            f"hf://datasets/{name} {'cannot be downloaded' if download else 'is not on this machine'} "
            f"({type(error).__name__}: {reason_of(error)}): "
            + ("" if download else "--data.download=true downloads it; or, ")
            + f'where there is a network, `python -c "{save}"` makes a folder {short}: copy it here, and name it: '
            f"--data.images={short}"
        ) from error


def _of_rows(column: Any, names: Sequence[Any] | None) -> list[tuple[Encoded, ...]]:
    """The photographs of each row of a column that holds one, or a list of them, in each row."""
    from pyarrow import compute

    if not str(column.type).startswith(("list", "large_list", "fixed_size_list")):
        return [(file,) for file in _encoded(column, names)]
    sizes = compute.fill_null(compute.list_value_length(column), 0).to_pylist()
    if names is not None and not any(isinstance(name, list) for name in names):
        names = [name for name, size in zip(names, sizes, strict=True) for _ in range(size)]
    else:
        names = None
    files = iter(_encoded(compute.list_flatten(column), names))
    return [tuple(islice(files, size)) for size in sizes]


def _encoded(column: Any, names: Sequence[Any] | None) -> list[Encoded]:
    """The photograph of each row of a column, under the names given, or else under the name of its file if that is
    unique, or else the number of the first row that holds it."""
    from pyarrow import compute

    struct = column.type.num_fields > 0
    content = compute.struct_field(column, "bytes") if struct else column
    keys = [part.name for part in column.type] if struct else []
    files = compute.struct_field(column, "path").to_pylist() if "path" in keys else [None] * len(column)
    sizes = compute.fill_null(compute.binary_length(content), -1).to_pylist()
    sizes = [_size(file) if size < 0 else size for size, file in zip(sizes, files, strict=True)]
    if names is None or len({*zip(names, sizes, strict=True)}) > len({*names}):  # a name of two photographs is none
        names = _named(content, files, sizes)
    return [
        Encoded(_below(str(name)), partial(_read, content, row, files[row]), sizes[row])
        for row, name in enumerate(names)
    ]


def _below(name: str) -> str:
    """A name as that of a file below some folder."""
    parts = re.split(r"[/\\]", " ".join(name.split()))
    return "/".join(part for part in parts if part.strip(". ") and not part.endswith(":")) or "photograph"


def _named(content: Any, files: Sequence[str | None], sizes: Sequence[int]) -> list[str]:
    """Names of photographs without any: those of their files where they are unique. Photographs are the same if their
    files have the same name and size, or the same bytes where files have no names."""
    plain = [PurePosixPath(file.replace("\\", "/")).name if file else "" for file in files]
    keys: list[tuple] = list(zip(plain, sizes, strict=True))
    times = Counter(keys)
    for row, key in enumerate(keys):
        if not key[0] and times[key] > 1:
            keys[row] = (*key, hashlib.sha256(content[row].as_buffer() or b"").digest())
    first: dict[tuple, int] = {}
    for row, key in enumerate(keys):
        first.setdefault(key, row)
    unique = Counter(key[0] for key in first)
    return [key[0] if key[0] and unique[key[0]] == 1 else f"{first[key]:06}" for key in keys]


def _size(file: str | None) -> int:
    """The bytes of a file that a dataset names; -1 if there is none."""
    return os.stat(file).st_size if file and os.path.isfile(file) else -1


def _read(content: Any, row: int, file: str | None) -> bytes:
    """The bytes of the photograph of a row, or of the file that it names."""
    found = content[row].as_py()
    return contents(file or "") if found is None else found

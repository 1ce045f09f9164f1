"""Read captioned photographs by Hugging Face's library `datasets`: from a name on the hub, a folder of `save_to_disk`,
or Parquet and Arrow files that contain photographs.

The photographs stay in the library's memory-mapped files, and each is read when it is needed. The library converts
Parquet to such files once, in its own cache (HF_DATASETS_CACHE). Needs the extra `[hub]`.
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from os.path import isdir, isfile  # a name that is too long is no error for them
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.data.images.open import Encoded
from vision_attn.data.photographs.annotation_files.caption_values import marks_in
from vision_attn.data.photographs.annotation_files.held_photographs import apart, encoded, regular
from vision_attn.data.record_files import check_purposes, values_of
from vision_attn.data.tables import absent, places_of
from vision_attn.system.console import reason_of
from vision_attn.system.errors import UserError
from vision_attn.system.files import digest, find, read_json
from vision_attn.system.splits import SPLITS, split_named

NAME = re.compile(r"hf:/+datasets/([\w.-]+/[\w.-]+?)(?:@([\w.-]+))?(?:/([\w.-]+))?")
"""Matches USER/NAME, REVISION and SUBSET. A single slash after "hf:" also matches, since `Path` joins slashes."""
SAVED = ("dataset_dict.json", "dataset_info.json")
"""Files that the library's `save_to_disk` writes."""
log = logging.getLogger(__name__)
PARQUET, ARROW = b"PAR1", b"\xff\xff\xff\xff"
"""The first bytes of files with columns that the library opens."""


class DatasetRow(NamedTuple):
    """The fields of a row of a dataset, with its photographs if the dataset holds them."""

    fields: dict[str, Any]
    """`image` (a name or a list of names), `caption` and, if the dataset has them, `split` and marks of captions that
    are not to be used."""
    files: tuple[Encoded, ...]


def located(path: str | Path) -> Path:
    """Return the path of a file or a folder (see `system.files.find`), or the unchanged name of a dataset on the
    hub."""
    return Path(path) if NAME.fullmatch(str(path)) else find(path)


def is_dataset(path: Path) -> bool:
    """Return whether `path` is the name of a dataset on the hub, a folder that the library saved, or a file or folder
    of files with a column of photographs."""
    if NAME.fullmatch(str(path)) or any(isfile(path / name) for name in SAVED):
        return True
    return any(photographs_in(_schema(file), None) for file in _files(path)[:1])


def photographs_of(path: Path) -> list[Encoded]:
    """Return the photographs in a dataset, each once, also those without captions. Raises UserError if it cannot be
    opened, or contains none."""
    dataset_rows = read_rows(path, {}, download=True, needed=())
    files = {file.name: file for row in dataset_rows for file in row.files}
    if not files:
        raise UserError(f"{path} holds no photographs")
    return [*files.values()]


def read_rows(
    path: Path, columns: Mapping[str, str | int], *, download: bool, needed: Sequence[str] = ("caption", "image")
) -> list[DatasetRow]:
    """Return the rows of all splits of a dataset. Rows of the same photograph have the same name. A row has the split
    of its column, or else of the dataset, if that has several splits.

    columns: the names of columns that are not recognised.
    download: whether to download a dataset that is not on this machine.
    needed: the columns that must exist; photographs in the dataset need no names.

    Raises UserError, which says what to do, if the dataset cannot be opened or a column is missing.
    """
    check_purposes(columns, ("image", "caption"))
    tables = _tables(path, download)
    dataset_rows: list[DatasetRow] = []
    for own, table in tables.items():
        inside = photographs_in(table.schema, columns.get("image"))
        named = {key: name for key, name in columns.items() if not (inside and key == "image" and name == inside)}
        fields = _texts(path, table, named, [key for key in needed if not (inside and key == "image")])
        files: list[tuple[Encoded, ...]] = [()] * len(table)
        if inside:
            files = _of_rows(path, table.column(inside), fields.get("image"))
            if len(tables) > 1:  # photographs of two splits may have the same name
                files = [tuple(file._replace(name=f"{own}/{file.name}") for file in row_files) for row_files in files]
            fields["image"] = [
                row_files[0].name if len(row_files) == 1 else [file.name for file in row_files] for row_files in files
            ]
        if len(tables) > 1:
            said = split_named(own)
            fields.setdefault("split", [said if said in (*SPLITS, "restval") else "unused"] * len(table))
        values = zip(*fields.values(), strict=True)
        split_rows = [
            DatasetRow(dict(zip(fields, row_values, strict=True)), held)
            for row_values, held in zip(values, files, strict=True)
        ]
        if inside and (empty := files.count(())):
            log.warning("%s: rows without a photograph, which are left out: %d", path, empty)
            split_rows = [row for row in split_rows if row.files]
        dataset_rows += split_rows
    if len(tables) > 1:
        held = [
            (number, row.fields.get("split"), file) for number, row in enumerate(dataset_rows) for file in row.files
        ]
        kept = apart(path, [(split, file) for _, split, file in held])
        left_out = {number for (number, _, _), keep in zip(held, kept, strict=True) if not keep}
        dataset_rows = [row for number, row in enumerate(dataset_rows) if number not in left_out]
    return dataset_rows


def _folders(path: Path) -> list[Path]:
    """Return the folders whose files a dataset may name as its photographs: its own folder, or those to which it was
    downloaded."""
    if not NAME.fullmatch(str(path)):
        return [path if isdir(path) else path.parent]
    import datasets
    from huggingface_hub.constants import HF_HUB_CACHE

    return [Path(datasets.config.HF_DATASETS_CACHE), Path(HF_HUB_CACHE)]


def _texts(path: Path, table: Any, named: Mapping[str, str | int], needed: Sequence[str]) -> dict[str, list[Any]]:
    """Return the columns image, caption and split of a table; "" where a row has no value. Raises UserError with the
    names of all columns if a needed one is not recognised."""
    names = [field.name for field in table.schema if not _holds_bytes(field.type)]
    try:
        places = places_of(names, ("image", "caption"), named)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    for key in named:
        if key not in places:
            raise absent(str(path), key, named[key], table.column_names)
    for key in needed:
        if key not in places:
            raise UserError(
                f"{path} has no column of {key}s that is recognised, but {', '.join(table.column_names[:30])}: "
                f"name one with --data.columns.{key}=NAME"
            )
    fields = {}
    for key, column_places in places.items():
        columns = [values_of(path, table.column(names[place])) for place in column_places]
        values = [["" if value is None else value for value in column] for column in columns]
        fields[key] = values[0] if len(values) == 1 else [[*filter(None, row)] for row in zip(*values, strict=True)]
    return fields | {name: values_of(path, table.column(name)) for name, _ in marks_in(tuple(names))}


def photographs_in(schema: Any, named: str | int | None) -> str | None:
    """Return the name of the column of photographs, as bytes or `{bytes, path}`; None if there is none."""
    held = {field.name: field.type for field in schema if _holds_bytes(field.type)}
    if named in held:
        return str(named)
    if places := places_of([*held], ("image",), {}).get("image"):
        return [*held][places[0]]
    images = [name for name, column_type in held.items() if column_type.num_fields]
    return images[0] if len(images) == 1 else None


def _holds_bytes(column_type: Any) -> bool:
    fields = (
        [column_type.field(number) for number in range(column_type.num_fields)]
        if str(column_type).startswith("struct")
        else []
    )
    return "binary" in str(column_type) and (not fields or any(field.name == "bytes" for field in fields))


def _files(path: Path) -> list[Path]:
    """Return the Parquet or Arrow files at a path: the file, or those of a folder or of its subfolder `data`. Only
    regular files, since opening a pipe would wait."""
    if isdir(path):
        return next(filter(None, map(_parquet_in, (path, path / "data"))), [])
    if not isfile(path):
        return []
    with suppress(OSError), open(path, "rb") as file:
        return [path] if file.read(4) in (PARQUET, ARROW) else []
    return []


def _parquet_in(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.glob("*.parquet")) if not file.name.startswith(".") and isfile(file)]


def _schema(file: Path) -> Any:
    """Return the columns of a file; none if it cannot be read, which another place reports."""
    try:
        from pyarrow import ArrowException, ipc, memory_map, parquet
    except ImportError:
        return ()
    try:
        if _is_parquet(file):
            with open(file, "rb") as opened:  # a name could be that of another file system
                return parquet.read_schema(opened)
        with memory_map(str(file)) as mapped:
            return ipc.open_stream(mapped).schema
    except (ArrowException, OSError, UnicodeDecodeError):
        return ()


def _is_parquet(file: Path) -> bool:
    with open(file, "rb") as opened:
        return opened.read(4) == PARQUET


def _tables(path: Path, download: bool) -> dict[str, Any]:
    """Return the table of each split of a dataset, memory-mapped. Raises UserError if it cannot be opened."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"{path} is a dataset, which needs the package datasets: pip install 'vision-attn[hub]'"
        ) from error
    if match := NAME.fullmatch(str(path)):
        name, revision, subset = match.groups()
        with _told(name, download), _offline(datasets.config, not download):
            opened = datasets.load_dataset(name, subset, revision=revision)
    else:
        try:
            opened = _local(datasets, path)
        except Exception as error:  # a damaged file can make the library raise almost anything
            raise UserError(f"{path} is not a dataset that can be read: {reason_of(error)}") from error
    splits = opened if isinstance(opened, dict) else {"": opened}
    tables = {split: dataset.with_format("arrow")[:] for split, dataset in splits.items() if len(dataset)}
    return {str(split): table for split, table in tables.items()}


def _local(datasets: Any, path: Path) -> Any:
    files = _files(path)
    if not files:
        return _open_saved(datasets, path)
    if not _is_parquet(files[0]):
        return _mapped(datasets, files)
    splits: dict[str, list[Path]] = {}
    for file in files:  # as the hub names them: train-00000-of-00002.parquet
        said = re.split(r"[-.]", file.name)[0]
        splits.setdefault(said if split_named(said) in (*SPLITS, "restval") else "train", []).append(file.absolute())
    return datasets.load_dataset(
        "parquet", data_files={split: _listed(split_files) for split, split_files in splits.items()}
    )


def _listed(files: Sequence[Path]) -> Any:
    """Return files as a list in the library's own form. It would take plain names for patterns."""
    from datasets.data_files import DataFilesList

    status = [file.stat() for file in files]
    names = [str(_without_hops(file)) for file in files]
    return DataFilesList(names, [(str(file_status.st_mtime_ns), str(file_status.st_size)) for file_status in status])


def _without_hops(file: Path) -> Path:
    """Return the file, or a link to it if its path contains `::`, which the library would take for a file in an
    archive."""
    if "::" not in str(file):
        return file
    from datasets import config

    link = Path(config.HF_DATASETS_CACHE, "links", f"{digest(os.fsencode(file).hex())[:16]}.parquet")
    link.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        link.symlink_to(file)
    return link


def _open_saved(datasets: Any, folder: Path) -> Any:
    """Open a folder that the library's `save_to_disk` wrote. The library's own function would open any file that the
    folder names."""
    if not isfile(folder / "dataset_dict.json"):
        return _part(datasets, folder, folder)
    names = read_json(folder / "dataset_dict.json")["splits"]
    return {str(name): _part(datasets, folder, folder / str(name)) for name in names}


def _part(datasets: Any, folder: Path, place: Path) -> Any:
    """Open one split that `save_to_disk` wrote."""
    named = [str(entry["filename"]) for entry in read_json(regular(place / "state.json", folder))["_data_files"]]
    return _mapped(datasets, [regular(place / name, folder) for name in named])


def _mapped(datasets: Any, files: Sequence[Path]) -> Any:
    """Map Arrow files into memory, and check the offsets in them, since an offset beyond the end of a file would kill
    the process."""
    opened = [datasets.Dataset.from_file(str(file)) for file in files]
    for dataset in opened:
        dataset.data.validate(full=True)
    return datasets.concatenate_datasets(opened) if len(opened) > 1 else opened[0]


@contextmanager
def _offline(config: Any, only: bool) -> Iterator[None]:
    """Context manager: let the library use nothing but its cache."""
    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = before or only
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before


@contextmanager
def _told(name: str, download: bool) -> Iterator[None]:
    """Context manager: convert any failure to a UserError that tells how to get a dataset of the hub."""
    try:
        yield
    except Exception as error:  # of httpx, huggingface_hub or datasets
        short = name.split("/")[1]
        save = f"import datasets; datasets.load_dataset('{name}').save_to_disk('{short}')"
        raise UserError(
            f"hf://datasets/{name} {'cannot be downloaded' if download else 'is not on this machine'} "
            f"({type(error).__name__}: {reason_of(error)}): "
            + ("" if download else "--data.download=true downloads it; or, ")
            + f'where there is a network, `python -c "{save}"` makes a folder {short}: copy it here, and name it: '
            f"--data.images={short}"
        ) from error


def _of_rows(path: Path, column: Any, names: Sequence[Any] | None) -> list[tuple[Encoded, ...]]:
    """Return the photographs of each row of a column, whose values are single photographs or lists of them."""
    from pyarrow import compute

    folders = _folders(path)
    if not str(column.type).startswith(("list", "large_list", "fixed_size_list")):
        return [(file,) for file in encoded(path, column, names, folders)]
    sizes = compute.fill_null(compute.list_value_length(column), 0).to_pylist()
    if names is not None and not any(isinstance(name, list) for name in names):
        names = [name for name, size in zip(names, sizes, strict=True) for _ in range(size)]
    else:
        names = None
    files = iter(encoded(path, compute.list_flatten(column), names, folders))
    return [tuple(islice(files, size)) for size in sizes]

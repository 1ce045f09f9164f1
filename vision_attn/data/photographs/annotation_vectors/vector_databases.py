"""Read the annotation vectors of many photographs from an HDF5 file or an LMDB."""

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from itertools import islice
from math import prod
from pathlib import Path
from sys import byteorder
from typing import Any, NamedTuple

from vision_attn.data.photographs.annotation_vectors.stored_arrays import LARGEST, Stored, stored_in
from vision_attn.system.console import reason_of
from vision_attn.system.errors import UserError
from vision_attn.system.files import brief

ENDINGS = (".npy", ".npz")
LMDB_FILE = "data.mdb"
"""The name of the file in an LMDB that is a folder."""
NAMES = ("features", "feat", "x", "image_features", "z")
"""Names of the array of vectors, if there are several arrays."""
BOXES = ("boxes", "bbox", "image_bb")
"""Names of the array (L, 4) of the boxes of regions: x0, y0, x1, y1 in pixels, or from 0 to 1."""
WIDTHS, HEIGHTS = ("image_w", "img_w", "width", "w"), ("image_h", "img_h", "height", "h")
"""Names of the width and height of the photograph, in pixels, to which boxes refer."""
NAME_LISTS = (
    "names", "file_names", "filenames", "image_names", "images", "ids", "image_ids", "image_id", "img_ids", "keys",
)  # fmt: skip
"""Names of the list of photographs in an HDF5 file with one array for all photographs."""
MOST_NAMES = 10**7
"""The largest number of photographs in such a list."""
MOST_LINKS = 8
"""The largest number of links within an HDF5 file that are followed in succession."""


class VectorEntry(NamedTuple):
    """The place of the vectors of one photograph in a database."""

    file: "Database"
    key: int | str
    """The row in the arrays of all photographs, or the name of the photograph's own array or group."""

    def __str__(self) -> str:
        return f"{self.file.path}: {self.key}"


class Database(ABC):
    """A file, or a folder, with the vectors of many photographs under their names or ids."""

    path: Path

    def by_name(self, name: str) -> VectorEntry | None:
        ways = (name, str(Path(name).with_suffix("")), Path(name).name, Path(name).stem)
        return next(filter(None, map(self.by_id, ways)), None)

    @abstractmethod
    def by_id(self, key: str) -> VectorEntry | None:
        """Return the entry with this key; None if there is none."""

    @abstractmethod
    def keys(self) -> Iterator[str]:
        """Yield the keys, for messages."""

    @abstractmethod
    def arrays(self, key: int | str) -> Mapping[str, Stored]:
        """Return the arrays of a photograph by name; a single array has the name ""."""

    def missing(self, name: str, key: str) -> str:
        return f"{self.path} has no vectors of {name} or of id {key}, but of {', '.join(islice(self.keys(), 3))} ..."


class Hdf5(Database):
    """An HDF5 file. It has one array for all photographs and a list of their names or ids, or for each photograph an
    array, a group of arrays (`beach.jpg/features`) or arrays with endings (`391895_features`).

    Links and arrays of an HDF5 file may lead to other files; nothing is read from these.
    """

    def __init__(self, path: Path) -> None:
        """Raises UserError if the file cannot be read, or `h5py` is missing."""
        try:
            import h5py
        except ImportError as error:
            raise UserError(f"{path} is an HDF5 file: it needs h5py, pip install 'vision-attn[features]'") from error
        self.path, self.h5py = path, h5py
        self.listed: str | None = None
        self.row_numbers: dict[str, int] = {}
        self.roots: dict[str, None] = {}
        try:
            self.content = h5py.File(path, "r")
            for name in NAME_LISTS:
                if (item := self._item(name)) is not None and self._is_array(item) and item.ndim == 1:
                    self.listed, names = name, self._names(item)
                    break
            else:
                self.roots = dict.fromkeys(self.content)
                return
            self.row_numbers = {name: row for row, name in enumerate(names)}
            arrays = {name: item for name in self.content if (item := self._item(name)) is not None}
        except Exception as error:  # a damaged file can make h5py raise almost anything
            raise UserError(f"{path} is not a readable HDF5 file: {reason_of(error)}") from error
        if len(self.row_numbers) < len(names):
            ((name, times),) = Counter(names).most_common(1)
            raise UserError(f"{path}: {self.listed} names {brief(name)} {times} times: write each photograph once")
        sizes = {name: len(item) for name, item in arrays.items() if self._is_array(item) and item.ndim > 1}
        if len(names) not in sizes.values() or sizes.get(_first(NAMES, sizes), len(names)) != len(names):
            held = ", ".join(f"{name} has {size:,} rows" for name, size in islice(sizes.items(), 5)) or "there is none"
            raise UserError(f"{path}: {self.listed} names {len(names):,} photographs, but of the arrays {held}")

    def by_id(self, key: str) -> VectorEntry | None:
        if self.listed:
            return VectorEntry(self, self.row_numbers[key]) if key in self.row_numbers else None
        return VectorEntry(self, key) if any(map(self._holds, (key, *(f"{key}_{name}" for name in NAMES)))) else None

    def keys(self) -> Iterator[str]:
        return iter(self.row_numbers or self.roots)

    def arrays(self, key: int | str) -> dict[str, Stored]:
        if isinstance(key, int):
            items = {name: self._item(name) for name in self.content if name != self.listed}
            shared = {name: item for name, item in items.items() if item is not None and self._is_array(item)}
            return {
                name: self._stored(item, key)
                for name, item in shared.items()
                if item.ndim and len(item) == len(self.row_numbers)
            }
        item = self._item(key)
        if item is None:
            items = {name: self._item(f"{key}_{name}") for name in (*NAMES, *BOXES, *WIDTHS, *HEIGHTS)}
        elif self._is_array(item):
            items = {"": item}
        else:
            items = {name: self._item(f"{key}/{name}") for name in item}
        return {name: self._stored(item) for name, item in items.items() if item is not None and self._is_array(item)}

    def _holds(self, key: str) -> bool:
        """Return whether `_item` finds this key. Faster for arrays without a folder."""
        first, _, rest = key.partition("/")
        if first not in self.roots:
            return False
        if not rest and self.content.id.links.get_info(os.fsencode(first)).type == self.h5py.h5l.TYPE_HARD:
            return True
        return self._item(key) is not None

    def _is_array(self, item: Any) -> bool:
        return isinstance(item, self.h5py.Dataset)

    def _item(self, key: str, left: int = MOST_LINKS) -> Any:
        """Return the item with this key; None if there is none in this file."""
        place, steps = self.content, key.split("/")
        for number, step in enumerate(steps):
            if step in ("", ".") or not isinstance(place, self.h5py.Group):
                return None
            link = place.get(step, getlink=True)
            if isinstance(link, self.h5py.SoftLink):
                start = "" if link.path.startswith("/") else f"{place.name}/"
                path = "/".join([start + link.path, *steps[number + 1 :]])
                return self._item(path.strip("/"), left - 1) if left else None
            if not isinstance(link, self.h5py.HardLink):
                return None
            place = place[step]
        return place

    def _stored(self, item: Any, row: int | None = None) -> Stored:
        """Return an array, or a row of it. Raises UserError if it lies in other files, or is packed in pieces that are
        too large."""
        if item.is_virtual or item.external:
            raise UserError(f"{item.name} lies in other files: write its numbers into this one")
        if item.chunks and prod(item.chunks) * item.dtype.itemsize > LARGEST:
            raise UserError(f"{item.name} is packed in pieces of {item.chunks}: at most {LARGEST:,} bytes are unpacked")
        if row is None:
            return Stored(item.shape or (), item.dtype, lambda: item[()])
        return Stored(item.shape[1:], item.dtype, lambda: item[row])

    def _names(self, item: Any) -> list[str]:
        """Return the names or ids in a list. They are read in parts, since a small file may declare a text many
        times."""
        self._stored(item)
        if len(item) > MOST_NAMES or len(item) * item.dtype.itemsize > LARGEST:
            raise UserError(f"{item.name} declares {len(item):,} names: at most {MOST_NAMES:,} are read")
        if item.dtype.kind != "O":
            return [_text(name) for name in item[:].tolist()]
        block = min(4096, max(16, LARGEST // max(1, os.path.getsize(self.path))))
        names: list[str] = []
        size = 0
        for first in range(0, len(item), block):
            texts = [*map(_text, item[first : first + block])]
            size += sum(map(len, texts))
            if size > LARGEST:
                raise UserError(f"{item.name} has more than {LARGEST:,} characters")
            names += texts
        return names


class Lmdb(Database):
    """An LMDB, a folder or a file. The key of an entry is the name or the id of a photograph, its value the bytes of a
    .npy or .npz file, as ImageCaptioning.pytorch and AoANet write them. Pickles are refused, since they could run
    code."""

    def __init__(self, path: Path) -> None:
        """Raises UserError if the file cannot be read, or `lmdb` is missing."""
        try:
            import lmdb
        except ImportError as error:
            raise UserError(f"{path} is an LMDB: it needs lmdb, pip install 'vision-attn[features]'") from error
        self.path, self.error = path, lmdb.Error
        file = path / LMDB_FILE if path.is_dir() else path
        _refuse_cut(file)
        self.size = os.path.getsize(file)
        try:
            self.content = lmdb.open(str(path), subdir=path.is_dir(), readonly=True, lock=False, readahead=False)
        except lmdb.Error as error:
            raise UserError(f"{path} is not a readable LMDB: {reason_of(error)}") from error

    def by_id(self, key: str) -> VectorEntry | None:
        keys = (key, *(f"{key}{ending}" for ending in ENDINGS))
        return next((VectorEntry(self, alias) for alias in keys if self._bytes(alias) is not None), None)

    def keys(self) -> Iterator[str]:
        with suppress(self.error), self.content.begin() as reading:
            yield from (key.decode(errors="replace") for key in reading.cursor().iternext(values=False))

    def arrays(self, key: int | str) -> Mapping[str, Stored]:
        with self.content.begin(buffers=True) as reading:
            stored: Any = reading.get(str(key).encode(errors="surrogateescape"))
            if len(stored) > self.size:
                raise UserError("it is damaged: its size is larger than that of the whole file")
            content = bytes(stored)
        return stored_in(BytesIO(content))

    def _bytes(self, key: str) -> memoryview | None:
        """Return the bytes of an entry, which stay valid only for a moment; None if there is no such key."""
        if not 0 < len(encoded := key.encode(errors="surrogateescape")) <= self.content.max_key_size():
            return None
        try:
            with self.content.begin(buffers=True) as reading:
                return reading.get(encoded)
        except self.error as error:
            raise UserError(f"{self.path} is damaged: {reason_of(error)}") from error


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _first(names: Sequence[str], there: Mapping[str, Any]) -> str:
    return next((name for name in names if name in there), "")


def _refuse_cut(file: Path) -> None:
    """Raise UserError if an LMDB is shorter than the pages that its header counts: the library maps the file into
    memory, where reading beyond its end kills the process."""
    with open(file, "rb") as opened:
        head = opened.read(2 * 2**16)
    page = int.from_bytes(head[40:44], byteorder)
    if page & (page - 1) or not 256 <= page <= 2**16:
        raise UserError(f"{file} is not a readable LMDB: its header is damaged")
    heads = [head[start : start + 152] for start in (0, page) if len(head) >= start + 152]
    if len(heads) < 2:
        raise UserError(f"{file} is cut: copy it again")
    newest = max(heads, key=lambda head: int.from_bytes(head[144:152], byteorder))
    pages, size = int.from_bytes(newest[136:144], byteorder) + 1, os.path.getsize(file)
    if pages * page > size:
        raise UserError(f"{file} is cut: it has {size:,} bytes of {pages * page:,}: copy it again")

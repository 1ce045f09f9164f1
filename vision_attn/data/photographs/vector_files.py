"""Where the annotation vectors of photographs are: a folder with a file for each, one HDF5 file, or an LMDB."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vision_attn.system.console import reason_of

ENDINGS = (".npy", ".npz")
HDF5 = b"\x89HDF\r\n\x1a\n"
"""The first bytes of an HDF5 file."""
LMDB, LMDB_FILE = b"\xde\xc0\xef\xbe", "data.mdb"
"""Bytes 16 to 19 of an LMDB, and its file where it is a folder."""
NAMES = ("features", "feat", "x", "image_features", "z")
"""Names of the array of vectors where there are several arrays."""
BOXES = ("boxes", "bbox", "image_bb")
"""Names of the boxes of regions, (L, 4): x0, y0, x1, y1 in pixels, or from 0 to 1."""
WIDTHS, HEIGHTS = ("image_w", "img_w", "width", "w"), ("image_h", "img_h", "height", "h")
"""Names of the size in pixels of the photograph that boxes lie in."""
NAME_LISTS = (
    "names", "file_names", "filenames", "image_names", "images", "ids", "image_ids", "image_id", "img_ids", "keys",
)  # fmt: skip
"""Names of the list of photographs in an HDF5 file with one array for all."""


class Entry(NamedTuple):
    """The vectors of one photograph in a file of many."""

    file: "Database"
    key: int | str
    """The row of the arrays of all photographs, or the name of the photograph's own array or group."""

    def __str__(self) -> str:
        return f"{self.file.path}: {self.key}"


class Folder:
    """A folder with a file for each photograph, .npy or .npz."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def by_name(self, name: str) -> Path | None:
        return next((path for ending in ENDINGS if (path := self._path(name, ending)).is_file()), None)

    def by_id(self, key: str) -> Path | None:
        if Path(key).name != key:  # an id may be any text
            return None
        return next((path for ending in ENDINGS if (path := self.path / f"{key}{ending}").is_file()), None)

    def missing(self, name: str, key: str) -> str:
        here, there = self._path(name, ".npy"), self.path / f"{key}.npy"
        return f"there is neither {here} nor {there}, nor an .npz file of these names"

    def _path(self, name: str, ending: str) -> Path:
        return (self.path / name).with_suffix(ending)


class Database(ABC):
    """A file, or a folder, with the vectors of many photographs under their names or ids."""

    path: Path

    def by_name(self, name: str) -> Entry | None:
        ways = (name, str(Path(name).with_suffix("")), Path(name).name, Path(name).stem)
        return next(filter(None, map(self.by_id, ways)), None)

    @abstractmethod
    def by_id(self, key: str) -> Entry | None:
        """The vectors under a key, if there are any."""

    @abstractmethod
    def keys(self) -> Iterator[str]:
        """The keys, for messages."""

    @abstractmethod
    def arrays(self, key: int | str) -> Mapping[str, NDArray]:
        """The arrays of a photograph by name; "" where it has one alone."""

    def missing(self, name: str, key: str) -> str:
        return f"{self.path} has no vectors of {name} or of id {key}, but of {', '.join(islice(self.keys(), 3))} ..."


class Hdf5(Database):
    """An HDF5 file: with one array for all photographs and a list of their names or ids; or with an array, a group of
    arrays (`beach.jpg/features`) or arrays with endings (`391895_features`) for each photograph."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError if the file cannot be read, or `h5py` is missing."""
        try:
            import h5py
        except ImportError as error:
            raise ValueError(f"{path} is an HDF5 file: it needs h5py, pip install 'vision-attn[features]'") from error
        self.path, self.dataset = path, h5py.Dataset
        self.rows: dict[str, int] = {}
        try:
            self.content = h5py.File(path, "r")
            self.listed = next((name for name in NAME_LISTS if isinstance(self.content.get(name), h5py.Dataset)), None)
            for row, name in enumerate(self.content[self.listed][:] if self.listed else ()):
                self.rows[name.decode() if isinstance(name, bytes) else str(name)] = row
        except Exception as error:  # a damaged file can make h5py raise almost anything
            raise ValueError(f"{path} is not a readable HDF5 file: {reason_of(error)}") from error

    def by_id(self, key: str) -> Entry | None:
        if self.listed:
            return Entry(self, self.rows[key]) if key in self.rows else None
        there = any(each in self.content for each in (key, *(f"{key}_{name}" for name in NAMES)))
        return Entry(self, key) if there else None

    def keys(self) -> Iterator[str]:
        return iter(self.rows or self.content)

    def arrays(self, key: int | str) -> dict[str, NDArray]:
        if isinstance(key, int):
            found = {name: item for name, item in self.content.items() if name != self.listed}
            return {name: item[key] for name, item in found.items() if len(item) == len(self.rows)}
        if key not in self.content:
            found = {name: self.content.get(f"{key}_{name}") for name in (*NAMES, *BOXES, *WIDTHS, *HEIGHTS)}
            return {name: item[()] for name, item in found.items() if item is not None}
        item = self.content[key]
        return {"": item[()]} if isinstance(item, self.dataset) else {name: part[()] for name, part in item.items()}


class Lmdb(Database):
    """An LMDB, a folder or a file: under the name or the id of each photograph the bytes of a .npy or .npz file, as
    ImageCaptioning.pytorch and AoANet write them. Nothing is unpickled, which could run code."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError if the file cannot be read, or `lmdb` is missing."""
        try:
            import lmdb
        except ImportError as error:
            raise ValueError(f"{path} is an LMDB: it needs lmdb, pip install 'vision-attn[features]'") from error
        self.path = path
        try:
            self.content = lmdb.open(str(path), subdir=path.is_dir(), readonly=True, lock=False, readahead=False)
        except lmdb.Error as error:
            raise ValueError(f"{path} is not a readable LMDB: {reason_of(error)}") from error

    def by_id(self, key: str) -> Entry | None:
        keys = (key, *(f"{key}{ending}" for ending in ENDINGS))
        return next((Entry(self, one) for one in keys if self._bytes(one) is not None), None)

    def keys(self) -> Iterator[str]:
        with self.content.begin() as reading:
            yield from (key.decode(errors="replace") for key in reading.cursor().iternext(values=False))

    def arrays(self, key: int | str) -> Mapping[str, NDArray]:
        with self.content.begin(buffers=True) as reading:
            content = bytes(reading.get(str(key).encode()))
        if content[:1] == b"\x80":
            raise ValueError("it is a pickle, which could run code when it is read: write numpy.savez's bytes instead")
        found = np.load(BytesIO(content), allow_pickle=False)
        return found if isinstance(found, np.lib.npyio.NpzFile) else {"": found}

    def _bytes(self, key: str) -> memoryview | None:
        """Some bytes under a key, valid for a moment; None if there are none."""
        if not 0 < len(encoded := key.encode(errors="surrogateescape")) <= self.content.max_key_size():
            return None
        with self.content.begin(buffers=True) as reading:
            return reading.get(encoded)


@cache
def place_of(path: Path) -> Folder | Database:
    """The vectors of photographs at a path. Raises ValueError if there are none, or they cannot be read."""
    file = path / LMDB_FILE if path.is_dir() else path
    if file.is_file():
        with open(file, "rb") as opened:
            first = opened.read(20)
        if first[16:] == LMDB:
            return Lmdb(path)
        if first.startswith(HDF5):
            return Hdf5(path)
    if path.is_dir():
        return Folder(path)
    raise ValueError(f"{path} is neither a folder of annotation vectors nor an HDF5 file nor an LMDB")


def boxes_beside(where: Path | Entry) -> Path | Entry | None:
    """Where the boxes of a photograph are if they have a folder or an LMDB of their own, as those of
    ImageCaptioning.pytorch: `cocobu_box` beside `cocobu_att`."""
    path = where.file.path if isinstance(where, Entry) else where
    root = next((part for part in (path, *path.parents) if re.search(r"_att(\.\w+)?$", part.name)), None)
    if root is None:
        return None
    for ending in dict.fromkeys(("", root.suffix, ".lmdb")):
        other = root.with_name(re.sub(r"_att(\.\w+)?$", "_box", root.name) + ending)
        with suppress(ValueError):  # there is none, or it is of another kind
            place = place_of(other)
            key = str(where.key) if isinstance(where, Entry) else str(where.relative_to(root).with_suffix(""))
            if found := place.by_id(key) or place.by_name(key):
                return found
    return None


@contextmanager
def arrays_of(where: Path | Entry) -> Iterator[Mapping[str, NDArray]]:
    """The arrays of a photograph by name; where there is one alone, under "". Raises ValueError naming the file."""
    try:
        if isinstance(where, Entry):
            yield where.file.arrays(where.key)
            return
        found = np.load(where, allow_pickle=False)
        with found if isinstance(found, np.lib.npyio.NpzFile) else nullcontext({"": found}) as arrays:
            yield arrays
    except Exception as error:  # a damaged file can make numpy raise almost anything
        raise ValueError(f"{where}: no array can be read ({type(error).__name__}: {reason_of(error)})") from error

"""Where the annotation vectors of photographs are: a folder with a file for each, or one HDF5 file."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vision_attn.system.console import reason_of

ENDINGS = (".npy", ".npz")
HDF5 = b"\x89HDF\r\n\x1a\n"
"""The first bytes of an HDF5 file."""
NAMES = ("features", "feat", "x", "image_features")
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
    """The vectors of one photograph in an HDF5 file."""

    file: "Hdf5"
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


class Hdf5:
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

    def by_name(self, name: str) -> Entry | None:
        ways = (name, str(Path(name).with_suffix("")), Path(name).name, Path(name).stem)
        return next(filter(None, map(self.by_id, ways)), None)

    def by_id(self, key: str) -> Entry | None:
        if self.listed:
            return Entry(self, self.rows[key]) if key in self.rows else None
        there = any(each in self.content for each in (key, *(f"{key}_{name}" for name in NAMES)))
        return Entry(self, key) if there else None

    def missing(self, name: str, key: str) -> str:
        known = ", ".join(islice(self.rows or self.content, 3))
        return f"{self.path} has no vectors of {name} or of id {key}, but of {known} ..."

    def arrays(self, key: int | str) -> dict[str, NDArray]:
        """The arrays of a photograph by name; "" where it has one alone."""
        if isinstance(key, int):
            found = {name: item for name, item in self.content.items() if name != self.listed}
            return {name: item[key] for name, item in found.items() if len(item) == len(self.rows)}
        if key not in self.content:
            found = {name: self.content.get(f"{key}_{name}") for name in (*NAMES, *BOXES, *WIDTHS, *HEIGHTS)}
            return {name: item[()] for name, item in found.items() if item is not None}
        item = self.content[key]
        return {"": item[()]} if isinstance(item, self.dataset) else {name: part[()] for name, part in item.items()}


def place_of(path: Path) -> Folder | Hdf5:
    """The vectors of photographs at a path. Raises ValueError if there are none, or they cannot be read."""
    if path.is_dir():
        return Folder(path)
    if path.is_file():
        with open(path, "rb") as file:
            if file.read(len(HDF5)) == HDF5:
                return Hdf5(path)
    raise ValueError(f"{path} is neither a folder of annotation vectors nor an HDF5 file")


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

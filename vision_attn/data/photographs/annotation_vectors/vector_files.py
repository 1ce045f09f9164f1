"""Find the annotation vectors of photographs that other programs wrote: in a folder of files, an HDF5 file, or an
LMDB."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from vision_attn.data.photographs.annotation_vectors.stored_arrays import Stored, stored_in
from vision_attn.data.photographs.annotation_vectors.vector_databases import (
    ENDINGS,
    LMDB_FILE,
    Database,
    Hdf5,
    Lmdb,
    VectorEntry,
)
from vision_attn.system.console import reason_of
from vision_attn.system.errors import UserError

HDF5 = b"\x89HDF\r\n\x1a\n"
"""The first bytes of an HDF5 file."""
LMDB = b"\xde\xc0\xef\xbe"
"""Bytes 16 to 19 of an LMDB."""


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


@cache
def place_of(path: Path) -> Folder | Database:
    """Open a folder or a database of vectors. Raises UserError if there is none, or it cannot be read."""
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
    raise UserError(f"{path} is neither a folder of annotation vectors nor an HDF5 file nor an LMDB")


def boxes_beside(where: Path | VectorEntry) -> Path | VectorEntry | None:
    """Find the boxes of a photograph in a separate folder or LMDB, as ImageCaptioning.pytorch writes them: `cocobu_box`
    next to `cocobu_att`."""
    path = where.file.path if isinstance(where, VectorEntry) else where
    root = next((folder for folder in (path, *path.parents) if re.search(r"_att(\.\w+)?$", folder.name)), None)
    if root is None:
        return None
    for ending in dict.fromkeys(("", root.suffix, ".lmdb")):
        other = root.with_name(re.sub(r"_att(\.\w+)?$", "_box", root.name) + ending)
        with suppress(UserError):  # there is none, or it is of another kind
            place = place_of(other)
            key = str(where.key) if isinstance(where, VectorEntry) else str(where.relative_to(root).with_suffix(""))
            if entry := place.by_id(key) or place.by_name(key):
                return entry
    return None


@contextmanager
def arrays_of(where: Path | VectorEntry) -> Iterator[Mapping[str, Stored]]:
    """Context manager: open the arrays of a photograph by name; a single array has the name "". Raises UserError naming
    the file."""
    try:
        if isinstance(where, VectorEntry):
            yield where.file.arrays(where.key)
            return
        with open(where, "rb") as file:
            yield stored_in(file)
    except Exception as error:  # a damaged file can make numpy raise almost anything
        error_type = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        raise UserError(f"{where}: no array can be read ({error_type}{reason_of(error)})") from error

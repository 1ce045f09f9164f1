"""Read arrays from untrusted .npy and .npz files: their shapes and types are checked before numbers are read.

A small file may declare a huge array, and contain it compressed.
"""

from collections.abc import Callable, Iterator, Mapping
from io import BufferedIOBase
from math import prod
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from vision_attn.data.array_headers import PARSING
from vision_attn.system.errors import UserError

LARGEST = 2**28
"""The largest number of unpacked bytes of an array: 36,000 vectors of 2,048 numbers fit."""
HEADER = 2**16
"""The largest number of bytes of the header of an array."""
ZIP = b"PK"
"""The first bytes of an .npz file."""


class Stored(NamedTuple):
    """An array in a file, not read yet."""

    shape: tuple[int, ...]
    dtype: np.dtype
    load: Callable[[], NDArray]

    def read(self) -> NDArray:
        """Read the array. Raises UserError if it is too large, or does not hold numbers."""
        if self.dtype.kind not in "biuf":
            raise UserError(f"it holds no numbers, but {self.dtype}")
        if (size := prod(self.shape) * self.dtype.itemsize) > LARGEST:
            raise UserError(f"it declares {size:,} bytes, {self.shape} of {self.dtype}: at most {LARGEST:,} are read")
        return np.asarray(self.load())


class Archive(Mapping[str, Stored]):
    """The arrays of an .npz file by name."""

    def __init__(self, file: BufferedIOBase) -> None:
        try:
            self.content = ZipFile(file)
        except BadZipFile as error:
            raise UserError("it is no .npz file") from error
        self.members = {member.filename.removesuffix(".npy"): member for member in self.content.infolist()}

    def __getitem__(self, name: str) -> Stored:
        member = self.members[name]
        if member.file_size > LARGEST + HEADER:
            raise UserError(f"{name} has {member.file_size:,} bytes unpacked: at most {LARGEST:,} are read")

        def load() -> NDArray:
            with self.content.open(member) as opened, PARSING:
                return np.lib.format.read_array(opened, allow_pickle=False)

        with self.content.open(member) as opened:
            return Stored(*_header(opened), load)

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)


def stored_in(file: BufferedIOBase) -> Mapping[str, Stored]:
    """Return the arrays of an .npz file by name, or the array of an .npy file as "". Raises UserError for other files,
    and for pickles, which could run code."""
    first = file.read(2)
    file.seek(0)
    if first == ZIP:
        return Archive(file)
    if first[:1] == b"\x80":
        raise UserError("it is a pickle, which could run code when it is read: write numpy.savez's bytes instead")

    def load() -> NDArray:
        file.seek(0)
        with PARSING:
            return np.lib.format.read_array(file, allow_pickle=False)

    return {"": Stored(*_header(file), load)}


def _header(file: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape and the type of an array in the format of .npy."""
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise UserError(f"version {version} of numpy's format is not one of plain numbers")
    with PARSING:
        shape, _, dtype = readers[version](file)
    return shape, dtype

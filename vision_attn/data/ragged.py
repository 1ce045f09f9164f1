"""`Ragged`, lists of different lengths in one array, which may be a memory-mapped file."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vision_attn.data.array_headers import PARSING
from vision_attn.system.errors import UserError
from vision_attn.system.files import replacing

ENCODING = ("utf-8", "surrogatepass")  # file names may hold any bytes
BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Ragged:
    """N lists of numbers, or N texts as bytes: list i is values[starts[i]:starts[i + 1]].

    A Python string takes about 100 bytes more than its text, and processes cannot share it. They share these arrays, if
    they are memory-mapped.
    """

    values: NDArray[Any]
    starts: NDArray[np.int64]

    @classmethod
    def numbers(cls, lists: Iterable[Sequence[int]]) -> "Ragged":
        """Store lists of integers below 2^31."""
        values, starts = array("i"), array("q", [0])
        for numbers in lists:
            values.extend(numbers)
            starts.append(len(values))
        return cls(np.frombuffer(values, dtype=np.int32), np.frombuffer(starts, dtype=np.int64))

    @classmethod
    def texts(cls, texts: Iterable[str]) -> "Ragged":
        """Store texts, to be read with `text`."""
        values, starts = bytearray(), array("q", [0])
        for text in texts:
            values += text.encode(*ENCODING)
            starts.append(len(values))
        return cls(np.frombuffer(values, dtype=np.uint8), np.frombuffer(starts, dtype=np.int64))

    @classmethod
    def joined(cls, raggeds: Sequence["Ragged"]) -> "Ragged":
        """Concatenate the lists of several, copied into memory."""
        ends = np.cumsum([0, *(len(ragged.values) for ragged in raggeds)])
        starts = [ragged.starts[:-1] + before for ragged, before in zip(raggeds, ends, strict=False)]
        return cls(np.concatenate([ragged.values for ragged in raggeds]), np.concatenate([*starts, ends[-1:]]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> NDArray:
        return self.values[self.starts[number] : self.starts[number + 1]]

    def text(self, number: int) -> str:
        values, starts = self._buffers
        return str(values[starts[number] : starts[number + 1]], *ENCODING)

    @cached_property
    def _buffers(self) -> tuple[memoryview, memoryview]:
        """The arrays as memoryviews, because reading a single element or slice costs a third as much as from an
        array."""
        return self.values.data, self.starts.data

    def all_texts(self) -> Iterator[str]:
        """Yield all texts in order, several times as fast as one by one."""
        for first in range(0, len(self), BLOCK):
            starts = self.starts[first : first + BLOCK + 1].tolist()
            block = self.values[starts[0] : starts[-1]].tobytes()
            spans = pairwise(start - starts[0] for start in starts)
            if block.isascii():  # a character is a byte, so that all are decoded at once
                text = block.decode()
                yield from (text[start:end] for start, end in spans)
            else:
                yield from (block[start:end].decode(*ENCODING) for start, end in spans)

    def lengths(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lengths of the lists `numbers`, in their shape."""
        return self.starts[numbers + 1] - self.starts[numbers]

    def padded(self, numbers: NDArray[np.int64], padding: int, longest: int | None = None) -> NDArray:
        """Return the lists `numbers` as an array (*numbers, longest), filled up with `padding`.

        longest: None: the length of the longest of these lists.
        """
        lengths = self.lengths(numbers)[..., None]
        place = np.arange(lengths.max(initial=0) if longest is None else longest)
        inside = place < lengths
        return np.where(inside, self.values[np.where(inside, self.starts[numbers][..., None] + place, 0)], padding)

    def save(self, folder: Path, name: str) -> None:
        """Write NAME.values.npy, then NAME.starts.npy."""
        for attribute in ("values", "starts"):
            write_array(folder / f"{name}.{attribute}.npy", getattr(self, attribute))

    @classmethod
    def map(cls, folder: Path, name: str, dtype: DTypeLike) -> "Ragged":
        """Map what `save` wrote into memory. Raises FileNotFoundError or, if it is damaged, UserError."""
        values = map_array(folder / f"{name}.values.npy", dtype)
        starts = map_array(folder / f"{name}.starts.npy", np.int64)
        if not len(starts) or (starts[0], starts[-1]) != (0, len(values)):
            raise UserError(f"{folder / name}: these lists are damaged")
        return cls(values, starts)


def write_array(path: Path, array: NDArray) -> None:
    """Write a one-dimensional array as .npy. Unlike `np.save`, raises OSError for any byte that does not fit."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.view(np.uint8).data)


def map_array(path: Path, dtype: DTypeLike) -> NDArray:
    """Map a one-dimensional array into memory. Raises FileNotFoundError or, if it is damaged, UserError."""
    try:
        with PARSING:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # numpy parses the header as a Python literal, which can fail in many ways
        raise UserError(f"{path}: this array is damaged") from error
    if array.ndim != 1 or array.dtype != dtype:
        raise UserError(f"{path}: this array is damaged")
    return array.view(np.ndarray)  # the same memory; slices of a np.memmap cost ten times as much

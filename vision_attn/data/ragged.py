"""Lists of different lengths, one after the other in an array, which may be a memory-mapped file."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vision_attn.files import replacing

ENCODING = ("utf-8", "surrogatepass")  # file names may hold any bytes
BLOCK = 4096


@dataclass(frozen=True, eq=False)
class Ragged:
    """N lists of numbers, or N texts as bytes: list i is values[starts[i]:starts[i + 1]].

    A Python string takes about 100 bytes more than its text, and is not shared by processes; these arrays are, if they
    are memory-mapped.
    """

    values: NDArray
    starts: NDArray[np.int64]

    @classmethod
    def numbers(cls, lists: Iterable[Sequence[int]]) -> "Ragged":
        """Store lists of integers below 2^31."""
        values, starts = array("i"), array("q", [0])
        for each in lists:
            values.extend(each)
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

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> NDArray:
        return self.values[self.starts[number] : self.starts[number + 1]]

    def text(self, number: int) -> str:
        return self[number].tobytes().decode(*ENCODING)

    def all_texts(self) -> Iterator[str]:
        """The texts in order, several times as fast as one by one."""
        for first in range(0, len(self), BLOCK):
            starts = self.starts[first : first + BLOCK + 1].tolist()
            block = self.values[starts[0] : starts[-1]].tobytes()
            for start, end in pairwise(starts):
                yield block[start - starts[0] : end - starts[0]].decode(*ENCODING)

    def lengths(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The lengths of the lists `numbers`, in their shape."""
        return self.starts[numbers + 1] - self.starts[numbers]

    def padded(self, numbers: NDArray[np.int64], padding: int) -> NDArray:
        """The lists `numbers` in their shape, followed by `padding` up to the longest: (*numbers, longest)."""
        lengths = self.lengths(numbers)[..., None]
        place = np.arange(lengths.max(initial=0))
        inside = place < lengths
        return np.where(inside, self.values[np.where(inside, self.starts[numbers][..., None] + place, 0)], padding)

    def save(self, folder: Path, name: str) -> None:
        """Write NAME.values.npy, then NAME.starts.npy."""
        for part in ("values", "starts"):
            with replacing(folder / f"{name}.{part}.npy") as path, path.open("wb") as file:
                np.save(file, getattr(self, part))

    @classmethod
    def open(cls, folder: Path, name: str) -> "Ragged":
        """Map what `save` wrote. Raises OSError or ValueError if it is missing or damaged."""
        values, starts = (opened(folder / f"{name}.{part}.npy") for part in ("values", "starts"))
        if values.ndim != 1 or starts.ndim != 1 or not len(starts) or (starts[0], starts[-1]) != (0, len(values)):
            raise ValueError(f"{folder / name}: these lists are damaged")
        return cls(values, starts)


def opened(path: Path) -> NDArray:
    """Map an array into memory; an empty one, which cannot be mapped, is read."""
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, _ = np.lib.format.read_array_header_1_0(file)
    array = np.load(path, mmap_mode="r" if 0 not in shape else None, allow_pickle=False)
    return array.view(np.ndarray)  # the same memory; slices of a np.memmap cost ten times as much

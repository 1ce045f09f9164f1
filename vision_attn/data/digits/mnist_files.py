"""Find the four files of MNIST by their names or headers, download them, and read them."""

import gzip
import logging
import os
import re
import struct
import tempfile
import zlib
from collections.abc import Sequence
from io import BufferedIOBase
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from vision_attn.system.console import printable, reason_of
from vision_attn.system.errors import UserError
from vision_attn.system.files import find

FILES = {
    "training": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
NAMED = {"training": re.compile("train", re.IGNORECASE), "test": re.compile("t10k|test", re.IGNORECASE)}
"""The pattern by which a file belongs to the training or the test set of `FILES`, if its name is not one of MNIST's
own."""
SIDE = 28
"""Height and width of a digit in pixels."""
MAX_BYTES = 2**28
"""The largest size of an unpacked file; MNIST's largest has 47 million bytes."""
MOST_FILES = 1000
"""The largest number of files of a folder whose headers are read."""
GZIP = b"\x1f\x8b"
"""The first bytes of a gzipped file."""
log = logging.getLogger(__name__)


class Pair(NamedTuple):
    """Files of images and labels that belong together, by their headers."""

    images: Path
    labels: Path
    number: int
    """The number of images."""
    sets: frozenset[str]
    """The sets of `FILES` to which they may belong, by their names."""


def locate(folder: str, *, download: bool) -> dict[str, Path]:
    """Find the file for each name in `FILES`, in `folder` or in a folder in it. `folder` is also searched for under
    `$VISION_ATTN_DATA` and `data/`.

    Files with other names are recognised by their headers: images by 28 x 28 bytes, labels by having the number of the
    images. "train", "t10k" or "test" in a name tells the set; otherwise the larger of two sets is the training set. A
    logged line names the files. Raises UserError if files are missing and cannot be downloaded, or if several would
    fit.
    """
    try:
        place = find(folder)
    except UserError:
        place = Path(os.environ.get("VISION_ATTN_DATA") or "data").expanduser() / Path(folder).expanduser()
    names = [name for pair in FILES.values() for name in pair]
    files = {name: file for name in names if (file := _existing(place, name))}
    hint = ""
    if missing := [name for name in names if name not in files]:
        recognised, hint = _find_by_headers(place, files)
        files |= recognised
    if not (missing := [name for name in missing if name not in files]):
        return files
    if not download:
        raise UserError(
            f"MNIST: {', '.join(missing)} not found in {place}{hint}: put the files there, gzipped or not "
            "(VISION_ATTN_DATA sets the folder of data sets), or download them with --data.download=true of "
            "vision-attn train, prepare or eval"
        )
    try:
        fetch(place, missing)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"MNIST could not be downloaded: put {', '.join(names)} into {place} yourself ({reason_of(error)})"
        ) from error
    return files | {name: place / name for name in missing}


def _existing(place: Path, name: str) -> Path | None:
    """Return the unpacked file of a name, also in a folder of this name, as some programs unpack it, or else the
    gzipped file."""
    for path in (place / name.removesuffix(".gz"), place / name):
        if path.exists() and not path.is_dir():
            return path
    return None


def _find_by_headers(place: Path, known: dict[str, Path]) -> tuple[dict[str, Path], str]:
    """Find the missing files by their headers, in a folder or else in its subfolders. Return them, and a hint for a
    message if the files are ambiguous."""
    hint = ""
    for pattern in ("*", "*/*"):
        shapes = _shapes([*known.values(), *islice(place.glob(pattern), MOST_FILES)])
        ways = _ways(place, shapes, known)
        if len(ways) == 1:
            (way,) = ways
            taken = {
                name: file
                for set_name, pair in zip(FILES, way, strict=True)
                for name, file in zip(FILES[set_name], pair[:2], strict=True)
                if name not in known
            }
            files = (f"{file.relative_to(place)} as {name.removesuffix('.gz')}" for name, file in taken.items())
            log.info("%s: taken by their headers: %s", place, printable(", ".join(files)))
            return taken, ""
        others = [path for path in shapes if path not in known.values()]
        if others and not hint:
            listed = (f"{path.relative_to(place)} ({' x '.join(map(str, shapes[path]))})" for path in others[:8])
            unclear = "which of these files are meant is not clear" if ways else "these files do not match"
            hint = printable(f"; {unclear}, rename the right ones: {', '.join(listed)}")
    return {}, hint


def _ways(place: Path, shapes: dict[Path, tuple[int, ...]], known: dict[str, Path]) -> list[tuple[Pair, Pair]]:
    """Return the possible pairs of a training and a test set, at most two."""
    matching = (
        Pair(image, label, count, sets)
        for image, (count, *sides) in shapes.items()
        for label, size in shapes.items()
        if sides == [SIDE, SIDE]
        and size == (count,)
        and (sets := _sets(image.relative_to(place)) & _sets(label.relative_to(place)))
    )
    pairs = [*islice(matching, MOST_FILES)]
    options = [
        [pair for pair in pairs if set_name in pair.sets and all(
            known.get(name, file) == file for name, file in zip(FILES[set_name], pair[:2], strict=True)
        )]
        for set_name in FILES
    ]  # fmt: skip
    ways = (
        (training, test)
        for training, test in product(*options)
        if {*training[:2]}.isdisjoint(test[:2])
        and (min(len(training.sets), len(test.sets)) == 1 or training.number > test.number)
    )
    return [*islice(ways, 2)]


def _sets(path: Path) -> frozenset[str]:
    """Return the sets to which a file may belong, by its name and the name of its folder."""
    return frozenset(set_name for set_name, said in NAMED.items() if said.search(str(path))) or frozenset(NAMED)


def _shapes(paths: Sequence[Path]) -> dict[Path, tuple[int, ...]]:
    """Return the shapes in the headers of the files that are in the format of MNIST. Of an unpacked and a gzipped file
    of the same name, only the unpacked one counts."""
    shapes: dict[Path, tuple[int, ...]] = {}
    for path in sorted(paths, key=lambda path: (path.suffix == ".gz", path)):
        if path.with_suffix("") in shapes and path.suffix == ".gz":
            continue
        try:
            if path.is_file() and not path.name.startswith("."):
                with _opened(path) as file:
                    shapes[path] = _read_shape(path, file)
        except (UserError, OSError, EOFError, zlib.error, struct.error):
            continue
    return shapes


def fetch(place: Path, names: list[str]) -> None:
    """Download and verify MNIST with torchvision, and move the files `names` into `place`."""
    from torchvision import datasets  # slow to import, and rarely needed

    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=place) as temporary:
        raw = Path(datasets.MNIST(temporary, download=True).raw_folder)
        for name in names:
            os.replace(raw / name, place / name)


def read_idx(path: Path) -> UInt8[Tensor, "..."]:
    """Read a file in the format of MNIST: two zero bytes, type 8 (bytes), number of dimensions, their sizes, data.

    Raises UserError for anything else. A gzipped file, whatever its name, is unpacked only up to the size in its
    header.
    """
    if not os.path.isfile(path):
        raise UserError(f"{path} is not a regular file")
    try:
        with _opened(path) as file:
            shape = _read_shape(path, file)
            content = bytearray(file.read(prod(shape) + 1))
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise UserError(f"{path} cannot be read ({error}): it is damaged, download it again") from error
    if len(content) != prod(shape):
        raise UserError(f"{path} is not a complete MNIST file: it is damaged, download it again")
    return torch.frombuffer(content, dtype=torch.uint8).view(shape)


def _opened(path: Path) -> BufferedIOBase | gzip.GzipFile:
    with open(path, "rb") as file:
        packed = file.read(len(GZIP)) == GZIP
    return gzip.open(path) if packed else open(path, "rb")


def _read_shape(path: Path, file: BufferedIOBase | gzip.GzipFile) -> tuple[int, ...]:
    """Read the shape from the header of `file`. Raises UserError naming `path` if it is not an MNIST header."""
    zeros, value_type, dimensions = struct.unpack(">HBB", file.read(4))
    if (zeros, value_type) != (0, 8) or not 1 <= dimensions <= 3:
        raise UserError(f"{path} is not an MNIST file: it is damaged, download it again")
    shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
    if not 0 < prod(shape) <= MAX_BYTES:
        sizes = " x ".join(map(str, shape))
        raise UserError(f"{path} declares {sizes} bytes, unlike any MNIST file: it is damaged, download it again")
    return shape

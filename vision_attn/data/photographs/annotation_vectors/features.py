"""`Features`, a cache of annotation vectors on disk, computed once by the frozen part of an encoder.

A cache is a folder of shards, `.npy` files of float16 (images, L, D), and `index.json`, which identifies the encoder
and the images and holds a checksum of each shard. A shard is renamed into place when it is complete, then listed. If a
process is killed at any time, other processes or a later one complete the cache to the same bytes.
"""

import logging
import mmap
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from filelock import FileLock, Timeout
from jaxtyping import Float16
from numpy.typing import NDArray
from torch import Tensor, nn

from vision_attn.data.array_headers import PARSING
from vision_attn.data.images.squares import in_threads
from vision_attn.data.photographs.annotation_vectors.feature_index import (
    APPENDED,
    Shard,
    append,
    complete,
    existing_shards,
    finished_shards,
    folder_name,
    make_header,
    older,
)
from vision_attn.data.photographs.pixels import AHEAD, Pixels, View
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.console import bytes_of, complain, progress
from vision_attn.system.errors import UserError
from vision_attn.system.files import is_full, replacing, sha256, sweep, way_on

SHARD = 512  # images; a multiple of the encoding batch, so that resuming forms the same batches
LOCK = ".lock"
OPEN = 128
"""The largest number of shards that are open at a time. Systems limit the open files of a process, often to 1,024, some
to 256."""
log = logging.getLogger(__name__)


class Features:
    """The annotation vectors of one or several complete caches, (N, L, D) float16, in the order of their images."""

    def __init__(
        self,
        folders: Sequence[Path],
        residency: Literal["memmap", "memory", "device"],
        device: torch.device,
        prefixes: Sequence[str] = (),
    ) -> None:
        """residency: whether vectors are in memory-mapped files, in main memory or on `device`.
        prefixes: the beginnings of the names of images in each folder, if several folders may have the same names.

        Raises UserError for an incomplete cache.
        """
        before = prefixes or [""] * len(folders)
        listed = [
            (folder, shard, prefix)
            for folder, prefix in zip(folders, before, strict=True)
            for shard in finished_shards(folder, SHARD)
        ]
        shards = [shard for _, shard, _ in listed]
        self._paths = [folder / shard["file"] for folder, shard, _ in listed]
        ends = np.cumsum([shard["shape"][0] for shard in shards])
        self._starts = np.array([0, *ends[:-1]])
        self.unreadable: dict[str, str] = {
            prefix + name: why for _, shard, prefix in listed for name, why in shard["unreadable"].items()
        }
        """Images that could not be read, with the reason; they have the vectors of a black image."""
        self.shape = tuple(shards[0]["shape"][1:])
        self.shard = lru_cache(OPEN)(self._shard)
        self.pinned = residency != "device" and device.type == "cuda"
        self.table: Tensor | None = None
        if residency != "memmap":
            where = device if residency == "device" else torch.device("cpu")
            self.table = torch.empty((int(ends[-1]), *self.shape), dtype=torch.float16, device=where)
            for path, start, end in zip(self._paths, self._starts, ends, strict=True):
                self.table[start:end] = torch.from_numpy(np.load(path))

    @property
    def on_device(self) -> bool:
        """Whether the vectors are on a GPU."""
        return self.table is not None and self.table.device.type != "cpu"

    def space(self, count: int) -> Float16[Tensor, "B L D"] | None:
        """Allocate the memory into which `gather` writes, pinned for a GPU; None if the vectors are already on the
        GPU."""
        if self.on_device:
            return None
        return torch.empty((count, *self.shape), dtype=torch.float16, pin_memory=self.pinned)

    def read(self, indices: NDArray[np.int64], space: Float16[Tensor, "B L D"] | None) -> Any:
        """Begin a batch, in any thread; see `Pixels.read`."""
        return indices if self.on_device else self.gather(indices, space)

    def finish(self, read: Any) -> Float16[Tensor, "B L D"]:
        return self.gather(read, None) if self.on_device else read

    def gather(self, indices: NDArray[np.int64], space: Float16[Tensor, "B L D"] | None) -> Float16[Tensor, "B L D"]:
        """Return the vectors of images `indices`, written into `space`. Does not call CUDA if `space` is given."""
        if self.table is not None and space is None:
            return self.table[torch.from_numpy(indices).to(self.table.device)]
        if self.table is not None:
            return torch.index_select(self.table, 0, torch.from_numpy(indices), out=space)
        assert space is not None  # only vectors on a GPU have no space
        into = space.numpy()
        for first in range(0, len(indices), OPEN):  # or shards would be closed between the advice and the copy
            block = indices[first : first + OPEN]
            self._read_ahead(block)
            for position, (number, row) in enumerate(self._places(block), first):
                into[position] = self.shard(number)[row]
        return space

    def _places(self, indices: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return the shard of each image, and its row in the shard."""
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        return list(zip(numbers.tolist(), (indices - self._starts[numbers]).tolist(), strict=True))

    def _read_ahead(self, indices: NDArray[np.int64]) -> None:
        """Ask the system to read all these vectors from the disk in parallel."""
        if not hasattr(mmap.mmap, "madvise"):  # Windows
            return
        length = prod(self.shape) * np.dtype(np.float16).itemsize
        for number, row in self._places(indices):
            shard: Any = self.shard(number)  # mapped
            first = shard.offset + row * length
            start = first - first % mmap.PAGESIZE
            with suppress(OSError):  # advice alone: what is wrong with the file shows when it is read
                shard.base.madvise(mmap.MADV_WILLNEED, start, first + length - start)

    def _shard(self, number: int) -> Float16[NDArray, "N L D"]:
        """Map a shard into memory. `shard` keeps the latest ones."""
        with PARSING:
            return np.load(self._paths[number], mmap_mode="r")


def cached_features(cache: Path, encoder: nn.Module, views: Sequence[View], *, verify: bool = False) -> Path:
    """Return the folder under `cache` with the features of `views`. Missing features are computed.

    Processes that need the same cache divide its shards among themselves, whether torchrun or the user started them, on
    one machine or on several that share the disk.

    verify: whether to read all shards and to replace damaged ones.

    Raises UserError if the folder belongs to another encoder or other images, or if the disk is full.
    """
    header = make_header(encoder, views)
    folder = cache / folder_name(header)
    try:
        if verify and folder.is_dir():
            with FileLock(folder / LOCK):
                _remove_damaged(folder, header)
        if not _is_finished(folder, header):
            if not folder.exists() and (before := older(cache, header)):
                log.warning(
                    "%s: made when photographs were resized in another way, so their pixels differ; computing the "
                    "annotation vectors again, in %s. Delete the former folder if no older version needs it",
                    before, folder,
                )  # fmt: skip
            folder.mkdir(parents=True, exist_ok=True)
            _complete(folder, header, encoder, views)
    except OSError as error:
        if is_full(error):
            again = way_on(error, "run the same command again to continue")
            raise UserError(f"{folder}: the disk is full; finished parts are kept{again}") from error
        raise UserError(
            f"{folder}: cannot write features ({error.strerror or error}): name another folder with data.cache"
        ) from error
    return folder


def complete_in(cache: Path, encoder: nn.Module, views: Sequence[View]) -> bool:
    """Return whether `cache` contains the features of all `views`."""
    header = make_header(encoder, views)
    return _is_finished(cache / folder_name(header), header)


def _is_finished(folder: Path, header: dict[str, Any]) -> bool:
    return folder.is_dir() and not (folder / APPENDED).exists() and all(existing_shards(folder, header, SHARD))


def _remove_damaged(folder: Path, header: dict[str, Any]) -> None:
    shards = [shard for shard in existing_shards(folder, header, SHARD) if shard]
    for shard in progress(shards, what="checksums", unit="part"):
        if sha256(folder / shard["file"]) != shard["sha256"]:
            log.warning("%s: damaged; computing it again", folder / shard["file"])
            (folder / shard["file"]).unlink()


def _complete(folder: Path, header: dict[str, Any], encoder: nn.Module, views: Sequence[View]) -> None:
    """Compute missing and damaged shards, except those that another process is computing, until all are there."""
    shards = existing_shards(folder, header, SHARD)
    if None in shards and ((folder / "index.json").exists() or (folder / APPENDED).exists()):
        log.warning(
            "%s: %d of %d parts are unfinished or damaged; computing them", folder, shards.count(None), len(shards)
        )
    blocks = [views[first : first + SHARD] for first in range(0, len(views), SHARD)]
    left = sum(len(block) for block, shard in zip(blocks, shards, strict=True) if not shard)
    image = prod(header["shape"][1:]) * 2
    _refuse_full_disk(folder, left * image)
    if left == len(views):
        complain(f"annotation vectors, {bytes_of(left * image)}, are kept in {folder}; it may be deleted afterwards")
    training = encoder.training
    encoder.eval()
    waiting = False
    try:
        with progress(what="annotation vectors", unit="image", total=len(views), initial=len(views) - left) as bar:
            while missing := [number for number, shard in enumerate(shards) if shard is None]:
                for number in missing:
                    if shards[number] is None:
                        _compute(number, shards, folder, header, encoder, blocks, bar)
                if None in shards and shards.count(None) == len(missing):
                    if not waiting:
                        log.warning("%s: other processes compute what is left; waiting for them", folder)
                    waiting = True
                    time.sleep(0.5)
    finally:
        encoder.train(training)
    with FileLock(folder / LOCK):
        complete(folder, header, [shard for shard in shards if shard is not None])
        sweep(folder, again=True)  # of processes killed meanwhile: a complete cache is not written to again
        for claim in folder.glob(f".*{LOCK}"):
            if claim.name != LOCK:
                claim.unlink(missing_ok=True)


def _compute(
    number: int,
    shards: list[Shard | None],
    folder: Path,
    header: dict[str, Any],
    encoder: nn.Module,
    blocks: Sequence[Sequence[View]],
    bar: Any,
) -> None:
    """Compute a shard and add it to the index, unless another process is computing it. If another process has computed
    it, reread the index."""
    path = folder / f"{number:05}.npy"
    with suppress(Timeout), FileLock(folder / f".{number:05}{LOCK}", blocking=False):
        if path.exists():
            for index, shard in enumerate(existing_shards(folder, header, SHARD)):
                if shard and shards[index] is None:
                    shards[index] = shard
                    bar.update(len(blocks[index]))
        if shards[number] is None:
            written = shards[number] = _write_shard(path, header, encoder, blocks[number], bar)
            with FileLock(folder / LOCK):
                append(folder, written)


def _refuse_full_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder}: the features still need {bytes_of(needed)}, but the disk has {bytes_of(free)} free; "
            "free some space or set another `cache`"
        )


def _write_shard(path: Path, header: dict[str, Any], encoder: Any, views: Sequence[View], bar: Any) -> dict[str, Any]:
    device = next((weight.device for weight in encoder.parameters()), torch.device("cpu"))
    batch = 128 if device.type == "cuda" else 16
    pixels = Pixels(views, encoder.resolution, encoder.fit, encoder.frames, device, silent=True)
    batches = [np.arange(first, min(first + batch, len(views))) for first in range(0, len(views), batch)]
    with replacing(path) as temporary, open(temporary, "wb") as file:
        shape = (len(views), *header["shape"][1:])
        np.lib.format.write_array_header_1_0(file, {"descr": "<f2", "fortran_order": False, "shape": shape})
        for read in in_threads(pixels.read, batches, ahead=AHEAD, threads=AHEAD):
            regions = _encode(encoder, pixels.finish(read), device)
            assert regions.shape[1:] == shape[1:], f"{type(encoder)} promised {shape[1:]}, gave {regions.shape[1:]}"
            file.write(regions.numpy().tobytes())
            bar.update(len(regions))
    failed = ((view, pixels.unreadable[view.name]) for view in views if view.name in pixels.unreadable)
    unreadable = {view.name: why.removeprefix(f"{view.file}: ") for view, why in failed}
    return {
        "file": path.name,
        "shape": list(shape),
        "bytes": path.stat().st_size,
        "sha256": sha256(path),
        "unreadable": unreadable,
    }


@torch.inference_mode()
def _encode(encoder: nn.Module, images: Tensor, device: torch.device) -> Float16[Tensor, "B L D"]:
    regions = at_least_float32(encoder(images.to(device)))
    return regions.clamp(-65504, 65504).to("cpu", torch.float16)  # the range of float16

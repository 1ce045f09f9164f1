"""A cache of annotation vectors on disk, computed once by a frozen encoder.

A cache is a folder of shards, `.npy` files of float16 (images, L, D), and `index.json`, which identifies the encoder
and the images and holds a checksum of each shard. A shard is renamed into place when it is complete, then listed in the
index. A process killed at any time leaves a cache that the next process completes to the same bytes.
"""

import errno
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float16
from numpy.typing import NDArray
from torch import Tensor, nn

from vision_attn.console import progress
from vision_attn.data.feature_index import existing_shards, finished_shards, folder_name, make_header
from vision_attn.data.images import View, in_threads
from vision_attn.files import replacing, sha256

SHARD = 512  # images; a multiple of the encoding batch, so that resuming forms the same batches
log = logging.getLogger(__name__)


class Features:
    """The annotation vectors of a complete cache, (N, L, D) float16, in the order of its images."""

    def __init__(self, folder: Path, residency: Literal["memmap", "memory", "device"], device: torch.device) -> None:
        """`residency`: memory-mapped files, main memory or `device`. Raises ValueError for an incomplete cache."""
        shards = finished_shards(folder, SHARD)
        self.unreadable: dict[str, str] = {name: why for shard in shards for name, why in shard["unreadable"].items()}
        """Images that could not be read, with the reason; their vectors are those of a black image."""
        self.shards: list[NDArray] = [np.load(folder / shard["file"], mmap_mode="r") for shard in shards]
        self.shape = self.shards[0].shape[1:]
        self.pinned = residency != "device" and device.type == "cuda"
        self.table: Tensor | None = None
        if residency != "memmap":
            rows = sum(len(shard) for shard in self.shards)
            where = device if residency == "device" else torch.device("cpu")
            self.table = torch.empty((rows, *self.shape), dtype=torch.float16, device=where)
            for number, shard in enumerate(self.shards):
                self.table[number * SHARD : number * SHARD + len(shard)] = torch.from_numpy(np.array(shard))

    @property
    def on_device(self) -> bool:
        """Whether the vectors are on a GPU."""
        return self.table is not None and self.table.device.type != "cpu"

    def space(self, count: int) -> Float16[Tensor, "B L D"] | None:
        """Allocate memory for `gather`, pinned for a GPU; None if the vectors are already on the GPU."""
        if self.on_device:
            return None
        return torch.empty((count, *self.shape), dtype=torch.float16, pin_memory=self.pinned)

    def gather(self, rows: NDArray[np.int64], space: Float16[Tensor, "B L D"] | None) -> Float16[Tensor, "B L D"]:
        """Return the vectors of images `rows`, written into `space`. Makes no CUDA call if `space` is given."""
        if self.table is not None and space is None:
            return self.table[torch.from_numpy(rows).to(self.table.device)]
        if self.table is not None:
            return torch.index_select(self.table, 0, torch.from_numpy(rows), out=space)
        into = space.numpy()
        for position, row in enumerate(rows):
            into[position] = self.shards[row // SHARD][row % SHARD]
        return space


def cached_features(cache: Path, encoder: nn.Module, views: Sequence[View], *, verify: bool = False) -> Path:
    """Return the folder under `cache` with the features of `views`. Missing features are computed.

    Under torchrun the first process of each machine computes, and the others wait. A second process started by hand
    waits too. `verify` reads all shards again and replaces damaged ones. Raises ValueError if the folder belongs to
    another encoder or other images, or if the disk is full.
    """
    header = make_header(encoder, views)
    folder = cache / folder_name(header)
    if int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))):
        if not _finished(folder, header):
            log.warning("%s: waiting until the first process has prepared it", folder)
        while not _finished(folder, header):
            time.sleep(0.5)
        return folder
    if verify or not _finished(folder, header):
        try:
            with _locked(folder):
                _complete(folder, header, encoder, views)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            cause = "the disk is full" if full else f"cannot write features ({error.strerror or error})"
            raise ValueError(
                f"{folder}: {cause}; finished parts are kept; run the same command again to continue"
            ) from error
    return folder


def _finished(folder: Path, header: dict[str, Any]) -> bool:
    return folder.is_dir() and all(existing_shards(folder, header, SHARD))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on `folder`. The operating system releases it when the process ends."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("%s is being prepared by another process; waiting for it", folder)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _complete(folder: Path, header: dict[str, Any], encoder: nn.Module, views: Sequence[View]) -> None:
    """Compute the shards that are missing or damaged, and add each to the index."""
    for leftover in folder.glob(".*.part"):  # its writer no longer holds the lock
        leftover.unlink()
    shards = existing_shards(folder, header, SHARD)
    if (folder / "index.json").exists() and None in shards:
        log.warning(
            "%s: %d of %d parts are missing or damaged; computing them", folder, shards.count(None), len(shards)
        )
    for number, shard in enumerate(shards):
        if shard and sha256(folder / shard["file"]) != shard["sha256"]:
            log.warning("%s: damaged; computing it again", folder / shard["file"])
            shards[number] = None
    missing = [number for number, shard in enumerate(shards) if shard is None]
    count, regions, size = header["shape"]
    left = sum(min(SHARD, count - number * SHARD) for number in missing)
    _refuse_full_disk(folder, left * regions * size * 2)

    training = encoder.training
    encoder.eval()
    try:
        with progress(what="annotation vectors", unit="image", total=count, initial=count - left) as bar:
            for number in missing:
                part = slice(number * SHARD, (number + 1) * SHARD)
                shards[number] = _write_shard(folder / f"{number:05}.npy", header, encoder, views[part], bar)
                with replacing(folder / "index.json") as temporary:
                    listed = [shard for shard in shards if shard]
                    temporary.write_text(json.dumps({**header, "shards": listed}, indent=1), encoding="utf-8")
    finally:
        encoder.train(training)


def _refuse_full_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ValueError(
            f"{folder}: the features still need {needed / 1e9:.2f} GB, but the disk has {free / 1e9:.2f} GB free; "
            "free some space or set another `cache`"
        )


def _write_shard(
    path: Path, header: dict[str, Any], encoder: nn.Module, views: Sequence[View], bar: Any
) -> dict[str, Any]:
    unreadable: dict[str, str] = {}
    device = next((weight.device for weight in encoder.parameters()), torch.device("cpu"))
    batch = 128 if device.type == "cuda" else 16
    with replacing(path) as temporary, open(temporary, "wb") as file:
        shape = (len(views), *header["shape"][1:])
        np.lib.format.write_array_header_1_0(file, {"descr": "<f2", "fortran_order": False, "shape": shape})
        pictures = in_threads(lambda view: _read(view, encoder.resolution), views, ahead=2 * batch)
        for first in range(0, len(views), batch):
            images, complaints = zip(*islice(pictures, batch), strict=True)
            unreadable |= {view.name: why for view, why in zip(views[first:], complaints, strict=False) if why}
            regions = _encode(encoder, torch.stack(images), device)
            assert regions.shape[1:] == shape[1:], f"{type(encoder)} promised {shape[1:]}, gave {regions.shape[1:]}"
            file.write(regions.numpy().tobytes())
            bar.update(len(images))
    return {
        "file": path.name,
        "shape": list(shape),
        "bytes": path.stat().st_size,
        "sha256": sha256(path),
        "unreadable": unreadable,
    }


def _read(view: View, resolution: int) -> tuple[Tensor, str]:
    try:
        return view.read(resolution), ""
    except ValueError as error:
        return torch.zeros(3, resolution, resolution, dtype=torch.uint8), str(error).removeprefix(f"{view.file}: ")


@torch.inference_mode()
def _encode(encoder: nn.Module, images: Tensor, device: torch.device) -> Float16[Tensor, "B L D"]:
    regions = encoder(images.to(device).contiguous(memory_format=torch.channels_last))
    return regions.clamp(-65504, 65504).to("cpu", torch.float16)  # the range of float16

"""Write, read and check the index of a cache of annotation vectors, and check the headers of its shards.

While a cache is being computed, `shards.jsonl` has a line for each finished shard; when all are finished, `index.json`
lists them. A cache can be computed again, so damaged parts count as missing. A valid index of other features is an
error, because computing would overwrite these features.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np

from vision_attn.data.array_headers import PARSING
from vision_attn.data.images.resizing import RESIZING
from vision_attn.data.photographs.pixels import View
from vision_attn.system.errors import UserError
from vision_attn.system.files import brief, digest, read_json, replacing

FORMAT = 1
APPENDED = "shards.jsonl"
Shard = dict[str, Any]
"""An entry of the index: file, shape, bytes, sha256, and the images that could not be read, with reasons."""


def make_header(encoder: Any, views: Sequence[View]) -> dict[str, Any]:
    """Return the header, which identifies a cache: the encoder, the way of resizing, and the name and size in bytes of
    each image."""
    return {
        "format": FORMAT,
        "encoder": {key: value for key, value in sorted(encoder.identity().items())},
        "pixels": RESIZING,
        "shape": [len(views), prod(encoder.layout), encoder.region_size],
        "images": listing(views),
    }


def listing(views: Sequence[View]) -> str:
    """Return a checksum of the name and the size in bytes of each image."""
    checksum, lines = hashlib.sha256(), map(_line, views)
    while block := "".join(islice(lines, 4096)):
        checksum.update(block.encode(errors="surrogatepass"))  # file names may hold any bytes
    return checksum.hexdigest()


def _line(view: View) -> str:
    size = os.stat(str(view.file)).st_size if view.size is None else view.size
    return f"{view.name}\t{size}{' mirrored' if view.mirrored else ''}\n"


def folder_name(header: dict[str, Any]) -> str:
    """Return a folder name unique to `header`, so that several caches can share a parent folder."""
    encoder = header["encoder"]
    fields = [str(encoder[key]) for key in ("backbone", "node", "resolution") if key in encoder]
    fields.append(digest(header)[:12])
    return re.sub(r"[^\w.-]+", "_", "-".join(fields))


def older(cache: Path, header: dict[str, Any]) -> Path | None:
    """Return the folder of the same features from photographs that were resized in the older way; None if there is
    none."""
    folder = cache / folder_name({key: value for key, value in header.items() if key != "pixels"})
    return folder if folder.is_dir() else None


def existing_shards(folder: Path, header: dict[str, Any], size: int) -> list[Shard | None]:
    """Return the index entry of each shard; None for a missing or damaged shard.

    size: the number of images of a shard.

    Raises UserError if the index belongs to other features.
    """
    try:
        index = _read(folder)
    except UserError:
        index = {}
    if not all(type(index.get(key)) is type(value) for key, value in header.items()):
        index = {}
    for key in index and header:
        if index[key] != header[key]:
            raise UserError(
                f"{folder}: these features were made for another {key}: {_flat(index[key])}, not {header[key]}; "
                "name another `cache` or remove the folder"
            )
    return _listed(folder, index.get("shards"), header["shape"], size)


def append(folder: Path, shard: Shard) -> None:
    """Add a finished shard to `shards.jsonl`. The caller must hold the lock of the folder."""
    with open(folder / APPENDED, "ab") as file:
        file.write(b"\n" + json.dumps(shard).encode() + b"\n")  # the line before may be of a killed process
        file.flush()
        os.fsync(file.fileno())


def complete(folder: Path, header: dict[str, Any], shards: Sequence[Shard]) -> None:
    """Write `index.json` of a complete cache. The caller must hold the lock of the folder."""
    with replacing(folder / "index.json") as temporary:
        temporary.write_text(json.dumps({**header, "shards": shards}, indent=1), encoding="utf-8")
    (folder / APPENDED).unlink(missing_ok=True)


def finished_shards(folder: Path, size: int) -> list[Shard]:
    """Return the entries of a complete cache. Raises UserError if `folder` contains none, or a damaged one."""
    index = _read(folder)
    shape, shards = index.get("shape"), index.get("shards")
    if (
        index.get("format") == FORMAT
        and isinstance(shards, list)
        and isinstance(shape, list)
        and len(shape) == 3
        and all(type(length) is int and length > 0 for length in shape)
        and ceil(shape[0] / size) == len(shards)
    ):
        entries = [shard for shard in _listed(folder, shards, shape, size) if shard is not None]
        if len(entries) == len(shards):
            return entries
    raise UserError(f"{folder}: these features are damaged or incomplete; prepare them again")


def _read(folder: Path) -> dict[str, Any]:
    """Read index.json; {} if there is none. Raises UserError if it is not a JSON object."""
    path = folder / "index.json"
    if not path.is_file():  # reading a FIFO would block
        return {}
    index = read_json(path)
    if not isinstance(index, dict):
        raise UserError(f"{path} is not a feature index")
    return index


def _listed(folder: Path, entries: Any, shape: list[int], size: int) -> list[Shard | None]:
    """Return the entry of each shard, found by its file name; None if the entry or the shard is invalid."""
    named: dict[str, Any] = {}
    for entry in entries if isinstance(entries, list) else ():
        name = entry.get("file") if isinstance(entry, dict) else None
        if isinstance(name, str):
            named[name] = None if name in named else entry
    named |= {entry["file"]: entry for entry in _appended(folder)}
    shards: list[Shard | None] = []
    for number, first in enumerate(range(0, shape[0], size)):
        entry = named.get(f"{number:05}.npy")
        expected = [min(size, shape[0] - first), *shape[1:]]
        shards.append(entry if entry and _is_complete(entry, expected) and _whole(folder, entry) else None)
    return shards


def _appended(folder: Path) -> Iterator[Shard]:
    """Yield the entries of `shards.jsonl`. Invalid lines are left out, such as half a line of a killed process."""
    with suppress(OSError), open(folder / APPENDED, "rb") as file:
        for line in file:
            with suppress(ValueError, RecursionError):
                entry = json.loads(line)
                if isinstance(entry, dict) and isinstance(entry.get("file"), str):
                    yield entry


def _is_complete(entry: Shard, shape: list[int]) -> bool:
    """Return whether an entry has all fields, with the right types and shape."""
    unreadable = entry.get("unreadable")
    texts = [*unreadable.values(), entry.get("sha256")] if isinstance(unreadable, dict) else [None]
    whole = type(entry.get("bytes")) is int and all(isinstance(text, str) for text in texts)
    return whole and entry.get("shape") == shape


def _whole(folder: Path, entry: Shard) -> bool:
    """Return whether the file of a shard has the size in its entry, and the header of an array of the right shape."""
    path = folder / entry["file"]
    try:
        if not path.is_file() or path.stat().st_size != entry["bytes"]:
            return False
        with open(path, "rb") as file, PARSING:
            if np.lib.format.read_magic(file) != (1, 0):
                return False
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            size = file.tell() + prod(shape) * dtype.itemsize
    except Exception:  # numpy parses the header as a Python literal, which can fail in many ways
        return False
    return (list(shape), fortran, dtype.str, size) == (entry["shape"], False, "<f2", entry["bytes"])


def _flat(value: Any) -> str:
    """Format a value for a message; a dict as its items."""
    if isinstance(value, dict):
        return ", ".join(f"{brief(key)}: {brief(item)}" for key, item in value.items())[:300]
    return brief(value)

"""Shards of captioned photographs: tar files in WebDataset's convention, and Parquet files as Hugging Face has them."""

import json
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.data.images.open import ENDINGS, Encoded
from vision_attn.data.photographs.photograph import one_line
from vision_attn.system.console import reason_of
from vision_attn.system.files import find

NEEDED = "shards need the packages webdataset and pyarrow: pip install 'vision-attn[scale]'"

CAPTIONS = ("txt", "json")
"""The endings of captions in a tar file."""

META = re.compile(r"__[^/]*__($|/)")
"""Names of what is about a tar file and no sample, in WebDataset's convention."""
MOST_SHARDS = 1_000_000
LARGEST_MEMBER = 2**29
"""Bytes of a file in a tar file; it is read as a whole."""


class Sample(NamedTuple):
    """A photograph of a shard with its captions."""

    photograph: Encoded
    captions: tuple[str, ...]


def expanded(pattern: str) -> list[str]:
    """The patterns that one with ranges such as `{000..331}` stands for. Raises ValueError if there are too many: the
    pattern may come from the config of a run folder. A name of a file is one, also with braces in it."""
    if "{" not in pattern or _is_name(pattern):
        return [pattern]
    if _alternatives(pattern) > MOST_SHARDS:
        raise ValueError(f"{pattern[:200]}: stands for more than {MOST_SHARDS:,} shards")
    try:
        from webdataset.shardlists import expand_urls
    except ImportError as error:
        raise ValueError(NEEDED) from error
    return expand_urls(pattern)


def _alternatives(pattern: str) -> int:
    """At least as many as `pattern` stands for."""
    groups = r"\{([^{}]*)\}"
    nested = re.sub(groups, "", pattern).count(",")
    return 2**nested * prod(map(_size, re.findall(groups, pattern)))


def _size(group: str) -> int:
    """The alternatives of one pair of braces: of `000..331` or of `a,b`."""
    if ".." not in group:
        return 1 + group.count(",")
    ends = [number[:19] for number in re.findall(r"-?\d+", group)[:2]]
    if max(map(len, ends), default=0) == 19:
        return MOST_SHARDS + 1
    return abs(int(ends[1]) - int(ends[0])) + 1 if len(ends) == 2 else 64  # letters


def matching(pattern: str) -> list[Path]:
    """The files that match a pattern with `*` and `?`, as given or under the folders of data sets. A name of a file or
    a folder is one, also with these signs in it. Raises ValueError for what is no regular file: reading a pipe would
    wait forever."""
    parent = Path(pattern).parent
    if _is_name(pattern) or not any(sign in pattern for sign in "*?["):
        found = [find(pattern).absolute()]
    elif any(sign in str(parent) for sign in "*?[") and not _is_name(str(parent)):
        raise ValueError(f"{pattern}: only the name of the file may hold * or ?")
    else:
        folder = find(parent)
        found = [folder.absolute() / name for name in sorted(glob(Path(pattern).name, root_dir=folder))]
    for path in found:
        if not path.is_file():
            raise ValueError(f"{path}: not a regular file")
    return found


def _is_name(pattern: str) -> bool:
    """Whether there is a file or a folder of just this name."""
    try:
        return bool(find(pattern))
    except ValueError:
        return False


def read(path: Path, photograph: str, caption: str) -> Iterator[Sample]:
    """Read the samples of a shard. `photograph` and `caption` are the columns of a Parquet file."""
    return parquet(path, photograph, caption) if path.suffix == ".parquet" else tar(path)


def count(path: Path) -> int:
    """The samples of a shard, without reading its photographs: those with a photograph and a caption in a tar file, the
    rows of a Parquet file."""
    if path.suffix == ".parquet":
        with _parquet_file(path) as file:
            return file.metadata.num_rows
    endings = defaultdict[str, set[str]](set)
    for name in map(Path, (name for name, _ in members(path, contents=False))):
        first, _, ending = name.name.partition(".")
        endings[str(name.parent / first)].add(ending.lower())
    return sum(
        any(f".{ending}" in ENDINGS for ending in had) and not had.isdisjoint(CAPTIONS) for had in endings.values()
    )


def members(path: Path, *, contents: bool = True) -> Iterator[tuple[str, bytes]]:
    """The files of a tar file, by name; empty without `contents`. Raises ValueError naming the tar file if it is
    damaged, which may show only after the last file that can be found, or if a file in it is too large."""
    try:
        with tarfile.open(path, "r:") as file:
            name = ""
            for member in file:
                if member.isreg():
                    name = member.name
                    if member.size > LARGEST_MEMBER:
                        raise tarfile.TarError(f"{name[:200]} has {member.size:,} bytes")
                    yield name, file.extractfile(member).read() if contents else b""
                file.members = []  # or it would keep all
            file.fileobj.seek(file.offset)
            if file.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # `tarfile` just ends there
                raise tarfile.TarError(
                    f"it is damaged or cut off {f'after {name[:200]}' if name else 'at its beginning'}"
                )
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ValueError(f"{path} is not a readable tar file: {error}") from error


def tar(path: Path) -> Iterator[Sample]:
    """Read the samples of a tar file. One without an image or without a caption is left out. Raises ValueError naming
    the file if it is damaged."""
    try:
        from webdataset.tariterators import group_by_keys
    except ImportError as error:
        raise ValueError(NEEDED) from error
    files = (
        {"fname": name, "data": data, "__url__": str(path)} for name, data in members(path) if not META.match(name)
    )
    for record in group_by_keys(files):
        images = [ending for ending in record if f".{ending}" in ENDINGS]
        captions = _captions(record)
        if images and captions:
            yield Sample(Encoded(f"{path.name}/{record['__key__']}", record[images[0]]), captions)


def _captions(record: dict[str, Any]) -> tuple[str, ...]:
    """The captions of a sample of a tar file: lines of text, or JSON with `caption`, a text or a list."""
    if "txt" in record:
        return _texts(record["txt"].decode("utf-8", "replace").split("\n"))
    try:
        content = json.loads(record.get("json", b"null"))
    except (ValueError, RecursionError):
        return ()
    return _texts(content.get("caption") if isinstance(content, dict) else None)


def _texts(value: Any) -> tuple[str, ...]:
    """One caption or several as a tuple of lines that are not empty; () for anything else."""
    values = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    lines = (one_line(text) for text in values if isinstance(text, str))
    return tuple(line for line in lines if line)


def parquet(path: Path, photograph: str, caption: str) -> Iterator[Sample]:
    """Read the samples of a Parquet file, a few rows at a time. Raises ValueError if it lacks one of the columns."""
    with _parquet_file(path) as file:
        for column in (photograph, caption):
            if column not in file.schema_arrow.names:
                names = ", ".join(file.schema_arrow.names[:20])
                raise ValueError(f"{path} has no column {column!r}, but {names}: set photograph and caption")
        number = 0
        for rows in file.iter_batches(batch_size=16, columns=[photograph, caption]):
            for row in rows.to_pylist():
                image, captions = row[photograph], _texts(row[caption])
                content = image.get("bytes") if isinstance(image, dict) else image
                if isinstance(content, bytes) and captions:
                    yield Sample(Encoded(f"{path.name}/{number}", content), captions)
                number += 1


@contextmanager
def _parquet_file(path: Path) -> Iterator[Any]:
    """An open Parquet file; errors of reading it become a ValueError that names it."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ValueError(NEEDED) from error
    try:
        with ParquetFile(path, memory_map=False) as file:
            yield file
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable Parquet file: {reason_of(error)}") from error

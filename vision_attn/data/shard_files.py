"""Shards of captioned photographs: tar files in WebDataset's convention, and Parquet files as Hugging Face has them."""

import json
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.data.annotations import one_line
from vision_attn.data.photographs import ENDINGS, Encoded
from vision_attn.files import find

NEEDED = "shards need the packages webdataset and pyarrow: pip install 'vision-attn[scale]'"

CAPTIONS = ("txt", "json")
"""The endings of captions in a tar file."""


class Sample(NamedTuple):
    """A photograph of a shard with its captions."""

    photograph: Encoded
    captions: tuple[str, ...]


def expanded(pattern: str) -> list[str]:
    """The patterns that one with ranges such as `{000..331}` stands for."""
    if "{" not in pattern:
        return [pattern]
    try:
        from webdataset.shardlists import expand_urls
    except ImportError as error:
        raise ValueError(NEEDED) from error
    return expand_urls(pattern)


def matching(pattern: str) -> list[Path]:
    """The files that match a pattern with `*` and `?`, as given or under the folders of data sets."""
    if not any(sign in pattern for sign in "*?["):
        return [find(pattern).absolute()]
    if any(sign in str(Path(pattern).parent) for sign in "*?["):
        raise ValueError(f"{pattern}: only the name of the file may hold * or ?")
    folder = find(Path(pattern).parent)
    return [folder.absolute() / name for name in sorted(glob(Path(pattern).name, root_dir=folder))]


def read(path: Path, photograph: str, caption: str) -> Iterator[Sample]:
    """Read the samples of a shard. `photograph` and `caption` are the columns of a Parquet file."""
    return parquet(path, photograph, caption) if path.suffix == ".parquet" else tar(path)


def count(path: Path) -> int:
    """The samples of a shard, without reading its photographs: those with a photograph and a caption in a tar file, the
    rows of a Parquet file."""
    if path.suffix == ".parquet":
        return _parquet_file(path).metadata.num_rows
    try:
        with tarfile.open(path, "r:") as file:
            endings = defaultdict[str, set[str]](set)
            for name in map(Path, (member.name for member in file if member.isreg())):
                first, _, ending = name.name.partition(".")
                endings[str(name.parent / first)].add(ending.lower())
        return sum(
            any(f".{ending}" in ENDINGS for ending in had) and not had.isdisjoint(CAPTIONS) for had in endings.values()
        )
    except (tarfile.TarError, OSError) as error:
        raise ValueError(f"{path} is not a readable tar file: {error}") from error


def tar(path: Path) -> Iterator[Sample]:
    """Read the samples of a tar file. One without an image or without a caption is left out. Raises ValueError naming
    the file if it is damaged."""
    try:
        from webdataset import tariterators
    except ImportError as error:
        raise ValueError(NEEDED) from error
    try:
        with open(path, "rb") as file:
            members = ({**member, "__url__": str(path)} for member in tariterators.tar_file_iterator(file))
            for record in tariterators.group_by_keys(members):
                images = [ending for ending in record if f".{ending}" in ENDINGS]
                captions = _captions(record)
                if images and captions:
                    yield Sample(Encoded(f"{path.name}/{record['__key__']}", record[images[0]]), captions)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ValueError(f"{path} is not a readable tar file: {error}") from error


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
    file = _parquet_file(path)
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


def _parquet_file(path: Path) -> Any:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ValueError(NEEDED) from error
    try:
        return ParquetFile(path, memory_map=False)
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable Parquet file: {' '.join(str(error).split())}") from error

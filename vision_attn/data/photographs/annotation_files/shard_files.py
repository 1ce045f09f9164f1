"""Find and read shards of captioned photographs: tar files in WebDataset's convention, and Parquet files as on Hugging
Face."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from math import prod
from pathlib import Path
from typing import Any

from vision_attn.data.images.open import Encoded
from vision_attn.data.photographs.annotation_files.caption_values import Marks, marks_in
from vision_attn.data.photographs.annotation_files.samples import (
    BARE,
    BLANK,
    MARKED,
    UNSEEN,
    LeftOut,
    Sample,
    caption_lines,
    tar_samples,
)  # fmt: skip
from vision_attn.data.record_files import values_of
from vision_attn.system.console import reason_of
from vision_attn.system.errors import UserError
from vision_attn.system.files import find

NEEDED = "shards need the packages webdataset and pyarrow: pip install 'vision-attn[scale]'"

MOST_SHARDS = 1_000_000


def expanded(pattern: str) -> list[str]:
    """Expand ranges such as `{000..331}` in a pattern. The name of an existing file is unchanged, even with braces.
    Raises UserError if there are too many patterns, since the config of a run folder may come from anyone."""
    if "{" not in pattern or _is_name(pattern):
        return [pattern]
    if _alternatives(pattern) > MOST_SHARDS:
        raise UserError(f"{pattern[:200]}: stands for more than {MOST_SHARDS:,} shards")
    try:
        from webdataset.shardlists import expand_urls
    except ImportError as error:
        raise UserError(NEEDED) from error
    return expand_urls(pattern)


def _alternatives(pattern: str) -> int:
    """Return an upper bound on the number of patterns that `pattern` expands to."""
    groups = r"\{([^{}]*)\}"
    nested = re.sub(groups, "", pattern).count(",")
    return 2**nested * prod(map(_size, re.findall(groups, pattern)))


def _size(group: str) -> int:
    """Return the number of alternatives in one pair of braces, such as `000..331` or `a,b`."""
    if ".." not in group:
        return 1 + group.count(",")
    ends = [number[:19] for number in re.findall(r"-?\d+", group)[:2]]
    if max(map(len, ends), default=0) == 19:
        return MOST_SHARDS + 1
    return abs(int(ends[1]) - int(ends[0])) + 1 if len(ends) == 2 else 64  # a range of letters has at most so many


def matching(pattern: str) -> list[Path]:
    """Find the files that match a pattern with `*` and `?`, as given or under the folders of data sets. The name of an
    existing file or folder matches itself, even with these signs. Raises UserError for anything but regular files,
    since reading a pipe would wait forever."""
    parent = Path(pattern).parent
    if _is_name(pattern) or not any(sign in pattern for sign in "*?["):
        paths = [find(pattern).absolute()]
    elif any(sign in str(parent) for sign in "*?[") and not _is_name(str(parent)):
        raise UserError(f"{pattern}: only the name of the file may hold * or ?")
    else:
        folder = find(parent)
        paths = [folder.absolute() / name for name in sorted(glob(Path(pattern).name, root_dir=folder))]
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path}: not a regular file")
    return paths


def _is_name(pattern: str) -> bool:
    """Return whether a file or a folder has exactly this name."""
    try:
        return bool(find(pattern))
    except UserError:
        return False


def read(path: Path, photograph: str, caption: str, left_out: LeftOut) -> Iterator[Sample]:
    """Read the samples of a shard.

    photograph, caption: the columns of a Parquet file.
    left_out: counts the samples without a photograph or a caption. It is complete when the shard has been read to its
        end.
    """
    if path.suffix == ".parquet":
        return parquet_samples(path, photograph, caption, left_out)
    return tar_samples(path, left_out)


def count(path: Path, photograph: str, caption: str, left_out: LeftOut) -> int:
    """Return the number of samples that `read` yields, counted without reading photographs."""
    if path.suffix == ".parquet":
        return sum(1 for _ in parquet_samples(path, photograph, caption, left_out, photographs=False))
    return sum(1 for _ in tar_samples(path, left_out, photographs=False))


def parquet_samples(
    path: Path, photograph: str, caption: str, left_out: LeftOut, *, photographs: bool = True
) -> Iterator[Sample]:
    """Read the samples of a Parquet file, a few rows at a time.

    photograph, caption: the names of the columns.
    left_out: counts the samples without a photograph or a caption.
    photographs: whether to return photographs. If not, they are empty; they are read only to find missing ones, if the
        file does not say that there are none.

    Raises UserError if the file lacks one of the columns.
    """
    with _parquet_file(path) as file:
        names = file.schema_arrow.names
        for column in (photograph, caption):
            if column not in names:
                raise UserError(
                    f"{path} has no column {column!r}, but {', '.join(names[:20])}: set photograph and caption"
                )
        columns = [caption, *(name for name, _ in marks_in(tuple(names)) if name != caption)]
        if whole := photographs or not _all_there(file, photograph):
            columns.append(photograph)
        parquet_rows = (
            row for batch in file.iter_batches(batch_size=16, columns=columns) for row in values_of(path, batch)
        )
        for number, row in enumerate(parquet_rows):
            marks = Marks(path)
            marked, name = marks.on(row), f"{path.name}/{number}"
            captions = () if marked else caption_lines(row[caption], marks)
            image = row.get(photograph)
            content: Any = image.get("bytes") if isinstance(image, dict) else image
            if whole and not isinstance(content, bytes):
                left_out.add(UNSEEN, name)
            elif captions:
                left_out.read += 1
                yield Sample(Encoded(name, content if photographs else b""), captions)
            else:
                left_out.add(MARKED if marks.count else BLANK if row[caption] else BARE, name)


def _all_there(file: Any, photograph: str) -> bool:
    """Return whether a Parquet file says that each row has the bytes of a photograph."""
    column_type = str(file.schema_arrow.field(photograph).type)
    held = photograph if "binary" in column_type and not column_type.startswith("struct") else f"{photograph}.bytes"
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        leaves = [group.column(place) for place in range(group.num_columns)]
        known = [leaf.statistics for leaf in leaves if leaf.path_in_schema == held]
        if not known or known[0] is None or not known[0].has_null_count or known[0].null_count:
            return False
    return "binary" in column_type


@contextmanager
def _parquet_file(path: Path) -> Iterator[Any]:
    """Context manager: open a Parquet file. Errors of reading it become a UserError naming the file."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise UserError(NEEDED) from error
    try:
        with ParquetFile(path, memory_map=False) as file:
            yield file
    except (ArrowException, OSError, UnicodeDecodeError) as error:  # the last: names of columns that are not UTF-8
        raise UserError(f"{path} is not a readable Parquet file: {reason_of(error)}") from error

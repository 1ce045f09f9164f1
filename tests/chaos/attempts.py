"""What the tests of kills and of full disks share: folders in memory, attempts side by side, and what is the same."""

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHANGING = ("seconds", "items_per_second", "waits", "time", "hardware")
"""What no two runs have in common: when, how fast and (under load) on how many threads."""


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A temporary folder where waiting for the disk costs nothing, if the machine has such a place."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="vision-attn-chaos-", dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def some(number: int, share: Callable[[int], int], *, most: int | None = None) -> list[int]:
    """Of range(`number`) the share that is to be attempted, drawn without repetition, `most` at most."""
    wanted = share(number if most is None else min(most, number))
    return sorted(random.Random(number).sample(range(number), wanted))


def side_by_side(tally: Any, attempt: Callable[[Any], str | None], items: Iterable[Any]) -> None:
    """Count `attempt(item)` for each item, as many at a time as there are cores. It returns what went wrong, if so."""

    def caught(item: Any) -> str | None:
        try:
            return attempt(item)
        except AssertionError as error:
            return f"{item}: {' '.join(str(error).split())[:1500]}"

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for failure in pool.map(caught, items):
            tally.add(failure)


def contents(folder: Path, *, besides: Sequence[str] = ()) -> dict[str, bytes]:
    """Every file and folder below `folder`, without what changes from run to run, and without the folder's own name."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.split("/")[0] in besides:
            continue
        content = b"" if path.is_dir() else path.read_bytes().replace(os.fsencode(folder), b"HERE")
        if path.name.startswith("metrics_"):
            record = json.loads(content)
            content = json.dumps({key: value for key, value in record.items() if key not in CHANGING}).encode()
        found[name] = content
    return found


def assert_same_contents(one: Path, other: Path, *, besides: Sequence[str] = ()) -> None:
    """The same files with the same bytes, and no file that the other lacks."""
    first, second = contents(one, besides=besides), contents(other, besides=besides)
    assert sorted(first) == sorted(second), f"names: {set(first) ^ set(second)}"
    different = [name for name in first if first[name] != second[name]]
    assert not different, f"other bytes: {different}"

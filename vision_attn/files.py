"""Where files are found, and how they are written: under a temporary name, then renamed."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def find(path: str | Path) -> Path:
    """The file or folder `path`: as given, under `$VISION_ATTN_DATA`, or under `data/`.

    Raises ValueError naming every place that was tried.
    """
    path = Path(path).expanduser()
    places = [path]
    if not path.is_absolute():
        root = os.environ.get("VISION_ATTN_DATA")
        places += [Path(root).expanduser() / path] if root else []
        places += [Path("data") / path]
    for place in places:
        if place.exists():
            return place
    tried = ", ".join(str(place) for place in places)
    hint = "" if os.environ.get("VISION_ATTN_DATA") else "; VISION_ATTN_DATA may name another folder of data sets"
    raise ValueError(f"{path} was not found (tried {tried}){hint}")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary sibling of `path` to write to; renamed onto `path` on success, removed on failure."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        if temporary.is_file():
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)

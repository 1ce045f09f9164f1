"""Replace folders atomically, and lock the folder of a run."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from vision_attn.system.console import reason_of
from vision_attn.system.errors import UserError
from vision_attn.system.files import WINDOWS, is_full, is_temporary, shortened
from vision_attn.system.inputs import check_replaced

MARK = "written-by-vision-attn"
"""The name of an empty file in each folder of temporary names. It shows that the folder is ours and may be removed."""


@contextmanager
def replacing_folder(path: Path, before: Path | None = None) -> Iterator[Path]:
    """Context manager: return a new folder to write to. At the end it is flushed to disk and atomically replaces
    `path`.

    The folder that was at `path` moves to `before`, or is removed. All temporary names are in the hidden folder
    `workplace(path)`: "part" is being written, "new" is complete, "old" is the replaced folder. If the process is
    killed at any moment, one of them is complete, and `settle` finds it. Raises UserError if writing fails, if the
    hidden folder is not ours, or if the running command reads files in `path`; `path` and `before` are then unchanged.
    """
    place = workplace(path)
    part = place / "part"
    check_replaced(path)
    try:
        settle(path, before)
        path.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir()
        (place / MARK).touch()
        part.mkdir()
        yield part
        for file in [*part.rglob("*"), part]:
            _flush(file)
        part.rename(place / "new")
        settle(path, before)
    except (OSError, RuntimeError, SafetensorError) as error:
        kept = "; what was saved before is still intact" if path.exists() else ""
        known = isinstance(error, OSError) and error.errno is not None and not is_full(error)
        asked = "" if known else " (is the disk full?)"
        raise UserError(f"{path} could not be written{asked}: {reason_of(error)}{kept}") from error
    finally:
        if (place / MARK).exists():
            shutil.rmtree(part, ignore_errors=True)
        with suppress(OSError):
            _close(place)


def settle(path: Path, before: Path | None = None) -> None:
    """Complete or undo a replacement of the folder `path`, or of a file in it, that a killed process left unfinished.
    Raises UserError if the folder of temporary names is not ours."""
    place = workplace(path)
    part, new, old = (place / name for name in ("part", "new", "old"))
    if os.path.lexists(place):
        if not _is_ours(place):
            raise UserError(f"{place} is not of vision-attn, which would remove it: give it another name")
        remove(part)
        if new.exists() and path.exists():
            _retire(old, before)
            path.rename(old)
        for whole in (new, old):
            if whole.exists() and not path.exists():
                whole.rename(path)
        _flush(place)
    if path.parent.exists():
        _flush(path.parent)
    _retire(old, before)
    _close(place)
    for left in path.glob(".*.part"):  # a file that was being replaced
        if is_temporary(left.name):
            remove(left)


def workplace(path: Path) -> Path:
    """Return the folder next to `path` that holds all temporary names while `path` is replaced."""
    return path.with_name(f".{shortened(path.name, unique=True)}.vision-attn")


def unsettled(path: Path) -> bool:
    """Return whether a killed process left a complete folder that `settle` brings back to `path`."""
    return any((workplace(path) / name).exists() for name in ("new", "old"))


def remove(path: Path) -> None:
    """Remove a file or a folder with its contents; do nothing if it does not exist."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_ours(place: Path) -> bool:
    """Return whether a folder of temporary names has our mark, or is empty."""
    names = os.listdir(place) if place.is_dir() and not place.is_symlink() else [""]
    return not names or MARK in names


def _close(place: Path) -> None:
    """Remove a folder of temporary names if it holds nothing but our mark."""
    if place.is_dir() and _is_ours(place) and set(os.listdir(place)) <= {MARK}:
        (place / MARK).unlink(missing_ok=True)
        place.rmdir()


def _retire(old: Path, before: Path | None) -> None:
    """Move a replaced folder to `before`, or remove it. `path` is complete throughout."""
    if old.exists() and before is not None:
        remove(before)
        old.rename(before)
    remove(old)


def _flush(path: Path) -> None:
    if WINDOWS and path.is_dir():  # which has no descriptor there
        return
    descriptor = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def lock_folder(folder: Path, name: str = ".lock", *, packed: Path | None = None) -> Iterator[None]:
    """Context manager: lock a run folder by a file `name`. The operating system releases the lock when this process
    ends, even if it is killed.

    Raises UserError if another process holds the lock, if the folder or its lock cannot be created, or if the file is
    not ours.

    packed: a folder below `folder`, if the lock is only for that folder.
    """
    path = folder / name
    lock = FileLock(path)
    doing, option = ("is being trained", "--run.folder") if packed is None else ("is being written", "folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_lock(path)
        lock.acquire(timeout=0.1, poll_interval=0.02)  # again, if its holder has just removed it
    except Timeout as error:
        holder = ""
        with suppress(OSError):  # Windows lets nobody else read it.
            holder = path.read_text().strip()
        holder = holder or "another process"
        raise UserError(f"{packed or folder} {doing} by {holder}: wait for it, or choose another folder") from error
    except OSError as error:
        reason = "it is a file" if folder.is_file() else error.strerror or str(error)
        use = "used as a run folder" if packed is None else "written"
        raise UserError(f"{packed or folder} cannot be {use}: {reason}; choose another {option}") from error
    try:
        with suppress(OSError):  # The disk may be full; only the name of the holder is lost.
            path.write_text(f"process {os.getpid()}")
        yield
    finally:
        with suppress(OSError):  # Before the release: afterwards it may be another process's. Windows keeps the file.
            path.unlink()
        lock.release()


def _check_lock(path: Path) -> None:
    """Raise UserError for a file that is no lock, since it would be removed."""
    content = b""
    with suppress(OSError), open(path, "rb") as file:  # it may be missing, and Windows lets nobody read a held one
        content = file.read(64)
    if not re.fullmatch(rb"(process \d+)?", content):
        raise UserError(f"{path} is no lock of vision-attn, which would remove it: give it another name")

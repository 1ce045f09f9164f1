"""Atomic replacement of folders, and the lock on the folder of a run."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from vision_attn.system.console import reason_of
from vision_attn.system.files import WINDOWS


@contextmanager
def replacing_folder(path: Path, before: Path | None = None) -> Iterator[Path]:
    """Yield a new folder to write to; at the end it is flushed to disk and atomically replaces `path`.

    The folder that was at `path` moves to `before`, or is removed. Temporary names: .part is being written, .new is
    complete, .old is the one it replaces. If the process is killed at any moment, one of them is complete, and `settle`
    finds it. Raises ValueError if writing fails; `path` and `before` are then unchanged.
    """
    part = _sibling(path, "part")
    try:
        settle(path, before)
        part.mkdir(parents=True)
        yield part
        for file in [*part.rglob("*"), part]:
            _flush(file)
        part.rename(_sibling(path, "new"))
        settle(path, before)
    except (OSError, RuntimeError, SafetensorError) as error:
        kept = "; what was saved before is still intact" if path.exists() else ""
        raise ValueError(f"{path} could not be written (is the disk full?): {reason_of(error)}{kept}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def settle(path: Path, before: Path | None = None) -> None:
    """Complete or undo the replacement of the folder `path`, or of a file in it, by a process that was killed."""
    part, new, old = (_sibling(path, name) for name in ("part", "new", "old"))
    remove(part)
    if new.exists() and path.exists():
        _retire(old, before)
        path.rename(old)
    for whole in (new, old):
        if whole.exists() and not path.exists():
            whole.rename(path)
    if path.parent.exists():
        _flush(path.parent)
    _retire(old, before)
    for left in path.glob(".*.part"):  # a file that was being replaced
        remove(left)


def remove(path: Path) -> None:
    """Remove a file or a folder with its contents; do nothing if it does not exist."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _retire(old: Path, before: Path | None) -> None:
    """Move a replaced folder to `before`, or remove it. `path` is complete throughout."""
    if old.exists() and before is not None:
        remove(before)
        old.rename(before)
    remove(old)


def _sibling(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.{name}")


def _flush(path: Path) -> None:
    if WINDOWS and path.is_dir():  # which has no descriptor there
        return
    descriptor = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def lock_folder(folder: Path, name: str = ".lock") -> Iterator[None]:
    """Lock a run folder by a file of this `name`. The operating system releases the lock when this process ends, even
    if it is killed.

    Raises ValueError if another process holds the lock, or if the folder or its lock cannot be created.
    """
    path = folder / name
    lock = FileLock(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0.1, poll_interval=0.02)  # again, if its holder has just removed it
    except Timeout as error:
        holder = ""
        with suppress(OSError):  # Windows lets nobody else read it.
            holder = path.read_text().strip()
        holder = holder or "another process"
        raise ValueError(f"{folder} is being trained by {holder}: wait for it, or choose another folder") from error
    except OSError as error:
        reason = "it is a file" if folder.is_file() else error.strerror or str(error)
        raise ValueError(f"{folder} cannot be used as a run folder: {reason}; choose another --run.folder") from error
    try:
        with suppress(OSError):  # The disk may be full; only the name of the holder is lost.
            path.write_text(f"process {os.getpid()}")
        yield
    finally:
        with suppress(OSError):  # Before the release: afterwards it may be another process's. Windows keeps the file.
            path.unlink()
        lock.release()

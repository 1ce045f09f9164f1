"""Keep track of the files that the running command reads and writes, so that no output replaces an input or another
output.

Within `inputs_kept`, code that reads a file named by the user calls `reads`, and code that knows the name of an output
before the work calls `writes`. `check_replaced` is called before any file is replaced, and `keeps` notes files that
must stay. Files are compared by identity: links and other spellings of a name are the same file. Outside of
`inputs_kept`, such as in a notebook, nothing is checked.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vision_attn.system.errors import UserError

PICTURES = (".png", ".gif")
"""Endings of the pictures that the package draws."""
WRITER = "vision_attn"
"""The name of the program in these pictures, and in pages."""


class _Command:
    """The files that one command reads, writes and keeps, by their identity."""

    def __init__(self) -> None:
        self.inputs: dict[object, str] = {}
        self.outputs: dict[object, str] = {}
        self.kept: dict[object, str] = {}


_command: _Command | None = None
log = logging.getLogger(__name__)


@contextmanager
def inputs_kept() -> Iterator[None]:
    """Context manager of one command: protect the files that `reads` notes from being replaced."""
    global _command
    before, _command = _command, _Command()
    try:
        yield
    finally:
        _command = before


def reads(path: str | Path) -> None:
    """Note a file or a folder that is read. Raises UserError if it is also an output."""
    if _command is None:
        return
    key = _identity(path)
    if key in _command.outputs:
        raise UserError(_refusal(path, _command.outputs[key]))
    if key not in _command.inputs:
        log.debug("reading %s", path)
    _command.inputs.setdefault(key, os.path.abspath(path))


def reads_all(folder: str | Path) -> None:
    """Note that the files of a folder are read, without those of its subfolders."""
    if _command is not None and os.path.isdir(folder):
        for entry in os.scandir(folder):
            if entry.is_file():
                reads(entry.path)


def is_read(path: str | Path) -> bool:
    """Return whether `reads` has noted an existing file."""
    return _command is not None and os.path.exists(path) and _identity(path) in _command.inputs


def keeps(path: str | Path, option: str) -> None:
    """Note a file that must stay unchanged, although the output of `option` may have its name."""
    if _command is not None:
        _command.kept[_identity(path)] = option


def writes(path: str | Path, option: str) -> None:
    """Note a file that will be written. Raises UserError if it is an input, or another output.

    option: the option that named it.
    """
    if _command is None:
        return
    check_replaced(path, option)
    if _identity(path) in _command.outputs:
        raise UserError(f"{path} would be written twice: name another place with {option}")
    _command.outputs[_identity(path)] = option


def check_replaced(path: str | Path, option: str | None = None) -> None:
    """Raise UserError if a file or folder that is about to be replaced is an input, holds an input, is a picture in a
    folder of inputs, or was noted by `keeps`.

    option: the option that named `path`, which may not be the output of another option.
    """
    if _command is None:
        return
    if not option:
        log.debug("writing %s", path)
    if option and _command.outputs.get(_identity(path), option) != option:
        raise UserError(f"{path} would be written twice: name another place with {option}")
    if not os.path.lexists(path):
        return
    drawn = os.path.splitext(path)[1].lower() in PICTURES and _identity(os.path.dirname(path) or ".")
    if _identity(path) in _command.inputs or drawn in _command.inputs:
        raise UserError(_refusal(path, option))
    if _identity(path) in _command.kept:
        way = f"move it away, or name another place with {_command.kept[_identity(path)]}"
        raise UserError(f"{path} would be replaced, but vision-attn did not write it, or it has changed since: {way}")
    if os.path.isdir(path):
        inside = os.path.join(os.path.realpath(path), "")
        for name in _command.inputs.values():
            if os.path.realpath(name).startswith(inside):
                raise UserError(_refusal(name, option, folder=path))


def _identity(path: str | Path) -> object:
    """Return a key that is equal for two names of a file. The key of a file that does not exist is its path."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return os.path.normcase(os.path.realpath(path))
    return status.st_dev, status.st_ino


def _refusal(path: str | Path, option: str | None, *, folder: str | Path = "") -> str:
    where = f"{folder}, which would be replaced, holds {path}" if folder else f"{path} would be replaced"
    return f"{where}, but this command reads it: name another place" + f" with {option}" * bool(option)

"""Damaged files are read in a process of its own, which one of them might kill. One process reads all of them: to copy
the process of the tests takes a sixth of a second."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from vision_attn.system.errors import UserError


def refused(read: Callable[[Path], object], files: Iterable[Path], folder: Path) -> list[bool]:
    """Whether each file is refused by a UserError. Fail where reading one ends in another way."""
    files, told = list(files), folder / "told"
    told.touch()
    child = os.fork()
    if child == 0:
        try:
            with told.open("wb", buffering=0) as said:
                for file in files:
                    try:
                        read(file)
                        said.write(b"0")
                    except UserError:
                        said.write(b"1")
            os._exit(0)
        finally:
            os._exit(2)
    status, answers = os.waitpid(child, 0)[1], told.read_bytes()
    assert status == 0, f"status {status} at {files[len(answers)]}"
    assert len(answers) == len(files)
    return [answer == ord("1") for answer in answers]

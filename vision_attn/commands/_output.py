"""Output folders: tested for write access before long work begins."""

from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from vision_attn.system.files import scratch


def writable(folder: Path, option: str) -> Path:
    """Create `folder` if necessary and return it. Raises ValueError, which mentions `option`, if it is not writable.

    Also removes temporary files of killed processes from it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with scratch("check", folder):
            pass
    except FileExistsError as error:
        raise ValueError(f"{folder} is a file, not a folder: name another with {option}") from error
    except OSError as error:
        what = "written" if folder.is_dir() else "created"
        raise ValueError(
            f"{folder} cannot be {what} ({error.strerror or error}): name another folder with {option}"
        ) from error
    return folder


def check_file(file: Path, option: str) -> None:
    """Raise ValueError, which mentions `option`, if `file` cannot be written because of its folder or because it is
    one."""
    if file.is_dir():
        raise ValueError(f"{file} is a folder: {option} must name a file")
    writable(file.parent, option)


def check_writable(folder: Path, option: str) -> None:
    """Raise ValueError, which mentions `option`, if `folder` cannot be created or written; leave no new folder.

    For commands that run in one process: of several, one would remove what another has just created.
    """
    new = list(takewhile(lambda parent: not parent.exists(), (folder, *folder.parents)))
    writable(folder, option)
    with suppress(OSError):
        for parent in new:
            parent.rmdir()

"""Output folders: tested for write access before long work begins."""

from pathlib import Path

from vision_attn.files import scratch


def writable(folder: Path, option: str) -> Path:
    """Return `folder`. Raises ValueError, which mentions `option`, if it cannot be created or written.

    It is not created for good, so that a command that fails leaves no empty folder. Also removes temporary files of
    killed processes from it.
    """
    new = not folder.exists()
    try:
        with scratch("check", folder):
            pass
        if new:
            folder.rmdir()
    except FileExistsError as error:
        raise ValueError(f"{folder} is a file, not a folder: name another with {option}") from error
    except OSError as error:
        what = "written" if folder.is_dir() else "created"
        raise ValueError(
            f"{folder} cannot be {what} ({error.strerror or error}): name another folder with {option}"
        ) from error
    return folder

"""Folders that a verb will write into: made, and tried, before any long work."""

from pathlib import Path

from vision_attn.files import scratch


def writable(folder: Path, option: str) -> Path:
    """`folder`, made where it does not exist. Raises ValueError where it cannot be written; `option` names another.

    Also removes what killed processes left in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with scratch("check", folder):
            pass
    except FileExistsError as error:
        raise ValueError(f"{folder} is a file, not a folder: name another with {option}") from error
    except OSError as error:
        what = "written" if folder.is_dir() else "made"
        raise ValueError(
            f"{folder} cannot be {what} ({error.strerror or error}): name another folder with {option}"
        ) from error
    return folder

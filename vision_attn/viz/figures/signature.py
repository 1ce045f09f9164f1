"""Sign a figure in its last line, so that the package recognises a figure that it wrote and that has not been changed
since."""

import hashlib
from pathlib import Path

LINES = {".pdf": "%% vision-attn {}\n", ".svg": "<!-- vision-attn {} -->\n", ".png": "vision-attn {}\n"}
"""The last line of a figure, by its ending. In a PDF and an SVG it is a comment; readers of PNG ignore bytes after the
picture."""


def sign(file: Path, ending: str) -> None:
    """Append the line to a figure."""
    line = _line(file.read_bytes(), ending)
    with open(file, "ab") as opened:
        opened.write(line)


def is_signed(file: Path) -> bool:
    """Return whether a file is a figure that this package wrote and that has not been changed since."""
    ending, content = file.suffix.lower(), file.read_bytes()
    figure = content[: -len(_line(b"", ending))]
    return content == figure + _line(figure, ending)


def _line(content: bytes, ending: str) -> bytes:
    return LINES[ending].format(hashlib.sha256(content).hexdigest()).encode()

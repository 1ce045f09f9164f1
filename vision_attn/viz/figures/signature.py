"""Sign a figure in its last line, by which the package recognises a file that it wrote and that has not changed
since."""

import hashlib
from pathlib import Path

LINES = {".pdf": "%% vision-attn {}\n", ".svg": "<!-- vision-attn {} -->\n", ".png": "vision-attn {}\n"}
"""The line by the ending of a figure. In a PDF and an SVG it is a comment; readers of PNG ignore bytes after the
picture."""


def sign(file: Path, ending: str) -> None:
    """Append the line to a figure."""
    line = _line(file.read_bytes(), ending)
    with open(file, "ab") as opened:
        opened.write(line)


def is_signed(file: Path) -> bool:
    """Return whether a file is a figure as this package wrote it."""
    ending, content = file.suffix.lower(), file.read_bytes()
    figure = content[: -len(_line(b"", ending))]
    return content == figure + _line(figure, ending)


def _line(content: bytes, ending: str) -> bytes:
    return LINES[ending].format(hashlib.sha256(content).hexdigest()).encode()

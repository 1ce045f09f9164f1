"""Text in pictures: the choice of a typeface, and measuring, cutting and wrapping text in it.

Pillow's built-in typeface has only plain Latin letters. For other text, a typeface installed on the machine is used;
letters that none of them has lose their accents, or appear as empty boxes.
"""

import unicodedata
from functools import lru_cache

from PIL import ImageFont


class Typeface:
    """The first typeface that has every letter of `text`, or else the one that lacks the fewest."""

    FILES = (
        "NotoSans-Regular.ttf", "DejaVuSans.ttf", "Arial Unicode.ttf", "arial.ttf", "LiberationSans-Regular.ttf",
        "NotoSansCJK-Regular.ttc", "wqy-microhei.ttc", "msyh.ttc", "msgothic.ttc", "malgun.ttf", "PingFang.ttc",
        "NotoSansArabic-Regular.ttf", "NotoSansHebrew-Regular.ttf", "NotoSansDevanagari-Regular.ttf", "Nirmala.ttf",
    )  # fmt: skip

    def __init__(self, text: str) -> None:
        letters = frozenset(_plain(text))
        self.file, self.missing = None, _missing(None, letters)
        for file in self.FILES if self.missing else ():
            missing = _missing(file, letters)
            if len(missing) < len(self.missing):
                self.file, self.missing = file, missing
        bare = {letter: _bare(letter) for letter in self.missing}
        self.instead = {ord(letter): base for letter, base in bare.items() if not _missing(self.file, frozenset(base))}

    def font(self, size: int) -> ImageFont.FreeTypeFont:
        return _font(self.file, size)

    def width(self, text: str, size: int) -> float:
        return self.font(size).getlength(self._set(text))

    def shortened(self, text: str, size: int, room: float | int) -> str:
        """Cut `text` with an ellipsis if it is wider than `room`."""
        text = self._set(text)
        if self.width(text, size) <= room:
            return text
        kept = len(text)
        while kept and self.width(text[:kept] + "…", size) > room:
            kept -= 1
        return text[:kept].rstrip() + "…"

    def wrapped(self, text: str, size: int, room: float | int) -> list[str]:
        """Wrap `text` between words into the fewest lines no wider than `room`, of similar lengths."""
        lines = self._filled(text, size, room)
        for part in range(97, 50, -3):
            tighter = self._filled(text, size, room * part / 100)
            if len(tighter) != len(lines) or " ".join(tighter) != " ".join(lines):  # one more line, or a cut word
                break
            lines = tighter
        return lines

    def _filled(self, text: str, size: int, room: float | int) -> list[str]:
        lines: list[str] = []
        for word in self._set(text).split():
            longer = f"{lines[-1]} {word}" if lines else word
            if lines and self.width(longer, size) <= room:
                lines[-1] = longer
            else:
                lines.append(self.shortened(word, size, room))
        return lines

    def _set(self, text: str) -> str:
        return _plain(text).translate(self.instead)


def right_to_left(text: str) -> bool:
    """Return whether the first letter with a direction is right-to-left, as `dir=auto` of HTML does."""
    return next((kind != "L" for kind in map(unicodedata.bidirectional, text) if kind in ("L", "R", "AL")), False)


def _plain(text: str) -> str:
    """Return `text` on one line, with question marks for control characters and lone surrogates."""
    return "".join("?" if unicodedata.category(c) in ("Cc", "Cs") else c for c in " ".join(text.split()))


def _bare(letter: str) -> str:
    """Return `letter` without its accents: e for é."""
    return "".join(c for c in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(c)) or letter


@lru_cache(maxsize=256)
def _font(file: str | None, size: int):
    return ImageFont.load_default(size) if file is None else ImageFont.truetype(file, size)


@lru_cache(maxsize=1024)
def _missing(file: str | None, letters: frozenset) -> frozenset:
    """Return the letters that typeface `file` lacks: it draws them as the placeholder of an unknown letter."""
    try:
        font = _font(file, 20)
    except OSError:
        return letters
    unknown = font.getmask("\U0010ffff")
    shapes = {letter: font.getmask(letter) for letter in letters if not letter.isspace()}
    return frozenset(c for c, shape in shapes.items() if shape.size == unknown.size and bytes(shape) == bytes(unknown))

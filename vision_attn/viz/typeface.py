"""Choose a typeface for text in pictures, and measure, cut and wrap text in it.

Pillow's built-in typeface has only plain Latin letters. Other text is drawn in a typeface installed on the machine.
Letters that no typeface has lose their accents or appear as empty boxes, and a message says so.
"""

import re
import unicodedata
from functools import lru_cache

from PIL import ImageFont

from vision_attn.system.console import complain

_CHINESE = r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_UNIT = re.compile(rf"\s*(?:[{_CHINESE}][、。，：；！？）」』ー]*|[^\s{_CHINESE}]+)")
"""Matches a unit that must not be broken, with the space before it: a word, or a single letter of Chinese or Japanese,
which have no spaces."""
_said: set[str] = set()


class Typeface:
    """The first typeface that has every letter of `text`, or else the one that lacks the fewest."""

    FIRST: str | None = None
    """The file that is tried before `FILES`; None: Pillow's built-in typeface."""
    FILES = (
        "NotoSans-Regular.ttf", "DejaVuSans.ttf", "Arial Unicode.ttf", "arial.ttf", "LiberationSans-Regular.ttf",
        "NotoSansCJK-Regular.ttc", "wqy-microhei.ttc", "msyh.ttc", "msgothic.ttc", "malgun.ttf", "PingFang.ttc",
        "NotoSansArabic-Regular.ttf", "NotoSansHebrew-Regular.ttf", "NotoSansDevanagari-Regular.ttf", "Nirmala.ttf",
    )  # fmt: skip

    def __init__(self, text: str) -> None:
        letters = frozenset(_plain(text))
        self.file, self.missing = self.FIRST, _missing(self.FIRST, letters)
        for file in self.FILES if self.missing else ():
            missing = _missing(file, letters)
            if len(missing) < len(self.missing):
                self.file, self.missing = file, missing
        bare = {letter: _bare(letter) for letter in self.missing}
        self.instead = {ord(letter): base for letter, base in bare.items() if not _missing(self.file, frozenset(base))}
        if boxes := sorted(letter for letter in self.missing if ord(letter) not in self.instead):
            _say_missing(boxes[0])

    def font(self, size: float | int) -> ImageFont.FreeTypeFont:
        return _font(self.file, size)

    def width(self, text: str, size: float | int) -> float | int:
        return self.font(size).getlength(self._set(text))

    def shortened(self, text: str, size: float | int, room: float | int) -> str:
        """Cut `text` with an ellipsis if it is wider than `room`."""
        text = self._set(text)
        if self.width(text, size) <= room:
            return text
        kept = len(text)
        while kept and self.width(text[:kept] + "…", size) > room:
            kept -= 1
        return text[:kept].rstrip() + "…"

    def wrapped(self, text: str, size: float | int, room: float | int) -> list[str]:
        """Wrap `text` between words into the fewest lines no wider than `room`, of similar lengths."""
        lines = self._filled(text, size, room)
        for percent in range(97, 50, -3):
            tighter = self._filled(text, size, room * percent / 100)
            if len(tighter) != len(lines) or _bunched(tighter) != _bunched(lines):  # one more line, or a cut word
                break
            lines = tighter
        return lines

    def _filled(self, text: str, size: float | int, room: float | int) -> list[str]:
        lines: list[str] = []
        for unit in _UNIT.findall(self._set(text)):
            if lines and self.width(lines[-1] + unit, size) <= room:
                lines[-1] += unit
            else:
                lines.append(self.shortened(unit.strip(), size, room))
        return lines

    def _set(self, text: str) -> str:
        return _plain(text).translate(self.instead)


def right_to_left(text: str) -> bool:
    """Return whether the first letter with a direction is right-to-left, as `dir=auto` of HTML does."""
    return next(
        (direction != "L" for direction in map(unicodedata.bidirectional, text) if direction in ("L", "R", "AL")), False
    )


def _plain(text: str) -> str:
    """Return `text` on one line, with question marks for control characters and lone surrogates."""
    return "".join("?" if unicodedata.category(c) in ("Cc", "Cs") else c for c in " ".join(text.split()))


def _bare(letter: str) -> str:
    """Return `letter` without its accents: e for é."""
    return "".join(c for c in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(c)) or letter


def _bunched(lines: list[str]) -> str:
    return "".join(lines).replace(" ", "")


def _say_missing(letter: str) -> None:
    """Log, once for each script, that letters appear as boxes."""
    script = unicodedata.name(letter, "unnamed").split()[0]
    if script not in _said:
        _said.add(script)
        complain(
            f"pictures show boxes in place of letters such as {letter}: install a typeface that has them, such as "
            "Noto Sans; pages show them if the browser has one"
        )


@lru_cache(maxsize=256)
def _font(file: str | None, size: float | int):
    return ImageFont.load_default(size) if file is None else ImageFont.truetype(file, size)


@lru_cache(maxsize=1024)
def _missing(file: str | None, letters: frozenset) -> frozenset:
    """Return the letters that a typeface lacks: it draws them like the placeholder of an unknown letter."""
    try:
        font = _font(file, 20)
    except OSError:
        return letters
    unknown = font.getmask("\U0010ffff")
    shapes = {letter: font.getmask(letter) for letter in letters if not letter.isspace()}
    return frozenset(c for c, shape in shapes.items() if shape.size == unknown.size and bytes(shape) == bytes(unknown))

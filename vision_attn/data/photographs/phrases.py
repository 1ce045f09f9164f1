"""Captions whose phrases have boxes, in the format of Flickr30k Entities (Plummer et al. 2015), for whoever has them.

Two files belong to an image NAME.jpg: `Sentences/NAME.txt`, whose lines are captions with phrases in brackets,
`[/EN#7/people A child] plays .`, and `Annotations/NAME.xml`, with the boxes of each number.
"""

import re
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

Box = tuple[float, float, float, float]

LARGEST = 2**20  # bytes of a file; those of Flickr30k Entities have a few thousand
_PHRASE = re.compile(r"\[/EN#(\d+)((?:/[^\s/\]]+)+) ([^\]]*)\]")


class Phrase(NamedTuple):
    """Words of a caption that name something."""

    words: list[str]
    first: int
    """The place of the first word in the caption."""
    number: str
    """What it names; phrases of all captions of an image share their numbers. "0" is nothing visible."""
    kinds: tuple[str, ...]
    """Such as people, animals, scene."""


class Grounded(NamedTuple):
    """An image's captions, their phrases, and the boxes of what phrases name."""

    captions: list[list[str]]
    phrases: list[list[Phrase]]
    boxes: dict[str, list[Box]]
    """Number -> boxes (x0, y0, x1, y1) in [-1, 1] over the whole image; several for several objects. Numbers without a
    box, such as those of scenes, are left out."""
    size: tuple[int, int]
    """Width and height of the image, in pixels."""

    def of_square(self) -> "Grounded":
        """The same over the centre square, which encoders see; boxes outside of it are left out."""
        side = min(self.size)
        x, y = (side / length for length in self.size)  # of the square, in [-1, 1] of the image

        def cut(box: Box) -> Box:
            x0, y0, x1, y1 = (min(max(edge / scale, -1.0), 1.0) for edge, scale in zip(box, (x, y, x, y), strict=True))
            return x0, y0, x1, y1

        kept = {number: [cut(box) for box in boxes] for number, boxes in self.boxes.items()}
        kept = {key: [box for box in boxes if box[0] < box[2] and box[1] < box[3]] for key, boxes in kept.items()}
        return self._replace(boxes={key: boxes for key, boxes in kept.items() if boxes}, size=(side, side))


def read_phrases(sentences: str | Path, annotations: str | Path) -> Grounded:
    """Read the two files of an image. Raises ValueError, which names the file and the line or the record."""
    captions, phrases = [], []
    for number, line in enumerate(_read(sentences).splitlines(), start=1):
        if line.strip():
            words, found = _caption(line, f"{sentences}, line {number}")
            captions.append(words)
            phrases.append(found)
    boxes, size = _boxes(annotations)
    return Grounded(captions, phrases, boxes, size)


def _caption(line: str, where: str) -> tuple[list[str], list[Phrase]]:
    words: list[str] = []
    phrases: list[Phrase] = []
    last = 0
    for match in _PHRASE.finditer(line):
        words += line[last : match.start()].split()
        named = match[3].split()
        phrases.append(Phrase(named, len(words), match[1], tuple(match[2].strip("/").split("/"))))
        words += named
        last = match.end()
    rest = line[last:].split()
    if any("[/EN#" in word for word in (*words, *rest)):
        raise ValueError(f"{where}: a phrase is not of the form [/EN#NUMBER/KIND WORDS]")
    return words + rest, phrases


def _boxes(path: str | Path) -> tuple[dict[str, list[Box]], tuple[int, int]]:
    text = _read(path)
    if "<!" in text.replace("<!--", ""):  # entities that expand, or name files
        raise ValueError(f"{path} declares a document type, which annotations do not need")
    try:
        root = ElementTree.fromstring(text)
        width, height = (int(root.findtext(f"size/{side}", "")) for side in ("width", "height"))
    except (ElementTree.ParseError, ValueError) as error:
        raise ValueError(f"{path} is not an annotation with the size of its image: {error}") from error
    if min(width, height) < 1:
        raise ValueError(f"{path}: the image has {width}x{height} pixels")
    boxes: dict[str, list[Box]] = {}
    for place, one in enumerate(root.iter("object"), start=1):
        if (bounds := one.find("bndbox")) is None:
            continue
        try:
            x0, y0, x1, y1 = (int(bounds.findtext(edge, "")) for edge in ("xmin", "ymin", "xmax", "ymax"))
        except ValueError as error:
            raise ValueError(f"{path}: object {place} has a box without four whole numbers") from error
        box = (2 * x0 / width - 1, 2 * y0 / height - 1, 2 * x1 / width - 1, 2 * y1 / height - 1)
        for name in one.findall("name"):
            boxes.setdefault((name.text or "").strip(), []).append(box)
    return boxes, (width, height)


def _read(path: str | Path) -> str:
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"{path} is larger than a megabyte, which no annotation of one image is")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error

"""The images whose maps are the most and the least faithful, which are kept while a measurement goes on."""

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from vision_attn.explain.subjects import Map

PICTURE = 448
"""Pixels of the longer side of a picture that is kept to be shown."""
EXAMPLES = 4
"""Images that are shown, of the most and of the least faithful ones."""


class Example(NamedTuple):
    """An answer to be shown, with the maps of all methods."""

    gain: float
    """The mean of all methods."""
    file: str
    picture: Image.Image
    text: str
    maps: dict[str, Map]


class Examples:
    """Of the images with the largest and the smallest mean gain, the most and the least faithful answer."""

    def __init__(self) -> None:
        self._images: list[tuple[float, Example, Example]] = []
        """The mean gain of an image, and its best and its worst answer; the largest mean first."""

    def add(self, answers: Sequence[Example]) -> None:
        """Take the answers to one image."""
        if not answers:
            return
        best, worst = (choose(answers, key=lambda one: one.gain) for choose in (max, min))
        for one in (best, worst):
            one.picture.thumbnail((PICTURE, PICTURE))
        image = sum(one.gain for one in answers) / len(answers), best, worst
        self._images = sorted([*self._images, image], key=lambda one: -one[0])
        if len(self._images) > 2 * EXAMPLES:
            del self._images[EXAMPLES]

    def shown(self) -> list[Example]:
        """One answer to each image: first half the most faithful of the best images, then the least of the others."""
        middle = (len(self._images) + 1) // 2
        return [best for _, best, _ in self._images[:middle]] + [worst for *_, worst in self._images[middle:]]

"""Keep the images with the most and the least faithful maps while a measurement runs."""

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from vision_attn.explain.explained_models import Map

PICTURE = 448
"""The longer side, in pixels, of a picture that is kept to be shown."""
EXAMPLES = 4
"""The number of images that are shown, the most and the least faithful ones together."""


class Example(NamedTuple):
    """An answer to be shown, with the maps of all methods."""

    gain: float
    """The mean gain of all methods."""
    file: str
    picture: Image.Image
    text: str
    maps: dict[str, Map]


class Examples:
    """Collects the most and the least faithful answers, to the images with the largest and the smallest mean gain."""

    def __init__(self) -> None:
        self._images: list[tuple[float, Example, Example]] = []
        """The mean gain of each image with its best and its worst answer, the largest mean first."""

    def add(self, answers: Sequence[Example]) -> None:
        """Add the answers to one image."""
        if not answers:
            return
        best, worst = (choose(answers, key=lambda answer: answer.gain) for choose in (max, min))
        for answer in (best, worst):
            answer.picture.thumbnail((PICTURE, PICTURE))
        image = sum(answer.gain for answer in answers) / len(answers), best, worst
        self._images = sorted([*self._images, image], key=lambda entry: -entry[0])
        if len(self._images) > 2 * EXAMPLES:
            del self._images[EXAMPLES]

    def shown(self) -> list[Example]:
        """Return one answer to each image: the most faithful answers to the best half of the images, then the least
        faithful ones to the others."""
        middle = (len(self._images) + 1) // 2
        return [best for _, best, _ in self._images[:middle]] + [worst for *_, worst in self._images[middle:]]

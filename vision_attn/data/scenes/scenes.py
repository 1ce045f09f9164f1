"""`Scenes`, a built-in data set of synthetic images with captions. It needs no download, and the boxes of named objects
are known.

Training scenes are new in every epoch. Validation and test scenes are fixed, with combinations of objects that never
occur in training (`grammar.pair_split`), so that a captioner has to combine what it learned separately.
"""

from functools import cached_property
from math import inf

import numpy as np
from jaxtyping import UInt8

from vision_attn.data.drawn_captions import DrawnCaptions
from vision_attn.data.random_streams import stream
from vision_attn.data.scenes import grammar
from vision_attn.data.scenes.canvas import Arrangement, arrange, draw
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.data.words import SPECIALS, Kind
from vision_attn.system.checks import check_range
from vision_attn.system.errors import UserError
from vision_attn.task import Task

RELATIONS = ("to the left of", "to the right of"), ("above", "below")
"""Words for before and behind, for each axis."""


class Scenes(DrawnCaptions):
    """Images of one to three coloured shapes, with five captions each, and with the boxes of the objects that words
    name.

    size: height and width of the images in pixels. Objects have sides of 12 to 20 pixels in images of 56, and in
        proportion in others.
    rows: captions per image in a batch, at most five; `references` always holds all five.
    batch_size, epoch_images, val_images, test_images: as for `GeneratedImages`.
    mixture: proportions of scenes with one, two and three objects.
    language: the language of captions; see `data.scenes.languages`.
    words: how captions are split into words (`data.words`); None: at spaces.
    max_words: the largest number of words of the vocabulary; None: no limit.

    Raises UserError for sizes and numbers that no scene can be drawn with.
    """

    def __init__(
        self,
        *,
        size: int = 56,
        batch_size: int = 64,
        rows: int = 5,
        epoch_images: int = 12800,
        val_images: int = 500,
        test_images: int = 1000,
        mixture: tuple[float, float, float] = (0.15, 0.6, 0.25),
        language: grammar.Name = "english",
        words: Kind | None = None,
        max_words: int | None = None,
    ) -> None:
        if size < 40:
            raise UserError(f"scenes: size={size} leaves no room for three objects; choose at least 40 pixels")
        if not 1 <= rows <= grammar.NUM_CAPTIONS:
            raise UserError(f"scenes: rows={rows}, but a scene has 1 to {grammar.NUM_CAPTIONS} captions")
        if not (min(mixture) >= 0 and 0 < sum(mixture) < inf):
            raise UserError(f"scenes: mixture={mixture} must be proportions of scenes with one, two and three objects")
        super().__init__(
            batch_size=batch_size, epoch_images=epoch_images, val_images=val_images, test_images=test_images
        )
        check_range("Scenes", 40, 512, size=size)
        check_range("Scenes", 1, 100_000, val_images=val_images, test_images=test_images)
        self.check_pixels(size**2)
        self.size, self.rows, self.mixture = size, rows, tuple(mixture)
        self.language, self.words, self.max_words = language, words, max_words
        self.plain = language == "english"
        named = (grammar.content_words(language, index) for index in range(len(grammar.OBJECTS)))
        self.content_words = frozenset(word for words in named for word in words)

    def prepare(self, task: Task) -> None:
        """Check that the encoder expects images of this size. There is nothing to download or cache."""
        if task.resolution not in (None, self.size):
            raise UserError(
                f"scenes are drawn at size={self.size}, but the encoder takes {task.resolution} pixels; "
                f"set the source's size to {task.resolution} or the encoder's resolution to {self.size}"
            )

    def sample(self, name: str, numbers: tuple[int, ...], num_images: int) -> Arrangement:
        return arrange(stream(*numbers), num_images, name, self.mixture, self.size)

    def pixels(self, samples: Arrangement) -> UInt8[np.ndarray, "B 3 S S"]:
        return draw(samples, self.size)

    def texts(self, samples: Arrangement, image: int) -> list[str]:
        return captions(samples, image, self.language)

    def truth(self, samples: Arrangement, image: int) -> dict[str, list[tuple[float, ...]]]:
        return boxes(samples, image, self.size, self.language)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """All words of the grammar, or the vocabulary that `restore` read."""
        texts = grammar.all_captions(self.language)
        vocabulary = Vocabulary.build(texts, words=self.words, min_count=1, max_words=self.max_words)
        if self.language != "english" and vocabulary.splitter.content:
            # All words but those that name what is drawn, also with a prefix, as in Hebrew, or a letter more.
            vocabulary.function_words = frozenset(
                word
                for word in vocabulary.words[len(SPECIALS) :]
                if not any(name in word for name in self.content_words)
            )
        return vocabulary


def captions(scenes: Arrangement, image: int, language: grammar.Name = "english") -> list[str]:
    """Return the five captions of an image."""
    objects = scenes.objects[image, : scenes.num_objects[image]].tolist()
    axis = int(scenes.axis[image])
    relation, across = RELATIONS[axis][scenes.behind[image]], RELATIONS[1 - axis][0]
    return grammar.captions_of(objects, relation, across, scenes.forms[image].tolist(), language)


def boxes(
    scenes: Arrangement, image: int, size: int, language: grammar.Name = "english"
) -> dict[str, list[tuple[float, ...]]]:
    """Return the box of the object that each content word names: (x0, y0, x1, y1) in [-1, 1]."""
    by_word: dict[str, list[tuple[float, ...]]] = {}
    for slot in range(scenes.num_objects[image]):
        (x, y), side = scenes.corner[image, slot].tolist(), int(scenes.side[image, slot])
        box = tuple(2 * edge / size - 1 for edge in (x, y, x + side, y + side))
        by_word |= {word: [box] for word in grammar.content_words(language, int(scenes.objects[image, slot]))}
    return by_word

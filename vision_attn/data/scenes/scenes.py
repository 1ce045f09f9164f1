"""Drawn scenes: a built-in data set of synthetic images. It needs no download, and the box of the object that each word
names is known.

Training scenes are new in every epoch. Validation and test scenes are fixed and contain combinations of objects that
training scenes never do (`scene_grammar.pair_split`), so that a captioner has to combine what it learned separately.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import inf

import numpy as np
import torch
from torch.nn import functional as F

from vision_attn.contracts import END, PAD
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.data.generated import Generated
from vision_attn.data.random_streams import FIXED, stream
from vision_attn.data.scenes import grammar
from vision_attn.data.scenes.canvas import Arrangement, arrange, draw
from vision_attn.data.vocabulary import UNKNOWN, Vocabulary, VocabularySource
from vision_attn.data.words import Kind
from vision_attn.system.checks import check_range
from vision_attn.task import SPLITS, Static, Task

REFERENCES = 2000
"""Scenes whose captions stand for those of all training scenes, which are new in every epoch."""

RELATIONS = ("to the left of", "to the right of"), ("above", "below")
"""Words for before and behind, for each axis."""


class Scenes(VocabularySource, Generated):
    """Images of one to three coloured shapes, with five captions each and the boxes of objects by word.

    size: height and width of the images in pixels. Objects have sides of 12 to 20 pixels in images of 56, and in
        proportion in others.
    rows: captions per image in a batch, at most five; `references` always holds all five.
    batch_size, epoch_images, val_images, test_images: as for `Generated`.
    mixture: proportions of scenes with one, two and three objects.
    language: of the captions: see `data.scenes.languages`.
    words, max_words: how captions become words (`data.words`; None: at spaces), and how many there are at most.

    Raises ValueError for sizes and numbers that no scene can be drawn with.
    """

    content_words: frozenset[str]
    """The words that name objects; `boxes` of a batch has those that occur in the scene."""

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
            raise ValueError(f"scenes: size={size} leaves no room for three objects; choose at least 40 pixels")
        if not 1 <= rows <= grammar.NUM_CAPTIONS:
            raise ValueError(f"scenes: rows={rows}, but a scene has 1 to {grammar.NUM_CAPTIONS} captions")
        if not (min(mixture) >= 0 and 0 < sum(mixture) < inf):
            raise ValueError(f"scenes: mixture={mixture} must be proportions of scenes with one, two and three objects")
        super().__init__(
            batch_size=batch_size, epoch_images=epoch_images, val_images=val_images, test_images=test_images
        )
        check_range("Scenes", 40, 512, size=size)
        check_range("Scenes", 1, 2**26, pixels_of_a_batch=batch_size * size**2)
        check_range("Scenes", 1, 100_000, val_images=val_images, test_images=test_images)
        check_range("Scenes", 1, 2**29, pixels_of_a_split=max(val_images, test_images) * size**2)
        self.size, self.rows, self.mixture = size, rows, tuple(mixture)
        self.language, self.words, self.max_words = language, words, max_words
        named = (grammar.content_words(language, index) for index in range(len(grammar.OBJECTS)))
        self.content_words = frozenset(word for words in named for word in words)

    def prepare(self, task: Task) -> None:
        """Check that the encoder expects images of this size. There is nothing to download or cache."""
        if task.resolution not in (None, self.size):
            raise ValueError(
                f"scenes are drawn at size={self.size}, but the encoder takes {task.resolution} pixels; "
                f"set the source's size to {task.resolution} or the encoder's resolution to {self.size}"
            )

    def sample(self, name: str, numbers: tuple[int, ...], num_images: int) -> Arrangement:
        return arrange(stream(*numbers), num_images, name, self.mixture, self.size)

    def train(self, epoch: int, **options: int) -> Iterator[CaptionBatch]:
        return map(self.at_one_shape, super().train(epoch, **options))

    def at_one_shape(self, batch: CaptionBatch) -> CaptionBatch:
        """Pad the rows of a training batch to `longest`, or more: a scene may hold more words than those looked at."""
        longest = tuple(map(max, self.longest, (batch.words != PAD).sum(dim=2).amax(dim=0).tolist()))
        words = F.pad(batch.words, (0, longest[0] - batch.words.shape[2]), value=PAD)
        return batch._replace(words=words, lengths=Static([longest] * len(words)))

    @cached_property
    def longest(self) -> tuple[int, ...]:
        """The most words of each row of a scene, longest first, of `REFERENCES` scenes: batches have one shape."""
        scenes = self.sample("train", (FIXED, SPLITS.index("train")), REFERENCES)
        texts = [captions(scenes, image, self.language)[: self.rows] for image in range(REFERENCES)]
        lengths = -np.sort([[-len(self.encode(text)) for text in each] for each in texts])
        return tuple(lengths.max(axis=0).tolist())

    def batch(self, name: str, scenes: Arrangement, ids: Sequence[int]) -> CaptionBatch:
        """Draw these scenes and write their captions. Images with the longest caption come first, and so do the longest
        captions of an image."""
        references = [captions(scenes, image, self.language) for image in range(len(ids))]
        words = [sorted(map(self.encode, texts[: self.rows]), key=len, reverse=True) for texts in references]
        order = sorted(range(len(ids)), key=lambda image: -len(words[image][0]))
        longest = len(words[order[0]][0])
        return CaptionBatch(
            images=torch.from_numpy(draw(scenes, self.size)[order]),
            words=torch.tensor([[row + [PAD] * (longest - len(row)) for row in words[image]] for image in order]),
            ids=tuple(ids[image] for image in order),
            references=tuple(references[image] for image in order),
            files=(None,) * len(order),
            boxes=tuple(boxes(scenes, image, self.size, self.language) for image in order),
        )

    def encode(self, caption: str) -> list[int]:
        """Word ids of a caption, END included. English captions are plain words, and split many times faster than by
        `vocabulary.encode`."""
        index, plain = self.vocabulary.index, self.vocabulary.kind.kind == "spaces" and self.language == "english"
        words = caption.split() if plain else self.vocabulary.tokens(caption)
        return [*(index.get(word, UNKNOWN) for word in words), END]

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """All words of the grammar, or the vocabulary that `restore` read."""
        texts = grammar.all_captions(self.language)
        return Vocabulary.build(texts, words=self.words, min_count=1, max_words=self.max_words)

    def references(self) -> Iterator[list[str]]:
        """The captions of `REFERENCES` fixed scenes with combinations of training."""
        scenes = self.sample("train", (FIXED, SPLITS.index("train")), REFERENCES)
        return (captions(scenes, image, self.language) for image in range(REFERENCES))


def captions(scenes: Arrangement, image: int, language: grammar.Name = "english") -> list[str]:
    """The five captions of an image."""
    objects = scenes.objects[image, : scenes.num_objects[image]].tolist()
    axis = int(scenes.axis[image])
    relation, across = RELATIONS[axis][scenes.behind[image]], RELATIONS[1 - axis][0]
    return grammar.captions_of(objects, relation, across, scenes.forms[image].tolist(), language)


def boxes(
    scenes: Arrangement, image: int, size: int, language: grammar.Name = "english"
) -> dict[str, list[tuple[float, float, float, float]]]:
    """The box of the object that each content word names: (x0, y0, x1, y1) in [-1, 1]."""
    found = {}
    for slot in range(scenes.num_objects[image]):
        (x, y), side = scenes.corner[image, slot].tolist(), int(scenes.side[image, slot])
        box = tuple(2 * edge / size - 1 for edge in (x, y, x + side, y + side))
        found |= {word: [box] for word in grammar.content_words(language, int(scenes.objects[image, slot]))}
    return found

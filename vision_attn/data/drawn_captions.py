"""`DrawnCaptions`, the base of data sets of drawn images with captions from a grammar."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch.nn import functional as F

from vision_attn.contracts import END, PAD
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.data.generated_images import GeneratedImages
from vision_attn.data.random_streams import FIXED
from vision_attn.data.vocabulary import UNKNOWN, VocabularySource
from vision_attn.task import SPLITS, Static


class DrawnCaptions(VocabularySource, GeneratedImages):
    """Base class of drawn images with captions. A subclass overrides `sample`, the random choices, and `pixels`,
    `texts` (the captions) and `truth` (the boxes), which follow from them. It sets `rows` and `vocabulary`."""

    rows: int
    content_words: frozenset[str]
    """The words that name drawn objects. `boxes` of a batch has entries for those that occur in the image."""
    num_references = 2000
    """The number of images whose captions represent those of all training images, which are new in every epoch."""
    plain = True
    """Whether the words of captions are separated by spaces, so that a fast way to split them can be used."""

    def pixels(self, samples: Any) -> UInt8[np.ndarray, "B ..."]:
        """Draw the images of these choices."""
        raise NotImplementedError

    def texts(self, samples: Any, image: int) -> list[str]:
        """Return all captions of an image."""
        raise NotImplementedError

    def truth(self, samples: Any, image: int) -> dict[str, list[tuple[float, ...]]]:
        """Return the boxes of the objects that each content word names; see `CaptionBatch.boxes`."""
        raise NotImplementedError

    def train(self, epoch: int, **options: int) -> Iterator[CaptionBatch]:
        return map(self.at_one_shape, super().train(epoch, **options))

    def at_one_shape(self, batch: CaptionBatch) -> CaptionBatch:
        """Pad the rows of a training batch to `longest`, or further if an image of the batch has more words."""
        longest = tuple(map(max, self.longest, (batch.words != PAD).sum(dim=2).amax(dim=0).tolist()))
        words = F.pad(batch.words, (0, longest[0] - batch.words.shape[2]), value=PAD)
        return batch._replace(words=words, lengths=Static([longest] * len(words)))

    @cached_property
    def longest(self) -> tuple[int, ...]:
        """The largest number of words in each row, longest row first, among `num_references` images: the shape of all
        batches."""
        lengths = -np.sort(
            [[-len(self.encode(text)) for text in captions[: self.rows]] for captions in self.references()]
        )
        return tuple(lengths.max(axis=0).tolist())

    def batch(self, name: str, samples: Any, ids: Sequence[int]) -> CaptionBatch:
        """Draw images and write their captions. Images with the longest captions come first, and so do the longest
        captions of an image."""
        references = [self.texts(samples, image) for image in range(len(ids))]
        words = [sorted(map(self.encode, texts[: self.rows]), key=len, reverse=True) for texts in references]
        order = sorted(range(len(ids)), key=lambda image: -len(words[image][0]))
        longest = len(words[order[0]][0])
        return CaptionBatch(
            images=torch.from_numpy(self.pixels(samples)[order]),
            words=torch.tensor([[row + [PAD] * (longest - len(row)) for row in words[image]] for image in order]),
            ids=tuple(ids[image] for image in order),
            references=tuple(references[image] for image in order),
            files=(None,) * len(order),
            boxes=tuple(self.truth(samples, image) for image in order),
        )

    def encode(self, caption: str) -> list[int]:
        """Return word ids of a caption, END included."""
        index, plain = self.vocabulary.index, self.vocabulary.splitter.kind == "spaces" and self.plain
        words = caption.split() if plain else self.vocabulary.tokens(caption)
        return [*(index.get(word, UNKNOWN) for word in words), END]

    def references(self) -> Iterator[list[str]]:
        """Return the captions of `num_references` fixed images with combinations of training."""
        samples = self.sample("train", (FIXED, SPLITS.index("train")), self.num_references)
        return (self.texts(samples, image) for image in range(self.num_references))

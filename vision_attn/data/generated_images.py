"""`GeneratedImages`, the base of data sets of drawn images: new images in every training epoch, fixed ones for
evaluation."""

from collections.abc import Iterator, Sequence
from typing import Any

from vision_attn.data.counted_batches import Counted, slices
from vision_attn.data.random_streams import FIXED, FRESH
from vision_attn.system.checks import check_range
from vision_attn.system.errors import UserError
from vision_attn.task import SPLITS, Batch, Source, equal_part, known_split


class GeneratedImages(Source):
    """Base class of drawn images. A subclass samples all random choices of some images, and draws them.

    batch_size, epoch_images: images in a batch and in a training epoch; an incomplete last batch is dropped.
    val_images, test_images: sizes of the fixed sets.

    Training images depend only on the seed, the epoch and the index of the batch.
    """

    batch_size: int

    def __init__(self, *, batch_size: int, epoch_images: int, val_images: int, test_images: int) -> None:
        if min(batch_size, val_images, test_images) < 1 or epoch_images < batch_size:
            raise UserError(
                f"{type(self).__name__.lower()}: batch_size={batch_size}, epoch_images={epoch_images}, "
                f"val_images={val_images} and test_images={test_images} must be positive, and an epoch must hold at "
                "least one batch"
            )
        self.batch_size, self.epoch_images = batch_size, epoch_images
        self.split_images = {"train": val_images, "val": val_images, "test": test_images}

    def check_pixels(self, number: int) -> None:
        """Raise UserError if the images of a batch or of a fixed set are too large together.

        number: the number of pixels of an image.
        """
        name = type(self).__name__
        check_range(name, 1, 2**26, pixels_of_a_batch=self.batch_size * number)
        check_range(name, 1, 2**29, pixels_of_a_split=max(self.split_images.values()) * number)

    def sample(self, name: str, numbers: tuple[int, ...], num_images: int) -> Any:
        """Sample the random choices of images of split `name`: a tensor or a NamedTuple of arrays, with a row for each
        image.

        numbers: the seeds of the random stream.
        """
        raise NotImplementedError

    def fresh(self, numbers: tuple[int, ...], number: int) -> Any:
        """Return the random choices of training batch `number`, counted from the start of training."""
        return self.sample("train", numbers, self.batch_size)

    def fixed(self, name: str) -> tuple[Any, Sequence[int]]:
        """Return the random choices of a whole fixed set, sampled at once so that they do not depend on the batch size,
        and the ids of its images."""
        number = self.split_images[name]
        return self.sample(name, (FIXED, SPLITS.index(name)), number), range(number)

    def batch(self, name: str, samples: Any, ids: Sequence[int]) -> Batch:
        """Draw images from their random choices."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.epoch_images // self.batch_size

    def train(self, epoch: int, *, seed: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Yield new images. Every batch has its own random stream, so that skipping is free."""
        mine = equal_part(self.batch_size, rank, world)
        for index in range(skip, len(self)):
            number = epoch * len(self) + index
            samples = self.fresh((FRESH, seed % 2**64, epoch, index), number)
            ids = range(number * self.batch_size, (number + 1) * self.batch_size)
            yield self.batch("train", selected(samples, mine), ids[mine])

    def split(self, name: str, *, rank: int = 0, world: int = 1) -> Counted[Batch]:
        """Return batches of fixed images, the same in every run. The split "train" has as many images as "val", drawn
        like training images."""
        samples, ids = self.fixed(known_split(name))

        def batch(numbers: slice) -> Batch:
            return self.batch(name, selected(samples, numbers), ids[numbers])

        return slices(batch, len(ids), self.batch_size, rank=rank, world=world)


def selected(samples: Any, chosen: Any) -> Any:
    """Return the random choices of some images.

    chosen: an index or a slice.
    """
    if not hasattr(samples, "_fields"):
        return samples[chosen]
    return type(samples)(*(selected(field, chosen) for field in samples))

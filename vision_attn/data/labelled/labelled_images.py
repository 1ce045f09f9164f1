"""`LabelledImages`, the data set of your own photographs with a label each, of any sizes."""

import json
import logging
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vision_attn.attention.images import Images, Sliced, scaled
from vision_attn.data.counted_batches import Counted
from vision_attn.data.images.lazy import open_pixels, size_of_pixels
from vision_attn.data.images.open import Encoded
from vision_attn.data.images.squares import in_threads
from vision_attn.data.labelled.boxes import UNKNOWN, Box, mirrored, placed
from vision_attn.data.labelled.labels import Labelled, find_labelled
from vision_attn.data.random_streams import stream
from vision_attn.system.checks import check_range
from vision_attn.system.console import printable
from vision_attn.system.errors import UserError
from vision_attn.system.files import read_json, replacing
from vision_attn.task import SPLITS, Source, Task, counted, equal_part, known_split

log = logging.getLogger(__name__)

KEPT = 10**9
"""The largest number of bytes of pixels that are kept in memory; further photographs are read from their files every
time."""
CLASSES = "classes.json"
"""The name of the file of class names in a run folder."""
SIZE = "image_size.json"
"""The name of the file with the size of images in a run folder, if they have one size."""
MOST_CLASSES = 100_000


class LabelledBatch(NamedTuple):
    """Images with a label each."""

    images: Float[Tensor, "B 3 Y X"] | Images
    """Intensities from 0 to 1. A tensor if all photographs are made square or have one size (`at_one_size`)."""
    labels: Int[Tensor, "B"]
    boxes: Float[Tensor, "B 4"] | None = None
    """(x0, y0, x1, y1) in [-1, 1] of the object that gives an image its label; NaN if it is unknown. None if no box is
    known."""


class LabelledImages(Source):
    """Photographs in a folder for each class, or with a file of labels: see `data.labels.find_labelled`."""

    image_shape: tuple[int, int, int]

    batch_size: int

    def __init__(
        self,
        *,
        images: str,
        labels: str | None = None,
        side: int | None = None,
        square: bool = False,
        flips: bool = False,
        batch_size: int = 64,
        evaluation_batch_size: int = 64,
    ) -> None:
        """Stores its arguments and reads nothing. Files are also searched for under `$VISION_ATTN_DATA` and `data/`.

        images: images/CLASS/IMAGE, or images/SPLIT/CLASS/IMAGE with splits train, val and test.
        labels: a CSV file `image,label,split` or JSON lines {"image", "label", "split"}; the split may be left out.
            Columns x0, y0, x1, y1 (or x, y: a centre) are the place of the object, in pixels of the upright photograph.
        side: the longer side to which photographs are resized, in pixels; None: leave them as they are. square: whether
        to take the centre square of photographs, so that all have the same size. Needs `side`. flips: mirror each
        training photograph with probability 1/2 in each epoch. batch_size: images per training batch, over all
        processes together. evaluation_batch_size: images per validation or test batch.
        """
        check_range("LabelledImages", 1, 10**6, batch_size=batch_size, evaluation_batch_size=evaluation_batch_size)
        if side is not None:
            check_range("LabelledImages", 1, 10**5, side=side)
        if square and side is None:
            raise UserError("LabelledImages: square=true needs a side, such as side: 128")
        self.images, self.labels, self.side, self.square, self.flips = images, labels, side, square, flips
        self.batch_size, self.evaluation_batch_size = batch_size, evaluation_batch_size
        self.image_shape = (3, side, side) if square and side else (3, 0, 0)
        self._kept: dict[Path, NDArray[np.uint8]] = {}
        self._bytes = 0  # of these
        self._unreadable: set[Path] = set()
        self._boxes: dict[Path, Box] = {}
        self._unseen: Path | None = None

    @cached_property
    def splits(self) -> dict[str, list[Labelled]]:
        """The photographs of each split. Raises UserError as `find_labelled` does."""
        return find_labelled(self.images, self.labels)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The names of all labels, sorted, or those that `restore` read."""
        return tuple(sorted({item.label for items in self.splits.values() for item in items}))

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @cached_property
    def has_boxes(self) -> bool:
        """Whether any photograph has the box of its object."""
        return any(item.box is not None for items in self.splits.values() for item in items)

    def prepare(self, task: Task) -> None:
        """Read the list of photographs."""
        self.splits  # noqa: B018, read once

    def check_labels(self) -> None:
        names, place = self.class_names, self.labels or self.images
        if names == ("",):
            raise UserError(f"{place} has no classes: expected {place}/CLASS/IMAGE, or a file `labels` of image,label")
        if len(names) == 1:
            raise UserError(f"all photographs of {place} have the label {names[0]}: there is nothing to tell apart")
        untaught = {item.label for items in self.splits.values() for item in items}
        untaught -= {item.label for item in self.splits["train"]}
        if untaught:
            examples = ", ".join(sorted(untaught)[:5])
            log.warning(
                "classes without a photograph for training, which cannot be learned: %d (%s)", len(untaught), examples
            )

    def at_one_size(self) -> tuple[int, int, int]:
        """Yield images as tensors from now on. Return their shape (3, Y, X).

        Raises UserError naming two photographs if they differ in size.
        """
        if 0 in self.image_shape:
            self.image_shape = (3, *self._common_size())
        return self.image_shape

    def _common_size(self) -> tuple[int, int]:
        """Return the height and width that all photographs have, except those that cannot be read."""
        first: tuple[Path, tuple[int, int]] | None = None
        for item in (item for items in self.splits.values() for item in items):
            try:
                size = size_of_pixels(item.file, side=self.side, square=self.square)
            except UserError:
                continue
            first = first or (item.file, size)
            if size != first[1]:
                (first_file, (X, Y)), (x, y) = first, size
                raise UserError(
                    f"photographs must have one size here, but {first_file} has {X} x {Y} pixels and {item.file} "
                    f"{x} x {y}: resize them with --data.side=32 --data.square=true, or another side"
                )
        if first is None:
            raise UserError(f"no photograph of {self.labels or self.images} can be read")
        return first[1][::-1]

    @property
    def summary(self) -> str:
        sizes = {split: len(items) for split, items in self.splits.items()}
        classes = f" of {self.num_classes:,} classes" * (self.class_names != ("",))
        return f"photographs{classes}: {counted(sizes)}"

    def export(self, folder: Path) -> None:
        """Write the names of the classes and, if photographs have one size, this size."""
        with replacing(Path(folder) / CLASSES) as path:
            path.write_text(json.dumps(self.class_names, indent=0) + "\n", encoding="utf-8")
        if 0 not in self.image_shape:
            with replacing(Path(folder) / SIZE) as path:
                path.write_text(json.dumps({"height": self.image_shape[1], "width": self.image_shape[2]}) + "\n")

    def restore(self, folder: Path) -> None:
        self.class_names = read_classes(Path(folder) / CLASSES)
        if not self.square and (Path(folder) / SIZE).is_file():
            self.image_shape = (3, *read_size(Path(folder) / SIZE))

    def extend(self, folder: Path) -> tuple[int, int] | None:
        if not (Path(folder) / CLASSES).is_file():
            return None
        start = read_classes(Path(folder) / CLASSES)
        self.class_names = (*start, *(name for name in self.class_names if name not in start))
        return len(start), len(self.class_names)

    def __len__(self) -> int:
        return max(1, len(self.splits["train"]) // self.batch_size)

    def train(self, epoch: int, *, seed: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[LabelledBatch]:
        """Return each training photograph once, shuffled. An incomplete last batch is dropped if there is another."""
        items, bits = self.splits["train"], stream(seed % 2**64, epoch)
        size = min(self.batch_size, len(items))
        mine = equal_part(size, rank, world)
        order = bits.random_raw(len(items)).argsort(kind="stable")
        mirrored = bits.random_raw(len(items)) % 2 == 1
        batches = [order[number * size :][:size][mine] for number in range(len(self))]
        jobs = [[(items[index], self.flips and bool(mirrored[index])) for index in batch] for batch in batches[skip:]]
        return self._batches(jobs)

    def split(self, name: str, *, rank: int = 0, world: int = 1) -> Counted[LabelledBatch]:
        items = [(item, False) for item in self.splits[known_split(name)]]
        if not items:
            kept = ", ".join(split for split in SPLITS if self.splits[split])
            raise UserError(f"no photograph has the split {name}; there are some for {kept}")
        size = self.evaluation_batch_size
        jobs = [items[first : first + size] for first in range(0, len(items), size)][rank::world]
        return Counted(self._batches(jobs), len(jobs))

    def open(self, path: str | Path | Encoded) -> Sliced:
        """Open any image, resized like the images of this data set. Raises UserError naming the file if it is no
        image."""
        return open_pixels(path, side=self.side, square=self.square)

    def _batches(self, jobs: Sequence[Sequence[tuple[Labelled, bool]]]) -> Iterator[LabelledBatch]:
        """Yield batches. Threads read photographs, one batch ahead; photographs that cannot be read are logged and left
        out.

        jobs: the photographs of each batch, and whether to mirror each.
        """
        if not jobs:
            return
        index = {name: number for number, name in enumerate(self.class_names)}
        read = in_threads(self._read_item, (item for job in jobs for item, _ in job), ahead=2 * len(jobs[0]))
        for job in jobs:
            items = [(*next(read), item.label, flip) for item, flip in job]
            kept = [(array, box, label, flip) for array, box, label, flip in items if array is not None]
            if not kept:
                raise UserError(f"no photograph of a batch can be read, such as {job[0][0].file}")
            if unknown := sorted({label for _, _, label, _ in kept} - index.keys()):
                raise UserError(f"the run was trained without the class {unknown[0]}; it knows {', '.join(index)}")
            images = self._together([array[:, ::-1] if flip else array for array, *_, flip in kept])
            boxes = torch.tensor([mirrored(box) if flip else box for _, box, _, flip in kept])
            labels = torch.tensor([index[label] for *_, label, _ in kept])
            yield LabelledBatch(images, labels, boxes if self.has_boxes else None)

    def _together(self, arrays: Sequence[Sliced]) -> Float[Tensor, "B 3 Y X"] | Images:
        images, size = Images(arrays, 3), self.image_shape[:0:-1]
        if 0 in size:
            return images
        if wrong := next((tuple(extent) for extent in images.extents.tolist() if tuple(extent) != size), None):
            raise UserError(
                f"this run takes images of {size[0]} x {size[1]} pixels, and one has {wrong[0]} x {wrong[1]}: resize "
                "it, or set data.side and data.square"
            )
        return scaled(torch.stack(images.sampled(max(size))))

    def _read_item(self, item: Labelled) -> tuple[Sliced | None, Box]:
        """Return the pixels of a photograph, or None if it cannot be read, and its box in [-1, 1]."""
        array = self._read(item.file)
        if array is None or item.box is None:
            return array, UNKNOWN
        if item.file not in self._boxes:
            box = placed(item.box, size_of_pixels(item.file), square=self.square)
            if box is None and self._unseen is None:
                self._unseen = item.file
                log.warning("boxes that lie outside of what is seen are left out, such as that of %s", item.file)
            self._boxes[item.file] = box or UNKNOWN
        return array, self._boxes[item.file]

    def _read(self, path: Path) -> Sliced | None:
        """Return the pixels of a photograph; None if it cannot be read. Arrays in .npy files are not kept, since they
        are memory-mapped."""
        if path in self._kept:
            return self._kept[path]
        try:
            array = self.open(path)
        except UserError as error:
            if path not in self._unreadable:
                log.warning("left out: %s", printable(str(error)))
                self._unreadable.add(path)
            return None
        if isinstance(array, np.ndarray) and self._bytes + array.nbytes <= KEPT:
            self._kept[path] = array
            self._bytes += array.nbytes
        return array


def read_classes(path: Path) -> tuple[str, ...]:
    """Read the class names of a run. Raises UserError naming the file unless it holds a list of different names."""
    names = read_json(path)
    if not isinstance(names, list) or not 0 < len(names) <= MOST_CLASSES or len(set(map(str, names))) < len(names):
        raise UserError(f"{path} is not a list of the names of classes, each once")
    if not all(isinstance(name, str) for name in names):
        raise UserError(f"{path}: the names of classes must be text")
    return tuple(names)


def read_size(path: Path) -> tuple[int, int]:
    """Read the height and width of the images of a run. Raises UserError naming the file unless it holds them."""
    content = read_json(path)
    sizes = [content.get(name) for name in ("height", "width")] if isinstance(content, dict) else []
    lengths = [length for length in sizes if type(length) is int and 0 < length <= 10**5]
    if len(lengths) != 2:
        raise UserError(f'{path} does not hold {{"height":, "width":}} of images in pixels')
    return lengths[0], lengths[1]

"""`Vectors`: annotation vectors that another program computed, in place of an encoder's."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from math import prod
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vision_attn.contracts import Encoder
from vision_attn.data.images.squares import in_threads
from vision_attn.data.photographs.annotation_vectors.stored_arrays import Stored
from vision_attn.data.photographs.annotation_vectors.vector_databases import BOXES, HEIGHTS, NAMES, WIDTHS, VectorEntry
from vision_attn.data.photographs.annotation_vectors.vector_files import arrays_of, boxes_beside, place_of
from vision_attn.data.photographs.mirrored_views import Views
from vision_attn.data.photographs.pixels import View
from vision_attn.system.errors import UserError
from vision_attn.system.files import brief

MULTIPLE = 8
"""The number of vectors per image in a batch is rounded up to a multiple of this, so that batches have few shapes."""


class Vectors:
    """The vectors of photographs, read on demand by several threads. Has the methods of `Features` and `Pixels`.

    The vectors of a photograph are found by its name, or else by its id. They are an array (L, D), or (grid rows, grid
    columns, D), of any type of numbers.
    """

    def __init__(
        self, views: Sequence[View], path: Path, shape: tuple[int | None, int], ids: Sequence[int | str]
    ) -> None:
        """path: a folder, an HDF5 file or an LMDB; see `vector_files`.
        shape: L and D; L is None if it differs from photograph to photograph.
        ids: the id of each photograph.
        """
        self.shape = shape
        self.place = place = place_of(path)
        self.files = [place.by_name(view.name) for view in views]
        taken, often = set(self.files), Counter(map(str, ids))
        self.unreadable: dict[str, str] = {}
        """The photographs whose vectors are missing, with the reason."""
        self._refuse_shared(path, views)
        for number, (view, key) in enumerate(zip(views, map(str, ids), strict=True)):
            if self.files[number] is None and often[key] == 1:  # an id of two photographs tells neither
                named = place.by_id(key)
                self.files[number] = None if named in taken else named  # of another photograph, by its name
            if self.files[number] is None:
                self.unreadable[view.name] = place.missing(view.name, key)
        self._refuse_shared(path, views)

    def _refuse_shared(self, path: Path, views: Sequence[View]) -> None:
        """Raise UserError if two photographs would have the same vectors."""
        owners: dict[Path | VectorEntry, str] = {}
        for file, view in zip(self.files, views, strict=True):
            if file is not None and (other := owners.setdefault(file, view.name)) != view.name:
                name = file.key if isinstance(file, VectorEntry) else file.name
                raise UserError(
                    f"{path}: {brief(other)} and {brief(view.name)} would both have the vectors of {name}: name those "
                    "of each by its whole path, with its ending"
                )

    @classmethod
    def of(cls, views: Views, path: Path, encoder: Encoder) -> "Vectors":
        """Return the vectors at `path`, in the size that `encoder` expects."""
        if encoder.trainable:
            raise UserError("data.features are not computed again, so the encoder cannot be trained")
        number = None if encoder.pads else encoder.grid[0] * encoder.grid[1]
        return cls(views, path, (number, encoder.region_size), list(views.ids()))

    @classmethod
    def joined(cls, sources: Mapping[str, "Vectors"]) -> "Vectors":
        """Join the vectors of several sources. Names then begin with the name of the source. A single source is
        returned unchanged."""
        if len(sources) == 1:
            return next(iter(sources.values()))
        vectors = copy(next(iter(sources.values())))
        vectors.files = [file for source_vectors in sources.values() for file in source_vectors.files]
        vectors.unreadable = {
            f"{source}/{name}": why
            for source, source_vectors in sources.items()
            for name, why in source_vectors.unreadable.items()
        }
        return vectors

    def space(self, count: int) -> None:
        """Return None: vectors are not written into preallocated memory. See `Features.space`."""

    def read(self, indices: NDArray[np.int64], space: Tensor | None = None) -> Float32[Tensor, "B L D"]:
        """Read the vectors of views `indices`, padded with zeros. Raises UserError naming a file that cannot be
        used."""
        read = in_threads(
            lambda index: read_vectors(self.files[index], self.shape), indices.tolist(), ahead=len(indices)
        )
        return torch.stack(list(read)) if self.shape[0] else padded(list(read))

    def finish(self, read: Float32[Tensor, "B L D"]) -> Float32[Tensor, "B L D"]:
        return read


def padded(vectors: Sequence[Float[Tensor, "_ D"]], multiple: int = MULTIPLE) -> Float[Tensor, "B L D"]:
    """Stack the vectors of several images, padded with zeros to the largest number of vectors, rounded up to
    `multiple`."""
    longest = -(-max(map(len, vectors)) // multiple) * multiple
    return torch.stack([F.pad(of_image, (0, 0, 0, longest - len(of_image))) for of_image in vectors])


def read_vectors(path: Path | VectorEntry, shape: tuple[int | None, int]) -> Float[Tensor, "L D"]:
    """Read the vectors of one image. Raises UserError naming the file if they do not have this shape.

    shape: L and D. If L is None, the number of vectors may differ from image to image, and vectors of zeros are dropped
        as padding.
    """
    number, size = shape
    with arrays_of(path) as arrays:
        stored = arrays[_chosen(list(arrays))]
        array = stored.read() if _fits(stored, shape) else None
    if array is None:
        wanted = f"{number or 'any number of'} vectors of {size} numbers"
        wanted += ", as the grid and the region_size of the encoder say" if number else ", as region_size says"
        several = number and _fits(stored, (None, size))
        hint = "; if their number differs between photographs, set --task.encoder.grid=[1,-1]" if several else ""
        raise UserError(f"{path} must hold {wanted}, but holds {stored.shape} of {stored.dtype}{hint}")
    array = array.reshape(-1, size)
    with np.errstate(over="ignore"):  # of numbers that are too large, which the next line refuses
        vectors = torch.from_numpy(array.astype(np.float32))
    if not vectors.isfinite().all():
        raise UserError(f"{path} holds numbers that are not finite")
    if number is None:
        vectors = vectors[(vectors != 0).any(dim=1)]
        if not len(vectors):
            raise UserError(f"{path} holds no vector that is not zero")
    return vectors


def _fits(stored: Stored, shape: tuple[int | None, int]) -> bool:
    """Return whether an array can hold vectors of this `shape`."""
    number, size = shape
    whole = len(stored.shape) in (2, 3) and stored.shape[-1] == size and stored.dtype.kind in "fiu"
    return whole and number in (None, prod(stored.shape[:-1]))


def read_boxes(path: Path | VectorEntry, size: Callable[[], tuple[int, int]]) -> Float[Tensor, "L 4"] | None:
    """Read the boxes (x0, y0, x1, y1) of the vectors that `read_vectors` returns, in [-1, 1] of the whole photograph.
    They are in the same file, or beside it (`boxes_beside`). None if there are none.

    size: returns the width and height of the photograph in pixels. Called only if the file lacks them and its boxes are
        in pixels.

    Raises UserError naming the file for boxes of another shape.
    """
    with arrays_of(path) as arrays:
        vectors = arrays[_chosen(list(arrays))].read()
        stated = _find_boxes(arrays)
    if stated is None and (other := boxes_beside(path)):
        with arrays_of(other) as arrays:
            stated = _find_boxes(arrays, "")
    if stated is None:
        return None
    name, boxes, sides = stated
    vectors = vectors.reshape(-1, vectors.shape[-1])
    if boxes.shape != (len(vectors), 4) or not np.isfinite(boxes).all():
        raise UserError(f"{path}: {name} must hold 4 numbers for each of {len(vectors)} vectors, not {boxes.shape}")
    if None in sides:
        sides = [1.0, 1.0] if boxes.max(initial=0) <= 1 else [*size()]
    scaled = boxes[(vectors != 0).any(axis=1)] / np.array([*sides, *sides])
    return torch.from_numpy(scaled * 2 - 1).float().clamp(-1, 1)


def _find_boxes(
    arrays: Mapping[str, Stored], *more: str
) -> tuple[str, Float[NDArray, "L 4"], list[float | None]] | None:
    """Return the name of the boxes among arrays, the boxes, and the width and height of the photograph, as far as
    known."""
    name = next((name for name in (*BOXES, *more) if name in arrays), None)
    if name is None:
        return None
    boxes = arrays[name].read().astype(np.float64)
    return name or "the boxes", boxes, [_number(arrays, known) for known in (WIDTHS, HEIGHTS)]


def _number(arrays: Mapping[str, Stored], names: Sequence[str]) -> float | None:
    """Return the number in an array with one of these names; None if there is none above 0."""
    name = next((name for name in names if name in arrays), None)
    if name is None or prod((stored := arrays[name]).shape) != 1:
        return None
    number = float(stored.read().item())
    return number if number > 0 else None


def _chosen(names: Sequence[str]) -> str:
    """Return the name of the array of vectors among the names of a file's arrays."""
    if len(names) == 1:
        return names[0]
    name = next((name for name in NAMES if name in names), None)
    if name is None:
        raise UserError(f"none of its arrays {', '.join(names[:5])} is called {' or '.join(NAMES)}")
    return name

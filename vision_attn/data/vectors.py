"""Annotation vectors in files that another program wrote, one for each photograph."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32
from numpy.typing import NDArray
from torch import Tensor

from vision_attn.console import reason_of
from vision_attn.data.images import View, in_threads

ENDINGS = (".npy", ".npz")
NAMES = ("features", "feat", "x")
"""Names of the array in an .npz file that holds several."""


class Vectors:
    """The vectors of photographs, read on demand by several threads. Used like `Features` and `Pixels`.

    The file of a photograph below `folder` has its name, with the ending .npy or .npz: an array (L, D), or (rows,
    columns, D), of any type of numbers.
    """

    on_device = False

    def __init__(self, views: Sequence[View], folder: Path, shape: tuple[int, int]) -> None:
        """`shape`: L and D."""
        self.shape = shape
        self.files = [_file(folder, view.name) for view in views]
        self.unreadable: dict[str, str] = {
            view.name: f"there is neither {_path(folder, view.name, '.npy')} nor an .npz file"
            for view, file in zip(views, self.files, strict=True)
            if file is None
        }
        """The photographs whose vectors are missing, with the reason."""

    def space(self, count: int) -> None:
        """Return None: vectors are not written into preallocated memory. See `Features.space`."""

    def gather(self, rows: NDArray[np.int64], space: None = None) -> Float32[Tensor, "B L D"]:
        """Read the vectors of views `rows`. Raises ValueError naming a file that cannot be used."""
        read = in_threads(lambda row: read_vectors(self.files[row], self.shape), rows.tolist(), ahead=len(rows))
        return torch.stack(list(read))


def read_vectors(path: Path, shape: tuple[int, int]) -> Float[Tensor, "L D"]:
    """Read the vectors of one image. Raises ValueError naming the file if it holds anything else than `shape`."""
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.lib.npyio.NpzFile):
            with found:
                found = found[_chosen(found.files)]
        array = np.asarray(found)
    except Exception as error:  # a damaged file can make numpy raise almost anything
        raise ValueError(f"{path}: no array can be read ({type(error).__name__}: {reason_of(error)})") from error
    if array.ndim == 3:
        array = array.reshape(-1, array.shape[-1])
    if array.shape != shape or array.dtype.kind not in "fiu":
        held = f"{array.shape} of {array.dtype}"
        wanted = f"{shape[0]} vectors of {shape[1]} numbers, as the grid and the region_size of the encoder say"
        raise ValueError(f"{path} must hold {wanted}, but holds {held}")
    vectors = torch.from_numpy(array.astype(np.float32))
    if not vectors.isfinite().all():
        raise ValueError(f"{path} holds numbers that are not finite")
    return vectors


def _chosen(names: Sequence[str]) -> str:
    """The name of the array in an .npz file that holds vectors."""
    if len(names) == 1:
        return names[0]
    found = next((name for name in NAMES if name in names), None)
    if found is None:
        raise ValueError(f"none of its arrays {', '.join(names[:5])} is called {' or '.join(NAMES)}")
    return found


def _file(folder: Path, name: str) -> Path | None:
    """The file of a photograph; None if there is none."""
    return next((path for ending in ENDINGS if (path := _path(folder, name, ending)).is_file()), None)


def _path(folder: Path, name: str, ending: str) -> Path:
    return (folder / name).with_suffix(ending)

"""`Explanation`, the result of explaining a model's answer: words, each with a map."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent
from vision_attn.system.errors import UserError


class Explanation(NamedTuple):
    """Words, each with a map, and the attention of single layers for comparison."""

    words: list[str]
    alpha: Float[Tensor, "T Y X"]
    log_prob: list[float] | None = None
    """log p of each word, in nats; None where words have no probability."""
    layers: Float[Tensor, "T N K Y X"] | Sequence[Float[Tensor, "T _ _ _"]] | None = None
    """The attention of K heads in each of N layers; a list of layers (T, K, Y, X) where they differ in size."""
    method: str = ""
    """The name of the method that made `alpha`."""
    extent: Extent = WHOLE
    """Where the regions of `alpha` lie on the picture."""
    layers_extent: Extent = WHOLE
    """Where the regions of `layers` lie on the picture."""
    likeliest: Sequence[tuple[str, float]] = ()
    """The likeliest answers of a classifier with their probabilities, best first; empty for other models."""


def chosen(
    raw: Float[Tensor, "T N K _ _"] | Sequence[Float[Tensor, "T _ _ _"]], layer: int | None, head: int | None
) -> Float[Tensor, "T Y X"]:
    """Return the maps of one layer and head. Raises UserError if there is no such layer or head.

    layer, head: None: the mean of all. Layers in a list differ in size and have no mean.
    """
    layers: Sequence[Tensor] = raw.unbind(1) if isinstance(raw, Tensor) else raw
    N = len(layers)
    if layer is not None and not -N <= layer < N:
        raise UserError(f"there is no layer {layer}: they are numbered from 0 to {N - 1}")
    if layer is not None:
        maps = layers[layer]
    else:
        assert isinstance(raw, Tensor)
        maps = raw.mean(dim=1)
    K = maps.shape[1]
    if head is not None and not 0 <= head < K:
        raise UserError(f"there is no head {head}: they are numbered from 0 to {K - 1}")
    return maps.mean(dim=1) if head is None else maps[:, head]

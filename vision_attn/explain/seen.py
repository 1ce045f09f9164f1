"""What a look into a model found: words, each with a map."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Seen(NamedTuple):
    """Words, each with a map, and the attention that the maps can be compared with."""

    words: list[str]
    alpha: Float[Tensor, "T Y X"]
    log_prob: list[float] | None = None
    """log p of each word, in nats; None where there is no such thing."""
    layers: Float[Tensor, "T N K Y X"] | None = None
    """The attention of K heads in each of N layers."""
    method: str = ""
    """How `alpha` was made."""


def chosen(raw: Float[Tensor, "T N K Y X"], layer: int | None, head: int | None) -> Float[Tensor, "T Y X"]:
    """The maps of one layer and head, or the mean over what is None. Raises ValueError if there is no such one."""
    _, N, K, _, _ = raw.shape
    if layer is not None and not -N <= layer < N:
        raise ValueError(f"there is no layer {layer}: they are numbered from 0 to {N - 1}")
    if head is not None and not 0 <= head < K:
        raise ValueError(f"there is no head {head}: they are numbered from 0 to {K - 1}")
    raw = raw.mean(dim=1) if layer is None else raw[:, layer]
    return raw.mean(dim=1) if head is None else raw[:, head]

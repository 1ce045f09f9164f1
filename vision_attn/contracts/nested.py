"""Functions of nested tuples of tensors, such as the state and the memory of a captioner."""

from collections.abc import Callable, Iterable
from typing import Any

from jaxtyping import Int
from torch import Tensor

Nested = Any
"""A tensor, None, or a tuple (also a NamedTuple) of these."""


def map_tensors(function: Callable[[Tensor], Tensor], nested: Nested) -> Nested:
    """Apply `function` to every tensor; return the same nested tuples."""
    if nested is None:
        return None
    if isinstance(nested, Tensor):
        return function(nested)
    mapped = [map_tensors(function, item) for item in nested]
    return type(nested)(*mapped) if hasattr(nested, "_fields") else tuple(mapped)


def tensors_of(nested: Nested) -> list[Tensor]:
    """Return the tensors of nested tuples, in order."""
    if nested is None:
        return []
    return [nested] if isinstance(nested, Tensor) else [tensor for item in nested for tensor in tensors_of(item)]


def with_tensors(nested: Nested, tensors: Iterable[Tensor]) -> Nested:
    """Return the same nested tuples with other `tensors`, in the order of `tensors_of`."""
    remaining = iter(tensors)
    return map_tensors(lambda _: next(remaining), nested)


def take_images(nested: Nested, images: Int[Tensor, "N"]) -> Nested:
    """Select images of tensors (B, ...): (N, ...)."""
    return map_tensors(lambda tensor: tensor.index_select(0, images), nested)

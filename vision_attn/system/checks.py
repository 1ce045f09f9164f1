"""Checks of arguments: their ranges, and the shapes of tensors that callers of the Python API pass."""

import torch
from torch import Tensor


def check_range(owner: str, least: int | float, most: int | float, **numbers: int | float) -> None:
    """Raise ValueError naming the first of `numbers`, parameters of `owner`, that is not in [`least`, `most`].

    Configs may be untrusted, so sizes of loops and allocations in constructors must be bounded.
    """
    for name, number in numbers.items():
        if number is None or not least <= number <= most:  # also rejects NaN
            raise ValueError(f"{owner}: {name} is {number}, but must be from {least:,} to {most:,}")


KINDS = {
    "uint8": lambda dtype: dtype == torch.uint8,
    "float": lambda dtype: dtype.is_floating_point,
    "integer": lambda dtype: not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool,
}


def require(name: str, tensor: Tensor, shape: str, kind: str | None = None, hint: str = "", **sizes: int) -> None:
    """Raise ValueError unless `tensor` has the `shape`, such as "B L D", and the `kind`: "uint8", "float" or
    "integer".

    `sizes` fixes the sizes of some letters; a number in `shape` is that size. `hint` is appended to the message.
    """
    letters = shape.split()
    wanted = [sizes.get(letter, int(letter) if letter.isdigit() else None) for letter in letters]
    fits = tensor.dim() == len(letters) and all(
        size is None or size == given for size, given in zip(wanted, tensor.shape, strict=True)
    )
    if fits and (kind is None or KINDS[kind](tensor.dtype)):
        return
    told = ", ".join(letter if size is None else str(size) for letter, size in zip(letters, wanted, strict=True))
    given = f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
    raise ValueError(f"{name} must be a tensor ({told}){f' of {kind}' if kind else ''}, but is {given}{hint}")

"""Checks of arguments: their ranges, and the shapes of tensors that callers of the Python API pass."""

import torch
from torch import Tensor

from vision_attn.system.errors import UserError


def check_range(owner: str, least: int | float, most: int | float, **numbers: int | float) -> None:
    """Raise UserError naming the first of `numbers`, parameters of `owner`, that is not in [`least`, `most`].

    Configs may be untrusted, so sizes of loops and allocations in constructors must be bounded.
    """
    for name, number in numbers.items():
        if number is None or not least <= number <= most:  # also rejects NaN
            raise UserError(f"{owner}: {name} is {number}, but must be from {least:,} to {most:,}")


KINDS = {
    "uint8": (torch.uint8,),
    "float": (torch.float32, torch.bfloat16, torch.float16, torch.float64),
    "integer": (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
}


def require(name: str, tensor: Tensor, shape: str, kind: str | None = None, hint: str = "", **sizes: int) -> None:
    """Raise UserError unless `tensor` has the `shape`, such as "B L D", and the `kind`: "uint8", "float" or
    "integer".

    shape: letters, and numbers for sizes that are fixed.
    hint: is appended to the message.
    sizes: the sizes of some letters.
    """
    letters = shape.split()
    fits = tensor.dim() == len(letters) and (kind is None or tensor.dtype in KINDS[kind])
    for letter, size in zip(letters, tensor.shape, strict=False):
        if size != (int(letter) if letter.isdigit() else sizes.get(letter, size)):
            fits = False
    if fits:
        return
    told = ", ".join(str(sizes.get(letter, letter)) for letter in letters)
    given = f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
    raise UserError(f"{name} must be a tensor ({told}){f' of {kind}' if kind else ''}, but is {given}{hint}")

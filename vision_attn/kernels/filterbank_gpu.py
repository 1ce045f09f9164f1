"""DRAW's filterbank on a GPU: windows, reads and writes by the kernels of `kernels.window` and `kernels.filterbank`.

Import this module only where it is used: it imports triton.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vision_attn.kernels import filterbank_triton as filterbank
from vision_attn.kernels import window_triton as window


def takes(size: int, pixels: int) -> bool:
    """Whether the kernels take a grid of `size` x `size` filters of images of `pixels` along the longer side."""
    return size <= filterbank.MOST_FILTERS and pixels <= filterbank.MOST_PIXELS


class Placed(torch.autograd.Function):
    """(centre, stride, sigma, intensity) of numbers, and of the centre and stride before; see `window.window`."""

    @staticmethod
    def forward(
        ctx, numbers: Tensor, centre: Tensor | None, stride: Tensor | None, middle: Tensor, extremes: list[float]
    ) -> tuple[Tensor, ...]:
        outputs = window.window(numbers, centre, stride, middle, extremes)
        ctx.extremes = extremes
        ctx.save_for_backward(numbers, stride, middle, *outputs)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        numbers, stride, middle, *outputs = ctx.saved_tensors
        by = window.gradients(numbers, stride, middle, outputs, list(grads), ctx.extremes)
        return by[0], *(by[1:] if stride is not None else (None, None)), None, None


class Read(torch.autograd.Function):
    """gamma F_Y x F_X^T of images and the four parts of windows."""

    @staticmethod
    def forward(ctx, images: Tensor, size: int, *parts: Tensor) -> Tensor:
        F_x, F_y = filterbank.filters(*parts[:3], size, *images.shape[-2:])
        ctx.save_for_backward(images, *parts, F_x, F_y)
        return filterbank.read(images, F_x, F_y, parts[3], False)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        images, *parts, F_x, F_y = ctx.saved_tensors
        by_images = None
        if ctx.needs_input_grad[0]:
            by_rows = filterbank.write(grad, F_x, F_y, parts[3], False)
            by_images = by_rows.sum(dim=1) if by_rows.shape[1] > 1 else by_rows.squeeze(1)
        return by_images, None, *filterbank.gradients(images, grad, *parts, F_x, F_y, False)


class Write(torch.autograd.Function):
    """F_Y^T w F_X / gamma of patches and the four parts of windows."""

    @staticmethod
    def forward(ctx, patches: Tensor, height: int, width: int, *parts: Tensor) -> Tensor:
        F_x, F_y = filterbank.filters(*parts[:3], patches.shape[-1], height, width)
        ctx.save_for_backward(patches, *parts, F_x, F_y)
        return filterbank.write(patches, F_x, F_y, parts[3], True)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows = [part.flatten(0, 1)[:, None] for part in ctx.saved_tensors]
        patches, *parts, F_x, F_y = rows
        images = grad.flatten(0, 1)  # each row has its own
        by_patches = filterbank.read(images, F_x, F_y, parts[3], True)
        by_parts = filterbank.gradients(images, patches, *parts, F_x, F_y, True)
        like = ctx.saved_tensors
        by = (grad.view(other.shape) for grad, other in zip((by_patches, *by_parts), like, strict=False))
        return next(by), None, None, *by

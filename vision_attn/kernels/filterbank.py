"""DRAW's filterbank by fused versions: reads and writes, with their gradients.

`kernels` is `filterbank_numba` on a CPU and `filterbank_triton` on a GPU, which have the same functions.
"""

from types import ModuleType

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Read(torch.autograd.Function):
    """gamma F_Y x F_X^T of images and the four parts of windows."""

    @staticmethod
    def forward(ctx, kernels: ModuleType, images: Tensor, size: int, *parts: Tensor) -> Tensor:
        F_x, F_y = kernels.filters(*parts[:3], size, *images.shape[-2:])
        ctx.kernels = kernels
        ctx.save_for_backward(images, *parts, F_x, F_y)
        return kernels.read(images, F_x, F_y, parts[3], False)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        images, *parts, F_x, F_y = ctx.saved_tensors
        by_images = None
        if ctx.needs_input_grad[1]:
            by_rows = ctx.kernels.write(grad, F_x, F_y, parts[3], False)
            by_images = by_rows.sum(dim=1) if by_rows.shape[1] > 1 else by_rows.squeeze(1)
        return None, by_images, None, *ctx.kernels.gradients(images, grad, *parts, F_x, F_y, False)


class Write(torch.autograd.Function):
    """F_Y^T w F_X / gamma of patches and the four parts of windows."""

    @staticmethod
    def forward(ctx, kernels: ModuleType, patches: Tensor, height: int, width: int, *parts: Tensor) -> Tensor:
        F_x, F_y = kernels.filters(*parts[:3], patches.shape[-1], height, width)
        ctx.kernels = kernels
        ctx.save_for_backward(patches, *parts, F_x, F_y)
        return kernels.write(patches, F_x, F_y, parts[3], True)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        like, images = ctx.saved_tensors, grad.flatten(0, 1)  # each row has its own
        patches, *parts, F_x, F_y = (part.flatten(0, 1)[:, None] for part in like)
        by_patches = ctx.kernels.read(images, F_x, F_y, parts[3], True)
        by_parts = ctx.kernels.gradients(images, patches, *parts, F_x, F_y, True)
        by = (part.view(other.shape) for part, other in zip((by_patches, *by_parts), like, strict=False))
        return None, next(by), None, None, *by

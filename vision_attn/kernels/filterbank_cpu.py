"""DRAW's filterbank on a CPU: reads and writes by the loops of `kernels.filterbank_numba`, with their gradients.

Import this module only where it is used: it imports numba.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vision_attn.kernels import filterbank_numba as loops


def takes(size: int, pixels: int) -> bool:
    """Whether the loops read and write. Without a gradient tensor operations do: their products can be counted."""
    return torch.is_grad_enabled()


class Read(torch.autograd.Function):
    """gamma F_Y x F_X^T of images, or patches, and the four parts of windows."""

    @staticmethod
    def forward(ctx, images: Tensor, size: int, *window: Tensor) -> Tensor:
        placed, intensity = _placed(*window[:-1]), window[-1]
        F_x, F_y = loops.filters(placed, size, *images.shape[-2:])
        patches = _scaled(loops.read(images, F_x, F_y), intensity)
        ctx.save_for_backward(images, placed, intensity, F_x, F_y, patches)
        return patches

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        images, placed, intensity, F_x, F_y, patches = ctx.saved_tensors
        scaled = _scaled(grad, intensity)
        by_window = loops.gradients(images, scaled, placed, F_x, F_y)
        by_images = None
        if ctx.needs_input_grad[0]:
            by_rows = loops.write(scaled, F_x, F_y)
            by_images = by_rows.sum(dim=1) if by_rows.shape[1] > 1 else by_rows.squeeze(1)
        by_intensity = (grad * patches).sum(dim=(2, 3, 4)) / intensity
        return by_images, None, by_window[..., :2], by_window[..., 2], by_window[..., 3], by_intensity


class Write(torch.autograd.Function):
    """F_Y^T w F_X / gamma of images, or patches, and the four parts of windows."""

    @staticmethod
    def forward(ctx, patches: Tensor, height: int, width: int, *window: Tensor) -> Tensor:
        placed, intensity = _placed(*window[:-1]), window[-1]
        F_x, F_y = loops.filters(placed, patches.shape[-1], height, width)
        scaled = _scaled(patches, 1 / intensity)
        ctx.save_for_backward(scaled, intensity, placed, F_x, F_y)
        return loops.write(scaled, F_x, F_y)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        scaled, intensity, *rest = ctx.saved_tensors
        patches, placed, F_x, F_y = (part.flatten(0, 1)[:, None] for part in (scaled, *rest))
        images = grad.flatten(0, 1)  # each row has its own
        by_scaled = loops.read(images, F_x, F_y).view(scaled.shape)
        by_window = loops.gradients(images, patches, placed, F_x, F_y).view(*intensity.shape, 4)
        by_intensity = -(by_scaled * scaled).sum(dim=(2, 3, 4)) / intensity
        by_patches = _scaled(by_scaled, 1 / intensity)
        return by_patches, None, None, by_window[..., :2], by_window[..., 2], by_window[..., 3], by_intensity


def _placed(centre: Tensor, stride: Tensor, sigma: Tensor) -> Tensor:
    """(B, R, 4): a window without its intensity, in one tensor."""
    return torch.cat([centre, stride[..., None], sigma[..., None]], dim=-1)


def _scaled(patches: Tensor, intensity: Tensor) -> Tensor:
    return patches * intensity[..., None, None, None]

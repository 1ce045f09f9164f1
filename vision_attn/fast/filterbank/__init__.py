"""DRAW's filterbank by fused loops or kernels: windows, reads and writes, with their gradients.

`kernels` is `cpu` or `gpu`, which have the same functions.
"""

from math import log
from types import ModuleType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.linalg import vecdot

from vision_attn.attention.filterbank import LARGEST_LOG, NARROWEST, Filterbank
from vision_attn.contracts import Window
from vision_attn.fast.versions import fast_version


class FastFilterbank(Filterbank):
    """`Filterbank` by fused loops or kernels, if they support its sizes."""

    def placed(self, numbers: Float[Tensor, "B R 5"], before: Window | None) -> Window:
        if not (kernels := fast_version("window", numbers)):
            return super().placed(numbers, before)
        fields = kernels.Placed.apply(numbers, *self._before(numbers, before), self.middle, self.extremes)
        return Window(*fields)

    @property
    def extremes(self) -> list[float]:
        """The numbers that `window_gpu` needs."""
        most = max(1.0, 2 * self.widest_stride)
        return [LARGEST_LOG, self.widest_stride, self.size / 2, NARROWEST, most]

    def _before(self, numbers: Tensor, before: Window | None) -> tuple[Tensor | None, Tensor | None]:
        """Return the centre and the stride from which a relative window starts."""
        if not self.relative:
            return None, None
        if before is not None:
            return before.centre, before.stride
        return self.middle.expand(*numbers.shape[:-1], 2), torch.full_like(numbers[..., 0], self.widest_stride)

    def filters(self, window: Window) -> tuple[Float[Tensor, "B R N X"], Float[Tensor, "B R N Y"]]:
        with torch.autocast(window.centre.device.type, enabled=False):
            centres = torch.addcmul(window.centre[..., None], self.offsets, window.stride[..., None, None])
            precision = (0.5 / window.sigma.square())[..., None].expand_as(window.centre)
            if self.width == self.height:  # both axes in one call
                return _Gaussians.apply(self.pixels, centres, precision).unbind(dim=2)
            F_x, F_y = (
                _Gaussians.apply(self.pixels[:pixels], centres[:, :, axis], precision[:, :, axis])
                for axis, pixels in enumerate((self.width, self.height))
            )
            return F_x, F_y

    def _read(self, images: Tensor, window: Window) -> Tensor:
        """On a CPU, multiply all channels and all rows of an image at once."""
        kernels = fast_version("filterbank", window.stride, images)
        if kernels and kernels.takes(self.size, max(self.height, self.width)):
            return _Read.apply(kernels, images, self.size, *window)
        (B, C, Y, X), R, N = images.shape, window.stride.shape[1], self.size
        F_x, F_y = self.filters(window)
        with torch.autocast(images.device.type, enabled=False):
            side_by_side = images.transpose(1, 2).reshape(B, Y, C * X)
            rows = F_y.reshape(B, R * N, Y) @ side_by_side
            patches = rows.reshape(B * R, N * C, X) @ F_x.reshape(B * R, N, X).mT
            return _scaled(patches.view(B, R, N, C, N).transpose(2, 3), window.intensity)

    def _write(self, patches: Tensor, window: Window) -> Tensor:
        kernels = fast_version("filterbank", window.stride, patches)
        if kernels and kernels.takes(self.size, max(self.height, self.width)):
            return _Write.apply(kernels, patches, self.height, self.width, *window)
        (B, R, C, N, _), Y, X = patches.shape, self.height, self.width
        F_x, F_y = self.filters(window)
        with torch.autocast(patches.device.type, enabled=False):
            side_by_side = _scaled(patches, 1 / window.intensity).transpose(2, 3)
            rows = side_by_side.reshape(B * R, N * C, N) @ F_x.reshape(B * R, N, X)
            images = F_y.reshape(B * R, N, Y).mT @ rows.view(B * R, N, C * X)
            return images.view(B, R, Y, C, X).transpose(2, 3)


def _scaled(patches: Tensor, intensity: Tensor) -> Tensor:
    return patches * intensity[..., None, None, None]


class _Gaussians(torch.autograd.Function):
    """F_ia = exp(-p (a - mu_i)^2) / Z_i for pixels a, centres mu (..., N) and precisions p = 1 / (2 sigma^2) (...).

    Computes Gregor et al. 2015, eq. 25 and eq. 26. Stable however far outside the image mu lies: numerator and Z_i are
    divided by the numerator of the nearest pixel b, which leaves exp(p (b - a) (b + a - 2 mu)), at most 1. The backward
    pass is that of a softmax, written by hand: half the time of autograd's. Computes powers of 2 instead of e, because
    float32 `exp` is slow on AMD processors.
    """

    @staticmethod
    def forward(ctx, pixels: Tensor, centres: Tensor, precision: Tensor) -> Tensor:
        nearest = centres.round().clamp(1, len(pixels))
        before = nearest[..., None] - pixels  # b - a
        power = before * (pixels + (nearest - 2 * centres)[..., None])
        numerators = torch.exp2(power * (precision / log(2))[..., None, None])
        filters = numerators * (1 / numerators.sum(dim=-1, keepdim=True))  # in place, torch 2.11 compiles it wrongly
        ctx.save_for_backward(before, power, filters, precision)
        return filters

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        before, power, filters, precision = ctx.saved_tensors
        grad = torch.ops.aten._softmax_backward_data(grad, filters, -1, filters.dtype)  # of p (b - a) (b + a - 2 mu)
        return None, -2 * precision[..., None] * vecdot(grad, before), vecdot(grad, power).sum(dim=-1)


class _Read(torch.autograd.Function):
    """gamma F_Y x F_X^T of images. window: its centre, stride, sigma and intensity."""

    @staticmethod
    def forward(ctx, kernels: ModuleType, images: Tensor, size: int, *window: Tensor) -> Tensor:
        F_x, F_y = kernels.filters(*window[:3], size, *images.shape[-2:])
        ctx.kernels = kernels
        ctx.save_for_backward(images, *window, F_x, F_y)
        return kernels.read(images, F_x, F_y, window[3], False)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        images, *window, F_x, F_y = ctx.saved_tensors
        by_images = None
        if ctx.needs_input_grad[1]:
            by_rows = ctx.kernels.write(grad, F_x, F_y, window[3], False)
            by_images = by_rows.sum(dim=1) if by_rows.shape[1] > 1 else by_rows.squeeze(1)
        return None, by_images, None, *ctx.kernels.gradients(images, grad, *window, F_x, F_y, False)


class _Write(torch.autograd.Function):
    """F_Y^T w F_X / gamma of patches. window: its centre, stride, sigma and intensity."""

    @staticmethod
    def forward(ctx, kernels: ModuleType, patches: Tensor, height: int, width: int, *window: Tensor) -> Tensor:
        F_x, F_y = kernels.filters(*window[:3], patches.shape[-1], height, width)
        ctx.kernels = kernels
        ctx.save_for_backward(patches, *window, F_x, F_y)
        return kernels.write(patches, F_x, F_y, window[3], True)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        like, images = ctx.saved_tensors, grad.flatten(0, 1)  # each row has its own
        patches, *window, F_x, F_y = (tensor.flatten(0, 1)[:, None] for tensor in like)
        by_patches = ctx.kernels.read(images, F_x, F_y, window[3], True)
        by_window = ctx.kernels.gradients(images, patches, *window, F_x, F_y, True)
        by = (gradient.view(other.shape) for gradient, other in zip((by_patches, *by_window), like, strict=False))
        return None, next(by), None, None, *by

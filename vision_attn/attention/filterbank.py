"""DRAW's filterbank (Gregor et al., ICML 2015, section 3.2): N x N Gaussian filters on a grid read a patch of an image,
or write one, with a gradient for where.

Everything here is computed in float32 at least, whatever autocast does: in bfloat16 a place near pixel 100 would be
rounded to half a pixel.
"""

from math import log
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.linalg import vecdot

from vision_attn.layers.precise import precise
from vision_attn.ranges import check_range
from vision_attn.shapes import require

LARGEST_LOG = 10.0  # e^10 pixels are wider than any image, e^-10 narrower than a pixel; squares stay within float32
NARROWEST = 0.25  # pixels between filters that zoom in


class Window(NamedTuple):
    """Where a grid of filters lies, in pixels as the paper counts them: the first pixel's centre is 1, the last's X."""

    centre: Float[Tensor, "B R 2"]
    """(g_X, g_Y), of the grid."""
    stride: Float[Tensor, "B R"]
    """delta, from one filter's centre to the next one's."""
    sigma: Float[Tensor, "B R"]
    """The width of each filter."""
    intensity: Float[Tensor, "B R"]
    """gamma: what is read is multiplied by it, what is written is divided by it."""


class Filterbank(nn.Module):
    """`size` x `size` filters (N x N), placed by a state of `state_size` numbers on images of shape (C, Y, X).

    Differs from the paper: where the state is 0, sigma is at first half a stride, so that the grid, which then spans
    the image, sees all of it. (With sigma at one pixel it would see 12 x 12 dots of a large image.)

    `relative`: the five numbers move and zoom the window before, where the paper's place each window anew. What a state
    has seen off the middle of its window it then centres by the same move wherever on the image, and at whatever
    size, that was.
    """

    def __init__(self, state_size: int, image_shape: tuple[int, int, int], *, size: int = 12, relative: bool = False):
        super().__init__()
        check_range("Filterbank", 1, 1000, size=size)
        _, self.height, self.width = image_shape
        self.size, self.relative = size, relative
        self.widest_stride = (max(self.height, self.width) - 1) / max(1, size - 1)
        self.numbers = nn.Linear(state_size, 5)
        with torch.no_grad():
            self.numbers.bias.zero_()[2] = 0 if relative else 2 * log(max(1.0, self.widest_stride) / 2)
        offsets = torch.arange(size) - (size - 1) / 2  # i - N/2 - 0.5 for i = 1..N
        # as buffers, so that no turn makes them anew or copies them to a GPU
        self.register_buffer("offsets", offsets, persistent=False)
        self.register_buffer("pixels", torch.arange(1.0, max(self.height, self.width) + 1), persistent=False)
        self.register_buffer("extent", torch.tensor([float(self.width), float(self.height)]), persistent=False)
        self.register_buffer("middle", (self.extent + 1) / 2, persistent=False)
        self.register_buffer("powers", torch.tensor([0.5, 1.0, 1.0]), persistent=False)

    def window(self, state: Float[Tensor, "B R H"], before: Window | None = None) -> Window:
        """g~_X, g~_Y, log sigma^2, log delta~ and log gamma are one linear map of the state (eqs. 21 to 24).

        The logarithms are kept within +-10. Relative numbers move the centre by g~ times half of what the window
        `before` covers, and zoom its stride by delta~, to between a quarter of a pixel and twice the widest; sigma is
        in half strides. Before the first window comes one that covers the image.
        """
        with torch.autocast(state.device.type, enabled=False):
            numbers = self.numbers(precise(state))
            logs = numbers[..., 2:].clamp(-LARGEST_LOG, LARGEST_LOG)
            sigma, stride, intensity = (self.powers * logs).exp().unbind(dim=-1)
            if not self.relative:
                centre = torch.addcmul(self.middle, self.middle, numbers[..., :2])  # (A + 1) / 2 (g~ + 1)
                return Window(centre, self.widest_stride * stride, sigma, intensity)
            if before is None:
                start, scale = self.middle, torch.full_like(stride, self.widest_stride)
            else:
                start, scale = before.centre, before.stride
            centre = torch.addcmul(start, numbers[..., :2], scale[..., None], value=self.size / 2)
            stride = (scale * stride).clamp(NARROWEST, max(1.0, 2 * self.widest_stride))
            return Window(centre, stride, stride * sigma / 2, intensity)

    def filters(self, window: Window) -> tuple[Float[Tensor, "B R N X"], Float[Tensor, "B R N Y"]]:
        """F_X and F_Y (eqs. 19, 20, 25, 26).

        Each row sums to 1, also where a filter lies wholly outside the image: what it sees then is the border next to
        it.
        """
        with torch.autocast(window.centre.device.type, enabled=False):
            centres = torch.addcmul(window.centre[..., None], self.offsets, window.stride[..., None, None])
            precision = (0.5 / window.sigma.square())[..., None].expand_as(window.centre)
            if self.width == self.height:  # both at once
                return _Gaussians.apply(self.pixels, centres, precision).unbind(dim=2)
            F_x, F_y = (
                _Gaussians.apply(self.pixels[:pixels], centres[:, :, axis], precision[:, :, axis])
                for axis, pixels in enumerate((self.width, self.height))
            )
            return F_x, F_y

    def read(self, images: Float[Tensor, "B C Y X"], window: Window) -> Float[Tensor, "B R C N N"]:
        """gamma F_Y x F_X^T (eq. 27), from images that are held once however many rows read them."""
        require("images", images, "B C Y X", "float", B=len(window.stride), Y=self.height, X=self.width)
        (B, C, Y, X), R, N = images.shape, window.stride.shape[1], self.size
        F_x, F_y = self.filters(window)
        with torch.autocast(images.device.type, enabled=False):
            beside = precise(images).transpose(1, 2).reshape(B, Y, C * X)  # channels side by side: one product for all
            rows = F_y.reshape(B, R * N, Y) @ beside
            patches = rows.reshape(B * R, N * C, X) @ F_x.reshape(B * R, N, X).mT
            return _scaled(patches.view(B, R, N, C, N).transpose(2, 3), window.intensity)

    def write(self, patches: Float[Tensor, "B R C N N"], window: Window) -> Float[Tensor, "B R C Y X"]:
        """F_Y^T w F_X / gamma (eq. 29)."""
        (B, R, C, N, _), Y, X = patches.shape, self.height, self.width
        F_x, F_y = self.filters(window)
        with torch.autocast(patches.device.type, enabled=False):
            beside = _scaled(precise(patches), 1 / window.intensity).transpose(2, 3)
            rows = beside.reshape(B * R, N * C, N) @ F_x.reshape(B * R, N, X)
            images = F_y.reshape(B * R, N, Y).mT @ rows.view(B * R, N, C * X)
            return images.view(B, R, Y, C, X).transpose(2, 3)

    def locations(self, window: Window) -> Float[Tensor, "B R 2"]:
        """The centre as (x, y) in [-1, 1]; (-1, -1) is the image's top left corner and (1, 1) the opposite one."""
        return (2 * window.centre - 1) / self.extent - 1

    def boxes(self, window: Window) -> Float[Tensor, "B R 4"]:
        """(x0, y0, x1, y1) in [-1, 1] of what the grid covers, a square of one stride around each filter's centre: at
        stride 1, the pixels that a crop would take."""
        centre, half = self.locations(window), self.size * window.stride[..., None] / self.extent
        return torch.cat([centre - half, centre + half], dim=-1)


class _Gaussians(torch.autograd.Function):
    """F_ia = exp(-p (a - mu_i)^2) / Z_i for pixels a, centres mu (..., N) and precisions p = 1 / (2 sigma^2) (...).

    Stable however far mu lies outside: numerator and Z are divided by what the nearest pixel b has, which leaves
    exp(p (b - a) (b + a - 2 mu)), whose largest value is 1. As a softmax with its own derivative it takes half of what
    autograd's takes; a power of 2, because float32 powers of e are slow on AMD's processors.
    """

    @staticmethod
    def forward(ctx, pixels: Tensor, centres: Tensor, precision: Tensor) -> Tensor:
        nearest = centres.round().clamp(1, len(pixels))
        before = nearest[..., None] - pixels  # b - a
        power = before * (pixels + (nearest - 2 * centres)[..., None])
        filters = torch.exp2(power * (precision / log(2))[..., None, None])
        filters *= 1 / filters.sum(dim=-1, keepdim=True)
        ctx.save_for_backward(before, power, filters, precision)
        return filters

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        before, power, filters, precision = ctx.saved_tensors
        grad = torch.ops.aten._softmax_backward_data(grad, filters, -1, filters.dtype)  # of p (b - a) (b + a - 2 mu)
        return None, -2 * precision[..., None] * vecdot(grad, before), vecdot(grad, power).sum(dim=-1)


def _scaled(patches: Tensor, intensity: Tensor) -> Tensor:
    return patches * intensity[..., None, None, None]

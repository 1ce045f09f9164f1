"""DRAW's filterbank (Gregor et al., ICML 2015, section 3.2): a grid of N x N Gaussian filters that reads a patch of an
image, or writes one, differentiable with respect to its position and size.

Runs in float32 or wider also under autocast: bfloat16 would round positions near pixel 100 to half a pixel.
"""

from math import log

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.contracts import Window
from vision_attn.layers.linear import Linear
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.checks import check_range, require

LARGEST_LOG = 10.0
"""The bound of logarithms. e^10 pixels are wider than any image, e^-10 narrower than a pixel; squares fit into
float32."""
NARROWEST = 0.25
"""The smallest stride of a relative window, in pixels."""


class Filterbank(nn.Module):
    """N x N Gaussian filters for images (C, Y, X), in a window that is computed from a state of `state_size` numbers.

    size: N.
    relative: whether the five numbers move and zoom the previous window; in the paper they define each window anew.
        With relative moves, the same state update recentres an object anywhere in the image and at any zoom.

    Differs from the paper: the bias of sigma is initialised so that for a state of 0, whose grid spans the image, sigma
    is half a stride. The filters then cover the whole image; with a sigma of one pixel they would see 12 x 12 dots of a
    large image.

    Fast version: `fast.filterbank.FastFilterbank`.
    """

    offsets: Tensor
    pixels: Tensor
    extent: Tensor
    middle: Tensor
    powers: Tensor

    def __init__(self, state_size: int, image_shape: tuple[int, int, int], *, size: int = 12, relative: bool = False):
        super().__init__()
        check_range("Filterbank", 1, 1000, size=size)
        _, self.height, self.width = image_shape
        self.size, self.relative = size, relative
        self.widest_stride = (max(self.height, self.width) - 1) / max(1, size - 1)
        self.numbers = Linear(state_size, 5)
        with torch.no_grad():
            self.numbers.bias.zero_()[2] = 0 if relative else 2 * log(max(1.0, self.widest_stride) / 2)
        offsets = torch.arange(size) - (size - 1) / 2  # i - N/2 - 0.5 for i = 1..N
        # buffers, so that no time step rebuilds them or copies them to a GPU
        self.register_buffer("offsets", offsets, persistent=False)
        self.register_buffer("pixels", torch.arange(1.0, max(self.height, self.width) + 1), persistent=False)
        self.register_buffer("extent", torch.tensor([float(self.width), float(self.height)]), persistent=False)
        self.register_buffer("middle", (self.extent + 1) / 2, persistent=False)
        self.register_buffer("powers", torch.tensor([0.5, 1.0, 1.0]), persistent=False)

    def window(self, state: Float[Tensor, "B R H"], before: Window | None = None) -> Window:
        """Compute the window from a state (Gregor et al. 2015, eq. 21, eq. 22, eq. 23 and eq. 24).

        (g~_X, g~_Y, log sigma^2, log delta~, log gamma) is a linear map of the state (eq. 21); then
        g_X = (X + 1) / 2 (g~_X + 1) (eq. 22), g_Y = (Y + 1) / 2 (g~_Y + 1) (eq. 23) and
        delta = (max(X, Y) - 1) / (N - 1) delta~ (eq. 24). The logarithms are clipped to +-10.

        A `relative` filterbank moves the centre of `before` by g~ times half the width that `before` covers, multiplies
        its stride by delta~ within a quarter of a pixel and twice the widest stride, and measures sigma in half
        strides. Without `before`, it starts from a window that covers the image.
        """
        require("state", state, "B R H", "float", hint=": R states for each image")
        with torch.autocast(state.device.type, enabled=False):
            return self.placed(self.numbers(at_least_float32(state)), before)

    def placed(self, numbers: Float[Tensor, "B R 5"], before: Window | None) -> Window:
        """Compute the window from its five numbers."""
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
        """Return F_X and F_Y, Gaussian filters over columns and rows of pixels (Gregor et al. 2015, eq. 25 and eq. 26).

        Their means are mu_X^i = g_X + (i - N/2 - 0.5) delta (eq. 19) and, likewise, mu_Y^j (eq. 20). Each row sums to
        1. A filter that lies wholly outside the image reads the nearest border pixels.
        """
        with torch.autocast(window.centre.device.type, enabled=False):
            centres = torch.addcmul(window.centre[..., None], self.offsets, window.stride[..., None, None])
            precision = (0.5 / window.sigma.square())[..., None, None]
            F_x, F_y = (
                (-precision * (self.pixels[:length] - centres[:, :, axis, :, None]).square()).softmax(dim=-1)
                for axis, length in enumerate((self.width, self.height))
            )
            return F_x, F_y

    def read(self, images: Float[Tensor, "B C Y X"], window: Window) -> Float[Tensor, "B R C N N"]:
        """Return the patches gamma F_Y x F_X^T (Gregor et al. 2015, eq. 27). Images are not repeated for the rows that
        read them."""
        require("images", images, "B C Y X", "float", B=window.stride.shape[0], Y=self.height, X=self.width)
        return self._read(at_least_float32(images), window)

    def _read(self, images: Tensor, window: Window) -> Tensor:
        F_x, F_y = self.filters(window)
        with torch.autocast(images.device.type, enabled=False):
            patches = F_y[:, :, None] @ images[:, None] @ F_x.mT[:, :, None]
            return window.intensity[..., None, None, None] * patches

    def write(self, patches: Float[Tensor, "B R C N N"], window: Window) -> Float[Tensor, "B R C Y X"]:
        """Return F_Y^T w F_X / gamma of patches w (Gregor et al. 2015, eq. 29)."""
        (B, R), N = window.stride.shape, self.size
        require("patches", patches, "B R C N N", "float", B=B, R=R, N=N)
        return self._write(at_least_float32(patches), window)

    def _write(self, patches: Tensor, window: Window) -> Tensor:
        F_x, F_y = self.filters(window)
        with torch.autocast(patches.device.type, enabled=False):
            return F_y.mT[:, :, None] @ patches @ F_x[:, :, None] / window.intensity[..., None, None, None]

    def locations(self, window: Window) -> Float[Tensor, "B R 2"]:
        """Return the centre of each window as (x, y) in [-1, 1]; (-1, -1) is the top left corner of the image, (1, 1)
        the bottom right one."""
        return (2 * window.centre - 1) / self.extent - 1

    def boxes(self, window: Window) -> Float[Tensor, "B R 4"]:
        """Return the area that the grid covers, (x0, y0, x1, y1) in [-1, 1]: a square of one stride around the centre
        of each filter. At stride 1 these are the pixels of a crop."""
        centre, half = self.locations(window), self.size * window.stride[..., None] / self.extent
        return torch.cat([centre - half, centre + half], dim=-1)

    def covering(self, boxes: Float[Tensor, "B R 4"], window: Window) -> Window:
        """Return windows whose grids cover given boxes: each is centred on its box and as wide as its longer side (see
        `boxes`). Sigma in strides and the intensity are those of `window`. Where a box is NaN, `window` is kept."""
        low, high = boxes.chunk(2, dim=-1)
        centre = ((low + high) / 2 + 1) * self.extent / 2 + 0.5
        stride = ((high - low) * self.extent).amax(dim=-1) / (2 * self.size)
        sigma = window.sigma * stride / window.stride
        asked = ~stride.isnan()
        return Window(
            centre.where(asked[..., None], window.centre),
            stride.where(asked, window.stride),
            sigma.where(asked, window.sigma),
            window.intensity,
        )

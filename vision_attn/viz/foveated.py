"""`GlimpseTrace`, the glimpses of one image, and functions that draw their path and the foveated image of their pixels.

After figure 3 of Recurrent Models of Visual Attention (Mnih et al., 2014).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from PIL import Image, ImageColor, ImageDraw, ImageFont
from torch import Tensor

from vision_attn.system.errors import UserError
from vision_attn.viz.panel_sheets import DARK

SMOOTH = 4  # lines and points are drawn this many times larger, then averaged
FAINT = 0.45  # brightness of the path at its start; it ends at 1
LEGIBLE = 7  # radius, in pixels, of the smallest point with a number
FAR = 4  # coordinates are clamped to this, which is outside the picture


class GlimpseTrace(NamedTuple):
    """The glimpses of a classifier in one image, and its answer."""

    image: Float[Tensor, "C Y X"]
    """The image in grey or RGB, in [0, 1]; it may be smaller than the original image (`full_size`)."""
    locations: Float[Tensor, "T 2"]
    """(x, y) of each glimpse in [-1, 1]; (-1, -1) is the top-left corner of the image."""
    patches: Float[Tensor, "T K C g g"]
    """The pixels of each glimpse: scale k covers g 2^k x g 2^k pixels of the image, centred at the location."""
    label: int | None
    """The correct class; None if unknown."""
    said: int
    """The predicted class."""
    probabilities: Float[Tensor, "T N"] | None = None
    """The probability of each class after each glimpse."""
    title: str = ""
    full_size: tuple[int, int] | None = None
    """The width and height in pixels of the original image, if `image` is reduced."""
    names: Sequence[str] = ()
    """The names of the classes; empty if they are numbers."""

    @property
    def entropy(self) -> Float[Tensor, "T"] | None:
        """The entropy of the answer after each glimpse, in nats: how undecided the model still was; None without
        `probabilities`."""
        return None if self.probabilities is None else torch.special.entr(self.probabilities).sum(dim=1)

    @property
    def right(self) -> bool | None:
        """Whether the answer is correct; None if unknown."""
        return None if self.label is None else self.said == self.label

    @property
    def size(self) -> tuple[int, int]:
        """The width and height of the original image."""
        return self.full_size or (self.image.shape[2], self.image.shape[1])

    def named(self, number: int) -> str:
        """Return the name of a class."""
        return self.names[number] if self.names else str(number)

    @property
    def reach(self) -> int:
        """The width of the coarsest scale, in pixels of the image."""
        return self.patches.shape[-1] * 2 ** (self.patches.shape[1] - 1)

    @property
    def verdict(self) -> str:
        said = f"said {self.named(self.said)}"
        if self.label is None:
            return said if self.probabilities is None else f"{said}, p {self.probabilities[-1, self.said]:.2f}"
        return f"{said}: " + ("right" if self.right else f"wrong, it is {self.named(self.label)}")


def checked(trace: GlimpseTrace) -> GlimpseTrace:
    """Return `trace` on the CPU in float32. Raises a UserError that names the tensors that do not fit each other."""
    image, locations, patches = (
        tensor.detach().float().cpu() for tensor in (trace.image, trace.locations, trace.patches)
    )
    probabilities = None if trace.probabilities is None else trace.probabilities.detach().float().cpu()
    name = trace.title or "glimpses"
    if image.ndim != 3 or image.shape[0] not in (1, 3) or 0 in image.shape:
        raise UserError(f"{name}: an image is (1 or 3, Y, X), this one is {tuple(image.shape)}")
    if locations.ndim != 2 or locations.shape[1] != 2 or not len(locations):
        raise UserError(f"{name}: locations are (T, 2) with at least one glimpse, these are {tuple(locations.shape)}")
    num_glimpses = len(locations)
    if not locations.isfinite().all():
        first = int((~locations.isfinite()).any(1).nonzero()[0])
        raise UserError(f"{name}: glimpse {first + 1} is at {tuple(locations[first].tolist())}, which is not finite")
    if patches.ndim != 5 or patches.shape[-1] != patches.shape[-2] or 0 in patches.shape:
        raise UserError(f"{name}: patches are (T, K, C, g, g), these are {tuple(patches.shape)}")
    if len(patches) != num_glimpses:
        raise UserError(f"{name}: patches of {len(patches)} glimpses, but {num_glimpses} locations")
    if patches.shape[2] != len(image):
        raise UserError(f"{name}: patches have {patches.shape[2]} channels, and the image has {len(image)}")
    if probabilities is not None:
        if probabilities.ndim != 2 or len(probabilities) != num_glimpses:
            shape = f"these are {tuple(probabilities.shape)} for {num_glimpses} glimpses"
            raise UserError(f"{name}: probabilities are (T, N), one row for each glimpse; {shape}")
        if not 0 <= trace.said < probabilities.shape[1]:
            raise UserError(f"{name}: said {trace.said}, but probabilities are of {probabilities.shape[1]} classes")
    return trace._replace(image=image, locations=locations, patches=patches, probabilities=probabilities)


def foveated(
    locations: Float[Tensor, "T 2"], patches: Float[Tensor, "T K C g g"], height: int, width: int, zoom: int | float = 1
) -> Float[Tensor, "C y x"]:
    """Draw the pixels of glimpses in their places; black elsewhere.

    height, width: the size of the image in pixels.
    zoom: the factor by which the drawing is larger than the image.

    Every patch is enlarged to the pixels that it covers, in steps of 1/zoom of a pixel. Finer scales are drawn over
    coarser ones and, within a scale, later glimpses over earlier ones.
    """
    num_scales, num_channels, size, _ = patches.shape[1:]
    y_size, x_size = (max(1, round(length * zoom)) for length in (height, width))
    canvas = patches.new_zeros(num_channels, y_size, x_size)
    for scale in reversed(range(num_scales)):
        for (x, y), patch in zip(locations.tolist(), patches[:, scale], strict=True):
            down, across = (
                ((torch.arange(pixels) + 0.5) * length / pixels - (place + 1) / 2 * length) / 2**scale + size / 2
                for place, length, pixels in ((y, height, y_size), (x, width, x_size))
            )  # position of each pixel's centre in the patch, in cells from its edge
            rows, columns = (((cell >= 0) & (cell < size)).nonzero()[:, 0] for cell in (down, across))
            canvas[:, rows[:, None], columns] = patch[:, down[rows].long()[:, None], across[columns].long()]
    return canvas


def traced(picture: Image.Image, trace: GlimpseTrace, num_glimpses: int | None = None) -> Image.Image:
    """Draw glimpses on a copy of `picture`: numbered points joined by lines, and the squares of the last one.

    num_glimpses: how many of the first glimpses to draw; None: all.
    """
    locations = trace.locations[:num_glimpses].clamp(-FAR, FAR)
    size = torch.tensor(picture.size) * SMOOTH
    points = ((locations + 1) / 2 * size).tolist()
    shades = torch.linspace(1, FAINT, len(trace.locations)).flip(0)[: len(points)].tolist()
    lines = Image.new("RGBA", tuple(size.tolist()))
    draw = ImageDraw.Draw(lines)
    (x, y), (num_scales, _, patch, _) = points[-1], trace.patches.shape[1:]
    zoom = size / torch.tensor(trace.size)
    for scale in reversed(range(num_scales)):
        across, down = (zoom * patch * 2**scale / 2).tolist()
        corners = (x - across, y - down, x + across, y + down)
        draw.rectangle(corners, outline=_shade(1.0, opacity=220 - 50 * min(scale, 3)), width=SMOOTH)
    for ends in pairwise(points):
        draw.line([tuple(end) for end in ends], (0, 0, 0, 160), 5 * SMOOTH)  # separates the line from white ink
    for ends, shade in zip(pairwise(points), shades[1:], strict=True):
        draw.line([tuple(end) for end in ends], _shade(shade), 2 * SMOOTH)
    for step, (point, shade) in enumerate(zip(points, shades, strict=True)):
        _point(draw, point, f"{step + 1}", shade, max(size.tolist()) / 48)
    lines = lines.resize(picture.size, Image.Resampling.BOX)
    return Image.alpha_composite(picture.convert("RGBA"), lines).convert("RGB")


def as_picture(image: Float[Tensor, "C Y X"]) -> Image.Image:
    """Convert intensities in [0, 1] to an RGB picture."""
    levels = (image.nan_to_num(0).clamp(0, 1) * 255).round().byte()
    return Image.fromarray(levels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())


def _point(draw: ImageDraw.ImageDraw, centre: Sequence[float], number: str, shade: float, radius: float) -> None:
    """Draw a disc with its number, which is left out if it would be too small to read."""
    x, y = centre
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), _shade(shade), DARK.paper, SMOOTH)
    if radius >= LEGIBLE * SMOOTH:
        ink = DARK.paper if shade > 0.65 else DARK.ink
        draw.text((x, y), number, ink, ImageFont.load_default(1.35 * radius), "mm")


def _shade(brightness: float, opacity: int = 255) -> tuple[int, int, int, int]:
    """Return the accent colour, scaled to `brightness`."""
    red, green, blue = (round(level * brightness) for level in ImageColor.getrgb(DARK.accent))
    return red, green, blue, opacity

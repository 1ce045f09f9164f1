"""Draw a map without its picture, cell by cell, in the colours of the overlay."""

from jaxtyping import Float
from matplotlib import colormaps
from PIL import Image
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent, nearest
from vision_attn.viz.overlay.views import pixels_of

COLOURS = "plasma"
"""The name of matplotlib's colour map from which `viz.overlay.views.RAMP` is taken."""
NOTHING = "#7f7f7f"
"""The colour around the part that the model saw."""


def cells(
    share: Float[Tensor, "Y X"], size: tuple[int, int], extent: Extent = WHOLE, seen: Extent = WHOLE
) -> Image.Image:
    """Draw each region in its place on an empty picture.

    share: the value of each region, in [0, 1].
    size: width and height of the picture.
    extent, seen: see `viz.overlay.views.overlaid`.
    """
    rows = nearest(size[1], share.shape[0], extent.y0, extent.y1)
    columns = nearest(size[0], share.shape[1], extent.x0, extent.x1)
    drawn = Image.fromarray(colormaps[COLOURS](share[rows][:, columns].numpy(), bytes=True)[..., :3])
    page, inner = Image.new("RGB", size, NOTHING), pixels_of(seen, *size)
    page.paste(drawn.crop(inner), inner[:2])
    return page

"""Draw the cells of a map by themselves, in the colours of the overlay."""

from jaxtyping import Float
from matplotlib import colormaps
from PIL import Image
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent, nearest
from vision_attn.viz.overlay.views import pixels_of

COLOURS = "plasma"
"""The colour map of matplotlib that `viz.overlay.views.RAMP` is taken from."""
NOTHING = "#7f7f7f"
"""The colour around the part that the model saw."""


def cells(
    share: Float[Tensor, "Y X"], size: tuple[int, int], extent: Extent = WHOLE, seen: Extent = WHOLE
) -> Image.Image:
    """Draw each region, in [0, 1], where it lies on a picture of this size. extent, seen: see
    `viz.overlay.views.overlaid`."""
    rows = nearest(size[1], share.shape[0], extent.y0, extent.y1)
    columns = nearest(size[0], share.shape[1], extent.x0, extent.x1)
    drawn = Image.fromarray(colormaps[COLOURS](share[rows][:, columns].numpy(), bytes=True)[..., :3])
    page, inner = Image.new("RGB", size, NOTHING), pixels_of(seen, *size)
    page.paste(drawn.crop(inner), inner[:2])
    return page

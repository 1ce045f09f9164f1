"""Find the size of the images that a model of another library takes, from its attributes and configs."""

from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any

from torch import nn

from vision_attn.system.errors import UserError

SIDE = 224
"""The default side of images, in pixels, if a model does not tell it."""


def image_size(model: nn.Module) -> tuple[int, int]:
    """Return the rows and columns of the images that `model` takes.

    The first of: its attribute `resolution`, a number of pixels or (rows, columns); what one of its modules or their
    configs call `img_size` or `image_size` (timm, torchvision, transformers); the `input_size` of timm's settings;
    `SIDE`. Raises UserError for an invalid `resolution`.
    """
    given = getattr(model, "resolution", None)
    if given is not None:
        size = _as_size(given)
        if size is None:
            raise UserError(
                f"the model's attribute `resolution` must be a number of pixels, or (rows, columns), not {given!r:.80}"
            )
        return size
    return next(filter(None, map(_as_size, _stated_sizes(model))), (SIDE, SIDE))


def timm_settings(model: nn.Module) -> Mapping[str, Any]:
    """Return timm's settings for the images that a model was trained on: `input_size`, `mean`, `std`; empty for other
    models."""
    for name in ("pretrained_cfg", "default_cfg"):
        if isinstance(settings := getattr(model, name, None), Mapping):
            return settings
    return {}


def _stated_sizes(model: nn.Module) -> Iterator[Any]:
    """Yield the image sizes that a model and its modules name, the most reliable first."""
    for module in model.modules():
        for place in (module, getattr(module, "config", None)):
            yield from (getattr(place, name, None) for name in ("img_size", "image_size"))
    for module in model.modules():
        yield timm_settings(module).get("input_size")


def _as_size(value: Any) -> tuple[int, int] | None:
    """Return (rows, columns) from a number, or from a sequence that ends with them; None for anything else."""
    sides: Any = [value, value] if isinstance(value, Integral) else value
    if not isinstance(sides, Sequence) or isinstance(sides, str) or len(sides) not in (2, 3):
        return None
    rows, columns = sides[-2:]
    if not all(isinstance(side, Integral) and int(side) > 0 for side in (rows, columns)):
        return None
    return int(rows), int(columns)

"""Convert attention within windows, as in Swin, to one map over the image: the attention that each token receives.

Swin (Liu et al. 2021) cuts the grid of tokens into windows; every other layer shifts the grid cyclically first. A token
attends only within its window, and no token represents the whole image. So the map of a layer shows how much attention
tokens receive from others of their window, not the attention of an answer. In the last stage of the usual models one
window covers the image, and the map is the mean of all rows of plain attention.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.explain.attention_mode import RecordedAttention

SHIFTED_FIRST = {
    "torchvision.ShiftedWindowAttention": False,
    "timm.SwinTransformerBlock": True,
    "timm.SwinTransformerV2Block": True,
    "transformers.SwinLayer": False,
    "transformers.Swinv2Layer": False,
}
"""Whether a module that cuts a grid into windows shifts it before it pads it, by library and class."""


class Windows(NamedTuple):
    """How a layer cut its grid of tokens into windows."""

    rows: int
    columns: int
    size: tuple[int, int]
    """The rows and columns of a window."""
    shift: tuple[int, int]
    """The rows and columns by which the grid was shifted, up and to the left."""
    shifted_first: bool = False

    def places(self) -> Int[Tensor, "W N"]:
        """Return the token at each of the N places of each of W windows, counted row by row in the grid; -1 is
        padding."""
        grid = torch.arange(self.rows * self.columns).view(self.rows, self.columns)
        padding = (0, -self.columns % self.size[1], 0, -self.rows % self.size[0])
        padded = (self.rows + padding[3], self.columns + padding[1])
        back = tuple(-shift for shift in self.shift)
        if self.shifted_first:
            grid = F.pad(grid.roll(back, (0, 1)), padding, value=-1)
        else:
            grid = F.pad(grid, padding, value=-1).roll(back, (0, 1))
        down, across = padded[0] // self.size[0], padded[1] // self.size[1]
        windows = grid.view(down, self.size[0], across, self.size[1]).transpose(1, 2)
        return windows.reshape(down * across, self.size[0] * self.size[1])

    def picture(self, tokens: Float[Tensor, "B N C"]) -> Float[Tensor, "B C Y X"]:
        """Arrange the tokens in their places."""
        return tokens.mT.unflatten(-1, (self.rows, self.columns))

    def received(self, maps: Float[Tensor, "BW K N N"]) -> Float[Tensor, "B K Y X"]:
        """Return the attention that each token receives: the mean over the queries of its window, without padding. Each
        window has the same share of the map, which sums to 1 unless there is padding. In a shifted layer, the parts of
        a window that come from opposite edges of the image do not attend to each other."""
        places = self.places().to(maps.device)
        W, N = places.shape
        real = places >= 0
        weights = maps.unflatten(0, (-1, W)) * real[:, None, :, None]
        tokens = (weights.sum(dim=-2) / (N * W)).transpose(1, 2)  # (B, K, W, N)
        picture = tokens.new_zeros(*tokens.shape[:2], self.rows * self.columns)
        picture[..., places[real]] = tokens[..., real]
        return picture.unflatten(-1, (self.rows, self.columns))


@contextmanager
def window_layouts(model: nn.Module) -> Iterator[dict[str, Windows]]:
    """Context manager: collect the windows of each module that makes them, by its name, at each call."""
    layouts: dict[str, Windows] = {}
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if (block_name := _kind(module)) is not None:

                def note(
                    module: Any, args: tuple, given: dict, _: Any, name: str = name, block_name: str = block_name
                ) -> None:
                    layouts[name] = _layout(block_name, module, args, given)

                hooks.enter_context(module.register_forward_hook(note, with_kwargs=True))
        yield layouts


def last_tokens(model: nn.Module) -> str | None:
    """Return the name of the last module that cuts a grid into windows, if it returns tokens (B, N, C) instead of a
    map."""
    blocks = [name for name, module in model.named_modules() if (_kind(module) or "").startswith("transformers")]
    return blocks[-1] if blocks else None


def _kind(module: nn.Module) -> str | None:
    kinds = (f"{block.__module__.partition('.')[0]}.{block.__name__}" for block in type(module).__mro__)
    return next((name for name in kinds if name in SHIFTED_FIRST), None)


def _layout(block_name: str, module: Any, args: tuple, given: dict[str, Any]) -> Windows:
    """Return the windows of a module after its call, which may have adapted them to the grid."""
    if block_name.startswith("transformers"):
        rows, columns = args[1] if len(args) > 1 else given["input_dimensions"]
        size, shift = (int(module.window_size),) * 2, (int(module.shift_size),) * 2
    else:
        _, rows, columns, _ = args[0].shape
        size, shift = tuple(module.window_size), tuple(module.shift_size)
    if block_name.startswith("torchvision"):  # an axis that one window covers is not shifted
        down, across = (0 if side <= of else by for side, of, by in zip((rows, columns), size, shift, strict=True))
        shift = down, across
    return Windows(int(rows), int(columns), size, shift, SHIFTED_FIRST[block_name])


class WindowAttention:
    """Maps over the image from attention within windows, recorded with full maps.

    Layers differ in their grids and numbers of heads. There is no rollout and no relevance: see `in_stages`.
    """

    in_stages = True

    def __init__(self, record: Sequence[RecordedAttention], layouts: dict[str, Windows]) -> None:
        self.layers = [
            (layouts[place], attention)
            for attention in record
            if (place := _place(attention.name, layouts)) is not None
        ]

    def raw(self) -> list[Float[Tensor, "B _ _ _"]]:
        """Return the attention that tokens receive in each layer: images, heads, rows, columns."""
        return [windows.received(attention.maps).detach() for windows, attention in self.layers]


def _place(name: str, layouts: dict[str, Windows]) -> str | None:
    """Return the module that cut the windows for the attention `name`: itself, or one that contains it."""
    parts = name.split(".")
    around = (".".join(parts[:length]) for length in range(len(parts), -1, -1))
    return next((place for place in around if place in layouts), None)

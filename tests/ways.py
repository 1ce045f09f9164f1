"""Models by plain torch and accelerated: tests with the fixture `both_ways` run once each way."""

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import nn

Made = TypeVar("Made", bound="nn.Module")
WAYS = ("plain", "fast")
_way = "plain"


def go(way: str) -> None:
    """From now on, `prepared` makes modules of this way."""
    global _way
    _way = way


def prepared(module: Made) -> Made:
    """The module, accelerated where the test runs the fast way."""
    if _way == "fast":
        from vision_attn.fast import accelerate

        accelerate(module)
    return module

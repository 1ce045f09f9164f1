"""A model of another library, opened: what it is, and how to call it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from vision_attn.system.console import reason_of
from vision_attn.system.errors import UserError
from vision_attn.system.hub import is_missing


class Model(NamedTuple):
    """A model in evaluation mode, and how to call it."""

    module: Any
    kind: str
    """"classifier": images -> scores of classes. "encoder": no answer. "matcher": images and texts -> similarities.
    "captioner": images -> words."""
    inputs: Callable[[Image.Image], dict[str, Tensor]]
    """A square picture -> the keyword arguments of `module`, for a batch of one."""
    classes: Sequence[str] = ()
    processor: Any = None
    """Of transformers: for texts."""
    own: bool = False
    """Whether it is made by a function of the user's, who can tell it the size of its images."""
    random: bool = False
    """Whether its weights are random: its answers mean nothing."""

    def on(self, device: torch.device) -> "Model":
        """The model, with its inputs: on a device, unless several hold its layers, and in the precision of its weights.
        Moves the module."""
        module, prepare = self.module, self.inputs
        if not getattr(module, "hf_device_map", None):
            module.to(device)
        weight = next((one for one in module.parameters() if not one.is_meta), torch.empty(0, device=device))

        def inputs(picture: Image.Image) -> dict[str, Tensor]:
            return {name: value.to(weight.device, weight.dtype) for name, value in prepare(picture).items()}

        return self._replace(inputs=inputs)


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Turn whatever another library raises within this context into a UserError of one line, which says `what` failed.
    Memory that runs out stays what it is."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise UserError(f"{what}: {reason_of(error)}") from error


def reached(get: Callable[[], Any], name: str, hint: str = "") -> Any:
    """What `get` returns; whatever another library raises is a UserError of one line, which ends with `hint`."""
    try:
        return get()
    except Exception as error:
        reason = "it was not downloaded before, and there is no network" if is_missing(error) else reason_of(error)
        raise UserError(f"{name} cannot be opened: {reason.rstrip('.')}{hint}") from error

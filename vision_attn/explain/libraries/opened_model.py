"""`OpenedModel`: a model of another library with its kind, its classes and a function that makes its inputs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from vision_attn.system.console import reason_of
from vision_attn.system.errors import UserError
from vision_attn.system.hub import is_missing


class OpenedModel(NamedTuple):
    """A model in evaluation mode, with a function that makes its inputs."""

    module: Any
    kind: str
    """"classifier": images -> scores of classes. "encoder": no answer. "matcher": images and texts -> similarities.
    "captioner": images -> words."""
    inputs: Callable[[Image.Image], dict[str, Tensor]]
    """A function from a square picture to the keyword arguments of `module`, for a batch of one."""
    classes: Sequence[str] = ()
    processor: Any = None
    """The processor of a model of transformers, for texts; None for others."""
    own: bool = False
    """Whether the user's own function made the model, and so can set the size of its images."""
    random: bool = False
    """Whether the weights are random, so that answers mean nothing."""

    def on(self, device: torch.device) -> "OpenedModel":
        """Move the model to a device, unless several devices hold its layers, and return it with inputs on that device
        and in the precision of its weights."""
        module, prepare = self.module, self.inputs
        if not getattr(module, "hf_device_map", None):
            module.to(device)
        weight = next(
            (parameter for parameter in module.parameters() if not parameter.is_meta), torch.empty(0, device=device)
        )

        def inputs(picture: Image.Image) -> dict[str, Tensor]:
            return {name: value.to(weight.device, weight.dtype) for name, value in prepare(picture).items()}

        return self._replace(inputs=inputs)


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Context manager: convert every error of another library to a UserError of one line, except errors for lack of
    memory.

    what: says what failed, at the beginning of the message.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise UserError(f"{what}: {reason_of(error)}") from error


def reached(get: Callable[[], Any], name: str, hint: str = "") -> Any:
    """Return `get()`; convert every error of another library to a UserError of one line.

    name: what could not be reached, for the message.
    hint: the end of the message.
    """
    try:
        return get()
    except Exception as error:
        reason = "it was not downloaded before, and there is no network" if is_missing(error) else reason_of(error)
        raise UserError(f"{name} cannot be opened: {reason.rstrip('.')}{hint}") from error

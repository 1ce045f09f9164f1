"""The exponential moving average of the trained weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vision_attn.layers.precision import double


class Average:
    """Exponential moving average of the trained weights. Buffers and frozen weights are not averaged.

    After n steps the decay is min(`decay`, (1 + n) / (10 + n)): the initial weights do not dominate a short run. The
    decay is computed on the device, so that a captured step can replay `update`.
    """

    def __init__(self, parameters: list[nn.Parameter], decay: float) -> None:
        self.live, self.decay = parameters, decay
        self.averaged = [parameter.detach().clone() for parameter in parameters]
        self.steps = torch.zeros((), dtype=torch.long, device=parameters[0].device)

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the current weights. The first update copies them."""
        steps = double(self.steps)
        decay = ((1 + steps) / (10 + steps)).clamp(max=self.decay) * (steps > 0)
        for averaged, live in zip(self.averaged, self.live, strict=True):
            averaged.lerp_(live, (1 - decay).to(averaged.dtype))
        self.steps += 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within this context, the task holds the averaged weights."""
        with torch.no_grad():
            kept = [parameter.clone() for parameter in self.live]
            _copy(self.live, self.averaged)
        try:
            yield
        finally:
            with torch.no_grad():
                _copy(self.live, kept)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state under the names of torch's `AveragedModel`."""
        averaged = {f"module.{index}": tensor for index, tensor in enumerate(self.averaged)}
        return {"n_averaged": self.steps, **averaged}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Raises KeyError or RuntimeError if `state` is that of other weights."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


def _copy(tensors: list[Tensor], values: list[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)

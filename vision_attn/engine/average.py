"""Weights that are validated and kept in place of the trained ones: an exponential moving average, and an interpolation
with the weights from which the run started."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vision_attn.layers.precision import double


class KeptWeights(ABC):
    """Weights that a task holds for a while in place of the trained ones, which are `live`."""

    live: list[nn.Parameter]

    @abstractmethod
    def values(self) -> Sequence[Tensor]:
        """Return the weights, in the order of `live`."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint keeps: those of this object, not copies."""

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context manager: put these weights into the task."""
        with torch.no_grad():
            kept = [parameter.clone() for parameter in self.live]
            _copy(self.live, self.values())
        try:
            yield
        finally:
            with torch.no_grad():
                _copy(self.live, kept)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned. Raises KeyError or RuntimeError if `state` is that of other weights."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])


class Average(KeptWeights):
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

    def values(self) -> list[Tensor]:
        return self.averaged

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state under the names of torch's `AveragedModel`."""
        averaged = {f"module.{index}": tensor for index, tensor in enumerate(self.averaged)}
        return {"n_averaged": self.steps, **averaged}


class Between(KeptWeights):
    """Weights between those from which a run starts and the trained ones: share * start + (1 - share) * trained.

    Fine-tuned weights forget. Weights on the line to their start often know both data sets, and are better on the new
    one as well (WiSE-FT; Wortsman et al., Robust Fine-Tuning of Zero-Shot Models, CVPR 2022). Buffers and frozen
    weights are not changed. Within the context of an average, the averaged weights count as the trained ones.
    """

    def __init__(self, parameters: list[nn.Parameter], share: float) -> None:
        self.live, self.share = parameters, share
        self.start = [parameter.detach().clone() for parameter in parameters]

    def values(self) -> list[Tensor]:
        return [live.lerp(start, self.share) for live, start in zip(self.live, self.start, strict=True)]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights of the start."""
        return {f"start.{index}": tensor for index, tensor in enumerate(self.start)}


def _copy(tensors: list[nn.Parameter], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)

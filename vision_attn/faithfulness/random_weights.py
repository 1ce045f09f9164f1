"""Test whether maps depend on a model's weights (Adebayo et al. 2018, "Sanity Checks for Saliency Maps", section 3):
weights are randomised from the output down, and each map is compared with that of the original model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

STAGES = 3
"""The number of stages in which the model is randomised, until all weights are random."""
UNCHANGED = 0.9
"""A method whose maps have at least this rank correlation with those of the original model ignores the weights."""


def from_the_output(module: nn.Module, run: Callable[[], object]) -> list[list[nn.Parameter]]:
    """Return the parameters of each module, in reverse order of the calls in `run`; modules that are never called come
    last."""
    calls: list[nn.Module] = []
    with ExitStack() as hooks:
        for child in module.modules():
            hooks.enter_context(child.register_forward_hook(lambda called, *_: calls.append(called)))
        run()
    parts = list(dict.fromkeys([*reversed(calls), *module.modules()]))
    return [own for child in parts if (own := list(child.parameters(recurse=False)))]


@contextmanager
def randomised(
    parts: Sequence[Sequence[nn.Parameter]], *, stages: int = STAGES, seed: int = 0
) -> Iterator[Iterator[float]]:
    """Context manager: return an iterator whose `stages` steps randomise the weights of more and more `parts` and yield
    the share of random parts. All weights are restored afterwards.

    Differs from the paper: the values of each tensor are shuffled, not initialised as before training. They keep their
    distribution, so that activations keep their size in any kind of model.
    """
    kept = [(weight, weight.detach().clone()) for parameters in parts for weight in parameters]
    generator = torch.Generator().manual_seed(seed)

    def steps() -> Iterator[float]:
        done = 0
        for stage in range(1, stages + 1):
            upto = round(len(parts) * stage / stages)
            for parameters in parts[done:upto]:
                for weight in parameters:
                    order = torch.randperm(weight.numel(), generator=generator).to(weight.device)
                    with torch.no_grad():
                        weight.copy_(weight.flatten()[order].view_as(weight))
            done = upto
            yield done / len(parts)

    try:
        yield steps()
    finally:
        with torch.no_grad():
            for weight, before in kept:
                weight.copy_(before)

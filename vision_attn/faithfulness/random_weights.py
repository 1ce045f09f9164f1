"""Whether maps depend on a model's weights (Adebayo et al. 2018, "Sanity Checks for Saliency Maps", section 3): weights
are randomised from the output down, and each map is compared with that of the model as it was."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

STAGES = 3
"""Parts of the model that are randomised one after the other, the last of them too."""
UNCHANGED = 0.9
"""Rank correlation with the map of the model as it was, from which on a method of maps ignores the weights."""


def from_the_output(module: nn.Module, run: Callable[[], object]) -> list[list[nn.Parameter]]:
    """The parameters of each part that has some, in the order of their last call in `run`, the last one first; those
    that are never called follow."""
    calls: list[nn.Module] = []
    with ExitStack() as hooks:
        for part in module.modules():
            hooks.enter_context(part.register_forward_hook(lambda one, *_: calls.append(one)))
        run()
    parts = list(dict.fromkeys([*reversed(calls), *module.modules()]))
    return [own for part in parts if (own := list(part.parameters(recurse=False)))]


@contextmanager
def randomised(
    parts: Sequence[Sequence[nn.Parameter]], *, stages: int = STAGES, seed: int = 0
) -> Iterator[Iterator[float]]:
    """Yields an iterator: in each of `stages` steps the weights of further `parts` become random, and the share of
    random parts is yielded. Afterwards all weights are as before.

    Differs from the paper, which initialises weights as before training: here the values of each tensor change places
    at random. They keep their distribution, so that activations keep their size in any kind of model.
    """
    kept = [(one, one.detach().clone()) for part in parts for one in part]
    generator = torch.Generator().manual_seed(seed)

    def steps() -> Iterator[float]:
        done = 0
        for stage in range(1, stages + 1):
            upto = round(len(parts) * stage / stages)
            for part in parts[done:upto]:
                for one in part:
                    order = torch.randperm(one.numel(), generator=generator).to(one.device)
                    with torch.no_grad():
                        one.copy_(one.flatten()[order].view_as(one))
            done = upto
            yield done / len(parts)

    try:
        yield steps()
    finally:
        with torch.no_grad():
            for one, before in kept:
                one.copy_(before)

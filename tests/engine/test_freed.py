"""What a step of training computed is freed when it ends, by reference counts alone.

A circle of references keeps the tensors of a step until the garbage collector runs; one through nodes of autograd,
which it does not see, keeps them until the process ends.
"""

import gc
from collections.abc import Callable, Iterator

import pytest
import torch

from tests import tiny
from vision_attn.fast import accelerate

tried: set[tuple[object, ...]] = set()


@pytest.fixture
def nodes() -> Iterator[Callable[[], set[str]]]:
    """The kinds of nodes that autograd functions in Python have made since, and that are still there."""
    gc.disable()
    gc.freeze()  # what was there before is not looked through
    context = torch.autograd.function.FunctionCtx
    yield lambda: {type(one).__name__ for one in gc.get_objects() if isinstance(one, context)}
    gc.unfreeze()
    gc.enable()


@pytest.mark.parametrize("case", tiny.CASES)
def test_a_step_of_every_config_leaves_nothing_of_its_graph(case: str, nodes) -> None:
    tiny.skip_repeated(tiny.alike(case), tried)
    task, batch = tiny.made(case)
    accelerate(task)
    scalars = task(*batch)
    assert nodes() or case != "sat_soft_scenes"  # not all configs have functions of their own
    del scalars
    assert not nodes()
    task(*batch)["loss"].backward()
    assert not nodes()

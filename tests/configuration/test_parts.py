"""Objects made of the parts of a config: whose mistake it is when a class refuses its arguments."""

import copy
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from vision_attn import UserError
from vision_attn.configuration.parts import PartConfig, built
from vision_attn.configuration.reader import ConfigReader
from vision_attn.configuration.trust import Names

LAYER = Callable[[int, int], nn.Module]


class Mine(nn.Linear):
    """A class of a user's own, which checks its arguments as torch's classes do."""

    def __init__(self, inputs: int, outputs: int, *, rate: float = 0.5) -> None:
        super().__init__(inputs, outputs)
        if rate > 1:
            raise ValueError(f"rate is {rate}:\nat most 1")


class Outer(nn.Module):
    def __init__(self, *, layer: LAYER, sizes: tuple[int, ...] = (2, 5)) -> None:
        super().__init__()
        self.layer = layer(*sizes)


class Ours(nn.Module):
    """Stands for a class of the package."""

    __module__ = "vision_attn.models.ours"

    def __init__(self, *, dropout: float = 0.1, names: tuple[str, ...] = (), said: str = "") -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.pairs = [*zip(names, range(2), strict=True)] if names else []
        if said:
            raise UserError(said)


def read(value: Any, annotation: Any) -> Any:
    return ConfigReader(Names()).value(value, annotation, "task.model", ())


def written(kind: type, **arguments: Any) -> dict[str, Any]:
    return {"class_path": f"{__name__}.{kind.__name__}", "init_args": arguments}


def test_what_a_class_of_the_user_refuses_names_its_key() -> None:
    made = built(read(written(Mine, rate=2.0), LAYER))  # the factory is called later, by the class that receives it
    place = r"\(ValueError at test_parts\.py:27; --debug shows where it came from\)$"
    with pytest.raises(UserError, match=rf"^task\.model: rate is 2\.0: at most 1 {place}"):
        made(2, 5)
    outer = read(written(Outer, layer=written(Mine, rate=3.0)), nn.Module)
    with pytest.raises(UserError, match=rf"^task\.model\.layer: rate is 3\.0: at most 1 {place}"):
        built(outer)
    assert built(read(written(Outer, layer=written(Mine)), nn.Module)).layer.out_features == 5


def test_what_a_library_refuses_names_its_key() -> None:
    optimizer = {"class_path": "torch.optim.SGD", "init_args": {"lr": -1.0}}
    with pytest.raises(UserError, match=r"^task\.model: Invalid learning rate: -1\.0$"):
        built(read(optimizer, Callable[[list], Optimizer]))([torch.zeros(1, requires_grad=True)])


def test_a_layer_of_torch_that_refuses_what_ours_was_given_names_the_key() -> None:
    with pytest.raises(UserError, match=r"^task\.model: dropout probability has to be between 0 and 1, but got 2"):
        built(PartConfig("", Ours, {"dropout": 2.0}, key="task.model"))


def test_an_error_of_ours_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match=r"zip\(\) argument 2 is longer than argument 1") as caught:
        built(PartConfig("", Ours, {"names": ("a",)}, key="task.model"))
    assert not isinstance(caught.value, UserError), "a bug, not a mistake in the config"
    with pytest.raises(UserError, match=r"^task\.model\.names: none$"):
        built(PartConfig("", Ours, {"said": "task.model.names: none"}, key="task.model"))


def test_factories_can_be_copied() -> None:
    made = built(PartConfig("", SGD, {"lr": -1.0}, factory=True, key="optimizer"))
    for one in (copy.deepcopy(made), ForkingPickler.loads(ForkingPickler.dumps(made))):
        with pytest.raises(UserError, match=r"^optimizer: "):
            one([torch.zeros(1, requires_grad=True)])

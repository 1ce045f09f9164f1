"""Buffers that a forward pass reads and then changes."""

import pytest
import torch
from torch import Tensor, nn

from vision_attn.layers.buffers import value_before


class Counting(nn.Module):
    """Its output grows with the number of batches so far, which a forward pass counts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        scale = (value_before(self.batches) / 10).exp()
        self.batches += 1
        return (self.weight * x * scale).exp().sum()


def slopes(model: nn.Module) -> list[Tensor]:
    return [torch.autograd.grad(model(torch.ones(3)), tuple(model.parameters()))[0] for _ in range(3)]


def test_a_copy_is_read() -> None:
    buffer = torch.ones(2)
    before = value_before(buffer)
    buffer += 1
    assert before.tolist() == [1, 1] and not before.requires_grad


@pytest.mark.compile
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_gradients_are_those_of_the_value_before(backend: str) -> None:
    torch.compiler.reset()
    model = Counting()
    torch.testing.assert_close(slopes(torch.compile(model, backend=backend, fullgraph=True)), slopes(Counting()))
    assert model.batches == 3

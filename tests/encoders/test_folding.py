"""Networks that are not trained: on a CPU, few images at a time, and convolutions by oneDNN."""

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

from vision_attn.encoders.folding import PIXELS, Convolution, Folded, for_cpu, has_onednn

pytestmark = pytest.mark.skipif(not has_onednn(torch.float32), reason="needs oneDNN")


class Network(nn.Module):
    """A convolution whose output goes two ways, some with activations, and one without; two outputs."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.activation = activation
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.same = nn.Conv2d(8, 8, 3, padding="same")
        self.mirrored = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
        self.last = nn.Conv2d(8, 4, 1, bias=False)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        first = self.first(images)
        second = self.activation(self.second(first))
        third = self.activation(self.same(second)) + self.activation(self.mirrored(first))
        return {"middle": second, "map": self.activation(self.last(third * 3))}


def images(number: int = 5) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(number, 3, 16, 16) * 3


@pytest.mark.parametrize(
    "activation", [nn.ReLU(), nn.ReLU6(), nn.SiLU(), nn.Hardswish(), nn.Softplus(), nn.LeakyReLU(-0.5)]
)
def test_convolutions_by_onednn_are_equal(activation: nn.Module) -> None:
    network = symbolic_trace(Network(activation).eval())
    changed = for_cpu(network, torch.float32)
    assert sum(isinstance(layer, Convolution) for layer in changed.modules()) == 3
    pictures = images()
    with torch.no_grad():
        for given in (pictures, pictures.masked_fill(pictures > 8, torch.nan)):
            expected, outputs = network(given), changed(given)
            for name in expected:
                torch.testing.assert_close(outputs[name], expected[name], equal_nan=True)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_few_images_at_a_time_give_what_all_give(number: int) -> None:
    network = Network(nn.ReLU()).eval()
    pictures = torch.randn(number, 3, 512, 512)
    assert pictures.shape[2:].numel() == PIXELS
    with torch.no_grad():
        expected, outputs = network(pictures), Folded(network)(pictures)
    for name in expected:
        torch.testing.assert_close(outputs[name], expected[name])


@pytest.mark.skipif(not has_onednn(torch.bfloat16), reason="needs a CPU with bfloat16")
def test_bfloat16_is_as_accurate_as_autocast() -> None:
    network = Network(nn.ReLU6()).eval()
    with torch.no_grad():
        exact = network(images())["map"]
        with torch.autocast("cpu", torch.bfloat16):
            expected = symbolic_trace(network)(images())["map"]
            output = Folded(network)(images())["map"]
    assert output.dtype == expected.dtype == torch.bfloat16
    assert 0 < (output - exact).norm() < 1.5 * (expected - exact).norm()


def test_a_dtype_that_onednn_does_not_know_is_computed_as_before() -> None:
    network = Network(nn.ReLU()).double().eval()
    with torch.no_grad():
        torch.testing.assert_close(Folded(network)(images().double())["map"], network(images().double())["map"])

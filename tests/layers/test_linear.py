"""Linear layers: inputs in parts, a ReLU, and what is refused."""

import pytest
import torch

from tests.ways import prepared
from vision_attn.layers.linear import Linear, Rectified
from vision_attn.system.errors import UserError

pytestmark = pytest.mark.usefixtures("both_ways", "onednn_for_small_products")


@pytest.mark.parametrize("kind", [Linear, Rectified])
@pytest.mark.parametrize("sizes", [(7,), (3, 4), (1, 2, 4)])
@pytest.mark.parametrize("rows", [(5,), (2, 3)])
def test_several_inputs_are_those_of_one_weight(kind, sizes, rows):
    torch.manual_seed(0)
    layer, inputs = prepared(kind(7, 6).double()), [torch.randn(*rows, size).double() for size in sizes]
    product = torch.einsum("nm,...m->...n", layer.weight, torch.cat(inputs, dim=-1)) + layer.bias
    expected = product.clamp(min=0) if kind is Rectified else product
    torch.testing.assert_close(layer(*inputs), expected)


def test_keys_of_a_layer_are_those_of_torchs():
    assert list(Rectified(2, 3).state_dict()) == list(torch.nn.Linear(2, 3).state_dict())


def test_sizes_below_one_are_refused():
    with pytest.raises(UserError, match="a layer of 2 inputs and 0 outputs: both must be at least 1"):
        Linear(2, 0)

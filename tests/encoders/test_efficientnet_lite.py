"""EfficientNet-Lite and networks of timm as encoders."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torchvision.models.feature_extraction import create_feature_extractor

from vision_attn.encoders.backbone import Backbone
from vision_attn.encoders.efficientnet_lite import SCALES, EfficientNetLite, named
from vision_attn.encoders.networks import traced
from vision_attn.encoders.patches import Timm
from vision_attn.system.errors import UserError

LITE = {"name": "efficientnet_lite0", "node": "blocks.6", "resolution": 64}


def images(side: int) -> torch.Tensor:
    return torch.randint(256, (2, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def varied(network: nn.Module) -> nn.Module:
    """Random statistics of batch normalisation, so that they matter."""
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_var, 0.5, 2)
            nn.init.normal_(layer.running_mean, std=0.1)
    return network.eval()


@pytest.mark.parametrize("name", SCALES)
def test_it_computes_what_timm_computes(name: str) -> None:
    """With timm's weights, by their names, also for odd sides, which are padded on both sides."""
    timm = pytest.importorskip("timm", reason="timm is not installed: pip install 'vision-attn[hub]'")
    torch.manual_seed(0)
    theirs, ours = varied(timm.create_model(f"tf_{name}")), EfficientNetLite(name).eval()
    missing, unexpected = ours.load_state_dict(theirs.state_dict(), strict=False)
    assert not missing and {key.split(".")[0] for key in unexpected} == {"conv_head", "bn2", "classifier"}
    for side in (64, 45):
        pixels = torch.randn(1, 3, side, side)
        with torch.no_grad():
            expected = nn.Sequential(theirs.conv_stem, theirs.bn1, *theirs.blocks)(pixels)
            torch.testing.assert_close(ours(pixels), expected)


def test_the_shapes_of_lite2() -> None:
    encoder = Backbone(name="efficientnet_lite2", node="blocks.6", resolution=448, fit="whole")
    assert (encoder.region_size, encoder.grid, encoder.fit) == (352, (14, 14), "whole")
    assert encoder.identity()["fit"] == "whole"


def test_weights_with_the_names_of_a_sequence(tmp_path) -> None:
    """`nn.Sequential(conv_stem, bn1, *blocks)`, as training on a GPU saved it."""
    network = varied(EfficientNetLite("efficientnet_lite0"))
    plain = nn.Sequential(network.conv_stem, network.bn1, *network.blocks).state_dict()
    assert named(plain).keys() == network.state_dict().keys()
    save_file({key: tensor.clone() for key, tensor in plain.items()}, tmp_path / "encoder.safetensors")
    encoder = Backbone(**LITE, weights=str(tmp_path / "encoder.safetensors"), mean=(0.5,) * 3, std=(0.5,) * 3)
    encoder.initialise()
    with torch.no_grad():
        expected = network(images(64) / 127.5 - 1).flatten(2).mT
        torch.testing.assert_close(encoder(images(64)), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in encoder._folded._folded.modules())
    with pytest.raises(UserError, match=r"missing.safetensors was not found .*--task.encoder.weights=FILE"):
        Backbone(**LITE, weights="missing.safetensors").initialise()


def test_real_lite2_of_the_photographs(data_folder) -> None:
    """The file that training on a GPU left opens by a key of the config."""
    file = "weights/photographs_lite2/encoder.safetensors"
    encoder = Backbone(name="efficientnet_lite2", node="blocks.6", resolution=64, weights=file)
    encoder.initialise()
    expected = load_file(data_folder / file)["8.0.bn3.bias"].float()
    assert torch.equal(encoder.body.get_parameter("blocks.6.0.bn3.bias"), expected)


def test_a_part_of_it_is_trained() -> None:
    encoder = Backbone(**LITE, trainable="blocks.4", fit="whole")
    frozen = encoder.frozen_part()
    assert frozen.fit == "whole" and frozen.region_size == 112
    with torch.no_grad():
        torch.testing.assert_close(encoder.finish(frozen(images(64))), encoder(images(64)), rtol=1e-3, atol=1e-5)
    trained = {name.split(".")[2] for name, weight in encoder.named_parameters() if weight.requires_grad}
    assert trained == {"5", "6"}


@pytest.mark.parametrize(
    ("name", "node", "size"), [("tf_efficientnet_lite0", "blocks.4", 112), ("resnet18", "layer2", 128)]
)
def test_networks_of_timm_are_cut_at_a_node(name: str, node: str, size: int, monkeypatch) -> None:
    timm = pytest.importorskip("timm", reason="timm is not installed: pip install 'vision-attn[hub]'")
    encoder = Backbone(name=f"timm:{name}", node=node, resolution=64, weights="pretrained", std=(1.0, 1.0, 1.0))
    assert encoder.region_size == size and encoder.identity()["backbone"] == f"timm:{name}"
    theirs = varied(timm.create_model(name))
    monkeypatch.setattr("timm.create_model", lambda *_, **__: theirs)  # in place of a download
    encoder.initialise()
    mean, std = (torch.tensor(theirs.pretrained_cfg[key])[:, None, None] for key in ("mean", "std"))
    with torch.no_grad():
        seen, hook = [], theirs.get_submodule(node).register_forward_hook(lambda *of: seen.append(of[2]))
        theirs((images(64) / 255 - mean) / std)
        hook.remove()
        expected = seen[0].flatten(2).mT
        torch.testing.assert_close(encoder(images(64)), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_networks_of_timm_that_are_not_there() -> None:
    pytest.importorskip("timm", reason="timm is not installed: pip install 'vision-attn[hub]'")
    for name in ("nothing", "hf-hub:someone/network"):  # an address would be fetched for a run folder of a stranger
        with pytest.raises(UserError, match=f"timm has no model '{name}'"):
            Backbone(name=f"timm:{name}", node="layer1")
        with pytest.raises(UserError, match=f"timm has no model '{name}'"):
            Timm(name=name, pretrained=False)
    with pytest.raises(UserError, match=r"timm's timm:resnet18 cannot be cut at layer9"):
        Backbone(name="timm:resnet18", node="layer9")


def test_cut_as_torchvision_cuts_it() -> None:
    """At stages, blocks, and layers that are called once or twice: the same outputs and names of weights."""
    network, images = EfficientNetLite("efficientnet_lite0").eval(), torch.rand(1, 3, 33, 32)
    for nodes in ({"blocks.2": "one", "blocks.1.1": "other"}, {"act": "one"}, {"blocks.1.0.act": "one"}):
        ours, theirs = traced(network, nodes).eval(), create_feature_extractor(network, nodes).eval()
        assert list(ours.state_dict()) == list(theirs.state_dict())
        for name, expected in theirs(images).items():
            assert torch.equal(ours(images)[name], expected)

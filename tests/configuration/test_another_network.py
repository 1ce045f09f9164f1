"""`--task.encoder.name=NETWORK` on a config of photographs: what follows from the name of a network."""

from pathlib import Path

import pytest
import torch

from tests import slow
from vision_attn.configuration.another_network import with_network
from vision_attn.configuration.config import read
from vision_attn.configuration.options import Option
from vision_attn.configuration.parts import PartConfig, built
from vision_attn.system.errors import UserError

CONFIGS = Path(__file__).parents[2] / "configs"


def encoder_of(*options: str, config: str = "sat_photographs") -> PartConfig:
    return read(CONFIGS / f"{config}.yaml", options).task.arguments["encoder"]


@pytest.mark.parametrize(
    "name, size",
    slow.after(4, [
        ("resnet50", 2048), ("vgg19", 512), ("convnext_tiny", 768), ("mobilenet_v3_large", 960), ("inception_v3", 2048),
        ("efficientnet_lite0", 320), ("timm:resnet18", 512), ("timm:efficientnet_b0", 1280),
        ("timm:convnext_atto", 320), ("timm:vit_tiny_patch16_224", 192), ("timm:vit_small_patch14_dinov2", 384),
    ]),
)  # fmt: skip
def test_a_network_by_its_name_gives_annotation_vectors(name, size, capsys):
    found = encoder_of(f"--task.encoder.name={name}")
    assert f"encoder {name}: " in capsys.readouterr().out
    weights = {"pretrained": False} if name.startswith("timm:vit") else {"weights": None}
    found.arguments |= weights
    encoder = built(found)
    rows, columns = encoder.grid
    assert encoder.region_size == size and rows == columns == {518: 37}.get(
        encoder.resolution, 12 if "inception" in name else 14
    )
    with torch.no_grad():
        images = torch.zeros(1, 3, encoder.resolution, encoder.resolution, dtype=torch.uint8)
        assert name.startswith("timm:vit_small") or encoder(images).shape == (1, rows * columns, size)


def test_what_belongs_to_the_network_before_is_left_out_with_a_line(capsys):
    found = encoder_of("--task.encoder.name=resnet50").arguments
    assert (found["node"], found["resolution"], found["weights"]) == ("layer4.2.relu_2", 448, "IMAGENET1K_V2")
    assert found["mean"] == (0.485, 0.456, 0.406) and (found["fit"], found["trainable"], found["rate"]) == (
        "whole",
        True,
        0.1,
    )
    assert capsys.readouterr().out == (
        "encoder resnet50: layer4.2.relu_2 at 448 pixels, weights IMAGENET1K_V2, not "
        "weights/tf_efficientnet_lite2.fp16.safetensors, which are of efficientnet_lite2\n"
    )


def test_options_change_what_follows_from_the_name(capsys):
    options = ["--task.encoder.node=layer3", "--task.encoder.resolution=224", "--task.encoder.weights=mine.safetensors"]
    found = encoder_of("--task.encoder.name=resnet50", *options).arguments
    assert (found["node"], found["resolution"], found["weights"]) == ("layer3", 224, "mine.safetensors")
    assert capsys.readouterr().out == (
        "encoder resnet50: layer3 at 224 pixels, weights mine.safetensors, not "
        "weights/tf_efficientnet_lite2.fp16.safetensors, which are of efficientnet_lite2\n"
    )
    same = "weights/mobilenet_v2_torchvision.fp16.safetensors"
    encoder_of("--task.encoder.name=efficientnet_lite0", f"--task.encoder.weights={same}", config="sat_soft_small")
    assert capsys.readouterr().out == f"encoder efficientnet_lite0: blocks.6 at 448 pixels, weights {same}\n"


def test_random_layers_that_are_not_trained_are_an_error_unless_they_are_asked_for(capsys):
    name = "--task.encoder.name=efficientnet_lite0"
    for options in ((), ("--task.encoder.trainable=blocks.5",), ("--task.encoder.trainable=false",)):
        with pytest.raises(UserError, match="would stay random: give its file as --task.encoder.weights=FILE"):
            encoder_of(name, *options, config="sat_soft_small")
    for option in ("--task.encoder.trainable=true", "--task.encoder.weights=null"):
        assert encoder_of(name, option, config="sat_soft_small").arguments["weights"] is None
        assert ", random weights: give task.encoder.weights=FILE" in capsys.readouterr().out


def test_a_transformer_changes_the_class():
    assert encoder_of("--task.encoder.name=vit_b_16").class_path == "vision_attn.encoders.patches.Patches"
    found = encoder_of("--task.encoder.name=timm:vit_tiny_patch16_224", config="sat_soft_flickr8k")
    assert (found.class_path, found.arguments["name"]) == ("vision_attn.encoders.patches.Timm", "vit_tiny_patch16_224")


def test_the_network_of_the_config_and_configs_without_one_stay_as_they_are(capsys):
    same = encoder_of("--task.encoder.name=efficientnet_lite2").arguments
    assert same == encoder_of().arguments and same["mean"] == (0.5, 0.5, 0.5)
    assert capsys.readouterr().out == (
        "encoder efficientnet_lite2: blocks.6 at 448 pixels, weights weights/tf_efficientnet_lite2.fp16.safetensors; "
        "the config has this network already, and its settings stay\n"
    )
    with pytest.raises(UserError, match="name: there is no such key"):
        encoder_of("--task.encoder.name=resnet50", config="sat_soft_scenes")
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    "name, message",
    slow.after(2, [("resnet51", "no classification network 'resnet51'"),
     ("timm:resnet19", "timm has no model 'resnet19'"),
     ("timm:swin_tiny_patch4_window7_224", "has no map of stride 16 or 32: give task.encoder.node")]),
)  # fmt: skip
def test_a_network_that_does_not_suit_is_an_error(name, message):
    with pytest.raises(UserError, match=message):
        encoder_of(f"--task.encoder.name={name}")


def test_a_class_of_ones_own_of_the_same_name_stays_as_it_is():
    encoder = {"class_path": "mine.backbone.Backbone", "init_args": {"name": "small"}}
    content, options = {"task": {"init_args": {"encoder": encoder}}}, [Option(("task", "encoder", "name"), "resnet50")]
    assert with_network(content, options) == (content, options)

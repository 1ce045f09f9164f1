"""`vision-attn encoders`: networks, and the nodes of one."""

import pytest

from vision_attn.commands import main
from vision_attn.encoders.backbone import Backbone
from vision_attn.system.errors import UserError


def test_networks_of_every_library_are_listed(capsys):
    assert main(["encoders"]) == 0
    shown = capsys.readouterr().out
    assert "efficientnet_lite4" in shown and "resnet50" in shown and "timm:convnext_tiny" in shown
    assert "maskrcnn" not in shown


def test_the_nodes_of_a_network_are_listed_with_their_maps_and_what_is_chosen(capsys):
    assert main(["encoders", "vgg16"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "vgg16: Backbone, node features.29, resolution 224, weights IMAGENET1K_V1"
    assert "vgg16-" in shown[1] and "downloaded into" in shown[1]
    chosen = [line for line in shown if line.endswith("(chosen)")]
    assert len(chosen) == 1 and "14 x 14 regions of 512 numbers, stride 16" in chosen[0]


def test_a_transformer_and_an_unknown_network(capsys):
    assert main(["encoders", "vit_b_16"]) == 0 and "patch tokens" in capsys.readouterr().out
    assert main(["encoders", "resnet5"]) == 1 and "did you mean resnet50" in capsys.readouterr().err


def test_a_wrong_node_names_the_command_that_lists_the_right_ones():
    with pytest.raises(UserError, match="vision-attn encoders resnet18 lists its nodes"):
        Backbone(name="resnet18", node="layer9")

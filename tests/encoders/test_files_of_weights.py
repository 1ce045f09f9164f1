"""A file of weights that lacks layers: what the message says to do with it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vision_attn.encoders.backbone import Backbone
from vision_attn.encoders.vgg import VGG
from vision_attn.system.errors import UserError

SMALL = {"name": "mobilenet_v2", "node": "features.18", "resolution": 64}


def file_of(path: Path, names: list[str]) -> str:
    save_file({f"{name}.{key}": torch.zeros(1) for name in names for key in ("weight", "bias")}, path)
    return str(path)


def test_a_file_of_the_first_layers_names_the_last_node_that_it_covers(tmp_path: Path) -> None:
    first = [f"features.{number}" for number in (0, 2, 5, 7, 10, 12, 14, 16)]
    file = file_of(tmp_path / "first.safetensors", first)
    with pytest.raises(UserError, match=r"lack 8 layers \(features.19.*up to features.17 \(--task.encoder.node=feat"):
        Backbone(name="vgg19", node="features.35", resolution=64, weights=file).initialise()
    with pytest.raises(UserError, match=r"\(--task.encoder.name=vgg19 --task.encoder.node=features.17\)$"):
        VGG(resolution=64, weights=file).initialise()


def test_a_file_of_another_network_says_so(tmp_path: Path) -> None:
    file = file_of(tmp_path / "tf_efficientnet_lite2.fp16.safetensors", ["conv_stem"])
    with pytest.raises(UserError, match=r"by its name, the file is of efficientnet_lite2 \(--task.encoder.name=effic"):
        Backbone(**SMALL, weights=file).initialise()
    with pytest.raises(UserError, match=r" more\): is this file from another network\?$"):
        Backbone(**SMALL, weights=file_of(tmp_path / "mine.safetensors", ["conv_stem"])).initialise()

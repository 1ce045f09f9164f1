"""Attention that is taken away: nothing of a hidden patch reaches the answer, whatever form the attention has."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.models.vision_transformer import VisionTransformer

import vision_attn
from tests.untrained import write_run
from vision_attn.commands import main
from vision_attn.explain.intervention import intervene
from vision_attn.explain.libraries.opening import ImageReader, OpenedModel, open_model
from vision_attn.system.errors import UserError

CORNER = (-1.0, -1.0, 0.0, 0.0)
"""The upper left quarter."""


class Softmax(nn.Module):
    """Two layers of attention by a softmax and a product, with a class token."""

    def __init__(self, *, mean: bool = False) -> None:
        super().__init__()
        self.mean = mean
        self.patches, self.token = nn.Conv2d(3, 16, 8, 8), nn.Parameter(torch.randn(1, 1, 16))
        self.layers, self.output = nn.ModuleList(_Layer() for _ in range(2)), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), 1, -1), x], dim=1)
        for layer in self.layers:
            x = layer(x)
        return self.output(x.mean(dim=1) if self.mean else x[:, 0])


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.parts(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return x + ((query @ key.mT).softmax(dim=-1) @ value).transpose(1, 2).flatten(2)


def built(name: str) -> OpenedModel:
    torch.manual_seed(0)
    if name == "fused":
        return open_model("timm:test_vit", weights="none")
    if name == "multi_head":
        sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 16, "num_classes": 3}
        network: nn.Module = VisionTransformer(32, 8, **sizes)
        nn.init.normal_(network.heads.head.weight)
    else:
        network = Softmax()
    return OpenedModel(network.eval(), "classifier", ImageReader((32, 32)))


def picture(side: int, corner: int) -> Image.Image:
    """Noise, whose upper left quarter has the seed `corner`."""
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    pixels[: side // 2, : side // 2] = np.random.default_rng(corner).integers(0, 256, (side // 2, side // 2, 3))
    return Image.fromarray(pixels)


@pytest.mark.parametrize("name", ["fused", "multi_head", "softmax"])
def test_nothing_of_a_hidden_patch_reaches_the_answer(name, caplog):
    model, side = built(name), 160 if name == "fused" else 32
    told = len(caplog.messages)
    one, other = (intervene(model, picture(side, seed), without=CORNER) for seed in (1, 2))
    assert one.hidden.sum() * 4 == one.hidden.numel() and one.hidden[0, 0] and not one.hidden[-1, -1]
    assert one.after != one.before, "what is hidden counted"
    with torch.no_grad():
        scores = [model.module(**model.inputs(picture(side, seed))) for seed in (1, 2)]
    assert not torch.allclose(*scores)
    assert dict(one.likeliest) == pytest.approx(dict(other.likeliest), rel=1e-5) and not caplog.messages[told:]
    seen = intervene(model, picture(side, 1), only=CORNER)
    assert torch.equal(seen.hidden, ~one.hidden) and seen.before == one.before and seen.after != one.after
    elsewhere = picture(side, 1)
    elsewhere.paste(0, (side // 2, side // 2, side, side))
    assert dict(intervene(model, elsewhere, only=CORNER).likeliest) == pytest.approx(dict(seen.likeliest), rel=1e-5)


def test_of_chosen_layers_alone_and_of_all_patches():
    """With one layer hidden of two, the other still reads the patches; a box of all hides nothing when it alone is
    seen."""
    model, shown = built("multi_head"), picture(32, 1)
    both, first = intervene(model, shown, without=CORNER), intervene(model, shown, without=CORNER, layers=[0])
    last = intervene(model, shown, without=CORNER, layers=[-1])
    assert len({tuple(one.after) for one in (both, first, last)}) == 3
    everything = intervene(model, shown, only=(-1.0, -1.0, 1.0, 1.0))
    assert everything.after == pytest.approx(everything.before, rel=1e-5) and not everything.hidden.any()


def test_a_model_that_averages_patches_is_told(caplog):
    """Its hidden patches are in the mean."""
    torch.manual_seed(0)
    model = OpenedModel(Softmax(mean=True).eval(), "classifier", ImageReader((32, 32)))
    intervene(model, picture(32, 1), without=CORNER)
    assert "hidden patches still count in the answer" in caplog.messages[-1]


def test_what_cannot_be_hidden_is_said():
    model, shown = built("softmax"), picture(32, 1)
    for options, said in (
        ({}, "give one of without and only"),
        ({"without": CORNER, "only": CORNER}, "give one of without and only"),
        ({"without": (0.0, 0.0, 0.01, 0.01)}, "no patch has its centre in the box"),
        ({"without": (-1.0, -1.0, 1.0, 1.0)}, "no patch is left"),
        ({"without": CORNER, "layers": [2]}, "there is no layer 2: they are numbered from 0 to 1"),
    ):
        with pytest.raises(UserError, match=said):
            intervene(model, shown, **options)
    with pytest.raises(UserError, match="nothing can be hidden"):
        intervene(open_model("timm:test_resnet", weights="none"), shown, without=CORNER)


def test_the_command_prints_before_and_after(tmp_path: Path, capsys) -> None:
    """A box is of the whole photograph, of which the model sees the middle."""
    wide = Image.new("RGB", (320, 160))
    wide.paste(picture(160, 1), (80, 0))
    wide.save(tmp_path / "wide.png")
    command = ["look", "timm:test_vit", str(tmp_path / "wide.png"), "--weights", "none", "--device", "cpu"]
    assert main([*command, "--without=-0.5,-1,0,0"]) == 0
    file, word, before, after, likeliest = capsys.readouterr().out.strip().split("\t")
    (hidden,) = vision_attn.load_explainer("timm:test_vit", weights="none", device="cpu").intervene(
        [tmp_path / "wide.png"], without=(-0.5, -1, 0, 0)
    )
    assert hidden.hidden[:5, :5].all() and hidden.hidden.sum() == 25
    assert (file, word, before, after) == (
        str(tmp_path / "wide.png"), hidden.words[0], f"{hidden.before[0]:.3f}", f"{hidden.after[0]:.3f}"
    )  # fmt: skip
    assert likeliest.startswith(hidden.likeliest[0][0])
    with pytest.raises(SystemExit):
        main([*command, "--only=1,2"])
    assert "'1,2': give four numbers" in capsys.readouterr().err
    captioner = write_run("sat_soft_scenes", tmp_path / "run")
    assert main(["look", str(captioner), str(tmp_path / "wide.png"), "--without=-0.5,-1,0,0"]) > 0

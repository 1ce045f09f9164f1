"""The size of a model's images, from what the model says."""

import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from vision_attn.explain.libraries.image_sizes import image_size, timm_settings
from vision_attn.explain.libraries.opening import _torchvision, open_model
from vision_attn.explain.look import look
from vision_attn.system.errors import UserError

SMALL = {"patch_size": 16, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}


class Told(nn.Module):
    """A module with these attributes."""

    def __init__(self, *parts: nn.Module, **attributes: object) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        vars(self).update(attributes)


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (Told(), (224, 224)),
        (Told(resolution=32, img_size=64), (32, 32)),
        (Told(resolution=[32, 64]), (32, 64)),
        (Told(resolution=torch.Size([3, 32, 64])), (32, 64)),
        (Told(Told(image_size=96)), (96, 96)),
        (Told(config=SimpleNamespace(image_size=[40, 80])), (40, 80)),
        (Told(Told(img_size=(160, 320)), pretrained_cfg={"input_size": (3, 224, 224)}), (160, 320)),
        (Told(Told(img_size=None), default_cfg={"input_size": (3, 224, 288)}), (224, 288)),
        (Told(img_size="large", image_size=0), (224, 224)),
    ],
)
def test_the_first_that_says_it_is_believed(model: nn.Module, size: tuple[int, int]) -> None:
    assert image_size(model) == size


@pytest.mark.parametrize("wrong", ["32", 0, (32,), (32, -1), 1.5])
def test_a_resolution_that_is_none(wrong: object) -> None:
    with pytest.raises(UserError, match=r"`resolution` must be a number of pixels, or \(rows, columns\), not"):
        image_size(Told(resolution=wrong))


def function(module: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, module, raising=False)
    return f"{module}:make"


def test_a_model_that_is_not_square_sees_the_whole_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    timm = pytest.importorskip("timm")
    code = f"import timm\ndef make(): return timm.create_model('vit_tiny_patch16_224', img_size=(32, 64), **{SMALL})"
    with caplog.at_level(logging.WARNING):
        model = open_model(function("oblong", code, tmp_path, monkeypatch), trust=True)
    assert "takes 32 x 64 pixels: the centre square of a photograph is stretched to them" in caplog.text
    picture = Image.new("RGB", (50, 50), "red")
    picture.paste("blue", (25, 0, 50, 50))
    pixels = model.inputs(picture)["x"]
    assert pixels.shape == (1, 3, 32, 64) and (pixels[0, 0, :, :30] > pixels[0, 0, :, 34:]).all()
    assert pixels.min() == -1 and pixels.max() == 1, "timm's mean and standard deviation of this model are 0.5"
    assert look(model, picture).alpha.shape == (1, 2, 4)
    cnn = timm.create_model("test_resnet", num_classes=5)
    assert image_size(cnn) == tuple(timm_settings(cnn)["input_size"][1:])


def test_a_size_that_a_model_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[-2:] != (48, 96):
                raise RuntimeError("expected 48 x 96")
            return x.mean(dim=(2, 3))

    module = ModuleType("silent")
    module.make = Silent  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "silent", module)
    model = open_model("silent:make", trust=True)
    said = r"fails on an image of 224 x 224 pixels \(expected 48 x 96\): if it takes another size, set its attribute"
    with pytest.raises(UserError, match=said):
        look(model, Image.new("RGB", (50, 50)))


def test_a_vit_of_torchvision_has_the_size_of_its_weights() -> None:
    """The default weights of vit_h_14 are of 518 pixels, for which the network has to be made."""
    pytest.importorskip("torchvision")
    with torch.device("meta"):
        model = _torchvision("vit_h_14", "none")
    assert image_size(model.module) == model.inputs.size == (518, 518)

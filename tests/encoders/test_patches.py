"""Patch tokens as annotation vectors: their number, their order, and where each one lies."""

from functools import partial

import pytest
import torch

from vision_attn.encoders.patches import Patches, Timm
from vision_attn.system.errors import UserError


def strongest(encoder, row: int, column: int) -> tuple[int, int]:
    """The row and column of the annotation vector that changes most when one patch of a grey image does."""
    side = encoder.resolution // encoder.grid[0]
    images = torch.full((2, 3, encoder.resolution, encoder.resolution), 128, dtype=torch.uint8)
    generator = torch.Generator().manual_seed(0)
    patch = torch.randint(256, (3, side, side), generator=generator, dtype=torch.uint8)
    images[1, :, row * side : (row + 1) * side, column * side : (column + 1) * side] = patch
    with torch.no_grad():
        regions = encoder.eval()(images)
    assert regions.shape == (2, encoder.grid[0] * encoder.grid[1], encoder.region_size)
    return divmod(int((regions[1] - regions[0]).norm(dim=-1).argmax()), encoder.grid[1])


def shrink(encoder: Patches) -> Patches:
    """Weaker layers, so that a token stays close to its own patch, as it does in a trained network."""
    for name, module in encoder.body.named_modules():
        if name.startswith("encoder.layers.encoder_layer_") and name.endswith(("self_attention", "mlp")):
            for parameter in module.parameters():
                parameter.data.mul_(0.1)
    return encoder


def test_patch_tokens_of_torchvision_lie_where_their_patches_are():
    torch.manual_seed(0)
    encoder = shrink(Patches(name="vit_b_32", resolution=96, weights=None))
    assert encoder.grid == (3, 3) and encoder.layout == (1, 3, 3) and encoder.region_size == 768
    for place in ((0, 0), (0, 2), (1, 1), (2, 0)):
        assert strongest(encoder, *place) == place


def test_a_vit_b_16_has_196_annotation_vectors_of_768():
    encoder = Patches(weights=None)
    assert encoder.grid == (14, 14) and encoder.region_size == 768 and encoder.resolution == 224


def test_what_is_no_vision_transformer_is_refused():
    with pytest.raises(UserError, match="resnet18"):
        Patches(name="resnet18", weights=None)


def test_patch_tokens_are_those_of_the_uncut_network():
    from torchvision.models import vit_b_32

    torch.manual_seed(0)
    encoder = Patches(name="vit_b_32", resolution=64, weights=None)
    whole = vit_b_32(weights=None, image_size=64).eval()
    whole.load_state_dict(encoder.body.state_dict(), strict=False)
    images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        tokens = whole._process_input((images.float() / 255 - encoder.mean) / encoder.std)
        tokens = whole.encoder(torch.cat([whole.class_token.expand(2, -1, -1), tokens], dim=1))
        torch.testing.assert_close(encoder(images), tokens[:, 1:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "grid", "size"),
    [
        ("vit_tiny_patch16_224", (14, 14), 192),
        ("vit_small_patch14_reg4_dinov2", (4, 4), 384),
        ("resnet10t", (6, 6), 512),
    ],
)
def test_any_model_of_timm_by_name(name: str, grid: tuple[int, int], size: int):
    pytest.importorskip("timm", reason="timm is not installed: pip install 'vision-attn[hub]'")
    torch.manual_seed(0)
    resolution = 56 if "dinov2" in name else None
    encoder = Timm(name=name, resolution=resolution, pretrained=False)
    assert encoder.grid == grid and encoder.region_size == size
    if "vit" in name:
        place = (grid[0] - 1, 1)
        assert strongest(encoder, *place) == place
    assert set(encoder.identity()) == {"backbone", "node", "resolution", "checksum"}


def test_an_unknown_model_of_timm_is_named():
    pytest.importorskip("timm", reason="timm is not installed: pip install 'vision-attn[hub]'")
    with pytest.raises(UserError, match="timm has no model .vit_nothing"):
        Timm(name="vit_nothing", pretrained=False)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_transformers_compute_in_bfloat16_too(library):
    if library == "timm":
        pytest.importorskip("timm", reason="needs the extra [hub]")
        make = partial(Timm, name="test_vit", pretrained=False)
    else:
        make = partial(Patches, name="vit_b_32", resolution=64, weights=None)
    whole, half = make(), make(precision="bf16")
    half.load_state_dict(whole.state_dict())
    images = torch.randint(256, (2, 3, whole.resolution, whole.resolution), dtype=torch.uint8)
    with torch.no_grad():
        expected, found = whole(images), half(images)
    assert 1e-4 < (found - expected).norm() / expected.norm() < 0.05
    assert half.identity() == whole.identity() | {"precision": "bf16"}

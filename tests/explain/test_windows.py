"""Attention within windows as one map over the image."""

from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from tests.architectures import ARCHITECTURES, images
from vision_attn.explain.libraries.opening import OpenedModel
from vision_attn.explain.look import look
from vision_attn.explain.record import record_attention
from vision_attn.explain.windows import WindowAttention, Windows, window_layouts


def looped(windows: Windows, maps: Tensor) -> Tensor:
    """`Windows.received`, token by token: each finds the window and the place in it that it was moved to."""
    (down, across), (up, left) = windows.size, windows.shift
    height, width = (-(-side // of) * of for side, of in ((windows.rows, down), (windows.columns, across)))
    count = height // down * (width // across)
    turn = (windows.rows, windows.columns) if windows.shifted_first else (height, width)
    found = torch.zeros(len(maps) // count, maps.shape[1], windows.rows, windows.columns)

    def place(y: int, x: int) -> tuple[int, int]:
        y, x = (y - up) % turn[0], (x - left) % turn[1]
        return y // down * (width // across) + x // across, y % down * across + x % across

    tokens = [(y, x) for y in range(windows.rows) for x in range(windows.columns)]
    for b in range(len(found)):
        for y, x in tokens:
            window, key = place(y, x)
            for other in tokens:
                theirs, query = place(*other)
                if theirs == window:
                    found[b, :, y, x] += maps[b * count + window, :, query, key]
    return found / (count * down * across)


@pytest.mark.parametrize(
    "windows",
    [
        Windows(6, 6, (3, 3), (0, 0)), Windows(6, 6, (3, 3), (1, 1)), Windows(4, 6, (2, 3), (1, 2)),
        Windows(5, 7, (3, 3), (1, 2)), Windows(5, 7, (3, 3), (1, 2), shifted_first=True),
        Windows(4, 4, (4, 4), (0, 0)), Windows(3, 9, (3, 4), (0, 2)),
    ],
)  # fmt: skip
def test_windows_are_merged_token_by_token(windows: Windows) -> None:
    """Shifted, padded, or not square."""
    count, area = windows.places().shape
    maps = torch.rand(2 * count, 3, area, area, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)
    found = windows.received(maps)
    torch.testing.assert_close(found, looped(windows, maps))
    even = windows.received(torch.full((count, 1, area, area), 1 / area))
    if (windows.places() >= 0).all():
        assert torch.allclose(found.sum((2, 3)), torch.ones(2, 3)) and torch.allclose(even, even.mean())


SWINS = [name for name in ARCHITECTURES if "Swin" in name]


def drawn_together(name: str, record: Any, layouts: dict[str, Windows]) -> list[Tensor]:
    assert len(layouts) == len(record) and any(any(one.shift) for one in layouts.values()), name
    return WindowAttention(record, layouts).raw()


@pytest.mark.parametrize("name", SWINS)
def test_maps_of_windows_computed_by_hand(name: str) -> None:
    """An eager implementation's windows, of shifted layers too, merged token by token."""
    torch.manual_seed(0)
    model, run, eager = ARCHITECTURES[name]()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.normal_(std=2 / weights[0].numel() ** 0.5)
        with window_layouts(model) as layouts, record_attention(model, queries="all") as record:
            run(model)
        found = drawn_together(name, record, layouts)
        expected = [maps for place in record.names for maps in eager()[place]]
    for one, windows, maps in zip(found, layouts.values(), expected, strict=True):
        torch.testing.assert_close(one, looped(windows, maps), rtol=0, atol=1e-5)
    assert [one.shape[1:] for one in found] == [(2, 8, 8)] * 2 + [(4, 4, 4)] * 2
    assert found[0].amax() > 2 * found[0].mean()  # not even


def with_keys_from_one_feature(attention: Any) -> None:
    """Weights with which every query attends to the token with the largest first feature."""
    width = attention.proj.in_features
    for parameter in attention.parameters():
        nn.init.zeros_(parameter)
    head = width // attention.num_heads
    with torch.no_grad():
        attention.qkv.bias[:width:head] = 1.0  # queries: the same everywhere
        attention.qkv.weight[width : 2 * width : head, 0] = 40.0 * head**0.5


@pytest.mark.parametrize("side", [8, 7])
@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_a_perturbed_token_is_where_the_map_is_bright(library: str, side: int) -> None:
    """In a shifted layer, with and without padding, whichever token of the grid is changed."""
    alone = {("torchvision", 7): (6, 6), ("timm", 7): (1, 1)}.get((library, side))  # it has no others to attend to it
    torch.manual_seed(0)
    if library == "torchvision":
        swin = pytest.importorskip("torchvision").models.swin_transformer
        block: Any = swin.ShiftedWindowAttention(16, [4, 4], [2, 2], 2).eval()
        with_keys_from_one_feature(block)
    else:
        swin = pytest.importorskip("timm").models.swin_transformer
        block = swin.SwinTransformerBlock(16, (side, side), 2, window_size=4, shift_size=2).eval()
        block.norm1 = nn.Identity()
        with_keys_from_one_feature(block.attn)
    for y in range(side):
        for x in range(side):
            if (y, x) == alone:
                continue
            grid = torch.zeros(1, side, side, 16)
            grid[0, y, x, 0] = 1
            with torch.no_grad(), window_layouts(block) as layouts, record_attention(block, queries="all") as record:
                block(grid)
            (found,) = drawn_together(library, record, layouts)
            assert found.shape == (1, 2, side, side)
            for head in found[0]:
                assert divmod(int(head.argmax()), side) == (y, x)
                assert head.flatten().topk(2).values.diff().abs() > 1e-3


def test_one_window_that_covers_the_grid_is_plain_attention() -> None:
    """Without a shift, as torchvision does it, whatever the module was built with."""
    swin = pytest.importorskip("torchvision").models.swin_transformer
    torch.manual_seed(0)
    block = swin.ShiftedWindowAttention(16, [4, 4], [2, 2], 2).eval()
    with torch.no_grad(), window_layouts(block) as layouts, record_attention(block, queries="all") as record:
        block(torch.randn(2, 4, 4, 16))
    assert layouts[""] == Windows(4, 4, (4, 4), (0, 0))
    (found,) = WindowAttention(record, layouts).raw()
    torch.testing.assert_close(found, record[0].maps.mean(dim=2).unflatten(-1, (4, 4)))


def test_swin_of_transformers() -> None:
    """Its windows are those that its own attention returns."""
    hf = pytest.importorskip("transformers", reason="needs the extra [hub]: transformers")
    torch.manual_seed(0)
    config = hf.SwinConfig(image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4,
                           initializer_range=0.3)  # fmt: skip
    model = hf.SwinModel(config).eval()
    with torch.no_grad(), window_layouts(model) as layouts, record_attention(model, queries="all") as record:
        model(images())
    found = drawn_together("transformers", record, layouts)
    assert [(one.rows, one.shift) for one in layouts.values()] == [(8, (0, 0)), (8, (2, 2)), (4, (0, 0)), (4, (0, 0))]
    for one, windows, attention in zip(found, layouts.values(), record, strict=True):
        torch.testing.assert_close(one, looped(windows, attention.maps))


@pytest.mark.parametrize("kind", ["Swin", "Swinv2"])
def test_grad_cam_of_swin_of_transformers_is_that_of_its_last_tokens(kind: str) -> None:
    """Not of its biases by position, which have four axes too, nor of the patches that it begins with."""
    hf = pytest.importorskip("transformers", reason="needs the extra [hub]: transformers")
    torch.manual_seed(0)
    config = getattr(hf, f"{kind}Config")(
        image_size=64, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 2], window_size=4, num_labels=5
    )
    module = getattr(hf, f"{kind}ForImageClassification")(config).eval()
    pixels = torch.rand(1, 3, 64, 64)
    model = OpenedModel(
        module, "classifier", lambda picture: {"pixel_values": pixels}, [f"class {n}" for n in range(5)]
    )
    seen = look(model, Image.new("RGB", (64, 64)))
    kept = []
    last = module.get_submodule(kind.lower()).encoder.layers[-1].blocks[-1]
    last.register_forward_hook(
        lambda _, __, output: kept.append(output[0].detach().requires_grad_()) or (kept[-1], *output[1:])
    )
    module(pixel_values=pixels).logits[0].max().backward()
    tokens, slopes = kept[0][0].unflatten(0, (8, 8)), kept[0].grad[0]
    expected = (tokens * slopes.mean(dim=0)).sum(dim=-1).clamp(min=0).detach()
    assert seen.method == "grad-cam" and expected.max() > 0
    torch.testing.assert_close(seen.alpha[0], expected)

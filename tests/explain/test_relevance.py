"""Maps of answers: rollout, relevance and Grad-CAM against slow references, and the tokens of an image."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from tests.architectures import HEADS, SMALL, images
from vision_attn.explain.attention_mode import RecordedAttention
from vision_attn.explain.libraries.opening import ImageReader, OpenedModel
from vision_attn.explain.look import look
from vision_attn.explain.record import record_attention
from vision_attn.explain.relevance import (
    activation_of,
    channels_first,
    cross_relevance,
    grad_cam,
    relevance,
    rollout,
)
from vision_attn.explain.tokens import ImageAttention, PatchGrid, grid_of, map_shapes
from vision_attn.system.errors import UserError


def attention(queries: int, keys: int, seed: int, heads: int = 3) -> RecordedAttention:
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randn(2, heads, queries, keys, generator=generator, dtype=torch.float64).softmax(dim=-1)
    one = RecordedAttention(f"layer {seed}", 0, maps, tuple(range(queries)), queries)
    one.gradient = torch.randn(maps.shape, generator=generator, dtype=torch.float64)
    return one


def positive(one: RecordedAttention, image: int) -> Tensor:
    """E_h[(gradient * A)^+], in loops."""
    found = torch.zeros(one.maps.shape[2:], dtype=torch.float64)
    for head in range(one.maps.shape[1]):
        for query in range(found.shape[0]):
            for key in range(found.shape[1]):
                product = float(one.maps[image, head, query, key] * one.gradient[image, head, query, key])
                found[query, key] += max(product, 0) / one.maps.shape[1]
    return found


def test_rollout_multiplies_layers_with_their_residuals() -> None:
    layers = [attention(4, 4, seed) for seed in range(3)]
    rolled = rollout(layers)
    for image in range(2):
        expected = torch.eye(4, dtype=torch.float64)
        for one in layers:
            expected = (one.maps[image].mean(0) + torch.eye(4)) / 2 @ expected
        torch.testing.assert_close(rolled[image], expected)
    torch.testing.assert_close(rolled.sum(-1), torch.ones(2, 4, dtype=torch.float64))


def test_relevance_is_that_of_the_paper() -> None:
    layers = [attention(4, 4, seed) for seed in range(3)]
    for image in range(2):
        expected = torch.eye(4, dtype=torch.float64)
        for one in layers:
            expected = expected + positive(one, image) @ expected
        torch.testing.assert_close(relevance(layers)[image], expected)


def test_cross_relevance_is_that_of_the_paper() -> None:
    """Two decoder layers of 3 tokens over an encoder of 4, against equations 6 to 11 in plain form."""
    encoder = relevance([attention(4, 4, seed) for seed in range(2)])
    layers = [(attention(3, 3, 10), attention(3, 4, 11)), (attention(3, 3, 12), attention(3, 4, 13))]
    found = cross_relevance(layers, encoder)

    def normalised(related: Tensor) -> Tensor:
        added = related - torch.eye(len(related), dtype=related.dtype)
        return torch.stack([row / row.sum() if row.sum() else row for row in added]) + torch.eye(len(related))

    for image in range(2):
        own, across = torch.eye(3, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.float64)
        for to_self, to_encoder in layers:
            across = across + positive(to_self, image) @ across
            own = own + positive(to_self, image) @ own
            across = across + normalised(own).T @ (positive(to_encoder, image) @ normalised(encoder[image]))
        torch.testing.assert_close(found[image], across)


def test_relevance_of_a_vit_is_that_of_its_eager_attention() -> None:
    """The gradients of fused attention's maps, taken from its output, against autograd through eager attention."""
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, **SMALL).eval()
    nn.init.normal_(model.head.weight)
    with map_shapes(model) as shapes, record_attention(model, queries="all", gradients=True) as record:
        model(images())[:, 3].sum().backward()
    found = ImageAttention(record, shapes, 2)
    assert found.grid == PatchGrid(1, 4, 4) and found.raw().shape == (2, 2, HEADS, 4, 4)

    kept: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple, __: Any) -> None:
        inputs[0].retain_grad()
        kept.append(inputs[0])

    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(keep)
    model(images())[:, 3].sum().backward()
    expected = torch.eye(17).expand(2, -1, -1)
    for maps in kept:
        expected = expected + (maps * maps.grad).clamp(min=0).mean(1).detach() @ expected
    torch.testing.assert_close(found.relevant(), expected[:, 0, 1:].unflatten(1, (4, 4)), rtol=1e-4, atol=1e-7)


def test_an_attention_pooling_is_the_last_layer_of_its_answer() -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("vit_base_patch16_siglip_224", num_classes=5, **SMALL).eval()
    with map_shapes(model) as shapes, record_attention(model, queries="all", gradients=True) as record:
        model(images())[:, 3].sum().backward()
    found = ImageAttention(record, shapes, 2)
    assert found.grid == PatchGrid(0, 4, 4) and found.raw().shape[1] == 3
    rolled = record["attn_pool"][0].maps.mean(dim=1) @ rollout([record[name][0] for name in record.names[:2]])
    torch.testing.assert_close(found.rolled(), rolled.reshape(2, 4, 4).detach())
    assert (found.relevant() >= 0).all() and found.relevant().any()


def test_windows_are_not_whole_images() -> None:
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=5).eval()
    with torch.no_grad(), map_shapes(model) as shapes, record_attention(model, queries="all") as record:
        model(images())
    with pytest.raises(UserError, match="no layer of this model attends to the whole image"):
        ImageAttention(record, shapes, 2)


def test_the_patches_among_the_tokens() -> None:
    assert grid_of(197, [(14, 14)]) == PatchGrid(1, 14, 14)
    assert grid_of(201, [(56, 56), (14, 14)]) == PatchGrid(5, 14, 14)
    assert grid_of(29, [(4, 7)]) == PatchGrid(1, 4, 7)  # no square
    assert grid_of(50, []) == PatchGrid(1, 7, 7)  # patches made without a convolution
    assert grid_of(80, []) == PatchGrid(16, 8, 8)
    assert grid_of(2, [(1, 1)]) is None


def test_grad_cam_is_that_of_the_paper() -> None:
    """Of an answer that is a weighted sum of channel means, whose gradient is known."""
    torch.manual_seed(0)
    body = nn.Conv2d(3, 2, 3, padding=1)
    weights = torch.tensor([2.0, -1.0])

    class OpenedModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.pool = body, nn.AdaptiveAvgPool2d(1)

        def forward(self, x: Tensor) -> Tensor:
            return (self.pool(self.body(x).relu())[:, :, 0, 0] * weights).sum(1)

    with activation_of(model := OpenedModel()) as activation:
        model(images(side=6)).sum().backward()
    maps = body(images(side=6)).detach()
    slope = (maps > 0).float() * weights.view(2, 1, 1) / 36
    expected = (slope.mean((2, 3), keepdim=True) * maps).sum(1).clamp(min=0)
    torch.testing.assert_close(grad_cam(activation.output, activation.gradient), expected)
    assert channels_first(torch.zeros(1, 7, 7, 5)).shape == (1, 5, 7, 7)


def plain_vgg() -> tuple[nn.Module, nn.Module, nn.Module]:
    """A network like VGG and AlexNet, the part up to the ReLU of the last convolution, and the rest."""
    first = [nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    last = [nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(inplace=True)]
    pool, end = nn.MaxPool2d(2), [nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Dropout(), nn.Linear(72, 5)]
    model = nn.Sequential(nn.Sequential(*first, *last, pool), *end)
    return model, nn.Sequential(*first, *last), nn.Sequential(pool, *end)


def small_resnet() -> tuple[nn.Module, nn.Module, nn.Module]:
    resnet = pytest.importorskip("torchvision.models.resnet")
    model = resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=5)
    parts = list(model.children())
    return model, nn.Sequential(*parts[:-2]), nn.Sequential(parts[-2], nn.Flatten(), parts[-1])


def small_densenet() -> tuple[nn.Module, nn.Module, nn.Module]:
    """Its last normalisation is followed by F.relu(inplace=True)."""
    densenet = pytest.importorskip("torchvision.models.densenet")
    model = densenet.DenseNet(4, (2, 2), num_init_features=8, num_classes=5)
    rest = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), model.classifier)
    return model, model.features, rest


@pytest.mark.parametrize(("make", "side"), [(plain_vgg, 16), (small_resnet, 2), (small_densenet, 8)])
def test_grad_cam_is_of_the_last_convolution_before_pooling(make: Callable, side: int) -> None:
    """Against autograd from the rest of the network, whatever works in place."""
    torch.manual_seed(0)
    model, body, rest = make()
    for layer in model.eval().modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.bias)  # so that ReLU has something to remove
    maps = body(images(side=32 if side == 16 else 64)).detach().requires_grad_()
    (slope,) = torch.autograd.grad(rest(maps * 1)[:, 3].sum(), maps)
    expected = (slope.mean((2, 3), keepdim=True) * maps).sum(1).clamp(min=0).detach()
    with activation_of(model) as activation:
        model(images(side=32 if side == 16 else 64))[:, 3].sum().backward()
    found = grad_cam(activation.output, activation.gradient)
    assert found.shape == (2, side, side) and found.max() > 0
    torch.testing.assert_close(found, expected)


class Stages(nn.Module):
    """Two stages of attention, over the places of a map and over a quarter of them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 8, 4, 4)
        self.attentions = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(3))
        self.merge, self.output = nn.Conv2d(8, 8, 2, 2), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        for number, attention in enumerate(self.attentions):
            x = self.merge(x) if number == 1 else x
            tokens = x.flatten(2).mT
            x = (tokens + attention(tokens, tokens, tokens)[0]).mT.unflatten(-1, x.shape[2:])
        return self.output(x.mean((2, 3)))


def test_of_a_model_in_stages_no_products_are_taken() -> None:
    """They would be those of one stage alone."""
    torch.manual_seed(0)
    model = OpenedModel(Stages().eval(), "classifier", ImageReader((32, 32)), list("abcde"))
    picture = Image.effect_noise((32, 32), 60).convert("RGB")
    assert look(model, picture).method == "grad-cam" and look(model, picture).alpha.shape == (1, 4, 4)
    for method in ("rollout", "relevance"):
        with pytest.raises(UserError, match="this model merges tokens between its stages"):
            look(model, picture, method=method)
    assert look(model, picture, layer=-1).alpha.shape == (1, 4, 4)


def test_parts_of_an_attention_are_no_maps_of_the_image() -> None:
    class SelfAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x: Tensor) -> Tensor:
            heads = self.norm(x.flatten(2).mT.unflatten(-1, (2, 4)).transpose(1, 2))  # (B, heads, tokens, size)
            return x + heads.mean((1, 2, 3))[:, None, None, None]

    model = nn.Sequential(nn.Conv2d(3, 8, 4, 4), SelfAttention())
    with activation_of(model) as activation:
        output = model(torch.rand(1, 3, 32, 32))
    torch.testing.assert_close(activation.output, output)


def test_mistakes_are_named() -> None:
    one = attention(3, 4, 0)
    with pytest.raises(UserError, match="layer 0 has 3 rows of 4 keys: this needs self-attention, recorded with"):
        rollout([one])
    one = attention(3, 3, 0)
    one.gradient = None
    with pytest.raises(UserError, match="layer 0 has no gradient: record with gradients=True"):
        relevance([one])
    with pytest.raises(UserError, match="no attention was recorded"):
        relevance([])
    with pytest.raises(UserError, match="the model has no layer 'body'"), activation_of(nn.ReLU(), "body"):
        pass

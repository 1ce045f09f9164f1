"""Every kind of model that `look` takes, in a tiny configuration with random weights, and the methods of which each has
maps; and the place test: a small square of an image is changed, and the map must change there."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from tests.architectures import VISION
from vision_attn.explain.libraries.opening import ImageReader, OpenedModel
from vision_attn.explain.look import look
from vision_attn.explain.recorded_answers import recorded
from vision_attn.geometry.extents import Extent
from vision_attn.system.errors import UserError

REGIONS = 3
"""Rows and columns of squares that are changed."""
ENOUGH = 6
"""Of 9 squares; by chance, so many change their own region most in one of 7,000 cases."""
WHOLE = ("attention", "rollout", "attention-gradient", "relevance")
CAMS = ("grad-cam", "layer-cam")
ALL = (*WHOLE, *CAMS)
STAGED = ("attention", *CAMS)


def transformers_kind(
    make_model: Callable[[Any], nn.Module], kind: str = "classifier", side: int = 64
) -> Callable[[], OpenedModel]:
    def make() -> OpenedModel:
        transformers = pytest.importorskip("transformers", reason="needs the extra [hub]: transformers")
        torch.manual_seed(0)
        module = make_model(transformers).eval()
        return OpenedModel(
            awake(module, side),
            kind,
            ImageReader((side, side), key="pixel_values"),
            ["a", "b"] * (kind == "classifier"),
        )

    return make


class Kind(NamedTuple):
    """A kind of model."""

    make: Callable[[], OpenedModel]
    methods: tuple[str, ...]
    """Those of which it has maps, all at their places, besides those that change the image."""
    note: str = ""
    """Which attention it is, or why there is none."""
    quick: bool = False
    """Whether it is tested each time."""


def timm_kind(name: str, side: int = 64, **options: Any) -> Callable[[], OpenedModel]:
    def make() -> OpenedModel:
        timm = pytest.importorskip("timm")
        torch.manual_seed(0)
        module = timm.create_model(name, num_classes=5, **options).eval()
        return OpenedModel(awake(module, side), "classifier", ImageReader((side, side)), list("abcde"))

    return make


def torchvision_kind(name: str, side: int = 64, **options: Any) -> Callable[[], OpenedModel]:
    def make() -> OpenedModel:
        torchvision = pytest.importorskip("torchvision")
        torch.manual_seed(0)
        module = torchvision.models.get_model(name, weights=None, num_classes=5, **options).eval()
        return OpenedModel(awake(module, side), "classifier", ImageReader((side, side)), list("abcde"))

    return make


def awake(module: nn.Module, side: int) -> nn.Module:
    """Give effect to the layers that libraries begin without one: scales of 0 or nearly so, and outputs of zeros; and
    to batch normalisation the mean and variance of noise, or signals vanish."""
    for name, weight in module.named_parameters():
        small = float(weight.detach().abs().max()) < 0.01
        if small and weight.dim() > 1:
            nn.init.normal_(weight, std=0.02)
        elif small and not name.endswith("bias"):
            nn.init.constant_(weight, 0.2)
    norms = [one for one in module.modules() if isinstance(one, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    if norms:
        with torch.no_grad():
            module(torch.randn(4, 3, side, side))
    return module.eval()


def squares(size: int = 240, seed: int = 0) -> list[Image.Image]:
    """An image of coloured blocks, and copies in each of which one of 9 small squares is inverted, row by row."""
    blocks = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    plain = np.asarray(Image.fromarray(blocks).resize((size, size), Image.Resampling.BILINEAR))
    images, step = [plain], size // REGIONS
    for row in range(REGIONS):
        for column in range(REGIONS):
            middle = (row * step + step // 2, column * step + step // 2)
            inside = tuple(slice(at - size // 24, at + size // 24) for at in middle)
            changed = plain.copy()
            changed[inside] = np.where(changed[inside] > 127, 0, 255)
            images.append(changed)
    return [Image.fromarray(image) for image in images]


def changes(maps: list[Tensor], extent: Extent) -> Tensor:
    """How much each square changes the map (D, rows, columns) in each of 9 regions, compared with what the square
    changes elsewhere, and with how much other squares change the region."""
    rows, columns = maps[0].shape[1:]
    y, x = (
        (low + (torch.arange(cells) + 0.5) / cells * (high - low) + 1) / 2
        for cells, low, high in ((rows, extent.y0, extent.y1), (columns, extent.x0, extent.x1))
    )
    near = [
        (-((y[:, None] - (row + 0.5) / REGIONS) ** 2 + (x - (column + 0.5) / REGIONS) ** 2) / 0.02).exp()
        for row in range(REGIONS)
        for column in range(REGIONS)
    ]
    each = [(other - maps[0]).double().norm(dim=0) for other in maps[1:]]
    found = torch.stack([torch.stack([(change * weight).sum() / weight.sum() for weight in near]) for change in each])
    found = found / found.mean(dim=1, keepdim=True).clamp(min=1e-30)
    return found / found.mean(dim=0, keepdim=True).clamp(min=1e-30)


def right(found: Tensor) -> int:
    """How many of the 9 squares change their own region most."""
    return int((found.argmax(dim=1) == torch.arange(len(found))).sum())


def of_method(model: OpenedModel, method: str, seed: int = 0) -> Tensor:
    """The `changes` of the maps of a method; of CAMs, those of the map of features that they weight."""
    pictures = squares(seed=seed)
    first = look(model, pictures[0], method=method)
    if method in CAMS:
        maps = []
        for picture in pictures:
            seen = recorded(model, model.inputs(picture))
            seen.explain(0)
            maps.append(seen.features()[0][0].detach())
        return changes(maps, first.extent)
    texts = first.words if model.kind == "classifier" else ()
    return changes([look(model, one, texts=texts, method=method).alpha[:1] for one in pictures], first.extent)


SMALL = {"img_size": 64, "patch_size": 8, "depth": 2, "embed_dim": 48, "num_heads": 4}
STAGES = {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)}

LARGER = VISION | {"image_size": 64}
SWIN = {"image_size": 64, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "patch_size": 4}

KINDS: dict[str, Kind] = {
    "timm: ViT": Kind(timm_kind("vit_tiny_patch16_224", **SMALL), ALL, quick=True),
    "timm: ViT, relative positions": Kind(timm_kind("vit_relpos_small_patch16_224", **SMALL), ALL),
    "timm: DeiT with two tokens": Kind(timm_kind("deit_tiny_distilled_patch16_224", **SMALL), ALL),
    "timm: BEiT": Kind(timm_kind("beit_base_patch16_224", **SMALL), ALL),
    "timm: EVA-02": Kind(timm_kind("eva02_tiny_patch14_224", **SMALL), ALL),
    "timm: SigLIP": Kind(timm_kind("vit_base_patch16_siglip_224", **SMALL), ALL, "and of the pooling"),
    "timm: CaiT": Kind(timm_kind("cait_xxs24_224", **SMALL), ALL, "the class token's attention", quick=True),
    "timm: XCiT": Kind(
        timm_kind("xcit_nano_12_p16_224", **SMALL | {"patch_size": 8}),
        ALL,
        "the class token's attention; none over channels",
        quick=True,
    ),
    "timm: TNT": Kind(timm_kind("tnt_s_patch16_224", img_size=64, depth=2), WHOLE, "the outer attention", quick=True),
    "timm: ConViT": Kind(timm_kind("convit_tiny", **SMALL, local_up_to_layer=0), WHOLE),
    "timm: PiT": Kind(timm_kind("pit_ti_224", 224), STAGED, "of a stage"),
    "timm: LeViT": Kind(timm_kind("levit_128s", 224), STAGED, "of a stage"),
    "timm: MViTv2": Kind(timm_kind("mvitv2_tiny", 224), STAGED, "of a stage"),
    "timm: CoaT": Kind(timm_kind("coat_lite_tiny", 128, img_size=128), (), "its last map is none of the image"),
    "timm: CrossViT": Kind(timm_kind("crossvit_9_240", 240), STAGED, "of the branch of smaller images"),
    "timm: Swin": Kind(timm_kind("swin_tiny_patch4_window7_224", **STAGES), STAGED),
    "timm: Swin v2": Kind(timm_kind("swinv2_tiny_window8_256", **STAGES), STAGED),
    "timm: DaViT": Kind(
        timm_kind("davit_tiny", 64, depths=(1, 1), embed_dims=(32, 64), num_heads=(2, 4), window_size=4),
        CAMS,
        "attention over windows and channels is no map",
    ),
    "timm: EdgeNeXt": Kind(timm_kind("edgenext_xx_small", 128), CAMS, "attention over channels is no map", quick=True),
    "timm: MaxViT": Kind(timm_kind("maxvit_pico_rw_256", 128, img_size=128), CAMS),
    "timm: CoAtNet": Kind(timm_kind("coatnet_nano_rw_224", 128, img_size=128), STAGED),
    "timm: EfficientFormer": Kind(timm_kind("efficientformer_l1", 224), ALL),
    "timm: EfficientFormerV2": Kind(timm_kind("efficientformerv2_s0", 224), CAMS),
    "timm: PVT v2": Kind(timm_kind("pvt_v2_b0", 128), STAGED, "of a stage"),
    "timm: VOLO": Kind(timm_kind("volo_d1_224", 128, img_size=128), CAMS),
    "timm: NesT": Kind(timm_kind("nest_tiny", 64, img_size=64), CAMS),
    "timm: GC ViT": Kind(timm_kind("gcvit_xxtiny", 224), CAMS),
    "timm: Hiera": Kind(timm_kind("hiera_tiny_224", 128, img_size=128), CAMS),
    "timm: MobileViT": Kind(timm_kind("mobilevit_xxs", 256), CAMS),
    "timm: CAFormer": Kind(timm_kind("caformer_s18", 128), STAGED),
    "timm: FastViT": Kind(timm_kind("fastvit_sa12", 256), ALL),
    "timm: Visformer": Kind(timm_kind("visformer_tiny", 128, img_size=128), STAGED),
    "timm: TinyViT": Kind(timm_kind("tiny_vit_5m_224", 224), CAMS),
    "timm: FocalNet": Kind(timm_kind("focalnet_tiny_srf", 128), CAMS),
    "timm: Sequencer": Kind(timm_kind("sequencer2d_s", 128, img_size=128, layers=(1, 1, 1, 1)), CAMS),
    "timm: MLP-Mixer": Kind(timm_kind("mixer_s32_224", 128, img_size=128), CAMS),
    "timm: SAM's ViT": Kind(timm_kind("samvit_base_patch16_224", **SMALL | {"window_size": 4}), CAMS),
    "timm: ResNet-50 of CLIP": Kind(timm_kind("resnet50_clip", 224), ALL, "of the pooling"),
    "timm: ConvNeXt": Kind(timm_kind("convnext_atto", 128), CAMS),
    "torchvision: ViT": Kind(torchvision_kind("vit_b_32", 224), ALL),
    "torchvision: Swin": Kind(torchvision_kind("swin_t", 128), STAGED),
    "torchvision: MaxViT": Kind(torchvision_kind("maxvit_t", 224), CAMS),
    "torchvision: ResNet": Kind(torchvision_kind("resnet18", 128), CAMS, quick=True),
    "torchvision: VGG": Kind(torchvision_kind("vgg11", 128), CAMS),
    "torchvision: MobileNetV2": Kind(torchvision_kind("mobilenet_v2", 128), CAMS),
    "torchvision: DenseNet": Kind(torchvision_kind("densenet121", 128), CAMS),
    "transformers: ViT": Kind(
        transformers_kind(lambda hf: hf.ViTForImageClassification(hf.ViTConfig(**LARGER))), ALL, quick=True
    ),
    "transformers: DINOv2": Kind(
        transformers_kind(lambda hf: hf.Dinov2Model(hf.Dinov2Config(**LARGER)), "encoder"), ("attention", "rollout")
    ),
    "transformers: DINOv2 with registers": Kind(
        transformers_kind(lambda hf: hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**LARGER)), "encoder"),
        ("attention", "rollout"),
    ),
    "transformers: BEiT": Kind(
        transformers_kind(lambda hf: hf.BeitForImageClassification(hf.BeitConfig(**LARGER))), ALL
    ),
    "transformers: ViT-MSN": Kind(
        transformers_kind(lambda hf: hf.ViTMSNModel(hf.ViTMSNConfig(**LARGER)), "encoder"), ("attention", "rollout")
    ),
    "transformers: Swin": Kind(
        transformers_kind(lambda hf: hf.SwinForImageClassification(hf.SwinConfig(**SWIN))), STAGED
    ),
    "transformers: Swin v2": Kind(
        transformers_kind(lambda hf: hf.Swinv2ForImageClassification(hf.Swinv2Config(**SWIN))), STAGED
    ),
    "transformers: ConvNeXt": Kind(
        transformers_kind(
            lambda hf: hf.ConvNextForImageClassification(
                hf.ConvNextConfig(hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], image_size=128)
            ),
            side=128,
        ),
        CAMS,
    ),
    "transformers: PVT": Kind(
        transformers_kind(
            lambda hf: hf.PvtForImageClassification(hf.PvtConfig(image_size=128, depths=[1, 1, 1, 1], num_labels=2)),
            side=128,
        ),
        STAGED,
    ),
    "transformers: SegFormer": Kind(
        transformers_kind(
            lambda hf: hf.SegformerForImageClassification(hf.SegformerConfig(depths=[1, 1, 1, 1])), side=128
        ),
        STAGED,
    ),
    "transformers: LeViT": Kind(
        transformers_kind(lambda hf: hf.LevitForImageClassification(hf.LevitConfig(image_size=224)), side=224), STAGED
    ),
    "transformers: Hiera": Kind(
        transformers_kind(
            lambda hf: hf.HieraForImageClassification(hf.HieraConfig(image_size=[64, 64], depths=[1, 1, 1, 1]))
        ),
        CAMS,
    ),
    "transformers: Perceiver": Kind(
        transformers_kind(
            lambda hf: hf.PerceiverForImageClassificationLearned(
                hf.PerceiverConfig(image_size=64, num_latents=16, d_latents=32, num_self_attends_per_block=1)
            )
        ),
        CAMS,
        "of the pixels before they are read into latents",
    ),
}

CAPTIONED = {
    "BLIP": "cross-attention", "ViT and GPT-2": "cross-attention", "Florence-2": "cross-attention",
    "GIT": "the sequence that begins with the image", "LLaVA": "the image between the words",
    "PaliGemma": "the image between the words", "SmolVLM": "the image between the words, tiles put together",
    "BLIP-2": "queries, times their attention to patches",
}  # fmt: skip
"""Captioners whose words have maps at their places."""
OTHERS = {
    "timm: Twins": "not shown: with random weights its Grad-CAM does not change where the image does",
    "timm: BoTNet": "not shown, for the same reason",
    "transformers: MobileViT": "not shown, for the same reason",
    "transformers: CLIP": "attention, rollout, attention-gradient, relevance of each text",
    "transformers: Idefics2": "captions without maps: latents of a resampler have no place",
    "transformers: ViTMAE": "attention, rollout; of all patches in their order, which it hides and shuffles by itself",
    "transformers: Hiera, for pretraining": "refused: it hides patches at random",
    "transformers: Pix2Struct": "refused: it reads patches of its own, not images",
}


def check(kind: Kind) -> None:
    """Assert that a model has the maps that are listed, at their places, and refuses the others with a reason."""
    model = kind.make()
    seen = recorded(model, model.inputs(squares()[0]))
    seen.explain(0)
    assert tuple(seen.methods()) == kind.methods
    for method in ALL:
        if method not in kind.methods:
            with pytest.raises(UserError, match="no |not defined|explains an answer"):
                look(model, squares()[0], method=method)
        elif method not in ("attention-gradient", "layer-cam"):  # of the same layers as relevance and Grad-CAM
            found: Tensor | float = 0.0
            for seed in range(4):  # weights that are random mix places, so that one image may not suffice
                found = found + of_method(model, method, seed)
                if right(found) >= ENOUGH:
                    break
            assert right(found) >= ENOUGH, method


def table() -> str:
    """The kinds of models and their maps, as docs/look.md lists them."""
    names = {ALL: "all", WHOLE: "all but CAMs", (): "none of its layers: occlusion, Integrated Gradients, SmoothGrad"}
    rows = [(name, names.get(kind.methods, ", ".join(kind.methods)), kind.note) for name, kind in KINDS.items()]
    rows += [(f"transformers: {name}", "attention of each word", note) for name, note in CAPTIONED.items()]
    rows += [(name, what, "") for name, what in OTHERS.items()]
    lines = ["| Model | Maps at their places | |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {what} | {note} |" for name, what, note in rows)])

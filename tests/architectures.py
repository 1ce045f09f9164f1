"""Models of other libraries, tiny and with random weights, with their maps computed by an eager implementation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIDE, PATCH, WIDTH, HEADS = 32, 8, 32, 4


class Built(NamedTuple):
    model: nn.Module
    run: Callable[[nn.Module], Any]
    """Call the model on fixed inputs."""
    eager: Callable[[], dict[str, list[Tensor]]]
    """The maps (B, K, Q, N) of each attention module of the same inputs, computed without our code."""


def images(channels: int = 3, side: int = SIDE) -> Tensor:
    return torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(1))


@contextmanager
def collecting(model: nn.Module, kind: Callable[[str, nn.Module], Any]) -> Iterator[dict[str, list[Tensor]]]:
    """Collect what `kind(name, module)`, a function of a module's inputs and output, returns in each call."""
    found: dict[str, list[Tensor]] = {}
    hooks = []
    for name, module in model.named_modules():
        if taken := kind(name, module):

            def hook(module: nn.Module, inputs: tuple, given: dict, output: Any, name=name, taken=taken) -> None:
                place, maps = taken(name, module, inputs, given, output)
                found.setdefault(place, []).append(maps)

            hooks.append(module.register_forward_hook(hook, with_kwargs=True))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


# torchvision


def multi_head_by_hand(name: str, module: nn.MultiheadAttention, inputs: tuple, given: dict, output: Any) -> Any:
    query, key = (inputs + (given.get("query"), given.get("key")))[:2]
    if not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    weights, biases = module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3)
    q, k = (
        F.linear(part, weight, bias).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
        for part, weight, bias in zip((query, key), weights, biases, strict=False)
    )
    return name, (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)


def swin_by_hand(name: str, module: Any, inputs: tuple, given: dict, output: Any) -> Any:
    (x,) = inputs
    B, Y, X, C = x.shape
    size, shift = module.window_size[0], module.shift_size[0] * (module.window_size[0] < Y)
    place = torch.arange(Y)
    part = (place >= Y - size).int() + (place >= Y - shift).int() if shift else torch.zeros(Y, dtype=torch.int)
    part = (3 * part[:, None] + part)[None, :, :, None].expand(B, -1, -1, -1)
    x = torch.roll(x, (-shift, -shift), (1, 2))

    def windows(image: Tensor) -> Tensor:
        image = image.unflatten(1, (-1, size)).unflatten(3, (-1, size))
        return image.permute(0, 1, 3, 2, 4, 5).flatten(0, 2).flatten(1, 2)

    q, k, _ = module.qkv(windows(x)).unflatten(-1, (3, module.num_heads, -1)).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT / (C // module.num_heads) ** 0.5 + module.get_relative_position_bias()
    apart = windows(part) != windows(part).mT
    return name, (scores - 100 * apart[:, None]).softmax(dim=-1)


def torchvision_vit() -> Built:
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.VisionTransformer(SIDE, PATCH, 2, HEADS, WIDTH, 64, num_classes=5).eval()
    nn.init.normal_(model.heads.head.weight)

    def eager() -> dict[str, list[Tensor]]:
        with collecting(model, lambda _, one: isinstance(one, nn.MultiheadAttention) and multi_head_by_hand) as found:
            model(images())
        return found

    return Built(model, lambda model: model(images()), eager)


def torchvision_swin() -> Built:
    torchvision = pytest.importorskip("torchvision")
    model = torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=5).eval()

    def eager() -> dict[str, list[Tensor]]:
        with collecting(model, lambda _, one: hasattr(one, "relative_position_index") and swin_by_hand) as found:
            model(images())
        return found

    return Built(model, lambda model: model(images()), eager)


# timm: with `fused_attn` off, the map is what `attn_drop` gets


def from_timm(name: str, **options: Any) -> Callable[[], Built]:
    def build() -> Built:
        timm = pytest.importorskip("timm")
        model = timm.create_model(name, num_classes=5, **options).eval()
        side = options.get("img_size", SIDE)

        def taken(name: str, module: nn.Module, inputs: tuple, given: dict, output: Any) -> Any:
            return name.removesuffix(".attn_drop"), inputs[0]

        def eager() -> dict[str, list[Tensor]]:
            fused = [module for module in model.modules() if getattr(module, "fused_attn", False)]
            for module in fused:
                module.fused_attn = False
            kinds = {"attn_drop": taken, "attn_pool": pool_by_hand}
            with collecting(model, lambda name, _: kinds.get(name.split(".")[-1])) as found:
                model(images(side=side))
            for module in fused:
                module.fused_attn = True
            return found

        return Built(model, lambda model: model(images(side=side)), eager)

    return build


def pool_by_hand(name: str, module: Any, inputs: tuple, given: dict, output: Any) -> Any:
    """The attention pooling of SigLIP: a learned query."""
    (x,) = inputs
    q, k = module.q(module.latent), module.kv(x)[..., :WIDTH]
    q, k = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k))
    return name, (module.q_norm(q) @ module.k_norm(k).mT * module.scale).softmax(dim=-1)


SMALL = {"img_size": SIDE, "patch_size": PATCH, "depth": 2, "embed_dim": WIDTH, "num_heads": HEADS}
TIMM = {
    "ViT": ("vit_tiny_patch16_224", SMALL),
    "ViT, registers": ("vit_small_patch14_reg4_dinov2", SMALL),
    "ViT, relative positions": ("vit_relpos_small_patch16_224", SMALL),
    "DeiT": ("deit_tiny_distilled_patch16_224", SMALL),
    "DeiT-3": ("deit3_small_patch16_224", SMALL),
    "BEiT": ("beit_base_patch16_224", SMALL),
    "BEiT v2": ("beitv2_base_patch16_224", SMALL),
    "DINOv2": ("vit_small_patch14_dinov2", SMALL),
    "EVA": ("eva_large_patch14_196", SMALL),
    "EVA-02": ("eva02_tiny_patch14_224", SMALL),
    "SigLIP": ("vit_base_patch16_siglip_224", SMALL),
    "CLIP": ("vit_base_patch16_clip_224", SMALL),
    "Swin": ("swin_tiny_patch4_window7_224",
             {"img_size": SIDE, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)}),
    "Swin v2": ("swinv2_tiny_window8_256",
                {"img_size": SIDE, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)}),
}  # fmt: skip


# transformers: an eager attention module returns its map


def from_transformers(make: Callable[[Any], tuple[nn.Module, dict[str, Any]]]) -> Callable[[], Built]:
    def build() -> Built:
        transformers = pytest.importorskip("transformers", reason="needs the extra [hub]: transformers")
        model, inputs = make(transformers)
        model.eval()

        def run(model: nn.Module) -> Any:
            return model(**inputs)

        def taken(name: str, module: nn.Module, inputs: tuple, given: dict, output: Any) -> Any:
            return name, output[1]

        def attends(name: str, module: nn.Module) -> Any:
            if isinstance(module, nn.MultiheadAttention):
                return multi_head_by_hand
            kind = type(module).__name__
            one = "Attention" in kind and any(hasattr(module, part) for part in ("k_proj", "qkv", "key", "c_attn"))
            return taken if one else None

        def eager() -> dict[str, list[Tensor]]:
            model.set_attn_implementation("eager")
            with collecting(model, attends) as found:
                run(model)
            model.set_attn_implementation("sdpa")
            return found

        return Built(model, run, eager)

    return build


VISION = {"hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": HEADS,
          "image_size": SIDE, "patch_size": PATCH}  # fmt: skip
TEXT = {"hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": HEADS,
        "vocab_size": 99, "max_position_embeddings": 32}  # fmt: skip
WORDS = torch.tensor([[1, 5, 7, 9, 2], [1, 6, 8, 2, 0]])
PADDING = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])


def hf_vit(hf: Any) -> Any:
    return hf.ViTForImageClassification(hf.ViTConfig(**VISION)), {"pixel_values": images()}


def hf_deit(hf: Any) -> Any:
    return hf.DeiTForImageClassification(hf.DeiTConfig(**VISION)), {"pixel_values": images()}


def hf_dinov2(hf: Any) -> Any:
    return hf.Dinov2ForImageClassification(hf.Dinov2Config(**VISION)), {"pixel_values": images()}


def hf_registers(hf: Any) -> Any:
    return hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**VISION)), {"pixel_values": images()}


def hf_clip(hf: Any) -> Any:
    model = hf.CLIPModel(hf.CLIPConfig(vision_config=VISION, text_config=TEXT, projection_dim=16))
    return model, {"pixel_values": images(), "input_ids": WORDS, "attention_mask": PADDING}


def hf_siglip(hf: Any) -> Any:
    model = hf.SiglipModel(hf.SiglipConfig(vision_config=VISION, text_config=TEXT))
    return model, {"pixel_values": images(), "input_ids": WORDS}


def hf_blip(hf: Any) -> Any:
    text = TEXT | {"encoder_hidden_size": WIDTH, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2,
                   "pad_token_id": 0}  # fmt: skip
    model = hf.BlipForConditionalGeneration(hf.BlipConfig(vision_config=VISION, text_config=text))
    return model, {"pixel_values": images(), "input_ids": WORDS, "attention_mask": PADDING}


def hf_llava(hf: Any) -> Any:
    """A vision-language model whose decoder has two heads of keys for four of queries."""
    text = hf.LlamaConfig(**TEXT, num_key_value_heads=2, pad_token_id=0)
    config = hf.LlavaConfig(vision_config=hf.CLIPVisionConfig(**VISION), text_config=text, image_token_index=98,
                            vision_feature_layer=-1)  # fmt: skip
    words = torch.cat([torch.full((2, 16), 98), WORDS], dim=1)
    mask = torch.cat([torch.ones(2, 16, dtype=torch.long), PADDING], dim=1)
    model = hf.LlavaForConditionalGeneration(config)
    return model, {"pixel_values": images(), "input_ids": words, "attention_mask": mask}


def hf_captioner(hf: Any) -> Any:
    """A ViT and GPT-2 with cross-attention."""
    text = hf.GPT2Config(n_embd=WIDTH, n_layer=2, n_head=HEADS, vocab_size=99, n_positions=32, add_cross_attention=True,
                         bos_token_id=1, eos_token_id=2)  # fmt: skip
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(hf.ViTConfig(**VISION), text)
    return hf.VisionEncoderDecoderModel(config), {"pixel_values": images(), "decoder_input_ids": WORDS}


ARCHITECTURES: dict[str, Callable[[], Built]] = {
    "torchvision: ViT": torchvision_vit,
    "torchvision: Swin": torchvision_swin,
    **{f"timm: {label}": from_timm(name, **options) for label, (name, options) in TIMM.items()},
    "transformers: ViT": from_transformers(hf_vit),
    "transformers: DeiT": from_transformers(hf_deit),
    "transformers: DINOv2": from_transformers(hf_dinov2),
    "transformers: DINOv2 with registers": from_transformers(hf_registers),
    "transformers: CLIP": from_transformers(hf_clip),
    "transformers: SigLIP": from_transformers(hf_siglip),
    "transformers: BLIP": from_transformers(hf_blip),
    "transformers: LLaVA": from_transformers(hf_llava),
    "transformers: ViT and GPT-2": from_transformers(hf_captioner),
}

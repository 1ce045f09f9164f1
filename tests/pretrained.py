"""Tiny captioners of transformers with random weights, each in a folder with its processor."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.architectures import HEADS, SIDE, VISION, WIDTH
from tests.explain.test_image_tokens import blip2, git
from tests.explain.test_look import NAMED, SIZE, WORDS, blip, llava, saved

TILES = [f"<row_{row}_col_{column}>" for row in (1, 2, 3) for column in (1, 2, 3)]
MARKS = ["<fake_token_around_image>", "<global-img>", *TILES]
"""With which a prompt of SmolVLM surrounds the tokens of the image."""


class Both:
    """A processor in two parts, as a ViT with GPT-2 has it."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def save_pretrained(self, folder: Path) -> None:
        for part in self.parts:
            part.save_pretrained(folder)


def vit_gpt2(hf: Any) -> Any:
    text = hf.GPT2Config(
        n_embd=WIDTH, n_layer=2, n_head=HEADS, vocab_size=NAMED["vocab_size"], n_positions=32,
        add_cross_attention=True, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(hf.ViTConfig(**VISION), text)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 1, 0, 2
    return hf.VisionEncoderDecoderModel(config), lambda hf, words: Both(hf.ViTImageProcessor(size=SIZE), words)


def paligemma(hf: Any) -> Any:
    text = hf.GemmaConfig(**NAMED, num_key_value_heads=2, head_dim=8)
    vision = hf.SiglipVisionConfig(**VISION, projection_dim=WIDTH, vision_use_head=False)
    config = hf.PaliGemmaConfig(
        vision_config=vision.to_dict(), text_config=text.to_dict(), image_token_index=3, projection_dim=WIDTH
    )

    def processor(hf: Any, words: Any) -> Any:
        images = hf.SiglipImageProcessor(size=SIZE)
        images.image_seq_length = 16
        return hf.PaliGemmaProcessor(images, words)

    return hf.PaliGemmaForConditionalGeneration(config), processor


def florence2(hf: Any) -> Any:
    text = hf.BartConfig(
        d_model=WIDTH, encoder_layers=1, decoder_layers=2, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=NAMED["vocab_size"],
        max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0, decoder_start_token_id=2,
        forced_bos_token_id=None, forced_eos_token_id=None,
    )  # fmt: skip
    vision = hf.Florence2VisionConfig(
        embed_dim=(16, 16), depths=(1, 1), num_heads=(2, 2), num_groups=(2, 2), patch_size=(7, 3),
        patch_stride=(4, 2), patch_padding=(3, 1), patch_prenorm=(False, True), window_size=4, projection_dim=WIDTH,
    )  # fmt: skip
    config = hf.Florence2Config(vision_config=vision.to_dict(), text_config=text.to_dict(), image_token_id=3)

    def processor(hf: Any, words: Any) -> Any:
        images = hf.CLIPImageProcessor(size=SIZE, crop_size=SIZE)
        images.image_seq_length = 17
        return hf.Florence2Processor(images, words)

    return hf.Florence2ForConditionalGeneration(config), processor


def smolvlm(hf: Any) -> Any:
    text = hf.LlamaConfig(**NAMED | {"vocab_size": NAMED["vocab_size"] + len(MARKS)}, num_key_value_heads=2)
    config = hf.SmolVLMConfig(vision_config=VISION, text_config=text.to_dict(), image_token_id=3, scale_factor=2)

    def processor(hf: Any, words: Any) -> Any:
        words.add_special_tokens({"additional_special_tokens": MARKS})
        images = hf.SmolVLMImageProcessor(size={"longest_edge": 2 * SIDE}, max_image_size={"longest_edge": SIDE})
        return hf.SmolVLMProcessor(images, words, hf.SmolVLMVideoProcessor(), image_seq_len=4)

    return hf.SmolVLMForConditionalGeneration(config), processor


CAPTIONERS: dict[str, Callable[[Any], Any]] = {
    "BLIP": blip, "BLIP-2": blip2, "GIT": git, "ViT and GPT-2": vit_gpt2, "LLaVA": llava, "PaliGemma": paligemma,
    "Florence-2": florence2, "SmolVLM": smolvlm,
}  # fmt: skip


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The name to open one of `CAPTIONERS` by; its attention differs from head to head."""
    names: dict[str, str] = {}

    def name(kind: str) -> str:
        if kind in names:
            return names[kind]

        def make(hf: Any) -> Any:
            if kind == "SmolVLM":  # a package that spells out numbers of seconds, for films
                from transformers.models.smolvlm import processing_smolvlm

                processing_smolvlm.num2words = processing_smolvlm.num2words or str
            model, processor = CAPTIONERS[kind](hf)
            for weight_name, weight in model.named_parameters():
                if "attention" in weight_name or "attn" in weight_name or weight_name.startswith("query_tokens"):
                    nn.init.normal_(weight, std=0.3)
                elif weight_name.endswith("predictions.bias"):  # of BLIP, whose settings are not saved
                    weight.data[[0, 1, 3, 4]] = -100
            model.generation_config.suppress_tokens = [0, 1, 3, 4, *range(len(WORDS), len(WORDS) + len(MARKS))][
                : None if kind == "SmolVLM" else 4
            ]
            return model, processor

        names[kind] = saved(tmp_path_factory.mktemp("captioner") / "model", make)
        return names[kind]

    return name

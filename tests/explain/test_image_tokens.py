"""Captioners whose image is no words of the text: GIT, whose sequence begins with it, and BLIP-2, which has queries."""

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests import pretend
from tests.architectures import VISION
from tests.explain.test_look import NAMED, SIZE, saved
from vision_attn.explain.attention_mode import AttentionRecord, RecordedAttention
from vision_attn.explain.captioners.image_tokens import find_tokens
from vision_attn.explain.libraries.opening import OpenedModel, open_model
from vision_attn.explain.look import look
from vision_attn.explain.tokens import PatchGrid
from vision_attn.system.errors import UserError

QUERIES = 9
"""Which would make a square, and none of the image."""


def blip2(hf: Any) -> Any:
    text = hf.OPTConfig(**NAMED, ffn_dim=32, word_embed_proj_dim=NAMED["hidden_size"])
    former = NAMED | {"encoder_hidden_size": VISION["hidden_size"]}
    config = hf.Blip2Config(
        vision_config=VISION | {"initializer_range": 0.5}, qformer_config=former, text_config=text.to_dict(),
        num_query_tokens=QUERIES, image_token_index=3,
    )  # fmt: skip

    def processor(hf: Any, words: Any) -> Any:
        """Of a tokenizer without a token for images, as OPT's, for which it makes an AddedToken."""
        named = {
            f"{name}_token": getattr(words, f"{name}_token") for name in ("pad", "cls", "sep", "unk", "bos", "eos")
        }
        words = hf.PreTrainedTokenizerFast(tokenizer_object=words.backend_tokenizer, **named)
        return hf.Blip2Processor(hf.BlipImageProcessor(size=SIZE), words, num_query_tokens=QUERIES)

    return hf.Blip2ForConditionalGeneration(config), processor


def git(hf: Any) -> Any:
    images = {"size": {"shortest_edge": SIZE["height"]}, "crop_size": SIZE}
    return hf.GitForCausalLM(hf.GitConfig(vision_config=VISION, **NAMED)), lambda hf, words: hf.GitProcessor(
        hf.CLIPImageProcessor(**images), words
    )


@pytest.fixture(autouse=True)
def few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend.short_captions(monkeypatch, 6)


def opened(folder: Path, make: Any) -> tuple[OpenedModel, Image.Image]:
    """A captioner that never ends, with attention of its own for each head, and a picture."""
    pytest.importorskip("transformers", reason="needs the extra [hub]: transformers")
    name = saved(folder, make)
    model = open_model(name)
    for part in (model.module, getattr(model.module, "language_model", model.module)):
        part.generation_config.suppress_tokens = [0, 1, 2, 3, 4]
    torch.manual_seed(1)
    for name, weight in model.module.named_parameters():
        if "attention" in name or "attn" in name or name == "query_tokens":
            torch.nn.init.normal_(weight, std=0.3)
    pixels = torch.randint(256, (40, 40, 3), dtype=torch.uint8)
    return model, Image.fromarray(pixels.numpy())


@pytest.mark.parametrize("texts", [(), ("a photo of",)], ids=["alone", "begun"])
def test_a_sequence_that_begins_with_the_image(texts: tuple[str, ...], tmp_path: Path) -> None:
    """The map of word t, layer 1, head 1 is what the module computes in step t."""
    model, picture = opened(tmp_path / "model", git)
    (attention,) = (
        part for name, part in model.module.named_modules() if name.endswith("encoder.layer.1.attention.self")
    )
    expected: list[torch.Tensor] = []
    hook = attention.register_forward_hook(lambda _, __, output: expected.append(output[1][0, 1, -1, 1:17]))
    seen = look(model, picture, texts=texts, layer=1, head=1)
    hook.remove()
    assert len(seen.words) == len(expected) == 6 and seen.alpha.std() > 0.01 and seen.layers.shape[1:] == (2, 4, 4, 4)
    torch.testing.assert_close(seen.alpha, torch.stack(expected).unflatten(1, (4, 4)), rtol=0, atol=1e-6)
    related = look(model, picture, texts=texts, method="relevance")
    assert related.words == seen.words and (related.alpha >= 0).all() and related.alpha.std() > 0


@pytest.mark.parametrize("texts", [(), ("a photo of",)], ids=["alone", "begun"])
def test_queries_that_stand_for_the_image(texts: tuple[str, ...], tmp_path: Path) -> None:
    """The attention of each word to the queries, times that of the queries to the patches, from eager attention."""
    model, picture = opened(tmp_path / "model", blip2)
    assert not isinstance(model.processor.image_token, str)
    seen = look(model, picture, texts=texts, layer=1, head=1)
    whole = model.module
    for part in (whole, whole.qformer, whole.language_model):
        part.set_attn_implementation("eager")
    inputs = model.inputs(picture)
    features = whole.vision_model(inputs["pixel_values"]).last_hidden_state
    crossed = whole.qformer(
        query_embeds=whole.query_tokens, encoder_hidden_states=features, output_attentions=True, return_dict=True
    ).cross_attentions
    to_patches = torch.stack([maps[0] for maps in crossed if maps is not None]).mean(dim=(0, 1))
    if texts:
        inputs = model.processor(text=texts[0], images=picture, return_tensors="pt")
    steps = whole.generate(
        **inputs, max_new_tokens=6, num_beams=1, do_sample=False, output_attentions=True, return_dict_in_generate=True
    ).attentions
    expected = torch.stack([step[1][0, 1, -1, :QUERIES] @ to_patches for step in steps])
    assert len(seen.words) == len(steps) and to_patches.shape == (QUERIES, 17) and seen.alpha.std() > 1e-4
    torch.testing.assert_close(seen.alpha, expected[:, 1:].unflatten(1, (4, 4)), rtol=1e-4, atol=1e-6)
    with pytest.raises(UserError, match="9 queries stand for the image in this model: it has attention alone"):
        look(model, picture, texts=texts, method="relevance")


def generated(name: str, keys: list[int], first: int = 1) -> list[RecordedAttention]:
    """The attention of a layer to these numbers of keys, one for each step; the first step has `first` queries."""
    return [
        RecordedAttention(name, step, torch.rand(1, 2, 1, number), (0,), 1 if step else first)
        for step, number in enumerate(keys)
    ]


def test_which_keys_are_the_image() -> None:
    shapes = [(3, 5)]
    cross, own = generated("cross", [16, 16, 16]), generated("own", [1, 2, 3])
    found = find_tokens(AttentionRecord(own + cross), shapes, 3)
    assert (found.layers, found.grid, found.positions) == (["cross"], PatchGrid(1, 3, 5), None)
    first = generated("first", [18, 19, 20], first=18)
    assert find_tokens(AttentionRecord(first), shapes, 3, given=2).positions.tolist() == list(range(16))
    picture = find_tokens(AttentionRecord(first), shapes, 3, given=2).picture(torch.arange(18.0))
    assert picture.tolist() == torch.arange(1.0, 16).view(3, 5).tolist()
    for some in (own, generated("words", [9, 10, 11], first=9), first[:2]):  # 9 - 1 would make a square and four more
        with pytest.raises(UserError, match=r"cross-attention to the image \(BLIP\), with its tokens .*\(GIT\)"):
            find_tokens(AttentionRecord(some), shapes, 3)
    with pytest.raises(UserError, match="no layer of this model attends to the image"):
        find_tokens(AttentionRecord(own), shapes, 3, given=9)

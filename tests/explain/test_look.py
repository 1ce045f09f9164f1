"""`vision-attn look`: models of every kind, opened and drawn."""

import argparse
import base64
import os
import re
import shlex
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from PIL import Image

import vision_attn
from tests import pretend
from tests.architectures import SIDE, TEXT, VISION
from tests.untrained import write_run
from vision_attn.commands import main
from vision_attn.commands.look import add_arguments
from vision_attn.data.scenes.grammar import COLOURS
from vision_attn.explain.captioners import generation
from vision_attn.explain.libraries.opening import OpenedModel
from vision_attn.explain.look import look
from vision_attn.models.policies import Anywhere
from vision_attn.models.ram import RAM
from vision_attn.results.explainer import explainer_of_run
from vision_attn.system.errors import UserError
from vision_attn.task import Source
from vision_attn.tasks.classify import Classification

WORDS = ["[PAD]", "[CLS]", "[SEP]", "<image>", "[UNK]", "a", "photo", "of", "cat", "dog", "on", "the", "grass"]

MODULE = '''
import torch
from torch import nn

class Tiny(nn.Module):
    """A patch embedding and one attention, with a class token."""

    resolution, classes = 32, ("cat", "dog", "bird")

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 16, 8, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.output = nn.Linear(16, 3)

    def forward(self, images):
        x = self.patches(images).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), 1, -1), x], dim=1)
        return self.output((x + self.attention(x, x, x, need_weights=False)[0])[:, 0])

def make():
    return Tiny()
'''


NAMES = ("cat", "dog", "bird")


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    folder = tmp_path / "photographs"
    folder.mkdir()
    for number in range(2):
        pixels = torch.randint(256, (40, 60, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(number))
        Image.fromarray(pixels.numpy()).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a function that makes a classifier."""
    (tmp_path / "tiny_model.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tiny_model", raising=False)
    return "tiny_model:make"


def page_of(out: Path) -> str:
    """The page of a command, without its list of pictures."""
    return (out / "index.html").read_text().partition("<!-- pictures: ")[0]


def maps(page: str, key: str = "map") -> list[bytes]:
    return [base64.b64decode(bits) for bits in re.findall(rf'data-{key}="([^"]+)"', page)]


def test_a_classifier_shows_what_led_to_its_answer(
    tiny: str, photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["look", tiny, str(photographs), "--trust", "tiny_model", "--out", str(out), "--overlay", "colour"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(re.search(r"\t(cat|dog|bird) \(0\.\d\d\)$", line) for line in lines)
    assert sorted(path.name for path in out.iterdir()) == ["01-0.png", "02-1.png", "index.html"]
    page = (out / "index.html").read_text()
    assert 'value="color" checked' in page and "word 1 of 1" not in page
    assert "What led to each answer" in page and page.count('class="dials" data-heads="2" data-rows="4"') == 2
    assert page.count('data-rest="1"') == 2, "the map is shown at rest"
    assert page.count('<ol class="answers"') == 2 and all(f">{name}</span><b>0." in page for name in NAMES)
    assert {len(one) for one in maps(page)} == {16} and {len(one) for one in maps(page, "layers")} == {3 * 16}


def test_methods_layers_and_heads_give_their_own_maps(tiny: str, photographs: Path, tmp_path: Path) -> None:
    seen = {}
    image = str(photographs / "0.png")
    for options in ("", "--rollout", "--grad-cam", "--layer 0", "--head 1", "--text bird", "--text cat"):
        out = str(tmp_path / options.replace(" ", ""))
        assert main(["look", tiny, image, "--trust", "tiny_model", "--out", out, *options.split()]) == 0
        seen[options] = maps((Path(out) / "index.html").read_text())
        layers = maps((Path(out) / "index.html").read_text(), "layers")
    assert len({one[0] for one in seen.values()}) >= 5
    assert seen["--layer 0"][0] == layers[0][:16] and seen["--head 1"][0] == layers[0][32:]


def test_random_weights_are_told_and_always_the_same(photographs: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = torch.get_rng_state()
    one, two = (vision_attn.load("squeezenet1_1", weights="none", device="cpu") for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert caplog.messages == ["squeezenet1_1 has random weights: its answers and maps mean nothing"] * 2
    results = [model.look(photographs / "0.png") for model in (one, two)]
    names, shares = zip(*results[0].likeliest, strict=True)
    assert len(set(names)) == 5 and names[0] == results[0].words[0] and list(shares) == sorted(shares, reverse=True)
    assert results[0].text == results[1].text and torch.equal(results[0].alpha, results[1].alpha)


@pytest.mark.slow
def test_the_page_names_the_model_the_method_and_random_weights(photographs: Path, tmp_path: Path) -> None:
    random = vision_attn.load("timm:test_vit", weights="none", device="cpu").look([photographs / "0.png"])
    page = random.save(tmp_path / "look.html").read_text()
    said = "Maps of timm:test_vit: relevance. The weights are random, so answers and maps mean nothing. Point at"
    assert random[0].random and said in page
    run = vision_attn.load("weights/photographs", device="cpu").look(photographs / "0.png")
    page = run.save(tmp_path / "look.html").read_text()
    assert "Maps of weights/photographs: attention. Point at" in page and not run.random


def test_python_shows_what_the_command_shows(tiny: str, photographs: Path, tmp_path: Path) -> None:
    """The maps of each method, layer and head, whatever an image comes as; results show themselves and are saved."""
    file = photographs / "0.png"
    model = vision_attn.load(tiny, trust=["tiny_model"], device="cpu")
    assert repr(model) == "<vision_attn model: tiny_model:make, classifier, on cpu>"
    for options, given in (
        ("", {}), ("--rollout", {"method": "rollout"}), ("--grad-cam", {"method": "grad-cam"}),
        ("--relevance --text bird --text cat", {"text": ["bird", "cat"], "method": "relevance"}),
        ("--text dog", {"text": "dog"}), ("--layer 0 --head 1", {"layer": 0, "head": 1}),
    ):  # fmt: skip
        out = tmp_path / options.replace(" ", "")
        assert main(["look", tiny, str(file), "--trust", "tiny_model", "--out", str(out), *options.split()]) == 0
        result = model.look(file, **given)
        page = result.save(tmp_path / "look.html").read_text()
        assert page == page_of(out) and "What led to each answer" in page
        assert result.save(tmp_path / "look.png").read_bytes() == (out / "01-0.png").read_bytes()
    assert len(result.words) == 1 and result.alpha.shape == (1, 4, 4)
    assert result.method == "attention" and result.layers.shape == (1, 1, 2, 4, 4)
    assert result.part == "layer 0, head 1" and model.look(file).part == ""
    with pytest.raises(AttributeError, match="is not a run of this package, so it has no caption: call look"):
        model.caption(file)
    assert result._repr_png_()[:4] == b"\x89PNG" and result._repr_html_().startswith("<iframe srcdoc=")
    with Image.open(file) as picture:
        picture.load()
    several = model.look([file, picture, np.array(picture), photographs / "1.png"], layer=0, head=1)
    assert all(torch.equal(one.alpha, result.alpha) for one in several[:3])
    assert several.page().count("<figure") == 4 and "What led to each answer" in several.page()
    assert str(result) == result.text and repr(result) == f"<0.png: {result.text}>"


@pytest.mark.parametrize("kind", ["clip", "blip"])
def test_models_of_transformers_in_python(kind: str, photographs: Path, tmp_path: Path) -> None:
    model = vision_attn.load(saved(tmp_path / "model", {"clip": clip, "blip": blip}[kind]), device="cpu")
    file = photographs / "0.png"
    if kind == "clip":
        result = model.look(file, ["a cat", "the dog"])
        assert result.words == ["a cat", "the dog"] and "Where each text matches" in result.page()
        with pytest.raises(UserError, match="compares images with texts: give a text"):
            model.look(file)
    else:
        result = model.look(file, method="relevance")
        assert result.text == " ".join(result.words) and result.method == "relevance"
        assert "Where each word looked" in result.page()
    assert len(result.alpha) == len(result.words) and result.layers.shape[1:3] == (2, 4)


def test_a_run_is_looked_into_in_python(photographs: Path, tmp_path: Path) -> None:
    run = write_run("transformer_scenes", tmp_path / "run")
    model, file = vision_attn.load(run, device="cpu"), photographs / "0.png"
    result = model.look(file)
    assert result.words == model.caption(file).words and result.kind == "captioner"
    horse = Image.open("docs/photographs/horse.jpg")  # not square: both see the same part of it
    assert model.look(horse).log_prob == model.caption(horse).log_prob
    assert torch.equal(model.look(file, head=1).alpha, result.layers[:, 0, 1])
    with pytest.raises(UserError, match="leave method, layer and text out"):
        model.look(file, method="rollout")
    with pytest.raises(UserError, match="run holds its weights: leave weights out"):
        vision_attn.load(run, weights="none")
    with pytest.raises(
        UserError, match=r"does not see whole photographs: vision-attn classify weights/ram_cluttered60"
    ):
        vision_attn.load("weights/ram_cluttered60").look(file)


def test_mistakes_in_python_say_what_to_do(tiny: str, photographs: Path) -> None:
    for name, said in (
        ("vit_b_15", "vit_b_15 is neither a run folder nor a network of torchvision; did you mean vit_b_16"),
        (tiny, "runs the code of tiny_model: add --trust tiny_model"),
        ("timm:nothing", "timm:nothing cannot be opened"),
        ("runs/missing", "runs/missing does not exist"), ("hf://none", "give hf://USER/NAME"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=said):
            vision_attn.load(name)
    model = vision_attn.load(tiny, trust=["tiny_model"])
    with pytest.raises(UserError, match="there is no method 'Grad-CAM'; choose one of auto, attention, .*, grad-cam"):
        model.look(photographs / "0.png", method="Grad-CAM")
    with pytest.raises(UserError, match="there is no layer 3"):
        model.look(photographs / "0.png", layer=3)
    with pytest.raises(UserError, match=r"missing.png: no such file"):
        model.look(photographs / "missing.png")


def test_one_backward_pass_for_each_class(tiny: str, photographs: Path, tmp_path: Path) -> None:
    texts = ["--text", "cat", "--text", "bird"]
    image = str(photographs / "0.png")
    assert main(["look", tiny, image, *texts, "--trust", "tiny_model", "--out", str(tmp_path / "both")]) == 0
    assert main(["look", tiny, image, *texts[2:], "--trust", "tiny_model", "--out", str(tmp_path / "one")]) == 0
    both, one = (maps((tmp_path / name / "index.html").read_text()) for name in ("both", "one"))
    assert len(both) == 2 and both[1] == one[0] and both[0] != both[1]


def test_networks_of_torchvision_and_timm(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("timm")
    for name, how in ("squeezenet1_1", "grad-cam"), ("timm:test_vit", "relevance"):
        out = tmp_path / name.replace(":", "-")
        assert main(["look", name, str(photographs / "0.png"), "--weights", "none", "--out", str(out)]) == 0
        assert ("data-layers" in (out / "index.html").read_text()) == (how == "relevance")
    assert capsys.readouterr().out.count("\t") == 2


SWINS = """
def timm_swin():
    import timm
    sizes = {"img_size": 64, "window_size": 4, "embed_dim": 12, "depths": (2, 2, 2), "num_heads": (1, 2, 4)}
    return timm.create_model("swin_tiny_patch4_window7_224", num_classes=5, **sizes)

def torchvision_swin():
    from torchvision.models.swin_transformer import SwinTransformer
    model = SwinTransformer([4, 4], 12, [2, 2, 2], [1, 2, 4], [4, 4], num_classes=5)
    model.resolution = 64
    return model
"""


@pytest.mark.parametrize("name", ["torchvision_swin", "timm_swin"])
def test_layers_and_heads_of_swin(name: str, photographs: Path, tmp_path: Path, monkeypatch) -> None:
    """Each layer with a grid and heads of its own; the page's sliders show what `layer` and `head` do."""
    if "timm" in name:
        pytest.importorskip("timm")
    (tmp_path / "swins.py").write_text(SWINS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "swins", raising=False)
    model, file = vision_attn.load(f"swins:{name}", trust=["swins"], device="cpu"), photographs / "0.png"
    result = model.look(file)
    heads, sides = [1] * 2 + [2] * 2 + [4] * 2, [16] * 2 + [8] * 2 + [4] * 2
    assert result.method == "grad-cam" and result.alpha.shape == (1, 4, 4)
    assert [one.shape for one in result.layers] == [(1, K, S, S) for K, S in zip(heads, sides, strict=True)]
    page = result.page()
    rows = " ".join(map(str, sides))
    assert f'data-heads="{" ".join(map(str, heads))}" data-rows="{rows}" data-columns="{rows}"' in page
    (bits,) = maps(page, "layers")
    assert len(bits) == sum((K + 1) * S * S for K, S in zip(heads, sides, strict=True))
    start = sum((K + 1) * S * S for K, S in zip(heads[:3], sides[:3], strict=True))
    for head, part in (None, 0), (1, 2):
        found = model.look(file, layer=3, head=head)
        assert found.alpha.shape == (1, 8, 8) and found.method == "attention" and found.alpha.std() > 0
        assert maps(found.page())[0] == bits[start + part * 64 : start + (part + 1) * 64]


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "vit_tiny_patch16_224"])
def test_an_encoder_shows_the_attention_of_its_last_layer(name: str, photographs: Path) -> None:
    """Its features are no answer that could be explained."""
    timm = pytest.importorskip("timm")
    from vision_attn.explain.libraries.opening import ImageReader, OpenedModel
    from vision_attn.explain.look import look

    sizes = {"window_size": 4, "depths": (2, 2), "num_heads": (2, 4)} if "swin" in name else {"num_heads": 2}
    module = timm.create_model(name, num_classes=0, img_size=32, embed_dim=16, **sizes).eval()
    model, picture = OpenedModel(module, "encoder", ImageReader((32, 32))), Image.open(photographs / "0.png")
    seen = look(model, picture)
    last = seen.layers[-1] if "swin" in name else seen.layers[:, -1]
    assert seen.method == "attention" and torch.equal(seen.alpha, last.mean(dim=1))
    for method in ("relevance", "grad-cam"):
        with pytest.raises(UserError, match="explains an answer, and this model has none: choose rollout, or a layer"):
            look(model, picture, method=method)


def test_a_file_of_weights_is_loaded(photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(5)
    model = timm.create_model("test_vit")
    torch.nn.init.constant_(model.head.bias, -50)
    model.head.bias.data[281] = 50
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    image = str(photographs / "0.png")
    options = ["--weights", str(tmp_path / "weights.pt"), "--out", str(tmp_path / "out")]
    assert main(["look", "timm:test_vit", image, *options]) == 0
    assert capsys.readouterr().out.endswith("\ttabby (1.00)\n")
    assert main(["look", "timm:test_vit2", image, *options]) == 1
    assert "weights.pt holds no weights of test_vit2" in capsys.readouterr().err


def saved(folder: Path, make: Callable[[Any], Any]) -> str:
    """Save a tiny model of transformers with its processor; the name to open it by."""
    transformers = pytest.importorskip("transformers", reason="needs the extra [hub]: transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    model, processor = make(transformers)
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]",
        bos_token="[CLS]", eos_token="[SEP]", extra_special_tokens={"image_token": "<image>"}, model_max_length=8,
    )  # fmt: skip
    model.save_pretrained(folder)
    processor(transformers, tokenizer).save_pretrained(folder)
    return f"transformers:{folder}"


SIZE = {"height": SIDE, "width": SIDE}
NAMED = TEXT | {
    "max_position_embeddings": 99,
    "vocab_size": len(WORDS),
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def vit(hf: Any) -> Any:
    model = hf.ViTForImageClassification(hf.ViTConfig(**VISION, id2label={0: "cat", 1: "dog"}))
    return model, lambda hf, _: hf.ViTImageProcessor(size=SIZE)


def clip(hf: Any) -> Any:
    model = hf.CLIPModel(hf.CLIPConfig(vision_config=VISION, text_config=NAMED, projection_dim=16))
    images = {"size": {"shortest_edge": SIDE}, "crop_size": SIZE}
    return model, lambda hf, words: hf.CLIPProcessor(hf.CLIPImageProcessor(**images), words)


def blip(hf: Any) -> Any:
    text = NAMED | {"encoder_hidden_size": VISION["hidden_size"], "sep_token_id": 2}
    model = hf.BlipForConditionalGeneration(
        hf.BlipConfig(vision_config=VISION | {"initializer_range": 0.5}, text_config=text)
    )
    # its default for images, 1e-10, makes all patches the same
    return model, lambda hf, words: hf.BlipProcessor(hf.BlipImageProcessor(size=SIZE), words)


def llava(hf: Any) -> Any:
    text = hf.LlamaConfig(**NAMED, num_key_value_heads=2)
    vision = hf.CLIPVisionConfig(**VISION)
    config = hf.LlavaConfig(vision_config=vision, text_config=text, image_token_index=3, vision_feature_layer=-1)
    images = {"size": {"shortest_edge": SIDE}, "crop_size": SIZE}

    def processor(hf: Any, words: Any) -> Any:
        images_ = hf.CLIPImageProcessor(**images)
        return hf.LlavaProcessor(images_, words, patch_size=8, vision_feature_select_strategy="default",
                                 num_additional_image_tokens=1)  # fmt: skip

    return hf.LlavaForConditionalGeneration(config), processor


@pytest.mark.parametrize("make", [vit, clip, blip, llava], ids=lambda make: make.__name__)
def test_models_of_transformers(
    make: Any, photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = saved(tmp_path / "model", make)
    out = tmp_path / "out"
    options = {
        "clip": ["--text", "a cat", "--text", "the dog"],
        "llava": ["--text", "a photo"],
        "blip": ["--relevance"],
    }
    assert main(["look", name, str(photographs / "0.png"), *options.get(make.__name__, []), "--out", str(out)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    answer, page = line.split("\t")[1], (out / "index.html").read_text()
    layers = {len(one) for one in maps(page, "layers")}
    if make is vit:
        assert re.fullmatch(r"(cat|dog) \(0\.\d\d\)", answer) and layers == {2 * 5 * 16}
    elif make is clip:
        assert re.fullmatch(r"a cat \(0\.\d\d\), the dog \(0\.\d\d\)", answer) and len(maps(page)) == 2
        assert maps(page)[0] != maps(page)[1] and layers == {2 * 5 * 16}
    elif words := answer.split():
        assert len(maps(page)) == len(words) and set(words) <= set(WORDS) and layers == {2 * 5 * 16}
    assert (out / "01-0.png").is_file()


def test_a_head_of_a_captioner_is_its_cross_attention(photographs: Path, tmp_path: Path) -> None:
    """The map of word t, layer 1, head 2 is what the module computes in step t."""
    pytest.importorskip("transformers", reason="needs the extra [hub]: transformers")
    from vision_attn.explain.libraries.opening import open_model
    from vision_attn.explain.look import look

    model = open_model(saved(tmp_path / "model", blip))
    picture = Image.open(photographs / "0.png").crop((10, 0, 50, 40))
    model.module.text_decoder.generation_config.suppress_tokens = [0, 1, 2, 3, 4]
    expected: list[torch.Tensor] = []
    (attention,) = (part for name, part in model.module.named_modules() if name.endswith("1.crossattention.self"))
    torch.nn.init.normal_(attention.query.weight), torch.nn.init.normal_(attention.key.weight)
    hook = attention.register_forward_hook(lambda _, __, output: expected.append(output[1][0, 2, -1, 1:]))
    seen = look(model, picture, layer=1, head=2)
    hook.remove()
    assert len(seen.words) == len(expected) >= 2 and seen.alpha.std() > 0.01
    torch.testing.assert_close(seen.alpha, torch.stack(expected).unflatten(1, (4, 4)), rtol=0, atol=1e-6)


def captioner(folder: Path, make: Any) -> Any:
    """A captioner of transformers that never ends, and whose words depend on the image."""
    pytest.importorskip("transformers", reason="needs the extra [hub]: transformers")
    from vision_attn.explain.libraries.opening import open_model

    model = open_model(saved(folder, make))
    for part in (model.module, getattr(model.module, "text_decoder", None)):
        if part is not None:
            part.generation_config.suppress_tokens = [0, 1, 2, 3]
    for name, weight in model.module.named_parameters():
        if "attention" in name or "attn" in name:
            torch.nn.init.normal_(weight, std=0.3)
    return model


def taught(model: Any, inputs: dict[str, torch.Tensor], sequence: torch.Tensor, place: int) -> Any:
    """The record of a forward pass over `sequence`, after a backward pass from its last token's logit."""
    from vision_attn.explain.record import record_attention

    with record_attention(model.module, queries="all", gradients=True) as record:
        logits = model.module(pixel_values=inputs["pixel_values"], input_ids=sequence[:, :place]).logits
    logits[0, -1, sequence[0, place]].backward()
    return record


def test_relevance_of_the_words_of_a_captioner_with_cross_attention(photographs: Path, tmp_path: Path) -> None:
    """Word by word, each from a pass of its own over the words before, with the layers found by name."""
    from vision_attn.explain.look import look
    from vision_attn.explain.relevance import cross_relevance, relevance

    model = captioner(tmp_path / "model", blip)
    picture = Image.open(photographs / "0.png").crop((10, 0, 50, 40))
    seen = look(model, picture, method="relevance")
    assert seen.method == "relevance" and len(seen.words) == len(seen.alpha) >= 5 and seen.layers is not None
    inputs = model.inputs(picture)
    sequence = model.module.generate(**inputs, max_new_tokens=40, num_beams=1, do_sample=False)
    first = sequence.shape[1] - len(seen.words)
    for number in (0, 3, len(seen.words) - 1):
        record = taught(model, inputs, sequence, first + number)
        decoder = [one for one in record if one.name.startswith("text_decoder")]
        pairs = list(zip(decoder[::2], decoder[1::2], strict=True))
        assert all("cross" not in one.name and "cross" in other.name for one, other in pairs)
        vision = relevance([one for one in record if one.name.startswith("vision_model")])
        expected = cross_relevance(pairs, vision)[0, -1, 1:].unflatten(0, (4, 4))
        torch.testing.assert_close(seen.alpha[number], expected, rtol=1e-4, atol=1e-9)
        assert expected.std() > 0


def test_relevance_of_the_words_of_a_captioner_that_reads_the_image(photographs: Path, tmp_path: Path) -> None:
    from vision_attn.explain.look import look
    from vision_attn.explain.relevance import relevance

    model = captioner(tmp_path / "model", llava)
    picture = Image.open(photographs / "0.png").crop((10, 0, 50, 40))
    seen = look(model, picture, texts=["a photo"], method="relevance")
    inputs = dict(model.processor(text="<image>a photo", images=picture, return_tensors="pt"))
    image = (inputs["input_ids"][0] == 3).nonzero()[:, 0]
    sequence = model.module.generate(**inputs, max_new_tokens=40, num_beams=1, do_sample=False)
    first = inputs["input_ids"].shape[1]
    assert sequence.shape[1] - first == len(seen.words) >= 5
    for number in (0, 3, len(seen.words) - 1):
        record = taught(model, inputs, sequence, first + number)
        related = relevance([one for one in record if one.name.startswith("model.language_model")])
        expected = related[0, -1, image].unflatten(0, (4, 4))
        torch.testing.assert_close(seen.alpha[number], expected, rtol=1e-4, atol=1e-9)
        assert expected.std() > 0


@pytest.mark.slow
@pytest.mark.parametrize("make", [blip, llava], ids=lambda make: make.__name__)
def test_a_caption_of_one_word_is_seen_by_the_layers_of_the_decoder(
    make: Any, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the vision tower run once too."""
    from vision_attn.explain.look import look

    model = captioner(tmp_path / "model", make)
    picture = Image.open(photographs / "0.png").crop((10, 0, 50, 40))
    for method in ("attention", "relevance"):
        pretend.short_captions(monkeypatch, 40)
        whole = look(model, picture, method=method)
        pretend.short_captions(monkeypatch, 1)
        seen = look(model, picture, method=method)
        assert seen.words == whole.words[:1] and seen.layers.shape == whole.layers[:1].shape
        torch.testing.assert_close(seen.layers, whole.layers[:1], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(seen.alpha, whole.alpha[:1], rtol=1e-4, atol=1e-6)


def with_gpt2(encoder: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An encoder of images with GPT-2, which attends to it."""

    def make(hf: Any) -> Any:
        ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        gpt2 = hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=99, vocab_size=len(WORDS), **ends)
        config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder(hf), gpt2)
        config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 1, 0, 2
        model = hf.VisionEncoderDecoderModel(config=config)
        for name, value in (ends | {"decoder_start_token_id": 1}).items():
            setattr(model.generation_config, name, value)
        size = {"height": config.encoder.image_size, "width": config.encoder.image_size}
        return model, lambda hf, words: hf.TrOCRProcessor(hf.ViTImageProcessor(size=size), words)

    return make


@pytest.mark.slow
def test_windows_have_no_relevance_of_the_whole_image(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Swin with GPT-2: what windows of as many tokens as the last stage do is left out; of a ViT nothing is."""
    from vision_attn.explain.captioners import word_maps
    from vision_attn.explain.look import look

    swin = {"image_size": 32, "embed_dim": 16, "initializer_range": 0.3, "window_size": 4}
    encoders = {
        "swin of 3": lambda hf: hf.SwinConfig(**swin, patch_size=2, depths=[2, 2, 2], num_heads=[2, 4, 4]),
        "swin of 2": lambda hf: hf.SwinConfig(**swin, patch_size=4, depths=[2, 2], num_heads=[2, 4]),
        "vit": lambda hf: hf.ViTConfig(**VISION | {"initializer_range": 0.3}),
    }
    picture = Image.open(photographs / "0.png").crop((10, 0, 50, 40))
    whole, used = word_maps.relevance, []  # counts the layers, which no result shows
    monkeypatch.setattr(word_maps, "relevance", lambda layers: used.append(len(layers)) or whole(layers))
    for name, encoder in encoders.items():
        used.clear()
        model = captioner(tmp_path / name, with_gpt2(encoder))
        seen = look(model, picture, texts=["a photo"], method="relevance")
        assert seen.alpha.std() > 0 and seen.alpha.isfinite().all(), name
        assert set(used) == ({2} if name == "vit" else set()), name


def test_an_answer_that_sees_the_question_alone_has_no_map(photographs: Path, tmp_path: Path) -> None:
    """BLIP for question answering; four words would make a map of 2 x 2."""
    from vision_attn.explain.look import look

    def make(hf: Any) -> Any:
        text = NAMED | {"encoder_hidden_size": VISION["hidden_size"], "sep_token_id": 2}
        model = hf.BlipForQuestionAnswering(hf.BlipConfig(vision_config=VISION, text_config=text))
        return model, lambda hf, words: hf.BlipProcessor(hf.BlipImageProcessor(size=SIZE), words)

    model = captioner(tmp_path / "model", make)
    for method in ("attention", "relevance"):
        with pytest.raises(UserError, match="no layer of this model attends to the image"):
            look(model, Image.open(photographs / "0.png"), texts=["a photo of cat"], method=method)


def test_another_number_of_classes_than_of_scores_is_a_mistake(tiny: str, photographs: Path) -> None:
    from vision_attn.explain.libraries.opening import open_model
    from vision_attn.explain.look import look

    model = open_model(tiny, trust=True)
    with pytest.raises(UserError, match="4 names of classes, but 3 scores"):
        look(model._replace(classes=("none", *model.classes)), Image.open(photographs / "0.png"))


def test_trusted_code_is_found_in_the_current_folder(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by the installed command, on whose path it is not; other imports do not find what lies there."""
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "tiny_here": "import tiny_near" + MODULE,
        "tiny_near": "",
        "tiny_broken": "import none_such",
    }.items():
        Path(f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = list(sys.path)
    assert main(["look", "tiny_here:make", str(photographs), "--trust=tiny_here", "--out=out"]) == 0
    assert sys.path == before and "" not in before and str(tmp_path) not in before
    assert main(["look", "tiny_broken:make", str(photographs), "--trust=tiny_broken"]) == 1
    assert "tiny_broken:make cannot be imported: No module named 'none_such'" in capsys.readouterr().err
    Path("tiny_broken.py").write_text("def make():\n    return 3\n")
    assert main(["look", "tiny_broken:make", str(photographs), "--trust=tiny_broken"]) == 1
    assert "tiny_broken:make returned an int, not a torch.nn.Module" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet19"], "resnet19 is neither a run folder nor a network of torchvision; did you mean resnet18"),
        (["timm:nothing", "--weights", "none"], "timm:nothing cannot be opened: Unknown model"),
        (["tiny_model:make"], "tiny_model:make runs the code of tiny_model: add --trust tiny_model if you trust it"),
        (["tiny_model:other", "--trust", "tiny_model"], "tiny_model:other: there is no other in /"),
        (["tiny_model:mak", "--trust", "tiny_model"], "tiny_model.py; did you mean make?"),
        (["none_such:make", "--trust", "none_such"], "there is no module none_such in the current folder, on"),
        (["tiny_model:make", "--trust", "tiny_model", "--text", "cats"], "the classifier has no class 'cats'; did you"),
        (["tiny_model:make", "--trust", "tiny_model", "--layer", "3"], "there is no layer 3: they are numbered from 0"),
        (["tiny_model:make", "--trust", "tiny_model", "--rollout", "--head", "1"], "a layer and a head apply to"),
        (["squeezenet1_1", "--weights", "none", "--rollout"], "no layer of this model attends to the whole image"),
        (["swin_t", "--weights", "none", "--rollout"], "so rollout and relevance, products of the maps of all layers"),
        (["swin_t", "--weights", "none", "--layer", "0", "--head", "3"], "there is no head 3: they are numbered from"),
        (["swin_t", "--weights", "none", "--layer", "12"], "there is no layer 12: they are numbered from 0 to 11"),
        (["tiny_model:make", "--trust", "tiny_model", "--device", "cuda:99"], "device 'cuda:99' is not available here"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tiny: str, photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = arguments
    assert main(["look", name, str(photographs / "0.png"), "--out", str(tmp_path / "out"), *options]) == 1
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "swin_t",
            r"cannot be opened: .*; put https://\S+ at .*checkpoints.swin_t-\w+\.pth, or give --weights FILE, or "
            "--weights none for random weights$",
        ),
        (
            "timm:vit_tiny_patch16_224",
            "cannot be opened: it was not downloaded before, and there is no network; give --weights FILE, or "
            "--weights none for random weights$",
        ),
        (
            "transformers:none/such",
            "cannot be opened: it was not downloaded before, and there is no network; transformers:FOLDER opens a "
            "folder that holds config.json, model.safetensors.*`hf download none/such --local-dir FOLDER`",
        ),
    ],
)
def test_without_network_it_says_which_file_to_give(
    name: str, message: str, photographs: Path, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if ":" in name:
        pytest.importorskip(name.partition(":")[0])

    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for variable in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr(socket, "create_connection", offline)
    monkeypatch.setattr("httpx.Client.send", lambda *_, **__: pytest.fail("the hub was asked though it is not there"))
    with pytest.raises(UserError, match=message):
        vision_attn.load(name)
    assert not constants.HF_HUB_OFFLINE
    assert main(["look", name, str(photographs / "0.png"), "--out", str(tmp_path / "out")]) == 1
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "error:" in line)
    assert re.search(message, line)


DOCUMENT = Path(__file__).parents[2] / "docs" / "look.md"


def commands() -> list[list[str]]:
    lines = re.findall(r"^vision-attn look (.*?)(?: +#.*)?$", DOCUMENT.read_text(), re.MULTILINE)
    return [shlex.split(line) for line in lines]


def test_the_documents_commands_are_understood() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert len(commands()) >= 10
    for words in commands():
        parser.parse_args(words)


@pytest.mark.slow
def test_the_documents_commands_run(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that need no download, with a small network in place of a large one, and the lines of Python."""
    pytest.importorskip("timm")
    monkeypatch.chdir(tmp_path)
    (photographs / "0.png").rename(tmp_path / "photo.jpg")
    photographs.rename(tmp_path / "holiday")
    (tmp_path / "mycode.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "vit.safetensors").touch()
    ran = 0
    for words in commands():
        if words[0] == "mycode:make" or (words[0].startswith("vit_") and "--weights" not in words):
            texts = [{"golden retriever": "dog", "tabby": "cat"}.get(word, word) for word in words[1:]]
            texts = [{"11": "0", "3": "1"}.get(word, word) for word in texts if word not in ("--trust", "mycode")]
            assert main(["look", "mycode:make", *texts, "--trust", "mycode"]) == 0, words
            ran += 1
        elif words[0] == "resnet50":
            assert main(["look", "squeezenet1_1", *words[1:], "--weights", "none"]) == 0
            assert (tmp_path / "seen" / "index.html").is_file()
    assert ran == 7
    shown, code = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert shown.count('load("vit_b_16")') == 1
    for word, small in {
        '("vit_b_16")': '("mycode:make", trust=["mycode"])', '"tabby"': '"cat"', "layer=11, head=3": "layer=0, head=1"
    }.items():  # fmt: skip
        assert word in shown
        shown = shown.replace(word, small)
    exec(compile(shown, str(DOCUMENT), "exec"), {})
    assert (tmp_path / "look.html").is_file()
    capsys.readouterr()
    exec(compile(code, str(DOCUMENT), "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("torch.Size([1, 3, 1, 197])")
    assert printed[1] == "torch.Size([1, 14, 14]) torch.Size([1, 14, 14]) torch.Size([1, 12, 3, 14, 14])"


def test_maps_of_drawn_scenes_are_measured() -> None:
    """The benchmark's table, of an untrained model on few scenes; the star of a scene has its colour as label."""
    from benchmarks.pointing import pointing
    from vision_attn.data.scenes.star_scenes import Targets
    from vision_attn.models.vit import VisionTransformer

    torch.manual_seed(0)
    source = Targets(batch_size=6, val_images=8)
    model = VisionTransformer(source.image_shape, source.num_classes, patch=14, overlap=2, hidden_size=16, num_layers=2,
                              num_heads=2, feedforward_size=16).eval()  # fmt: skip
    batches = list(source.split("val"))
    rows = [line.split(" | ") for line in pointing(model, batches, curves=1).splitlines()[2:]]
    assert [len(batch.labels) for batch in batches] == [6, 2] and len(rows) == 6
    names = {name.removeprefix("| "): numbers for name, *numbers in rows}
    assert names["uniform"][0] == names["uniform"][1] and {"relevance", "rollout"} <= set(names)
    for image, label, box in zip(*batches[0], strict=True):
        x0, y0, x1, y1 = ((edge + 1) * 28 for edge in box.tolist())
        middle = image[:, round((y0 + y1) / 2) - 1 : round((y0 + y1) / 2) + 1, round((x0 + x1) / 2)].mean(dim=1)
        colours = torch.tensor(list(COLOURS.values())) / 255
        assert int((colours - middle).square().sum(1).argmin()) == int(label)


def test_batches_of_scenes_depend_on_their_number_alone() -> None:
    from vision_attn.data.scenes.star_scenes import Targets

    source = Targets(batch_size=4, epoch_images=12)
    batches = list(source.train(1, seed=3))
    (last,) = source.train(1, seed=3, skip=2)
    assert len(batches) == len(source) == 3 and torch.equal(batches[2].images, last.images)
    parts = [next(source.train(1, seed=3, rank=rank, world=2)) for rank in range(2)]
    assert torch.equal(parts[1].labels, batches[0].labels[1::2])
    with pytest.raises(UserError, match="unknown split .all."):
        next(source.split("all"))
    with pytest.raises(UserError, match="targets: batch_size=0"):
        Targets(batch_size=0)


@pytest.mark.parametrize("glimpses, side", [(3, 12), (1, 12), (3, 0)])
def test_a_classifier_of_glimpses_is_not_looked_into(glimpses: int, side: int) -> None:
    """Also where its locations are random, or there is only one glimpse, so that nothing is reinforced."""
    source = Source()
    source.image_shape, source.num_classes = (3, side, side), 4
    task = Classification(source, model=partial(RAM, num_glimpses=glimpses, policy=Anywhere))
    with pytest.raises(UserError, match="does not see whole photographs"):
        explainer_of_run(task, source, "run", torch.device("cpu"))


def test_a_classifier_of_a_run_is_looked_into(photographs: Path, tmp_path: Path, capsys: Any) -> None:
    """Train a tiny run of configs/vit_scenes.yaml, then look into it; a run without photographs is told."""
    config = Path(__file__).parents[2] / "configs" / "vit_scenes.yaml"
    sizes = ["hidden_size=16", "num_layers=2", "num_heads=2", "feedforward_size=16", "patch=14"]
    options = [f"--task.model.{size}" for size in sizes]
    options += ["--data.epoch_images=16", "--data.batch_size=8", "--data.val_images=8", "--run.epochs=1"]
    run = str(tmp_path / "run")
    assert main(["train", str(config), f"--run.folder={run}", "--run.warmup=1", *options]) == 0
    capsys.readouterr()
    out = tmp_path / "out"
    assert main(["look", run, str(photographs / "0.png"), "--out", str(out)]) == 0
    assert capsys.readouterr().out.split("\t")[1].split()[0] in COLOURS
    assert {len(one) for one in maps((out / "index.html").read_text(), "layers")} == {2 * 3 * 16}
    assert vision_attn.load(run).look(photographs / "0.png").page() == page_of(out)
    weights = Path(__file__).parents[2] / "weights" / "ram_cluttered60"
    assert main(["look", str(weights), str(photographs / "0.png"), "--out", str(out)]) == 1
    assert "holds a classifier that does not see whole photographs: vision-attn classify" in capsys.readouterr().err


def test_words_of_a_tokenizer_that_cleans_up_spaces_keep_their_tokens() -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra [hub]: transformers")
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {word: number for number, word in enumerate(["[UNK]", "a", "dog", "'", "s", "tail", "##s"])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=True)
    ids = [vocabulary[token] for token in ["a", "dog", "'", "s", "tail", "##s"]]
    assert generation.words_of(fast, ids) == (["a", "dog", "'", "s", "tails"], [[0], [1], [2], [3], [4, 5]])


def test_a_text_for_a_model_without_an_answer_is_refused(photographs: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 4, 4))
    model = OpenedModel(module, "encoder", lambda picture: {"input": torch.rand(1, 3, 32, 32)})
    with pytest.raises(UserError, match="this model has no answer: leave the text out"):
        look(model, Image.open(photographs / "0.png"), texts=["a zebra"])


def test_random_weights_of_torchvision_have_maps(photographs: Path) -> None:
    """Its vision transformers begin with an output layer of zeros, on which no gradient depends."""
    result = vision_attn.load("vit_b_32", weights="none", device="cpu").look(photographs / "0.png")
    assert result.method == "relevance" and result.alpha.std() > 0


def test_a_function_that_needs_arguments_is_refused(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    (tmp_path / "needy.py").write_text(MODULE + "\n\ndef needs(x):\n    return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="needy:needs must be a function that needs no arguments .missing a required"):
        vision_attn.load("needy:needs", trust="needy")
    vision_attn.load("needy:make", trust="needy", weights="none")
    assert "random weights" not in caplog.text

"""Captioners of transformers: captions and maps equal to those of `generate`, and every verb that our runs have."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vision_attn
from tests import pretend, slow
from tests.pretrained import CAPTIONERS, pretrained  # noqa: F401 (a fixture)
from vision_attn.commands import main
from vision_attn.explain.tokens import PatchTiles
from vision_attn.metrics import evaluators
from vision_attn.results.model import Model
from vision_attn.system.errors import UserError

pytest.importorskip("transformers", reason="needs the extra [hub]: transformers")

PROMPTS = {"PaliGemma": "caption en", "Florence-2": "What does the image describe?"}
LENGTHS = {"min_new_tokens": 4, "max_new_tokens": 6}
OURS = {"min_words": 4, "max_words": 6}
Opener = Callable[[str], str]


def photographs() -> list[Image.Image]:
    """Of several shapes: the last one has fewer tiles."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(40, 60), (60, 40), (20, 60)]
    pixels = [torch.randint(256, (*shape, 3), dtype=torch.uint8, generator=generator) for shape in shapes]
    return [Image.fromarray(one.numpy()) for one in pixels]


def asked(kind: str, model: Model, picture: Image.Image) -> dict[str, Any]:
    """The arguments of `generate` for a picture, as the documentation of each model makes them."""
    processor = model.task.opened.processor
    if kind == "ViT and GPT-2":
        return dict(processor.image_processor(picture, return_tensors="pt"))
    if kind in ("BLIP", "BLIP-2", "GIT"):
        return {"pixel_values": processor(images=picture, return_tensors="pt")["pixel_values"]}
    text = "<CAPTION>" if kind == "Florence-2" else f"<image>{PROMPTS.get(kind, '')}"
    return dict(processor(images=[picture], text=[text], return_tensors="pt"))


def expected(kind: str, model: Model, picture: Image.Image, beams: int) -> tuple[str, torch.Tensor]:
    """The caption, and the mean attention of each token to the 4 x 4 patches, or (SmolVLM) the tiles and the whole
    image, all from eager attention."""
    module, tokenizer, inputs = model.task.model, model.task.opened.processor.tokenizer, asked(kind, model, picture)
    options = {"num_beams": beams, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    out = module.generate(**inputs, **LENGTHS, **options, output_attentions=kind != "BLIP")
    new = out.beam_indices.shape[1] if beams > 1 else len(out.logits)
    ids = out.sequences[0, -new:]
    text = tokenizer.decode(ids, skip_special_tokens=True).strip()
    if kind == "BLIP":  # not returned: given the winning caption, of each layer
        states = module.vision_model(inputs["pixel_values"])[0]
        given = module.text_decoder(
            input_ids=out.sequences[:, :-1], encoder_hidden_states=states, output_attentions=True, return_dict=True
        )
        maps = torch.stack([layer[0].mean(dim=0)[-new:, 1:] for layer in given.cross_attentions]).mean(dim=0)
        return text, maps
    steps = out.cross_attentions if kind in ("ViT and GPT-2", "Florence-2") else out.attentions
    rows = out.beam_indices[0].tolist() if beams > 1 else [0] * new
    each = [torch.stack([layer[row, :, -1] for layer in steps[step]]).mean(dim=(0, 1)) for step, row in enumerate(rows)]
    if kind == "BLIP-2":
        crossed = module.qformer(
            query_embeds=module.query_tokens, output_attentions=True, return_dict=True,
            encoder_hidden_states=module.vision_model(inputs["pixel_values"]).last_hidden_state,
        ).cross_attentions  # fmt: skip
        mixing = torch.stack([maps[0] for maps in crossed if maps is not None]).mean(dim=(0, 1))
        return text, torch.stack([one[: len(mixing)] @ mixing[:, 1:] for one in each])
    if "input_ids" in inputs:
        each = [one[: inputs["input_ids"].shape[1]][inputs["input_ids"][0] == 3] for one in each]
    skipped = {"GIT": 1, "ViT and GPT-2": 1, "Florence-2": 1}.get(kind, 0)
    return text, torch.stack([one if kind == "SmolVLM" else one[skipped : skipped + 16] for one in each])


@pytest.mark.parametrize("kind", CAPTIONERS)
def test_captions_and_maps_are_those_of_generate(kind: str, pretrained: Opener) -> None:  # noqa: F811
    """Of photographs of several shapes, all at once; through a beam search, the maps of the beam that won."""
    model = vision_attn.load(pretrained(kind), device="cpu", **OURS)
    results = [(beams, model.caption(photographs(), placed=False, beams=beams)) for beams in (1, 3)]
    for part in model.task.model.modules():
        if hasattr(part, "set_attn_implementation"):
            part.set_attn_implementation("eager")
    for beams, found in results:
        check(kind, model, found, beams)


def check(kind: str, model: Model, results: list[Any], beams: int) -> None:
    differ = []
    for result, picture in zip(results, photographs(), strict=True):
        with torch.no_grad():
            text, maps = expected(kind, model, picture, beams)
        assert result.text == text and len(text.split()) >= 3 and result.words == text.split()
        rows = 2
        if kind == "SmolVLM":
            rows = maps.shape[1] // 4 // 2  # of two tiles of 2 x 2 patches
            tiles, whole = maps.unflatten(1, (-1, 2, 2)).split([2 * rows, 1], dim=1)
            tiles = tiles.unflatten(1, (rows, 2)).permute(0, 1, 3, 2, 4).reshape(-1, 2 * rows, 4)
            maps = tiles + torch.kron(whole[:, 0], torch.ones(1, rows, 2)) / (2 * rows)
        maps = maps.reshape(len(maps), 2 * rows, 4)
        maps = maps / maps.sum(dim=(1, 2), keepdim=True)
        torch.testing.assert_close(result.alpha, maps[: len(result.alpha)], rtol=1e-4, atol=1e-6)
        differ.append(result.alpha[0])
    assert differ[0].std() > 1e-3 and not torch.allclose(differ[0], differ[1], atol=1e-4)


REFERENCES = [
    ["a dog on the grass", "the cat"],
    ["a photo of the red dog", "dog dog"],
    ["grass", "a cat on the red grass"],
]


def own_loss(kind: str, model: Model, picture: Image.Image, text: str) -> float:
    """The sum of -log p of the tokens of a caption and of its end, as the model computes it from labels."""
    module, tokenizer = model.task.model, model.task.opened.processor.tokenizer
    inputs = asked(kind, model, picture)
    ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id or tokenizer.sep_token_id]
    labels = torch.tensor([ids])
    if kind in ("ViT and GPT-2", "Florence-2"):
        return float(module(**inputs, labels=labels).loss) * len(ids)
    if kind in ("BLIP", "BLIP-2", "GIT"):
        start = [3] * module.config.num_query_tokens if kind == "BLIP-2" else []
        config = getattr(module.config, "text_config", module.config)
        inputs["input_ids"] = torch.tensor([[*start, config.bos_token_id]])
    given = inputs["input_ids"].shape[1]
    inputs["input_ids"] = torch.cat([inputs["input_ids"], labels], dim=1)
    if "attention_mask" in inputs:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "token_type_ids" in inputs:
        inputs["token_type_ids"] = torch.tensor([[0] * given + [1] * len(ids)])
    inputs = {name: value for name, value in inputs.items() if name not in ("labels", "mm_token_type_ids")}
    labels = torch.cat([torch.full((1, given), -100), labels], dim=1)
    if kind == "BLIP":
        module.text_decoder.label_smoothing = 0.0
    return float(module(**inputs, labels=labels).loss) * len(ids)


@pytest.mark.parametrize("kind", CAPTIONERS)
def test_the_likelihood_of_references_is_the_loss_of_the_model(kind: str, pretrained: Opener) -> None:  # noqa: F811
    """Of captions of several lengths, of several photographs at once, whatever the settings of decoding are."""
    model = vision_attn.load(pretrained(kind), device="cpu", **OURS)
    found = model.task.log_prob_of(photographs(), REFERENCES)
    assert found.shape == (3, 2, 1)
    for number, picture in enumerate(photographs()):
        loss = own_loss(kind, model, picture, REFERENCES[number][number % 2])
        assert -float(found[number, number % 2]) == pytest.approx(loss, rel=1e-4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Photographs with captions: three for a test."""
    place = tmp_path / "photographs"
    place.mkdir()
    captions = []
    for number, picture in enumerate(photographs()):
        picture.save(place / f"{number}.png")
        captions.append({"filename": f"{number}.png", "split": "test", "sentences": [{"raw": "a dog on the grass"}]})
    (place / "captions.json").write_text(json.dumps({"images": captions}))
    return place


@pytest.fixture
def quick_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the scorers that need Java, which other tests call."""
    quick = partial(evaluators.caption_metrics, split=str.split)

    def metrics(captions: Any, references: Any, **_: Any) -> Any:
        return quick(captions, references, names=["BLEU-4", "CIDEr"])

    monkeypatch.setattr(evaluators, "caption_metrics", metrics)


@pytest.mark.parametrize("kind", slow.after(1, ["BLIP", "GIT", "ViT and GPT-2", "Florence-2", "SmolVLM"]))
def test_a_captioner_of_transformers_is_used_as_a_run_is(
    kind: str,
    pretrained: Opener,  # noqa: F811
    folder: Path,
    quick_metrics: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The captions, a page with a map for each word, and the metrics of captions and maps."""
    name, out = pretrained(kind), tmp_path / "out"
    settings = ["--task.min_words=4", "--task.max_words=6", "--device", "cpu"]
    assert main(["caption", name, str(folder), "--beams", "2", "--out", str(out), *settings]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [Path(file).name for file, _ in lines] == ["0.png", "1.png", "2.png"]
    assert main(["caption", name, str(folder / "0.png"), "--task.max_words=2", "--task.min_words=2"]) == 0
    told = capsys.readouterr().err
    assert "100% of the captions were cut" in told and "raise --task.max_words, which counts tokens" in told
    page = (out / "index.html").read_text()
    assert len(re.findall(r'data-map="[^"]+"', page)) == sum(len(text.split()) for _, text in lines) > 8
    data = [f"--data.images={folder}", f"--data.annotations={folder / 'captions.json'}", "--data.cache=null"]
    measured = tmp_path / "measured"
    assert main(["eval", name, "--beams", "2", "--out", str(measured), *data, *settings]) == 0
    record = json.loads((measured / "metrics_test.json").read_text())
    assert record["images"] == 3 and record["run"] == name and record["beams"] == 2 and "CIDEr" in record
    assert 0 < record["movement"] < 1 and record["entropy"] > 0.1
    task = vision_attn.load(name, device="cpu").task
    expected = -task.log_prob_of(photographs(), [["a dog on the grass"]] * 3).mean() / 6  # of five words and an end
    assert record["nll"] == pytest.approx(float(expected), rel=1e-3)
    if record["cut"]:
        assert "max_new_tokens" in (told := capsys.readouterr().err) and "--data.max_length" not in told
    captions = {one["image_id"]: one["caption"] for one in json.loads((measured / "captions_test.json").read_text())}
    assert sorted(captions.values()) == sorted(text for _, text in lines)


def test_other_verbs(
    pretrained: Opener,  # noqa: F811
    folder: Path,
    quick_metrics: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`compare` by what `eval` wrote, the page of `serve`, `look`, and what is told where something does not fit."""
    monkeypatch.chdir(tmp_path)
    name, image = pretrained("BLIP"), str(folder / "0.png")
    data = [f"--data.images={folder}", f"--data.annotations={folder / 'captions.json'}", "--data.cache=null"]
    assert main(["compare", name]) == 1 and "is not measured yet" in capsys.readouterr().err
    assert main(["eval", name, *data, "--show", "2", "--task.max_words=6"]) == 0
    capsys.readouterr()
    assert (Path("runs/model/pictures_test/index.html")).is_file()
    for compared in (name, "runs/model"):
        assert main(["compare", compared, "--metrics", "CIDEr"]) == 0
        assert re.search(r"^1  \S+ .*\d\.\d{4}$", capsys.readouterr().out, re.MULTILINE)
    model = vision_attn.load(name, device="cpu", max_words=6)
    pretend.short_captions(monkeypatch, 6)
    caption, look = model.caption(image), model.look(image)
    assert caption.text == look.text and caption.picture.size == look.picture.size == (60, 40)
    torch.testing.assert_close(caption.alpha, look.alpha / look.alpha.sum(dim=(1, 2), keepdim=True))
    from vision_attn.web.answers import answers, described, verbs

    assert verbs(model) == ["caption", "look"] and described(model) == {"kind": "caption", "takes": "photograph"}
    (answer,) = answers(model, "caption", {}, [vision_attn.results.images.Encoded("0.png", Path(image).read_bytes())])
    assert answer.text == caption.text
    scenes = ["--data=vision_attn.data.scenes.scenes.Scenes", "--data.test_images=2", "--data.size=40"]
    assert main(["eval", name, *scenes, "--out", "scenes", "--show", "1", "--task.max_words=2"]) == 0
    assert {"pointing", "movement"} <= json.loads(Path("scenes/metrics_test.json").read_text()).keys()
    capsys.readouterr()
    for arguments, message in (
        (["eval", name], "name the photographs to measure"),
        (["eval", name, name, *data], "an ensemble takes runs"),
        (["caption", name, image, "--task.lenght=3"], "task.lenght"),
        (["caption", name, image, "--captions", "2", "--diverse"], "sample the captions"),
        (["caption", "weights/photographs", image, "--prompt", "a"], "--prompt is for captioners of transformers"),
        (["caption", name], "name a photograph"),
        (["caption", f"{name}-none", image], "config.json, model.safetensors, preprocessor_config.json"),
    ):
        assert main(arguments) == 1
        assert message in capsys.readouterr().err


def test_prompts_and_captions_of_several_kinds(pretrained: Opener) -> None:  # noqa: F811
    """A prompt that asks changes the caption's model inputs; samples repeat by their seed; settings are checked."""
    from vision_attn.explain.captioners.prompts import default_prompt, inputs_of

    model = vision_attn.load(pretrained("SmolVLM"), device="cpu", prompt="a photo of", **OURS)
    inputs = inputs_of(model.task.opened, photographs()[:1], model.task.decoding.prompt)
    assert model.task.opened.processor.tokenizer.decode(inputs["input_ids"][0]).endswith("a photo of")
    assert inputs["input_ids"].shape[1] > inputs_of(model.task.opened, photographs()[:1])["input_ids"].shape[1]
    model.task.opened.processor.chat_template = (
        "{% for part in messages[0].content %}{% if part.type == 'image' %}the <image> {% else %}{{ part.text }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %} on{% endif %}"
    )
    inputs = inputs_of(model.task.opened, photographs()[:1], "a photo of")
    words = model.task.opened.processor.tokenizer.decode(inputs["input_ids"][0])
    assert words.startswith("the ") and words.endswith("a photo of on")
    assert default_prompt(model.task.opened) == "Describe this photograph in one sentence."
    sampled = [model.caption(photographs(), captions=3, strategy="sampled", seed=1) for _ in range(2)]
    assert [len(one) for one in sampled[0]] == [3, 3, 3] and str(sampled[0]) == str(sampled[1])
    best = model.caption(photographs(), captions=3)
    assert all(len({one.text for one in each}) == 3 for each in best)
    assert all(each[0].described.score >= each[1].described.score for each in best)
    with pytest.raises(UserError, match="diversity is no setting of captioners of transformers"):
        model.caption(photographs(), diversity=1.0)
    with pytest.raises(UserError, match="there is no such setting|has no such setting"):
        vision_attn.load(pretrained("SmolVLM"), lenght=3)


@pytest.mark.parametrize(("kind", "kept"), [("GIT", [1, 5, 6]), ("BLIP", [1, 5, 6, 2])])
def test_a_caption_goes_on_where_its_beginning_ends(kind: str, kept: list[int], pretrained: Opener) -> None:  # noqa: F811
    """Tokenizers of BERT put an end after a text. BLIP takes it away by itself, whatever it is."""
    from tokenizers.processors import TemplateProcessing

    from vision_attn.explain.captioners.prompts import inputs_of

    model = vision_attn.load(pretrained(kind), device="cpu").task.opened
    marks = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    model.processor.tokenizer.backend_tokenizer.post_processor = marks
    assert inputs_of(model, photographs(), "a photo")["input_ids"].tolist() == [kept] * 3


def test_half_precision_and_several_devices(pretrained: Opener) -> None:  # noqa: F811
    model = vision_attn.load(pretrained("ViT and GPT-2"), device="cpu", dtype="bfloat16", **OURS)
    results = model.caption(photographs())
    assert model.task.model.dtype == torch.bfloat16 and model.task.settings["dtype"] == "bfloat16"
    assert all(one.alpha.dtype == torch.float32 and one.extent == (-1, -1, 1, 1) for one in results)
    assert all(torch.allclose(one.alpha.sum(dim=(1, 2)), torch.ones(len(one.words))) for one in results)
    with pytest.raises(UserError, match="cannot be opened: .*accelerate"):
        vision_attn.load(pretrained("ViT and GPT-2"), device_map="auto")


MODELING = """
from pathlib import Path
from transformers import BlipConfig, BlipForConditionalGeneration

Path({marker!r}).touch()

class OtherConfig(BlipConfig):
    model_type = "other-captioner"

class OtherCaptioner(BlipForConditionalGeneration):
    config_class = OtherConfig
"""


def test_code_of_a_repository_needs_trust(
    pretrained: Opener,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import shutil

    import transformers

    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    place, marker = tmp_path / "other", tmp_path / "ran"
    shutil.copytree(pretrained("BLIP").partition(":")[2], place)
    config = json.loads((place / "config.json").read_text())
    config |= {"architectures": ["OtherCaptioner"], "model_type": "other-captioner"}
    auto = {"AutoConfig": "modeling.OtherConfig", "AutoModelForImageTextToText": "modeling.OtherCaptioner"}
    config["auto_map"] = auto
    (place / "config.json").write_text(json.dumps(config))
    (place / "modeling.py").write_text(MODELING.format(marker=str(marker)))
    with pytest.raises(UserError, match="code of its own, which is run only with --trust transformers"):
        vision_attn.load(f"transformers:{place}", device="cpu")
    assert not marker.exists()
    model = vision_attn.load(f"transformers:{place}", device="cpu", trust="transformers", **OURS)
    assert marker.exists() and type(model.task.model).__name__ == "OtherCaptioner"
    assert model.caption(photographs()[0]).text


def test_missing_files_are_named(pretrained: Opener, tmp_path: Path) -> None:  # noqa: F811
    place = tmp_path / "model"
    place.mkdir()
    (place / "config.json").write_text((Path(pretrained("BLIP").partition(":")[2]) / "config.json").read_text())
    with pytest.raises(UserError, match="model.safetensors.*the folder must hold config.json, model"):
        vision_attn.load(f"transformers:{place}")


def test_tiles_are_put_together() -> None:
    """Two rows of three tiles of 2 x 2 patches, and the whole image: every weight is kept, in its place."""
    weights = torch.rand(5, 7 * 4)
    found = PatchTiles(2, 3, 2).picture(weights)
    assert found.shape == (5, 4, 6)
    torch.testing.assert_close(found.sum(dim=(1, 2)), weights.sum(dim=1))
    one = torch.zeros(28)
    one[4 * 4 + 1] = 1  # second row, second tile, its upper right patch
    assert PatchTiles(2, 3, 2).picture(one).nonzero().tolist() == [[2, 3]]

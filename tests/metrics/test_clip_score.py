"""CLIPScore and RefCLIPScore, of a tiny random CLIP."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.explain.test_look import clip, saved, vit
from vision_attn.commands import main

SAID = {"0.png": "a cat", "1.png": "the dog of a cat", "2.png": "bird a a a a a a a a a", "4.png": "dog", "5.png": "a"}
REFERENCES = {"0.png": ["a cat", "dog"], "1.png": ["the bird", "a dog"], "2.png": ["cat"], "3.png": ["dog"]}
REFERENCES |= {"4.png": ["the dog"], "5.png": ["a bird"]}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Images with references, captions of some of them, and a model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    for name in REFERENCES:
        Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(tmp_path / "images" / name)
    (tmp_path / "references.json").write_text(json.dumps(REFERENCES))
    (tmp_path / "said.json").write_text(json.dumps([{"image_id": key, "caption": text} for key, text in SAID.items()]))
    return saved(tmp_path / "clip", clip).removeprefix("transformers:")


def plainly(folder: str, name: str) -> tuple[float, float]:
    """CLIPScore and RefCLIPScore of an image, of what the model says of one pair at a time."""
    import transformers

    model, read = (
        transformers.CLIPModel.from_pretrained(folder).eval(),
        transformers.CLIPProcessor.from_pretrained(folder),
    )

    def pair(text: str) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = read(images=Image.open(f"images/{name}"), text=[f"A photo depicts {text}"], return_tensors="pt")
        inputs = {key: inputs[key] for key in ("input_ids", "attention_mask", "pixel_values")}
        with torch.no_grad():
            found = model(**inputs)
        return found.text_embeds[0], found.image_embeds[0]

    caption, image = pair(SAID[name])
    to_image = 2.5 * max(float(caption @ image) / float(caption.norm() * image.norm()), 0)
    to_reference = max(0, *(float(caption @ pair(text)[0]) for text in REFERENCES[name]))
    return to_image, 2 / (1 / to_image + 1 / to_reference) if to_image and to_reference else 0.0


def test_it_is_the_scaled_cosine_and_its_harmonic_mean_with_the_nearest_reference(files, capsys):
    options = ["--clip", files, "--images", "images", "--each", "each.jsonl", "--metrics", "BLEU-1", "CIDEr"]
    assert main(["score", "said.json", "references.json", *options]) == 0
    expected = {name: plainly(files, name) for name in SAID}
    each = {one["image_id"]: one for one in map(json.loads, Path("each.jsonl").read_text().splitlines())}
    for name, pair in expected.items():
        assert [each[name]["CLIPScore"], each[name]["RefCLIPScore"]] == pytest.approx(pair, abs=1e-5)
    written = json.loads(Path("said_metrics.json").read_text())
    means = np.mean([*expected.values()], axis=0)
    assert [written["CLIPScore"], written["RefCLIPScore"]] == pytest.approx(means, abs=1e-5) and means[1] > 0
    low, high = written["intervals"]["CLIPScore"]
    assert low <= written["CLIPScore"] <= high and "CIDEr" in written["intervals"]
    printed = capsys.readouterr().out
    assert f"CLIPScore    {100 * means[0]:7.2f}" in printed and "RefCLIPScore " in printed
    assert main(["score", "said.json", "said.json", "references.json", *options[:4], "--metrics", "BLEU-1"]) == 0
    compared = json.loads(Path("said_compared.json").read_text())
    assert compared["differences"][0]["RefCLIPScore"] == {"difference": 0.0, "interval": [0.0, 0.0]}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--clip", "CLIP"], "CLIPScore needs the images: name their folder with --images"),
        (["--clip", "CLIP", "--images", "none"], "none was not found"),
        (["--clip", "CLIP", "--images", "clip"], "clip/0.png: no such file"),
        (
            ["--clip", "empty", "--images", "images"],
            "transformers:empty .*; the folder must hold config.json, model.safe",
        ),
        (["--clip", "VIT", "--images", "images"], "is a classifier that does not match texts and images: name a CLIP"),
    ],
)
def test_what_is_missing_is_said(files, tmp_path, capsys, options, said):
    (tmp_path / "empty").mkdir()
    if "VIT" in options:
        saved(tmp_path / "vit", vit)
    named = [{"CLIP": files, "VIT": "vit"}.get(option, option) for option in options]
    assert main(["score", "said.json", "references.json", *named, "--metrics", "BLEU-1"]) == 1
    assert re.search(said, capsys.readouterr().err)

"""Configs with downloaded encoders, dry-run on a miniature of COCO. Whoever has COCO sets VISION_ATTN_DATA."""

import json
import math
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from vision_attn.commands import main
from vision_attn.configuration.config import build, read
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.vocabulary import Vocabulary

IMAGES = [
    ("train2014", "train", "red"), ("train2014", "train", "green"), ("train2014", "train", "blue"),
    ("train2014", "train", "yellow"), ("val2014", "restval", "purple"), ("val2014", "restval", "orange"),
    ("val2014", "val", "red"), ("val2014", "val", "green"), ("val2014", "test", "blue"), ("val2014", "test", "yellow"),
]  # fmt: skip
"""Folder, split and colour of each image, as Karpathy divided COCO: everything but "train" lies in val2014."""

CHEAP = {
    # The encoder as it is, but with random weights and at 32 pixels: 2x2 regions in place of 14x14.
    "task.encoder.weights": "null",
    "task.encoder.resolution": 32,
    "task.model.hidden_size": 8,
    "task.model.word_size": 8,
    "task.model.score.attention_size": 8,
    "task.max_words": 8,
    "data.batch_size": 3,
    "run.epochs": 1,
    "run.log_every": 1,
    "run.device": "cpu",
}


def karpathy() -> dict:
    """The content of dataset_coco.json, with all the fields that the real one has. Each image has five captions."""
    images = []
    for number, (folder, split, colour) in enumerate(IMAGES):
        cocoid, sentids = 391895 + number, list(range(5 * number, 5 * number + 5))
        said = [
            {
                "tokens": ["a", colour, "box", "is", "on", "the", "floor", *["indeed"] * more],
                "raw": f"A {colour} box is on the floor{' indeed' * more}. ",
                "imgid": number,
                "sentid": sentid,
            }
            for more, sentid in enumerate(sentids)
        ]
        images.append(
            {
                "filepath": folder,
                "sentids": sentids,
                "filename": f"COCO_{folder}_{cocoid:012}.jpg",
                "imgid": number,
                "split": split,
                "sentences": said,
                "cocoid": cocoid,
            }
        )
    return {"images": images, "dataset": "coco"}


@pytest.fixture(scope="module")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data sets with a `coco` in it: train2014, val2014 and dataset_coco.json."""
    root = tmp_path_factory.mktemp("data")
    record = karpathy()
    for image, (folder, _, colour) in zip(record["images"], IMAGES, strict=True):
        picture = Image.new("RGB", (64, 48), "white")
        ImageDraw.Draw(picture).rectangle((20, 10, 40, 30), fill=colour)
        (root / "coco" / folder).mkdir(parents=True, exist_ok=True)
        picture.save(root / "coco" / folder / image["filename"])
    (root / "coco/dataset_coco.json").write_text(json.dumps(record))
    return root


@pytest.mark.slow
@pytest.mark.parametrize("config", ["sat_soft_coco", "sat_hard_coco", "sat_soft_flickr8k_vit"])
def test_whoever_has_coco_sets_only_the_paths(config, miniature, tmp_path, monkeypatch):
    """Features, training, validation and test, with no key of `data` set but a smaller batch and where to cache."""
    monkeypatch.setenv("VISION_ATTN_DATA", str(miniature))
    run = tmp_path / "run"
    settings = CHEAP | {"data.cache": tmp_path / "cache", "run.folder": run}
    if "flickr8k" in config:
        settings |= {"data.images": "coco", "data.annotations": "coco/dataset_coco.json", "data.min_count": 1}
        settings |= {"run.warmup": 0}
    overrides = [f"--{key}={value}" for key, value in settings.items()]
    assert main(["train", f"configs/{config}.yaml", *overrides]) == 0

    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in lines if "loss" in line]
    assert [line["step"] for line in trained] == [1, 2]  # six images in batches of three: restval is trained on
    assert all(math.isfinite(line["loss"]) and "penalty" in line for line in trained)
    assert all(("gradient_variance" in line) == ("hard" in config) for line in trained)
    words = Vocabulary.load(run / "best/vocabulary.json").words
    colours = {"red", "green", "blue", "yellow", "purple", "orange"}
    assert set(words[3:]) == {"a", "box", "is", "on", "the", "floor", "indeed", *colours}

    assert main(["eval", str(run), "--device=cpu", "--show=1"]) == 0
    metrics = json.loads((run / "metrics_test.json").read_text())
    for name in ("BLEU-4", "BLEU-4-no-brevity", "METEOR", "ROUGE-L", "CIDEr", "nll"):
        assert math.isfinite(metrics[name]), name
    results = json.loads((run / "captions_test.json").read_text())
    assert [result["image_id"] for result in results] == [391903, 391904]
    assert all(isinstance(result["caption"], str) for result in results)
    assert len(list((run / "pictures_test").glob("*.png"))) == 1


def test_paths_may_be_given_one_by_one(miniature, tmp_path):
    """A folder and a file anywhere, on the command line."""
    paths = [f"--data.images={miniature / 'coco'}", f"--data.annotations={miniature / 'coco/dataset_coco.json'}"]
    data = build(read("configs/sat_soft_coco.yaml", paths))["data"]
    assert isinstance(data, Captions)
    assert {split: len(members) for split, members in data.photographs.items()} == {"train": 6, "val": 2, "test": 2}
    assert data.photographs["test"][0].name == "val2014/COCO_val2014_000000391903.jpg"


def test_soft_and_hard_differ_in_attention_alone():
    soft, hard = (read(f"configs/sat_{kind}_coco.yaml") for kind in ("soft", "hard"))
    for config in (soft, hard):
        config.run.folder = "the same"
        del config.task.arguments["model"].arguments["attention"]
        config.task.arguments["criteria"].pop("looks", None)
    assert soft == hard

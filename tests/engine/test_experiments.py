"""Every experiment takes its first steps, and the embedded one takes those it always took."""

import itertools
import json

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from vision_attn.commands import main

GOLDEN = [
    41.441, 38.22, 45.536, 37.24, 41.369, 35.257, 35.173, 39.11, 34.966, 37.477,
    33.922, 31.967, 35.288, 31.201, 37.132, 30.123, 30.874, 28.561, 27.882, 31.872,
]  # fmt: skip
"""Losses of the first 20 steps of sat_soft_scenes.yaml with batches of 8, seed 0."""


def losses(folder) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def test_scenes_begin_as_they_always_did(tmp_path):
    """Golden losses: a change of these needs a reason, and a new line in docs/log.md."""
    settings = {
        "data.batch_size": 8,
        "data.epoch_images": 160,
        "data.val_images": 8,
        "run.epochs": 1,
        "run.warmup": 10,
        "run.log_every": 1,
        "run.sanity_check": "false",
        "run.validate_every": 0,
        "run.folder": tmp_path / "run",
        "run.device": "cpu",
    }
    assert (
        main(["train", "configs/sat_soft_scenes.yaml", *(f"--{key}={value}" for key, value in settings.items())]) == 0
    )
    torch.testing.assert_close(torch.tensor(losses(tmp_path / "run")), torch.tensor(GOLDEN), rtol=2e-3, atol=0)


@pytest.mark.slow
def test_flickr8k_takes_its_first_steps(data_folder, tmp_path):
    """On a few of the real photographs with the real encoder: cache, two steps, validation, test, a caption. Then the
    last layers of the encoder, and the metric itself."""
    everything = json.loads((data_folder / "flickr8k/captions.json").read_text())
    few = {"train": 8, "val": 2, "test": 2}
    images = [[image for image in everything["images"] if image["split"] == split][:n] for split, n in few.items()]
    images = sum(images, [])
    ids = {image["id"] for image in images}
    annotations = [caption for caption in everything["annotations"] if caption["image_id"] in ids]
    (tmp_path / "captions.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    settings = {
        "data.annotations": tmp_path / "captions.json",
        "data.cache": tmp_path / "cache",
        "data.min_count": 1,
        "data.batch_size": 4,
        "task.max_words": 8,
        "run.folder": tmp_path / "run",
        "run.epochs": 1,
        "run.warmup": 1,
        "run.device": "cpu",
    }
    overrides = [f"--{key}={value}" for key, value in settings.items()]
    assert main(["train", "configs/sat_soft_flickr8k.yaml", *overrides]) == 0
    assert main(["eval", str(tmp_path / "run"), "--device=cpu", "--show=1"]) == 0
    metrics = json.loads((tmp_path / "run/metrics_test.json").read_text())
    assert {"BLEU-4", "BLEU-4-no-brevity", "METEOR", "ROUGE-L", "CIDEr", "nll"} <= metrics.keys()
    assert len(json.loads((tmp_path / "run/captions_test.json").read_text())) == 2
    assert Image.open(next((tmp_path / "run/pictures_test").glob("*.png"))).width > 200

    for stage, before in (("encoder", "run"), ("cider", "encoder")):
        settings |= {"run.folder": tmp_path / stage, "run.start_from": tmp_path / before, "data.flips": "false"}
        settings["task.encoder.trainable"] = "features.13"
        overrides = [f"--{key}={value}" for key, value in settings.items()]
        assert main(["train", f"configs/sat_soft_flickr8k_{stage}.yaml", *overrides]) == 0
    assert len([*(tmp_path / "cache").glob("mobilenet*")]) == 2
    weights = [load_file(tmp_path / folder / "last/model.safetensors") for folder in ("run", "encoder", "cider")]
    for one, other in itertools.pairwise(weights):
        changed = {name.split(".")[3] for name in one if "encoder.body" in name and not one[name].equal(other[name])}
        assert changed == {"14", "15", "16", "17"}

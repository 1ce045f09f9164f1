"""Verbs of the command line on a tiny captioner and a few photographs, to be killed or starved of disk by tests."""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vision_attn.commands.caption
import vision_attn.commands.eval
import vision_attn.commands.prepare
import vision_attn.commands.train
import vision_attn.configuration.config
import vision_attn.data.photographs.captions
import vision_attn.encoders.backbone
import vision_attn.models.show_attend_tell
import vision_attn.tasks.caption  # noqa: F401 (all of these: what the verbs import, once for all forks)
from vision_attn.commands import main
from vision_attn.data.photographs.annotation_vectors import features
from vision_attn.metrics.coco import captions
from vision_attn.metrics.coco.isolated import JobResult

SPLITS = {"train": 10, "val": 3, "test": 3}
CONFIG = """
task:
  class_path: vision_attn.tasks.caption.Captioning
  init_args:
    encoder:
      class_path: vision_attn.encoders.backbone.Backbone
      init_args: {{name: squeezenet1_1, node: features.2, resolution: 32}}
    model:
      class_path: vision_attn.models.show_attend_tell.ShowAttendTell
      init_args:
        hidden_size: 8
        word_size: 8
        score: {{class_path: vision_attn.attention.scores.Additive, init_args: {{attention_size: 8}}}}
    max_words: 6
data:
  class_path: vision_attn.data.photographs.captions.Captions
  init_args: {{images: {images}, annotations: {annotations}, min_count: 1, batch_size: 4, cache: {cache}}}
optimizer: {{class_path: torch.optim.AdamW, init_args: {{lr: 0.01}}}}
run: {{folder: {folder}, epochs: 2, metric: nll, mode: min, device: cpu, save_every: 0, show: 1, log_every: 1}}
"""


def write_photographs(folder: Path) -> tuple[Path, Path]:
    """A folder of noisy JPEGs, and an annotation file with two captions for each."""
    images = folder / "photographs"
    images.mkdir(parents=True)
    draws = np.random.default_rng(0)
    records = []
    for number, split in enumerate(name for name, count in SPLITS.items() for _ in range(count)):
        name = f"{number:02}.jpg"
        Image.fromarray(draws.integers(0, 256, (40, 34, 3), dtype=np.uint8)).save(images / name)
        spoken = [{"raw": caption} for caption in (f"a dog number {number} runs", f"the cat {number % 3} sits")]
        records.append({"filename": name, "split": split, "sentences": spoken})
    (folder / "captions.json").write_text(json.dumps({"images": records}))
    return images, folder / "captions.json"


def write_config(folder: Path, *, work: Path) -> Path:
    """A config whose run folder and cache of features lie in `work`; its photographs lie beside it."""
    path = folder / f"{work.name}.yaml"
    places = {"images": folder / "photographs", "annotations": folder / "captions.json"}
    path.write_text(CONFIG.format(**places, cache=work / "cache", folder=work / "run"))
    return path


def run_verb(folder: Path, *, argv: list[str], java: bool = False) -> None:
    """`main(argv)` with shards of four images, temporary files below `folder`, and Java for METEOR or not at all."""
    torch.set_num_threads(1)
    features.SHARD = 4
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(folder / "tmp")
    captions.FAMILIES = {job: captions.FAMILIES[job] for job in (["meteor"] if java else ["bleu", "cider"])}
    if not java:
        captions.run = without_java
    if code := main(argv):
        sys.exit(code)


def without_java(jobs: list[str], folder: Path, *, time_limit: float) -> dict[str, JobResult]:
    """Tokens that are words, and metrics that follow from them; files are written as the real jobs do."""
    answers = {}
    for job in jobs:
        (folder / f"{job}.log").write_text("")
        if job == "tokenise":
            spoken = json.loads((folder / "captions.json").read_text())
            answers[job] = JobResult([caption.lower() for caption in spoken])
        else:
            tokens = json.loads((folder / "tokens.json").read_text())
            shared = sum(len(set(one.split()) & set(those[0].split()))
                         for one, those in zip(tokens["candidates"], tokens["references"], strict=True))  # fmt: skip
            answers[job] = JobResult(({name: shared / 100 for name in captions.FAMILIES[job]}, {}, []))
        (folder / f"{job}.json").write_text(json.dumps([answers[job].value, None]))
    return answers

"""The smallest part that fulfils each contract, taken through training, decoding, evaluation and pictures.

Each class here has what its contract in `vision_attn/contracts/` asks for and nothing more; CONTRIBUTING.md shows the
same ones.
"""

import json
from functools import partial
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
import yaml
from torch import nn
from torch.nn import functional as F

from tests.fake_mnist import write_mnist
from vision_attn.attention.scores import Score
from vision_attn.attention.soft import Attention
from vision_attn.attention.steered import Steered, Steering
from vision_attn.commands import main
from vision_attn.contracts import (
    Answerer,
    Answers,
    AttentionMap,
    Caption,
    Captioner,
    Classifier,
    ClassifierOutput,
    Criterion,
    Encoder,
    Evaluator,
)
from vision_attn.decode import beam_search, greedy, sample
from vision_attn.models.recurrent import RecurrentCaptioner
from vision_attn.tasks.answer import Answering
from vision_attn.tasks.caption import Captioning
from vision_attn.tasks.classify import Classification
from vision_attn.tasks.subjects import CaptionSubject, GlimpseSubject
from vision_attn.tasks.transcribe import Transcription

SIZES = {
    "data.batch_size": 4, "data.epoch_images": 16, "data.val_images": 6, "data.test_images": 6, "run.epochs": 2,
    "run.warmup": 0, "run.device": "cpu", "run.log_every": 1, "run.metric": "nll", "run.mode": "min", "run.show": 2,
}  # fmt: skip


class SmallestCaptioner(Captioner):
    """Each word depends on the image's mean annotation vector and on the word before."""

    def __init__(self, num_words: int, region_size: int):
        super().__init__()
        self.words = nn.Embedding(num_words, num_words)
        self.image = nn.Linear(region_size, num_words)

    def start(self, regions, rows):
        memory = self.image(regions.mean(dim=1))
        return memory, memory.new_zeros(regions.shape[0], rows)

    def step(self, word, state, memory):
        return self.words(word) + memory[:, None], state, None

    def forward(self, regions, words):
        memory, _ = self.start(regions, words.shape[1])
        logits = self.words(F.pad(words, (1, -1))) + memory[:, None, None]
        log_prob = logits.log_softmax(dim=-1).gather(-1, words[..., None]).squeeze(-1)
        return Caption(log_prob * (words != 0))


class SmallestSteerable(Captioner):
    """Each word depends on the mean of the regions under a map, which depends on the word before."""

    steerable = True

    def __init__(self, num_words: int, region_size: int):
        super().__init__()
        self.query = nn.Embedding(num_words, region_size)
        self.output = nn.Linear(region_size, num_words)

    def start(self, regions, rows):
        return (regions, None), regions.new_zeros(regions.shape[0], rows)

    def steer(self, memory, forced):
        return memory[0], forced

    def step(self, word, state, memory):
        regions, forced = memory
        alpha = (self.query(word) @ regions.mT).softmax(dim=-1)
        if forced is not None:
            alpha = forced.mixed(alpha[:, None])[:, 0]  # of its one head
        return self.output(alpha @ regions), state, AttentionMap(alpha)

    def forward(self, regions, words):
        alpha = (self.query(F.pad(words, (1, -1))) @ regions[:, None].mT).softmax(dim=-1)
        logits = self.output(alpha @ regions[:, None])
        log_prob = logits.log_softmax(dim=-1).gather(-1, words[..., None]).squeeze(-1)
        return Caption(log_prob * (words != 0), alpha * (words != 0)[..., None])


class SmallestEncoder(Encoder):
    """The mean colour of each quarter of an image."""

    resolution, region_size, grid = 56, 3, (2, 2)

    def identity(self):
        return {"backbone": "smallest"}

    def forward(self, images):
        return F.adaptive_avg_pool2d(images / 255, 2).flatten(2).mT


class SmallestCriterion(Criterion):
    """The likelihood of the first word alone."""

    def __init__(self, model: Captioner):
        super().__init__()

    def forward(self, caption, words):
        loss = -caption.log_prob[..., 0].mean()
        return {"loss": loss, "first_word": loss.detach()}


class SmallestEvaluator(Evaluator):
    """The mean number of words."""

    def __init__(self):
        self.numbers = []

    def update(self, batch, results):
        self.numbers += [len(caption.words) for caption in results.described]

    def compute(self):
        return {"mean_words": sum(self.numbers) / len(self.numbers)}

    def write(self, folder):
        (folder / "lengths.json").write_text(json.dumps(self.numbers))


class SmallestClassifier(Classifier):
    """A linear map of all pixels."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int):
        super().__init__()
        self.pixels = torch.Size(image_shape).numel()
        self.linear = nn.Linear(self.pixels, num_classes)

    def forward(self, images, rows=1, mode="sample"):
        return ClassifierOutput(self.linear(images.flatten(1)).log_softmax(dim=-1)[:, None, None], None)


class SmallestAnswerer(Answerer):
    """The first fact is the only one that it reads, whatever the question."""

    def __init__(self, num_words: int, fact_size: int):
        super().__init__()
        self.words = nn.Embedding(num_words, num_words)

    def forward(self, facts, words):
        logits = self.words(facts[:, 0]).mean(dim=1)
        alpha = F.one_hot(torch.zeros_like(words[:, :1]), facts.shape[1])
        return Answers(logits.log_softmax(dim=-1), alpha.float())


def own(name: str, **options) -> dict:
    return {"class_path": f"tests.test_contracts.{name}"} | ({"init_args": options} if options else {})


def trained(folder: Path, data: str, **task) -> Path:
    """Train by a config of these parts for two small epochs; returns the run folder."""
    kind = "caption.Captioning" if data == "scenes.Scenes" else "classify.Classification"
    config = {
        "task": {"class_path": f"vision_attn.tasks.{kind}", "init_args": task},
        "data": f"vision_attn.data.{data}",
        "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.01}},
    }
    (folder / "smallest.yaml").write_text(yaml.safe_dump(config))
    settings = {**SIZES, "run.folder": folder / "run"}
    if kind.startswith("classify"):
        settings = {name: value for name, value in settings.items() if not name.startswith("data.")}
        settings |= {"data.folder": write_mnist(folder / "mnist"), "data.batch_size": 100, "run.metric": "error"}
    arguments = [f"--{name}={value}" for name, value in settings.items()]
    assert main(["train", str(folder / "smallest.yaml"), *arguments]) == 0
    return folder / "run"


def trust(*argv: object) -> list[str]:
    return [*map(str, argv), "--trust=tests", "--device=cpu"]


CONVNET = {"class_path": "vision_attn.encoders.convnet.ConvNet", "init_args": {"region_size": 8, "width": 16}}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of the smallest captioner, criterion and evaluator on drawn scenes."""
    criteria = {"likelihood": "vision_attn.criteria.likelihood.Likelihood", "first": own("SmallestCriterion")}
    return trained(
        tmp_path_factory.mktemp("smallest"), "scenes.Scenes", encoder=CONVNET, model=own("SmallestCaptioner"),
        criteria=criteria, evaluators={"length": own("SmallestEvaluator")},
    )  # fmt: skip


def test_the_smallest_captioner_trains_and_is_pictured(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 8 and steps[-1]["loss"] < steps[0]["loss"]
    assert all("first_word" in step and "entropy" not in step for step in steps)
    assert all("val/mean_words" in line and "val/pointing" not in line for line in lines if "val/nll" in line)
    pictures = {path.suffix for path in (run / "pictures").iterdir()}
    assert pictures == {".html", ".png"}


def test_the_smallest_captioner_is_evaluated_with_pictures(run: Path, tmp_path: Path) -> None:
    assert main(trust("eval", run, "--out", tmp_path, "--show=2")) == 0
    metrics = json.loads((tmp_path / "metrics_test.json").read_text())
    assert {"BLEU-4", "METEOR", "CIDEr", "nll", "mean_words"} <= metrics.keys() and "entropy" not in metrics
    assert len(json.loads((tmp_path / "lengths_test.json").read_text())) == 6
    page = (tmp_path / "pictures_test/index.html").read_text()
    first = json.loads((tmp_path / "captions_test.json").read_text())[0]["caption"].split()[0]
    assert (
        first in page
        and "no maps" in page
        and "Point at a word" not in page
        and len(list((tmp_path / "pictures_test").glob("*.png"))) == 2
    )


def test_the_smallest_captioner_captions_photographs(run: Path, tmp_path: Path, capsys) -> None:
    from PIL import Image

    Image.new("RGB", (80, 60), "red").save(tmp_path / "red.png")
    assert main(trust("caption", run, tmp_path / "red.png", "--out", tmp_path / "drawn")) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'red.png'}\t")
    assert (tmp_path / "drawn/index.html").is_file() and len(list((tmp_path / "drawn").glob("*.png"))) == 1


@pytest.mark.parametrize("decode", [greedy, sample, beam_search])
def test_the_smallest_captioner_decodes(decode) -> None:
    torch.manual_seed(0)
    model, regions = SmallestCaptioner(7, 3), torch.randn(4, 5, 3)
    decoded = decode(model, regions, max_words=6)
    assert decoded.alpha is None and decoded.region is None and decoded.heads is None
    torch.testing.assert_close(decoded.log_prob, model(regions, decoded.words).log_prob)


@pytest.mark.parametrize("decode", [greedy, partial(sample, rows=2), partial(beam_search, beams=3)])
def test_the_smallest_steerable_captioner_looks_where_it_is_told(decode) -> None:
    torch.manual_seed(0)
    model, regions = SmallestSteerable(7, 3), 3 * torch.randn(4, 5, 3)
    own, forced = decode(model, regions, max_words=6), F.one_hot(torch.arange(4) % 5, 5).float()
    steering = Steering(
        torch.stack([forced * 0, forced], dim=1)[:, :, None], torch.tensor([0.0, 1]).expand(4, -1)[..., None]
    )
    found = decode(Steered(model, steering), regions, max_words=6)
    real = found.words != 0
    at_second = found.alpha[:, :, 1][real[:, :, 1]]
    assert len(at_second) and torch.equal(at_second, forced[:, None].expand_as(found.alpha[:, :, 1])[real[:, :, 1]])
    free = model(regions, found.words)
    torch.testing.assert_close(found.alpha[:, :, [0, 2]], free.alpha[:, :, [0, 2]])  # of the words that it then said
    torch.testing.assert_close(found.log_prob, Steered(model, steering)(regions, found.words).log_prob)
    assert not torch.equal(found.words, own.words) or not torch.equal(found.log_prob, own.log_prob)


def test_the_smallest_encoder_serves_a_captioner(tmp_path: Path) -> None:
    model = {
        "class_path": "vision_attn.models.show_attend_tell.ShowAttendTell",
        "init_args": {"hidden_size": 8, "word_size": 8},
    }
    run = trained(tmp_path, "scenes.Scenes", encoder=own("SmallestEncoder"), model=model)
    assert main(trust("eval", run, "--out", tmp_path, "--show=1")) == 0
    assert "pointing" in json.loads((tmp_path / "metrics_test.json").read_text())


def test_the_smallest_classifier_is_trained_and_judged(tmp_path: Path) -> None:
    run = trained(tmp_path, "mnist.MNIST", model=own("SmallestClassifier"))
    assert main(trust("eval", run, "--out", tmp_path, "--show=1")) == 0
    metrics = json.loads((tmp_path / "metrics_test.json").read_text())
    assert metrics["pixels"] == 784 and 0 <= metrics["error"] <= 100 and "error_sample" not in metrics


def test_the_smallest_answerer_is_trained_judged_and_pictured(tmp_path: Path) -> None:
    config = {
        "task": {"class_path": "vision_attn.tasks.answer.Answering", "init_args": {"model": own("SmallestAnswerer")}},
        "data": {"class_path": "vision_attn.data.stories.stories.Stories", "init_args": {"stories": 20}},
        "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.1}},
    }
    (tmp_path / "smallest.yaml").write_text(yaml.safe_dump(config))
    settings = [f"--run.folder={tmp_path / 'run'}", "--run.epochs=3", "--run.metric=error", "--run.mode=min"]
    assert main(["train", str(tmp_path / "smallest.yaml"), *settings, "--run.device=cpu", "--data.test_stories=2"]) == 0
    assert main(trust("eval", tmp_path / "run", "--out", tmp_path, "--show=2")) == 0
    metrics = json.loads((tmp_path / "metrics_test.json").read_text())
    assert metrics["images"] == 10 and metrics["hop_1_on_support"] == metrics["hops_on_support"] < 1
    assert (tmp_path / "pictures_test/index.html").read_text().count("<figure>") == 2


def test_a_captioner_that_samples_needs_a_criterion_for_it(tmp_path: Path, capsys) -> None:
    overrides = ["--task.model.attention=vision_attn.attention.hard.Hard", f"--run.folder={tmp_path}"]
    assert main(["train", "configs/sat_soft_scenes.yaml", *overrides]) == 1
    assert (
        "--task.criteria.looks=vision_attn.criteria.reinforce_attention.ReinforceAttention" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("task", "part", "contract"),
    [
        (Captioning, "model", Captioner),
        (Captioning, "encoder", Encoder),
        (Transcription, "model", Captioner),
        (Classification, "model", Classifier),
        (Answering, "model", Answerer),
        (CaptionSubject, "task", Captioning),
        (GlimpseSubject, "task", Classification),
        (RecurrentCaptioner, "score", Score),
        (RecurrentCaptioner, "attention", Attention),
    ],
)
def test_an_attribute_that_holds_a_part_says_which_contract_it_fulfils(task: type, part: str, contract: type) -> None:
    """An editor follows `self.model(...)` from a task to the contract."""
    assert get_type_hints(task)[part] is contract

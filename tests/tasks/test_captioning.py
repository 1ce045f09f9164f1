"""The captioning task: its loss, its metrics, its pictures."""

import json
import math
from copy import deepcopy
from functools import partial
from inspect import signature
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from tests import references
from vision_attn.attention.hard import Hard, StraightThrough
from vision_attn.attention.reinforce import Learned, LeaveOneOut, MovingAverage
from vision_attn.attention.scores import Additive, Score
from vision_attn.attention.soft import Soft
from vision_attn.configuration.weights import load_weights, save_weights
from vision_attn.contracts import END, Criterion, Evaluator
from vision_attn.criteria.doubly_stochastic import DoublyStochastic
from vision_attn.criteria.likelihood import Likelihood
from vision_attn.criteria.reinforce_attention import ReinforceAttention
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.data.scenes.scenes import Scenes
from vision_attn.encoders.convnet import ConvNet
from vision_attn.engine.batches import few, on_device
from vision_attn.metrics.evaluators import measures
from vision_attn.metrics.region_deletion import RegionDeletion
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.system.errors import UserError
from vision_attn.tasks.caption import Captioning


def build(source, attention=Soft, penalty=1.0, looks=ReinforceAttention, **options):
    torch.manual_seed(0)
    criteria = {"likelihood": Likelihood, "penalty": partial(DoublyStochastic, weight=penalty), "looks": looks}
    score = partial(Additive, attention_size=8)
    sizes = {"hidden_size": 8, "word_size": 8, "dropout": 0.0}
    task = Captioning(
        source,
        encoder=ConvNet(region_size=16, width=16),
        model=lambda words, size: ShowAttendTell(words, size, score=score, attention=attention, **sizes),
        criteria=criteria,
        max_words=6,
        **options,
    )
    source.prepare(task)
    return task


@pytest.fixture(scope="module")
def source():
    return Scenes(batch_size=8, epoch_images=16, val_images=12, test_images=8)


@pytest.fixture(scope="module")
def batch(source):
    return next(iter(source.train(0, seed=0)))


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.5])
def test_loss_is_likelihood_plus_penalty(source, batch, penalty):
    task, batch = build(source, penalty=penalty), few(batch, 2)  # the reference counts one by one
    metrics = task(*batch)
    caption = task.model(task.encoder(batch.images), batch.words)
    captions = batch.words.shape[0] * batch.words.shape[1]
    expected = -caption.log_prob.sum() / captions
    for image, rows in zip(caption.alpha, batch.words, strict=True):
        for alpha, words in zip(image, rows, strict=True):
            expected = expected + penalty * references.doubly_stochastic(alpha[: (words != 0).sum()]) / captions
    torch.testing.assert_close(metrics["loss"], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(metrics["nll"], -caption.log_prob.sum().detach() / (batch.words != 0).sum())


def test_equal_parts_average_to_the_whole(source, batch):
    task = build(source)
    whole = task(batch.images, batch.words)["loss"]
    halves = [task(batch.images[part::2], batch.words[part::2])["loss"] for part in (0, 1)]
    torch.testing.assert_close((halves[0] + halves[1]) / 2, whole)


@pytest.mark.parametrize(
    "attention, baseline",
    [
        (Soft, MovingAverage),
        (StraightThrough, MovingAverage),
        (Hard, Learned),
        (partial(Hard, expectation_probability=0.0), Learned),
    ],
)
def test_everything_learns(source, batch, attention, baseline):
    """No parameter is cut off from the loss: encoder, score and baseline included."""
    task = build(source, attention, looks=partial(ReinforceAttention, baseline=baseline)).train()
    task(*batch)["loss"].backward()
    idle = [name for name, parameter in task.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert not idle


def test_evaluation(source, tmp_path, capsys):
    task = build(source, beams=2).eval()
    metrics = task.evaluate(source.split("val"), tmp_path)
    wanted = {"BLEU-4", "BLEU-4-no-brevity", "METEOR", "ROUGE-L", "CIDEr", "nll", "pointing", "pointing_uniform"}
    assert wanted <= metrics.keys()
    assert ("SPICE" in metrics) != ("SPICE" in capsys.readouterr().err)
    assert 0 <= metrics["pointing_uniform"] < 0.15
    results = json.loads((tmp_path / "captions.json").read_text())
    assert len(results) == 12 and {result["image_id"] for result in results} == set(range(12))

    log_prob = words = 0.0
    for batch in source.split("val"):
        log_prob += float(task(batch.images, batch.words)["nll"]) * int((batch.words != 0).sum())
        words += int((batch.words != 0).sum())
    assert metrics["nll"] == pytest.approx(log_prob / words, rel=1e-4)


def test_validation_computes_only_what_it_needs(source):
    metrics = build(source, validate_with=["BLEU-4"]).eval().evaluate(source.split("val"))
    assert "BLEU-4" in metrics and "METEOR" not in metrics


@pytest.mark.parametrize("attention", [Soft, Hard])
def test_predictions_of_other_processes_are_judged_alike(source, attention):
    """They are sent from process to process without the images."""
    task = build(source, attention).eval()
    sent = []
    for batch in source.split("val"):
        with torch.no_grad():
            prediction = task.predict(batch)
        assert prediction.batch.images is None and prediction.results.caption.alpha is not None
        for caption in prediction.results.described:  # not views of the maps of the whole batch
            assert caption.alpha.untyped_storage().nbytes() == 4 * caption.alpha.numel()
        sent.append(deepcopy(on_device(prediction, torch.device("cpu"))))
    assert task.judge(sent) == task.evaluate(source.split("val"))


def test_batches_move_with_all_that_is_in_them():
    class Inner(NamedTuple):
        tensor: torch.Tensor
        missing: None

    class Outer(NamedTuple):
        inner: Inner
        plain: str
        tensor: torch.Tensor

    one = torch.ones(1)
    moved = on_device(Outer(Inner(one, None), "text", one), torch.device("meta"))
    assert moved.inner.tensor.is_meta and moved.tensor.is_meta
    assert (type(moved), type(moved.inner), moved.plain, moved.inner.missing) == (Outer, Inner, "text", None)


def test_an_empty_split_is_refused(source):
    with pytest.raises(UserError, match="split is empty"):
        build(source).evaluate([])


def test_described_words_maps_and_text_belong_together(source, batch):
    task = build(source).eval()
    for described in task.describe(batch.images):
        assert len(described.words) == len(described.log_prob) == len(described.alpha)
        assert described.alpha.shape[1:] == (14, 14)
        torch.testing.assert_close(described.alpha.sum((1, 2)), torch.ones(len(described.words)))
        assert (
            described.text == task.vocabulary.decode(task.vocabulary.encode(described.text))
            or "<unk>" in described.text
        )


def test_pictures(source, batch, tmp_path):
    paths = build(source).eval().show(type(batch)(*(None if part is None else part[:2] for part in batch)), tmp_path)
    assert [path.suffix for path in paths] == [".html", ".png", ".png"]
    assert all(path.stat().st_size > 1000 for path in paths)
    assert Image.open(paths[1]).width > 400


def test_hard_attention_adds_what_reinforce_asks_for(source, batch):
    """Against the parts by hand, on the same draws: eq. 12 for every run of every caption."""
    task = build(
        source, Hard, penalty=0.0, looks=partial(ReinforceAttention, baseline=partial(LeaveOneOut, num_runs=2))
    ).train()
    torch.manual_seed(7)
    metrics = task(*batch)
    torch.manual_seed(7)
    caption = task.model(task.encoder(batch.images), batch.words, 2)
    gained = caption.log_prob.detach().flip(-1).cumsum(-1).flip(-1)  # to go
    other = gained.unflatten(1, (-1, 2)).flip(2).flatten(1, 2)
    score = (gained - other) * caption.choice.log_prob + 0.002 * caption.choice.entropy
    torch.testing.assert_close(metrics["loss"], -(caption.log_prob + score).sum(-1).mean())
    assert caption.choice.sampled.any() and metrics["gradient_variance"] > 0
    assert 0 < metrics["entropy"] < torch.tensor(196.0).log() and 1 / 196 < metrics["at_mode"] < 1


def test_hard_attention_is_held_against_boxes_however_it_looks(source, tmp_path):
    task = build(source, Hard, beams=2).eval()
    metrics = task.evaluate(source.split("val"), tmp_path)
    assert metrics["pointing_expectation"] == metrics["pointing"] and metrics["mass_expectation"] == metrics["mass"]
    assert metrics["pointing_argmax"] == metrics["mass_argmax"] and metrics["pointing_sample"] == metrics["mass_sample"]
    assert metrics["gradient_variance"] > 0
    assert "pointing_argmax" not in build(source).eval().evaluate(source.split("val"), tmp_path)


def test_hard_attention_is_pictured_with_what_it_saw(source, batch, tmp_path):
    task = build(source, Hard).eval()
    two = type(batch)(*(None if part is None else part[:2] for part in batch))
    paths = task.show(two, tmp_path / "hard")
    assert task.model.attention.at_test == "expectation"
    soft = build(source).eval().show(two, tmp_path / "soft")
    area = [Image.open(kind[1]).width * Image.open(kind[1]).height for kind in (paths, soft)]
    assert area[0] > 1.3 * area[1]  # a square stands above each map


def test_hard_attention_starts_from_soft_weights_and_restarts_its_soft_start(source, tmp_path):
    """The buffers of hard attention and its baseline's weights are its own; the model's weights are taken over."""
    soft = build(source)
    save_weights(soft, tmp_path / "model.safetensors")
    hard = build(source, partial(Hard, soft_start=3), looks=partial(ReinforceAttention, baseline=Learned))
    with torch.no_grad():
        hard.model.output.bias.fill_(7)
    hard.model.attention.batches.fill_(9)
    load_weights(hard, tmp_path, another=True)
    hard.restart({})
    assert torch.equal(hard.model.output.bias, soft.model.output.bias) and hard.model.attention.batches == 0
    with pytest.raises(UserError, match="missing: .*batches"):
        load_weights(hard, tmp_path)
    save_weights(hard, tmp_path / "model.safetensors")
    load_weights(build(source), tmp_path, another=True)  # and back


class Measured(Evaluator):
    """Gives what it is constructed with; writes nothing if that is `broken`."""

    def __init__(self, **found):
        self.found = found

    def update(self, batch, results):
        pass

    def compute(self):
        return self.found

    def write(self, folder):
        if self.found == {"broken": 1}:
            raise KeyError("a file")


def test_metrics_of_ones_own_are_numbers_with_names_of_their_own(source, tmp_path, capsys):
    def evaluated(folder=None, **found):
        task = build(source, evaluators={"mine": partial(Measured, **found)})
        return task.evaluate([next(iter(source.split("val")))], folder)

    assert evaluated(mine=torch.tensor(2.0), other=np.float32(0.5)).items() >= {"mine": 2.0, "other": 0.5}.items()
    for found, said in (
        ({"nll": 1.0}, "task.evaluators.mine: Measured measures nll, which is measured already: rename it"),
        ({"mine": "good"}, "Measured measures mine, but 'good' is no number"),
        ({"mine": torch.zeros(2)}, "Measured measures mine, but .* is no number"),
    ):
        with pytest.raises(UserError, match=said):
            evaluated(**found)
    silent = Measured()
    silent.compute = lambda: None
    with pytest.raises(UserError, match="Measured.compute must return a dict of numbers by name, not None"):
        measures(silent, known=())
    whole = evaluated(tmp_path, broken=1)  # one that fails when it writes does not cost the others
    assert {"BLEU-4", "CIDEr", "nll"} <= whole.keys() and math.isnan(whole["Measured"])
    assert "Measured failed (KeyError: 'a file')" in capsys.readouterr().err


class Term(Criterion):
    def __init__(self, model, found=None):
        super().__init__()
        self.found = found

    def forward(self, caption, words):
        return self.found


@pytest.mark.parametrize(
    "found, said",
    [
        ({"loss": torch.zeros(()), "entropy": torch.zeros(())}, "entropy is logged twice"),
        ({"loss": torch.zeros(()), "nll": torch.zeros(())}, "nll is logged twice"),
        ({"los": torch.zeros(())}, "Term must return a dict with 'loss', or an empty one, but returns a dict without"),
        (torch.zeros(()), "Term must return a dict with 'loss', or an empty one, but returns .*Tensor"),
        ({"loss": torch.zeros(3)}, r"Term returns loss, which must be a tensor of one number, but is \(3,\)"),
        (
            {"loss": torch.zeros(()), "mine": 1.0},
            "Term returns mine, which must be a tensor of one number, but is float",
        ),
    ],
)
def test_a_criterion_of_ones_own_has_a_loss_and_names_of_its_own(source, batch, found, said):
    task = build(source)
    term = Term(task.model)
    term.found = found
    term.forward = lambda *_: found  # as without checks of types
    task.criteria.given = [*task.criteria.given, term]
    with pytest.raises(UserError, match=said):
        task(*batch)


def test_a_score_of_another_shape_is_named(source, batch):
    class Wrong(Score):
        def __init__(self, region_size, query_size):
            super().__init__()

        def project(self, regions):
            return regions

        def forward(self, query, keys, carry=None):
            return query[:, :, None], None

    task = build(source)
    task.model.score = Wrong(16, 8)
    with pytest.raises(UserError, match=r"scores must be a tensor \(8, R, 196\) of float, but is .*, of Wrong"):
        task(*batch)


def test_strategies_and_settings_of_decoding_are_checked(source, batch):
    task = build(source).eval()
    with pytest.raises(UserError, match="the strategies are best, diverse, sampled, not 'sample'"):
        task.decoding.decode(task.model, task.regions(batch.images), strategy="sample")
    with pytest.raises(UserError, match="beam is no setting of decoding; did you mean beams"):
        task.decoding.changed(beam=1)
    for settings in ({"beams": 0}, {"max_words": 0}):
        with pytest.raises(UserError, match="is 0, but must be from 1 to 1,000"):
            task.decoding.changed(**settings)
    with pytest.raises(UserError, match="captions is -1, but must be from 1"):
        task.describe(batch.images, captions=-1)
    short = task.decoding.changed(max_words=2, beams=1)
    assert max(len(one.words) for one in task.describe(batch.images, decoding=short)) <= 2
    assert (task.decoding.max_words, task.decoding.beams) == (6, 3)


def test_deletion_is_measured_in_a_full_evaluation_where_it_is_asked_for(source):
    task = build(source, evaluators={"deletion": partial(RegionDeletion, draws=2)}).eval()
    batches = list(source.split("val"))
    assert "deletion" not in task.judge(task.predict(batch) for batch in batches)
    with torch.no_grad():
        task.model.output.bias[END] -= 20  # captions of content words
    whole = task.judge(task.predict(batch, full=True) for batch in batches)
    assert whole["deletion"] != 0 and whole["deletion_random"] != 0


def test_the_loss_takes_the_fields_of_a_batch_in_their_order() -> None:
    """A step calls the task with the fields of a batch, one after the other."""
    _, *names = signature(Captioning.forward).parameters
    assert tuple(names) == CaptionBatch._fields

"""Bootstrap intervals of caption metrics: coverage, and that sums give the metrics of the corpus."""

import numpy as np
import pytest

from tests.scoring import quickly
from vision_attn.metrics import METRICS, caption_metrics
from vision_attn.metrics.bootstrap import RESAMPLES, bleu, interval, meteor, resampled, resampled_sums

REFERENCES = {
    1: ["the dog is running on green grass", "a dog runs on the grass"],
    2: ["two cats are sleeping on a sofa"],
    3: ["a man rides horses"],
    4: ["a red kite flies over the hill"],
}
CAPTIONS = {1: "a dog runs on the grass", 2: "two cats sleep", 3: "the man is riding a horse quickly", 4: ""}


@pytest.mark.parametrize("draw", ["normal", "exponential"])
def test_the_interval_covers_the_mean_in_95_of_100_sets(draw):
    images, sets = 300, 400
    random = np.random.default_rng(1)
    values = random.normal(0.0, 1.0, (images, sets)) if draw == "normal" else random.exponential(1.0, (images, sets))
    low, high = interval(resampled_sums(values, seed=2) / images)
    mean = 0.0 if draw == "normal" else 1.0
    assert 0.93 <= ((low <= mean) & (mean <= high)).mean() <= 0.97


@pytest.fixture(scope="module")
def reports():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vision_attn.metrics.coco.captions.run", quickly)
        other = CAPTIONS | {2: "two cats are sleeping", 4: "a kite"}
        names = [name for name in METRICS if name != "SPICE"]
        return [caption_metrics(captions, REFERENCES, names=names) for captions in (CAPTIONS, other)]


def test_sums_over_all_images_give_the_metrics_of_the_corpus(reports):
    for report in reports:
        assert not report.failed
        sums = {job: np.array(counts, dtype=float).sum(axis=0, keepdims=True) for job, counts in report.counts.items()}
        for name, value in (bleu(sums["bleu"]) | meteor(sums["meteor"])).items():
            assert value == pytest.approx([report.metrics[name]], abs=1e-8), name
        alone = bleu(np.array(report.counts["bleu"], float)) | meteor(np.array(report.counts["meteor"], float))
        for name in ("BLEU-1", "BLEU-4", "METEOR"):
            assert alone[name] == pytest.approx([one[name] for one in report.each.values()], abs=1e-8)


def test_metrics_of_resampled_images(reports):
    first, second = map(resampled, reports)
    assert list(first) == list(reports[0].metrics)
    assert {values.shape for values in first.values()} == {(RESAMPLES,)}
    for name, values in first.items():
        low, high = interval(values)
        assert low <= reports[0].metrics[name] <= high, name
    # All images of the second report are at least as good: so is every set of them, if both draw the same sets.
    assert (second["ROUGE-L"] >= first["ROUGE-L"]).all() and second["ROUGE-L"].mean() > first["ROUGE-L"].mean()
    assert all(np.array_equal(values, first[name]) for name, values in resampled(reports[0]).items())
    assert not np.array_equal(resampled(reports[0], seed=1)["CIDEr"], first["CIDEr"])


def test_a_single_image_has_no_interval(monkeypatch):
    monkeypatch.setattr("vision_attn.metrics.coco.captions.run", quickly)
    assert resampled(caption_metrics({1: "a dog"}, {1: ["a dog"]}, names=["BLEU-1"])) == {}

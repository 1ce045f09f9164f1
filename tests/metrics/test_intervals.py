"""Intervals and tests of few images: what they cover and how often they are wrong, in simulations; and that sums of
captions over images give the metrics of the corpus."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.scoring import in_this_process
from vision_attn.contracts import DecodedCaption, Results
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.metrics import METRICS, caption_metrics
from vision_attn.metrics.coco.sums import bleu, estimates, meteor
from vision_attn.metrics.evaluators import CaptionScores
from vision_attn.metrics.intervals import FEWEST, Jackknife, holm, p_behind, ratio

REFERENCES = {
    1: ["the dog is running on green grass", "a dog runs on the grass"],
    2: ["two cats are sleeping on a sofa"],
    3: ["a man rides horses"],
    4: ["a red kite flies over the hill"],
    5: ["a girl eats an apple", "the girl is eating"],
    6: ["three boats lie in the harbour"],
}
CAPTIONS = {
    1: "a dog runs on the grass", 2: "two cats sleep", 3: "the man is riding a horse quickly", 4: "",
    5: "a girl eats", 6: "boats in the harbour",
}  # fmt: skip
SETS = 40
"""Of images, whose numbers of answers differ; many experiments have each."""


def estimates_of_gains(images: int, columns: int, *, kind: str, alike: bool, seed: int = 0) -> list[Jackknife]:
    """Of each set of images with 1 to 12 answers, the estimates of gains whose mean is 0, in as many experiments as
    there are columns.

    alike: whether all answers to an image gain the same; otherwise they are independent.
    """
    random = np.random.default_rng(seed)

    def gains(number: int) -> np.ndarray:
        size = number, columns
        return random.normal(size=size) if kind == "normal" else random.exponential(size=size) - 1

    found = []
    for _ in range(SETS):
        counts = random.integers(1, 13, images)
        found.append(
            ratio(counts[:, None] * gains(images), counts)
            if alike
            else ratio(np.add.reduceat(gains(counts.sum()), np.cumsum(counts) - counts), counts)
        )
    return found


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("kind", ["normal", "exponential"])
@pytest.mark.parametrize("images", [5, 10, 20, 50])
def test_intervals_cover_and_methods_without_gain_are_seldom_called_better(images, kind, alike) -> None:
    """95% of normal gains, within 2; of exponential ones, whose skew no symmetric interval follows, at least 88%.

    Any of ten methods is falsely called better in at most 5% of 8,000 experiments (4,000 of 20 images and more), within
    three standard errors. A percentile bootstrap covers 84% of 5 images; with n - 1 degrees 6% are falsely so called.
    """
    experiments = 200 if images < 20 else 100
    inside, wrong = [], []
    for one in estimates_of_gains(images, 10 * experiments, kind=kind, alike=alike):
        low, high = one.interval()
        inside.append(((low <= 0) & (high >= 0)).mean())
        wrong.append((holm(one.p_greater().reshape(-1, 10)).min(axis=1) <= 0.05).mean())
    low, high = (0.93, 0.97) if kind == "normal" else (0.88, 0.97)
    assert low <= np.mean(inside) <= high
    assert np.mean(wrong) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / (SETS * experiments))


def test_a_method_with_a_gain_is_found() -> None:
    """One of ten gains two standard deviations; on 20 images it is called better, and the others behind it."""
    better, behind = [], []
    for one in estimates_of_gains(20, 10 * 10, kind="normal", alike=True, seed=2):
        value = one.value.reshape(10, 10) + 2 * (np.arange(10) == 3)
        left_out = one.left_out.reshape(20, 10, 10) + 2 * (np.arange(10) == 3)
        for index in range(10):
            alone = Jackknife(value[index], left_out[:, index], one.freedom)
            better.append(holm(alone.p_greater())[3] <= 0.025)
            behind.append(np.delete(p_behind(alone, 3), 3) <= 0.05)
    assert np.mean(better) > 0.95 and np.mean(behind) > 0.8


@pytest.mark.parametrize("images", [5, 20])
def test_equal_methods_are_seldom_called_behind_the_best_of_them(images: int) -> None:
    """The best is chosen by the same images. Corrected for the nine differences alone, 20 to 25% are called so."""
    wrong, uncorrected = [], []
    for one in estimates_of_gains(images, 10 * 15, kind="normal", alike=False, seed=3):
        for start in range(0, 10 * 15, 10):
            some = one[np.arange(start, start + 10)]
            best = int(some.value.argmax())
            wrong.append(p_behind(some, best).min() <= 0.05)
            uncorrected.append(holm(np.delete((some[[best]] - some).p_greater(), best)).min() <= 0.05)
    assert np.mean(wrong) <= 0.05 < 0.1 < np.mean(uncorrected)


def test_the_jackknife_is_that_of_its_definition() -> None:
    """By a loop over images; with equal numbers of answers, it is Student's interval of the images' means."""
    random = np.random.default_rng(0)
    counts, sums = np.array([3, 1, 12, 5, 2, 7]), random.normal(size=(6, 2))
    found = ratio(sums, counts)
    others = [[n for n in range(6) if n != image] for image in range(6)]
    left_out = np.array([sums[kept].sum(axis=0) / counts[kept].sum() for kept in others])
    np.testing.assert_allclose(found.value, sums.sum(axis=0) / 30)
    np.testing.assert_allclose(found.left_out, left_out)
    np.testing.assert_allclose(found.error**2, 5 / 6 * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0))
    equal = ratio(4 * sums, np.full(6, 4))
    assert equal.freedom == pytest.approx(5)
    half = 2.570581836 * sums.std(axis=0, ddof=1) / np.sqrt(6)  # t of 5 degrees, 97.5%
    np.testing.assert_allclose(equal.interval(), [sums.mean(axis=0) - half, sums.mean(axis=0) + half])


def test_degrees_of_freedom_are_those_of_the_quadratic_form() -> None:
    """tr(A)^2 / tr(A^2) by matrices. One image with nearly all answers leaves hardly any."""
    counts = np.array([3.0, 1, 12, 5, 2])
    residuals = np.eye(5) - np.outer(counts, np.ones(5)) / 23
    form = residuals.T @ np.diag(1 / (23 - counts) ** 2) @ residuals @ np.diag(counts)
    expected = np.trace(form) ** 2 / np.trace(form @ form)
    assert ratio(np.ones(5), counts).freedom == pytest.approx(expected) and 1 < expected < 4
    assert ratio(np.ones(5), np.array([1000, 1, 1, 1, 1])).freedom == pytest.approx(1, abs=0.01)


def test_holm_rejects_step_by_step() -> None:
    """As in a table by hand: the smallest p of four times 4, the next times 3, and none smaller than one before."""
    assert holm(np.array([0.03, 0.01, 0.2, 0.04])) == pytest.approx([0.09, 0.04, 0.2, 0.09])
    assert holm(np.array([0.4, 0.5])) == pytest.approx([0.8, 0.8]) and len(holm(np.empty(0))) == 0


def test_fewer_than_five_images_have_neither_intervals_nor_tests() -> None:
    for images in range(1, FEWEST):
        few = ratio(np.ones((images, 2)), np.ones(images))
        assert few.interval() is None and few.p_greater() is None and p_behind(few, 0) is None
        assert few.value.tolist() == [1, 1]
    enough = ratio(np.array([[1.0, 0, -1]] * 5), np.ones(5))  # no image differs
    assert enough.p_greater().tolist() == [0, 1, 1] and enough.interval(low=0).tolist() == [[1, 0, 0], [1, 0, 0]]


@pytest.fixture(scope="module")
def reports():
    with pytest.MonkeyPatch.context() as patch:
        in_this_process(patch)
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
            assert alone[name] == pytest.approx([one[name] for one in report.by_image.values()], abs=1e-8)


def test_metrics_of_captions_with_an_image_left_out(reports):
    """Those that the other images have by themselves, but for CIDEr, in which the weights of words stay."""
    first, second = map(estimates, reports)
    assert list(first) == list(reports[0].metrics)
    without = caption_metrics({key: CAPTIONS[key] for key in CAPTIONS if key != 2}, REFERENCES, names=list(first))
    for name, one in first.items():
        assert one.value == pytest.approx(reports[0].metrics[name], abs=1e-8), name
        low, high = one.interval()
        assert low <= reports[0].metrics[name] <= high, name
        if name != "CIDEr":
            assert one.left_out[1] == pytest.approx(without.metrics[name], abs=1e-8), name
    (low, high), single = (second["CIDEr"] - first["CIDEr"]).interval(), second["CIDEr"].interval()
    assert high - low < single[1] - single[0]  # of paired images
    assert (first["CIDEr"] - first["CIDEr"]).interval().tolist() == [0, 0]


def test_nonlinear_metrics_are_covered_too() -> None:
    """The difference of two systems' BLEU-2, of sums of lengths and matches over 30 images: 93 to 97% of 4,000."""
    random, images, sets = np.random.default_rng(5), 30, 4000

    def system(shift: float, size: int) -> np.ndarray:
        """Rows of the numbers of `bleu`: lengths, matches and all n-grams of a caption."""
        length = random.integers(6, 14, size)
        good = random.beta(6 + shift, 4, size)
        matches = [random.binomial(length - n, good ** (n + 1)) for n in range(4)]
        return np.stack([length, length + 1, *matches, *(length - n for n in range(4))], axis=1).astype(float)

    both, truth = [], []
    for shift in (0.0, 0.5):
        rows = system(shift, images * sets)
        truth.append(bleu(rows.sum(axis=0, keepdims=True))["BLEU-2"][0])
        total = rows.reshape(images, sets, 10).sum(axis=0)
        left_out = bleu(np.tile(total, (images, 1)) - rows)["BLEU-2"].reshape(images, sets)
        both.append(Jackknife(bleu(total)["BLEU-2"], left_out))
    low, high = (both[1] - both[0]).interval()
    assert 0.93 <= np.mean((low <= truth[1] - truth[0]) & (truth[1] - truth[0] <= high)) <= 0.97


def test_a_single_image_has_no_interval():
    assert estimates(caption_metrics({1: "a dog"}, {1: ["a dog"]}, names=["BLEU-1"])) == {}


def test_an_evaluation_writes_the_intervals_that_score_prints(tmp_path: Path) -> None:
    texts = {number: f"a dog sees a {thing}" for number, thing in enumerate(["cat", "cow", "owl", "fox", "bee"])}
    said = texts | {0: "a dog sees a cow", 1: "nothing at all"}
    evaluator = CaptionScores(["BLEU-1", "CIDEr"])
    described = [DecodedCaption(text, text.split(), [0.0]) for text in said.values()]
    batch = CaptionBatch(
        torch.empty(5, 0), torch.empty(5, 0), (*texts,), tuple([one] for one in texts.values()), (), ()
    )
    evaluator.update(batch, Results(None, described, {}, frozenset()))
    metrics = evaluator.compute()
    evaluator.write(tmp_path)
    written = json.loads((tmp_path / "intervals.json").read_text())
    report = caption_metrics(said, {number: [text] for number, text in texts.items()}, names=["BLEU-1", "CIDEr"])
    expected = {name: one.interval(low=0).tolist() for name, one in estimates(report).items()}
    assert written == expected and all(low < metrics[name] < high for name, (low, high) in written.items())

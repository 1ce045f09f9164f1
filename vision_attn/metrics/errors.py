"""Count the errors of classifiers over batches, with their interval, and whether glimpses end on the object."""

from collections.abc import Mapping
from itertools import pairwise
from math import log, sqrt
from typing import Any, Literal, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from vision_attn.contracts import ClassifierOutput

Testing = Literal["mean", "sample", "copies"]
"""How glimpses are chosen at test time: see `at_test` of `Classification`."""
MOST = 1000
"""The largest number of classes with a confusion matrix."""


def without_softmax(metrics: Mapping[str, float]) -> list[str]:
    """Return one line of advice if the metric `linear` shows a model without the softmax of its hops, else nothing."""
    if not metrics.get("linear"):
        return []
    return [
        "the model is still in its linear start, without the softmax of its hops: facts have scores of any sign, not "
        "weights. The softmax comes once nll has not fallen for task.model.linear_start validations: train longer, or "
        "with --task.model.linear_start=0, which has it from the start. Where that number is very large, as in "
        "configs/memory_scenes.yaml, the model stays without it on purpose"
    ]


class Counts(NamedTuple):
    """The counts of the answers to one or more batches."""

    cost: dict[str, float]
    """The cost of an answer to the first image."""
    images: int
    wrong: dict[Testing, int]
    """The number of wrong answers, for each way of testing."""
    wrong_after: Int[Tensor, "T"] | None = None
    """The number of wrong answers after each glimpse; None for a model that sees the whole image."""
    correct_rows: int | None = None
    """The number of copies with a correct answer whose box is known, and `on_digit` of them end on the digit; None if
    boxes are unknown."""
    on_digit: int | None = None
    confusion: Int[Tensor, "N N"] | None = None
    """The number of images of each class with each answer, in a full evaluation; None for more than `MOST` classes."""
    entropy: Float[Tensor, "T"] | None = None
    """The entropy of the answer after each glimpse, in nats, summed over images, in a full evaluation."""
    shares: Float[Tensor, "states"] | None = None
    """The shares of the initial state and of each glimpse in the last cell state, summed over images; None without an
    LSTM."""

    def plus(self, other: "Counts") -> "Counts":
        """Add the counts of both."""

        def add(own: Any, more: Any) -> Any:
            return more if own is None else own if more is None else own + more

        wrong = {testing: number + other.wrong[testing] for testing, number in self.wrong.items()}
        return Counts(self.cost, self.images + other.images, wrong, *map(add, self[3:], other[3:]))


def after_glimpses(total: Counts, num_classes: int) -> dict[str, list[float]]:
    """Return means over images after each glimpse: `error` in percent; `entropy` of the answer in nats; the amount by
    which the glimpse `lowered` it, starting from that of a uniform answer; and, for a model with an LSTM, the `share`
    of each glimpse in the last cell state (`information.cell_shares`), where the rest belongs to the initial state."""
    assert total.wrong_after is not None
    by_glimpse = {"error": [100 * number / total.images for number in total.wrong_after.tolist()]}
    if total.entropy is not None:
        entropy = (total.entropy / total.images).tolist()
        by_glimpse |= {"entropy": entropy, "lowered": [a - b for a, b in pairwise([log(num_classes), *entropy])]}
    if total.shares is not None:
        by_glimpse["share"] = (total.shares[1:] / total.images).tolist()
    return by_glimpse


def confusion(labels: Int[Tensor, "B"], answers: Int[Tensor, "B"], classes: int) -> Int[Tensor, "N N"] | None:
    """Count the images of each class with each answer; None for more than `MOST` classes."""
    if classes > MOST:
        return None
    return (labels * classes + answers).bincount(minlength=classes**2).view(classes, classes)


def predictions(glance: ClassifierOutput) -> Int[Tensor, "B T"]:
    """Return the most likely class after each glimpse, by the mean probabilities of all copies."""
    return glance.log_prob.logsumexp(dim=1).argmax(dim=-1)


def within(locations: Float[Tensor, "B R 2"], boxes: Float[Tensor, "B 4"]) -> Bool[Tensor, "B R"]:
    """Return whether each location lies in the box of its image."""
    corners = boxes[:, None].unflatten(-1, (2, 2))
    return ((locations >= corners[..., 0, :]) & (locations <= corners[..., 1, :])).all(dim=-1)


def areal(boxes: Float[Tensor, "B 4"] | None) -> Bool[Tensor, "B"] | None:
    """Return whether each image has a known box with an area, in which a location can lie; None if none has."""
    if boxes is None:
        return None
    has_area = (boxes[:, 2:] > boxes[:, :2]).all(dim=-1)
    return has_area if has_area.any() else None


def wilson(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95% Wilson interval of a proportion, observed as `count` out of `total` (Wilson 1927)."""
    share, slack = count / total, z * z / total
    middle, half = share + slack / 2, z * sqrt(share * (1 - share) / total + slack / (4 * total))
    return (middle - half) / (1 + slack), (middle + half) / (1 + slack)

"""Compute the numbers of a measurement with their intervals, and the verdict: which method of maps to trust."""

from statistics import median_low
from typing import Any

import numpy as np
import torch

from vision_attn.faithfulness.measurement import Measured, Measurement, gains
from vision_attn.faithfulness.random_weights import UNCHANGED
from vision_attn.metrics.intervals import FEWEST, Jackknife, holm, p_behind, ratio
from vision_attn.system.console import plural

ENOUGH = 20
"""With fewer images, the verdict does not say which method to trust."""
FEW_CHECKED = 3
"""With at most this number of images, maps that random weights leave unchanged say little about a method."""
SMALLEST = 0.005
"""The smallest gain that counts: below it, a method hardly changes the answer."""
P_BETTER = 0.025
"""The largest adjusted one-sided p of a method that is called better than a random order. Any false claim among all
methods has at most this probability, and no 95% interval of a claimed method contains 0."""
P_BEHIND = 0.05
"""The largest p, adjusted for both directions of all pairs, of a method that is called worse than the best one."""
SHARES = ("pointing", "mass", "control")
"""The numbers that lie between 0 and 1."""


def all_numbers(measurement: Measurement) -> dict[str, Any]:
    """Return all numbers of a measurement as JSON.

    Intervals are of 95%, over images, and None for fewer than `metrics.intervals.FEWEST` images. Each holds by itself:
    it is not adjusted for the number of methods (`metrics.intervals.ratio`). Tests are adjusted (`holm`, `p_behind`).

    answered: the number of images with an answer.
    pointed: the number of answers that name an object with a box or mask.
    is_whole: whether all images were measured; False if the measurement was interrupted.
    random_weights: whether the model has random weights, so that its answers mean nothing.
    searched: the number of images whose best order was searched.
    checked: the number of images with a map that was compared with those of random weights.
    methods: the numbers of each method:
        the areas under the `deletion` (lower is better) and `insertion` curve (higher), and the `gain` over a random
        order (`measurement.gains`);
        `p_better`, the one-sided p of no gain, adjusted for all methods that vary (None for a method that
        `is_constant`), and whether it `is_better` by this and by a gain that counts;
        `behind`, the interval of the distance to the method that gains most, and `p_behind`, the p of no distance,
        adjusted for all pairs (both None for that method itself);
        the `share` of the gain of the best order found, on the same answers (None without one);
        `pointing` and `mass` on objects (intervals are None if no image differs);
        `is_constant`: all maps have the same weight everywhere;
        `sanity`, the rank correlation with the maps of the original model after each stage of randomising its weights,
        and `ignores_weights`; the median `seconds` for a map.
    control: for a captioner that can be steered, the `share` of pairs of words in which one is at least twice as likely
        when the map is moved to its place, with its `interval`, and the share for `random` places
        (`tasks.word_control`); None for other models. It is about the attention itself, so the method "attention" has
        it too.
    random, best, uniform: the areas of a random order; those of the best order found, for the answers that were
        searched; the pointing of a uniform map.
    agreement: the mean rank correlation of each pair of methods. curves: means over all answers.
    each: the answers to each image (`measurement.Measured`), with a number for each method in order, and last for a
        random order or a uniform map.
    """
    answers = [answer for _, answers in measurement.by_image for answer in answers]
    columns = {
        "deletion": [[answer.deletion for answer in answers] for _, answers in measurement.by_image],
        "insertion": [[answer.insertion for answer in answers] for _, answers in measurement.by_image],
        "gain": [[gains(answer) for answer in answers] for _, answers in measurement.by_image],
        "pointing": [
            [answer.pointing for answer in answers if answer.pointing is not None]
            for _, answers in measurement.by_image
        ],
        "mass": [[answer.mass for answer in answers if answer.mass is not None] for _, answers in measurement.by_image],
    }
    estimates = {name: estimate(values) for name, values in columns.items() if any(values)}
    intervals = {name: _interval(estimate, name) for name, estimate in estimates.items()}
    names, number = list(measurement.methods), len(answers)
    share, varies = _share(measurement, answers), torch.as_tensor(measurement.varies).tolist()
    methods: dict[str, dict[str, Any]] = {}
    for index, name in enumerate(names):
        numbers: dict[str, Any] = {}
        for column, estimated in estimates.items():
            numbers[column] = float(estimated.value[index])
            numbers[f"{column}_interval"] = intervals[column][index]
        if name in measurement.sanity:
            numbers["sanity"] = measurement.sanity[name]
            numbers["ignores_weights"] = varies[index] and measurement.sanity[name][-1] >= UNCHANGED
        numbers["is_constant"] = not varies[index]
        methods[name] = numbers | {
            "share": share[index] if share else None,
            "seconds": median_low(measurement.seconds[name]),
        }
    compare(methods, estimates["gain"])
    control = controlled(
        [[answer.control for answer in answers if answer.control] for _, answers in measurement.by_image]
    )
    if control and "attention" in methods:
        methods["attention"]["control"] = control["share"]
    areas = ("deletion", "insertion")
    last = {name: float(estimate.value[-1]) for name, estimate in estimates.items() if name != "gain"}
    deletion, insertion = ((curve / number).tolist() for curve in measurement.curves)
    agreement = (measurement.agreement / number).tolist()
    report: dict[str, Any] = {
        "images": len(measurement.by_image),
        "answered": sum(bool(answers) for _, answers in measurement.by_image),
        "answers": number,
        "is_whole": measurement.is_whole,
        "pointed": sum(answer.pointing is not None for answer in answers),
        "score": measurement.subject.unit,
        "random_weights": measurement.subject.random,
        "searched": len(measurement.best),
        "checked": min(len(measurement.first), measurement.settings.sanity),
        "settings": measurement.settings._asdict(),
        "methods": methods,
        "random": {name: last[name] for name in areas},
        "control": control,
        "uniform": {name: last[name] for name in ("pointing", "mass") if name in last} or None,
        "best": dict(zip(areas, np.mean(measurement.best, axis=0).tolist(), strict=True)) if measurement.best else None,
        "agreement": {name: dict(zip(names, row, strict=True)) for name, row in zip(names, agreement, strict=True)},
        "curves": {
            name: {"deletion": lower, "insertion": higher}
            for name, lower, higher in zip([*names, "random"], deletion, insertion, strict=True)
        },
        "each": [
            {"file": file, "answers": [answer._asdict() for answer in some]} for file, some in measurement.by_image
        ],
    }
    return report | {"verdict": verdict(report)}


def estimate(values: list[list[list[float]]]) -> Jackknife:
    """Average over all answers to all images.

    values: one for each image, each answer and each column."""
    answered = [some for some in values if some]
    return ratio(np.array([np.sum(some, axis=0) for some in answered]), np.array([len(some) for some in answered]))


def controlled(values: list[list[list[float]]]) -> dict[str, Any] | None:
    """Return the shares that `all_numbers` calls `control`, from a value for each image and answer; None without
    any."""
    if not any(values):
        return None
    estimated = estimate(values)
    interval, random = _interval(estimated, "control")
    share, chance = map(float, estimated.value)
    return {
        "share": share, "interval": interval, "random": chance, "random_interval": random,
        "answers": sum(map(len, values)),
    }  # fmt: skip


def _interval(estimate: Jackknife, name: str) -> list[list[float] | None]:
    """Return the interval of each column; None for too few images, and for a share in which no image differs."""
    ends = estimate.interval(low=0, high=1) if name in SHARES else estimate.interval()
    if ends is None:
        return [None] * len(estimate.value)
    unknown = estimate.error == 0 if name in SHARES else np.zeros(len(estimate.value), dtype=np.bool_)
    return [None if none else interval.tolist() for interval, none in zip(ends.T, unknown, strict=True)]


def compare(methods: dict[str, dict[str, Any]], gain: Jackknife) -> None:
    """Add `p_better` and `is_better` to each method, and `behind` and `p_behind` if one is better than a random order
    and depends on the weights; columns of `gain` are in their order."""
    varying = np.array([not method["is_constant"] for method in methods.values()])
    p: list[float | None] = [None] * len(methods)
    if (single := gain.p_greater()) is not None:
        for index, value in zip(varying.nonzero()[0], holm(single[varying]), strict=True):
            p[index] = float(value)
    for method, value in zip(methods.values(), p, strict=True):
        method["p_better"] = value
        method["is_better"] = value is not None and value <= P_BETTER and method["gain"] >= SMALLEST
    if not (ranked := _ranked(methods)):
        return
    first = list(methods).index(ranked[0])
    ends = (gain[[first]] - gain).interval()
    compared = [n for n, method in enumerate(methods.values()) if varying[n] and not method.get("ignores_weights")]
    behind = p_behind(gain[compared], compared.index(first))
    assert ends is not None and behind is not None  # where a method is better there are enough images
    adjusted = dict(zip(compared, behind.tolist(), strict=True))
    for number, method in enumerate(methods.values()):
        method["behind"] = None if number == first else ends[:, number].tolist()
        method["p_behind"] = None if number == first else adjusted.get(number)


def _share(measurement: Measurement, answers: list[Measured]) -> list[float] | None:
    """Return the gain of each method divided by that of the best order, on the answers whose best order was
    searched."""
    some = [answers[example.number] for example in measurement.first[: len(measurement.best)]]
    if not some:
        return None
    best = [gains(answer._replace(deletion=[d, answer.deletion[-1]], insertion=[i, answer.insertion[-1]]))[0]
            for answer, (d, i) in zip(some, measurement.best, strict=True)]  # fmt: skip
    total = sum(best)
    return None if total <= 0 else (np.sum([gains(answer) for answer in some], axis=0) / total).tolist()


def _ranked(methods: dict[str, dict[str, Any]]) -> list[str]:
    """Return the methods that are better than a random order and depend on the weights, the largest gain first."""
    ranked = [name for name, method in methods.items() if method["is_better"] and not method.get("ignores_weights")]
    return sorted(ranked, key=lambda name: -methods[name]["gain"])


def verdict(report: dict[str, Any]) -> list[str]:
    """Say which methods to trust, in sentences."""
    methods, images = report["methods"], plural(report["images"], "image")
    ignoring = [name for name, method in methods.items() if method.get("ignores_weights")]
    constant = [name for name, method in methods.items() if method.get("is_constant")]
    lines, ranked = [], _ranked(methods)
    if not report.get("is_whole", True):
        lines.append(f"Interrupted: this is of the first {images}.")
    if report.get("random_weights"):
        lines.append("The model has random weights: what follows says nothing about the maps of a trained one.")
    answered = report.get("answered", report["images"])
    few = any(method["gain_interval"] is None for method in methods.values())
    if ranked:
        gain, (low, high) = (methods[ranked[0]][name] for name in ("gain", "gain_interval"))
        gained = f"{gain:.3f} over a random one (unadjusted 95% interval {low:.3f} to {high:.3f})."
        lines.append(
            f"Trust {ranked[0]} most: its order gains {gained}"
            if answered >= ENOUGH
            else f"On {images}, the order of {ranked[0]} gains most: {gained}"
        )
        close = [name for name in ranked[1:] if methods[name]["p_behind"] > P_BEHIND]
        if close:
            lines.append(f"{_listed(close)} may be as good: on these images the difference is not sure.")
    elif not few:
        lines.append(f"No method surely gains {SMALLEST:g} or more over a random order: trust none of these maps.")
    else:
        lines.append(_most({name: method for name, method in methods.items() if name not in constant}, images))
    if few:
        lines.append(_too_few(answered))
    elif answered < ENOUGH:
        lines.append(f"That is few to choose a method by: measure at least {ENOUGH} images.")
    if ignoring:
        lines.append(_unchanged(ignoring, report.get("checked", FEW_CHECKED)))
    if constant:
        have = "has" if len(constant) == 1 else "have"
        lines.append(f"{_listed(constant)} {have} the same weight everywhere: that tells nothing of these answers.")
    weak = [name for name in methods if name not in [*ranked, *ignoring, *constant]]
    if weak and ranked:
        lines.append(f"{_listed(weak)}: no sure gain of {SMALLEST:g} or more over a random order here.")
    return lines


def _unchanged(names: list[str], images: int) -> str:
    """Say that maps stayed the same when the model was random, and what that means for their methods."""
    methods, tried = _listed(names), plural(images, "image")
    if images < FEW_CHECKED:
        return (
            f"On {tried}, the map of {methods} stayed the same when the model was random. Do not trust it yet: it may "
            f"ignore the weights, but to say so takes {FEW_CHECKED} images (--sanity {FEW_CHECKED})."
        )
    be = "s" if len(names) == 1 else ""
    return (
        f"{methods} ignore{be} the weights: on {tried}, maps stayed the same when the model was random, so they say "
        "nothing about it."
    )


def _most(methods: dict[str, dict[str, Any]], images: str) -> str:
    """Say which method gains most, where nothing can be tested."""
    most = max(methods, key=lambda name: methods[name]["gain"], default=None)
    if most is None or methods[most]["gain"] <= 0:
        return f"On {images}, the order of no map gains anything over a random one."
    return f"On {images}, the order of {most} gains most: {methods[most]['gain']:.3f} over a random one."


def _too_few(answered: int) -> str:
    """Say that there is no interval."""
    return (
        f"No interval and no test: these take at least {FEWEST} images with an answer, and here "
        f"{'is' if answered == 1 else 'are'} {answered}. Measure at least {ENOUGH} images to choose a method."
    )


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

"""The numbers of a measurement with their intervals, and what they say: which method of maps to trust."""

from statistics import median_low
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from vision_attn.explain.measure import Measured, Measurement, gains
from vision_attn.explain.randomised import UNCHANGED
from vision_attn.metrics.bootstrap import interval, resampled_sums
from vision_attn.system.console import plural

FEW = 5
"""Images of which an interval says little."""
FEW_CHECKED = 3
"""Images whose maps, unchanged by random weights, say little of a method."""
SMALLEST = 0.005
"""The smallest gain that counts: below it, a method hardly changes the answer."""


def record(measurement: Measurement) -> dict[str, Any]:
    """All numbers, as JSON holds them. Intervals are of 95%, over images drawn with replacement.

    random_weights: whether the model has them, so that its answers mean nothing.
    searched: of how many images the best order was searched.
    checked: of how many images a map was compared with those of random weights.
    methods: of each its areas under the `deletion` (lower is better) and the `insertion` curve (higher), the `gain`
        over a random order (`measure.gains`) and whether it `is_better` than one by what counts, the `share` of the
        gain of the best order that was found, on the same answers (None without one); `pointing` and `mass` on objects;
        `sanity`, the rank correlation with the maps of the model as it was after each stage of randomising its weights,
        and `ignores_weights`; the `seconds` for a map, of which half took less.
    random, best, uniform: areas of a random order and of the best one, and pointing of a uniform map.
    agreement: the mean rank correlation of each two methods. curves: means over all answers.
    """
    answers = [one for _, found in measurement.each for one in found]
    columns = {
        "deletion": [[one.deletion for one in found] for _, found in measurement.each],
        "insertion": [[one.insertion for one in found] for _, found in measurement.each],
        "gain": [[gains(one) for one in found] for _, found in measurement.each],
        "pointing": [[one.pointing for one in found if one.pointing is not None] for _, found in measurement.each],
        "mass": [[one.mass for one in found if one.mass is not None] for _, found in measurement.each],
    }
    estimates = {name: estimate(values) for name, values in columns.items() if any(values)}
    names, number = list(measurement.methods), len(answers)
    share = _share(measurement, answers)
    methods: dict[str, dict[str, Any]] = {}
    for index, name in enumerate(names):
        one: dict[str, Any] = {}
        for kind, (means, ends) in estimates.items():
            one[kind] = float(means[index])
            one[f"{kind}_interval"] = None if ends is None else ends[:, index].tolist()
        if name in measurement.sanity:
            one["sanity"] = measurement.sanity[name]
            one["ignores_weights"] = measurement.sanity[name][-1] >= UNCHANGED
        one["is_better"] = _is_better(one)
        methods[name] = one | {
            "share": share[index] if share else None,
            "seconds": median_low(measurement.seconds[name]),
        }
    kinds = ("deletion", "insertion")
    last = {kind: float(means[-1]) for kind, (means, _) in estimates.items() if kind != "gain"}
    deletion, insertion = ((curve / number).tolist() for curve in measurement.curves)
    agreement = (measurement.agreement / number).tolist()
    found = {
        "images": len(measurement.each),
        "answers": number,
        "score": measurement.subject.unit,
        "random_weights": measurement.subject.random,
        "searched": len(measurement.best),
        "checked": min(len(measurement.first), measurement.settings.sanity),
        "settings": measurement.settings._asdict(),
        "methods": methods,
        "random": {kind: last[kind] for kind in kinds},
        "uniform": {kind: last[kind] for kind in ("pointing", "mass") if kind in last} or None,
        "best": dict(zip(kinds, np.mean(measurement.best, axis=0).tolist(), strict=True)) if measurement.best else None,
        "agreement": {name: dict(zip(names, row, strict=True)) for name, row in zip(names, agreement, strict=True)},
        "curves": {
            name: {"deletion": lower, "insertion": higher}
            for name, lower, higher in zip([*names, "random"], deletion, insertion, strict=True)
        },
        "each": [{"file": file, "answers": [one._asdict() for one in some]} for file, some in measurement.each],
    }
    return found | {"verdict": verdict(found)}


def estimate(
    values: list[list[list[float]]],
) -> tuple[Float[ndarray, "columns"], Float[ndarray, "2 columns"] | None]:
    """The mean over all answers of all images, and its interval over images; None for fewer than two."""
    sums = np.array([[*np.sum(some, axis=0), len(some)] for some in values if some])
    total = sums.sum(axis=0)
    if len(sums) < 2:
        return total[:-1] / total[-1], None
    drawn = resampled_sums(sums)
    return total[:-1] / total[-1], interval(drawn[:, :-1] / drawn[:, -1:])


def _share(measurement: Measurement, answers: list[Measured]) -> list[float] | None:
    """The gain of each method over that of the best order, on the answers whose best order was searched."""
    some = [answers[one.number] for one in measurement.first[: len(measurement.best)]]
    if not some:
        return None
    best = [gains(one._replace(deletion=[d, one.deletion[-1]], insertion=[i, one.insertion[-1]]))[0]
            for one, (d, i) in zip(some, measurement.best, strict=True)]  # fmt: skip
    total = sum(best)
    return None if total <= 0 else (np.sum([gains(one) for one in some], axis=0) / total).tolist()


def verdict(found: dict[str, Any]) -> list[str]:
    """Which methods to trust, in sentences."""
    methods = found["methods"]
    ignoring = [name for name, one in methods.items() if one.get("ignores_weights")]
    sure = {name: one for name, one in methods.items() if _is_better(one)}
    ranked = sorted((name for name in sure if name not in ignoring), key=lambda name: -sure[name]["gain"])
    lines = []
    if found.get("random_weights"):
        lines.append("The model has random weights: what follows says nothing about the maps of a trained one.")
    if ranked:
        first = ranked[0]
        low, high = sure[first]["gain_interval"]
        lines.append(
            f"Trust {first} most: its order gains {sure[first]['gain']:.3f} over a random one "
            f"(95% interval {low:.3f} to {high:.3f})."
        )
        close = [name for name in ranked[1:] if sure[name]["gain"] >= low]
        if close:
            lines.append(f"{_listed(close)} may be as good: within that interval.")
    elif found["images"] > 1:
        lines.append(f"No method surely gains {SMALLEST:g} or more over a random order: trust none of these maps.")
    if found["images"] < FEW:
        images = plural(found["images"], "image")
        lines.append(f"That is of {images}, too few to choose a method by: measure at least 20.")
    if ignoring:
        lines.append(_unchanged(ignoring, found.get("checked", FEW_CHECKED)))
    weak = [name for name in methods if name not in sure and name not in ignoring]
    if weak and ranked:
        lines.append(f"{_listed(weak)}: no sure gain of {SMALLEST:g} or more over a random order here.")
    return lines


def _unchanged(names: list[str], images: int) -> str:
    """That maps stayed the same when the model was random, and what that says of their methods."""
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


def _is_better(one: dict[str, Any]) -> bool:
    """Whether a method is better than a random order, by what counts."""
    return bool(one["gain_interval"]) and one["gain_interval"][0] > 0 and one["gain"] >= SMALLEST


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

"""The numbers of a measurement with their intervals, and what they say: which method of maps to trust."""

from statistics import median_low
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from vision_attn.faithfulness.measurement import Measured, Measurement, gains
from vision_attn.faithfulness.random_weights import UNCHANGED
from vision_attn.metrics.bootstrap import interval, resampled_sums
from vision_attn.system.console import plural

ENOUGH = 20
"""Images from which on the verdict says which method to trust."""
FEW_CHECKED = 3
"""Images whose maps, unchanged by random weights, say little of a method."""
SMALLEST = 0.005
"""The smallest gain that counts: below it, a method hardly changes the answer."""


def record(measurement: Measurement) -> dict[str, Any]:
    """All numbers, as JSON holds them. Intervals are of 95%, over images drawn with replacement.

    is_whole: whether all images were measured; False if the measurement was interrupted.
    random_weights: whether the model has them, so that its answers mean nothing.
    searched: of how many images the best order was searched.
    checked: of how many images a map was compared with those of random weights.
    pointed: how many answers name an object that has a box or mask.
    methods: of each its areas under the `deletion` (lower is better) and the `insertion` curve (higher), the `gain`
        over a random order (`measurement.gains`) and whether it `is_better` than one by what counts, how far it is
        `behind` the method that gains most (the interval of the difference; None for that method itself), the `share`
        of the gain of the best order that was found, on the same answers (None without one); `pointing` and `mass` on
        objects; whether it `is_constant`, the same weight everywhere in all maps; `sanity`, the rank correlation with
        the maps of the model as it was after each stage of randomising its weights, and `ignores_weights`; the
        `seconds` for a map, of which half took less.
    random, best, uniform: areas of a random order and, of the answers that were searched, of the best one that was
        found; pointing of a uniform map.
    agreement: the mean rank correlation of each two methods. curves: means over all answers.
    each: of each image its answers (`measurement.Measured`), with a number for each method in their order, and last for
        a random order or a uniform map.
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
    share, varies = _share(measurement, answers), torch.as_tensor(measurement.varies).tolist()
    methods: dict[str, dict[str, Any]] = {}
    for index, name in enumerate(names):
        one: dict[str, Any] = {}
        for kind, (means, ends) in estimates.items():
            one[kind] = float(means[index])
            one[f"{kind}_interval"] = None if ends is None else ends[:, index].tolist()
        if name in measurement.sanity:
            one["sanity"] = measurement.sanity[name]
            one["ignores_weights"] = varies[index] and measurement.sanity[name][-1] >= UNCHANGED
        one["is_constant"] = not varies[index]
        one["is_better"] = _is_better(one)
        methods[name] = one | {
            "share": share[index] if share else None,
            "seconds": median_low(measurement.seconds[name]),
        }
    for index, ends in _behind(methods, columns["gain"]).items():
        methods[names[index]]["behind"] = ends
    kinds = ("deletion", "insertion")
    last = {kind: float(means[-1]) for kind, (means, _) in estimates.items() if kind != "gain"}
    deletion, insertion = ((curve / number).tolist() for curve in measurement.curves)
    agreement = (measurement.agreement / number).tolist()
    found = {
        "images": len(measurement.each),
        "answers": number,
        "is_whole": measurement.is_whole,
        "pointed": sum(one.pointing is not None for one in answers),
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


def _ranked(methods: dict[str, dict[str, Any]]) -> list[str]:
    """The methods that are better than a random order and depend on the weights, the largest gain first."""
    found = [name for name, one in methods.items() if _is_better(one) and not one.get("ignores_weights")]
    return sorted(found, key=lambda name: -methods[name]["gain"])


def _behind(methods: dict[str, dict[str, Any]], gained: list[list[list[float]]]) -> dict[int, list[float] | None]:
    """By the number of each method, the interval of how much less it gains than the one that gains most; differences
    are of the same answers. None for that one itself; empty if none is better than a random order."""
    if not (ranked := _ranked(methods)):
        return {}
    first = list(methods).index(ranked[0])
    _, ends = estimate([[[one[first] - gain for gain in one] for one in found] for found in gained])
    return {index: None if ends is None or index == first else ends[:, index].tolist() for index in range(len(methods))}


def verdict(found: dict[str, Any]) -> list[str]:
    """Which methods to trust, in sentences."""
    methods, images = found["methods"], plural(found["images"], "image")
    ignoring = [name for name, one in methods.items() if one.get("ignores_weights")]
    constant = [name for name, one in methods.items() if one.get("is_constant")]
    lines, ranked = [], _ranked(methods)
    if not found.get("is_whole", True):
        lines.append(f"Interrupted: this is of the first {images}.")
    if found.get("random_weights"):
        lines.append("The model has random weights: what follows says nothing about the maps of a trained one.")
    if ranked:
        gain, (low, high) = (methods[ranked[0]][name] for name in ("gain", "gain_interval"))
        gained = f"{gain:.3f} over a random one (95% interval {low:.3f} to {high:.3f})."
        lines.append(
            f"Trust {ranked[0]} most: its order gains {gained}"
            if found["images"] >= ENOUGH
            else f"On {images}, the order of {ranked[0]} gains most: {gained}"
        )
        close = [name for name in ranked[1:] if not (behind := methods[name].get("behind")) or behind[0] <= 0]
        if close:
            lines.append(f"{_listed(close)} may be as good: the interval of the difference contains 0.")
    elif found["images"] > 1:
        lines.append(f"No method surely gains {SMALLEST:g} or more over a random order: trust none of these maps.")
    else:
        most = max(methods, key=lambda name: methods[name]["gain"])
        lines.append(f"On 1 image, the order of {most} gains most: {methods[most]['gain']:.3f} over a random one.")
    if found["images"] < ENOUGH:
        lines.append(f"That is few to choose a method by: measure at least {ENOUGH} images.")
    if ignoring:
        lines.append(_unchanged(ignoring, found.get("checked", FEW_CHECKED)))
    if constant:
        have = "has" if len(constant) == 1 else "have"
        lines.append(f"{_listed(constant)} {have} the same weight everywhere: that tells nothing of these answers.")
    weak = [name for name in methods if name not in [*ranked, *ignoring, *constant]]
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

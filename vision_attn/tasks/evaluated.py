"""The metrics of captions: those of evaluators and of criteria, over all batches of an evaluation."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.contracts import Evaluator, Results
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.metrics.evaluators import measures
from vision_attn.system.console import complain
from vision_attn.system.errors import UserError


class Predicted(NamedTuple):
    """What is measured of a batch."""

    batch: CaptionBatch
    """Without its images."""
    results: Results
    measured: dict[str, float]
    """What the criteria measure, in a full evaluation."""
    probed: dict[str, Any]
    """What `probe` of each evaluator of the config returned, by its name, in a full evaluation."""


def evaluated(
    predictions: Iterable[Predicted], standard: Sequence[Evaluator], added: Mapping[str, Evaluator], folder: Path | None
) -> dict[str, float]:
    """Return all metrics. Raises UserError if there is no prediction.

    standard, added: evaluators, the latter by name. With a folder, one of `added` that fails is NaN, with a warning.
    folder: where evaluators write their inputs; None: nowhere.
    """
    evaluators = [*standard, *added.values()]
    totals, images = dict[str, float](), dict[str, int]()
    empty = True
    for batch, results, measured, probed in predictions:
        empty = False
        for evaluator in standard:
            evaluator.update(batch, results)
        for name, evaluator in added.items():
            evaluator.update(batch, results._replace(probed=probed.get(name)))
        for name, value in measured.items():
            totals[name] = totals.get(name, 0.0) + value * len(batch.ids)
            images[name] = images.get(name, 0) + len(batch.ids)
    if empty:
        raise UserError("there is no image to evaluate: the split is empty")
    means = {name: total / images[name] for name, total in totals.items()}
    metrics: dict[str, float] = {}
    for evaluator in evaluators:
        try:
            metrics |= measures(evaluator, known=metrics.keys() | means.keys())
            if folder is not None:
                evaluator.write(folder)
        except Exception as error:
            if evaluator in standard or folder is None or isinstance(error, OSError):
                raise
            name = type(evaluator).__name__  # one that was added may not cost the others
            metrics[name] = float("nan")
            complain(f"{name} failed ({type(error).__name__}: {error}); its metrics are left out")
            continue
        for line in evaluator.notes:
            complain(line)
    return metrics | means

"""Collect the metrics of evaluators and criteria over all batches of an evaluation of captions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.contracts import Evaluator, Results
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.metrics.evaluators import measures
from vision_attn.system.console import complain
from vision_attn.system.errors import UserError


class PredictedCaptions(NamedTuple):
    """The predictions for a batch of images with captions."""

    batch: CaptionBatch
    """The batch without its images."""
    results: Results
    measured: dict[str, float]
    """The scalars that the criteria measure, in a full evaluation."""
    probed: dict[str, Any]
    """The output of `probe` of each evaluator of the config, by its name, in a full evaluation."""


class EvaluatorGroup:
    """The evaluators of a data set, and the means of the scalars that criteria measure."""

    def __init__(self, standard: Sequence[Evaluator], added: Mapping[str, Evaluator]) -> None:
        self.standard, self.added = standard, added
        self.totals, self.images = dict[str, float](), dict[str, int]()

    def update(self, predicted: PredictedCaptions) -> None:
        batch, results, measured, probed = predicted
        for evaluator in self.standard:
            evaluator.update(batch, results)
        for name, evaluator in self.added.items():
            evaluator.update(batch, results._replace(probed=probed.get(name)))
        for name, value in measured.items():
            self.totals[name] = self.totals.get(name, 0.0) + value * len(batch.ids)
            self.images[name] = self.images.get(name, 0) + len(batch.ids)

    def metrics(self, *, full: bool, folder: Path | None = None, notes: bool = True) -> dict[str, float]:
        """Return all metrics.

        full: whether the metrics of an added evaluator that fails are NaN, with a warning, instead of an error.
        folder: the folder into which evaluators write their inputs.
        notes: whether to print the remarks of evaluators.
        """
        means = {name: total / self.images[name] for name, total in self.totals.items()}
        metrics: dict[str, float] = {}
        added = [(f"task.evaluators.{name}", evaluator) for name, evaluator in self.added.items()]
        for key, evaluator in [*(("", evaluator) for evaluator in self.standard), *added]:
            try:
                metrics |= measures(evaluator, known=metrics.keys() | means.keys(), key=key)
                if folder is not None:
                    evaluator.write(folder)
            except Exception as error:
                if evaluator in self.standard or not full or isinstance(error, OSError):
                    raise
                name = type(evaluator).__name__  # one that was added may not cost the others
                metrics[name] = float("nan")
                reason = f"{type(error).__name__}: {error}"
                complain(f"{name} failed ({reason}); its metrics are left out", error=True)
                continue
            for line in evaluator.notes if notes else ():
                complain(line)
        return metrics | means


def evaluated(
    predictions: Iterable[PredictedCaptions],
    standard: Callable[[], Sequence[Evaluator]],
    added: Mapping[str, Callable[[], Evaluator]],
    folder: Path | None,
) -> dict[str, float]:
    """Return all metrics and, for data with several sources, those of each source as `NAME_SOURCE`. Raises UserError if
    there is no prediction.

    standard: makes the evaluators that every evaluation has.
    added: make the evaluators of the config, by name. With a folder, the metrics of one that fails are NaN, with a
        warning.
    folder: the folder into which the evaluators of all images write their inputs; None: they write nothing.
    """

    def group() -> EvaluatorGroup:
        return EvaluatorGroup(standard(), {name: new() for name, new in added.items()})

    everything, sources = group(), dict[str, EvaluatorGroup]()
    empty, full = True, folder is not None
    for predicted in predictions:
        empty = False
        everything.update(predicted)
        if named := getattr(predicted.batch, "sources", ()):
            sources.setdefault(named[0], group()).update(predicted)
    if empty:
        raise UserError("there is no image to evaluate: the split is empty")
    metrics = everything.metrics(full=full, folder=folder)
    for source, of_source in sources.items():
        own = metrics if len(sources) == 1 else of_source.metrics(full=full, notes=False)
        metrics = metrics | {f"{name}_{source}": value for name, value in own.items()}
    return metrics

"""`Measurement`: measure how faithful the maps of several methods are to a model, by deletion and insertion curves, the
sanity check of Adebayo et al. 2018, pointing, and agreement."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median_low
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vision_attn.explain.attributions import regions_of
from vision_attn.explain.explained_models import ExplainedAnswer, Map, Subject
from vision_attn.faithfulness.curves import Curves, best_order, perturbation_curves, scores_without
from vision_attn.faithfulness.examples import Example, Examples
from vision_attn.faithfulness.random_weights import STAGES, from_the_output, randomised
from vision_attn.faithfulness.resampled import resampled
from vision_attn.geometry.extents import Extent, Mask
from vision_attn.metrics.attention import AttentionCorrectness, rank_correlation
from vision_attn.metrics.perturbations import FILLS
from vision_attn.system.checks import check_range
from vision_attn.system.console import plural, progress
from vision_attn.system.errors import UserError
from vision_attn.system.locks import Turn, forked

Given = Callable[[Float[Tensor, "C Y X"], str], Float[Tensor, "rows columns"]]
"""A user's own method: a function from the input of the model and the text of an answer to a map of the whole image."""
BLOCKS = 4
"""The number of rows, and of columns, of regions whose best order is searched."""
ANSWERS = 1000
"""The number of seeds for each image. An image with more answers uses the seeds of the next one."""


class MeasureSettings(NamedTuple):
    """How maps are measured."""

    fill: str = "linear"
    """How deleted regions are filled: a name of `metrics.perturbations.FILLS`."""
    steps: int = 10
    """The number of steps of a curve, from all regions to none."""
    best: int = 3
    """The number of images whose best order is searched; it takes about 270 scores for each answer."""
    sanity: int = 3
    """The number of images whose maps are compared with those of random weights."""
    seed: int = 0


DEFAULTS = MeasureSettings()


class Measured(NamedTuple):
    """The numbers of one answer: one for each method in order, the last one for a random order."""

    text: str
    probability: float
    deletion: list[float]
    """The area under the deletion curve, over the share of regions."""
    insertion: list[float]
    pointing: list[float] | None
    """Whether the largest region lies in a box or mask, by method and last for a uniform map. None without boxes."""
    mass: list[float] | None
    """The share of the map in boxes or masks, in the same order."""
    control: list[float] | None = None
    """How often a word of a caption becomes likelier when the model is steered to its place, and to a random place; see
    `tasks.word_control`. None for a model that cannot be steered."""


class FirstAnswer(NamedTuple):
    """The first answer to an image, which `finish` measures further."""

    number: int
    """The number of the answer among all answers."""
    image: Float[Tensor, "C Y X"]
    question: ExplainedAnswer
    maps: Float[Tensor, "methods L"]


class Measurement:
    """Measures maps image by image, and keeps only numbers and a few examples.

    methods: names of methods of the subject ("attention:3" is the attention of layer 3), or your own methods by name.
    """

    subject: Subject
    settings: MeasureSettings

    def __init__(
        self,
        subject: Subject,
        methods: Sequence[str] | Mapping[str, Given | None],
        settings: MeasureSettings = DEFAULTS,
    ) -> None:
        check_range("measure", 1, 100, steps=settings.steps)
        check_range("measure", 0, 100000, best=settings.best, sanity=settings.sanity)
        if settings.fill not in FILLS:
            raise UserError(f"there is no fill {settings.fill!r}; choose one of {', '.join(FILLS)}")
        self.subject, self.settings = subject, settings
        self.methods: dict[str, Given | None] = (
            dict(methods) if isinstance(methods, Mapping) else dict.fromkeys(methods)
        )
        self.by_image: list[tuple[str, list[Measured]]] = []
        """The file and the numbers of each image."""
        self.curves: list[Float[Tensor, "methods steps"]] = []
        """The sums of deletion and insertion curves over all answers."""
        self.agreement: Any = 0.0
        self.seconds: dict[str, list[float]] = {name: [] for name in self.methods}
        """The seconds that each map of a method took, by method."""
        self.varies: Tensor | bool = False
        """Whether any map of each method is not uniform."""
        self.examples = Examples()
        self.best: list[tuple[float, float]] = []
        """The smallest area under a deletion curve and the largest under an insertion curve, of each first answer."""
        self.sanity: dict[str, list[float]] = {}
        """The rank correlation of each method's maps with the original ones after each stage of randomising."""
        self.first: list[FirstAnswer] = []
        """The first answers to the first images, for the search of best orders and the test with random weights."""
        self.is_whole = True
        """Whether the measurement was complete; False if it was interrupted."""
        self._answers = 0

    def add(self, file: str, picture: Image.Image, boxes: Callable[[str], Sequence] | None = None) -> list[Measured]:
        """Measure one image. If interrupted, nothing of the image is kept.

        picture: the part of the photograph that the model sees.
        boxes: returns the boxes (x0, y0, x1, y1) in [-1, 1] of the picture, or the masks, for the text of an answer.
        """
        before = self.curves, self.agreement, self.varies, self._answers, list(self.first)
        answers, shown = [], []
        try:
            with self.subject.turn, forked(self.settings.seed + len(self.by_image)):
                image = self.subject.read(picture)
                questions = self.subject.questions(image)
                for number, question in enumerate(questions):
                    if question.content:
                        measured, maps = self._measured(image, question, number, boxes)
                        answers.append(measured)
                        gain = sum(gains(measured)) / len(maps)
                        shown.append(Example(gain, file, picture.copy(), question.text, maps))
                controls = self.subject.controls(image, questions, self._places(boxes), FILLS[self.settings.fill])
                answers = [
                    answer._replace(control=many)
                    for answer, many in zip(answers, controls or [None] * len(answers), strict=True)
                ]
        except BaseException:
            self.curves, self.agreement, self.varies, self._answers, self.first = before
            raise
        self.by_image.append((file, answers))
        self.examples.add(shown)
        return answers

    def _measured(
        self, image: Tensor, question: ExplainedAnswer, number: int, boxes: Callable | None
    ) -> tuple[Measured, dict[str, Map]]:
        maps = {name: self._map(name, image, question) for name in self.methods}
        grid = regions_of(tuple(image.shape[1:]))
        on_grid = torch.stack([resampled(heatmap, grid) for heatmap in maps.values()])
        curves = self._curves(image, question, on_grid, ANSWERS * (self.settings.seed + len(self.by_image)) + number)
        self.curves = [curve + (self.curves[number] if self.curves else 0) for number, curve in enumerate(curves)]
        self.agreement = self.agreement + rank_correlation(on_grid.flatten(1))
        self.varies = self.varies | (on_grid.flatten(1).amax(dim=1) > on_grid.flatten(1).amin(dim=1))
        enough = len(self.first) >= max(self.settings.best, self.settings.sanity)
        if not enough and not (self.first and self.first[-1].image is image):
            self.first.append(FirstAnswer(self._answers, image, question, on_grid.flatten(1)))
        self._answers += 1
        deletion, insertion = (area.tolist() for area in curves.areas.values())
        pointing, mass = self._pointed(on_grid, boxes and boxes(question.text))
        return Measured(question.text, float(curves.deletion[0, 0]), deletion, insertion, pointing, mass), maps

    def _curves(self, image: Tensor, question: ExplainedAnswer, maps: Tensor, seed: int) -> Curves:
        """Return the curves of each map, and last of a random order. All use the same random numbers for ties and for
        filling deleted regions, so that the results of a method do not depend on the other methods."""
        score, curves = partial(self._score, question=question), []
        with forked(seed):
            order = torch.rand(2, *maps.shape[1:])[1:]  # the first ones break ties
        for weights in torch.cat([maps, order]).to(image.device):
            with forked(seed):
                curves.append(
                    perturbation_curves(
                        score, image, weights, steps=self.settings.steps, fill=FILLS[self.settings.fill]
                    )
                )
        return Curves(*map(torch.stack, zip(*curves, strict=True)))

    def _score(self, images: Tensor, question: ExplainedAnswer) -> Tensor:
        """Return the scores of an answer. They are computed within the lock of the subject, as one piece of work for a
        trial of threads."""
        with self.subject.turn as turn:
            if isinstance(turn, Turn):
                turn.compare(len(images))
            return self.subject.score(images, question.target)

    def _map(self, name: str, image: Tensor, question: ExplainedAnswer) -> Map:
        start, own = time.perf_counter(), self.methods[name]
        if own is None:
            heatmap = self.subject.map(name, image, question.target)
        else:
            heatmap = Map(torch.as_tensor(own(image, question.text)).float())
        self.seconds[name].append(time.perf_counter() - start)
        return Map(torch.nan_to_num(heatmap.weights.detach().float().cpu()), heatmap.extent)

    def _pointed(self, maps: Tensor, boxes: Sequence | None) -> tuple[list[float] | None, list[float] | None]:
        """Return pointing and mass of each map and of a uniform one."""
        if not boxes:
            return None, None
        rows, columns = maps.shape[1:]
        scores, inside = [], self._on_input(boxes)
        for weights in torch.cat([maps.clamp(min=0), torch.ones(1, rows, columns)]).flatten(1):
            score = AttentionCorrectness((rows, columns))
            score.update(["it"], (weights / weights.sum().clamp(min=1e-12))[None], {"it": inside})
            scores.append(score.compute())
        return [score["pointing"] for score in scores], [score["mass"] for score in scores]

    def _on_input(self, boxes: Sequence) -> list[Any]:
        """Return boxes and masks of the picture in coordinates of the image that the model takes."""
        seen = self.subject.seen
        return [
            box.seen_from(seen) if isinstance(box, Mask) else tuple(Extent(*map(float, box)).seen_from(seen))
            for box in boxes
        ]

    def _places(self, boxes: Callable | None) -> Callable[[str], list[Any]]:
        """Return a function from an answer to its boxes on the image that the model takes, without masks."""
        return lambda text: [box for box in self._on_input(boxes(text) if boxes else ()) if not isinstance(box, Mask)]

    def finish(self) -> None:
        """Search the best orders of first answers, and test their maps with random weights. Raises UserError without
        any."""
        if not self._answers:
            images = plural(len(self.by_image), "image")
            none = f"no answer to {images} has a word to explain" if self.by_image else "no image"
            raise UserError(f"nothing could be measured: {none}")
        with self.subject.turn, forked(self.settings.seed):
            searched = self.first[: self.settings.best]
            answers = [answer for _, answers in self.by_image for answer in answers]
            for answer in progress(searched, what="best orders", unit="answer") if searched else ():
                lowest, highest = self._best(answer.image, answer.question)
                other = answers[answer.number]
                self.best.append((min(lowest, *other.deletion), max(highest, *other.insertion)))
            if checked := self.first[: self.settings.sanity]:
                self._check(checked)

    def interrupt(self) -> None:
        """Finish with the images measured so far, and drop an unfinished test with random weights."""
        self.is_whole = False
        if any(len(stages) < STAGES for stages in self.sanity.values()):
            self.sanity = {}

    def _best(self, image: Tensor, question: ExplainedAnswer) -> tuple[float, float]:
        size, fill = tuple(image.shape[1:]), FILLS[self.settings.fill]
        rows, columns = (min(BLOCKS, side) for side in regions_of(size))

        score = partial(self._score, question=question)
        orders = [best_order(score, image, (rows, columns), sign=sign, fill=fill) for sign in (1, -1)]
        blocks = (
            torch.stack(orders).repeat_interleave(-(-size[0] // rows), 1).repeat_interleave(-(-size[1] // columns), 2)
        )
        regions = torch.nn.functional.interpolate(blocks[None], regions_of(size), mode="nearest-exact")[0]
        curves: Curves = perturbation_curves(
            score, image, regions.to(image.device), steps=self.settings.steps, fill=fill
        )
        return float(curves.areas["deletion"][0]), float(curves.areas["insertion"][1])

    def _check(self, checked: Sequence[FirstAnswer]) -> None:
        subject, (_, image, question, _) = self.subject, checked[0]
        grid = regions_of(tuple(image.shape[1:]))
        parts = from_the_output(subject.module, lambda: subject.score(image[None], question.target))
        self.sanity = {name: [] for name in self.methods}
        seconds = {name: list(some) for name, some in self.seconds.items()}
        with randomised(parts, seed=self.settings.seed) as stages:
            for _ in progress(stages, what="randomised weights", unit="stage"):
                for number, name in enumerate(self.methods):
                    alike = []
                    for _, image, question, before in checked:
                        after = resampled(self._map(name, image, question), grid).flatten()
                        alike.append(float(rank_correlation(torch.stack([before[number], after]))[0, 1]))
                    self.sanity[name].append(sum(alike) / len(alike))
        self.seconds = seconds

    def seconds_of_end(self, images: int) -> float:
        """Estimate the seconds of `finish` after `images` images, from a few scores and the maps so far."""
        if not self.first:
            return 0.0
        _, image, question, _ = self.first[-1]
        rows, columns = (min(BLOCKS, side) for side in regions_of(tuple(image.shape[1:])))
        regions = rows * columns
        gone = torch.eye(regions, dtype=torch.bool, device=image.device).unflatten(1, (rows, columns))
        start = time.perf_counter()
        with self.subject.turn, forked():
            scores_without(partial(self._score, question=question), image, gone, FILLS[self.settings.fill])
        score = (time.perf_counter() - start) / regions
        scores = regions * (regions + 1) + 4 * self.settings.steps  # of two greedy searches, and their curves
        searched, checked = (min(some, images) for some in (self.settings.best, self.settings.sanity))
        return searched * scores * score + checked * STAGES * sum(map(median_low, self.seconds.values()))


def gains(measured: Measured) -> list[float]:
    """Return the gain of each method over a random order: the mean of the decrease of the area under the deletion curve
    and the increase of the area under the insertion curve."""
    deletion, insertion = measured.deletion, measured.insertion
    pairs = zip(deletion[:-1], insertion[:-1], strict=True)
    return [(deletion[-1] - lower + higher - insertion[-1]) / 2 for lower, higher in pairs]

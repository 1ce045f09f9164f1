"""Whether maps are faithful: deletion and insertion curves, the sanity check of Adebayo et al. 2018, pointing, and
agreement, of several methods of maps on the answers of one model."""

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
from vision_attn.explain.subjects import Map, Question, Subject
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
"""A method of maps of the user's own: from the image that the model takes, and the text of what is explained, to a map
that covers the image evenly."""
BLOCKS = 4
"""Rows and columns of the regions of which the best order is searched."""
ANSWERS = 1000
"""Seeds for each image; of more answers, the seeds of the next image follow."""


class Settings(NamedTuple):
    """How maps are measured."""

    fill: str = "linear"
    """What stands in the place of regions that are gone: a name of `metrics.perturbations.FILLS`."""
    steps: int = 10
    """Of a curve, from all regions to none."""
    best: int = 3
    """Images of which the best order is searched; about 270 scores for each answer."""
    sanity: int = 3
    """Images whose maps are compared with those of random weights."""
    seed: int = 0


DEFAULTS = Settings()


class Measured(NamedTuple):
    """The numbers of one answer; of methods in their order, and last of a random order."""

    text: str
    probability: float
    deletion: list[float]
    """Area under the deletion curve, over the share of regions."""
    insertion: list[float]
    pointing: list[float] | None
    """Of each method and last of a uniform map: whether the largest region lies in a box or mask. None without them."""
    mass: list[float] | None
    """The share of the map in boxes or masks."""
    control: list[float] | None = None
    """Of a word of a caption, how often it becomes likelier where its place is looked at, and a random one; see
    `tasks.controlled`. None for a model that cannot be steered."""


class Answer(NamedTuple):
    """One that is looked at again in the end."""

    number: int
    """Among all answers."""
    image: Float[Tensor, "C Y X"]
    question: Question
    maps: Float[Tensor, "methods L"]


class Measurement:
    """Measures maps image by image, and keeps numbers and a few examples alone.

    methods: names of methods of the subject ("attention:3" is that of layer 3), or by name methods of your own.
    """

    subject: Subject
    settings: Settings

    def __init__(
        self, subject: Subject, methods: Sequence[str] | Mapping[str, Given | None], settings: Settings = DEFAULTS
    ) -> None:
        check_range("measure", 1, 100, steps=settings.steps)
        check_range("measure", 0, 100000, best=settings.best, sanity=settings.sanity)
        if settings.fill not in FILLS:
            raise UserError(f"there is no fill {settings.fill!r}; choose one of {', '.join(FILLS)}")
        self.subject, self.settings = subject, settings
        self.methods: dict[str, Given | None] = (
            dict(methods) if isinstance(methods, Mapping) else dict.fromkeys(methods)
        )
        self.each: list[tuple[str, list[Measured]]] = []
        """The numbers of each image."""
        self.curves: list[Float[Tensor, "methods steps"]] = []
        """The sums of deletion and insertion curves over all answers."""
        self.agreement: Any = 0.0
        self.seconds: dict[str, list[float]] = {name: [] for name in self.methods}
        """Of each method, those of each map."""
        self.varies: Tensor | bool = False
        """Of each method, whether any of its maps is more than the same weight everywhere."""
        self.examples = Examples()
        self.best: list[tuple[float, float]] = []
        """The lowest area under a deletion curve and the highest under an insertion curve that were found, of the
        first answers."""
        self.sanity: dict[str, list[float]] = {}
        """Of each method, the rank correlation of maps after each stage of randomising."""
        self.first: list[Answer] = []
        """The first answer to each of the first images: their best orders are searched, and random weights tried."""
        self.is_whole = True
        """Whether it ended by itself; False if it was interrupted."""
        self._answers = 0

    def add(self, file: str, picture: Image.Image, boxes: Callable[[str], Sequence] | None = None) -> list[Measured]:
        """Measure one image. picture: the part of it that is seen. boxes: from the text of an answer to its boxes
        (x0, y0, x1, y1) in [-1, 1] of the picture, or masks; none if it has none. An image whose measurement is
        interrupted leaves nothing behind."""
        before = self.curves, self.agreement, self.varies, self._answers, list(self.first)
        found, shown = [], []
        try:
            with self.subject.turn, forked(self.settings.seed + len(self.each)):
                image = self.subject.read(picture)
                questions = self.subject.questions(image)
                for number, question in enumerate(questions):
                    if question.content:
                        measured, maps = self._measured(image, question, number, boxes)
                        found.append(measured)
                        gain = sum(gains(measured)) / len(maps)
                        shown.append(Example(gain, file, picture.copy(), question.text, maps))
                controls = self.subject.controls(image, questions, self._places(boxes), FILLS[self.settings.fill])
                found = [
                    one._replace(control=many) for one, many in zip(found, controls or [None] * len(found), strict=True)
                ]
        except BaseException:
            self.curves, self.agreement, self.varies, self._answers, self.first = before
            raise
        self.each.append((file, found))
        self.examples.add(shown)
        return found

    def _measured(
        self, image: Tensor, question: Question, number: int, boxes: Callable | None
    ) -> tuple[Measured, dict[str, Map]]:
        maps = {name: self._map(name, image, question) for name in self.methods}
        grid = regions_of(tuple(image.shape[1:]))
        on_grid = torch.stack([resampled(one, grid) for one in maps.values()])
        curves = self._curves(image, question, on_grid, ANSWERS * (self.settings.seed + len(self.each)) + number)
        self.curves = [curve + (self.curves[number] if self.curves else 0) for number, curve in enumerate(curves)]
        self.agreement = self.agreement + rank_correlation(on_grid.flatten(1))
        self.varies = self.varies | (on_grid.flatten(1).amax(dim=1) > on_grid.flatten(1).amin(dim=1))
        enough = len(self.first) >= max(self.settings.best, self.settings.sanity)
        if not enough and not (self.first and self.first[-1].image is image):
            self.first.append(Answer(self._answers, image, question, on_grid.flatten(1)))
        self._answers += 1
        deletion, insertion = (area.tolist() for area in curves.areas.values())
        pointing, mass = self._pointed(on_grid, boxes and boxes(question.text))
        return Measured(question.text, float(curves.deletion[0, 0]), deletion, insertion, pointing, mass), maps

    def _curves(self, image: Tensor, question: Question, maps: Tensor, seed: int) -> Curves:
        """The curves of each map, and last of a random order. Each has the same random numbers, which break ties and
        fill holes, so that what is found of a method does not depend on which others are measured."""
        score, found = partial(self._score, question=question), []
        with forked(seed):
            order = torch.rand(2, *maps.shape[1:])[1:]  # the first ones break ties
        for weights in torch.cat([maps, order]).to(image.device):
            with forked(seed):
                found.append(
                    perturbation_curves(
                        score, image, weights, steps=self.settings.steps, fill=FILLS[self.settings.fill]
                    )
                )
        return Curves(*map(torch.stack, zip(*found, strict=True)))

    def _score(self, images: Tensor, question: Question) -> Tensor:
        """The scores of an answer, in a turn of their own: the piece of work that a trial of threads times."""
        with self.subject.turn as turn:
            if isinstance(turn, Turn):
                turn.compare(len(images))
            return self.subject.score(images, question.target)

    def _map(self, name: str, image: Tensor, question: Question) -> Map:
        start, own = time.perf_counter(), self.methods[name]
        if own is None:
            found = self.subject.map(name, image, question.target)
        else:
            found = Map(torch.as_tensor(own(image, question.text)).float())
        self.seconds[name].append(time.perf_counter() - start)
        return Map(torch.nan_to_num(found.weights.detach().float().cpu()), found.extent)

    def _pointed(self, maps: Tensor, boxes: Sequence | None) -> tuple[list[float] | None, list[float] | None]:
        """Pointing and mass of each map, and of a uniform one."""
        if not boxes:
            return None, None
        rows, columns = maps.shape[1:]
        found, inside = [], self._seen(boxes)
        for weights in torch.cat([maps.clamp(min=0), torch.ones(1, rows, columns)]).flatten(1):
            one = AttentionCorrectness((rows, columns))
            one.update(["it"], (weights / weights.sum().clamp(min=1e-12))[None], {"it": inside})
            found.append(one.compute())
        return [one["pointing"] for one in found], [one["mass"] for one in found]

    def _seen(self, boxes: Sequence) -> list[Any]:
        """Boxes and masks of the picture, on the image that the model takes."""
        seen = self.subject.part
        return [
            one.seen_from(seen) if isinstance(one, Mask) else tuple(Extent(*map(float, one)).seen_from(seen))
            for one in boxes
        ]

    def _places(self, boxes: Callable | None) -> Callable[[str], list[Any]]:
        """From an answer to its boxes on the image that the model takes, without masks."""
        return lambda text: [one for one in self._seen(boxes(text) if boxes else ()) if not isinstance(one, Mask)]

    def finish(self) -> None:
        """Search the best orders, and check how maps depend on the weights, of the first answers. Raises UserError if
        nothing was measured."""
        if not self._answers:
            none = f"no answer to {plural(len(self.each), 'image')} has a word to explain" if self.each else "no image"
            raise UserError(f"nothing could be measured: {none}")
        with self.subject.turn, forked(self.settings.seed):
            searched = self.first[: self.settings.best]
            answers = [one for _, found in self.each for one in found]
            for answer in progress(searched, what="best orders", unit="answer") if searched else ():
                lowest, highest = self._best(answer.image, answer.question)
                other = answers[answer.number]
                self.best.append((min(lowest, *other.deletion), max(highest, *other.insertion)))
            if checked := self.first[: self.settings.sanity]:
                self._check(checked)

    def interrupt(self) -> None:
        """End with the images that were measured until now, without random weights that were not tried to the end."""
        self.is_whole = False
        if any(len(stages) < STAGES for stages in self.sanity.values()):
            self.sanity = {}

    def _best(self, image: Tensor, question: Question) -> tuple[float, float]:
        size, fill = tuple(image.shape[1:]), FILLS[self.settings.fill]
        rows, columns = (min(BLOCKS, side) for side in regions_of(size))

        score = partial(self._score, question=question)
        found = [best_order(score, image, (rows, columns), sign=sign, fill=fill) for sign in (1, -1)]
        blocks = (
            torch.stack(found).repeat_interleave(-(-size[0] // rows), 1).repeat_interleave(-(-size[1] // columns), 2)
        )
        regions = torch.nn.functional.interpolate(blocks[None], regions_of(size), mode="nearest-exact")[0]
        curves: Curves = perturbation_curves(
            score, image, regions.to(image.device), steps=self.settings.steps, fill=fill
        )
        return float(curves.areas["deletion"][0]), float(curves.areas["insertion"][1])

    def _check(self, checked: Sequence[Answer]) -> None:
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
        """An estimate of the seconds of `finish` after `images` images, from a few scores and the maps so far."""
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
    """How much more faithful each method is than a random order: the mean of how much lower the area under its deletion
    curve is, and how much higher that under its insertion curve."""
    deletion, insertion = measured.deletion, measured.insertion
    pairs = zip(deletion[:-1], insertion[:-1], strict=True)
    return [(deletion[-1] - lower + higher - insertion[-1]) / 2 for lower, higher in pairs]

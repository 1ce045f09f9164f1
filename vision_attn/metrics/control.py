"""`Control`: measure whether words follow the attention map, by moving maps to other objects of drawn scenes."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.attention.steered import Steering
from vision_attn.contracts import DecodedCaption, Evaluator, Results
from vision_attn.geometry.extents import Extent
from vision_attn.geometry.places import RegionGrid
from vision_attn.metrics.intervals import Jackknife, ratio
from vision_attn.system.checks import check_range
from vision_attn.system.files import replacing

MAX_NUMBERS = 2**24
"""The largest number of elements of the annotation vectors that are decoded at once: 64 MB in float32."""
Object = tuple[tuple[float, ...], ...]
"""The boxes of an object, which identify it among the objects of its image."""


class Case(NamedTuple):
    """A word of a caption that names an object, and another object of the image."""

    image: int
    place: int
    """The position of the word in the caption, from 0."""
    turn: int
    """0 for the first word of the object, 1 for the second one."""
    own: Object
    other: Object
    opens: bool = False
    """Whether it is the first word of the caption that names any object."""


class Outcome(NamedTuple):
    """The word that the captioner said in one case."""

    image: int
    beams: int
    turn: int
    forced: str
    """The place of the map: on the "other" object, the "own" one, or a "random" region."""
    strength: float
    named: bool
    """Whether the word names the other object; for "own", whether it is the same word as before."""
    next_own: bool | None
    """Whether the word after the first one still names the own object."""
    opens: bool
    """Whether it is the first word of the caption that names any object."""


class Control(Evaluator):
    """The share of words that name the object to which the captioner's map is moved (Pearl 2009: an intervention,
    do(alpha)).

    A caption is decoded. At a word t that names object i, its map alpha_t is replaced by (1 - s) alpha_t + s m_j with
    m_j even on the box of another object j of the scene (by area; `geometry.places`), and the caption is decoded again:

        control(s) = E[ 1{y'_t names j} ],    y' = decode(do(alpha_t := (1 - s) alpha_t + s m_j)).

    Only the map of this word is replaced. The state h_{t-1}, from which the own map was scored, is unchanged, so with
    one beam the words before stay the same; h_t, the later words and their maps follow from the new map. If words came
    from the state alone, control would be 0; if from the map alone, 1. A map can point at the named object without
    control: a captioner that already knows the word may attend there without using it.

    Control is measured at the first word of each object, where the captioner must choose (in English its colour), and
    separately at the second one (its shape); with m_i of its own object (does it keep the word?), and with m even on
    one random region (does it name j by chance?); for all j of the scene.

    beams: widths of beam search; the metric `control` has the first.
    strengths: the strengths s of the curve of `control`.

    Measured in `eval`, for captioners that are `steerable`, where boxes are known. Intervals are over scenes
    (`metrics.intervals`). Takes about 30 captions for each scene and width.
    """

    def __init__(
        self, beams: Sequence[int] = (1, 3), strengths: Sequence[float | int] = (0, 0.25, 0.5, 0.75, 1)
    ) -> None:
        check_range("Control", 0, 1, **{f"strengths[{n}]": strength for n, strength in enumerate(strengths)})
        check_range("Control", 1, 1000, **{f"beams[{n}]": beam for n, beam in enumerate(beams)})
        self.beams, self.strengths = [*beams], sorted({*map(float, strengths), 1.0})
        self.outcomes: dict[tuple[Any, ...], dict[int, list[bool]]] = defaultdict(lambda: defaultdict(list))
        """The outcomes of each scene, by (beams, turn, forced, strength)."""
        self.scenes = 0

    @torch.no_grad()
    def examine(
        self,
        task: Any,
        batch: Any,
        regions: Float[Tensor, "B L D"],
        words: Int[Tensor, "B 1 T"],
        described: Sequence[DecodedCaption],
    ) -> list[Outcome]:
        """Decode all cases of a batch, and return their outcomes."""
        if not task.model.steerable or all(boxes is None for boxes in batch.boxes):
            return []
        _, rows, columns = task.encoder.layout
        grid, probed = RegionGrid(rows, columns, task.encoder.extent()), []
        objects = [objects_of(boxes or {}) for boxes in batch.boxes]
        for beams in self.beams:
            decoding = task.decoding.changed(beams=beams)
            own = task.described_from(regions, decoding)
            cases = [case for image, caption in enumerate(own) for case in cases_of(image, caption, objects[image])]
            for forced, strength in self._runs(first=beams == self.beams[0]):
                tried = ((case, _map(case, forced, grid, task.encoder.frames)) for case in cases)
                made = [(case, forced) for case, forced in tried if forced is not None]
                several, maps = [case for case, _ in made], [forced for _, forced in made]
                said = _captions_under(task, decoding, regions, several, maps, strength)
                for case, caption in zip(several, said, strict=True):
                    kept = own[case.image]
                    probed.append(outcome(case, caption, kept, objects[case.image], beams, forced, strength))
        return probed

    def _runs(self, *, first: bool) -> list[tuple[str, float]]:
        return [("other", strength) for strength in (self.strengths if first else [1.0])] + [
            ("own", 1.0),
            ("random", 1.0),
        ]

    def update(self, batch: Any, results: Results) -> None:
        for outcome in results.probed or ():
            image = self.scenes + outcome.image
            self.outcomes[outcome.beams, outcome.turn, outcome.forced, outcome.strength][image].append(outcome.named)
            if outcome.opens and outcome.strength == 1:
                self.outcomes[outcome.beams, 0, f"first_{outcome.forced}", 1.0][image].append(outcome.named)
            if outcome.next_own is not None and (outcome.forced, outcome.strength) == ("other", 1.0):
                self.outcomes[outcome.beams, 0, "next_own", 1.0][image].append(outcome.next_own)
        self.scenes += len(batch.boxes)

    def estimates(self) -> dict[str, Jackknife]:
        """Return the estimate of the share of each kind of case, by the names of `compute`."""
        estimates = {}
        for (beams, turn, forced, strength), cases in self.outcomes.items():
            parts = [forced if forced != "other" else "", "second" * turn]
            parts += ["" if strength == 1 else f"at_{strength:g}", "" if beams == self.beams[0] else f"beams_{beams}"]
            name = "_".join(["control", *filter(None, parts)])
            sums, counts = (
                np.array([count_of(list(map(float, said))) for said in cases.values()]) for count_of in (sum, len)
            )
            estimates[name] = ratio(sums, counts)
        return dict(sorted(estimates.items()))

    def compute(self) -> dict[str, float]:
        """Return shares, from 0 to 1; nothing without cases.

        `control` is the share of first words of objects that name the other object after the map was moved to it, with
        its 95% interval in `control_low` and `control_high`; `control_at_0.5` is the share at this strength.
        `control_own` is the share of these words that stay the same with an even map on their own object,
        `control_random` the share that name the other object with a map on one random region, and `control_next_own`
        the share after which the next word still names the own object. Names with "second" are for the second word of
        each object, those with "first_other", "first_own" and "first_random" for the first word in the caption that
        names any object, and those with "beams_3" for this width.
        """
        estimates = self.estimates()
        shares = {name: float(estimate.value) for name, estimate in estimates.items()}
        if "control" in estimates and (ends := estimates["control"].interval(low=0, high=1)) is not None:
            shares |= {"control_low": float(ends[0]), "control_high": float(ends[1])}
        return shares

    def write(self, folder: Path) -> None:
        """Write control.json: the share, the interval and the number of scenes and words of each kind of case."""
        with replacing(folder / "control.json") as path:
            path.write_text(
                json.dumps({name: numbers(estimate) for name, estimate in self.estimates().items()}, indent=1) + "\n"
            )


def numbers(estimate: Jackknife) -> dict[str, Any]:
    """Return a share with its 95% interval (None for few scenes) and the number of scenes."""
    ends = estimate.interval(low=0, high=1)
    return {
        "share": float(estimate.value),
        "interval": None if ends is None else ends.tolist(),
        "scenes": len(estimate.left_out),
    }


def objects_of(boxes: Mapping[str, Sequence]) -> dict[str, Object]:
    """Return the object that each word names."""
    return {word: tuple(tuple(map(float, box)) for box in places) for word, places in boxes.items()}


def cases_of(image: int, caption: DecodedCaption, objects: Mapping[str, Object]) -> list[Case]:
    """Return all cases of a caption: the first two words of each object, with each other object."""
    before: dict[Object, int] = defaultdict(int)
    cases = []
    for place, word in enumerate(caption.words):
        if (own := objects.get(word)) is None:
            continue
        turn, before[own] = before[own], before[own] + 1
        if turn < 2:
            others = [other for other in dict.fromkeys(objects.values()) if other != own]
            cases += [Case(image, place, turn, own, other, opens=len(before) == 1 and turn == 0) for other in others]
    return cases


def outcome(
    case: Case,
    caption: DecodedCaption,
    before: DecodedCaption,
    objects: Mapping[str, Object],
    beams: int,
    forced: str,
    strength: float,
) -> Outcome:
    """Compare the caption with the unchanged one, `before`, at the place of a case."""
    said, after = (*caption.words, "", "")[case.place : case.place + 2] if case.place < len(caption.words) else ("", "")
    named = said == before.words[case.place] if forced == "own" else objects.get(said) == case.other
    next_own = objects.get(after) == case.own if case.turn == 0 else None
    return Outcome(case.image, beams, case.turn, forced, strength, named, next_own, case.opens)


def _map(case: Case, forced: str, grid: RegionGrid, frames: int) -> Float[Tensor, "L"] | None:
    """Return the map of a case; None for an object without an area."""
    cells = grid.rows * grid.columns
    if forced == "random":
        return torch.zeros(frames * cells).index_fill(0, torch.randint(frames * cells, (1,)), 1)
    weights = torch.zeros(frames, cells, dtype=torch.float64)
    for x0, y0, x1, y1, *frame in case.own if forced == "own" else case.other:
        if x0 < x1 and y0 < y1 and (on := grid.on_mask(torch.ones(1, 1), Extent(x0, y0, x1, y1))) is not None:
            weights[int(frame[0]) if frame else 0] += on.flatten()
    return (weights / weights.sum()).float().flatten() if weights.any() else None


def _captions_under(
    task: Any, decoding: Any, regions: Tensor, cases: Sequence[Case], maps: Sequence[Tensor], strength: float
) -> list[DecodedCaption]:
    """Decode the caption of each case under its map, in batches that need little memory."""
    said: list[DecodedCaption] = []
    most = max(1, MAX_NUMBERS // regions[0].numel())
    for first in range(0, len(cases), most):
        some = cases[first : first + most]
        place = torch.tensor([case.place for case in some])
        alpha = torch.zeros(len(some), int(place.max()) + 1, 1, regions.shape[1])
        alpha[torch.arange(len(some)), place, 0] = torch.stack(list(maps[first : first + most]))
        images = torch.tensor([case.image for case in some], device=regions.device)
        steering = Steering(alpha, strength * alpha.any(dim=-1))
        said += task.described_from(regions[images], decoding, steering)
    return said

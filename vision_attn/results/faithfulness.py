"""`measure`: measure how faithful the maps of a model or a run are on images. Returns a `MeasureResult`."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vision_attn.data.images.squares import seen_part
from vision_attn.data.labelled.coco_boxes import Boxes
from vision_attn.explain.explained_models import Subject
from vision_attn.explain.methods import EXTRA
from vision_attn.faithfulness.examples import Example
from vision_attn.faithfulness.measurement import Given, Measurement, MeasureSettings
from vision_attn.faithfulness.own_images import OwnImages
from vision_attn.faithfulness.page import ExamplePicture, example_sheet, write_measured
from vision_attn.faithfulness.report import all_numbers
from vision_attn.geometry.extents import Extent
from vision_attn.results.displayable import Displayable
from vision_attn.results.images import Picture, held, is_one, name_of, whole
from vision_attn.results.result_list import Images
from vision_attn.system.console import complain
from vision_attn.system.errors import UserError
from vision_attn.system.files import replacing
from vision_attn.viz.figures.paper import Paper
from vision_attn.viz.overlay.views import VIEW, View, check_view
from vision_attn.viz.panel_sheets import save_picture

Methods = str | Sequence[str] | Mapping[str, Given | None] | None
"""The name of a method, or of several, or your own methods by name; None: all that suit the model."""


LOW, HIGH = 0.75, 1.5
"""The factors that turn an estimate of time into a range."""
SLOW = 20
"""If the first image takes more than this number of seconds, its time is reported at once."""
UNITS = ("h", 3600, 1), ("min", 60, 0), ("s", 1, 0)
"""The units of time: name, seconds, and number of decimals."""


@dataclass(repr=False)
class MeasureResult(Displayable):
    """The faithfulness of a model's maps, by several methods, on some images."""

    file: str
    """The name of the model."""
    numbers: dict[str, Any]
    """All measured numbers: see `vision_attn.faithfulness.report.all_numbers`."""
    examples: list[ExamplePicture]
    """The most and the least faithful answers, with their maps."""

    @property
    def methods(self) -> dict[str, dict[str, Any]]:
        """The numbers of each method, by its name."""
        methods: dict[str, dict[str, Any]] = self.numbers["methods"]
        return methods

    @property
    def text(self) -> str:
        """The verdict: which methods to trust."""
        return " ".join(self.numbers["verdict"])

    def record(self, *, maps: bool = False) -> dict[str, Any]:
        return {"model": self.file, **self.numbers}

    def __repr__(self) -> str:
        return f"<{self.file}, {self.numbers['images']} images: {self.text}>"

    def figure_on(self, paper: Paper, **options: Any) -> Any:
        """Draw the gain of each method with its interval, and the curves of deletion and insertion."""
        from vision_attn.viz.figures.charts import measured_figure

        return measured_figure(self.numbers, self.file, paper, **options)

    def write_page(self, path: Path, overlay: View = VIEW) -> None:
        check_view(overlay)
        write_measured(path, self.file, self.numbers, self.examples, overlay)

    def write_picture(self, path: Path, overlay: View = VIEW) -> None:
        check_view(overlay)
        save_picture(path, example_sheet(self.file, self.examples, overlay))

    def write_folder(self, folder: Path, overlay: View = VIEW) -> Path:
        """Write index.html and measure.json. Return the path of the page.

        overlay: the view of maps.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.write_page(folder / "index.html", overlay)
        with replacing(folder / "measure.json") as path:
            path.write_text(json.dumps(self.record(), indent=1) + "\n", encoding="utf-8")
        return folder / "index.html"


def measure(
    subject: Subject,
    name: str,
    images: Images,
    methods: Methods = None,
    *,
    boxes: str | Path | Boxes | OwnImages | None = None,
    unreadable: list[str] | None = None,
    total: int | None = None,
    **settings: Any,
) -> MeasureResult:
    """Measure the maps of a model on an image, a list of images, or an iterator, whose images are not kept.

    methods: names of `explain.methods.METHODS`, "attention:3" for the attention of layer 3, or {"mine": function} for
        your own: a function from the model's input (C, Y, X) and the text of an answer to a map. By default all that
        suit the model.
    boxes: a file of boxes or masks in COCO's format: see `data.labelled.coco_boxes.Boxes`; or `OwnImages`, which know
        their boxes.
    unreadable: a list that collects the messages of images that cannot be read.
    total: the number of images of an iterator.
    settings: `fill` ("linear", "mean" or "blur"), `steps`, `best`, `sanity`, `seed`: see
        `faithfulness.measurement.MeasureSettings`.

    After an interruption (Ctrl-C) the result covers the images that were measured until then.

    Raises UserError for unknown methods and settings, or if nothing can be measured.
    """
    several = [images] if is_one(images) else images
    total = len(several) if isinstance(several, Sequence) else total
    known = boxes_for(boxes, several)
    chosen: Measurement | None = None
    timed = 0
    try:
        for file, picture in _pictures(several, unreadable):
            seen = seen_part(picture, subject.fit)
            if chosen is None:
                chosen = Measurement(subject, _fitting(subject, seen, methods), MeasureSettings(**settings))
            start = time.perf_counter()
            answers = chosen.add(file, seen, None if known is None else known.of(file, subject.fit))
            timed += bool(answers)
            if answers and total and total > 2 and timed <= 2:
                for line in _estimate(chosen, time.perf_counter() - start, total, first=timed == 1):
                    complain(line)
        if chosen is None:
            why = unreadable[0] if unreadable else "no images were given"
            raise UserError(f"nothing could be measured: {why}")
        chosen.finish()
    except KeyboardInterrupt:
        if chosen is None or not any(answers for _, answers in chosen.by_image):
            raise
        chosen.interrupt()
    result = result_of(chosen, name)
    if isinstance(known, Boxes) and result.numbers["uniform"] is None:
        complain("no object in the file belongs to an answer to these images, so there is no pointing")
    return result


def result_of(measurement: Measurement, name: str) -> MeasureResult:
    """Return the result of a finished measurement."""
    pictures = [_example_picture(example, measurement.subject.seen) for example in measurement.examples.shown()]
    return MeasureResult(name, all_numbers(measurement), pictures)


def boxes_for(boxes: str | Path | Boxes | OwnImages | None, images: Any) -> Boxes | OwnImages | None:
    """Read the boxes of a file, or return known boxes. Raises UserError if a file has none of the images, by name."""
    if not isinstance(boxes, str | Path):
        return boxes
    known = Boxes(boxes)
    if isinstance(images, Sequence):
        names = [Path(name_of(image, number)).name for number, image in enumerate(images, 1)]
        if names and not any(name in known.photographs for name in names):
            some = ", ".join([*known.photographs][:3]) or "nothing"
            raise UserError(f"{boxes} has none of these images, such as {names[0]}; it has {some}")
    return known


def _example_picture(example: Example, seen: Extent) -> ExamplePicture:
    """Return an example with its maps on the picture.

    seen: the part of the picture that the model sees.
    """
    maps = {name: (heatmap.weights.clamp(min=0), heatmap.extent.within(seen)) for name, heatmap in example.maps.items()}
    return ExamplePicture(example.gain, example.file, example.picture, example.text, maps, seen)


def _pictures(images: Any, unreadable: list[str] | None) -> Iterator[tuple[str, Any]]:
    for number, image in enumerate(images, 1):
        given: Picture = image
        try:
            name = name_of(given, number)
            yield name, whole(held(given, name))
        except UserError as error:
            if unreadable is None:
                raise
            unreadable.append(str(error))


def _fitting(subject: Subject, seen: Any, methods: Methods) -> dict[str, Callable[..., Any] | None]:
    """Return the methods to measure. Raises UserError for methods that the model does not have."""
    with subject.turn:
        known = subject.methods(subject.read(seen))
    if methods is None:
        missing = [method for method in known if method in EXTRA] if find_spec("captum") is None else []
        if missing:
            complain(
                f"left out, since captum is not installed: {', '.join(missing)} (pip install 'vision-attn[explain]')"
            )
        return dict.fromkeys(method for method in known if method not in missing)
    methods = [methods] if isinstance(methods, str) else methods
    wanted = dict(methods) if isinstance(methods, Mapping) else dict.fromkeys(methods)
    for method, function in wanted.items():
        if function is None and method.partition(":")[0] not in known:
            raise UserError(f"this model has no method {method}; it has {', '.join(known)}")
    if not wanted:
        raise UserError("name a method, or leave methods out for all")
    return wanted


def _estimate(measurement: Measurement, seconds: float, images: int, *, first: bool) -> list[str]:
    """Estimate the time of the measurement from the seconds that an image took: a range, since images differ in their
    answers and the machine in its load. The first image includes work that is done once. So after the first, if it took
    long, only say that the others may take long, too."""
    if first:
        more = measurement.settings.best or measurement.settings.sanity
        rest = ", and best orders and random weights more" if more else ""
        most = f"{images:,} images may take {_time(images * seconds)}{rest}"
        return [f"the first image took {_time(seconds)}: {most}"] if seconds > SLOW else []
    after = measurement.seconds_of_end(images)
    total = seconds * images + after
    unit, size, digits = _unit(total)
    low, high = (f"{factor * total / size:.{digits}f}" for factor in (LOW, HIGH))
    rest = f", and {_time(after)} for best orders and random weights (--best, --sanity)" if after else ""
    return [
        f"measuring {', '.join(measurement.methods)} on {images:,} images takes about {low} to {high} {unit}: "
        f"{_time(seconds)} an image{rest}; fewer methods or images take less"
    ]


def _unit(seconds: float) -> tuple[str, int, int]:
    """Return the largest of `UNITS` that fits into the time at least twice."""
    return next(unit for unit in UNITS if seconds >= 2 * unit[1] or unit is UNITS[-1])


def _time(seconds: float) -> str:
    """Format a time in its unit: 0.4 s, 94 s, 3 min."""
    unit, size, digits = _unit(seconds)
    return f"{seconds / size:.{digits or int(seconds < 10)}f} {unit}"

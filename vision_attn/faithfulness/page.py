"""Write the page of a measurement: the verdict, a table, curves, and the most and the least faithful images."""

import io
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vision_attn.geometry.extents import WHOLE, Extent
from vision_attn.metrics.intervals import FEWEST
from vision_attn.system.console import plural, signed
from vision_attn.viz.curves import Plot, plot
from vision_attn.viz.html import data_url, write_html
from vision_attn.viz.overlay.pages import NAMES, constants
from vision_attn.viz.overlay.scale import number, shares
from vision_attn.viz.overlay.views import VIEW, View, overlaid
from vision_attn.viz.page import around, edges_of, map_of
from vision_attn.viz.panel_sheets import Panel, fitted, sheet

UNKNOWN = "–"
SIDE = 256
ACROSS = 6
"""The largest number of pictures of an example in a row."""
FILLED = {"linear": "noisy linear interpolation", "mean": "the mean colour", "blur": "the blurred image"}
TITLE = "How faithful the maps of {} are"


class ExamplePicture(NamedTuple):
    """An answer to be shown, with the maps of all methods."""

    gain: float
    file: str
    picture: Image.Image
    text: str
    maps: dict[str, tuple[Float[Tensor, "rows columns"], Extent]]
    """Each method's map, and where it lies on the picture."""
    seen: Extent = WHOLE
    """The part of the picture that the model sees."""


def write_measured(
    path: Path, model: str, numbers: Mapping[str, Any], examples: Sequence[ExamplePicture], overlay: View = VIEW
) -> Path:
    """Write the page of a measurement.

    numbers: see `faithfulness.report.all_numbers`.
    examples: the first half are the most faithful ones.
    overlay: the view of maps; see `viz.overlay`.
    """
    methods, settings = numbers["methods"], numbers["settings"]
    lines, middle = list(dict.fromkeys([*methods, "random"])), (len(examples) + 1) // 2
    table = _table(numbers, lines)
    return write_html(
        path,
        "measured.html",
        title=TITLE.format(model),
        guide=f"{plural(numbers['answers'], 'answer')} to {plural(numbers['images'], 'image')}. Regions that a map "
        "marks most are deleted from an image, or inserted into an empty one; in their place stands "
        f"{FILLED[settings['fill']]}.",
        verdict=numbers["verdict"],
        table=table,
        legend=_legend(numbers, table.heads),
        lines=lines,
        plots=_plots(numbers, lines),
        agreement=numbers["agreement"],
        most=[_example(example) for example in examples[:middle]],
        least=[_example(example) for example in examples[middle:]],
        views=NAMES,
        overlay=overlay,
        **constants(),
    )


class _Cell(NamedTuple):
    """The text of a number in the table.

    kind: "yes" for a number that is certainly good, "no" for a bad one, otherwise empty."""

    text: str
    kind: str = ""


UNSEEN = _Cell(UNKNOWN)


class _Row(NamedTuple):
    """The numbers of a method, or of an order to compare with, by the names of their columns."""

    label: str
    line: int | None
    """The number of the row's curve; None without one."""
    cells: dict[str, _Cell]
    kind: str = ""
    """"other" for an order to compare with."""


class _Table(NamedTuple):
    """The table of methods: the names of columns, each with a note, and the rows."""

    heads: dict[str, str]
    rows: list[_Row]


def _table(numbers: Mapping[str, Any], lines: Sequence[str]) -> _Table:
    """Return the table: the methods, best first, then a random and the best order. A column without numbers is left
    out."""
    pointed, checked = numbers["uniform"] is not None, any("sanity" in method for method in numbers["methods"].values())
    heads = {"gain": "over a random order", "95% interval": "of it alone", "deletion": "lower is better"}
    heads |= {"insertion": "higher is better"}
    heads |= {"of the best": "order that was found"} if numbers["best"] is not None else {}
    heads |= {"random weights": "likeness of maps"} if checked else {}
    heads |= {"pointing": "largest region on the object", "mass": "on the object"} if pointed else {}
    heads |= {"control": "words follow a map that is moved", "seconds": "for a map"}
    rows = [
        _Row(name, lines.index(name), _cells(method))
        for name, method in sorted(numbers["methods"].items(), key=lambda item: -item[1]["gain"])
    ]
    heads = {
        key: note for key, note in heads.items() if any(row.cells.get(key, UNSEEN).text != UNKNOWN for row in rows)
    }
    best = f"best order found, of {plural(numbers['searched'], 'image')}"
    for name, label in (("random", "random order"), ("best", best), ("uniform", "uniform map")):
        if (areas := numbers[name]) is not None:
            cells = {key: _Cell(_number(value)) for key, value in areas.items()}
            if name == "random" and numbers.get("control"):
                cells["control"] = _Cell(_number(numbers["control"]["random"]))
            rows.append(_Row(label, lines.index(name) if name in lines else None, cells, kind="other"))
    return _Table(heads, rows)


def _cells(method: Mapping[str, Any]) -> dict[str, _Cell]:
    """Return the numbers of a method by the name of their column."""
    ends, share = method["gain_interval"], method["share"]
    style = "" if ends is None else "yes" if method["is_better"] else "no" if ends[1] < 0 else ""
    cells = {
        "gain": _Cell(signed(method["gain"]), style),
        "95% interval": _Cell(UNKNOWN if ends is None else f"{signed(ends[0])} to {signed(ends[1])}"),
        "of the best": _Cell(UNKNOWN if share is None or style != "yes" else f"{share:.0%}"),
        "seconds": _Cell(f"{method['seconds']:.2g}"),
    }
    if "sanity" in method:
        text = f"{method['sanity'][-1]:.2f}"
        cells["random weights"] = _Cell(f"{text} unchanged", "no") if method["ignores_weights"] else _Cell(text)
    plain = ("deletion", "insertion", "pointing", "mass", "control")
    return cells | {key: _Cell(_number(method[key])) for key in plain if key in method}


def _number(value: float) -> str:
    """Format a number with three decimals, or three digits if it is small."""
    return f"{value:.3f}" if not value or value >= 0.1 else f"{value:#.3g}"


def _legend(numbers: Mapping[str, Any], heads: Mapping[str, str]) -> str:
    """Return the explanation of the shown columns, `heads`."""
    lines = [
        "Gain: the mean of how much lower the area under the deletion curve is than that of a random order, and how "
        "much higher that under the insertion curve."
    ]
    if "95% interval" in heads:
        lines.append(
            "Intervals: by a jackknife over images with Student's t, of each method by itself, not adjusted for their "
            "number. ✓: surely better than a random order, by a one-sided test that is adjusted (Holm)."
        )
    else:
        lines.append(f"No interval is given: it takes at least {FEWEST} images with an answer.")
    if numbers["best"] is None:
        lines.append("No best order was searched (--best 0), so no share of its gain is given.")
    else:
        lines.append(
            f"The best order was searched on the first answer to {plural(numbers['searched'], 'image')}: that of a "
            "method, or one found region by region of a coarse grid, whichever is best; its row is of these answers "
            "alone."
        )
    if "control" in heads:
        lines.append(
            "Control: how often a word is at least twice as likely at another word, when the map there is put on its "
            "place (its box, or the part of the image without which it is least likely); of a random order: on a "
            "random place."
        )
    if "of the best" in heads:
        lines.append(f"Of the best: the share of its gain, of the same answers; {UNKNOWN}: no sure gain.")
    lines.append(
        "Random weights: rank correlation of maps with those of the same model after its weights were shuffled, on "
        f"{plural(numbers['checked'], 'image')}. Near 0: the map depends on the model; near 1: it ignores it."
        if numbers["checked"]
        else "Maps were not compared with those of random weights (--sanity 0)."
    )
    if numbers["pointed"]:
        lines.append(f"Pointing and mass are of {plural(numbers['pointed'], 'answer')} with a box or mask.")
    return " ".join(lines)


def _plots(numbers: Mapping[str, Any], lines: Sequence[str]) -> list[Plot]:
    steps = numbers["settings"]["steps"]
    plots = []
    for order, text in (("deletion", "regions deleted"), ("insertion", "regions inserted")):
        curves = {
            name: [(100 * step / steps, value) for step, value in enumerate(curve[order])]
            for name, curve in numbers["curves"].items()
        }
        plots.append(
            plot(f"{numbers['score'].capitalize()} against the share of {text}, in percent", curves, lines, shown=[0])
        )
    checked = {name: method["sanity"] for name, method in numbers["methods"].items() if "sanity" in method}
    if checked:
        curves = {
            name: [(0, 1.0), *((100 * stage / len(values), value) for stage, value in enumerate(values, 1))]
            for name, values in checked.items()
        }
        text = "Rank correlation with the maps of before, against the percentage of layers with random weights"
        plots.append(plot(text, curves, lines, shown=[0, 1]))
    return plots


class _Map(NamedTuple):
    """A map of an example: the name of its method, its weights, and where they lie on the picture."""

    name: str
    weights: str
    rows: int
    columns: int
    extent: str
    most: str
    """The largest share of the weight in a region."""


class _Example(NamedTuple):
    """The template's data of an example: its picture as a data URL, and its maps."""

    name: str
    text: str
    gain: str
    source: str
    maps: list[_Map]
    seen: str
    """The edges of the part that the model sees; empty if it sees the whole picture."""
    around: str

    @property
    def across(self) -> int:
        """The number of pictures in a row of a wide screen, so that the rows are nearly equally long."""
        pictures = 1 + len(self.maps)
        return ceil(pictures / ceil(pictures / ACROSS))


def _mapped(name: str, weights: Float[Tensor, "rows columns"], extent: Extent, seen: Extent) -> _Map:
    most = number(float(shares(weights[None]).max()))
    rows, columns = weights.shape
    return _Map(name, map_of(weights), rows, columns, edges_of(extent.seen_from(seen)), most)


def _example(example: ExamplePicture) -> _Example:
    maps = [_mapped(name, *heatmap, example.seen) for name, heatmap in example.maps.items()]
    edges = ("", "") if example.seen == WHOLE else (edges_of(example.seen), around(example.seen))
    source = _source(fitted(example.picture, SIDE))
    return _Example(Path(example.file).name, example.text, signed(example.gain), source, maps, *edges)


def _pictures(example: ExamplePicture, overlay: View) -> list[Image.Image]:
    """Draw the plain picture, and the picture with each map on its own scale."""
    plain = fitted(example.picture, SIDE)
    return [plain] + [
        overlaid(plain, weights, overlay, extent=extent, seen=example.seen) for weights, extent in example.maps.values()
    ]


def _source(picture: Image.Image) -> str:
    content = io.BytesIO()
    picture.convert("RGB").save(content, "JPEG", quality=85)
    return data_url(content.getvalue(), "jpeg")


def example_sheet(model: str, examples: Sequence[ExamplePicture], overlay: View = VIEW) -> Image.Image:
    """Draw a row for each example, with the maps of all methods.

    overlay: see `viz.overlay`.
    """
    panels = []
    for example in examples:
        notes = [f"gain {signed(example.gain)}", *[""] * len(example.maps)]
        words = [example.text, *example.maps]
        panels += [Panel(*panel) for panel in zip(_pictures(example, overlay), words, notes, strict=True)]
    return sheet(panels, caption="", title=TITLE.format(model))

"""The page that says how faithful maps are: a verdict, a table, curves, and the most and the least faithful images."""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vision_attn.geometry.extents import Extent
from vision_attn.system.console import plural, signed
from vision_attn.viz.attention import light
from vision_attn.viz.curves import plot
from vision_attn.viz.sheet import Panel, fitted, glowing, save_page, sheet

COLOURS = (
    "#e69f00", "#3d9ad1", "#009e73", "#cc79a7", "#d55e00", "#7b6fd0", "#a0792c", "#c0392b", "#5c8f2a", "#1f9aa0",
)  # fmt: skip
"""Of methods, in turn; seen on white and on black."""
RANDOM = "#888888"
UNKNOWN = "–"
SIDE = 256
FILLED = {"linear": "noisy linear interpolation", "mean": "the mean colour", "blur": "the blurred image"}
TITLE = "How faithful the maps of {} are"


class ExamplePicture(NamedTuple):
    """An answer to be shown, with the maps of all methods."""

    gain: float
    file: str
    picture: Image.Image
    text: str
    maps: dict[str, tuple[Float[Tensor, "rows columns"], Extent]]
    """By method: a map, and where it lies on the picture."""


def write_measured(path: Path, model: str, numbers: Mapping[str, Any], examples: Sequence[ExamplePicture]) -> Path:
    """Write the page of `numbers` (`vision_attn.faithfulness.report.record`). The first half of `examples` is the most
    faithful."""
    methods, settings = numbers["methods"], numbers["settings"]
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(methods)} | {"random": RANDOM}
    middle = (len(examples) + 1) // 2
    parts = {
        "title": escape(TITLE.format(model)),
        "guide": f"{plural(numbers['answers'], 'answer')} to {plural(numbers['images'], 'image')}. Regions that a map "
        "marks most are deleted from an image, or inserted into an empty one; in their place stands "
        f"{FILLED[settings['fill']]}.",
        "verdict": "".join(f"<p>{escape(line)}</p>" for line in numbers["verdict"]),
        "table": _table(numbers, colours),
        "legend": _legend(numbers),
        "keys": "".join(f"<span>{_key(colour)}{escape(name)}</span>" for name, colour in colours.items()),
        "plots": "".join(_plots(numbers, colours)),
        "agreement": _agreement(numbers["agreement"]),
        "most": "".join(_example(one) for one in examples[:middle]),
        "least": "".join(_example(one) for one in examples[middle:]) or '<p class="quiet">Too few images.</p>',
    }
    page = files("vision_attn.viz").joinpath("measured.html").read_text(encoding="utf-8")
    return save_page(path, re.sub(r"{{(\w+)}}", lambda hole: parts[hole[1]], page))


def _table(numbers: Mapping[str, Any], colours: Mapping[str, str]) -> str:
    """The rows of methods, best first, and below them those of a random and of the best order."""
    pointed, checked = numbers["uniform"] is not None, any("sanity" in one for one in numbers["methods"].values())
    heads = {"gain": "over a random order", "95% interval": "", "deletion": "lower is better"}
    heads |= {"insertion": "higher is better"}
    heads |= {"of the best": "order that was found"} if numbers["best"] is not None else {}
    heads |= {"random weights": "likeness of maps"} if checked else {}
    heads |= {"pointing": "largest region on the object", "mass": "on the object"} if pointed else {}
    heads |= {"seconds": "for a map"}
    rows = [
        _row(_name(name, colours), _cells(one), heads)
        for name, one in sorted(numbers["methods"].items(), key=lambda item: -item[1]["gain"])
    ]
    best = f"best order found, of {plural(numbers['searched'], 'image')}"
    for name, label in (("random", "random order"), ("best", best), ("uniform", "uniform map")):
        if (one := numbers[name]) is not None:
            cells = {key: (_number(value), "") for key, value in one.items()}
            rows.append(_row(_name(name, colours, label), cells, heads, kind="other"))
    head = "".join(f"<th>{name}<small>{note}</small></th>" for name, note in {"method": "", **heads}.items())
    return f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"


def _cells(one: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The numbers of a method by the name of their column: each a text, and a class for its colour."""
    ends, share = one["gain_interval"], one["share"]
    kind = "" if ends is None else "yes" if one["is_better"] else "no" if ends[1] < 0 else ""
    cells = {
        "gain": (signed(one["gain"]), kind),
        "95% interval": (UNKNOWN if ends is None else f"{signed(ends[0])} to {signed(ends[1])}", ""),
        "of the best": (UNKNOWN if share is None or kind != "yes" else f"{share:.0%}", ""),
        "seconds": (f"{one['seconds']:.2g}", ""),
    }
    if "sanity" in one:
        ignores = one["ignores_weights"]
        cells["random weights"] = f"{one['sanity'][-1]:.2f}{' unchanged' * ignores}", "no" * ignores
    return cells | {key: (_number(one[key]), "") for key in ("deletion", "insertion", "pointing", "mass") if key in one}


def _number(value: float) -> str:
    """Three decimals, or three digits of what is small."""
    return f"{value:.3f}" if not value or value >= 0.1 else f"{value:#.3g}"


def _row(name: str, cells: Mapping[str, tuple[str, str]], heads: Mapping[str, str], kind: str = "") -> str:
    """A row of the table. Each cell has the name of its column, which a narrow screen shows in the place of heads."""
    drawn = "".join(
        f'<td data-name="{head}" class="{colour}">{text}</td>'
        for head, (text, colour) in ((head, cells.get(head, ("", ""))) for head in heads)
    )
    return f'<tr class="{kind}">{name}{drawn}</tr>'


def _name(name: str, colours: Mapping[str, str], label: str = "") -> str:
    return f"<th>{_key(colours[name]) if name in colours else ''}{escape(label or name)}</th>"


def _key(colour: str) -> str:
    return f'<i class="key" style="background: {colour}"></i>'


def _legend(numbers: Mapping[str, Any]) -> str:
    lines = [
        "Gain: the mean of how much lower the area under the deletion curve is than that of a random order, and how "
        "much higher that under the insertion curve. Intervals: images drawn with replacement."
    ]
    lines.append(
        f"The best order was searched on the first answer to {plural(numbers['searched'], 'image')}: that of a method, "
        "or one found region by region of a coarse grid, whichever is best; its row is of these answers alone. Of the "
        f"best: the share of its gain, of the same answers; {UNKNOWN}: no sure gain."
        if numbers["best"] is not None
        else "No best order was searched (--best 0), so no share of its gain is given."
    )
    if all(one["gain_interval"] is None for one in numbers["methods"].values()):
        lines.append("An interval takes at least two images.")
    lines.append(
        "Random weights: rank correlation of maps with those of the same model after its weights were shuffled, on "
        f"{plural(numbers['checked'], 'image')}. Near 0: the map depends on the model; near 1: it ignores it."
        if numbers["checked"]
        else "Maps were not compared with those of random weights (--sanity 0)."
    )
    if numbers["pointed"]:
        lines.append(f"Pointing and mass are of {plural(numbers['pointed'], 'answer')} with a box or mask.")
    return " ".join(lines)


def _plots(numbers: Mapping[str, Any], colours: Mapping[str, str]) -> list[str]:
    steps = numbers["settings"]["steps"]
    plots = []
    for kind, text in (("deletion", "regions deleted"), ("insertion", "regions inserted")):
        curves = {
            name: [(100 * step / steps, value) for step, value in enumerate(curve[kind])]
            for name, curve in numbers["curves"].items()
        }
        plots.append(plot(f"{numbers['score'].capitalize()} against the share of {text}, in percent", curves, colours))
    checked = {name: one["sanity"] for name, one in numbers["methods"].items() if "sanity" in one}
    if checked:
        curves = {
            name: [(0, 1.0), *((100 * stage / len(values), value) for stage, value in enumerate(values, 1))]
            for name, values in checked.items()
        }
        text = "Rank correlation with the maps of before, against the percentage of layers with random weights"
        plots.append(plot(text, curves, colours))
    return plots


def _agreement(agreement: Mapping[str, Mapping[str, float]]) -> str:
    """A table of how alike the maps of each two methods are."""
    if len(agreement) < 2:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in agreement)
    rows = "".join(
        f"<tr><th>{escape(name)}</th>"
        + "".join(f"<td>{'' if other == name else f'{value:.2f}'}</td>" for other, value in row.items())
        + "</tr>"
        for name, row in agreement.items()
    )
    return (
        '<h2>Agreement</h2><p class="quiet">Rank correlation of the maps of each two methods, the mean of all answers.'
        f'</p><div class="scroll"><table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _example(example: ExamplePicture) -> str:
    plain, *lit = _pictures(example)
    figures = [("picture", plain), *zip(example.maps, lit, strict=True)]
    drawn = "".join(
        f'<figure><img src="{_data(picture)}" alt="{escape(name)}"><figcaption>{escape(name)}</figcaption></figure>'
        for name, picture in figures
    )
    title = f"{escape(Path(example.file).name)} · <b>{escape(example.text)}</b> · mean gain {signed(example.gain)}"
    return f'<section class="example"><p>{title}</p><div class="maps">{drawn}</div></section>'


def _pictures(example: ExamplePicture) -> list[Image.Image]:
    """The plain picture, and the picture lit by each map."""
    plain = fitted(example.picture, SIDE)
    return [plain] + [
        glowing(plain, light(weights[None], plain.height, plain.width, extent)[0])
        for weights, extent in example.maps.values()
    ]


def _data(picture: Image.Image) -> str:
    content = io.BytesIO()
    picture.convert("RGB").save(content, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"


def example_sheet(model: str, examples: Sequence[ExamplePicture]) -> Image.Image:
    """A picture of the examples: a row for each, with the maps of all methods."""
    panels = []
    for example in examples:
        notes = [f"gain {signed(example.gain)}", *[""] * len(example.maps)]
        words = [example.text, *example.maps]
        panels += [Panel(*one) for one in zip(_pictures(example), words, notes, strict=True)]
    return sheet(panels, caption="", title=TITLE.format(model))

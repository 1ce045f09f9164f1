"""A chart of error against the cost of an answer: `python -m benchmarks.tradeoff PICTURE NAME=FOLDER ..`, with folders
that `eval --out` wrote.

A model that takes glimpses is drawn as a line with a point for each number of glimpses, a model that sees the whole
image as a single point.
"""

import json
import math
import sys
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from vision_attn.files import replacing
from vision_attn.viz.sheet import DARK

COLOURS = ("#ffb454", "#59c3ff", "#4cc38a", "#ff6b62", "#c58fff", "#f3f1ec")
WIDTH, HEIGHT, MARGIN = 620, 460, 70
LETTERS = 17
AXES = (("pixels read", 0), ("multiply-adds", 1))


class Curve(NamedTuple):
    """A model: the cost of each of its answers (pixels read, multiply-adds) and their error in percent."""

    name: str
    costs: list[tuple[float, float]]
    errors: list[float]


def read(name: str, folder: Path) -> Curve:
    """Read what `eval` wrote. An answer after t of T glimpses costs t / T of the last one."""
    metrics = json.loads((folder / "metrics_test.json").read_text())
    glimpses = folder / "glimpses_test.json"
    errors = json.loads(glimpses.read_text())["error"] if glimpses.exists() else [metrics["error"]]
    shares = [(glimpse + 1) / len(errors) for glimpse in range(len(errors))]
    return Curve(name, [(share * metrics["pixels"], share * metrics["multiply_adds"]) for share in shares], errors)


def tradeoff(curves: list[Curve]) -> Image.Image:
    """Draw two charts side by side, with logarithmic axes."""
    page = Image.new("RGB", (2 * WIDTH + 3 * MARGIN, HEIGHT + 3 * MARGIN // 2), DARK.paper)
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(LETTERS)
    errors = [error for curve in curves for error in curve.errors]
    low, high = min(errors) / 1.2, min(100.0, max(errors) * 1.2)
    for chart, (title, axis) in enumerate(AXES):
        left, top = MARGIN + chart * (WIDTH + MARGIN), MARGIN // 2
        costs = [cost[axis] for curve in curves for cost in curve.costs]
        first, last = min(costs) / 1.3, max(costs) * 1.3

        def point(cost: float, error: float, left=left, top=top, first=first, last=last) -> tuple[float, float]:
            across = math.log(cost / first) / math.log(last / first)
            down = math.log(high / error) / math.log(high / low)
            return left + across * WIDTH, top + down * HEIGHT

        draw.rectangle((left, top, left + WIDTH, top + HEIGHT), outline="#33373f")
        for error in (1, 2, 5, 10, 20, 50):
            if low < error < high:
                y = point(first, error)[1]
                draw.line((left, y, left + WIDTH, y), "#22262d")
                draw.text((left - 8, y), f"{error}%", DARK.quiet, font, "rm")
        for power in range(1, 12):
            for digit in (1, 2, 5):
                cost = digit * 10**power
                if first < cost < last:
                    x = point(cost, high)[0]
                    draw.line((x, top, x, top + HEIGHT), "#22262d")
                    draw.text((x, top + HEIGHT + 8), short(cost), DARK.quiet, font, "mt")
        draw.text((left + WIDTH / 2, top + HEIGHT + 34), title, DARK.ink, font, "mt")
        for curve, colour in zip(curves, COLOURS, strict=False):
            points = [point(cost[axis], error) for cost, error in zip(curve.costs, curve.errors, strict=True)]
            if len(points) > 1:
                draw.line(points, colour, 3, "curve")
            for x, y in points:
                draw.ellipse((x - 5, y - 5, x + 5, y + 5), colour)
    for number, (curve, colour) in enumerate(reversed(list(zip(curves, COLOURS, strict=False)))):
        y = MARGIN // 2 + HEIGHT - 16 - number * (LETTERS + 8)  # lower left, where there are no curves
        draw.ellipse((MARGIN + 12, y - 5, MARGIN + 22, y + 5), colour)
        draw.text((MARGIN + 32, y), curve.name, DARK.ink, font, "lm")
    return page


def short(number: int) -> str:
    """A number in thousands, millions or billions: 20k, 3M, 1G."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number // size}{letter}"
    return str(number)


def main(picture: str, *named: str) -> None:
    curves = [read(name, Path(folder)) for name, _, folder in (each.partition("=") for each in named)]
    if not 0 < len(curves) <= len(COLOURS):
        sys.exit(f"tradeoff: give from 1 to {len(COLOURS)} NAME=FOLDER")
    with replacing(picture) as path:
        tradeoff(curves).save(path, "PNG", optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

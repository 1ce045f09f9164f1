"""Charts: every line is drawn in its colour, where its points are, and axes have round numbers."""

import json

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

from benchmarks import kernel_regression, lengths
from benchmarks.charts import COLOURS, HEIGHT, MARGIN, WIDTH, Axis, Chart, _emptiest, save, short


def test_points_lie_where_the_axes_say(tmp_path):
    """A line from corner to corner, and one that is flat in the middle of a logarithmic axis."""
    lines = {"up": [(0.0, 1.0), (10.0, 100.0)], "flat": [(0.0, 10.0), (10.0, 10.0)]}
    save([Chart(lines, Axis("x", logarithmic=False), Axis("y"))] * 2, tmp_path / "new" / "chart.png")
    pixels = np.array(Image.open(tmp_path / "new" / "chart.png"))
    assert pixels.shape == (HEIGHT + 2 * MARGIN, 2 * WIDTH + 3 * MARGIN, 3)
    flat, up = ((pixels == ImageColor.getrgb(COLOURS[number])).all(axis=2) for number in (1, 0))
    edge = 2 * MARGIN + WIDTH  # of the second chart, which has no key
    rows = np.nonzero(flat[:, edge : edge + WIDTH])[0]
    assert abs(rows - (MARGIN // 2 + HEIGHT / 2)).max() <= 5
    left, right = (np.nonzero(up[:, column])[0].mean() for column in (edge + WIDTH // 4, edge + 9 * WIDTH // 10))
    assert left > right, "a larger value is further up"
    key = np.nonzero(flat[MARGIN // 2 + HEIGHT // 2 + 10 :, MARGIN : MARGIN + WIDTH])[1]
    assert len(key), "the line has its colour in the key, below it"


def test_the_key_covers_the_fewest_points():
    top, bottom, left, right = MARGIN // 2, MARGIN // 2 + HEIGHT, MARGIN, MARGIN + WIDTH
    one, next_left = [(left, top)], 2 * MARGIN + WIDTH
    assert _emptiest(one, [], 100, 50) == (left, bottom - 50)
    assert _emptiest(one, [(left + 10, bottom - 10)], 100, 50) == ((left + right - 100) / 2, bottom - 50)
    low = [(x, bottom - 10) for x in range(left, right, 20)]
    assert _emptiest(one, low, 100, 50) == (left, top)
    assert _emptiest(one, [*low, (left + 1, top + 1)], 100, 50) == ((left + right - 100) / 2, top)
    full = low + [(x, top + 10) for x in range(left, right, 20)]
    assert _emptiest([*one, (next_left, top)], full, 100, 50) == (next_left, bottom - 50), "in the second chart"


@pytest.mark.parametrize(
    "axis, ends, ticks",
    [
        (Axis("x", logarithmic=False), (0.5, 30.2), [5, 10, 15, 20, 25, 30]),
        (Axis("x", logarithmic=False), (0.0, 1.0), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (Axis("y"), (0.08, 130.0), [0.1, 1, 10, 100]),
        (Axis("y"), (1.5, 60.0), [2, 5, 10, 20, 50]),
        (Axis("y"), (5.4, 9.1), [5.5, 6, 6.5, 7, 7.5, 8, 8.5, 9]),
    ],
)
def test_ticks_are_round_numbers(axis, ends, ticks):
    assert axis.ticks(ends) == pytest.approx(ticks)


def test_numbers_are_short():
    assert [short(number) for number in (3, 2500, 20_000, 3e6, 1e9)] == ["3", "2.5k", "20k", "3M", "1G"]


def test_errors_by_length(tmp_path):
    (tmp_path / "transcripts_test.json").write_text(json.dumps({"error_by_length": {"1": 0.0, "30": 12.5}}))
    assert lengths.read(tmp_path) == [(1, lengths.LOWEST), (30, 12.5)]
    lengths.main(str(tmp_path / "chart.png"), f"CTC={tmp_path}")
    assert Image.open(tmp_path / "chart.png").size[1] == HEIGHT + 2 * MARGIN
    with pytest.raises(SystemExit, match="NAME=FOLDER"):
        lengths.main(str(tmp_path / "chart.png"))


def test_kernel_regression_is_its_formula_and_the_learned_bandwidth_is_better(tmp_path, capsys):
    x, y = kernel_regression.sample()
    at, bandwidth = torch.tensor([0.5, 4.0]), 0.3
    found = kernel_regression.regress(kernel_regression.Kernel(1, 1, bandwidth=bandwidth), at, x, y)
    kernel = torch.exp(-((at[:, None] - x) ** 2) / (2 * bandwidth**2))
    torch.testing.assert_close(found.value, (kernel * y).sum(dim=1) / kernel.sum(dim=1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.alpha, kernel / kernel.sum(dim=1, keepdim=True), rtol=1e-4, atol=1e-5)
    kernel_regression.main(str(tmp_path / "picture.png"))
    errors = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(errors) == 4 and errors[0] == min(errors)
    assert Image.open(tmp_path / "picture.png").size == (2 * (WIDTH + MARGIN) + MARGIN, HEIGHT + 2 * MARGIN)

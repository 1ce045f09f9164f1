"""The chart of error against the cost of an answer."""

import json

import pytest
from PIL import Image

from benchmarks.tradeoff import main, read


def evaluated(folder, errors: list[float]):
    folder.mkdir()
    metrics = {"error": errors[-1], "pixels": 300.0, "multiply_adds": 9e5}
    (folder / "metrics_test.json").write_text(json.dumps(metrics))
    if len(errors) > 1:
        (folder / "glimpses_test.json").write_text(json.dumps({"error": errors}))
    return folder


def test_an_answer_after_some_glimpses_costs_its_share(tmp_path):
    curve = read("RAM", evaluated(tmp_path / "ram", [40.0, 9.0, 4.0]))
    assert curve.costs == [pytest.approx((100 * number, 3e5 * number)) for number in (1, 2, 3)]
    assert curve.errors == [40.0, 9.0, 4.0]
    assert read("conv", evaluated(tmp_path / "conv", [8.0])).costs == [(300.0, 9e5)]


def test_the_figure(tmp_path):
    named = {name: evaluated(tmp_path / name, errors) for name, errors in (("one", [40.0, 9.0]), ("two", [8.0]))}
    main(str(tmp_path / "new" / "figure.png"), *(f"{name}={folder}" for name, folder in named.items()))
    assert Image.open(tmp_path / "new" / "figure.png").size[0] > 1000
    with pytest.raises(SystemExit, match="NAME=FOLDER"):
        main(str(tmp_path / "figure.png"))

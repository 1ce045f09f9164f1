"""Which weights are kept as the best."""

import json
import math
from contextlib import suppress

import pytest
from toy import Plane

from tests.engine.test_engine import lines, train_plain
from vision_attn.engine.run_folder.best import better
from vision_attn.engine.run_folder.checkpoint import Position


class Stopped(Exception):
    pass


def chosen(metrics: list[dict], **how) -> list[bool]:
    position = Position({})
    return [better(one, position, **({"metric": "BLEU-4", "mode": "max"} | how)) for one in metrics]


def test_a_metric_that_is_practically_0_does_not_choose(capsys):
    """By BLEU-4's smoothing alone, the first would stay the best."""
    assert chosen([
        {"BLEU-4": 1.4e-8, "CIDEr": 0.0, "nll": 3.245},
        {"BLEU-4": 1e-9, "CIDEr": 0.049, "nll": 3.024},
        {"BLEU-4": 9e-4, "CIDEr": 0.0, "nll": 3.1},
        {"BLEU-4": float("nan"), "CIDEr": 0.0, "nll": 2.9},
        {"BLEU-4": 0.01, "CIDEr": 0.1, "nll": 4.0},
        {"BLEU-4": 1e-9, "CIDEr": 0.1, "nll": 1.0},
        {"BLEU-4": 0.02, "CIDEr": 0.0, "nll": 5.0},
        {"BLEU-4": 0.015, "CIDEr": 0.0, "nll": 1.0},
    ]) == [True, True, False, True, True, False, True, False]  # fmt: skip
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1 and said[0].startswith("BLEU-4 is practically 0 (1.4e-08): until it reaches 0.001, the ")
    of_mine = [{"CIDEr_mine": 0.0, "nll_mine": mine, "nll": nll} for mine, nll in ((3.0, 1.0), (2.0, 2.0), (2.5, 0.5))]
    assert chosen(of_mine, metric="CIDEr_mine") == [True, True, False], "the nll of the same data set"


def test_without_nll_and_for_a_metric_to_minimise_nothing_changes(capsys):
    values = [1e-8, 1e-9, 1e-7, 0.5, 0.4]
    assert chosen([{"BLEU-4": value} for value in values]) == [True, False, True, True, False]
    errors = [{"error": value, "nll": nll} for value, nll in ((1e-5, 1.0), (1e-6, 2.0), (1e-6, 0.0), (-1.0, 3.0))]
    assert chosen(errors, metric="error", mode="min") == [True, True, False, True]
    below = [{"bound": value, "nll": 1.0} for value in (-90.0, -91.0, -89.0, -0.5, 0.2)]
    assert chosen(below, metric="bound") == [True, False, True, True, True]
    small = [{"mine": value, "nll": nll} for value, nll in ((8e-4, 3.0), (7e-4, 2.0), (float("nan"), 1.0), (9e-4, 4.0))]
    assert chosen(small, metric="mine") == [True, False, False, True]
    assert capsys.readouterr().out == ""


def test_a_run_keeps_by_nll_and_says_it_once_though_it_was_stopped(tmp_path, monkeypatch, capsys):
    values = iter([(1e-8, 3.0), (1e-9, 2.0), None, (1e-9, 2.5), (0.0, 1.0), (0.0, 1.5), (0.0, 1.6), (0.0, 1.7)])

    def judge(task, predictions, folder=None):
        if (pair := next(values)) is None:
            raise Stopped
        return {"BLEU-4": pair[0], "nll": pair[1]}

    monkeypatch.setattr(Plane, "judge", judge)
    settings = {"metric": "BLEU-4", "mode": "max", "epochs": 20, "patience": 2, "sanity_check": False}
    with suppress(Stopped):
        train_plain(tmp_path / "run", **settings)
    assert train_plain(tmp_path / "run", **settings)["nll"] == 1.0
    assert capsys.readouterr().out.count("is practically 0") == 1
    assert [line["val/nll"] for line in lines(tmp_path / "run") if "val/nll" in line] == [3.0, 2.0, 2.5, 1.0, 1.5, 1.6]
    assert json.loads((tmp_path / "run" / "best" / "metrics_val.json").read_text())["epoch"] == 4


def test_not_a_number_is_better_than_no_weights_only():
    nan = float("nan")
    for mode in ("min", "max"):
        values = [{"error": value} for value in (nan, nan, 3.0, nan)]
        assert chosen(values, metric="error", mode=mode) == [True, False, True, False]


def test_what_is_no_number_is_written_as_strict_json(tmp_path, monkeypatch):
    monkeypatch.setattr(Plane, "judge", lambda *_: {"error": 1.0, "spread": float("nan"), "largest": float("inf")})
    best = train_plain(tmp_path / "run", metric="error", mode="min", epochs=1, sanity_check=False)
    assert best["error"] == 1.0 and math.isnan(best["spread"])
    text = (tmp_path / "run" / "best" / "metrics_val.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["spread"] is None

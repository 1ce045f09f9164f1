"""Runs side by side: `vision-attn compare`."""

import json
import re
from pathlib import Path
from xml.dom import minidom

import pytest
import yaml

from vision_attn.commands import main


def write_run(folder: Path, *, seed: int = 0, gain: float | None = None, score: float = 0.5, test: bool = True) -> Path:
    arguments = {} if gain is None else {"gain": gain}
    config = {
        "task": {"class_path": "a.b.Task", "init_args": {"score": {"class_path": "a.c.Score", "init_args": arguments}}},
        "run": {"seed": seed, "metric": "BLEU-4", "folder": str(folder)},
    }
    (folder / "best").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "best" / "metrics_val.json").write_text(json.dumps({"step": 20, "BLEU-4": score, "pointing": 0.75}))
    if test:
        (folder / "metrics_test.json").write_text(json.dumps({"BLEU-4": score + 0.25, "seed": seed}))
    lines = [{"step": step, "epoch": 1, "loss": 1 / step, "bad": None, "seconds": 1.0} for step in (10, 20)]
    lines.append({"step": 20, "epoch": 1, "val/BLEU-4": score})
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 30, "lo')
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    made = [
        write_run(tmp_path / "a", seed=0, gain=1.0, score=0.25), write_run(tmp_path / "b", seed=1, gain=1.0, score=0.5),
        write_run(tmp_path / "c & d", seed=0, gain=10.0, score=0.625, test=False),
    ]  # fmt: skip
    return list(map(str, made))


def test_keys_that_differ_and_metrics_are_a_table(runs, capsys):
    assert main(["compare", *runs]) == 0
    head, *rows, seeds = capsys.readouterr().out.splitlines()
    assert re.split("  +", head) == ["run", "task.score.gain", "run.seed", "step", "val BLEU-4", "test BLEU-4"]
    assert [re.split("  +", row)[1:] for row in rows] == [
        ["1.0", "0", "20", "0.2500", "0.5000"], ["1.0", "1", "20", "0.5000", "0.7500"],
        ["10.0", "0", "20", "0.6250", "-"],
    ]  # fmt: skip
    assert seeds == f"2 seeds, {runs[0]} and so on: val BLEU-4 0.3750 +- 0.1768, test BLEU-4 0.6250 +- 0.1768"
    assert main(["compare", runs[0], runs[2], "--metrics", "pointing", "none"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert re.split("  +", rows[0])[1:] == ["1.0", "20", "0.7500", "-", "-", "-"] and len(rows) == 2
    assert main(["compare", runs[0], "--metrics", "pointing", "none"]) == 0
    assert capsys.readouterr().err == "vision-attn: no run has none\n"


def test_test_metrics_of_other_weights_are_left_out(runs, capsys):
    """Training went on since they were measured."""
    place = Path(runs[0]) / "metrics_test.json"
    for step, shown in ((20, "0.5000"), (10, "-")):
        place.write_text(json.dumps(json.loads(place.read_text()) | {"step": step}))
        assert main(["compare", runs[0], runs[1]]) == 0
        printed = capsys.readouterr()
        assert re.split("  +", printed.out.splitlines()[1])[-1] == shown
    assert printed.err == (
        f"vision-attn: {runs[0]}: its test metrics are of step 10, its weights of step 20: vision-attn eval {runs[0]}\n"
    )


def test_a_run_twice_is_not_two_seeds(runs, capsys):
    assert main(["compare", runs[0], runs[0]]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_run_that_is_not_finished_is_named(runs, capsys):
    (Path(runs[1]) / "last").mkdir()
    (Path(runs[1]) / "last" / "position.json").write_text(json.dumps({"epoch": 3, "done": False}))
    assert main(["compare", *runs]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "not finished" in line]
    assert said == [f"{runs[1]} is not finished: epoch 3 is done"]


def test_all_that_is_known_is_json(runs, capsys):
    assert main(["compare", *runs, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["run"] for one in found] == runs
    assert found[2]["keys"] == {"task.score.gain": 10.0, "run.seed": 0} and found[2]["test"] == {}
    assert found[0]["val"]["pointing"] == 0.75


def test_curves_are_a_page(runs, tmp_path, capsys):
    assert main(["compare", *runs, "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "index.html").read_text()
    plots = {
        plot.getAttribute("aria-label"): plot for plot in map(parsed, re.findall("<svg.*?</svg>", page, re.DOTALL))
    }
    assert plots.keys() == {"loss", "val/BLEU-4"}
    names = [title.firstChild.data for title in plots["loss"].getElementsByTagName("title")]
    assert names == runs
    points = [line.getAttribute("points") for line in plots["loss"].getElementsByTagName("polyline")]
    assert points == ["100.0,8.0 632.0,248.0"] * 3
    assert "c &amp; d" in page


def parsed(svg: str):
    return minidom.parseString(svg).documentElement


def test_what_is_no_run_or_has_no_curves_is_said(runs, tmp_path, capsys):
    assert main(["compare", runs[0], str(tmp_path / "none")]) == 1
    assert "none is no run: it holds neither config.yaml nor best/config.yaml" in capsys.readouterr().err
    (tmp_path / "a" / "metrics.jsonl").unlink()
    assert main(["compare", runs[0], "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[1].split()[-1] == "0.5000" and not (tmp_path / "out").exists()
    assert said.err.endswith("no page is written: these runs have no metrics.jsonl, so there are no curves\n")
    (tmp_path / "a" / "best" / "metrics_val.json").write_text("[1]")
    assert main(["compare", runs[0]]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-3:] == ["-", "-", "0.5000"]


def test_an_included_run_is_found_by_its_name_anywhere(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = ["weights/ram_cluttered60", "weights/draw_reader_cluttered100"]
    assert main(["compare", *names, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["run"] for one in found] == names
    assert all(0 < one["test"]["error"] < 10 and one["val"]["step"] > 0 for one in found)

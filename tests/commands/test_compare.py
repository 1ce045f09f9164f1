"""Runs side by side: `vision-attn compare`."""

import json
import re
from pathlib import Path
from typing import Any
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
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Relative names, and lines as long as in a file: how much room there is depends on both."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "119")
    made = [
        write_run(Path("a"), seed=0, gain=1.0, score=0.25), write_run(Path("b"), seed=1, gain=1.0, score=0.5),
        write_run(Path("c & d"), seed=0, gain=10.0, score=0.625, test=False),
    ]  # fmt: skip
    return list(map(str, made))


def test_keys_that_differ_and_metrics_are_a_table(runs, capsys):
    assert main(["compare", *runs]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert re.split("  +", head) == ["#", "run", "task.score.gain", "run.seed", "step", "val BLEU-4", "test BLEU-4"]
    assert [re.split("  +", row)[2:] for row in (rows[0], rows[1], rows[4])] == [
        ["1.0", "0", "20", "0.2500", "0.5000"], ["1.0", "1", "20", "0.5000", "0.7500"],
        ["10.0", "0", "20", "0.6250", "-"],
    ]  # fmt: skip
    assert [re.split("  +", row)[1:] for row in rows[2:4]] == [
        ["mean of 2 seeds", "0.3750", "0.6250"], ["+- standard deviation", "0.1768", "0.1768"],
    ]  # fmt: skip
    assert main(["compare", runs[0], runs[2], "--metrics", "pointing", "none"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert re.split("  +", rows[0])[2:] == ["1.0", "20", "0.7500", "-", "-", "-"] and len(rows) == 2
    assert main(["compare", runs[0], "--metrics", "pointing", "none"]) == 0
    assert capsys.readouterr().err == "vision-attn: no run has none; choose from: BLEU-4, pointing, seed, step\n"
    assert main(["compare", *runs, "--metrics", "bleu4"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"vision-attn: {runs[2]} has no test metrics: vision-attn eval {runs[2]}",
        "vision-attn: no run has bleu4; did you mean BLEU-4?",
    ]


def test_a_figure_shows_the_metrics_that_are_named(runs, tmp_path, capsys):
    for names, shown in ((["BLEU-4", "nil"], {"val/BLEU-4"}), (["loss"], {"loss"}), (["nil"], set())):
        figure = tmp_path / f"{names[0]}.svg"
        assert main(["compare", *runs, "--figure", str(figure), "--metrics", *names]) == 0
        told = figure.read_text() if shown else ""
        assert {name for name in ("val/BLEU-4", "loss") if f">{name}<" in told} == shown
    assert f"{tmp_path / 'nil.svg'} is not drawn: no run has nil" in capsys.readouterr().err


def test_no_line_is_wider_than_a_terminal(runs, tmp_path, capsys):
    """Keys without room stand below the table, by the numbers of runs; so do metrics that were asked for."""
    for number, folder in enumerate(runs):
        file = Path(folder) / "config.yaml"
        config = yaml.safe_load(file.read_text())
        config["task"]["init_args"] |= {f"a_key_with_a_long_name_{key}": f"{key}{number // 2}" * 30 for key in "xyz"}
        file.write_text(yaml.safe_dump(config, sort_keys=False))
    names = [f"metric_{number}" for number in range(12)]
    (Path(runs[0]) / "metrics_test.json").write_text(json.dumps(dict.fromkeys(names, 0.5) | {"METEOR": 0.25}))
    assert main(["compare", *runs]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 120
    assert next(line for line in lines if "name_x" in line).split("  ")[1].startswith("1, 2: x0x0x0")
    assert "task.score.gain  1, 2: 1.0; 3: 10.0" in lines and lines[0].endswith("test METEOR")
    assert main(["compare", *runs, "--metrics", *names]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 120
    assert re.findall(r"test (metric_\d+)", "\n".join(lines)) == names


def test_a_table_has_the_width_of_the_terminal_and_a_single_run_is_a_column(runs, capsys, monkeypatch):
    metrics = {"BLEU-4": 0.5, "METEOR": 0.25, "CIDEr": 0.75, "nll": 2.0}
    for folder in runs:
        (Path(folder) / "metrics_test.json").write_text(json.dumps(metrics | {"step": 20}))
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["compare", *runs[:2]]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["compare", runs[0]]) == 0
    lines = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()]
    assert ["test BLEU-4", "0.5000"] in lines and ["test nll", "2.0000"] in lines


def test_runs_without_logs_have_a_table_a_page_and_bars(runs, tmp_path, capsys):
    for folder in runs:
        (Path(folder) / "metrics.jsonl").unlink()
    figure = tmp_path / "figure.svg"
    assert main(["compare", *runs, f"--figure={figure}", f"--out={tmp_path / 'out'}"]) == 0
    printed = capsys.readouterr()
    assert "test BLEU-4" in printed.out and (tmp_path / "out" / "index.html").is_file()
    assert "with bars of test metrics: these runs have no metrics.jsonl" in printed.err
    assert "test/BLEU-4" in figure.read_text() and f"2 {runs[1]}"[-9:] in figure.read_text()
    assert main(["compare", runs[2], f"--figure={tmp_path / 'b.svg'}"]) == 0
    assert "is not drawn: these runs have neither" in capsys.readouterr().err


def test_a_key_of_a_class_that_others_lack_is_counted(runs, capsys):
    """The class is told, and it says what its keys say."""
    file = Path(runs[0]) / "config.yaml"
    file.write_text(file.read_text().replace("a.c.Score", "a.d.Other").replace("gain", "loss"))
    assert main(["compare", runs[0], runs[2]]) == 0
    head, *rows, more = capsys.readouterr().out.splitlines()
    assert re.split("  +", head)[2:4] == ["task.score", "step"]
    assert [re.split("  +", row)[2] for row in rows] == ["Other", "Score"]
    assert more == "2 more keys are of classes that only some of the runs have: --json"


def clutter(name: str = "Clutter", **arguments: Any) -> dict:
    return {"data": {"class_path": f"a.{name}", "init_args": arguments}}


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"task": {"class_path": "a.b.Reading"}}, "their tasks differ: Task and Reading"),
        (clutter(canvas=100), "their test sets differ in data.canvas: 60 and 100"),
        (clutter("Digits", canvas=60), "their test sets differ in data: Clutter and Digits"),
        (clutter(canvas=60, batch_size=3), ""),
        (clutter(canvas=60, words="cased"), "their test sets differ in data.words: spaces and cased"),
        (clutter(canvas=60, words=None), "their test sets differ in data.words: spaces and cased"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_stands_in_tables_of_its_own(change, reason, runs, capsys):
    for folder, changed in ((runs[0], {}), (runs[1], {}), (runs[2], change)):
        file = Path(folder) / "config.yaml"
        config = yaml.safe_load(file.read_text()) | clutter(canvas=60) | changed
        file.write_text(yaml.safe_dump(config, sort_keys=False))
    (Path(runs[2]) / "best" / "vocabulary.json").write_text('{"words": "cased"}')  # of a run that begins with it
    assert main(["compare", *runs]) == 0
    printed = capsys.readouterr().out
    assert printed.count("val BLEU-4") == (2 if reason else 1)
    assert ("tables" in printed) == bool(reason)
    assert not reason or printed.endswith(f"\ntables 1 and 2 are apart, since {reason}\n")


def test_other_data_at_eval_are_another_test_set(runs, capsys):
    """And a model that was not trained here stands beside runs that were measured on the same data."""
    for folder, images in ((runs[0], "a"), (runs[1], "b")):
        file = Path(folder) / "metrics_test.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"overrides": [f"--data.images={images}"]}))
    assert main(["compare", *runs[:2]]) == 0
    assert "their test sets differ in data.images: a and b" in capsys.readouterr().out
    other = Path(runs[0]).parent / "other"
    other.mkdir()
    record = {"BLEU-4": 0.125, "run": "transformers:git", "seed": 0, "overrides": ["--data.images=b"]}
    (other / "metrics_test.json").write_text(json.dumps(record))
    assert main(["compare", *runs[:2], str(other)]) == 0
    second = capsys.readouterr().out.split("\n\n")[1]
    assert [line.split()[0] for line in second.splitlines()[2:]] == ["2", "3"]


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


def test_tables_and_curves_are_a_page(runs, tmp_path, capsys):
    assert main(["compare", *runs, "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "index.html").read_text()
    plots = {
        plot.getAttribute("aria-label"): plot
        for plot in map(parsed, re.findall('<svg class="chart".*?</svg>', page, re.DOTALL))
    }
    assert plots.keys() == {"loss", "val/BLEU-4"}
    names = [title.firstChild.data for title in plots["loss"].getElementsByTagName("title")]
    assert names == [f"{number} {run}" for number, run in enumerate(runs, start=1)]
    points = [line.getAttribute("points") for line in plots["loss"].getElementsByTagName("polyline")]
    assert points == ["48.0,10.0 340.0,155.0"] * 3
    ends = [text.firstChild.data for text in plots["loss"].getElementsByTagName("text")][-3:]
    assert ends == ["1", "2", "3"]
    assert "c &amp; d" in page and "<td>0.3750<small>± 0.1768</small></td>" in page
    assert page.index("<table>") < page.index('<svg class="chart"')


def parsed(svg: str):
    return minidom.parseString(svg).documentElement


def test_what_is_no_run_is_said_and_a_page_of_no_curves_has_tables(runs, tmp_path, capsys):
    assert main(["compare", runs[0], str(tmp_path / "none")]) == 1
    assert "none is no run: it holds neither config.yaml nor best/config.yaml" in capsys.readouterr().err
    (tmp_path / "a" / "metrics.jsonl").unlink()
    assert main(["compare", runs[0], "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == "0.5000"
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<td>0.5000</td>" in page and "<h3>Curves" not in page
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

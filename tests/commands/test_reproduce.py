"""Rows of papers, made again: `vision-attn reproduce`."""

import json
from argparse import Namespace
from math import sqrt
from pathlib import Path

import pytest

from tests import pretend
from vision_attn.commands import _paper_rows as paper
from vision_attn.commands import main, reproduce
from vision_attn.commands._paper_rows import Measure, paper_rows, trainings
from vision_attn.commands._reproduce_plan import Plan, Value, compared, steps, train_words
from vision_attn.configuration.config import read
from vision_attn.system.bounded_yaml import flat
from vision_attn.system.files import shipped

CONFIGS = Path(__file__).parents[2] / "configs"
FEW = ["--data.stories=12", "--data.test_stories=6", "--run.epochs=2", "--show=1"]
"""Stories of which nothing can be learned."""


@pytest.mark.slow
def test_all_rows_run_in_one_process(tmp_path, capsys):
    """Tiny models on made-up data: every row is trained, measured, and stands on the page and in the table."""
    assert main(["reproduce", "--quick", "--show=0", f"--out={tmp_path}"]) == 0
    out, named = tmp_path / "quick", [row for row in paper_rows() if row.trainings]
    assert f"{len(named)} of {len(named)}: " in capsys.readouterr().out
    table, page = (out / "table.md").read_text(), (out / "index.html").read_text()
    for row in named:
        assert f"| {row.name} | {next(iter(row.before))} |" in table and f"<h3>{row.name}</h3>" in page
    assert "not yet" not in table and "worse |" not in table and page.count("not judged</p>") == len(named)


@pytest.fixture
def told(monkeypatch):
    """Lets the documents say other numbers of the first task of stories."""

    def change(value: float) -> None:
        changed = [row._replace(before=dict.fromkeys(row.before, [value])) for row in paper_rows()]
        for module in (paper, reproduce):
            monkeypatch.setattr(module, "paper_rows", lambda: [row for row in changed if row.name == "memory_task1"])

    return change


def test_a_row_is_red_when_its_number_is_spoiled(told, tmp_path, monkeypatch, capsys):
    """Trained once; then the documents are changed, and nothing is trained again."""
    command = ["reproduce", "memory_task1", f"--out={tmp_path}", "--device=cpu", *FEW]
    told(100.0)
    assert main(command) == 0
    said = capsys.readouterr()
    assert (
        "1 row: about 84 s on a core of a CPU" in said.out.splitlines()[0] and "3 hops: before 100.0, now " in said.out
    )
    assert (tmp_path / "memory_task1_hop1" / "metrics_test.json").is_file()
    state = '<div class="row {}">'
    assert state.format("as-before") in (tmp_path / "index.html").read_text()
    told(0.1)
    assert main(command) == 1
    said = capsys.readouterr()
    assert "worse than the documents say: memory_task1" in said.err and "training on" not in said.out
    page = (tmp_path / "index.html").read_text()
    assert state.format("worse") in page and '<td class="worse">worse</td>' in page and "--run.epochs=2" in page
    assert page.count('<svg class="chart"') == 1 and 'href="memory_task1_hop1/pictures_test/index.html"' in page
    assert "| **worse** |" in (tmp_path / "table.md").read_text()


def test_a_row_that_was_stopped_is_not_measured_and_goes_on(told, tmp_path, monkeypatch, capsys):
    told(100.0)

    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    command = ["reproduce", "memory_task1", f"--out={tmp_path}", "--device=cpu", *FEW]
    with monkeypatch.context() as patch:
        pretend.a_verb_does(patch, "train", interrupted)
        assert main(command) == 130
    assert "| memory_task1 | | 0.0 | | | not yet |" in (tmp_path / "table.md").read_text()
    assert main(command) == 0
    assert "training on cpu" in capsys.readouterr().out


def test_a_row_that_fails_leaves_the_others(tmp_path, capsys):
    assert main(["reproduce", "memory_task1", f"--out={tmp_path}", "--run.nothing=1", *FEW]) == 1
    said = capsys.readouterr().err
    assert "run.nothing" in said and "failed: memory_task1" in said
    assert '<div class="row failed">' in (tmp_path / "index.html").read_text()


def test_hours_take_what_fits(tmp_path, capsys, monkeypatch):
    """Those that take least first; what was trained already takes nothing."""
    made = []

    def train(arguments: Namespace) -> int:
        made.extend(Path(word).name for word in arguments.overrides if word.startswith("--run.folder="))
        return 1

    pretend.a_verb_does(monkeypatch, "train", train)
    command = ["reproduce", "memory_*", "sat_soft_scenes", f"--out={tmp_path}", "--device=cpu", "--hours=0.05"]
    assert main(command) == 1  # nothing was made
    said = capsys.readouterr()
    assert made == ["memory_task1_hop1"] and "1 of 1: memory_task1: " in said.out  # the first training of the only row
    assert "left out: sat_soft_scenes, which takes 5 min" in said.err and "1 row: about 84 s" in said.out


def test_rows_are_listed_with_their_papers_and_times(capsys):
    assert main(["reproduce"]) == 0
    said = capsys.readouterr().out
    assert "RAM (Mnih et al. 2014): MNIST" in said and "  ram_cluttered60: cluttered, 60x60\n" in said
    line = next(line for line in said.split("  ram_cluttered60: ")[1].splitlines()[1:])
    assert line.startswith("    paper 4.04; ours sampled 1.26, at the means 1.65, 10 copies 1.15; seed 0; EPYC, 82 min")
    assert "weights included" in line and "not by this command" in said
    for row in paper_rows():
        assert f"  {row.name or '-'}: {row.what}\n" in said


@pytest.mark.parametrize(
    "argv, told",
    [
        (["ram_cluttered6"], "did you mean ram_cluttered60"),
        (["photographs"], "--included measures its weights"),
        (["ram_mnist28", "--included"], "ram_mnist28 has no included weights"),
        (["--all", "--seeds=0"], "--seeds is 0"),
    ],
)
def test_what_cannot_be_made_is_told(argv, told, tmp_path, capsys):
    assert main(["reproduce", *argv, f"--out={tmp_path}"]) == 1
    assert told in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_number_is_worse_by_two_standard_errors_of_seeds_or_of_images():
    """By hand. Of seeds: 0.5 sqrt(1/3 + 1); of images: sqrt(2) times that of 1,000 images of which 10% are wrong."""
    up, down = Measure(["BLEU-4"], "max"), Measure(["error"], "min")
    seeds = [19.5, 20.0, 20.5]
    for value, worse in ((18.85, False), (18.84, True), (25.0, False)):
        number = compared("BLEU-4", seeds, [Value(value, 5.0, 1000, False)], up, 1)
        assert number.error == pytest.approx(0.5 * sqrt(4 / 3)) and number.worse == worse
    error = 100 * sqrt(0.1 * 0.9 / 1000)
    number = compared("error", [10.0], [Value(10.0, error, 1000, True)], down, 2)
    assert number.error == pytest.approx(sqrt(2) * error)
    assert (number.low, number.high) == pytest.approx((8.29, 12.02), abs=0.01)  # Wilson
    assert compared("error", [7.0], [Value(10.0, error, 1000, True)], down, 2).worse
    assert not compared("error", [8.0], [Value(10.0, error, 1000, True)], down, 2).worse
    number = compared("even", [1.0], [Value(9.0, 0.1, 100, False)], Measure(["x"]), 1)
    assert not number.judged and not number.worse
    assert compared("x", [3.0, 3.0], [Value(2.9, None, 9, False)], up, 1).error == pytest.approx(0.1 * sqrt(1.5))
    several = [Value(value, 1.0, 100, False) for value in (1.0, 2.0, 3.0)]
    assert compared("x", [2.0], several, up, 1).high == pytest.approx(2 + 4.3027 / sqrt(3), abs=1e-3)


def test_every_training_is_of_a_config_with_the_images_that_the_file_says(tmp_path):
    """Its options are read, and its images counted: batches that are not whole are left out of MNIST's 55,000."""
    plan = Plan(tmp_path)
    for row in (row for row in paper_rows() if row.trainings):
        for one in steps(row, plan):
            words = train_words(one, row, plan)
            training = trainings()[one.name]
            keys = flat(read(CONFIGS / f"{training.config}.yaml", words[2:]).content())
            assert keys["run.seed"] == one.seed and keys["run.folder"] == str(tmp_path / one.folder.name)
            start = keys["run.start_from"]
            assert (start is None) == (training.after is None), one.name
            assert start is None or Path(start).parent == tmp_path or (shipped(start) / "model.safetensors").is_file()
            if training.images:
                size = {"stories": 900 * 5, "photographs": 6000}.get(training.rate.split(",")[0])
                epoch = keys.get("data.epoch_images") or size or 55_000
                assert training.images == keys["run.epochs"] * epoch, one.name


def test_the_file_names_each_row_once_and_how_its_numbers_are_read():
    named = [row for row in paper_rows() if row.name]
    assert len({row.name for row in named}) == len(named) > 45
    for row in named:
        assert set(row.before) <= set(row.measures) and (row.trainings or row.weights)
        assert set(row.trainings) in (set(), set(row.before)), row.name
        assert row.weights is None or (shipped(row.weights) / "model.safetensors").is_file()
    assert {name for row in named for name in paper.needed(row)} == {*trainings()}


def test_included_weights_are_measured(data_folder, tmp_path, capsys):
    """A record that is there already is not written again."""
    record = json.loads((shipped("weights/ram_cluttered60") / "metrics_test.json").read_text())
    (tmp_path / "ram_cluttered60-included").mkdir()
    (tmp_path / "ram_cluttered60-included" / "metrics_test.json").write_text(json.dumps(record | {"images": 10_000}))
    assert main(["reproduce", "ram_cluttered60", "--included", f"--out={tmp_path}"]) == 0
    assert "10 copies: before 1.15, now 1.15 (0.96 to 1.38): as before" in capsys.readouterr().out

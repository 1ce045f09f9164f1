"""Transcription: every config takes its first steps; criteria resume and split exactly; metrics against formulas."""

import json
import os
import signal
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from test_resume import assert_same
from whole_runs import CONFIGS, elsewhere, in_two_processes, steps, train, two_steps

from tests.fake_mnist import write_mnist
from vision_attn.commands import main
from vision_attn.contracts import Caption, Described, Results
from vision_attn.data.streams import FRESH
from vision_attn.data.strings import Strings
from vision_attn.metrics.evaluators import Pointing
from vision_attn.metrics.transcripts import Alignment, TranscriptErrors

TINY = {
    "data__batch_size": 4, "data__epoch_images": 8, "data__val_images": 4, "data__test_images": 6, "run__epochs": 1,
    "data__lengths": "[1,3]", "data__test_lengths": "[1,5]", "task__encoder__width": 2, "task__encoder__region_size": 4,
    "run__warmup": 0, "run__device": "cpu", "run__log_every": 1, "run__rehearse": "false",
}  # fmt: skip


@pytest.mark.parametrize("config", sorted(path.stem for path in CONFIGS.glob("strings_read_*.yaml")))
def test_every_config_takes_its_first_steps(config, tmp_path) -> None:
    settings = {name.replace("__", "."): value for name, value in TINY.items()}
    metrics = two_steps(config, tmp_path, **settings)
    assert {"error", "error_sequence", "error_short", "error_long", "nll"} <= metrics.keys()
    assert ("on_character" in metrics) == ("_fixed" not in config)
    written = json.loads((tmp_path / "transcripts_test.json").read_text())
    assert len(written["transcripts"]) == 6 and written["error_by_length"]


def die_before(epoch: int, batch: int) -> None:
    """Kill this process when it lays out the training strips of this batch."""
    layout = Strings.layout

    def layout_or_die(source: Strings, split: str, numbers: tuple[int, ...], number: int):
        if numbers[0] == FRESH and numbers[2:] == (epoch, batch):
            os.kill(os.getpid(), signal.SIGKILL)
        return layout(source, split, numbers, number)

    Strings.layout = layout_or_die


@pytest.mark.parametrize("config", ["strings_read_ctc", "strings_read_hard_monotonic"])
def test_a_killed_run_resumes_exactly(config, tmp_path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    settings = {**TINY, "data__folder": write_mnist(tmp_path / "mnist"), "run__epochs": 2, "run__save_every": 0}
    assert main(train(config, run__folder=whole, **settings)) == 0
    process = elsewhere(train(config, run__folder=killed, **settings), partial(die_before, 1, 1))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert main(train(config, run__folder=killed, **settings)) == 0
    assert_same(killed, whole)


def no_change() -> None:
    """The command as it is."""


def test_two_processes_train_ctc_as_one_does(tmp_path) -> None:
    settings = {**TINY, "data__folder": write_mnist(tmp_path / "mnist"), "run__epochs": 2, "run__validate_every": 0}
    settings |= {"optimizer": "torch.optim.SGD", "optimizer__lr": 0.001}
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(train("strings_read_ctc", run__folder=one, **settings)) == 0
    in_two_processes(train("strings_read_ctc", run__folder=two, **settings), no_change)
    losses = [[step["loss"] for step in steps(folder)] for folder in (one, two)]
    assert len(losses[0]) == 4 and losses[1] == pytest.approx(losses[0], rel=1e-5)
    weights = [load_file(folder / "last/model.safetensors") for folder in (one, two)]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, rtol=1e-5, atol=1e-6)


def described(text: str, centres: list[float], columns: int = 40) -> Described:
    """A transcript whose maps are single columns."""
    alpha = torch.zeros(len(text), 1, columns)
    for row, centre in zip(alpha, centres, strict=True):
        row[0, int((centre + 1) / 2 * columns)] = 1
    return Described(text, list(text), [0.0] * len(text), alpha)


def results(*captions: Described) -> Results:
    return Results(Caption(torch.zeros(1, 1, 1)), list(captions), {}, frozenset("0123456789"))


def test_errors_are_edit_distances_per_character() -> None:
    errors = TranscriptErrors()
    texts = {"123": "123", "7777777": "777777", "45": "6", "8": "889"}
    captions = [Described(text, list(text), []) for text in texts.values()]
    errors.update(SimpleNamespace(ids=range(4), references=[[text] for text in texts]), results(*captions))
    found = errors.compute()
    assert found["error"] == pytest.approx(100 * (0 + 1 + 2 + 2) / 13) and found["error_sequence"] == 75
    assert found["error_short"] == pytest.approx(100 * 4 / 6) and found["error_long"] == pytest.approx(100 / 7)
    assert errors.by_length() == pytest.approx({1: 200, 2: 100, 3: 0, 7: 100 / 7})


def test_alignment_knows_which_of_equal_digits_is_said() -> None:
    boxes = {"7": [(-0.9, -1, -0.5, 1), (0.5, -1, 0.9, 1)], "3": [(-0.2, -1, 0.2, 1)]}
    right, swapped = described("737", [-0.7, 0.0, 0.7]), described("737", [0.7, 0.0, -0.7])
    for caption, share, forward in ((right, 1, 1), (swapped, 1 / 3, 0)):
        alignment, pointing = Alignment(), Pointing()
        for evaluator in (alignment, pointing):
            evaluator.update(SimpleNamespace(boxes=[boxes]), results(caption))
        found = alignment.compute()
        assert found["on_character"] == pytest.approx(share) and found["forward"] == forward
        assert found["travelled"] == pytest.approx(0.7, abs=0.03)
        assert pointing.compute()["pointing"] == 1  # any of the boxes will do


def test_pointing_averages_over_strips_of_different_widths() -> None:
    boxes = {"3": [(-0.2, -1, 0.2, 1)]}
    pointing = Pointing()
    captions = [described("3", [0.0]), described("3", [0.9], columns=20), described("33", [0.0, 0.0], columns=10)]
    pointing.update(SimpleNamespace(boxes=[boxes] * 3), results(*captions))
    found = pointing.compute()
    assert found["pointing"] == pytest.approx(3 / 4) and found["pointing_uniform"] == pytest.approx(0.2)

"""How long steps wait for data, and the trace of some steps."""

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from toy import Plane, Points, adam, toy_run

from tests import pretend
from vision_attn.engine.fit import fit
from vision_attn.engine.timing import profile
from vision_attn.engine.timing.profile import Profile


class Slow(Points):
    """Each batch is waited for."""

    def train(self, epoch: int, **options: object) -> Iterator:
        for batch in super().train(epoch, **options):
            time.sleep(0.05)
            yield batch


def train(folder: Path, **settings: object) -> None:
    fit(task=Plane, data=Slow(), optimizer=adam, run=toy_run(folder, threads=1, **settings))


def test_the_log_says_which_share_of_the_time_steps_wait(tmp_path, capfd):
    train(tmp_path, epochs=1, log_every=2)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    shares = [line["waits"] for line in lines if "loss" in line]
    assert shares and all(0 < share <= 1 for share in shares) and max(shares) > 0.2
    assert "items/s, waits " in capfd.readouterr().out


def test_a_run_writes_the_trace_of_its_steps_and_what_they_are_made_of(tmp_path, monkeypatch, capfd):
    pretend.profiled_after(monkeypatch, 2)
    train(tmp_path, epochs=2, profile=3)
    parts = json.loads((tmp_path / "profile" / "parts.json").read_text())
    ms = parts["ms"]
    assert parts["steps"] == 3 and parts["validation_s"] > 0
    assert list(ms) == ["step", "waiting", "forward", "backward", "update", "rest"]
    assert sum(list(ms.values())[1:]) == pytest.approx(ms["step"]) and ms["waiting"] > 40
    with gzip.open(tmp_path / "profile" / "trace.json.gz") as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    assert names.count("forward") == 3 and names.count("step") == 3
    assert "aten::" in (tmp_path / "profile" / "operations.txt").read_text()
    assert "trace of 3 steps in" in capfd.readouterr().out


def test_a_run_that_ends_before_has_the_trace_of_fewer_steps(tmp_path, monkeypatch):
    pretend.profiled_after(monkeypatch, 0)
    train(tmp_path, epochs=1, profile=1000)
    assert 1 <= json.loads((tmp_path / "profile" / "parts.json").read_text())["steps"] < 1000


def test_a_captured_step_is_one_part(tmp_path):
    found = Profile(tmp_path, torch.device("cpu"), 1, captured=True)
    found.begin(0)
    for number in range(profile.SKIPPED + 1):
        with found.step(number), found.part("forward"):
            next(found.waiting([()]))
    assert list(json.loads((tmp_path / "parts.json").read_text())["ms"]) == ["step", "waiting", "captured step"]

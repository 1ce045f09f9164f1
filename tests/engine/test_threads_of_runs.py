"""`run.threads`: a run tries, keeps and stores its number of threads, and repeats itself with a fixed one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import Plane, PointBatch, Points, adam, toy_run

from tests import pretend
from vision_attn.engine.device_settings import thread_trial
from vision_attn.engine.distributed import World
from vision_attn.engine.fit import fit
from vision_attn.system.errors import UserError
from vision_attn.system.thread_trial import threads_kept

WORLD = World(0, 1, torch.device("cpu"))
Seen = list[tuple[str, int]]


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, float]]:
    """The seconds that a piece of work takes in one thread and in two, which a run may try."""
    found = {1: 0.2, 2: 0.1}
    pretend.seconds_of_work(monkeypatch, found)
    pretend.threads_to_try(monkeypatch, 1, 2)
    with threads_kept():
        torch.set_num_threads(3)
        yield found


def train(folder: Path, **settings: Any) -> Seen:
    """Train the toy, of six steps an epoch. Returns the number of threads in each step and in each prediction."""
    seen: Seen = []

    class Watched(Plane):
        def forward(self, points: torch.Tensor, answers: torch.Tensor, *more: tuple) -> dict[str, torch.Tensor]:
            seen.append(("step", torch.get_num_threads()))
            return super().forward(points, answers, *more)

        def predict(self, batch: PointBatch, *, full: bool = False) -> Any:
            seen.append(("predict", torch.get_num_threads()))
            return super().predict(batch, full=full)

    fit(task=Watched, data=Points(), optimizer=adam, run=toy_run(folder, **settings))
    return seen


def steps(seen: Seen) -> list[int]:
    return [threads for what, threads in seen if what == "step"]


def stored(folder: Path) -> Any:
    return json.loads((folder / "last" / "position.json").read_text())["chosen"].get("threads")


def lines(folder: Path) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in read if "loss" in line]


@pytest.mark.parametrize("faster", [1, 2])
def test_a_run_tries_both_keeps_the_faster_and_goes_on_with_it(
    faster: int, times: dict[int, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times[faster], times[3 - faster] = 0.1, 0.4
    seen = train(tmp_path, epochs=2, log_every=1)
    # 8 steps are enough here, for the times of neither overlap those of the other.
    assert steps(seen) == [1, 2, 2, 1, 1, 2, 2, 1] + [faster] * 4
    assert seen[0] == ("predict", 1)  # the one batch before training
    assert [threads for what, threads in seen[7:] if what == "predict"][:3] == [1, 2, 2]  # by itself, until it is known
    assert {threads for what, threads in seen[-3:]} == {faster}
    assert torch.get_num_threads() == 3  # as before
    assert stored(tmp_path) == faster
    assert [line.get("threads") for line in lines(tmp_path)] == [None] * 7 + [faster] * 5
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "training on cpu in fp32, eagerly; up to 20 steps try 1 and 2 threads"
    plural = {1: "1 thread", 2: "2 threads"}
    told = f"training in {plural[faster]}: a step took 0.1 s, and 0.4 s in {plural[3 - faster]}"
    assert [line for line in output if line.startswith("training in")] == [told]

    times[faster] = 0.8  # what it would choose now does not count
    assert set(train(tmp_path, epochs=3)) == {("step", faster), ("predict", faster)}
    resumed = capsys.readouterr().out
    assert f"training on cpu in fp32, eagerly, in {plural[faster]}\n" in resumed and "took" not in resumed
    assert stored(tmp_path) == faster


def test_a_run_that_was_stopped_before_it_chose_tries_again(times: dict[int, float], tmp_path: Path) -> None:
    assert steps(train(tmp_path, epochs=1)) == [1, 2, 2, 1, 1, 2] and stored(tmp_path) is None
    assert steps(train(tmp_path, epochs=3)) == [1, 2, 2, 1, 1, 2, 2, 1, 2, 2, 2, 2] and stored(tmp_path) == 2


def test_a_fixed_number_is_used_from_the_first_weight_on_and_repeats_to_the_bit(
    times: dict[int, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "other"):
        assert {threads for _, threads in train(tmp_path / name, epochs=2, threads=2)} == {2}
    assert "training on cpu in fp32, eagerly, in 2 threads\n" in capsys.readouterr().out
    assert stored(tmp_path / "one") == 2 and {line["threads"] for line in lines(tmp_path / "one")} == {2}
    weights = [tmp_path / name / "last" / "model.safetensors" for name in ("one", "other")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    # It may change, and `auto` keeps it.
    assert {threads for _, threads in train(tmp_path / "one", epochs=3, threads=1)} == {1}
    assert {threads for _, threads in train(tmp_path / "one", epochs=4)} == {1}


def settled(before: object, world: World = WORLD, **settings: Any) -> int | None:
    return thread_trial(toy_run(Path("x"), **settings), world, before).chosen


def test_where_there_is_no_trial(times: dict[int, float], monkeypatch: pytest.MonkeyPatch) -> None:
    assert settled(None) is None and settled(2) == 2 and settled(2, threads=1) == 1
    assert settled(None, compile=True) == settled(2, compile=True) == 3  # torch's own
    assert settled(None, World(0, 2, torch.device("cpu"))) == 3
    assert settled(None, World(0, 2, torch.device("cpu")), threads=2) == 2
    # What was chosen on a larger machine, or in a file that somebody made, is tried again.
    assert settled(8) is settled(0) is settled("2") is None
    pretend.threads_to_try(monkeypatch, 1)
    assert settled(None) == settled(2) == 1


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_a_number_that_no_machine_has_is_refused(threads: int) -> None:
    with pytest.raises(UserError, match=f"run.threads is {threads}, but must be auto, or from 1 to 1024"):
        toy_run(Path("x"), threads=threads)

"""The trial of one thread and all: what it chooses from given times, and what it costs. No test measures time."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch

from tests import pretend
from vision_attn.system import machine
from vision_attn.system.locks import Turn
from vision_attn.system.thread_trial import MOST, VARIABLES, ThreadTrial, numbers_to_try, threads_kept

CPU = torch.device("cpu")
Times = Callable[[int, int], float]
"""The seconds of a piece of work, from the number of its threads and its place among all pieces."""


def tried(times: Times, kind: Callable[[int], object] = lambda number: None) -> ThreadTrial:
    """A trial of 1 and 4 threads that has seen these times until it chose."""
    trial = ThreadTrial((1, 4))
    for number in range(MOST):
        if trial.chosen is None:
            trial.add(times(trial.threads, number), kind(number))
    return trial


def constant(one: float, all_: float) -> Times:
    return lambda threads, number: one if threads == 1 else all_


def stalling(one: float, all_: float) -> Times:
    """As `constant`, but other work delays each fifth piece by its double."""
    return lambda threads, number: constant(one, all_)(threads, number) * (3 if number % 5 == 3 else 1)


def compiling(one: float, all_: float) -> Times:
    """As `constant`, but the first piece compiles for 8 seconds."""
    return lambda threads, number: constant(one, all_)(threads, number) + 8 * (number == 0)


def getting_busy(one: float, all_: float) -> Times:
    """As `constant`, but from the tenth piece on, all take five times as long."""
    return lambda threads, number: constant(one, all_)(threads, number) * (5 if number >= 10 else 1)


@pytest.mark.parametrize("kind", [constant, stalling, compiling, getting_busy])
@pytest.mark.parametrize(
    "one, all_, chosen",
    [(0.134, 0.099, 4), (0.24, 0.58, 1), (0.21, 2.5, 1), (6.0, 0.4, 4), (0.001, 0.0008, 4), (0.1, 0.1, 1),
     (0.1, 0.097, 1)],
)  # fmt: skip
def test_the_faster_number_of_threads_is_chosen(
    kind: Callable[[float, float], Times], one: float, all_: float, chosen: int
) -> None:
    """All threads only if they are faster by more than a twentieth."""
    assert tried(kind(one, all_)).chosen == chosen


def test_the_order_is_one_all_all_one_and_the_first_two_warm_up() -> None:
    trial, threads = ThreadTrial((1, 4)), []
    for number in range(MOST):
        assert trial.chosen is None
        threads.append(trial.threads)
        # The first two would say the opposite; the others overlap, so that all twenty are needed.
        slow = trial.threads == (4 if number < 2 else 1)
        trial.add(0.2 if slow or number in (5, 8) else 0.1)
    assert threads == [1, 4, 4, 1] * (MOST // 4)
    assert trial.chosen == trial.threads == 4


@pytest.mark.parametrize("ratio", [1.2, 2.5, 5, 12])
def test_a_trial_on_busy_cores_costs_less_than_a_third_of_a_hundred_steps(ratio: float) -> None:
    one = 0.21  # seconds of a step of `make demo`
    trial = tried(constant(one, ratio * one))
    spent = sum(piece.seconds for piece in trial.pieces) + (100 - len(trial.pieces)) * one
    assert trial.chosen == 1 and spent <= 1.3 * 100 * one


@pytest.mark.parametrize("ratio", [1.1, 1.35, 2, 8])
def test_a_trial_on_idle_cores_costs_less_than_three_percent_of_a_thousand_steps(ratio: float) -> None:
    all_ = 0.1
    trial = tried(constant(ratio * all_, all_))
    spent = sum(piece.seconds for piece in trial.pieces) + (1000 - len(trial.pieces)) * all_
    assert trial.chosen == 4 and spent <= 1.03 * 1000 * all_


def test_only_pieces_of_the_same_kind_are_compared() -> None:
    """All threads happen to get the large batches, which take three times as long; with equal ones they are faster."""

    def kind(number: int) -> str:
        return "small" if number in (2, 6, 10) else "large" if number % 4 in (1, 2) else "small"

    def times(threads: int, number: int) -> float:
        return (0.3 if kind(number) == "large" else 0.1) * (0.7 if threads == 4 else 1)

    assert tried(times).chosen == 1  # without kinds
    assert tried(times, kind).chosen == 4


def test_pieces_that_are_all_of_different_kinds_are_compared_all_the_same() -> None:
    trial = tried(constant(0.2, 0.1), kind=lambda number: number)
    assert trial.chosen == 4 and len(trial.pieces) == MOST


def test_what_a_slow_piece_takes_longer_is_known() -> None:
    """It is left out of the estimate of what remains."""
    trial, excess = ThreadTrial((1, 4)), []
    for seconds in (3.0, 2.5, 2.5, 0.25):  # the first one compiles
        trial.add(seconds)
        excess.append(trial.excess)
    assert [piece.threads for piece in trial.pieces] == [1, 4, 4, 1]
    assert excess == pytest.approx([0, 0, 0, 0]) and trial.chosen == 1
    assert trial.described("step") == "1 thread: a step took 0.25 s, and 2.5 s in 4 threads"
    trial = ThreadTrial((1, 4))
    for seconds in (0.2, 2.5):
        trial.add(seconds)
    assert trial.excess == pytest.approx(2.3) and trial.chosen == 1


def test_one_number_is_no_trial() -> None:
    trial = ThreadTrial((3,))
    with trial, threads_kept():
        assert torch.get_num_threads() == 3
    trial.add(1.0)
    assert trial.chosen == trial.threads == 3 and not trial.pieces


def test_a_block_is_timed_by_the_clock_in_its_number_of_threads() -> None:
    before, seconds = torch.get_num_threads(), count(0.0, 2.0)
    trial = ThreadTrial((1, before + 1), clock=lambda: next(seconds))
    for threads in (1, before + 1, before + 1, 1):
        with trial:
            assert torch.get_num_threads() == threads
            trial.kind = threads
        assert torch.get_num_threads() == before
    assert [(piece.seconds, piece.kind) for piece in trial.pieces] == [(2, 1), (2, before + 1), (2, before + 1), (2, 1)]


def test_what_fails_is_not_timed_and_of_nested_blocks_the_inner_ones_are() -> None:
    before, seconds = torch.get_num_threads(), count(0.0, 2.0)
    trial = ThreadTrial((1, before + 1), clock=lambda: next(seconds))
    with pytest.raises(RuntimeError), trial:
        raise RuntimeError
    assert not trial.pieces
    with trial:
        for number in (1, before + 1, before + 1):
            with trial:
                assert torch.get_num_threads() == number
            assert torch.get_num_threads() == 1  # of the outer block
    assert len(trial.pieces) == 3 and torch.get_num_threads() == before


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch):
    """Torch has four threads, nobody has chosen their number, and the machine has eight cores."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    pretend.cores(monkeypatch, 8)
    with threads_kept():
        torch.set_num_threads(4)
        yield


def test_there_is_nothing_to_try_on_another_device_or_where_the_user_has_chosen(
    four_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert numbers_to_try(CPU) == (1, 4)
    assert numbers_to_try(torch.device("cuda")) == numbers_to_try(torch.device("mps")) == (4,)
    pretend.cores(monkeypatch, 2)
    assert numbers_to_try(CPU) == (1, 2)
    pretend.cores(monkeypatch, 1)
    assert numbers_to_try(CPU) == (1,)
    for name in VARIABLES:
        with monkeypatch.context() as patched:
            patched.setenv(name, "4")
            assert numbers_to_try(CPU) == (4,)


@pytest.mark.parametrize(
    "quota, expected",
    [("max 100000", 4), ("200000 100000\n", 2), ("250000 100000\n", 2), ("50000 100000\n", 1), ("900000 100000\n", 4)],
)  # fmt: skip
def test_cores_are_those_of_the_affinity_and_of_the_control_group(
    quota: str, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 2, 4, 6}, raising=False)
    monkeypatch.setattr(machine, "QUOTA", tmp_path / "cpu.max")  # a file of the kernel
    assert machine.cores() == 4
    (tmp_path / "cpu.max").write_text(quota)
    assert machine.cores() == expected


def test_a_turn_has_the_number_of_the_trial_and_a_copy_has_none(
    four_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = Turn()
    with turn:
        assert torch.get_num_threads() == turn.threads == 4
    turn.try_threads(CPU)
    pretend.seconds_of_work(monkeypatch, {1: 0.1, 4: 0.5})
    seen = []
    for _ in range(MOST):
        with turn, turn:
            seen.append(torch.get_num_threads())
        assert torch.get_num_threads() == 4
    assert seen[:4] == [1, 4, 4, 1] and seen[8:] == [1] * (MOST - 8) and turn.threads == 1
    kind, arguments = turn.__reduce__()
    assert kind(*arguments).threads == 4
    turn.try_threads(torch.device("cuda"))
    assert turn.threads == 4

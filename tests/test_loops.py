"""Threads of fused loops: every index once, in torch's own threads where they can be had."""

import os
import sys
import threading
import time

import pytest
import torch

from vision_attn.layers import loops


@pytest.fixture(params=["torch's threads", "own threads"])
def team(request, monkeypatch):
    monkeypatch.setattr(loops, "IN_ONE_THREAD", 0)
    if request.param == "own threads":
        monkeypatch.setattr(loops, "team", None)
    elif loops.team is None:
        pytest.skip("torch does not use GNU's OpenMP here")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield loops.team
    torch.set_num_threads(before)


@pytest.mark.parametrize("length", [0, 1, 2, 3, 10])
def test_every_index_is_computed_once(team, length):
    counts, parts = torch.zeros(length), []

    def work(first, last, counts):
        parts.append((first, last))
        counts[first:last] += 1

    loops.in_threads(work, 1, counts)
    assert counts.tolist() == [1] * length and len(parts) == max(1, min(3, length))


def test_parts_run_at_the_same_time(team):
    meeting = threading.Barrier(3, timeout=20)
    loops.in_threads(lambda first, last, array: meeting.wait(), 1, torch.zeros(3))


def test_an_error_of_any_part_reaches_the_caller(team):
    for wrong in range(3):

        def work(first, last, array, wrong=wrong):
            if first == wrong:
                raise KeyboardInterrupt(f"in part {first}")

        with pytest.raises(KeyboardInterrupt, match=f"in part {wrong}"):
            loops.in_threads(work, 1, torch.zeros(3))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_comes_before_the_first_part_is_not_lost(monkeypatch):
    """An exception that a handler raises on the way from C to Python is printed, and lost, by ctypes."""
    if loops.team is None:
        pytest.skip("torch does not use GNU's OpenMP here")
    kind = loops.team._member
    caller = threading.get_ident()

    def interrupted(member):
        def called(argument):
            if threading.get_ident() == caller:
                raise KeyboardInterrupt
            member(argument)

        return kind(called)

    monkeypatch.setattr(loops.team, "_member", interrupted)
    done = []
    with pytest.raises(KeyboardInterrupt):
        loops.team.each(done.append, [1, 2, 3], 3)
    assert sorted(done) == [1, 2, 3]


def test_fewer_parts_than_threads_leave_torch_its_threads():
    if loops.team is None:
        pytest.skip("torch does not use GNU's OpenMP here")
    before, names = torch.get_num_threads(), set()
    torch.set_num_threads(4)
    product = torch.randn(512, 512)
    try:
        for _ in range(5):
            product @ product
            loops.in_threads(lambda *_: time.sleep(0.01), loops.IN_ONE_THREAD, torch.zeros(2))
            names |= set(os.listdir("/proc/self/task"))
    finally:
        torch.set_num_threads(before)
    product @ product
    assert len(names) - len(set(os.listdir("/proc/self/task"))) <= 4  # none was replaced by another


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_which_has_no_such_threads_computes_alone(team):
    loops.in_threads(lambda *_: None, 1, torch.zeros(3))
    parts = []
    child = os.fork()
    if child == 0:
        loops.in_threads(lambda first, last, _: parts.append((first, last)), 1, torch.zeros(3))
        os._exit(0 if parts == [(0, 3)] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP comes with torch on Linux alone")
def test_torchs_threads_are_found_where_it_has_loaded_gnus_openmp():
    with open("/proc/self/maps") as maps:
        assert (loops.team is not None) == ("/libgomp" in maps.read())

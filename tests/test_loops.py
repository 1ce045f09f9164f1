"""Threads of fused loops: every index once, in torch's own threads where they can be had."""

import os
import sys
import threading

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

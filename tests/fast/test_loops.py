"""Threads of fused loops: every index once, in torch's own threads where they can be had."""

import os
import sys
import threading

import pytest
import torch

from tests import pretend
from vision_attn.fast import loops
from vision_attn.fast.threads import Team


@pytest.fixture(params=["torch's threads", "own threads"])
def team(request, monkeypatch):
    """Both ways to divide loops among threads: without torch's OpenMP they are threads of our own."""
    pretend.threads_that_share_little(monkeypatch)
    if request.param == "own threads":
        monkeypatch.setattr(loops, "team", None)
    elif loops.team is None:
        pytest.skip("torch does not use GNU's OpenMP here")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield loops.team
    torch.set_num_threads(before)


@loops.compiled
def _record(first, last, counts, matrix, parts):
    """Note the part of each index, and add up rows of a matrix."""
    for index in range(first, last):
        counts[index] += 1
        parts[index, 0], parts[index, 1] = first, last
        for column in range(matrix.shape[1]):
            parts[index, 2] += matrix[index, column]


def recorded(length, matrix=None):
    counts, parts = torch.zeros(length, dtype=torch.int64), torch.zeros(length, 3, dtype=torch.float64)
    matrix = torch.ones(length, 2, dtype=torch.float64) if matrix is None else matrix
    loops.in_threads(_record, 1, counts, matrix, parts)
    return counts, parts


@pytest.mark.parametrize("length", [0, 1, 2, 3, 10])
def test_every_index_is_computed_once(team, length):
    counts, parts = recorded(length)
    assert counts.tolist() == [1] * length and parts[:, 2].tolist() == [2] * length
    assert len({tuple(part) for part in parts[:, :2].tolist()}) == min(3, length)


@pytest.mark.parametrize("layout", ["rows", "columns", "every other"])
def test_matrices_may_lie_in_memory_in_any_order(team, layout):
    torch.manual_seed(0)
    matrix = {
        "rows": torch.randn(7, 4),
        "columns": torch.randn(4, 7).mT,
        "every other": torch.randn(7, 8)[:, ::2],
    }[layout]
    torch.testing.assert_close(recorded(7, matrix)[1][:, 2], matrix.sum(dim=1).double())


@loops.compiled
def _meet(first, last, arrived):
    """Wait until all have come, or for a long time."""
    arrived[first] = 1
    for _ in range(10**9):
        if arrived.sum() == len(arrived):
            break


@pytest.mark.slow
def test_parts_run_at_the_same_time(team):
    arrived = torch.zeros(3, dtype=torch.int64)
    loops.in_threads(_meet, 1, arrived)
    assert arrived.tolist() == [1, 1, 1]


@loops.compiled
def _fail(first, last, wrong, done):
    if first == wrong[0]:
        raise ValueError("as a test asks for")
    done[first] = 1


def test_an_error_of_any_part_reaches_the_caller(team):
    for wrong in range(3):
        done = torch.zeros(3)
        with pytest.raises((ValueError, MemoryError)):
            loops.in_threads(_fail, 1, torch.full((3,), wrong), done)
        assert done.tolist() == [float(part != wrong) for part in range(3)]


def test_fewer_parts_than_threads_leave_torch_its_threads(team):
    if team is None:
        pytest.skip("these are torch's alone")
    torch.set_num_threads(4)
    product, names = torch.randn(512, 512), set()
    for _ in range(5):
        product @ product
        counts, _ = recorded(2)
        assert counts.tolist() == [1, 1]
        names |= set(os.listdir("/proc/self/task"))
    product @ product
    assert len(names) - len(set(os.listdir("/proc/self/task"))) <= 4  # none was replaced by another


def test_threads_of_python_share_torchs_threads(team):
    """As those of a server do, which answers several questions at once."""
    results = []
    askers = [threading.Thread(target=lambda: results.append(recorded(50)[0])) for _ in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert [counts.tolist() for counts in results] == [[1] * 50] * 4


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_which_has_no_such_threads_computes_alone(team):
    recorded(3)
    child = os.fork()
    if child == 0:
        _, parts = recorded(3)
        os._exit(0 if parts[:, :2].tolist() == [[0, 3]] * 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP comes with torch on Linux alone")
def test_torchs_threads_are_found_where_it_has_loaded_gnus_openmp():
    """And numba's functions can be called in them: `team` would hide that they cannot."""
    with open("/proc/self/maps") as maps:
        loaded = "/libgomp" in maps.read()
    assert (loops.team is not None) == loaded
    if loaded:
        Team()

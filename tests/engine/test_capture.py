"""Captured steps train as eager ones do. These graphs are made of ordinary calls; tests/test_gpu.py has CUDA's."""

import json
import warnings
from pathlib import Path
from typing import NamedTuple
from unittest.mock import MagicMock

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.optim import SGD, Adagrad
from torch.utils._pytree import tree_leaves
from toy import Plane, Points, adam, cosine, momentum, toy_run

from tests import pretend
from tests.graphs import PlainGraph, TapeGraph
from vision_attn.engine.capture import MOST, RARE, WARM_UP, Captured, CUDAGraph, signature
from vision_attn.engine.distributed import World
from vision_attn.engine.fit import fit
from vision_attn.engine.step import Step
from vision_attn.system.errors import UserError


@pytest.fixture(params=[PlainGraph, TapeGraph])
def graph(request, monkeypatch):
    pretend.captured_steps(monkeypatch, request.param)
    return request.param


class Uneven(Points):
    """Batches of 8, 8, 8, 8, 4 and 4 points in turn: two signatures."""

    def __len__(self) -> int:
        return 7 * self.items // 48

    def _batches(self, epoch: int, seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1000 * seed + epoch)
        order = torch.randperm(self.items, generator=generator)
        return list(order.split([8, 8, 4, 8, 8, 4, 8]))

    def train(self, epoch, *, seed, skip=0, rank=0, world=1):
        torch.rand(1)
        for indices in self._batches(epoch, seed)[skip:]:
            yield self._take(indices)


EVERYTHING = {"average": 0.9, "warmup": 3, "clip": 5.0, "epochs": 5, "log_every": 3, "compile": False}


def train(folder: Path, *, task=Plane, data=None, optimizer=adam, schedule=cosine, **settings) -> None:
    torch.set_num_threads(1)
    run = toy_run(folder, **(EVERYTHING | settings))
    fit(task=task, data=Uneven() if data is None else data, optimizer=optimizer, schedule=schedule, run=run)


def lines(folder: Path) -> list[dict]:
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if name not in ("seconds", "items_per_second", "waits")}
        for line in read
    ]


def assert_same(one: Path, other: Path) -> None:
    """Weights, average, optimizer, random numbers and logged lines are the same to the bit."""
    for part in ("last", "best"):
        weights = [load_file(folder / part / "model.safetensors") for folder in (one, other)]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0] | weights[1])
    states = [torch.load(folder / "last" / "trainer.pt", weights_only=True) for folder in (one, other)]
    leaves = [[leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)] for state in states]
    assert len(leaves[0]) > 10 and all(map(torch.equal, *leaves))
    assert lines(one) == lines(other)


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"optimizer": momentum, "schedule": None, "warmup": 0}])
def test_captured_equals_eager(tmp_path, graph, settings):
    """With dropout, clipping, warm-up, schedule, moving average, a buffer, two shapes and validation in between."""
    train(tmp_path / "eager", capture=False, **settings)
    assert not PlainGraph.made
    train(tmp_path / "captured", capture=True, **settings)
    assert_same(tmp_path / "captured", tmp_path / "eager")
    assert len(PlainGraph.made) >= 2 and all(one.rehearsals == 1 for one in PlainGraph.made)
    steps = sum(RARE + one.rehearsals + one.replays for one in PlainGraph.made)
    assert 0 <= lines(tmp_path / "eager")[-1]["step"] - steps <= RARE  # of a rare combination of batches


def test_a_resumed_run_captures_again_and_ends_the_same(tmp_path, graph, monkeypatch):
    train(tmp_path / "whole", capture=True)

    class Stopped(Exception):
        pass

    def stop(task, *batch, forward=Plane.forward, calls=[]):  # noqa: B006 (it counts)
        calls.append(0)
        if len(calls) == 17:
            raise Stopped
        return forward(task, *batch)

    with monkeypatch.context() as patch:  # Replays of a tape do not call forward: the graphs must be plain.
        pretend.captured_steps(patch, PlainGraph)
        patch.setattr(Plane, "forward", stop)
        with pytest.raises(Stopped):
            train(tmp_path / "parts", capture=True, save_every=0.0)
    assert json.loads((tmp_path / "parts" / "last" / "position.json").read_text())["step"] == 16
    train(tmp_path / "parts", capture=True, save_every=0.0)
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_a_run_may_be_resumed_without_capture(tmp_path, graph):
    train(tmp_path / "whole", capture=False, schedule=None)
    train(tmp_path / "parts", capture=True, schedule=None, epochs=3)
    train(tmp_path / "parts", capture=False, schedule=None)
    assert_same(tmp_path / "parts", tmp_path / "whole")


def test_the_first_step_that_is_not_finite_is_named_when_the_epoch_ends(tmp_path, graph):
    data = Uneven()
    ids = data._batches(3, 0)[1].tolist()
    whole, bad = data.train, Uneven(bad=ids[2]).train
    data.train = lambda epoch, **order: (bad if epoch == 3 else whole)(epoch, **order)
    with pytest.raises(UserError) as error:
        train(tmp_path, data=data, capture=True, log_every=100)
    step = 3 * len(data)
    assert str(error.value).startswith(
        f"step {step + 2}: the loss is not finite; ids of its batch: point{ids[0]}, point{ids[1]}"
    )
    assert json.loads((tmp_path / "last" / "position.json").read_text())["step"] == step


class Reading(Plane):
    """Reads a value from the device in each step."""

    def forward(self, points, answers, *rest):
        assert answers.sum().item() < 1e9
        return super().forward(points, answers, *rest)


class ReadingIds(Plane):
    """Needs the ids of its batch, which a graph cannot read again."""

    def forward(self, points, answers, ids, notes):
        assert len(ids) == len(points)
        return super().forward(points, answers, ids, notes)


@pytest.mark.parametrize(
    "task, reason", [(Reading, "operation not permitted when stream is capturing"), (ReadingIds, "has no len()")]
)
def test_a_task_that_cannot_be_captured_runs_eagerly_and_says_why(tmp_path, monkeypatch, capsys, task, reason):
    pretend.captured_steps(monkeypatch, TapeGraph)
    train(tmp_path / "eager", task=task, capture=False)
    capsys.readouterr()
    train(tmp_path / "captured", task=task, capture=True)
    said = [line for line in capsys.readouterr().out.splitlines() if "captured (" in line]
    assert len(said) == 1 and said[0].endswith("training continues eagerly") and reason in said[0]
    assert_same(tmp_path / "captured", tmp_path / "eager")


class Odd(Points):
    """Batches of 1, 2, 3 ... points: every step of an epoch has another shape."""

    def __init__(self, shapes: int):
        super().__init__(items=shapes * (shapes + 1) // 2)
        self.shapes = shapes

    def __len__(self):
        return self.shapes

    def train(self, epoch, *, skip=0, **_):
        parts = torch.arange(self.items).split(list(range(1, self.shapes + 1)))
        yield from (self._take(part) for part in parts[skip:])


def test_graphs_are_bounded(tmp_path, graph, capsys):
    train(tmp_path / "eager", data=Odd(MOST + 3), capture=False)
    capsys.readouterr()
    train(tmp_path / "captured", data=Odd(MOST + 3), capture=True)
    assert len(PlainGraph.made) == MOST
    assert capsys.readouterr().out.count("batches with further shapes run eagerly") == 1
    assert_same(tmp_path / "captured", tmp_path / "eager")


def test_rare_shapes_are_neither_rehearsed_nor_captured(tmp_path, graph):
    train(tmp_path, data=Odd(6), capture=True, epochs=RARE, schedule=None)
    assert not PlainGraph.made
    train(tmp_path, data=Odd(6), capture=True, epochs=RARE + 1, schedule=None)
    assert not PlainGraph.made  # a run that goes on begins to count again


def test_a_step_says_whether_it_prepared_others():
    captured = Captured(lambda batches, number: {}, torch.device("cpu"), graph=PlainGraph)
    prepared = []
    for _ in range(WARM_UP + 2):
        captured([Mixed(torch.zeros(2, 3), 7, ("a",))], 1)
        prepared.append(captured.prepared)
    captured([Mixed(torch.zeros(1, 3), 7, ("a",))], 1)
    assert [*prepared, captured.prepared] == [True, False, True, True, False, True]


class Mixed(NamedTuple):
    images: Tensor
    number: int | None
    ids: tuple


def test_a_signature_holds_what_a_graph_depends_on():
    images = torch.zeros(2, 3)
    one = signature(Mixed(images, 3, ("a",)))
    assert signature(Mixed(torch.ones(2, 3), 3, ("b", "c"))) == one
    others = [Mixed(images[:1], 3, ()), Mixed(images.int(), 3, ()), Mixed(images, 4, ()), Mixed(images, None, ())]
    assert len({one, *map(signature, others)}) == 5
    assert signature(Mixed(images, True, ())) != signature(Mixed(images, 1, ()))


def test_buffers_receive_each_batch_and_a_graph_sees_no_ids(monkeypatch):
    seen, values = [], []

    def work(batches, number):
        seen.append([(batch.images.data_ptr(), batch.number, batch.ids) for batch in batches])
        values.append([batch.images.sum().item() for batch in batches])
        return {}

    captured = Captured(work, torch.device("cpu"), graph=PlainGraph)
    for step in range(WARM_UP + 2):
        captured([Mixed(torch.full((2, 3), step + offset), 7, (str(step),)) for offset in (0.0, 0.5)], 2)
    assert values == [[6 * step, 6 * step + 3] for step in range(WARM_UP + 2)]
    assert len({tuple(pointer for pointer, *_ in step) for step in seen[RARE:]}) == 1
    assert [step[0][2] for step in seen] == [("0",), ("1",), ("2",), None, None] and seen[-1][0][1] == 7


def test_a_tuple_of_tensors_within_a_batch_has_buffers_too():
    read, values = [], []

    def work(batches, number):
        ((_, _, sampled),) = batches
        read.append([part.data_ptr() for part in sampled])
        values.append([part.sum().item() for part in sampled])
        return {}

    captured = Captured(work, torch.device("cpu"), graph=PlainGraph)
    for step in range(WARM_UP + 2):
        captured([Mixed(torch.zeros(1), 7, (torch.full((2,), step), torch.full((3,), step + 0.5)))], 1)
    assert values == [[2 * step, 3 * step + 1.5] for step in range(WARM_UP + 2)]
    assert len(set(map(tuple, read[RARE:]))) == 1
    one, *others = (signature((torch.zeros(1), (torch.zeros(size),))) for size in (2, 2, 3))
    assert [other == one for other in others] == [True, False]


def step_of(task=Plane, *, optimizer=adam, world=1, **settings) -> Step:
    run = toy_run(Path("nowhere"), **{"precision": "fp32", "compile": False, **settings})
    return Step(
        task(Points()), optimizer=optimizer, schedule=None, run=run,
        world=World(0, world, torch.device("cpu")), total=10,
    )  # fmt: skip


def test_what_is_captured_when_nobody_says_so(monkeypatch, capsys):
    class Static(Plane):
        uncapturable = ""

    def adagrad(parameters):
        return Adagrad(parameters)

    def slow(parameters):
        return SGD(parameters, lr=0.1, fused=False)

    assert not step_of(Static).captured and not step_of(Static, capture=True).captured
    assert "run.capture: graphs need a CUDA device, and this one is cpu; steps run eagerly" in capsys.readouterr().out
    pretend.captured_steps(monkeypatch, PlainGraph)
    assert step_of(Static).captured and not step_of(Static, capture=False).captured
    assert not step_of(Plane).captured and step_of(Plane, capture=True).captured
    for settings, reason in (
        ({"precision": "fp16"}, "with fp16, the gradient scaler decides"),
        ({"optimizer": adagrad}, "Adagrad computes on the CPU in each step"),
        ({"optimizer": slow}, "SGD computes on the CPU in each step"),
    ):
        assert not step_of(Static, **settings).captured and capsys.readouterr().out == ""
        assert not step_of(Static, capture=True, **settings).captured
        assert f"run.capture: {reason}" in capsys.readouterr().out


def test_the_line_and_the_checkpoint_say_what_was_chosen(tmp_path, graph, capsys):
    train(tmp_path, capture=True, epochs=1)
    assert capsys.readouterr().out.splitlines()[0] == "training on cpu in fp32, captured, in 1 thread"
    chosen = json.loads((tmp_path / "last" / "position.json").read_text())["chosen"]
    assert chosen == {"precision": "fp32", "compile": False, "capture": True, "threads": 1}


def test_a_rehearsal_finds_out_what_waits_for_the_device(monkeypatch):
    """With stand-ins for the parts of torch.cuda that need a GPU."""
    for name in ("CUDAGraph", "Stream", "graph_pool_handle", "current_stream", "stream", "get_sync_debug_mode"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    modes = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    graph = CUDAGraph()

    def waiting() -> dict[str, Tensor]:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
        return {}

    with pytest.warns(UserWarning, match="something else") as caught:
        graph.warm_up(waiting)
    assert len(caught) == 1 and modes == ["warn", torch.cuda.get_sync_debug_mode()]
    with pytest.raises(RuntimeError, match=r"it waits for the device in .*test_capture.py, line \d+"):
        graph.capture(waiting)
    graph.warm_up(dict)  # What happened in an earlier rehearsal, such as compiling, does not count.
    assert not graph.trouble


class Counted(Plane):
    """Counts the calls of its compiled form."""

    uncapturable, calls = "", 0

    def compile(self, **options):
        def backend(graph, inputs):
            def called(*inputs):
                Counted.calls += 1
                return graph(*inputs)

            return called

        super().compile(backend=backend)


@pytest.mark.parametrize("asked", [True, "auto", False])
def test_steps_are_compiled_where_that_is_asked_for(tmp_path, monkeypatch, capsys, asked):
    """From the first step to the last, in captured runs too. `auto`, of older configs, means false."""
    pretend.captured_steps(monkeypatch, PlainGraph)
    monkeypatch.setattr(Counted, "calls", 0)
    train(tmp_path, task=Counted, data=Points(), capture=True, compile=asked, epochs=10)
    assert lines(tmp_path)[-1]["step"] == 60 and Counted.calls == (60 if asked is True else 0)
    chosen = json.loads((tmp_path / "last" / "position.json").read_text())["chosen"]
    assert chosen["compile"] is (asked is True)
    assert ("captured and compiled" in capsys.readouterr().out) is (asked is True)

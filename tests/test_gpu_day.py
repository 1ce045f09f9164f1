"""The blocks of the GPU list run on a CPU with tiny sizes; a block that fails costs the others nothing."""

import importlib
import io
import json
import math
import os
import signal
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.gpu import block as gpu_block
from benchmarks.gpu import day as gpu_day
from benchmarks.gpu import fit as gpu_fit
from benchmarks.gpu import pack as gpu_pack
from benchmarks.gpu import runs as gpu_runs
from benchmarks.gpu import speed as gpu_speed
from benchmarks.gpu import speeds as gpu
from benchmarks.gpu.block import Options, Record, Row
from benchmarks.gpu.check import rows
from benchmarks.gpu.day import BLOCKS, Block, main
from benchmarks.gpu.fit import Asked
from benchmarks.gpu.tiny import tiny_run
from benchmarks.shapes import QUICK
from tests.fake_mnist import write_mnist

SPLITS = {"train": 6, "val": 2, "test": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder of data sets: made-up digits, and photographs of noise with captions."""
    folder = tmp_path_factory.mktemp("data")
    write_mnist(folder / "mnist", packed=True)
    images = folder / "flickr8k" / "images"
    images.mkdir(parents=True)
    rng = np.random.default_rng(0)
    named = [split for split, number in SPLITS.items() for _ in range(number)]
    for number in range(len(named)):
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(images / f"{number}.jpg")
    captions = {
        "images": [{"id": n, "file_name": f"{n}.jpg", "split": split} for n, split in enumerate(named)],
        "annotations": [
            {"id": 5 * n + k, "image_id": n, "caption": f"a dog {doing} on grass"}
            for n in range(len(named))
            for k, doing in enumerate(("runs", "sits", "jumps", "sleeps", "eats"))
        ],
    }
    (folder / "flickr8k" / "captions.json").write_text(json.dumps(captions))
    return folder


def day(*arguments: object) -> int:
    return main([*map(str, arguments), "--quick", "--device=cpu"])


def here(command: list[str], seconds: float, *, group: bool = False, stdout=None, stderr=None) -> int:
    """`gpu_block.run` of `python -m MODULE ..` in this process: importing torch in another takes seconds."""
    module, *arguments = command[command.index("-m") + 1 :]
    with redirect_stdout(io.TextIOWrapper(stdout, write_through=True) if stdout else sys.stdout):
        return importlib.import_module(module).main(*arguments) or 0


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs_with_tiny_sizes(block: str, data: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    if block != "check":  # which runs in a process of its own, as all do for users
        monkeypatch.chdir(gpu_block.ROOT)
        monkeypatch.setattr(gpu_day, "run", here)
        monkeypatch.setattr(gpu_runs, "run", here)
    monkeypatch.setenv("VISION_ATTN_DATA", "")  # restored after the test: `main` sets it
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("VISION_ATTN_JAVA", "false")  # as where there is no Java
    out = tmp_path / "out"
    status = day(out, block, f"--data={data}", f"--runs={tmp_path / 'runs'}", "--seconds=500")
    record = Record.read(out / f"{block}.json").content
    log = (out / f"{block}.log").read_text()
    assert (status, record["status"]) == (0, "done"), log
    assert record["rows"] and record["hardware"] and record["versions"]["torch"] == torch.__version__
    printed = capsys.readouterr().out
    assert (out / "summary.md").read_text() in printed
    for row in record["rows"]:
        assert row["what"] in printed and row["said"] in printed and not row["said"].startswith("failed"), log
    left = {path.name for path in out.iterdir()} - {f"{block}.json", f"{block}.log", "summary.md"}
    assert left == ({f"{block}.1.tar"} if "runs" in BLOCKS[block].function else set())


def dies(options: Options) -> Iterator[Row]:
    yield Row("before", "written")
    os.kill(os.getpid(), signal.SIGKILL)


def raises(options: Options) -> Iterator[Row]:
    yield Row("before", "written")
    raise RuntimeError("out of luck")


def waits(options: Options) -> Iterator[Row]:
    time.sleep(600)
    yield Row("after", "never written")


def works(options: Options) -> Iterator[Row]:
    yield Row("after", "written too", {"number": 1.5})


def complains(options: Options) -> Iterator[Row]:
    yield from (Row("one", "fine"), Row("two", "failed: not captured"))


def lacks(quick: bool) -> None:
    raise ValueError("there is no such data")


def test_blocks_that_fail_cost_the_others_nothing(tmp_path: Path, monkeypatch, capsys) -> None:
    seconds = {"waits": 1.0}
    blocks = {
        name: Block(f"tests.test_gpu_day:{name}", seconds.get(name, 100.0), gpu_day.nothing)
        for name in ("dies", "raises", "waits", "works")
    }
    blocks["lacks"] = Block("tests.test_gpu_day:works", 100.0, lacks)
    monkeypatch.setattr(gpu_day, "BLOCKS", blocks)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert day(tmp_path, f"--runs={tmp_path / 'runs'}") == 1
    found = {name: Record.read(tmp_path / f"{name}.json").content for name in blocks}
    states = {name: record["status"] for name, record in found.items()}
    assert states == {"dies": "failed", "raises": "failed", "waits": "stopped", "works": "done", "lacks": "skipped"}
    assert found["dies"]["reason"] == "killed by signal 9: see dies.log"
    assert found["raises"]["reason"] == "RuntimeError: out of luck"
    assert found["lacks"]["reason"] == "there is no such data"
    assert found["dies"]["rows"] == found["raises"]["rows"] == [Row("before", "written")._asdict()]
    assert found["works"]["rows"] == [Row("after", "written too", {"number": 1.5})._asdict()]
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("out of luck", "no such data", "written too", "killed by signal 9"))


def test_a_block_with_a_row_that_failed_has_failed(tmp_path: Path, capsys) -> None:
    asked = options(tmp_path, device="cpu")
    assert gpu_block.main("tests.test_gpu_day:complains", json.dumps(asked._asdict())) == 1
    record = Record.read(asked.path).content
    assert (record["status"], record["reason"], len(record["rows"])) == ("failed", "1 of 2 failed", 2)


def test_what_is_asked_wrongly_is_named(tmp_path: Path, capsys) -> None:
    for wrong, said in (("spede", "there is no block 'spede'"), ("--seconds=0", "--seconds is 0.0")):
        with pytest.raises(SystemExit):
            day(tmp_path, wrong)
        assert said in capsys.readouterr().err


def test_a_run_trains_as_many_epochs_as_fit_and_is_resumed_with_them(data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("VISION_ATTN_DATA", str(data))
    overrides = [*tiny_run("draw_mnist"), "--run.device=cpu"]
    asked = Asked("draw_mnist", str(tmp_path / "run"), overrides, 1000.0, 10)
    found = gpu_fit.fit(asked)
    assert found["trial"]["steps"] == 3  # 300 digits in batches of 100
    assert (found["epochs"], found["done"], found["steps"], found["recipe"]) == (4, 4, 12, 200)  # 10 steps, rounded up
    assert math.isfinite(found["test"]["bound"]) and "--run.epochs=4" in found["command"]
    again = gpu_fit.fit(asked._replace(most_steps=100))
    assert "trial" not in again and (again["epochs"], again["steps"]) == (4, 12)
    assert again["test"]["bound"] == found["test"]["bound"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]  # the trial is gone


def test_the_number_of_epochs_follows_from_the_time(tmp_path: Path, monkeypatch) -> None:
    trained = []
    monkeypatch.setattr(gpu_fit, "time", SimpleNamespace(monotonic=iter(range(100)).__next__))
    monkeypatch.setattr(gpu_fit, "trial", lambda *_: gpu_fit.Epoch(seconds=2.0, rate=1.0, steps=100, start=5.0))
    monkeypatch.setattr(gpu_fit, "train", lambda line, until: trained.append(line))
    monkeypatch.setattr(gpu_fit, "command", lambda line: 0)
    for seconds, most, epochs, warmup in ((100, None, 39, 390), (100, 2000, 20, 200), (5000, None, 60, 500)):
        asked = Asked("draw_reader_cluttered100", str(tmp_path / "run"), [], seconds, most)
        with pytest.raises(FileNotFoundError):  # nothing was trained
            gpu_fit.fit(asked)
        assert f"--run.epochs={epochs}" in trained[-1] and f"--run.warmup={warmup}" in trained[-1]
    gpu_fit.main(json.dumps(asked), str(tmp_path / "result.json"))
    assert "FileNotFoundError" in json.loads((tmp_path / "result.json").read_text())["error"]


def options(out: Path, **changes: object) -> Options:
    return Options("ram", str(out), str(out / "runs"), "cuda", 100.0, True, False)._replace(**changes)


def test_runs_on_a_gpu_are_made_fast_in_several_ways(tmp_path: Path) -> None:
    ways = gpu_runs.ways(options(tmp_path))
    assert ways[0] == ["--run.compile=true", "--run.capture=true"] and ways[-1][0] == "--run.compile=false"
    assert all("--run.compile=false" in way for way in gpu_runs.ways(options(tmp_path, compile=False)))
    assert gpu_runs.ways(options(tmp_path, device="cpu")) == [[]]


def test_archives_hold_what_fits(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gpu_runs, "LIMIT", 30_000)
    for name, size in (("a", 100), ("b", 100), ("c", 40_000)):
        run = tmp_path / "runs" / name
        for file in ("best/model.safetensors", "last/trainer.pt", "metrics.jsonl"):
            (run / file).parent.mkdir(parents=True, exist_ok=True)
            (run / file).write_bytes(bytes(size if "best" in file else 9_000))
        gpu_runs.archive(options(tmp_path), name, run)
    held: dict[str, str] = {}
    for path in sorted(tmp_path.glob("*.tar")):
        with tarfile.open(path) as tar:
            held |= dict.fromkeys(tar.getnames(), path.name)
        assert path.stat().st_size <= 30_000 + tarfile.RECORDSIZE
    assert sorted(held) == [
        "a/best/model.safetensors", "a/metrics.jsonl", "b/best/model.safetensors", "b/metrics.jsonl", "c/metrics.jsonl",
    ]  # fmt: skip
    assert held["a/metrics.jsonl"] == "ram.1.tar" and held["c/metrics.jsonl"] == "ram.2.tar"


def test_the_table_of_speed_is_made_on_a_cpu(monkeypatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    lines = gpu.gpu(QUICK, 1, "cpu").splitlines()
    found = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    ways = ("plain", "eager", "captured", "compiled", "compiled and captured")
    assert found == ["", *(f"SAT soft, {way}" for way in ways)] and not any("Error" in line for line in lines)


def test_the_share_is_of_the_rate_that_allows_less() -> None:
    rates = {"matrix": 1e12, "copy": 1e9}
    numbers = {"unit": "images", "rate": 50.0, "seconds": 2.0, "operations": 1e12, "moved": 1e8, "memory": 2**21}
    assert gpu.cells(numbers, rates) == ("50 images", "2e+03", "50.0% of the matrix rate", "2")
    limited = numbers | {"moved": 15e8, "memory": None}
    assert gpu.cells(limited, rates) == ("50 images", "2e+03", "75.0% of the copy rate", "-")


def test_one_that_cannot_be_timed_leaves_the_others() -> None:
    def broken() -> gpu.Work:
        raise RuntimeError("not captured")

    work = gpu.Work(run=lambda: None, number=3, unit="images", operations=1, moved=1)
    found = dict(gpu.measure(iter([("a", broken), ("b", lambda: work)]), "cpu", 1))
    assert found["a"] == {"error": "RuntimeError: not captured"} and found["b"]["rate"] > 0


class Started:
    """Stands for `gpu_speed.Process`: what happens to it follows from the name of its case."""

    def __init__(self, options: Options, compiled: bool, names: list[str]) -> None:
        self.names, self.ended = names, threading.Event()

    def ready(self) -> bool:
        if "late" in self.names:
            self.ended.wait()
        return "dead" not in self.names

    def results(self) -> Iterator[tuple[str, dict]]:
        numbers = {"unit": "images", "rate": 1.0, "seconds": 1.0, "operations": 1, "moved": 1, "memory": None}
        yield self.names[0], numbers

    def end(self) -> int:
        self.ended.set()
        return -11 if {"dead", "crashed"} & set(self.names) else 0


def test_cases_that_are_late_or_die_cost_the_others_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gpu_speed, "Process", Started)
    groups = [["late"], ["dead"], ["crashed"], ["fine"]]
    until = time.monotonic() + 0.5
    found = list(gpu_speed.wave(options(tmp_path), True, groups, {"matrix": 1e12, "copy": 1e9}, until))
    assert [(row.what, row.said.partition(",")[0]) for row in found] == [
        ("late, compiled", "not built after 85 s"),
        ("dead, compiled", "failed: the process ended with -11"),
        ("crashed", "1 images/s"),
        ("crashed, compiled", "failed: the process ended with -11 while it was timed"),
        ("fine", "1 images/s"),
    ]


def test_failed_tests_are_named(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="one"><properties><property name="difference" value="1e-7"/>'
        '</properties></testcase><testcase name="two"><failure message="assert 1&#10; == 2">long</failure></testcase>'
        '<testcase name="three"><skipped message="no"/></testcase></testsuite></testsuites>'
    )
    found = list(rows(report))
    assert [(row.what, row.said) for row in found] == [
        ("one, difference", "1e-7"), ("two", "failed: assert 1 == 2"),
        ("tests marked gpu", "1 passed, 1 failed, 1 skipped"),
    ]  # fmt: skip


def test_the_pack_has_what_blocks_need_and_stays_below_its_limit(data: Path, tmp_path: Path, monkeypatch, capsys):
    source, pack = tmp_path / "data", tmp_path / "pack"
    source.mkdir()
    for name in ("mnist", "flickr8k"):
        (source / name).symlink_to(data / name)
    (source / "weights").mkdir()
    (source / gpu_pack.WEIGHTS).write_bytes(bytes(1000))
    monkeypatch.setenv("VISION_ATTN_DATA", str(source))
    monkeypatch.setattr(gpu_pack, "wheels", lambda folder, python: lacks(True))
    photographs = gpu_pack.total((data / "flickr8k" / "images").iterdir()) / gpu_pack.MiB
    assert gpu_pack.main([str(pack), f"--flickr8k={0.6 * photographs}", "--limit=1000"]) == 0
    assert "wheels: left out: there is no such data" in capsys.readouterr().out
    captions = json.loads((pack / "flickr8k" / "captions.json").read_text())
    assert [image["split"] for image in captions["images"]] == ["train"] * 3 + ["val", "test"]
    assert len(captions["annotations"]) == 25
    names = {path.name for path in (pack / "flickr8k" / "images").iterdir()}
    assert names == {image["file_name"] for image in captions["images"]}
    monkeypatch.setenv("VISION_ATTN_DATA", str(pack))
    gpu_day.mnist(False)
    gpu_day.flickr8k(False)
    monkeypatch.setenv("VISION_ATTN_DATA", str(source))
    assert gpu_pack.main([str(pack), "--limit=0.001"]) == 1
    assert "give a smaller --flickr8k" in capsys.readouterr().err

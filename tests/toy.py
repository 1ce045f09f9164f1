"""A task and a source so small that the engine can be killed, resumed and split a hundred times in a test."""

import atexit
import functools
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from vision_attn.configuration.run_settings import Run
from vision_attn.engine import distributed
from vision_attn.engine.fit import fit
from vision_attn.system.files import replacing
from vision_attn.task import Source, Task


class PointBatch(NamedTuple):
    points: Tensor  # (B, 4)
    answers: Tensor  # (B,)
    ids: tuple
    notes: tuple


class Errors(NamedTuple):
    squared: Tensor  # (B,)
    noise: Tensor  # (): validation draws too, and must leave no trace


class Points(Source):
    """Points on a noisy plane. The order of an epoch follows from seed and epoch alone."""

    def __init__(self, *, items: int = 48, batch: int = 8, bad: int | None = None) -> None:
        self.items, self.batch, self.bad = items, batch, bad

    def _take(self, indices: Tensor) -> PointBatch:
        generator = torch.Generator().manual_seed(7)
        points = torch.randn(self.items, 4, generator=generator)
        answers = points @ torch.tensor([1.0, -2.0, 0.5, 3.0]) + 0.1 * torch.randn(self.items, generator=generator)
        if self.bad is not None:
            answers[self.bad] = torch.nan
        ids = tuple(f"point{index}" for index in indices.tolist())
        return PointBatch(points[indices], answers[indices], ids, ("some text",) * len(ids))

    def __len__(self) -> int:
        return self.items // self.batch

    def train(self, epoch: int, *, seed: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[PointBatch]:
        if epoch == 1 and "TOY_FILE_LIMIT" in os.environ:  # A disk that fills up in the second epoch.
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.environ["TOY_FILE_LIMIT"]),) * 2)
        if epoch == 1 and "TOY_SIGNAL" in os.environ:
            os.kill(os.getpid(), int(os.environ["TOY_SIGNAL"]))
        if epoch == 1 and os.environ.get("TOY_SIGNAL_RANK") == str(rank):
            os.kill(os.getpid(), signal.SIGTERM)
        if epoch == 1 and os.environ.get("TOY_KILLED_RANK") == str(rank):
            os.kill(os.getpid(), signal.SIGKILL)
        if epoch == 1 and os.environ.get("TOY_STOPPED_RANK") == str(rank):
            os.kill(os.getpid(), signal.SIGSTOP)
        torch.rand(1)  # A careless source: it draws from the default generator when an epoch starts.
        generator = torch.Generator().manual_seed(1000 * seed + epoch)
        for indices in torch.randperm(self.items, generator=generator).split(self.batch)[skip : len(self)]:
            yield self._take(indices[rank::world])

    def split(self, name: str, *, rank: int = 0, world: int = 1) -> Iterable[PointBatch]:
        parts = torch.arange(16).split(6)  # not as many for each of two processes
        return [self._take(indices) for indices in parts[rank::world]]

    def export(self, folder: Path) -> None:
        (folder / "points.json").write_text(json.dumps({"items": self.items}))


class Plane(Task):
    """A small network with dropout, a tied weight, a frozen layer and a moving average in a buffer."""

    def __init__(self, source: Source, *, dropout: float = 0.3, hidden: int = 16) -> None:
        super().__init__()
        self.source = source
        if "TOY_IDLE" in os.environ:
            self.idle = nn.Linear(1, 1)  # which no loss reaches
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.first = nn.Linear(4, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.second.weight = nn.Parameter(torch.randn(hidden, hidden) / hidden**0.5)
        self.third = nn.Linear(hidden, hidden)
        self.third.weight = self.second.weight
        self.last = nn.Linear(hidden, 1)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mean", torch.zeros(()))
        self.evaluations = 0

    def initialise(self) -> None:
        nn.init.eye_(self.frozen.weight)
        nn.init.zeros_(self.frozen.bias)

    def _guess(self, points: Tensor) -> Tensor:
        hidden = torch.relu(self.first(self.frozen(points)))
        hidden = self.dropout(torch.relu(self.second(hidden))) + self.third(hidden)
        return self.last(hidden).squeeze(-1)

    def forward(self, points: Tensor, answers: Tensor, *_: tuple) -> dict[str, Tensor]:
        error = (self._guess(points) - answers).square().mean()
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.1 * answers.mean())
        return {"loss": error, "guess": self.mean.detach().clone()}

    def predict(self, batch: PointBatch, *, full: bool = False) -> Errors:
        return Errors((self._guess(batch.points) - batch.answers).square(), torch.rand(()))

    def judge(self, predictions: Iterable[Errors], folder: Path | None = None) -> dict[str, float]:
        self.evaluations += 1
        if self.evaluations == 3 and "TOY_SIGNAL_IN_VALIDATION" in os.environ:
            os.kill(os.getpid(), int(os.environ["TOY_SIGNAL_IN_VALIDATION"]))
        errors, noise = zip(*predictions, strict=True)
        return {
            "error": torch.cat(errors).float().mean().item(),
            "images": float(sum(map(len, errors))),
            "noise": float(sum(noise)),
        }

    def show(self, batch: PointBatch, folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{name}.png" for name in batch.ids]
        for path, point in zip(paths, batch.points, strict=True):
            with replacing(path) as temporary:
                temporary.write_text(f"{point.tolist()} -> {self._guess(point):.9g}")
        return paths


def cosine(optimizer: Optimizer, steps: int) -> CosineAnnealingLR:
    return CosineAnnealingLR(optimizer, steps)


def adam(parameters: Iterable[nn.Parameter]) -> AdamW:
    return AdamW(parameters, lr=1e-2)


def momentum(parameters: Iterable[nn.Parameter]) -> SGD:
    return SGD(parameters, lr=1e-2, momentum=0.9)


def toy_run(folder: Path, **settings: object) -> Run:
    """A run of the toy on the CPU: three epochs, judged by its error."""
    return Run(**{"folder": str(folder), "epochs": 3, "metric": "error", "mode": "min", "device": "cpu", **settings})


def train_toy(
    folder: Path,
    *,
    bad: int | None = None,
    dropout: float = 0.3,
    hidden: int = 16,
    batch: int = 8,
    **settings: object,
) -> dict:
    """Train the toy with all on that must survive a kill: dropout, Adam, schedule, average, accumulation, pictures."""
    torch.set_num_threads(1)
    if "TOY_PATIENCE" in os.environ:
        distributed.PATIENCE = timedelta(seconds=float(os.environ["TOY_PATIENCE"]))
    everything = {"average": 0.9, "accumulate": 2, "warmup": 2, "clip": 5.0, "log_every": 4, "show": 2, **settings}
    return fit(
        task=lambda source: Plane(source, dropout=dropout, hidden=hidden),
        data=Points(bad=bad, batch=batch),
        optimizer=adam,
        schedule=cosine,
        run=toy_run(folder, **everything),
    )


class Server:
    """Runs a function in processes of their own, forked from one that has imported torch already, so that many can die.

    Its methods may be called from several threads.
    """

    def __init__(self, *modules: str) -> None:
        """`modules` are imported before the first fork."""
        places = (Path(__file__).parents[1], Path(__file__).parent, Path(__file__).parent / "chaos")
        self.server = subprocess.Popen(
            [sys.executable, __file__, *modules],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places)), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lock = threading.Lock()

    @classmethod
    @functools.cache
    def shared(cls, *modules: str) -> "Server":
        """One for all test files, since starting it takes seconds."""
        server = cls(*modules)
        atexit.register(server.close)
        return server

    def start(
        self,
        folder: Path,
        *,
        call: str = "toy:train_toy",
        die_at: int | None = None,
        file_limit: int | None = None,
        environment: dict | None = None,
        **settings,
    ) -> int:
        """Start `call`, by default training, on a folder and with settings; return the process id.

        It dies just before the `die_at`-th change of a file. None of its files may become larger than `file_limit`.
        """
        command = {"call": call, "die_at": die_at, "file_limit": file_limit, "environment": environment or {}}
        return self._ask(command | {"folder": str(folder), "settings": settings})

    def wait(self, process: int) -> tuple[int, str]:
        """Its exit code, or minus the signal that ended it, and what it printed."""
        while (answer := self._ask(process)) is None:
            time.sleep(0.002)
        return tuple(answer)

    def train(self, folder: Path, **settings) -> tuple[int, str]:
        return self.wait(self.start(folder, **settings))

    def _ask(self, question: object) -> Any:
        with self.lock:
            print(json.dumps(question), file=self.server.stdin, flush=True)
            return json.loads(self.server.stdout.readline())

    def close(self) -> None:
        self.server.stdin.close()
        self.server.wait()


def serve(modules: Iterable[str]) -> None:
    """The other end of `Server`: each line on standard input starts a process or asks whether one has ended."""
    import torch._dynamo  # noqa: F401 (slow, and every optimizer imports it)

    sys.modules["toy"] = sys.modules["__main__"]
    for module in modules:
        importlib.import_module(module)
    outputs = {}
    for line in sys.stdin:
        question = json.loads(line)
        if isinstance(question, int):
            ended, status = os.waitpid(question, os.WNOHANG)
            answer = None
            if ended:
                output = outputs.pop(question)
                answer = [os.waitstatus_to_exitcode(status), output.read_text(errors="replace")]
                output.unlink()
            print(json.dumps(answer), flush=True)
            continue
        descriptor, name = tempfile.mkstemp()
        os.close(descriptor)
        output = Path(name)
        if process := os.fork():
            outputs[process] = output
            print(process, flush=True)
            continue
        _child(question, output)


def _child(question: dict, output: Path) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(question["environment"])
    if question["file_limit"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (question["file_limit"],) * 2)
    module, name = question["call"].split(":")
    function = getattr(importlib.import_module(module), name)
    deadly = Deadly(question["folder"], question["die_at"])
    sys.addaudithook(deadly)
    code = 1
    try:
        print(json.dumps(function(Path(question["folder"]), **question["settings"])), flush=True)
        print(deadly.count, "changes of files", flush=True)
        code = 0
    except SystemExit as stop:
        code = stop.code
    except KeyboardInterrupt:
        code = 130
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    os._exit(code)


class Deadly:
    """Counts the changes that its own process makes to files below a folder; kills it just before the `last`-th one."""

    CHANGES = frozenset(
        ["open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.utime", "os.link"]
    )

    def __init__(self, folder: str, last: int | None = None) -> None:
        self.folder, self.last, self.count = folder, last, 0

    def __call__(self, event: str, arguments: tuple) -> None:
        if event not in self.CHANGES or (event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        # What `shutil.rmtree` removes is named relative to an open folder.
        inside = event in ("os.remove", "os.rmdir") and arguments[1] >= 0
        if inside or str(arguments[0]).startswith(self.folder):
            if self.count == self.last:
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun tests/toy.py FOLDER SETTINGS
        train_toy(Path(sys.argv[1]), **json.loads(sys.argv[2]))
    else:
        serve(sys.argv[1:])

"""A task and a source so small that the engine can be killed, resumed and split a hundred times in a test."""

import atexit
import functools
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from vision_attn.engine.loop import fit
from vision_attn.engine.run import Run
from vision_attn.files import replacing
from vision_attn.task import Source, Task


class PointBatch(NamedTuple):
    points: Tensor  # (B, 4)
    answers: Tensor  # (B,)
    ids: tuple
    notes: tuple


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
        torch.rand(1)  # A careless source: it draws from the default generator when an epoch starts.
        generator = torch.Generator().manual_seed(1000 * seed + epoch)
        for indices in torch.randperm(self.items, generator=generator).split(self.batch)[skip : len(self)]:
            yield self._take(indices[rank::world])

    def split(self, name: str) -> Iterable[PointBatch]:
        return [self._take(indices) for indices in torch.arange(16).split(self.batch)]

    def export(self, folder: Path) -> None:
        (folder / "points.json").write_text(json.dumps({"items": self.items}))


class Plane(Task):
    """A small network with dropout, a tied weight, a frozen layer and a moving average in a buffer."""

    def __init__(self, source: Source, *, dropout: float = 0.3, hidden: int = 16) -> None:
        super().__init__()
        self.source = source
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

    def evaluate(self, batches: Iterable[PointBatch], folder: Path | None = None) -> dict[str, float]:
        self.evaluations += 1
        if self.evaluations == 3 and "TOY_SIGNAL_IN_VALIDATION" in os.environ:
            os.kill(os.getpid(), int(os.environ["TOY_SIGNAL_IN_VALIDATION"]))
        torch.rand(3)  # Validation draws too, and must leave no trace.
        errors = [(self._guess(batch.points) - batch.answers).square() for batch in batches]
        return {"error": torch.cat(errors).float().mean().item(), "images": float(sum(map(len, errors)))}

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
    folder: Path, *, bad: int | None = None, dropout: float = 0.3, batch: int = 8, **settings: object
) -> dict:
    """Train the toy with all on that must survive a kill: dropout, Adam, schedule, average, accumulation, pictures."""
    torch.set_num_threads(1)
    everything = {"average": 0.9, "accumulate": 2, "warmup": 2, "clip": 5.0, "log_every": 4, "show": 2, **settings}
    return fit(
        task=lambda source: Plane(source, dropout=dropout),
        data=Points(bad=bad, batch=batch),
        optimizer=adam,
        schedule=cosine,
        run=toy_run(folder, **everything),
    )


class Server:
    """Trains toys in processes of their own, forked from one that has imported torch already, so that many can die."""

    def __init__(self) -> None:
        root = Path(__file__).parents[1]
        self.server = subprocess.Popen(
            [sys.executable, __file__],
            env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    @classmethod
    @functools.cache
    def shared(cls) -> "Server":
        """One for all test files, since starting it takes seconds."""
        server = cls()
        atexit.register(server.close)
        return server

    def start(self, folder: Path, *, die_at: int | None = None, environment: dict | None = None, **settings) -> int:
        """Start training and return the process id."""
        command = {"die_at": die_at, "environment": environment or {}, "settings": {"folder": str(folder), **settings}}
        return int(self._ask(command))

    def wait(self, process: int) -> tuple[int, str]:
        """Its exit code, or minus the signal that ended it, and what it printed."""
        return tuple(json.loads(self._ask(process)))

    def train(self, folder: Path, **settings) -> tuple[int, str]:
        return self.wait(self.start(folder, **settings))

    def _ask(self, question: object) -> str:
        print(json.dumps(question), file=self.server.stdin, flush=True)
        return self.server.stdout.readline()

    def close(self) -> None:
        self.server.stdin.close()
        self.server.wait()


def serve() -> None:
    """The other end of `Server`: each line on standard input starts a process or waits for one."""
    import torch._dynamo  # noqa: F401 (slow, and every optimizer imports it)

    outputs = {}
    for line in sys.stdin:
        question = json.loads(line)
        if isinstance(question, int):
            code = os.waitstatus_to_exitcode(os.waitpid(question, 0)[1])
            print(json.dumps([code, outputs[question].read_text()]), flush=True)
            continue
        output = Path(tempfile.mkstemp()[1])
        if process := os.fork():
            outputs[process] = output
            print(process, flush=True)
            continue
        descriptor = os.open(output, os.O_WRONLY)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.environ.update(question["environment"])
        settings = question["settings"]
        deadly = Deadly(settings["folder"], question["die_at"])
        sys.addaudithook(deadly)
        code = 1
        try:
            print(json.dumps(train_toy(Path(settings.pop("folder")), **settings)), flush=True)
            print(deadly.count, "operations on files", flush=True)
            code = 0
        except SystemExit as stop:
            code = stop.code
        except KeyboardInterrupt:
            code = 130
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(code)


class Deadly:
    """Counts what its own process does to files below a folder, and kills it just before the `last`-th such thing."""

    KINDS = frozenset(
        ["open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.utime", "os.link"]
    )

    def __init__(self, folder: str, last: int | None = None) -> None:
        self.folder, self.last, self.count = folder, last, 0

    def __call__(self, event: str, arguments: tuple) -> None:
        if event not in self.KINDS:
            return
        # What `shutil.rmtree` removes is named relative to an open folder.
        inside = isinstance(arguments[-1], int) and arguments[-1] >= 0 and event in ("os.remove", "os.rmdir")
        if inside or str(arguments[0]).startswith(self.folder):
            if self.count == self.last:
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun tests/toy.py FOLDER SETTINGS
        train_toy(Path(sys.argv[1]), **json.loads(sys.argv[2]))
    else:
        serve()

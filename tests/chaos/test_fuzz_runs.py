"""Damaged run folders, checkpoints and vocabularies: opened, or refused in one line."""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from attempts import folder_in_memory
from children import Outcome, attempt_all
from damage import TEXT, damaged, drawn, perhaps, record
from hypothesis import strategies as st
from torch import nn

from tests.untrained import write_run
from vision_attn.configuration.config import load
from vision_attn.configuration.run_folder import open_run
from vision_attn.configuration.weights import load_weights
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.engine.run_folder import checkpoint
from vision_attn.system.files import digest, sha256
from vision_attn.task import Task


class Layers(Task):
    """Weights, and nothing else of a task."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)


def add(tally: Any, inputs: Iterable[Any], outcomes: Iterable[Outcome]) -> None:
    for content, outcome in zip(inputs, outcomes, strict=True):
        tally.add(f"{outcome} {str(content)[:500]}" if outcome.failed else None, outcome.seconds)


def test_vocabularies(tally: Any, share: Callable[[int], int]) -> None:
    number = share(1500)
    captions = ["a dog runs", "l'homme qui court", "\u732b\u304c\u597d\u304d", "3.5 caf\u00e9s \U0001f600"] * 2
    with folder_in_memory() as folder:
        Vocabulary.build(captions, min_count=1).save(folder / "good.json")
        whole = (folder / "good.json").read_bytes()
        good = json.loads(whole)
        ids = perhaps(st.integers(-1, 9))
        model = record(vocab=st.dictionaries(TEXT, ids, max_size=6) | st.just(good["model"]["vocab"]), unk_token=TEXT)
        fields = {name: perhaps(st.just(content)) for name, content in good.items()} | {"model": model}
        inputs = [json.dumps(content).encode() for content in drawn(record(**fields), number // 3)]
        inputs += damaged([whole], number // 3, seed=0, head=2000, text=True)
        inputs += damaged([whole], number - len(inputs), seed=1, head=2000)

        def attempt(content: bytes) -> str:
            path = folder / f"{os.getpid()}.json"
            path.write_bytes(content)
            vocabulary = Vocabulary.load(path)
            said = [vocabulary.decode(vocabulary.encode(caption)) for caption in captions]
            vocabulary.save(path)
            assert Vocabulary.load(path).words == vocabulary.words
            return str(said)

        outcomes = attempt_all(attempt, inputs)
    add(tally, inputs, outcomes)
    tally.check(at_least=number)


@pytest.mark.parametrize("base", ["sat_soft_scenes", "ram_mnist28"])
def test_run_folders(base: str, tally: Any, share: Callable[[int], int]) -> None:
    """One file of best/ is damaged."""
    number = share(120)
    with folder_in_memory() as folder:
        best = write_run(base, folder / "good") / "best"
        files = {path.name: path.read_bytes() for path in best.iterdir() if path.is_file()}
        inputs = []
        for turn, name in enumerate(["config.yaml", "model.safetensors", "config.yaml", *sorted(files)]):
            text = not name.endswith(".safetensors")
            part = damaged([files[name]], number // (3 + len(files)) + 1, seed=turn, head=3000, text=text)
            inputs += [(name, content) for content in part]
        inputs = inputs[:: max(1, len(inputs) // number)]

        def attempt(item: tuple[str, bytes]) -> str:
            here = folder / str(os.getpid())
            shutil.rmtree(here, ignore_errors=True)
            shutil.copytree(best, here)
            (here / item[0]).write_bytes(item[1])
            return type(open_run(here)[0]).__name__

        outcomes = attempt_all(attempt, inputs)
    add(tally, inputs, outcomes)
    assert share(20) == 1 or {outcome.status for outcome in outcomes} == {"answered", "refused"}
    tally.check(at_least=number)


def test_configs(tally: Any, share: Callable[[int], int]) -> None:
    """The first step of opening, for many more."""
    number = share(1500)
    with folder_in_memory() as folder:
        whole = (write_run("sat_soft_scenes", folder / "good") / "best" / "config.yaml").read_bytes()
        good = yaml.safe_load(whole)
        strange = drawn(record(**{name: perhaps(st.just(part)) for name, part in good.items()}), number // 5)
        inputs = [json.dumps(content).encode() for content in strange]
        inputs += damaged([whole], number // 5, seed=0, head=3000)
        inputs += damaged([whole, *inputs[:20]], number - len(inputs), seed=1, head=3000, text=True)

        def attempt(content: bytes) -> str:
            path = folder / f"{os.getpid()}.yaml"
            path.write_bytes(content)
            return str(sorted(load(path)))

        outcomes = attempt_all(attempt, inputs)
    add(tally, inputs, outcomes)
    tally.check(at_least=number)


def _seal(last: Path) -> None:
    """Write the checksums of the files as they are, if position.json is whole enough to hold them."""
    path = last / "position.json"
    with suppress(ValueError, AttributeError, TypeError, RecursionError):
        content = json.loads(path.read_bytes())
        content.pop("sha256", None)
        names = ("model.safetensors", "trainer.pt")
        content["files"] = {name: [(last / name).stat().st_size, sha256(last / name)] for name in names}
        path.write_text(json.dumps(content | {"sha256": digest(content)}))


@pytest.mark.parametrize("sealed", [False, True])
def test_checkpoints(sealed: bool, tally: Any, share: Callable[[int], int]) -> None:
    """One or two files of last/, previous/ and metrics.jsonl are damaged; a checkpoint that is taken is whole.

    sealed: the checksums are those of the damaged files, so that damage reaches what reads them.
    """
    number = share(1000)
    task = Layers()
    weights = {name: weight.clone() for name, weight in task.state_dict().items()}
    with folder_in_memory() as folder:
        run = folder / "good"
        run.mkdir()
        (run / "metrics.jsonl").write_text('{"loss": 1}\n' * 20)
        trainer = {
            "step": 7,
            "log": {"seconds": 1.5},
            "random": torch.get_rng_state(),
            "optimizer": {"a": torch.ones(9)},
        }
        for epoch in (1, 2):
            checkpoint.save(run, task, trainer, checkpoint.Position(plan={"seed": 0}, epoch=epoch, logged=120 * epoch))
        files = {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}
        names = sorted(files)
        inputs = []
        for turn in range(number):
            chosen = [names[turn % len(names)], names[(turn // len(names)) % len(names)]][: 1 + turn % 2]
            text = chosen[0].endswith(("json", "jsonl")) and turn % 3 > 0
            inputs.append([(name, damaged([files[name]], 1, seed=turn, text=text)[0]) for name in chosen])

        def attempt(changes: list[tuple[str, bytes]]) -> str:
            here = folder / str(os.getpid())
            shutil.rmtree(here, ignore_errors=True)
            for name, content in {**files, **dict(changes)}.items():
                (here / name).parent.mkdir(parents=True, exist_ok=True)
                (here / name).write_bytes(content)
            for last in (here / "last", here / "previous") if sealed else ():
                _seal(last)
            checkpoint.peek(here)
            position = checkpoint.find(here)
            assert position is not None
            load_weights(task, here / "last")
            loaded = checkpoint.load_trainer(here / "last")
            if not sealed:
                assert all(torch.equal(weights[name], weight) for name, weight in task.state_dict().items())
                assert loaded["step"] == 7 and position.epoch in (1, 2)
            return f"epoch {position.epoch}"

        outcomes = attempt_all(attempt, inputs)
    add(tally, [[name for name, _ in changes] for changes in inputs], outcomes)
    assert share(20) == 1 or {outcome.status for outcome in outcomes} == {"answered", "refused"}
    tally.check(at_least=number)


def test_weights(tally: Any, share: Callable[[int], int]) -> None:
    """Damage of a safetensors file: refused, or numbers of the right shapes."""
    number = share(1500)
    task = Layers()
    with folder_in_memory() as folder:
        (folder / "last").mkdir()
        checkpoint.save(folder, task, {}, checkpoint.Position(plan={}))
        whole = (folder / "last" / "model.safetensors").read_bytes()
        inputs = damaged([whole], number // 2, seed=0, head=400)
        inputs += damaged([whole], number - number // 2, seed=1, head=400, text=True)

        def attempt(content: bytes) -> str:
            here = Path(folder / str(os.getpid()))
            here.mkdir(exist_ok=True)
            (here / "model.safetensors").write_bytes(content)
            load_weights(task, here)
            return str([tuple(weight.shape) for weight in task.parameters()])

        outcomes = attempt_all(attempt, inputs)
    add(tally, inputs, outcomes)
    tally.check(at_least=number)

"""Run folders made to harm whoever opens them: none runs code, reaches the network, writes elsewhere, or hangs."""

import contextlib
import io
import os
import platform
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import malicious_files
import pytest
import torch
import yaml
from children import Outcome, attempt_all
from malicious_configs import CANARIES, Content, executing, misplaced, odd_values
from malicious_yaml import bombs, top_level, twisted
from PIL import Image
from watched import Watch

import vision_attn
import vision_attn.commands.caption
import vision_attn.commands.eval
import vision_attn.commands.train  # noqa: F401 (with what they import, once for all forks)
from tests.untrained import CONFIGS, SIZES, write_run
from vision_attn.commands import main
from vision_attn.configuration.run_folder import open_run
from vision_attn.system.errors import UserError

EVIL = """
from pathlib import Path

import torch

(Path({outside!r}) / "canary").touch()


def make(*args, **kwargs):
    return Evil()


class Evil(torch.nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
"""
SECONDS = 5.0
USUAL = 0.1
"""Processor time that `slowness` takes on a slow core that nobody else uses."""
watch = Watch()

FAST = Path(vision_attn.__file__).parent / "fast"
LOOPS = [f"vision_attn.fast.{file.parent.name}.cpu" for file in FAST.glob("*/cpu.py")]


class Attack(NamedTuple):
    """A good run folder, what is done to its `best/`, and how it is opened."""

    name: str
    base: str
    change: Callable[[Path], None]
    argv: tuple[str, ...] = ()
    """A command; without one, `open_run` opens the folder."""
    trust: tuple[str, ...] = ()


class Range(NamedTuple):
    """Where attacks take place: good run folders, and a folder in which nothing may change."""

    folder: Path
    outside: Path

    def attempt(self, attack: Attack, *, watched: bool = True) -> str:
        """What came of it, in a folder of its own. Raises AssertionError for harm, UserError for a refusal."""
        work = self.folder / "work" / str(os.getpid())
        shutil.copytree(self.folder / "good" / attack.base, work / "runs" / "evil", symlinks=True)
        for place in (work, work / "runs" / "evil", work / "runs" / "evil" / "best", work / "evil_package"):
            place.mkdir(exist_ok=True)
            module = place / ("__init__.py" if place.name == "evil_package" else "helper.py")
            module.write_text(EVIL.format(outside=str(self.outside)))
        (work / "evil.yaml").write_text("task: {class_path: helper.Evil}\ndata: {class_path: helper.Evil}\n")
        Image.new("RGB", (60, 60), "red").save(work / "photo.jpg")
        attack.change(work / "runs" / "evil" / "best")
        tempfile.tempdir = str(self.folder / "temporary")
        os.chdir(work)
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(work)]
        before, began = sorted(self.outside.iterdir()), time.process_time()
        if watched:
            watch.start(CANARIES, work, self.folder / "temporary")
        try:
            said = command(attack.argv) if attack.argv else opened(attack.trust)
        finally:
            seen = watch.stop()
            os.chdir(self.folder)
            sys.path.remove(str(work))
            shutil.rmtree(work)
            assert not seen, f"harm: {seen[:5]}"
            assert sorted(self.outside.iterdir()) == before, "harm: something was written elsewhere"
            assert time.process_time() - began < SECONDS * slowness(), "harm: it took too long"
        return said

    def attempt_all(self, attacks: list[Attack]) -> list[Outcome]:
        """On a busy machine a second attempt may wait longer, but not compute longer."""
        outcomes = attempt_all(self.attempt, attacks, seconds=SECONDS)
        return [
            attempt_all(self.attempt, [attack], seconds=8 * SECONDS)[0] if outcome.status == "hang" else outcome
            for attack, outcome in zip(attacks, outcomes, strict=True)
        ]


def slowness() -> float:
    """How many times slower than usual this core is now, at least 1: where the host of a virtual machine is busy,
    processor time passes while nothing is computed."""
    began = time.process_time()
    sum(range(2_000_000))
    return max(1.0, (time.process_time() - began) / USUAL)


def opened(trust: tuple[str, ...]) -> str:
    task, _, _ = open_run("runs/evil", trust=trust)
    return type(task).__name__


def command(argv: tuple[str, ...]) -> str:
    """Standard output of a command. Raises UserError with its one line of complaint."""
    said, complaint = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complaint):
        try:
            status = main(list(argv))
        except SystemExit as leaving:
            status = leaving.code
    lines = [line for line in complaint.getvalue().splitlines() if "error: " in line]
    assert status in (0, 1, 2), f"status {status}: {complaint.getvalue()}"
    if status == 0:
        return said.getvalue()
    assert len(lines) <= 1, lines
    raise UserError(lines[0] if lines else "status 1")


@pytest.fixture(scope="session")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    """A captioner, a RAM and a DRAW, tiny and untrained."""
    torch.set_num_threads(1)
    platform.processor()  # runs a program, the first time it is asked
    folder = tmp_path_factory.mktemp("attacks")
    for name in SIZES:
        write_run(name, folder / "good" / name)
    (folder / "outside").mkdir()
    (folder / "outside" / "precious.txt").write_text("must stay")
    (folder / "temporary").mkdir()
    place = Range(folder, folder / "outside")
    compile_loops(place)
    yield place
    shutil.rmtree(folder)


def compile_loops(field: Range) -> None:
    """Do what happens once in any case, whatever is opened: numba keeps compiled loops beside the package, as Python
    keeps bytecode, and torch's compiler sets a variable of the environment when it is imported."""
    assert "vision_attn.fast.glimpse.cpu" in LOOPS
    for name in (*LOOPS, "torch._inductor.codecache"):
        import_module(name)
    attacks = [Attack("nothing", base, lambda best: None, harmless(base)) for base in SIZES]
    outcomes = attempt_all(partial(field.attempt, watched=False), attacks, seconds=240)
    assert [outcome.status for outcome in outcomes] == ["answered"] * len(SIZES), outcomes


def harmless(base: str) -> tuple[str, ...]:
    """A command on a good run folder."""
    return ("caption", "runs/evil", "photo.jpg") if base.endswith("scenes") else ("eval", "runs/evil", "--show=1")


def writing(field: Range, content: Content) -> Callable[[Path], None]:
    """Replaces the config."""
    return partial(_write, content, field.outside)


def _write(content: Content, outside: Path, best: Path) -> None:
    text = content if isinstance(content, str) else yaml.safe_dump(content)
    (best / "config.yaml").write_bytes(text.replace("OUTSIDE", str(outside)).encode("utf-8", "surrogatepass"))


def good(field: Range, base: str) -> dict:
    return yaml.safe_load((field.folder / "good" / base / "best" / "config.yaml").read_text())


def run_all(field: Range, attacks: list[Attack], share, tally, *, most: int) -> list[Outcome]:
    """Attempt `most` of the attacks, or a share, and count them. None may fail."""
    chosen = random.Random(len(attacks)).sample(attacks, min(len(attacks), share(min(most, len(attacks)))))
    outcomes = field.attempt_all(chosen)
    for attack, outcome in zip(chosen, outcomes, strict=True):
        failure = f"{attack.base}, {attack.name}: {outcome.status}: {outcome.said}" if outcome.failed else None
        tally.add(failure, outcome.seconds)
    tally.check(at_least=min(len(attacks), share(min(most, len(attacks)))))
    return outcomes


@pytest.mark.parametrize("base", SIZES)
def test_the_good_folders_open_where_attacks_take_place(field: Range, base: str) -> None:
    """Or no attack would show anything."""
    nothing = lambda best: None  # noqa: E731
    attacks = [Attack("nothing", base, nothing), Attack("nothing", base, nothing, harmless(base))]
    outcomes = field.attempt_all(attacks)
    assert [outcome.status for outcome in outcomes] == ["answered"] * 2, outcomes


@pytest.mark.parametrize("slot", ["task.model.attention", "data"])
def test_harm_is_noticed(field: Range, slot: str) -> None:
    """A package that is trusted runs its code, and the watch sees it."""
    config = good(field, "sat_soft_scenes")
    node = config["data"] if slot == "data" else config["task"]["init_args"]["model"]["init_args"]["attention"]
    node |= {"class_path": "evil_package.Evil", "init_args": {}}
    change = writing(field, config)
    outcomes = field.attempt_all([Attack("trusted", "sat_soft_scenes", change, trust=("evil_package",))])
    (field.outside / "canary").unlink()
    assert outcomes[0].status == "traceback" and "evil_package/__init__.py" in outcomes[0].said
    assert re.search("harm: .*imports .*/canary", outcomes[0].said)


@pytest.mark.parametrize("base", SIZES)
@pytest.mark.parametrize(
    ("make", "most"),
    [(executing, 250), (misplaced, 50), (odd_values, 100), (twisted, 100), (top_level, 60), (bombs, 30)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_malicious_configs(field: Range, base: str, make: Callable, most: int, share, tally) -> None:
    config = good(field, base)
    attacks = [Attack(name, base, writing(field, text)) for name, text in make(config)]
    outcomes = run_all(field, attacks, share, tally, most=most)
    if make is executing:
        assert {outcome.status for outcome in outcomes} == {"refused"}


@pytest.mark.parametrize("verb", ["eval", "caption", "train"])
def test_malicious_configs_by_command(field: Range, verb: str, share, tally) -> None:
    """The same by commands. `train` gets a good config, and a malicious folder to go on with."""
    base = "sat_soft_scenes" if verb == "caption" else "ram_mnist28"
    argv = {
        "eval": ("eval", "runs/evil", "--device=cpu"),
        "caption": ("caption", "runs/evil", "photo.jpg", "--device=cpu"),
        "train": ("train", str(CONFIGS / "ram_mnist28.yaml"), *SIZES["ram_mnist28"], "--run.folder=runs/evil"),
    }[verb]
    config = good(field, base)
    texts = [*executing(config), *twisted(config), *top_level(config), *bombs(config)]

    def both(content: Content, best: Path) -> None:
        _write(content, field.outside, best)
        _write(content, field.outside, best.parent)

    run_all(field, [Attack(name, base, partial(both, text), argv) for name, text in texts], share, tally, most=30)


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        ("vocabularies", "sat_soft_scenes"),  # the others have none
        *((kind, base) for kind in ("weights", "config_files") for base in ("sat_soft_scenes", "ram_mnist28")),
    ],
)
def test_malicious_files(field: Range, base: str, kind: str, share, tally) -> None:
    attacks = [Attack(name, base, change) for name, change in getattr(malicious_files, kind)()]
    run_all(field, attacks, share, tally, most=100)


def test_malicious_places(field: Range, share, tally) -> None:
    """Links out of the run folder, downloads, devices in the place of data, and caches elsewhere."""
    outside = str(field.outside)

    def linked(name: str, to: str) -> Callable[[Path], None]:
        return lambda best: (best.parent / name).symlink_to(to)

    def with_data(base: str, **arguments) -> Callable[[Path], None]:
        config = good(field, base)
        config["data"]["init_args"] |= arguments
        return writing(field, config)

    def photographs(**arguments) -> Callable[[Path], None]:
        config = good(field, "sat_soft_scenes")
        given = {"images": ".", "annotations": "evil.yaml", "cache": None} | arguments
        config["data"] = {"class_path": "vision_attn.data.photographs.captions.Captions", "init_args": given}
        return writing(field, config)

    evaluated = ("eval", "runs/evil", "--device=cpu", "--show=1")
    names = ["pictures_test", "metrics_test.json", "glimpses_test.json", ".1-00000000.x.part"]
    attacks = [Attack(f"a link {name}", "ram_mnist28", linked(name, outside), evaluated) for name in names]
    attacks += [
        Attack(
            "a link to precious.txt", "ram_mnist28", linked("metrics_test.json", f"{outside}/precious.txt"), evaluated
        ),
        Attack("a download", "ram_mnist28", with_data("ram_mnist28", download=True, folder="nowhere"), evaluated),
        Attack(
            "a download elsewhere", "ram_mnist28", with_data("ram_mnist28", download=True, folder=outside), evaluated
        ),
    ]
    places = ["/dev/zero", "/dev/stdin", "/proc/self/mem", "/proc", "/", "\0", "~nobody/x", "x" * 300, "../" * 50]
    for place in [*places, "runs/evil/pipe", "runs/evil/pipes"]:
        attacks += [
            Attack(f"digits in {place!r:.20}", "ram_mnist28", with_data("ram_mnist28", folder=place), evaluated),
            Attack(f"annotations {place!r:.20}", "sat_soft_scenes", photographs(annotations=place), evaluated),
            Attack(f"images {place!r:.20}", "sat_soft_scenes", photographs(images=place), evaluated),
            Attack(f"splits {place!r:.20}", "sat_soft_scenes", photographs(split_files=place), evaluated),
            Attack(f"cache {place!r:.20}", "sat_soft_scenes", photographs(cache=place), evaluated),
        ]
    attacks += [Attack(f"cache {outside}", "sat_soft_scenes", photographs(cache=outside), evaluated)]
    piped = [attack._replace(change=partial(_with_pipe, attack.change)) for attack in attacks]
    run_all(field, piped, share, tally, most=100)


def _with_pipe(change: Callable[[Path], None], best: Path) -> None:
    """Adds a pipe, and a folder of digits that are pipes."""
    change(best)
    os.mkfifo(best.parent / "pipe")
    (best.parent / "pipes").mkdir()
    for name in ("train-images-idx3-ubyte", "t10k-labels-idx1-ubyte.gz"):
        os.mkfifo(best.parent / "pipes" / name)

"""The disk is full at many different sizes. Each time one line names the path, and with space again nothing is lost."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attempts import assert_same_contents, folder_in_memory, side_by_side, some
from toy import Server
from verbs import write_config, write_photographs

from tests.engine.test_resume import assert_same

PAGE = os.sysconf("SC_PAGE_SIZE")
TRAINING = {"save_every": 0, "epochs": 2, "batch": 16, "accumulate": 1, "warmup": 0}
GENEROUS = "size=64m"


@pytest.fixture(scope="module")
def server() -> Server:
    return Server.shared("verbs")


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with folder_in_memory() as folder:
        write_photographs(folder)
        yield folder


@pytest.fixture(scope="module")
def captioner(server: Server, place: Path) -> Path:
    """The run of a tiny captioner, on a disk with space enough."""
    work = place / "captioner"
    code, output = server.train(work, **verb("train", write_config(place, work=work)))
    assert code == 0, output
    return work / "run"


def mount(folder: Path, limit: str) -> bool:
    """Mount a disk of its own at `folder`; whether that is permitted."""
    command = ["mount", "-t", "tmpfs", "-o", limit, "tmpfs", folder]
    return shutil.which("mount") is not None and not subprocess.run(command, capture_output=True).returncode


@contextmanager
def disk(folder: Path, limit: str) -> Iterator[Callable[[], Any]]:
    """`folder` on a disk with a limit such as size=8192 or nr_inodes=9; yields what gives it space again.

    file_limit=8192 is no disk, but a limit on each file of a process: for machines that permit no mounting.
    """
    folder.mkdir(parents=True)
    small = not limit.startswith("file_limit")
    if small:
        assert mount(folder, limit)
    try:
        yield lambda: small and subprocess.run(["mount", "-o", f"remount,{GENEROUS},nr_inodes=10k", folder], check=True)
    finally:
        if small:
            subprocess.run(["umount", "--lazy", folder], check=True)
        shutil.rmtree(folder)


def limits(whole: Path, *, mounted: bool) -> list[str]:
    """Disks that are too small for what lies in `whole`, and some that are not: more is needed on the way."""
    entries = [*whole.rglob("*")]
    sizes = [path.stat().st_size for path in entries if path.is_file()]
    if not mounted:
        return [f"file_limit={size}" for size in range(PAGE, max(sizes), max(PAGE, max(sizes) // 40))]
    pages = sum(-(-size // PAGE) for size in sizes)
    by_size = [f"size={PAGE * number}" for number in range(1, pages * 5 // 4)]
    return by_size + [f"nr_inodes={number}" for number in range(2, len(entries) * 5 // 4)]


def fill(
    server: Server, tally: Any, share: Callable, name: Path, how: Callable[[Path], dict], same: Callable,
    *, most: int, mounted: bool | None = None,
) -> None:  # fmt: skip
    """Run on disks with room for less and less, then with room enough, and hold the result against an undisturbed one.

    `how` says how to call it on a folder, `same(folder, whole)` compares, `most` is the number of disks at most.
    """
    whole = name.with_name(f"{name.name}-whole")
    code, output = server.train(whole, **how(whole))
    assert code == 0, output[-2000:]
    if mounted is None:
        (probe := name.with_name(f"{name.name}-probe")).mkdir()
        mounted = mount(probe, GENEROUS)
        if mounted:
            subprocess.run(["umount", probe], check=True)

    def attempt(limit: str) -> str | None:
        folder = name.with_name(f"{name.name}-{limit}")
        settings = how(folder)
        with disk(folder, limit) as give_space:
            few = {"file_limit": int(limit.split("=")[1])} if limit.startswith("file_limit") else {}
            code, output = server.train(folder, **settings, **few)
            if code == 0:
                return None  # there was room enough
            said = complaint(output)
            if code != 1 or said is None or str(folder) not in said:
                return f"{limit}: {code}, {output[-1500:]}"
            full.append(limit)
            give_space()
            code, output = server.train(folder, **settings)
            if code != 0:
                return f"{limit}, with space again: {code}, {output[-1500:]}"
            same(folder, whole)
        return None

    full: list[str] = []
    possible = limits(whole, mounted=mounted)
    side_by_side(tally, attempt, [possible[number] for number in some(len(possible), share, most=most)])
    shutil.rmtree(whole)
    tally.attempts = len(full)
    tally.check(at_least=1 if share(most) > 4 else 0)


def complaint(output: str) -> str | None:
    """The one line that a failure said; None where it said more, or nothing."""
    found = [line for line in output.splitlines() if "error: " in line or line.startswith("UserError: ")]
    return found[0] if len(found) == 1 and "Traceback" not in output and "bug" not in found[0] else None


def verb(*argv: object) -> dict:
    return {"call": "verbs:run_verb", "argv": list(map(str, argv))}


@pytest.mark.parametrize("mounted", [None, False], ids=["disk", "file limit"])
def test_training(server, place, tally, share, mounted):
    def same(folder: Path, whole: Path) -> None:
        assert_same(folder, whole)
        assert_same_contents(folder / "pictures", whole / "pictures")

    name, most = (place / "training", 60) if mounted is None else (place / "limited", 8)
    fill(server, tally, share, name, lambda _: TRAINING, same, most=most, mounted=mounted)


def test_prepare(server, place, tally, share):
    def how(work: Path) -> dict:
        return verb("prepare", write_config(place, work=work))

    fill(server, tally, share, place / "preparing", how, assert_same_contents, most=24)


def test_train(server, place, tally, share):
    def how(work: Path) -> dict:
        return verb("train", write_config(place, work=work))

    def same(work: Path, whole: Path) -> None:
        assert_same(work / "run", whole / "run")
        assert_same_contents(work, whole, besides=["run"])

    fill(server, tally, share, place / "trained", how, same, most=16)


def test_eval(server, place, captioner, tally, share):
    def how(out: Path) -> dict:
        return verb("eval", captioner, f"--out={out}", "--show=1", "--device=cpu")

    fill(server, tally, share, place / "measured", how, assert_same_contents, most=24)


def test_caption(server, place, captioner, tally, share):
    def how(out: Path) -> dict:
        return verb("caption", captioner, place / "photographs" / "00.jpg", f"--out={out}", "--device=cpu")

    fill(server, tally, share, place / "drawn", how, assert_same_contents, most=24)

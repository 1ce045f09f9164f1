"""The disk is full at many different sizes. Each time one line names the path, and with space again nothing is lost."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attempts import assert_same_contents, folder_in_memory, side_by_side, some
from test_resume import assert_same
from toy import Server
from verbs import write_config, write_photographs

PAGE = os.sysconf("SC_PAGE_SIZE")
TRAINING = {"save_every": 0, "epochs": 2, "batch": 16, "accumulate": 1, "warmup": 0}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server("verbs")
    yield server
    server.close()


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with folder_in_memory() as folder:
        write_photographs(folder)
        if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder / "photographs"], capture_output=True).returncode:
            pytest.skip("mounting a small tmpfs is not permitted here")
        subprocess.run(["umount", folder / "photographs"], check=True)
        yield folder


@contextmanager
def disk(folder: Path, limit: str) -> Iterator[Callable[[], None]]:
    """A disk of its own at `folder`, with a limit such as size=8k or nr_inodes=9; yields what gives it space again."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", limit, "tmpfs", folder], check=True)
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=64m,nr_inodes=10k", folder], check=True)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
        folder.rmdir()


def used(folder: Path) -> tuple[int, int]:
    """The pages that the files below `folder` take on a tmpfs, and how many files and folders there are."""
    entries = [*folder.rglob("*")]
    return sum(-(-path.stat().st_size // PAGE) for path in entries if path.is_file()), len(entries) + 1


def fill(
    server: Server, tally: Any, share: Callable, name: Path, how: Callable[[Path], dict], same: Callable, *, most: int
) -> None:
    """Run on disks with room for less and less, then with room enough, and hold the result against an undisturbed one.

    `how` says how to call it on a folder, `same(folder, whole)` compares, `most` is the number of sizes.
    """
    whole = name.with_name(f"{name.name}-whole")
    with disk(whole, "size=64m"):
        code, output = server.train(whole, **how(whole))
        assert code == 0, output[-2000:]
        pages, entries = used(whole)

        def attempt(limit: str) -> str | None:
            folder = name.with_name(f"{name.name}-{limit}")
            settings = how(folder)
            with disk(folder, limit) as give_space:
                code, output = server.train(folder, **settings)
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
        limits = [f"size={PAGE * number}" for number in range(1, 2 * pages)]
        limits += [f"nr_inodes={number}" for number in range(2, 2 * entries)]
        chosen = [limits[number] for number in some(len(limits), share, most=most)]
        side_by_side(tally, attempt, chosen)
    tally.attempts = len(full)
    tally.check()


def complaint(output: str) -> str | None:
    """The one line that a failure said; None where it said more, or nothing."""
    found = [line for line in output.splitlines() if "error: " in line or line.startswith("ValueError: ")]
    return found[0] if len(found) == 1 and "Traceback" not in output and "bug" not in found[0] else None


def verb(*argv: object) -> dict:
    return {"call": "verbs:run_verb", "argv": list(map(str, argv))}


def test_training(server, place, tally, share):
    def same(folder: Path, whole: Path) -> None:
        assert_same(folder, whole)
        assert_same_contents(folder / "pictures", whole / "pictures")

    fill(server, tally, share, place / "training", lambda _: TRAINING, same, most=80)


def test_prepare(server, place, tally, share):
    def how(work: Path) -> dict:
        return verb("prepare", write_config(place, work=work))

    fill(server, tally, share, place / "preparing", how, assert_same_contents, most=40)


def test_train(server, place, tally, share):
    def how(work: Path) -> dict:
        return verb("train", write_config(place, work=work))

    def same(work: Path, whole: Path) -> None:
        assert_same(work / "run", whole / "run")
        assert_same_contents(work, whole, besides=["run"])

    fill(server, tally, share, place / "trained", how, same, most=30)


@pytest.fixture(scope="module")
def captioner(server: Server, place: Path) -> Path:
    work = place / "captioner"
    code, output = server.train(work, **verb("train", write_config(place, work=work)))
    assert code == 0, output
    return work / "run"


def test_eval(server, place, captioner, tally, share):
    def how(out: Path) -> dict:
        return verb("eval", captioner, f"--out={out}", "--show=1", "--device=cpu")

    fill(server, tally, share, place / "measured", how, assert_same_contents, most=40)


def test_caption(server, place, captioner, tally, share):
    def how(out: Path) -> dict:
        return verb("caption", captioner, place / "photographs" / "00.jpg", f"--out={out}", "--device=cpu")

    fill(server, tally, share, place / "drawn", how, assert_same_contents, most=40)

"""Processes are killed at every change of a file and at random moments. Nothing is lost, and nothing is left over."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from attempts import assert_same_contents, folder_in_memory, side_by_side, some
from toy import Server
from verbs import write_config, write_photographs

from tests.engine.test_distributed import start_two, train_two
from tests.engine.test_resume import assert_same

KILLED = -signal.SIGKILL
SMALL = {"save_every": 0, "epochs": 2, "batch": 16, "accumulate": 1, "warmup": 0}
UNVALIDATED = {"validate_every": 0, "epochs": 1, "batch": 24, "accumulate": 1, "warmup": 0}


@pytest.fixture(scope="module")
def server() -> Server:
    return Server.shared("verbs")


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture(scope="module")
def photographs(place: Path) -> Path:
    """The folder that holds the photographs, their captions and the configs."""
    write_photographs(place)
    return place


@pytest.fixture(scope="module")
def captioner(server: Server, photographs: Path) -> Path:
    """The work folder of a tiny captioner that nothing disturbed: its run and its cache."""
    work = photographs / "captioner"
    finish(server, work, call="verbs:run_verb", argv=["train", str(write_config(photographs, work=work))])
    return work


def finish(server: Server, folder: Path, **how: Any) -> int:
    """Run to the end; return how many changes of files that took."""
    code, output = server.train(folder, **how)
    assert code == 0, output[-2000:]
    return int(output.splitlines()[-1].split()[0])


def kill_at_each_change(
    server: Server, tally: Any, changes: list[int], folder: Path, how: Callable[[Path], dict], same: Callable
) -> None:
    """For each of `changes`, a process that dies just before it, and another that finishes what it left."""

    def attempt(number: int) -> str | None:
        work = folder.with_name(f"{folder.name}-{number}")
        settings = how(work)
        code, output = server.train(work, die_at=number, **settings)
        if code != KILLED:
            return f"not killed at change {number}: {code}, {output[-500:]}"
        code, output = server.train(work, **settings)
        if code != 0:
            return f"after a kill at change {number}: {code}, {output[-500:]}"
        same(work)
        shutil.rmtree(work)
        return None

    side_by_side(tally, attempt, changes)
    tally.check()


@pytest.mark.parametrize("settings", [SMALL, UNVALIDATED], ids=["validated", "unvalidated"])
def test_training_killed_at_every_change(server, place, tally, share, request, settings):
    whole = place / f"whole-{request.node.callspec.id}"
    number = finish(server, whole, **settings)
    parts = ("last", "previous", "best") if (whole / "previous").exists() else ("last", "best")

    def same(folder: Path) -> None:
        assert_same(folder, whole, parts=parts)
        assert_same_contents(folder / "pictures", whole / "pictures")

    kill_at_each_change(server, tally, some(number, share), whole, lambda _: settings, same)


def test_killed_while_going_back_to_the_checkpoint_before(server, place, tally, share):
    """last/ is damaged; the process that finds it so is killed at every change that it makes until it saves again."""
    whole, damaged = place / "whole-damaged", place / "damaged"
    finish(server, whole, **SMALL)
    code, _ = server.train(damaged, environment={"TOY_SIGNAL": str(int(signal.SIGKILL))}, **SMALL)
    assert code == KILLED
    content = bytearray((damaged / "last" / "trainer.pt").read_bytes())
    content[1000] ^= 1
    (damaged / "last" / "trainer.pt").write_bytes(content)

    def how(folder: Path) -> dict:
        if not folder.exists():
            shutil.copytree(damaged, folder)
        return SMALL

    kill_at_each_change(
        server, tally, some(32, share), place / "going-back", how, lambda folder: assert_same(folder, whole)
    )


def test_training_killed_again_and_again(server, place, tally, share):
    """Each process of a run dies a few changes after the one before died, until one lives to the end."""
    whole = place / "whole-again"
    finish(server, whole, **SMALL)

    def attempt(seed: int) -> str | None:
        folder, draws, code, deaths = place / f"again-{seed}", random.Random(seed), KILLED, 0
        while code == KILLED:
            code, output = server.train(folder, die_at=draws.randrange(120), **SMALL)
            deaths += code == KILLED
        assert code == 0, output[-500:]
        assert_same(folder, whole)
        shutil.rmtree(folder)
        kills.append(deaths)
        return None

    kills: list[int] = []
    side_by_side(tally, attempt, range(share(16)))
    tally.attempts += sum(kills) - len(kills)
    tally.check(at_least=len(kills))


def test_training_killed_at_random_moments(server, place, tally, share):
    """Also within the writing of a file, which takes a while with more weights."""
    settings = {**SMALL, "hidden": 300}
    whole, folder = place / "whole-random", place / "random"
    finish(server, whole, **settings)
    draws, wanted, deaths = random.Random(0), share(60), 0
    while deaths < wanted:
        process = server.start(folder, **settings)
        time.sleep(draws.random() * 0.4)
        os.kill(process, signal.SIGKILL)
        code, output = server.wait(process)
        deaths += code == KILLED
        if code != KILLED or deaths == wanted:
            finish(server, folder, **settings)
            assert_same(folder, whole)
            shutil.rmtree(folder)
        tally.add(None if code in (0, KILLED) else output[-500:])
    tally.attempts = deaths
    tally.check(at_least=wanted)


def test_one_process_of_two_is_killed(server, place, tally, share):
    settings = {"save_every": 0}
    whole = place / "whole-two"
    assert [code for code, _ in train_two(server, whole, **settings)] == [0, 0]
    draws = random.Random(0)
    for number in range(share(8)):
        folder, rank = place / f"two-{number}", number % 2
        both = start_two(server, folder, **settings)
        while not (folder / "metrics.jsonl").exists():
            time.sleep(0.01)
        time.sleep(draws.random() * 0.4)
        os.kill(both[rank], signal.SIGKILL)
        ended = [server.wait(process) for process in both]
        for code, output in train_two(server, folder, **settings):
            assert code == 0, output
        assert_same(folder, whole)
        code, output = ended[1 - rank]
        good = code == 0 or "UserError: another process of this run has ended" in output.splitlines()[-1]
        tally.add(None if good and ended[rank][0] in (0, KILLED) else f"rank {rank}: {ended}")
    tally.check()


# The verbs of the command line


def verb(*argv: object) -> dict:
    return {"call": "verbs:run_verb", "argv": list(map(str, argv))}


def test_prepare_killed_at_every_change(server, photographs, tally, share):
    def how(work: Path) -> dict:
        return verb("prepare", write_config(photographs, work=work))

    whole = photographs / "prepared"
    number = finish(server, whole, **how(whole))
    kill_at_each_change(server, tally, some(number, share), whole, how, lambda work: assert_same_contents(work, whole))


def test_train_killed_at_many_changes(server, photographs, captioner, tally, share):
    def how(work: Path) -> dict:
        return verb("train", write_config(photographs, work=work))

    def same(work: Path) -> None:
        assert_same(work / "run", captioner / "run")
        assert_same_contents(work / "run" / "pictures", captioner / "run" / "pictures")
        assert_same_contents(work, captioner, besides=["run"])

    kill_at_each_change(server, tally, some(150, share, most=24), captioner, how, same)


def test_eval_killed_at_every_change(server, captioner, tally, share):
    def how(out: Path) -> dict:
        return verb("eval", captioner / "run", f"--out={out}", "--show=1", "--device=cpu")

    whole = captioner.with_name("measured")
    number = finish(server, whole, **how(whole))
    kill_at_each_change(server, tally, some(number, share), whole, how, lambda out: assert_same_contents(out, whole))


def test_eval_killed_while_java_measures(server, captioner, tally, share):
    """The Java of a killed evaluation ends with it."""
    if share(2) < 2:
        pytest.skip("Java takes its time: only at a larger share")

    def how(out: Path) -> dict:
        return verb("eval", captioner / "run", f"--out={out}", "--device=cpu") | {"java": True}

    whole = captioner.with_name("java")
    began = time.monotonic()
    finish(server, whole, **how(whole))
    seconds = time.monotonic() - began
    draws = random.Random(0)
    for number in range(share(2)):
        out = whole.with_name(f"java-{number}")
        process = server.start(out, **how(out))
        time.sleep(draws.uniform(0.3, 0.9) * seconds)
        os.kill(process, signal.SIGKILL)
        code, output = server.wait(process)
        deadline = time.monotonic() + 10
        while (left := working_in(out)) and time.monotonic() < deadline:
            time.sleep(0.1)
        finish(server, out, **how(out))
        assert_same_contents(out, whole)
        tally.add(output[-500:] if code not in (0, KILLED) else f"still there: {left}" if left else None)
    tally.check()


def working_in(folder: Path) -> list[str]:
    """The processes whose current folder lies below `folder`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.readlink(process / "cwd").startswith(str(folder)):
                found.append((process / "cmdline").read_text().replace("\0", " ").strip()[:80])
    return found


def test_caption_killed_at_every_change(server, photographs, captioner, tally, share):
    chosen = [photographs / "photographs" / f"{number:02}.jpg" for number in (0, 1)]

    def how(out: Path) -> dict:
        return verb("caption", captioner / "run", *chosen, f"--out={out}", "--device=cpu")

    whole = photographs / "drawn"
    number = finish(server, whole, **how(whole))
    kill_at_each_change(server, tally, some(number, share), whole, how, lambda out: assert_same_contents(out, whole))

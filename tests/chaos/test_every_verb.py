"""What may happen to any verb: its output closed, Ctrl-C, SIGTERM, SIGKILL, a full disk, a second one, no permission.

docs/reliability.md names these tests in a table of commands and events.
"""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attempts import assert_same_contents, contents, folder_in_memory
from every_verb import VERBS, write_inputs
from test_full_disks import GENEROUS, PAGE, complaint, disk, mount
from toy import Server
from verbs import write_config, write_photographs

every_verb = pytest.mark.parametrize("verb", VERBS)
every_writer = pytest.mark.parametrize("verb", [name for name, verb in VERBS.items() if verb.writes])
READY = 60.0
"""Seconds until a server is ready, at most."""


@pytest.fixture(scope="module")
def server() -> Server:
    return Server.shared("every_verb")


@pytest.fixture(scope="module")
def there() -> Iterator[Path]:
    with folder_in_memory() as folder:
        write_inputs(folder)
        yield folder


@pytest.fixture(scope="module")
def whole(server: Server, there: Path) -> Any:
    """What a verb writes, and the seconds that it takes, where nothing disturbs it. Computed once."""
    found: dict[str, tuple[Path, float]] = {}

    def written(verb: str) -> tuple[Path, float]:
        if verb not in found:
            began, out = time.monotonic(), there / f"whole-{verb}"
            if VERBS[verb].ends:
                finish(server, verb, there, out)
            found[verb] = out, time.monotonic() - began if VERBS[verb].ends else 3.0
        return found[verb]

    return written


def how(verb: str, there: Path, **more: object) -> dict:
    return {"call": "every_verb:call", "verb": verb, "there": str(there), **more}


def finish(server: Server, verb: str, there: Path, out: Path) -> None:
    """Run a verb to its end; what it says of a failure is one line."""
    code, output = server.train(out, **how(verb, there))
    assert code == VERBS[verb].status, output[-2000:]
    assert code == 0 or complaint(output), output


def check_same(verb: str, out: Path, whole: Path) -> None:
    """The same files as those of an undisturbed call, with the same bytes where these do not depend on the time."""
    if not VERBS[verb].writes:
        assert not list(out.iterdir())
    elif VERBS[verb].same:
        assert_same_contents(out, whole)
    else:
        assert sorted(contents_names(out)) == sorted(contents_names(whole))
    shutil.rmtree(out)


def contents_names(folder: Path) -> list[str]:
    """The names of all files below `folder`, without the checkpoint before the last, which an interruption adds."""
    paths = [path.relative_to(folder) for path in folder.rglob("*")]
    return [str(path) for path in paths if not any(part.startswith("previous") for part in path.parts)]


def check_output(code: int, output: str, good: tuple[int, ...]) -> None:
    assert code in good, f"{code}: {output[-1500:]}"
    assert "Traceback" not in output and "bug in vision-attn" not in output, output[-1500:]
    assert output.count("error:") <= 1, output


def after(server: Server, verb: str, there: Path, out: Path, whole: Path) -> None:
    """The same command, called again, ends as if nothing had happened, and nothing is left over."""
    if VERBS[verb].ends:
        finish(server, verb, there, out)
    check_same(verb, out, whole)
    left = out.with_name(f"{out.name}-temporary")
    assert not left.exists() or not list(left.glob("*/*.part"))


@every_verb
def test_nobody_reads_the_output(verb, server, there, whole, tally):
    """Files are complete all the same; a command that writes none stops without a word."""
    out = there / f"unread-{verb}"
    process = server.start(out, **how(verb, there, unread=True))
    code, output = server.wait(process)
    check_output(code, output, (0, 141, VERBS[verb].status))
    goes_on = verb in ("demo", "train", "prepare", "reproduce") and code  # when called again
    if VERBS[verb].ends and not goes_on:
        check_same(verb, out, whole(verb)[0])
    tally.add(None)


@every_verb
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_ends_it(verb, number, server, there, whole, tally, share):
    """At random moments, with no more than a line; then the same command does the rest."""
    expected, seconds = whole(verb)
    draws = random.Random(f"{verb} {number}")
    for attempt in range(share(4)):
        out = there / f"signal-{verb}-{number}-{attempt}"
        process = server.start(out, **how(verb, there))
        time.sleep(draws.random() * seconds)
        os.kill(process, number)
        code, output = server.wait(process)
        check_output(code, output, (0, VERBS[verb].status, 130, 143, -number))
        after(server, verb, there, out, expected)
        tally.add(None)
    tally.check()


@every_verb
def test_it_is_killed(verb, server, there, whole, tally, share):
    """At random moments, also before changes of files."""
    expected, seconds = whole(verb)
    draws = random.Random(verb)
    for attempt in range(share(6)):
        out = there / f"killed-{verb}-{attempt}"
        die_at = draws.randrange(12) if attempt % 2 and VERBS[verb].writes else None
        process = server.start(out, die_at=die_at, **how(verb, there))
        if die_at is None:
            time.sleep(draws.random() * seconds)
            os.kill(process, signal.SIGKILL)
        code, output = server.wait(process)
        check_output(code, output, (0, VERBS[verb].status, -signal.SIGKILL))
        after(server, verb, there, out, expected)
        tally.add(None)
    tally.check()


@every_writer
def test_the_disk_is_full(verb, server, there, whole, tally, share):
    """One line names the place; with space again, the same command does the rest."""
    expected, _ = whole(verb)
    (probe := there / f"probe-{verb}").mkdir()
    if not mount(probe, GENEROUS):
        pytest.skip("this machine does not permit mounting, which disks of any size need")
    subprocess.run(["umount", probe], check=True)
    pages = sum(-(-path.stat().st_size // PAGE) for path in expected.rglob("*") if path.is_file())
    for number in sorted(random.Random(verb).sample(range(1, max(3, pages)), min(share(4), max(2, pages - 1)))):
        out = there / f"full-{verb}-{number}"
        with disk(out, f"size={PAGE * number}") as give_space:
            code, output = server.train(out, **how(verb, there))
            if code:
                said = complaint(output)
                assert code == 1 and said and str(out) in said, f"{number} pages: {output[-1500:]}"
                give_space()
                finish(server, verb, there, out)
            assert sorted(contents_names(out)) == sorted(contents_names(expected))
            if VERBS[verb].same:
                assert contents(out).keys() == contents(expected).keys()
        tally.add(None)
    tally.check()


@every_verb
def test_two_at_once(verb, server, there, whole, tally, share):
    """On one folder: both end, or one is told that the other is at work; what is written is whole."""
    expected, _ = whole(verb)
    for attempt in range(share(3)):
        out = there / f"two-{verb}-{attempt}"
        both = [server.start(out, **how(verb, there)) for _ in range(2)]
        if not VERBS[verb].ends:
            time.sleep(3)
            for process in both:
                os.kill(process, signal.SIGTERM)
        ended = [server.wait(process) for process in both]
        for code, output in ended:
            check_output(code, output, (0, 1) if VERBS[verb].ends else (0, 143, -signal.SIGTERM))
        assert not VERBS[verb].ends or VERBS[verb].status in [code for code, _ in ended], ended
        after(server, verb, there, out, expected)
        tally.add(None)
    tally.check()


@every_verb
def test_the_folder_is_read_only(verb, server, there, tally):
    """Of what is written, one line names the folder; what is read may lie on a read-only disk."""
    out = there / f"readonly-{verb}"
    out.mkdir()
    if not mount(out, GENEROUS):
        pytest.skip("this machine does not permit mounting, which a folder that root cannot write needs")
    try:
        subprocess.run(["mount", "-o", "remount,ro", out], check=True)
        process = server.start(out, **how(verb, there))
        if not VERBS[verb].ends:
            time.sleep(3)
            os.kill(process, signal.SIGTERM)
        code, output = server.wait(process)
        if VERBS[verb].writes:
            said = complaint(output)
            assert code == 1 and said and str(out) in said and "Read-only file system" in said, output
            assert "free some space" not in output and "again" not in output
        else:
            check_output(code, output, (VERBS[verb].status, 0, 143, -signal.SIGTERM))
    finally:
        subprocess.run(["umount", "--lazy", out], check=True)
    tally.add(None)
    tally.check()


@every_verb
def test_inputs_lie_on_a_read_only_disk(verb, server, there, whole, tally):
    expected, _ = whole(verb)
    place = there / f"inputs-{verb}"
    place.mkdir()
    if not mount(place, GENEROUS):
        pytest.skip("this machine does not permit mounting, which a folder that root cannot write needs")
    out = there / f"from-{verb}"
    try:
        for path in there.iterdir():
            if path.name in ("answerer", "captioner", "classifier", "reader", "images", "log", "mnist"):
                shutil.copytree(path, place / path.name)
            elif path.is_file():
                shutil.copy(path, place)
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        if VERBS[verb].ends:
            finish(server, verb, place, out)
            assert sorted(contents_names(out)) == sorted(contents_names(expected))
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)
    tally.add(None)
    tally.check()


def test_two_trainings_fill_one_cache(there, tally, share):
    """Two runs on the same photographs, at the same time: each is the same as one that had the cache for itself."""
    place = there / "cached"
    write_photographs(place)
    verbs = Server.shared("verbs")

    def training(name: str, cache: Path) -> dict:
        options = [f"--data.cache={cache}", f"--run.folder={place / name / 'run'}"]
        return {"call": "verbs:run_verb", "argv": ["train", str(write_config(place, work=place / "any")), *options]}

    code, output = verbs.train(place / "alone", **training("alone", place / "own"))
    assert code == 0, output
    for attempt in range(share(4)):
        names, cache = [f"{attempt}-{number}" for number in range(2)], place / f"cache-{attempt}"
        both = [verbs.start(place / name, **training(name, cache)) for name in names]
        for name, (code, output) in zip(names, map(verbs.wait, both), strict=True):
            check_output(code, output, (0,))
            for file in ("last/model.safetensors", "best/model.safetensors"):
                alone = (place / "alone" / "run" / file).read_bytes()
                assert (place / name / "run" / file).read_bytes() == alone
        assert_same_contents(cache, place / "own")
        tally.add(None)
    tally.check()

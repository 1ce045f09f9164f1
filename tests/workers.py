"""`--workers N`: N processes share the tests. They are forked after one process has collected all tests, so the tests
are imported once, which takes up to a minute.

The tests of a file run in one process, in order. The first process prints all reports. On systems other than Linux a
fork is not safe with all libraries, so one process runs all tests."""

import atexit
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", metavar="N", help="how many processes share the tests; auto: one more than cores")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    option = session.config.option
    if not option.workers or option.collectonly or session.testsfailed or sys.platform != "linux":
        return None  # pytest's own loop
    files = [list(items) for _, items in groupby(session.items, lambda item: item.path)]
    queue, numbers = os.pipe()
    os.write(numbers, b"".join(number.to_bytes(2, "big") for number in range(len(files))))
    os.close(numbers)  # a worker at the end of the queue reads nothing
    workers: dict[Connection, int] = {}
    try:
        for _ in range(available() if option.workers == "auto" else int(option.workers)):
            reports, worker = fork(session, (files[number] for number in numbers_in(queue)))
            workers[reports] = worker
        report(session, list(workers))
    finally:
        for worker in workers.values():
            os.kill(worker, signal.SIGTERM)
            os.waitpid(worker, 0)
    return True


def available() -> int:
    """One process more than cores, because some tests wait for others."""
    return min(4, len(os.sched_getaffinity(0)) + 1)


def numbers_in(queue: int) -> Iterator[int]:
    while number := os.read(queue, 2):
        yield int.from_bytes(number, "big")


def fork(session: pytest.Session, files: Iterable[list[pytest.Item]]) -> tuple[Connection, int]:
    """Start a process that runs files of tests.

    Returns:
        Where its reports arrive, and its number.
    """
    receiver, sender = Pipe(duplex=False)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with warnings.catch_warnings():  # of threads that libraries have started, which tests do not use
        warnings.simplefilter("ignore", DeprecationWarning)
        worker = os.fork()
    if worker:
        sender.close()
        return receiver, worker
    receiver.close()
    if loops := sys.modules.get("vision_attn.fast.loops"):
        loops.PROCESS = os.getpid()  # it may use threads, since the process that it was forked from has started none
    captured = session.config.pluginmanager.getplugin("capturemanager")
    try:
        captured.stop_global_capturing()
        captured.start_global_capturing()  # in files of its own
        session.config.pluginmanager.unregister(name="terminalreporter")
        session.config.pluginmanager.register(Sender(session.config, sender))
        for item, following in pairwise(chain(chain.from_iterable(files), [None])):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        atexit._run_exitfuncs()
    except BaseException:  # also of pytest itself: the first process sees that tests are missing
        captured.stop_global_capturing()
        traceback.print_exc()
    finally:
        sender.close()
        os._exit(0)


class Sender:
    """Sends what the first process prints."""

    def __init__(self, config: pytest.Config, sender: Connection) -> None:
        self.config, self.sender = config, sender

    def pytest_runtest_logstart(self, nodeid: str, location: tuple) -> None:
        self.sender.send(("pytest_runtest_logstart", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple) -> None:
        self.sender.send(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        fields = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.sender.send(("pytest_runtest_logreport", {"report": fields}))

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: tuple | None) -> None:
        warning_message.source = None  # any object
        given = {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
        self.sender.send(("pytest_warning_recorded", given))


def report(session: pytest.Session, workers: list[Connection]) -> None:
    """Print the reports of workers until all have ended. A test that none of them has run is a failure."""
    hook, left = session.config.hook, {item.nodeid: item for item in session.items}
    started: dict[Connection, str] = {}
    if terminal := session.config.pluginmanager.getplugin("terminalreporter"):
        terminal.showfspath = False  # the names of files would take turns
    while workers:
        for worker in wait(workers):
            try:
                name, given = worker.recv()
            except EOFError:
                workers.remove(worker)
                continue
            if name == "pytest_runtest_logstart":
                started[worker] = given["nodeid"]
            elif name == "pytest_runtest_logfinish":
                del left[given["nodeid"]]
            elif name == "pytest_runtest_logreport":
                given["report"] = hook.pytest_report_from_serializable(config=session.config, data=given["report"])
            hooked = getattr(hook, name)
            hooked.call_historic(kwargs=given) if hooked.is_historic() else hooked(**given)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    for nodeid, item in left.items():
        why = "its process ended while it ran" if nodeid in started.values() else "the process of its file had ended"
        hook.pytest_runtest_logreport(report=pytest.TestReport(nodeid, item.location, {}, "failed", why, "call"))

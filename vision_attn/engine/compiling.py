"""torch.compile in training: messages while it compiles, readable errors, and an immediate end on Ctrl-C."""

import logging
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vision_attn.engine.interrupt import Interrupt
from vision_attn.system.console import complain, say
from vision_attn.system.errors import UserError

LOGGERS = ("torch._dynamo", "torch._inductor", "torch.fx")
BEGINS = (
    "compiling (run.compile): on a CPU half a minute for a captioner's time step; a model that is compiled with all of"
    " its time steps takes minutes, one of 64 more than nine. Ctrl-C ends it"
)
STOPPED = "stopped while compiling; the same command goes on from the last checkpoint, or begins again"
EVERY = 60.0
"""Seconds between the messages about how long torch has been compiling."""
GRACE = 3.0
"""Seconds after a signal until the process ends itself, if the compiler stays in C code and the signal has no
effect."""


def quiet_compiler() -> None:
    """Silence warnings of torch.compile, about which the user can do nothing, unless TORCH_LOGS asks for them."""
    if "TORCH_LOGS" in os.environ:
        return
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=name.replace(".", r"\.") + r"($|\.)")


@contextmanager
def clear_of_compiler_errors() -> Iterator[None]:
    """Context manager: convert errors of torch.compile to a UserError with their first line."""
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        said = str(error).strip().split("\n")[0]
        raise UserError(f"run.compile: {said} (install what is missing, or remove run.compile)") from error


class Compiling:
    """Context manager: log a line whenever torch compiles, and end the run at once if it is interrupted meanwhile. A
    compiler may take minutes, while the steps since the last checkpoint took at most `run.save_every` seconds.

    The processes that the compiler has started are killed. KeyboardInterrupt (after SIGTERM: SystemExit) is raised in
    the compiler's code. If that is C code which does not return within `GRACE` seconds, the process ends itself.
    """

    def __init__(self, interrupt: Interrupt, *, is_main: bool = True) -> None:
        self.interrupt, self.is_main = interrupt, is_main
        self.since: float | None = None
        """The time at which the compiler began; None while it does not run."""
        self.seconds = 0.0
        """The seconds of all compiling until now."""
        self.before = 0.0
        """The value of `seconds` at the latest call of `lately`."""
        self.said = False
        self.children: set[int] = set()
        """The child processes that existed before the compiler began."""

    def __enter__(self) -> "Compiling":
        from torch._dynamo.callback import callback_handler as handler

        handler.register_start_callback(self._begin)
        handler.register_end_callback(self._end)
        return self

    def __exit__(self, *_: object) -> None:
        from torch._dynamo.callback import callback_handler as handler

        self._end()
        handler.remove_start_callback(self._begin)
        handler.remove_end_callback(self._end)

    def lately(self) -> bool:
        """Return whether torch has compiled since the last call."""
        before, self.before = self.before, self.seconds
        return self.seconds > before

    def _begin(self, *_: object) -> None:
        self.since, self.children = time.monotonic(), descendants()
        if self.is_main and not self.said:
            say(BEGINS)
        self.said = True
        read, self.write = os.pipe()
        os.set_blocking(self.write, False)
        self.wakeup = None
        if threading.current_thread() is threading.main_thread():
            self.wakeup = signal.set_wakeup_fd(self.write, warn_on_full_buffer=False)
        self.interrupt.at_once = self._stop
        threading.Thread(target=self._watch, args=(read, self.since), daemon=True).start()

    def _end(self, *_: object) -> None:
        if self.since is None:
            return
        self.interrupt.at_once = None
        if self.wakeup is not None:
            with suppress(ValueError):  # it ended in another thread than the main one
                signal.set_wakeup_fd(self.wakeup)
        self.seconds += time.monotonic() - self.since
        self.since = None
        os.write(self.write, b"\0")  # ends the thread
        os.close(self.write)

    def _stop(self, number: int) -> None:
        """End the run. The handler of signals calls this."""
        end_compiler(self.children)
        complain(STOPPED)
        self._end()
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def _watch(self, read: int, since: float) -> None:
        """Log how long torch has been compiling, and end the process if a signal handler does not run."""
        try:
            while (number := self._signal(read, EVERY)) not in self.interrupt.before:
                if number == 0:
                    return
                if number is None and self.is_main:
                    say(f"still compiling after {(time.monotonic() - since) / 60:.1f} minutes; Ctrl-C ends it")
            if self._signal(read, GRACE) != 0 and not hasattr(sys, "ps1"):  # an interactive session has more to lose
                end_compiler(self.children)
                complain(STOPPED)
                os._exit(128 + (number or 0))
        finally:
            os.close(read)

    @staticmethod
    def _signal(read: int, seconds: float) -> int | None:
        """Return the number of a signal that came within this time, 0 once the compiler has ended; None: neither."""
        return os.read(read, 1)[0] if select.select([read], [], [], seconds)[0] else None


def descendants(process: int | None = None) -> set[int]:
    """Return the ids of all child processes and of their descendants on Linux; an empty set elsewhere.

    process: the id of the process; None: this one.
    """
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):  # it has ended
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    started, waiting = set(), [process or os.getpid()]
    while waiting:
        new = children.get(waiting.pop(), [])
        started.update(new)
        waiting += new
    return started


def end_compiler(others: set[int] | None = None) -> None:
    """Kill the processes that the compiler has started. A later call without `others` kills processes that its threads
    have started since.

    others: all other processes that this one has started.
    """
    global _others
    _others = _others if others is None else others
    for process in descendants() - _others if _others is not None else ():
        with suppress(OSError):  # it has ended
            os.kill(process, signal.SIGKILL)


_others: set[int] | None = None
"""The child processes that are not the compiler's, once a run was stopped while compiling; None before."""

"""Handling of Ctrl-C and SIGTERM: finish the step, save a checkpoint, and exit."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from vision_attn.system.console import say


class Interrupt:
    """Context manager: the first signal only sets `asked`; a second Ctrl-C raises KeyboardInterrupt at once. While
    torch compiles, the first signal ends the run at once (see `compiling.Compiling`)."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.at_once: Callable[[int], None] | None = None
        """If set, this function is called with the number of a signal instead of waiting for the end of the step. It
        must raise."""
        self.before: dict = {}

    @property
    def asked(self) -> bool:
        """Whether a signal has asked the run to stop."""
        return self.signal is not None

    def __enter__(self) -> "Interrupt":
        self.process = os.getpid()
        if threading.current_thread() is threading.main_thread():  # Python delivers signals to no other thread.
            self.before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self.process:  # A forked data loader worker: its parent stops it with SIGTERM.
            if number == signal.SIGTERM:
                raise SystemExit(143)
            return
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        if self.at_once is not None:
            self.at_once(number)
        print("stopping after this step to save a checkpoint (Ctrl-C again: stop at once)", file=sys.stderr, flush=True)

    def leave(self, what: str) -> None:
        """Print `what` happened, then raise KeyboardInterrupt after Ctrl-C or SystemExit(143) after SIGTERM."""
        say(f"{what}; run the same command again to resume")
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(143)

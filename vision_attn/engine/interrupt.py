"""Ctrl-C and SIGTERM: finish the step, save, and leave."""

import os
import signal
import sys
import threading
from types import FrameType

from vision_attn.console import say


class Interrupt:
    """Within this context, the first signal is only noted in `asked`; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.before: dict = {}

    @property
    def asked(self) -> bool:
        """True once the run was asked to stop."""
        return self.signal is not None

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():  # Python delivers signals nowhere else.
            self.before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
            self.process = os.getpid()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self.process:  # A data loader's worker, forked from us: it goes when its parent says so.
            if number == signal.SIGTERM:
                raise SystemExit(143)
            return
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        print("stopping after this step, to save (Ctrl-C again: stop at once)", file=sys.stderr, flush=True)

    def leave(self, what: str) -> None:
        """Say `what` happened and raise: KeyboardInterrupt after Ctrl-C, SystemExit(143) after SIGTERM."""
        say(f"{what}; the same command goes on")
        if self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(143)

"""Heartbeats, so that the processes of a run end when a machine vanishes.

A process that ends closes its connections, and the others end with an error. A machine that loses its power or its
network closes nothing: the others would wait for it for days.
"""

import os
import sys
import threading
from contextlib import suppress
from itertools import count

import torch.distributed as dist

from vision_attn.system.console import complain

INTERVAL = 10.0
"""Seconds between two heartbeats."""
PATIENCE = 300.0
"""Seconds without a heartbeat after which a process counts as lost."""
LEFT = b"left"


class Heartbeat:
    """While entered, counts upwards in torchrun's store, in a thread of its own, and ends this process when the count
    of another one stands still. However long a process computes, its count goes on.

    Clocks are not compared, and time in which this process is stopped does not count: each process counts its own
    intervals in which it saw no change.
    """

    def __init__(self, rank: int, size: int) -> None:
        run = os.environ.get("TORCHELASTIC_RUN_ID", "")  # several runs may share a store
        self.rank, self.keys = rank, [f"heartbeat/{run}/{number}" for number in range(size)]
        self.seen: list[bytes] = [b""] * size
        """The counts of all processes, as last read."""
        self.left, self.properly = threading.Event(), False

    def __enter__(self) -> None:
        # A connection of its own: on a shared one, calls wait for each other.
        self.store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        self.store.set(self.keys[self.rank], "start")
        self.beats = threading.Thread(target=self._beat, daemon=True)
        self.beats.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave. The others no longer wait for a heartbeat, unless this process fails."""
        self.properly = kind is None or not issubclass(kind, Exception)
        self.left.set()
        self.beats.join(INTERVAL)

    def _beat(self) -> None:
        with suppress(RuntimeError):  # the store has gone: `_watch` sees that the counts stand still
            for number in count():
                self.store.set(self.keys[self.rank], str(number))
                self.seen = self.store.multi_get(self.keys)
                if self.left.wait(INTERVAL):
                    break
            if self.properly:
                self.store.set(self.keys[self.rank], LEFT)

    def _watch(self) -> None:
        """Another thread, because a store on a machine that has vanished does not answer."""
        before, silent = self.seen, [0] * len(self.seen)
        while not self.left.wait(INTERVAL):
            now = self.seen
            for rank, value in enumerate(now):
                silent[rank] = silent[rank] + 1 if value == before[rank] != LEFT else 0
            before = now
            lost = [rank for rank, intervals in enumerate(silent) if intervals * INTERVAL >= PATIENCE]
            if lost:
                self._end(lost, store_answers=silent[self.rank] * INTERVAL < PATIENCE / 2)

    def _end(self, lost: list[int], store_answers: bool) -> None:
        """`store_answers`: this process's own count is read back. If it is not, it stopped with those that are lost, or
        an interval later."""
        if not store_answers:
            what = f"the machine of the first process ({os.environ['MASTER_ADDR']}) has not answered"
        else:
            names = ", ".join(map(str, lost[:8])) + (", ..." if len(lost) > 8 else "")
            what = f"process {names} of this run has given no sign of life"
        complain(
            f"error: {what} for {PATIENCE:.0f} seconds, so process {self.rank} ends: was it stopped, or did its "
            "machine lose its power or its network? Run the same command again, which resumes training from the last "
            "checkpoint"
        )
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):  # closed
                stream.flush()
        os._exit(1)  # the main thread waits in a call that no exception can interrupt

"""`START`: how long each part of a run's start takes. This module imports no torch, whose import is a part."""

import time


class Start:
    """The seconds of the successive parts of a start. `done` ends a part, which began at the end of the previous part;
    the first part began with the command."""

    def __init__(self) -> None:
        self.parts: list[tuple[str, float]] = []
        self.since: float | None = None

    def begin(self) -> None:
        """Note that a command begins, or a run that no command has begun."""
        self.parts, self.since = [], time.monotonic()

    def done(self, name: str) -> None:
        """Note that the part `name` has ended."""
        now = time.monotonic()
        if self.since is not None:
            self.parts.append((name, now - self.since))
        self.since = now

    def end(self) -> str:
        """Return one line on all parts, and forget them for the next run in this process."""
        whole = sum(seconds for _, seconds in self.parts)
        told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.parts)
        self.parts, self.since = [], None
        return f"first step after {whole:.1f} s: {told}"


START = Start()
"""The start of the run in this process."""

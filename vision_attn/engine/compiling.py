"""torch.compile in training: whether it pays, and what of its messages reaches the user."""

import logging
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from vision_attn.system.console import say
from vision_attn.system.errors import UserError

LOGGERS = ("torch._dynamo", "torch._inductor", "torch.fx")


def quiet_compiler() -> None:
    """Keep warnings of torch.compile from the user, who can do nothing about them, unless TORCH_LOGS asks for some."""
    if "TORCH_LOGS" in os.environ:
        return
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=name.replace(".", r"\.") + r"($|\.)")


WINDOW = 200
"""Steps that are timed together."""


class Trial:
    """Measures in the run whether compiled steps are faster than steps that are only captured: `WINDOW` steps in a row
    of each kind, of which none prepares others."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.captured: float | None = None
        """The seconds of captured steps, once they are known."""
        self.steps, self.began = 0, 0.0

    def note(self, *, prepared: bool) -> Literal["compile", "keep", "leave"] | None:
        """Note that a step was done. Returns what to do from now on, where that changes."""
        if prepared:
            self.steps = 0
            return None
        if not self.steps:
            self.began = self._now()
        self.steps += 1
        if self.steps <= WINDOW:
            return None
        seconds, self.steps = self._now() - self.began, 0
        if self.captured is None:
            self.captured = seconds
            return "compile"
        ratio = self.captured / seconds
        then = "go on compiled" if ratio > 1 else "go on as before"
        say(f"compiled steps are {ratio:.2f} times as fast as steps that are only captured: they {then}")
        return "keep" if ratio > 1 else "leave"

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.monotonic()


@contextmanager
def clear_of_compiler_errors() -> Iterator[None]:
    """Turn errors of torch.compile into a UserError with their first line."""
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        said = str(error).strip().split("\n")[0]
        raise UserError(f"run.compile: {said} (install what is missing, or remove run.compile)") from error

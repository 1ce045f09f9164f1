"""torch.compile in training: whether it pays, and what of its messages reaches the user."""

import logging
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vision_attn.system.console import say

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
    """Measures in the run whether compiled steps are faster than steps that are only captured.

    Times `WINDOW` steps in a row of each kind, of which none prepares others. `kind`: "captured", then "compiled", then
    "kept" or "left", which is the decision.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.kind = device, "captured"
        self.seconds: dict[str, float] = {}
        self.restart()

    def restart(self) -> None:
        self.steps, self.began = 0, 0.0

    def note(self, *, prepared: bool) -> bool:
        """Note that a step was done. Returns whether the trial goes on to the next kind."""
        if prepared:
            self.restart()
            return False
        if not self.steps:
            self.began = self._now()
        self.steps += 1
        if self.steps <= WINDOW:
            return False
        self.seconds[self.kind] = self._now() - self.began
        if self.kind == "captured":
            self.kind = "compiled"
        else:
            ratio = self.seconds["captured"] / self.seconds["compiled"]
            self.kind = "kept" if ratio > 1 else "left"
            then = "go on compiled" if ratio > 1 else "go on as before"
            say(f"compiled steps are {ratio:.2f} times as fast as steps that are only captured: they {then}")
        self.restart()
        return True

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.monotonic()


@contextmanager
def clear_of_compiler_errors() -> Iterator[None]:
    """Turn errors of torch.compile into a ValueError with their first line."""
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        said = str(error).strip().split("\n")[0]
        raise ValueError(f"run.compile: {said} (install what is missing, or remove run.compile)") from error

"""Runs a function on many inputs in forked processes and tells what became of each: answered, refused, or a failure."""

import json
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from vision_attn.system.errors import UserError

STATUSES = ("answered", "refused", "traceback", "hang", "died", "memory")


class Outcome(NamedTuple):
    """What became of one input. `answered` and `refused` (a UserError or OSError of one line) are as it should be."""

    status: str
    said: str
    seconds: float

    @property
    def failed(self) -> bool:
        return self.status not in ("answered", "refused")


def attempt_all(
    function: Callable[[Any], Any], inputs: Iterable[Any], *, seconds: float = 5.0, megabytes: int = 1024
) -> list[Outcome]:
    """`function(input)` for each input, in a forked child that is replaced when it dies or hangs.

    seconds: an input that takes longer is a hang, and its child is killed.
    megabytes: how much larger than at its start a child's peak memory may become.
    """
    waiting, outcomes = list(inputs), []
    while len(outcomes) < len(waiting):
        outcomes += _one_child(function, waiting[len(outcomes) :], seconds, megabytes)
    return outcomes


def _one_child(function: Callable[[Any], Any], inputs: list, seconds: float, megabytes: int) -> list[Outcome]:
    """The outcomes of the leading inputs, up to the first that ended or outgrew its process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _work(function, inputs, writing, megabytes)
    os.close(writing)
    outcomes: list[Outcome] = []
    try:
        while len(outcomes) < len(inputs):
            began = time.monotonic()
            if not select.select([reading], [], [], seconds)[0]:
                outcomes.append(Outcome("hang", f"no answer within {seconds} s", seconds))
                break
            size = _exactly(reading, 8)
            if not size:
                outcomes.append(Outcome("died", "its process ended", time.monotonic() - began))
                break
            outcomes.append(Outcome(*json.loads(_exactly(reading, int.from_bytes(size, "little")))))
            if outcomes[-1].status == "memory":
                break
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return outcomes


def _work(function: Callable[[Any], Any], inputs: list, writing: int, megabytes: int) -> None:
    # torch makes its pool of threads anew after a fork; threads that do so at the same moment would fail.
    torch.set_num_threads(1)
    limit = _peak() + megabytes * 1024
    for item in inputs:
        began = time.monotonic()
        try:
            status, said = "answered", str(function(item))
        except (UserError, OSError) as error:
            status, said = "refused", str(error)
            if isinstance(error, UnicodeError) or "\n" in said.strip():
                status, said = "traceback", traceback.format_exc()
        except BaseException:
            status, said = "traceback", traceback.format_exc()
        if _peak() > limit:
            status = "memory"
        answer = json.dumps((status, said[-4000:], time.monotonic() - began)).encode()
        os.write(writing, len(answer).to_bytes(8, "little") + answer)
    os._exit(0)


def _peak() -> int:
    """The largest memory of this process so far, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _exactly(reading: int, size: int) -> bytes:
    """`size` bytes, or none where the other end closed."""
    parts = b""
    while len(parts) < size:
        part = os.read(reading, size - len(parts))
        if not part:
            return b""
        parts += part
    return parts

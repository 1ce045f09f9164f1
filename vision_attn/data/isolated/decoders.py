"""`Decoders`: decode untrusted files in separate processes, which are ended if they take too long.

A small file can keep a decoder busy for minutes in one uninterruptible call, use all memory, or crash the decoder. A
process waits for further files, so that ordinary files are decoded at once. See `process`.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import wait
from time import monotonic
from typing import Any

from PIL import Image

from vision_attn.data.films.sampling import Film
from vision_attn.data.images.limits import TooLarge
from vision_attn.data.images.open import Isolated
from vision_attn.data.isolated.process import MODES, SETTING
from vision_attn.system.errors import UserError

SECONDS = 10.0
"""Seconds after which a process that decodes a file is ended."""
PATIENCE = 3.0
"""Seconds after which it is ended if other files are waiting for a process."""
PROCESSES = 4
"""The largest number of files that are decoded at the same time."""
LINE, MOST = 1 << 20, 1 << 30
"""The largest number of bytes of a line, and of pixels, in the answer of a process."""
TICK = 0.05
RUN = "import sys; sys.path[:] = sys.argv[1:]; from vision_attn.data.isolated.process import main; main()"


class Upload(Isolated):
    """An uploaded file. It is decoded once for each of `process.DECODERS`, all together within the time of
    `decoders`."""

    _decoders: "Decoders"
    _seconds: float
    _known: dict[tuple, Image.Image | Film | UserError]

    def __new__(cls, name: str, content: bytes, decoders: "Decoders") -> "Upload":
        self = super().__new__(cls, name, content, len(content))
        self._decoders, self._seconds = decoders, decoders.seconds
        self._known = {}
        return self

    def opened(self, what: str, *arguments: Any) -> Any:
        if what == "photograph" and not self.content.startswith(b"\xff\xd8"):
            arguments = (None,)  # only a JPEG is reduced while it is decoded
        key = (what, *arguments)
        if key not in self._known:
            begun = monotonic()
            try:
                self._known[key] = self._decoders.decode(self, self._seconds, what, arguments)
            except UserError as error:
                self._known[key] = error
            self._seconds -= monotonic() - begun
        result = self._known[key]
        if isinstance(result, UserError):
            raise result
        return result.copy() if isinstance(result, Image.Image) else result


class Decoders:
    """Processes that decode files, at most `num_processes` at a time. One idle process waits for the next file.

    A process is ended if it decodes a file for more than `seconds`, or for more than `patience` while other files wait.
    """

    def __init__(self, seconds: float = SECONDS, *, patience: float = PATIENCE, num_processes: int = PROCESSES) -> None:
        self.seconds, self.patience, self.num_processes = seconds, patience, num_processes
        self._threads = ThreadPoolExecutor(num_processes)
        self._work: set[Future] = set()
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._closed = False

    def start(self) -> None:
        """Start a process, so that the first file need not wait for it."""
        self._give_back(self._started())

    def upload(self, name: str, content: bytes) -> Upload:
        return Upload(name, content, self)

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future:
        """Run `work`, which decodes files, in a thread."""
        future = self._threads.submit(work, *arguments)
        self._work.add(future)
        future.add_done_callback(self._work.discard)
        return future

    def decode(self, file: Isolated, seconds: float, what: str, arguments: Sequence[Any]) -> Image.Image | Film:
        """Decode a file in another process. Raises UserError naming the file if it cannot be decoded, and TooLarge if
        it takes too long.

        seconds: the time that it may take.
        what, arguments: the name of a function in `process.DECODERS`, and its further arguments.
        """
        process = self._taken(file.name)
        try:
            process.begin()
            begun = monotonic()
            assert isinstance(file.content, bytes)  # file.read() is for those who would decode it here
            process.ask({"what": what, "arguments": arguments, "name": file.name, "seconds": seconds}, file.content)
            while not process.answers(TICK):
                others = len(self._work) > self.num_processes
                if monotonic() - begun > (most := min(self.patience, seconds) if others else seconds):
                    why = f"more than {most:.0f} seconds{' while others wait' if others else ''}: make it smaller"
                    raise TooLarge(f"{file.name}: decoding it takes {why}")
            answer, pictures = process.answer()
        except (OSError, EOFError) as error:
            raise self._ended(process, file.name) from error
        except BaseException:
            self._end(process)
            self._replace()
            raise
        self._give_back(process)
        if "error" in answer:
            raise (TooLarge if answer.get("large") else UserError)(str(answer["error"]))
        return Film(pictures, answer["times"]) if what == "film" else pictures[0]

    def close(self) -> None:
        """End all processes."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in [*self._all]:
            process.kill()  # what waits for its answer ends it
        while self._idle:
            self._end(self._idle.pop())

    def _taken(self, name: str) -> "_Process":
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return self._started()
        except OSError as error:
            raise UserError(f"{name} cannot be decoded now ({error.strerror or error}): try again") from error

    def _started(self) -> "_Process":
        if self._closed:
            raise OSError("the server ends")
        process = _Process()
        self._all.add(process)
        return process

    def _give_back(self, process: "_Process") -> None:
        if self._idle or self._closed:
            self._end(process)
        else:
            self._idle.append(process)

    def _end(self, process: "_Process") -> None:
        self._all.discard(process)
        process.end()

    def _replace(self) -> None:
        """Start a process in place of one that was ended, unless another is idle."""
        with suppress(OSError):
            if not self._idle:
                self.start()

    def _ended(self, process: "_Process", name: str) -> Exception:
        """Return the error for a process that ended while it was decoding."""
        self._end(process)
        self._replace()
        if self._closed:
            return UserError(f"{name} was not decoded: the server ends")
        if process.status is None or process.status >= 0:
            return RuntimeError(f"the process that decodes images ended with status {process.status}")
        return UserError(f"{name}: not readable (its decoder crashed, {signal.Signals(-process.status).name})")


class _Process:
    """A process that decodes one file after the other."""

    def __init__(self) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        # A session of its own: Ctrl-C is for the parent.
        self._popen = subprocess.Popen([sys.executable, "-I", "-c", RUN, *sys.path], start_new_session=True, **pipes)
        assert self._popen.stdin and self._popen.stdout
        self._to, self._from = self._popen.stdin, self._popen.stdout
        self.status: int | None = None
        self._begun = False

    def begin(self) -> None:
        """Wait until the process has started. Raises EOFError if it fails to start."""
        if not self._begun and not self._from.readline(LINE):
            raise EOFError
        self._begun = True

    def ask(self, question: dict[str, Any], content: bytes) -> None:
        question |= {"size": len(content), "most": os.environ.get(SETTING)}
        self._to.write(json.dumps(question).encode() + b"\n")
        self._to.write(content)
        self._to.flush()

    def answers(self, seconds: float) -> bool:
        """Wait for an answer, or for the end of the process. Return whether one of them came within these seconds."""
        return bool(wait([self._from.fileno()], seconds))

    def answer(self) -> tuple[dict[str, Any], list[Image.Image]]:
        """Read the answer. Raises EOFError if the process has ended."""
        line = self._from.readline(LINE)
        if not line.endswith(b"\n"):
            raise EOFError
        answer, pictures, left = json.loads(line), [], MOST
        for mode, width, height in answer.get("pictures", ()):
            size = width * height * MODES[mode]
            left -= size
            if size < 1 or left < 0 or len(content := self._from.read(size)) < size:
                raise EOFError
            pictures.append(Image.frombytes(mode, (width, height), content))
        return answer, pictures

    def kill(self) -> None:
        self._popen.kill()

    def end(self) -> None:
        self.kill()
        with suppress(OSError):
            self._to.close()
        self._from.close()
        self.status = self._popen.wait()

"""The program of the processes that decode untrusted files: it reads files on standard input, and writes pixels to
standard output.

It does not import torch, so it starts at once and takes little memory; it ends when its parent does. It answers with
pixels, not with Python objects, so that nothing else can reach its parent, whatever a file does to a decoder.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, BinaryIO

from PIL import Image

from vision_attn.data.films.decode import decoded_film
from vision_attn.data.films.sampling import Film
from vision_attn.data.images.limits import TooLarge
from vision_attn.data.images.open import Encoded, open_as_stored, open_photograph
from vision_attn.data.images.upright_rgb import reduction
from vision_attn.system.errors import UserError

MEMORY = 4 << 30
"""The largest number of bytes of memory of the process."""
SETTING = "VISION_ATTN_MAX_PIXELS"
"""The environment variable whose value is sent with each file, since it may change."""
MODES = {"L": 1, "RGB": 3, "RGBA": 4}
"""The modes of pictures in answers, with the bytes per pixel."""


def _stored(file: Encoded) -> Image.Image:
    """Open an image with its transparency. A very large one is reduced, like photographs."""
    image = open_as_stored(file)
    image = image if image.mode in MODES else image.convert("RGBA")
    return image if (factor := reduction(image)) == 1 else image.reduce(factor)


DECODERS: dict[str, Callable[..., Image.Image | Film]] = {
    "photograph": open_photograph, "stored": _stored, "film": decoded_film,
}  # fmt: skip
"""The functions that decode a file, by name."""


def main() -> None:
    """Decode the files that come on standard input, and write their pixels to standard output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    _limit()
    questions: SimpleQueue[tuple[dict[str, Any], bytes]] = SimpleQueue()
    answers.write(b"\n")  # it has started
    answers.flush()
    Thread(target=_read, args=(sys.stdin.buffer, questions), daemon=True).start()
    while True:
        question, content = questions.get()
        # Whatever the decoder does: the system ends a process when its alarm comes, also after its parent has ended.
        signal.setitimer(signal.ITIMER_REAL, max(0.1, question["seconds"]) + 1)
        answer, pictures = _decoded(question, content)
        answers.write(json.dumps(answer).encode() + b"\n")
        for picture in pictures:
            answers.write(picture.tobytes())
        answers.flush()
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit() -> None:
    """Lower the priority of this process, forbid it to write files, and limit its memory to `MEMORY`."""
    import resource

    with suppress(OSError):
        os.nice(5)
    for limit, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_DATA, MEMORY)):
        with suppress(OSError, ValueError):
            resource.setrlimit(limit, (most, most))


def _read(source: BinaryIO, questions: SimpleQueue) -> None:
    """Read files while others are being decoded. End the process at the end of the input, since the parent has
    ended."""
    while line := source.readline():
        question = json.loads(line)
        questions.put((question, source.read(question["size"])))
    os._exit(0)


def _decoded(question: dict[str, Any], content: bytes) -> tuple[dict[str, Any], Sequence[Image.Image]]:
    """Decode the file of a question. Return the answer and the decoded pictures."""
    os.environ.pop(SETTING, None)
    if question["most"] is not None:
        os.environ[SETTING] = question["most"]
    name = question["name"]
    try:
        result = DECODERS[question["what"]](Encoded(name, content), *question["arguments"])
    except UserError as error:
        return {"error": str(error), "large": isinstance(error, TooLarge)}, ()
    except Exception as error:
        return {"error": f"{name}: not readable ({type(error).__name__})"}, ()
    pictures = result if isinstance(result, Film) else [result]
    sizes = [(picture.mode, *picture.size) for picture in pictures]
    return {"pictures": sizes, "times": getattr(result, "times", None)}, pictures

"""Scores of captions in the process of a test: starting others takes seconds."""

import atexit
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from vision_attn.metrics import isolated, scorers

PLAIN = re.compile("[a-z ]*")
"""Captions that the tokenizer keeps as they are."""


def quickly(jobs: Iterable[str], folder: Path, *, time_limit: float) -> dict[str, isolated.JobResult]:
    """`isolated.run` in this process, and without Java where captions are plain words, which its tokenizer keeps."""
    answers = {}
    for job in jobs:
        if job == "tokenise":
            texts = json.loads((folder / "captions.json").read_text())
            if all(PLAIN.fullmatch(text) for text in texts):
                answers[job] = isolated.JobResult([" ".join(text.split()) for text in texts])
                continue
        if job == "meteor" and "VISION_ATTN_JAVA" not in os.environ:
            answers[job] = isolated.JobResult(scorers.ask_meteor(meteor(), *scorers.tokens(folder)))
        elif job in ("tokenise", "meteor", "spice"):
            answers |= isolated.run([job], folder, time_limit=time_limit)
        else:
            answers[job] = isolated.JobResult(getattr(scorers, job)(folder))
    return answers


@cache
def meteor() -> subprocess.Popen:
    """METEOR's Java program, which takes seconds to start, for all tests of this process."""
    folder = tempfile.TemporaryDirectory()
    process = scorers.start_meteor(Path(folder.name))
    atexit.register(folder.cleanup)
    atexit.register(process.kill)
    return process

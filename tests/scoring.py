"""Scores of captions in the process of a test: starting others takes seconds."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from vision_attn.metrics.coco import isolated, scorers
from vision_attn.metrics.coco import sums as corpus_sums
from vision_attn.metrics.evaluators import CaptionScores

PLAIN = re.compile("[a-z ]*")
"""Captions that the tokenizer keeps as they are."""


def quickly(jobs: Iterable[str], folder: Path, *, time_limit: float) -> dict[str, isolated.JobResult]:
    """`isolated.run` in this process, with `exact_meteor`, and without Java where captions are plain words, which its
    tokenizer keeps."""
    answers = {}
    for job in jobs:
        if job == "tokenise":
            texts = json.loads((folder / "captions.json").read_text())
            if all(PLAIN.fullmatch(text) for text in texts):
                answers[job] = isolated.JobResult([" ".join(text.split()) for text in texts])
                continue
        if job == "meteor" and "VISION_ATTN_JAVA" not in os.environ:
            answers[job] = isolated.JobResult(exact_meteor(*scorers.tokens(folder)))
        elif job in ("tokenise", "meteor", "spice"):
            answers |= isolated.run([job], folder, time_limit=time_limit)
        else:
            answers[job] = isolated.JobResult(getattr(scorers, job)(folder))
    return answers


def in_this_process(patch: pytest.MonkeyPatch) -> None:
    """Captions are scored by `quickly`."""
    patch.setattr("vision_attn.metrics.coco.captions.run", quickly)


def by(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Runs are evaluated by these metrics of captions: all take long."""
    patch.setattr("vision_attn.tasks.caption.CaptionScores", lambda *_, **__: CaptionScores(list(names)))


def exact_meteor(candidates: Sequence[str], references: Sequence[Sequence[str]]) -> scorers.Scores:
    """METEOR that matches equal words alone, in one chunk and without function words. Its Java program takes 11 seconds
    to start, and is tested in test_metrics."""
    counts = []
    for candidate, texts in zip(candidates, references, strict=True):
        words = candidate.split()
        options = []
        for text in texts:
            matched = (Counter(words) & Counter(text.split())).total()
            lengths = [len(words), len(text.split()), 0, 0, matched, matched]
            options.append([*lengths, *[0] * 14, min(matched, 1), matched, matched])
        counts.append(max(options, key=lambda one: float(corpus_sums.meteor(np.array([one], float))["METEOR"][0])))
    sums = np.array(counts, float)
    each, corpus = (corpus_sums.meteor(rows)["METEOR"].tolist() for rows in (sums, sums.sum(axis=0, keepdims=True)))
    return scorers.Scores({"METEOR": corpus[0]}, {"METEOR": each}, [list(map(float, one)) for one in counts])

"""Damaged films of every container: read, or refused in one line; no hang, and never much memory."""

from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from children import attempt_all
from damage import damaged
from PIL import Image

from tests.data.test_film_files import encoded
from vision_attn.data.films.files import open_film, strip
from vision_attn.data.images.open import Encoded

CODECS = {
    "mp4": "mpeg4", "mov": "mjpeg", "matroska": "mpeg4", "webm": "libvpx", "avi": "mpeg4", "flv": "flv",
    "mpegts": "mpeg2video", "mpeg": "mpeg2video", "asf": "wmv2", "yuv4mpegpipe": "rawvideo", "gif": "",
}  # fmt: skip
"""The containers, each with a codec that lies in it."""


def film(kind: str, codec: str) -> bytes:
    """Twelve frames of 64 x 48 pixels with something in them."""
    draws = np.random.default_rng(0).integers(0, 256, (12, 6, 8, 3), dtype=np.uint8)
    frames = [Image.fromarray(frame).resize((64, 48)) for frame in draws]
    if codec:
        return encoded(frames, kind=kind, codec=codec)
    file = BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=[50 * n for n in range(12)])
    return file.getvalue()


@pytest.mark.parametrize("kind", CODECS)
def test_damaged_films(kind: str, tally: Any, share: Callable[[int], int]) -> None:
    number = share(600)
    inputs = damaged([film(kind, CODECS[kind])], number, seed=len(kind), head=1200)

    def attempt(content: bytes) -> str:
        found = open_film(Encoded("a film", content), 5)
        return f"{len(found)} frames, {strip(found).mode}"

    outcomes = attempt_all(attempt, inputs, seconds=10)
    for content, outcome in zip(inputs, outcomes, strict=True):
        tally.add(f"{kind} {outcome} {content[:60].hex()}" if outcome.failed else None, outcome.seconds)
    assert share(2) == 1 or {outcome.status for outcome in outcomes} == {"answered", "refused"}
    tally.check(at_least=number)

"""Damaged photographs of every format: read, or refused in one line; no hang, and never much memory."""

import io
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attempts import folder_in_memory
from children import attempt_all
from damage import damaged
from PIL import Image, features

from vision_attn.data.images.limits import MAX_PIXELS
from vision_attn.data.images.open import open_photograph
from vision_attn.data.images.squares import open_seen, read_image


def pictures() -> dict[str, list[bytes]]:
    """Small photographs in memory, by format, in every mode that it has."""
    draws = np.random.default_rng(0)
    colour = Image.fromarray(draws.integers(0, 256, (30, 40, 3), dtype=np.uint8)).resize((80, 60))
    grey, exif = colour.convert("L"), Image.Exif()
    clear = colour.copy()
    clear.putalpha(grey)
    exif[0x0112] = 6
    sixteen = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    several: dict[str, Any] = {"save_all": True, "append_images": [clear, colour]}
    found = {
        "JPEG": [
            saved(colour, "JPEG", exif=exif), saved(colour, "JPEG", progressive=True), saved(grey, "JPEG"),
            saved(colour.convert("CMYK"), "JPEG"), saved(colour, "JPEG", subsampling=0, comment="x" * 300),
            saved(colour, "MPO", save_all=True, append_images=[colour]),
        ],
        "PNG": [
            saved(clear, "PNG", exif=exif), saved(colour.quantize(16), "PNG", transparency=3), saved(sixteen, "PNG"),
            saved(grey.convert("1"), "PNG"), saved(clear.convert("LA"), "PNG"), saved(clear, "PNG", **several),
        ],
        "GIF": [saved(colour, "GIF", comment=b"x" * 500), saved(clear, "GIF", **several)],
        "BMP": [saved(colour, "BMP"), saved(grey, "BMP"), saved(grey.convert("1"), "BMP"), saved(clear, "BMP")],
        "TIFF": [
            saved(colour, "TIFF", exif=exif), saved(clear, "TIFF", compression="tiff_lzw"),
            saved(colour, "TIFF", compression="jpeg"), saved(sixteen, "TIFF", compression="tiff_deflate"),
            saved(grey.convert("1"), "TIFF", compression="group4"), saved(grey.convert("F"), "TIFF"),
            saved(colour.convert("CMYK"), "TIFF", compression="packbits"), saved(clear, "TIFF", **several),
            saved(colour.convert("YCbCr"), "TIFF", compression="jpeg"), saved(grey.convert("I"), "TIFF"),
        ],
        "PPM": [saved(colour, "PPM"), saved(grey, "PPM"), b"P3 4 2 255 " + b"1 22 255 " * 8, saved(sixteen, "PPM")],
    }  # fmt: skip
    if features.check("webp"):
        found["WEBP"] = [
            saved(colour, "WEBP", exif=exif), saved(clear, "WEBP", lossless=True), saved(clear, "WEBP", **several),
        ]  # fmt: skip
    if features.check("jpg_2000"):
        found["JPEG2000"] = [saved(colour, "JPEG2000"), saved(clear, "JPEG2000", tile_size=(16, 16)),
                             saved(grey, "JPEG2000", no_jp2=True)]  # fmt: skip
    if features.check("avif"):
        found["AVIF"] = [saved(colour, "AVIF", exif=exif, speed=10), saved(clear, "AVIF", speed=10)]
    return found


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    """The file that Pillow writes."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def with_checksums(content: bytes) -> bytes:
    """A damaged PNG with correct checksums, so that the damage is found by what reads the chunks."""
    made, place = content[:8], 8
    while place + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, place)
        chunk = content[place + 4 : place + 8 + length]
        made += content[place : place + 4] + chunk + struct.pack(">I", zlib.crc32(chunk))
        place += 12 + length
    return made + content[place:]


KINDS = pictures()


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_photographs(kind: str, tally: Any, share: Callable[[int], int]) -> None:
    number = share({"TIFF": 2000, "JPEG": 1500, "PNG": 2000}.get(kind, 1000))
    inputs = damaged(KINDS[kind], number, seed=len(kind), head=400 if kind == "TIFF" else 128)
    if kind == "PNG":
        inputs = [with_checksums(content) if turn % 2 else content for turn, content in enumerate(inputs)]
    with folder_in_memory() as folder:

        def attempt(content: bytes) -> str:
            path = Path(folder) / "photograph.jpg"  # the ending says nothing: the content does
            path.write_bytes(content)
            return f"{tuple(read_image(path, 32).shape)} {open_seen(path, 'centre').mode}"

        outcomes = attempt_all(attempt, inputs)
    for content, outcome in zip(inputs, outcomes, strict=True):
        tally.add(f"{kind} {outcome} {content[:60].hex()}" if outcome.failed else None, outcome.seconds)
    assert share(2) == 1 or {outcome.status for outcome in outcomes} == {"answered", "refused"}
    tally.check(at_least=number)


def large(kind: str, pixels: int) -> bytes:
    """A photograph of one colour in a small file: few of its many pixels are stored."""
    kind, _, mode = kind.partition(" ")
    side = int(pixels**0.5)
    options = {"TIFF": {"compression": "tiff_deflate"}, "JPEG": {"progressive": True, "subsampling": 0}}
    return saved(Image.new(mode, (side, side)), kind, **options.get(kind, {"compress_level": 1, "method": 0}))


BOMBS = {
    "PNG 1": 1, "PNG L": 1, "PNG RGB": 1, "PNG RGBA": 1, "PNG LA": 1, "PNG I;16": 1, "TIFF CMYK": 1, "TIFF F": 1,
    "TIFF I": 1, "GIF P": 1, "BMP RGB": 1, "JPEG RGB": 0.7, "WEBP RGBA": 0.45, "AVIF RGB": 0.7,
}  # fmt: skip
"""The largest photographs that are read, as shares of the limit, which is lower for some decoders."""


def test_the_largest_photographs(tally: Any, share: Callable[[int], int]) -> None:
    """Each takes less than 600 MB; those that today's converters need, in all modes of a PNG, less than 450 MB."""
    chosen = list(BOMBS)[:: len(BOMBS) // share(len(BOMBS))]
    with folder_in_memory() as folder:
        for kind in chosen:
            if kind.split()[0] in ("WEBP", "AVIF") and not features.check(kind.split()[0].lower()):
                continue
            path = Path(folder) / "photograph"
            path.write_bytes(large(kind, int(BOMBS[kind] * MAX_PIXELS)))
            most = 450 if kind.startswith(("PNG", "GIF", "BMP")) else 600
            (outcome,) = attempt_all(lambda path: open_photograph(path).size, [path], seconds=60, megabytes=most)
            tally.add(f"{kind}: {outcome}" if outcome.status != "answered" else None, outcome.seconds)
    tally.check(at_least=len(chosen) - 2)


def test_many_threads_share_a_budget(tally: Any) -> None:
    """Eight photographs of 128 MB at once, by eight threads, in less than the memory of all."""

    def attempt(path: Path) -> int:
        with ThreadPoolExecutor(8) as pool:
            return len(list(pool.map(lambda _: read_image(path, 224), range(8))))

    with folder_in_memory() as folder:
        path = Path(folder) / "photograph.png"
        path.write_bytes(large("PNG RGBA", MAX_PIXELS // 2))
        (outcome,) = attempt_all(attempt, [path], seconds=120, megabytes=700)
    tally.add(None if outcome.status == "answered" else str(outcome), outcome.seconds)
    tally.check()

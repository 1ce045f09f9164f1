"""Photographs from anyone: bounds on pixels, memory and threads, and the pixels that there are without them."""

import io
import struct
import threading
import time
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from chaos.children import attempt_all
from PIL import Image

from vision_attn.data.images import limits
from vision_attn.data.images import open as photographs
from vision_attn.data.images import upright_rgb as conversion
from vision_attn.data.images.limits import Budget
from vision_attn.data.images.open import open_photograph
from vision_attn.system.errors import UserError


def png(path: Path, width: int, height: int, rows: int = 1) -> Path:
    """A PNG that promises RGBA pixels, and holds the first `rows` rows of them, all zero."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    pixels = zlib.compress(bytes(rows * (1 + 4 * width)), 1)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))
    return path


def noise(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_a_bomb_is_refused_by_its_header(tmp_path):
    with pytest.raises(UserError, match="bomb.png: too large, 13,000 x 13,000 pixels.*VISION_ATTN_MAX_PIXELS to at"):
        open_photograph(png(tmp_path / "bomb.png", 13000, 13000))


def test_the_limit_can_be_raised_and_lowered(tmp_path, monkeypatch):
    noise(40, 30).save(tmp_path / "a.png")
    monkeypatch.setenv("VISION_ATTN_MAX_PIXELS", "1199")
    with pytest.raises(UserError, match=r"a.png: too large, 40 x 30 .* to at least 1200 \(now 1199\)"):
        open_photograph(tmp_path / "a.png")
    monkeypatch.setenv("VISION_ATTN_MAX_PIXELS", "1200")
    assert open_photograph(tmp_path / "a.png").size == (40, 30)
    for wrong in ("0", "-5", "many", "1e9"):
        monkeypatch.setenv("VISION_ATTN_MAX_PIXELS", wrong)
        with pytest.raises(UserError, match=f"VISION_ATTN_MAX_PIXELS={wrong} is not a number of pixels"):
            open_photograph(tmp_path / "a.png")


def test_pillows_own_limit_is_not_ours_and_stays_as_it_is(tmp_path, monkeypatch):
    """A program that holds this package may have set it for other purposes."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    for name in ("a.png", "a.jpg", "a.gif", "a.bmp"):
        noise(400, 300).save(tmp_path / name)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert open_photograph(tmp_path / name).size == (400, 300)
    assert Image.MAX_IMAGE_PIXELS == 1000
    assert not [entry for entry in warnings.filters if entry[2] is Image.DecompressionBombWarning]


def test_a_jpeg_counts_as_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setenv("VISION_ATTN_MAX_PIXELS", "20000")
    noise(800, 600).save(tmp_path / "plain.jpg")
    noise(800, 600).save(tmp_path / "progressive.jpg", progressive=True)
    assert open_photograph(tmp_path / "plain.jpg", at_least=75).size == (100, 75)
    with pytest.raises(UserError, match="plain.jpg: too large, 800 x 600 pixels: "):
        open_photograph(tmp_path / "plain.jpg")
    with pytest.raises(UserError, match="too large, 100 x 75 pixels of progressive JPEG, which takes more memory"):
        open_photograph(tmp_path / "progressive.jpg", at_least=75)
    monkeypatch.delenv("VISION_ATTN_MAX_PIXELS")
    assert open_photograph(tmp_path / "progressive.jpg", at_least=75).size == (100, 75)


def test_a_jpeg_in_several_scans_is_known_by_its_first():
    size = b"\xff\xd8" + b"\xff\xc0\x00\x11\x08\x00\x10\x00\x10\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01"
    for components in (1, 3):
        scan = b"\xff\xda\x00\x0c" + bytes([components]) + bytes(9)
        for padding in (b"", b"\xff\xff"):
            file = io.BytesIO(size + padding + scan)
            assert limits._keeps_coefficients(file, 3) == (components == 1) and file.tell() == 0


def test_decoders_that_need_more_memory_may_decode_fewer_pixels(tmp_path, monkeypatch):
    monkeypatch.setenv("VISION_ATTN_MAX_PIXELS", "120000")
    noise(400, 300).save(tmp_path / "a.png")
    noise(400, 300).save(tmp_path / "a.webp")
    assert open_photograph(tmp_path / "a.png").size == (400, 300)
    with pytest.raises(UserError, match="pixels of WEBP, which takes more memory than others.* 240000"):
        open_photograph(tmp_path / "a.webp")


MODES = [
    "RGB.png",
    "RGBA.png",
    "L.png",
    "LA.png",
    "1.png",
    "P.png",
    "P.gif",
    "CMYK.tiff",
    "I;16.png",
    "I.tiff",
    "F.tiff",
]


@pytest.mark.parametrize("kind", [*MODES, "F.tiff"])
def test_tiles_change_nothing_and_large_images_come_back_reduced(tmp_path, monkeypatch, kind):
    mode, _, ending = kind.rpartition(".")
    grey = np.random.default_rng(0).integers(0, 256, (50, 90))
    made = {
        "I;16": lambda: Image.fromarray(grey.astype(np.uint16) * 200),
        "I": lambda: Image.fromarray(grey.astype(np.int32) * 300),
        "F": lambda: Image.fromarray(grey.astype(np.float32) - 20),
        "P": lambda: noise(90, 50).quantize(64),
    }.get(mode, lambda: noise(90, 50).convert(mode))()
    if mode in ("RGBA", "LA"):
        made.putalpha(Image.fromarray(grey.astype(np.uint8)))
    made.save(tmp_path / f"a.{ending}", **({"transparency": 3} if mode == "P" else {}))
    whole = open_photograph(tmp_path / f"a.{ending}")
    monkeypatch.setattr(conversion, "TILE", 16)  # of 1,024
    assert np.array_equal(open_photograph(tmp_path / f"a.{ending}"), whole)
    monkeypatch.setattr(conversion, "KEPT_PIXELS", 600)  # of 16 million
    small = open_photograph(tmp_path / f"a.{ending}")
    assert small.size == (30, 17) and np.array_equal(small, whole.reduce(3))


def test_a_large_image_takes_little_more_memory_than_its_pixels(tmp_path):
    """36 million pixels of RGBA are 144 MB; converted as a whole they took five times that."""
    path = png(tmp_path / "large.png", 6000, 6000, rows=6000)
    (outcome,) = attempt_all(lambda path: open_photograph(path).size, [path], seconds=60, megabytes=300)
    assert outcome.status == "answered" and outcome.said == "(3000, 3000)", outcome


def test_tags_that_repeat_the_same_bytes_are_no_bomb(tmp_path):
    """An EXIF block of 1 MB in which 60,000 tags refer to the same 300 KB."""
    block, number = bytearray(1_000_000), 60_000
    block[:10] = b"II*\x00\x08\x00\x00\x00" + struct.pack("<H", number)
    for tag in range(number):
        struct.pack_into("<HHII", block, 10 + 12 * tag, tag + 1, 7, 300_000, 700_000)
    picture = noise(8, 8)
    picture.save(tmp_path / "a.png", exif=bytes(block))
    (outcome,) = attempt_all(lambda path: open_photograph(path).size, [tmp_path / "a.png"], megabytes=100)
    assert outcome.status == "answered", outcome


def test_a_tiff_may_not_store_its_pixels_again_and_again(tmp_path):
    """Two strips, but 4,000 places for them: each would be read and unpacked into the same image."""
    rows, side, tags = 99, 100, []
    places = np.full(4000, 8, np.uint32).tobytes()
    sizes = np.full(4000, rows * side, np.uint32).tobytes()
    content = bytes(side * side)
    at = 8 + len(content)
    values = {256: side, 257: side, 258: 8, 259: 1, 262: 1, 277: 1, 278: rows}
    for tag, value in values.items():
        tags.append((tag, struct.pack("<HHII", tag, 4, 1, value)))
    tags.append((273, struct.pack("<HHII", 273, 4, 4000, at)))
    tags.append((279, struct.pack("<HHII", 279, 4, 4000, at + len(places))))
    directory = struct.pack("<H", len(tags)) + b"".join(entry for _, entry in sorted(tags)) + bytes(4)
    head = b"II*\x00" + struct.pack("<I", at + len(places) + len(sizes))
    (tmp_path / "a.tiff").write_bytes(head + content + places + sizes + directory)
    with pytest.raises(UserError, match="a.tiff: not a readable image .its tiles overlap"):
        open_photograph(tmp_path / "a.tiff")


def test_a_budget_is_never_exceeded_and_serves_in_order():
    budget, held, most, lock = Budget(10), [0], [0], threading.Lock()

    def work(amount: int) -> None:
        with budget.take(amount):
            with lock:
                held[0] += min(amount, 10)
                most[0] = max(most[0], held[0])
            time.sleep(0.001)
            with lock:
                held[0] -= min(amount, 10)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [3, 4, 99, 1, 2, 7, 10, 5] * 10))
    assert most[0] <= 10 and budget.free == 10
    order: list[int] = []

    def note(amount: int) -> None:
        with budget.take(amount):
            order.append(amount)

    with budget.take(5), ThreadPoolExecutor(2) as pool:
        first = pool.submit(note, 9)
        while not budget._turn.locked():
            time.sleep(0.001)
        second = pool.submit(note, 1)  # would fit, but came later
        time.sleep(0.02)
        assert not order
        budget.free += 5  # as if the block had ended
        with budget._changed:
            budget._changed.notify_all()
        first.result(10), second.result(10)
        budget.free -= 5
    assert order == [9, 1]


def test_decoding_takes_its_memory_from_the_budget(tmp_path, monkeypatch):
    taken = []

    class Noting(Budget):
        def take(self, amount):
            taken.append(amount)
            return super().take(amount)

    # one budget counts for the whole process, and no result shows what was taken from it
    monkeypatch.setattr(photographs, "_budget", Noting(1 << 30))
    noise(100, 50).save(tmp_path / "a.png")
    noise(100, 50).save(tmp_path / "a.webp")
    for name in ("a.png", "a.webp"):
        open_photograph(tmp_path / name)
    assert taken == [5000 * (8 + 8), 5000 * (16 + 8)] and photographs._budget.free == 1 << 30

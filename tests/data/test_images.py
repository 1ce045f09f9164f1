"""Photographs of every kind: read right, or refused by name."""

import os
import socket
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional

from vision_attn.data.images.squares import in_threads, open_photograph, read_image
from vision_attn.data.images.upright_rgb import in_rgb, white_of
from vision_attn.data.photographs.pixels import HeldPixels, Pixels, View
from vision_attn.system.errors import UserError


@pytest.fixture
def picture() -> Image.Image:
    """Wider than high, bright to the right and red to the foot, smooth enough for JPEG."""
    x, y = np.meshgrid(np.linspace(0, 1, 96), np.linspace(0, 1, 64))
    return Image.fromarray(np.stack([200 * y + 20, 180 * x + 40, 255 - 200 * x], -1).astype(np.uint8))


def test_shorter_side_is_resized_and_the_centre_cut(picture, tmp_path):
    picture.save(tmp_path / "a.png")
    expected = functional.center_crop(functional.resize(picture, 32, functional.InterpolationMode.BICUBIC), 32)
    seen = read_image(tmp_path / "a.png", 32)
    assert seen.shape == (3, 32, 32) and seen.dtype == torch.uint8
    assert (seen.int() - functional.pil_to_tensor(expected).int()).abs().max() <= 1
    upright = read_image_of(picture.transpose(Image.Transpose.ROTATE_90), tmp_path / "b.png")
    assert torch.equal(upright, seen.rot90(1, (1, 2)))


def read_image_of(picture, path, **options):
    picture.save(path, **options)
    return read_image(path, 32)


@pytest.mark.parametrize(
    "mode, name",
    [("RGB", "a.jpg"), ("CMYK", "a.jpg"), ("CMYK", "a.tiff"), ("YCbCr", "a.jpg"), ("RGBA", "a.png"), ("RGBA", "a.webp"),
     ("P", "a.png"), ("P", "a.gif"), ("RGB", "a.bmp"), ("RGB", "a.tiff")],
)  # fmt: skip
def test_colours_of_every_kind(picture, tmp_path, mode, name):
    seen = read_image_of(picture.convert(mode), tmp_path / name).float()
    expected = read_image_of(picture, tmp_path / "expected.png").float()
    assert (seen - expected).abs().mean() < (12 if mode == "P" else 4)


@pytest.mark.parametrize(
    "kind", ["L.png", "L.jpg", "LA.png", "1.png", "I;16.png", "I;16.tiff", "I.tiff", "F.tiff", "unit.tiff"]
)
def test_greys_of_every_depth(tmp_path, kind):
    mode, _, ending = kind.rpartition(".")
    grey = np.tile(np.linspace(0, 255, 64), (64, 1)).astype(np.uint8)
    made = {
        "I;16": lambda: Image.fromarray(grey.astype(np.uint16) * 257),
        "I": lambda: Image.fromarray(grey.astype(np.int32) * 257),
        "F": lambda: Image.fromarray(grey.astype(np.float32)),
        "unit": lambda: Image.fromarray(grey.astype(np.float32) / 255),
    }.get(mode, lambda: Image.fromarray(grey).convert(mode))()
    made.save(tmp_path / f"a.{ending}")
    seen = np.asarray(open_photograph(tmp_path / f"a.{ending}")).astype(int)
    assert seen.shape == (64, 64, 3)
    error = np.abs(seen - grey[..., None])
    assert error.max() <= 3 if mode != "1" else abs(seen.mean() - grey.mean()) < 5


@pytest.mark.parametrize("ending", ["png", "tiff", "I.tiff", "F.tiff"])
@pytest.mark.parametrize(
    "brightest, white",
    [(200, 255), (255, 255), (256, 511), (1000, 1023), (4000, 4095), (16383, 16383), (16384, 32767), (40000, 65535)],
)
def test_white_has_the_bits_of_the_brightest_value(tmp_path, ending, brightest, white):
    """10, 12 and 14 bits in a file of 16, each file by itself; what fits into 8 bits is not brightened."""
    grey = np.linspace(0, brightest, 64).round()
    kind = {"I.tiff": np.int32, "F.tiff": np.float32}.get(ending, np.uint16)
    Image.fromarray(np.tile(grey, (64, 1)).astype(kind)).save(tmp_path / f"a.{ending}")
    for seen in (open_photograph(tmp_path / f"a.{ending}"), in_rgb(Image.open(tmp_path / f"a.{ending}"))):
        assert np.abs(np.asarray(seen)[..., 0] - grey * 255 / white).max() <= 0.5 + 1e-3


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def deep_png(colours: np.ndarray) -> bytes:
    """A PNG of 16 bits for each colour, which Pillow does not write."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in colours)
    head = struct.pack(">IIBBBBB", *colours.shape[1::-1], 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def deep_tiff(colours: np.ndarray, order: str, packed: bool) -> bytes:
    """A TIFF of 16 bits for each colour, in one strip."""
    strip = colours.astype(f"{order}u2").tobytes()
    strip = zlib.compress(strip) if packed else strip
    height, width, _ = colours.shape
    tags = [(256, width), (257, height), (258, 8 + 2 + 11 * 12 + 4), (259, 8 if packed else 1), (262, 2),
            (273, 8 + 2 + 11 * 12 + 4 + 6), (277, 3), (278, height), (279, len(strip)), (284, 1), (339, 1)]  # fmt: skip
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HIH", 42, 8, len(tags))
    counts = {258: 3}
    for tag, value in tags:
        head += struct.pack(f"{order}HHI", tag, 4 if tag != 258 else 3, counts.get(tag, 1))
        head += struct.pack(f"{order}I", value)
    return head + struct.pack(f"{order}I", 0) + struct.pack(f"{order}3H", 16, 16, 16) + strip


@pytest.mark.parametrize("kind", ["png", "<tiff", ">tiff", "<packed", ">packed"])
@pytest.mark.parametrize("brightest, white", [(200, 255), (4000, 4095), (16383, 16383), (30000, 32767), (65535, 65535)])
def test_colours_of_sixteen_bits_are_scaled_like_greys(tmp_path, kind, brightest, white):
    colours = np.random.default_rng(0).integers(0, brightest + 1, (30, 40, 3))
    colours[3, 4, 1] = brightest
    content = deep_png(colours) if kind == "png" else deep_tiff(colours, kind[0], kind[1:] == "packed")
    (tmp_path / "a.any").write_bytes(content)
    seen = np.asarray(open_photograph(tmp_path / "a.any")).astype(float)
    assert np.abs(seen - colours * 255 / white).max() <= 1.01


def test_white_of_other_values():
    assert white_of(0.5, unit=True) == 1 and white_of(0.5, unit=False) == 255
    assert white_of(255.5, unit=True) == 511 and white_of(0.0, unit=False) == 255
    assert white_of(65535.0, unit=False) == 65535 and white_of(1e5, unit=False) == 1e5


def test_a_mask_of_classes_is_as_dark_as_in_eight_bits(tmp_path):
    mask = np.arange(64).reshape(8, 8) % 3
    for kind in (np.uint8, np.uint16):
        Image.fromarray(mask.astype(kind)).save(tmp_path / f"{kind.__name__}.png")
    assert np.array_equal(*(np.asarray(open_photograph(tmp_path / f"{kind}.png")) for kind in ("uint8", "uint16")))


def test_transparent_parts_are_white(tmp_path):
    clear = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    palette = Image.new("P", (8, 8), 0)
    palette.putpalette([0, 0, 0, 255, 255, 255])
    clear.save(tmp_path / "rgba.png")
    palette.save(tmp_path / "palette.png", transparency=0)
    palette.save(tmp_path / "palette.gif", transparency=0)
    Image.new("RGB", (8, 8), (1, 2, 3)).save(tmp_path / "rgb.png", transparency=(1, 2, 3))
    for name in ("rgba.png", "palette.png", "palette.gif", "rgb.png"):
        assert np.asarray(open_photograph(tmp_path / name)).min() == 255, name


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_upright_by_exif(picture, tmp_path, orientation):
    turn = {
        2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }  # fmt: skip
    lying = picture.transpose(turn[orientation]) if orientation in turn else picture
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in ("a.jpg", "a.png"):
        lying.save(tmp_path / name, exif=exif)
        upright = open_photograph(tmp_path / name)
        assert upright.size == picture.size
        assert np.abs(np.asarray(upright).astype(int) - np.asarray(picture)).mean() < 4


def test_sixteen_bits_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.zeros((8, 16), np.uint16)).save(tmp_path / "a.png", exif=exif)
    assert open_photograph(tmp_path / "a.png").size == (8, 16)


def test_a_huge_jpeg_is_decoded_small(tmp_path):
    Image.effect_noise((2400, 1600), 60).save(tmp_path / "huge.jpg")
    assert open_photograph(tmp_path / "huge.jpg").size == (2400, 1600)
    assert open_photograph(tmp_path / "huge.jpg", at_least=200).size == (300, 200)
    assert read_image(tmp_path / "huge.jpg", 32).shape == (3, 32, 32)


def test_extreme_shapes(tmp_path):
    for size in ((1, 1), (1, 3000), (3000, 1), (33, 32)):
        Image.new("RGB", size, (10, 20, 30)).save(tmp_path / "a.png")
        assert read_image(tmp_path / "a.png", 32).float().mean((1, 2)).tolist() == [10, 20, 30]


def test_damage_names_the_file(picture, tmp_path):
    for name in ("a.jpg", "a.png", "a.tiff", "a.gif", "a.webp"):
        picture.resize((300, 200)).save(tmp_path / name)
        whole = (tmp_path / name).read_bytes()
        for end in (0, 3, 20, len(whole) // 2):
            (tmp_path / f"cut_{name}").write_bytes(whole[:end])
            with pytest.raises(UserError, match=f"cut_{name}: not a readable image"):
                read_image(tmp_path / f"cut_{name}", 32)
    (tmp_path / "text.jpg").write_text("<html>404</html>")
    for name, complaint in (("text.jpg", "not a readable"), ("none.jpg", "no such file"), (".", "not a readable")):
        with pytest.raises(UserError, match=complaint):
            read_image(tmp_path / name, 32)


def test_pixels_are_read_in_order_and_the_unreadable_named(picture, tmp_path, caplog):
    for number in range(5):
        Image.new("RGB", (40, 40), (number, 0, 0)).save(tmp_path / f"{number}.png")
    picture.save(tmp_path / "p.png")
    (tmp_path / "bad.png").write_bytes(b"")
    names = ["0.png", "1.png", "2.png", "3.png", "4.png", "bad.png", "p.png"]
    views = [View(name, tmp_path / name, mirrored) for mirrored in (False, True) for name in names]
    pixels = Pixels(views, 16)
    assert pixels.unreadable == {}  # nothing is read before it is needed
    seen = pixels.gather(np.array([3, 1, 6, 13]))
    assert seen[:2, 0, 0, 0].tolist() == [3, 1] and seen.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(seen[3], seen[2].flip(-1)) and not torch.equal(seen[3], seen[2])
    for _ in range(2):
        seen = pixels.gather(np.array([4, 5]))
        assert seen[0].any() and not seen[1].any() and list(pixels.unreadable) == ["bad.png"]
    assert caplog.text.count("bad.png: not a readable image") == 1


@pytest.mark.parametrize("room", [0, 2, 100])
def test_held_pixels_are_those_of_the_files_each_read_once(room, tmp_path, caplog):
    """Whether there is room for none, some or all of them."""
    dice = np.random.default_rng(0)
    for number in range(5):
        Image.fromarray(dice.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
    (tmp_path / "bad.png").write_bytes(b"")
    names = [*(f"{number}.png" for number in range(5)), "bad.png"]
    views = [View(name, tmp_path / name) for name in names]
    read = []

    class Noting(View):
        def read(self, *how) -> np.ndarray:
            read.append(self)
            return super().read(*how)

    noting = [Noting(*view) for view in views]
    plain, held = Pixels(views, 16), HeldPixels(noting, 16, torch.device("cpu"), room=room * 3 * 16 * 16)
    batches = [np.array(rows) for rows in ([3, 3, 1, 3], [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [4])]
    expected = [plain.gather(rows) for rows in batches]
    for _ in range(2):
        for rows, images in zip(batches, expected, strict=True):
            found = held.gather(rows)
            assert torch.equal(found, images) and found.is_contiguous(memory_format=torch.channels_last)
    assert list(held.unreadable) == ["bad.png"]
    assert len(held.places) == min(room, len(names)) and (room < 6 or len(read) <= len(names) + 2)


def test_threads_keep_order_and_pass_errors_on():
    assert list(in_threads(lambda item: item * 2, range(100), ahead=7)) == list(range(0, 200, 2))
    with pytest.raises(ZeroDivisionError):
        list(in_threads(lambda item: 1 // item, [1, 0, 1]))
    assert next(in_threads(str, range(10))) == "0"  # stopping early hangs nothing


def test_what_is_no_regular_file_is_never_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo.jpg")  # opening it would wait for a writer, for ever
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket.jpg"))
        for name in ("fifo.jpg", "socket.jpg", "null.jpg"):
            if name == "null.jpg":
                (tmp_path / name).symlink_to("/dev/null")
            with pytest.raises(UserError, match=f"{name}: not a readable image .not a regular file"):
                read_image(tmp_path / name, 32)


def test_names_that_no_file_system_takes(tmp_path):
    for name in ("x" * 300 + ".jpg", "zero\0byte.jpg", "lone\ud800.jpg"):
        with pytest.raises(UserError, match="not a readable image") as refused:
            read_image(tmp_path / name, 32)
        assert "\n" not in str(refused.value)


def test_only_formats_of_photographs_are_opened(picture, tmp_path):
    for name in ("a.ico", "a.pcx", "a.tga", "a.eps"):
        picture.save(tmp_path / name)
        (tmp_path / name).rename(tmp_path / "renamed.jpg")
        with pytest.raises(UserError, match="not a readable image: supported are JPEG, PNG"):
            read_image(tmp_path / "renamed.jpg", 32)


def test_of_several_frames_the_first_is_read(picture, tmp_path):
    for name in ("a.gif", "a.png", "a.tiff", "a.webp"):
        others = [Image.new("RGB", (96, 64), "red")] * 2
        picture.save(tmp_path / name, save_all=True, append_images=others)
        error = np.asarray(open_photograph(tmp_path / name)).astype(int) - np.asarray(picture)
        assert np.abs(error).mean() < 12, name

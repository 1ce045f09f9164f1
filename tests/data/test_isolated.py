"""Files that are decoded in processes of their own: as in this one, and no file takes one for long."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vision_attn.data.films.files import open_film
from vision_attn.data.images.limits import TooLarge
from vision_attn.data.images.open import Encoded, open_as_stored, open_photograph
from vision_attn.data.isolated.decoders import Decoders
from vision_attn.system.errors import UserError

PHOTOGRAPH = Path(__file__).parents[2] / "docs" / "photographs" / "coffee.jpg"
FOREVER = 3600.0
FAR = 60
"""Seconds after which a test fails."""


@pytest.fixture
def decoders():
    with closing(Decoders(FOREVER)) as found:
        yield found


def saved(picture: Image.Image, kind: str, **options) -> bytes:
    file = BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def coloured(mode: str, size: tuple[int, int] = (60, 40)) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 255, (*size[::-1], 4), np.uint8)
    return Image.fromarray(pixels, "RGBA").convert(mode)


def processes(decoders: Decoders) -> list[int]:
    return [process._popen.pid for process in decoders._all]


def stopped(decoders: Decoders) -> int:
    """The number of the process that will decode the next file, which does nothing from now on."""
    decoders.upload("first", saved(coloured("L"), "PNG")).opened("photograph", None)  # it has started
    (number,) = processes(decoders)
    os.kill(number, signal.SIGSTOP)
    return number


def until(holds) -> None:
    end = time.monotonic() + FAR
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_there(process: int) -> bool:
    """Whether a process exists that has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    except OSError:
        return False


def test_pixels_are_those_that_this_process_decodes(decoders) -> None:
    contents = [PHOTOGRAPH.read_bytes(), saved(Image.open(PHOTOGRAPH).resize((1200, 900)), "JPEG")]
    contents += [saved(coloured(mode), "PNG") for mode in ("RGB", "RGBA", "L", "1", "P")]
    contents += [saved(Image.fromarray(np.arange(2400, dtype=np.uint16).reshape(40, 60)), "TIFF")]
    for content in contents:
        upload, here = decoders.upload("a file", content), Encoded("a file", content)
        for at_least in (100, 448, None):
            found, expected = open_photograph(upload, at_least), open_photograph(here, at_least)
            assert found.mode == expected.mode == "RGB" and found.size == expected.size
            assert found.tobytes() == expected.tobytes()
        assert open_as_stored(upload).convert("RGBA").tobytes() == open_as_stored(here).convert("RGBA").tobytes()
    frames = [Image.new("RGB", (64, 48), (20 * n,) * 3) for n in range(9)]
    content = saved(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=[100 * n for n in range(1, 10)])
    found, expected = (open_film(file, 5) for file in (decoders.upload("f", content), Encoded("f", content)))
    assert found.times == expected.times and [*map(Image.Image.tobytes, found)] == [*map(Image.Image.tobytes, expected)]
    assert len(processes(decoders)) == 1  # which waits between files


def test_an_upload_is_decoded_once_in_each_way() -> None:
    asked = []

    class Noting(Decoders):
        def decode(self, file, seconds, what, arguments):
            asked.append((what, arguments))
            return super().decode(file, seconds, what, arguments)

    with closing(Noting(FOREVER)) as decoders:
        picture = decoders.upload("a", saved(coloured("L"), "PNG"))
        photograph = decoders.upload("b", PHOTOGRAPH.read_bytes())
        for at_least in (100, 200, None, 100):
            open_photograph(picture, at_least).putpixel((0, 0), (9, 9, 9))  # of a copy
            open_photograph(photograph, at_least)
        assert asked == [("photograph", (None,)), *(("photograph", (at_least,)) for at_least in (100, 200, None))]
        assert open_photograph(picture).tobytes() == coloured("L").convert("RGB").tobytes()
    with pytest.raises(AssertionError):
        picture.read()


def test_what_cannot_be_decoded_is_said_as_in_this_process(decoders, monkeypatch) -> None:
    monkeypatch.setenv("VISION_ATTN_MAX_PIXELS", "1000")  # it counts though the process has started before
    for content in (b"", b"no image", saved(coloured("L"), "PNG"), saved(coloured("L", (20, 20)), "PNG")[:-30]):
        for name in ("a\nname", "\udc80"):
            with pytest.raises(UserError) as expected:
                open_photograph(Encoded(name, content))
            with pytest.raises(UserError) as found:
                open_photograph(decoders.upload(name, content))
            assert str(found.value) == str(expected.value) and type(found.value) is type(expected.value)
    monkeypatch.delenv("VISION_ATTN_MAX_PIXELS")
    assert open_photograph(decoders.upload("a", saved(coloured("L"), "PNG"))).size == (60, 40)
    assert len(processes(decoders)) == 1


def test_a_process_that_takes_too_long_is_ended_and_replaced(decoders) -> None:
    number = stopped(decoders)
    decoders.seconds = 0.2
    upload = decoders.upload("slow.ppm", b"P6\n#" + b"x" * 1000)
    for _ in range(2):  # the second time without another process
        with pytest.raises(TooLarge, match="slow.ppm: decoding it takes more than 0 seconds: make it smaller"):
            open_photograph(upload)
    assert not is_there(number)
    decoders.seconds = FOREVER
    assert open_photograph(decoders.upload("next", PHOTOGRAPH.read_bytes())).size == (600, 400)
    assert number not in processes(decoders) and len(processes(decoders)) == 1


def test_all_ways_to_decode_an_upload_share_its_time() -> None:
    given = []

    class Slow(Decoders):
        def decode(self, file, seconds, what, arguments):
            given.append(seconds)
            time.sleep(0.1)
            return super().decode(file, seconds, what, arguments)

    with closing(Slow(FOREVER)) as decoders:
        upload = decoders.upload("a", PHOTOGRAPH.read_bytes())
        for at_least in (100, 200, 300):
            open_photograph(upload, at_least)
        assert given[0] == FOREVER and all(before - after >= 0.1 for before, after in pairwise(given))
        stopped(decoders)
        upload._seconds = 0.1
        with pytest.raises(TooLarge):
            open_photograph(upload, 400)


def test_a_file_that_others_wait_for_has_less_time() -> None:
    # without patience: a process that decodes the other file takes longer to start
    with closing(Decoders(FOREVER, patience=0.0, num_processes=1)) as decoders:
        number = stopped(decoders)
        slow = decoders.submit(open_photograph, decoders.upload("slow", PHOTOGRAPH.read_bytes()))
        until(lambda: not decoders._idle)
        other = decoders.submit(open_photograph, decoders.upload("other", PHOTOGRAPH.read_bytes()))
        with pytest.raises(TooLarge, match="slow: .* while others wait"):
            slow.result(FAR)
        assert other.result(FAR).size == (600, 400) and not is_there(number)


def test_others_are_decoded_while_one_takes_long(decoders) -> None:
    number = stopped(decoders)
    slow = decoders.submit(open_photograph, decoders.upload("slow", PHOTOGRAPH.read_bytes()))
    until(lambda: not decoders._idle)
    assert open_photograph(decoders.upload("other", PHOTOGRAPH.read_bytes())).size == (600, 400)
    assert not slow.done()
    os.kill(number, signal.SIGCONT)
    assert slow.result(FAR).size == (600, 400)
    until(lambda: len(processes(decoders)) == 1)  # one waits for the next file


def test_a_decoder_that_crashes_ends_its_process_alone(decoders) -> None:
    number = stopped(decoders)
    crashing = decoders.submit(open_photograph, decoders.upload("odd", PHOTOGRAPH.read_bytes()))
    until(lambda: not decoders._idle)
    os.kill(number, signal.SIGSEGV)
    os.kill(number, signal.SIGCONT)
    with pytest.raises(UserError, match="odd: not readable .its decoder crashed, SIGSEGV"):
        crashing.result(FAR)
    assert open_photograph(decoders.upload("next", PHOTOGRAPH.read_bytes())).size == (600, 400)


def test_processes_end_with_the_decoders_and_what_waits_is_told(decoders) -> None:
    number = stopped(decoders)
    slow = decoders.submit(open_photograph, decoders.upload("slow", PHOTOGRAPH.read_bytes()))
    until(lambda: not decoders._idle)
    decoders.close()
    with pytest.raises(UserError, match="slow was not decoded: the server ends"):
        slow.result(FAR)
    until(lambda: not processes(decoders))
    assert not is_there(number)
    with pytest.raises(UserError, match="late cannot be decoded now"):
        open_photograph(decoders.upload("late", PHOTOGRAPH.read_bytes()))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system does not tell of processes by files")
@pytest.mark.parametrize("busy", [False, True])
def test_a_process_ends_when_its_parent_is_killed(busy: bool) -> None:
    """Also while it decodes: a photograph that is one comment takes half a minute."""
    program = (
        "import sys, time; from vision_attn.data.isolated.decoders import Decoders\n"
        "from vision_attn.data.images.open import open_photograph\n"
        "if __name__ == '__main__':\n"
        "    decoders = Decoders(3600.0)\n"
        "    open_photograph(decoders.upload('a', open(sys.argv[1], 'rb').read()))\n"
        "    print(*[one._popen.pid for one in decoders._all], flush=True)\n"
        f"    {busy} and open_photograph(decoders.upload('slow', b'P6\\n#' + b'x' * 30_000_000))\n"
        "    time.sleep(3600)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program, str(PHOTOGRAPH)], stdout=subprocess.PIPE, env=environment
    ) as parent:
        number = int(parent.stdout.readline())
        before = cpu_time(number)
        if busy:
            until(lambda: cpu_time(number) > before + 10)
        assert is_there(number)
        parent.kill()
    until(lambda: not is_there(number))


def cpu_time(process: int) -> int:
    """In hundredths of a second, in most systems."""
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")")[1].split()[11])


def test_the_process_imports_no_torch_and_writes_no_file(tmp_path: Path) -> None:
    program = (
        "import sys; from vision_attn.data.isolated import process\n"
        "from vision_attn.data.films import decode\n"
        "assert not {'torch', 'jaxtyping', 'starlette', 'vision_attn.contracts'} & {*sys.modules}, sys.modules\n"
        "process._limit()\n"
        "try:\n    open(sys.argv[1], 'w').write('a' * 100_000)\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "VISION_ATTN_SHAPES": "0"}
    command = [sys.executable, "-c", program, str(tmp_path / "file")]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=FAR)
    assert found.stdout.strip() == "File too large" and not (tmp_path / "file").stat().st_size, found.stderr

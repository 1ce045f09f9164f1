"""Films of files: whole, in time, upright; and what is no film, or too large for one."""

import struct
from collections.abc import Sequence
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vision_attn.data.films.decode import DEMUXERS, decoded_film
from vision_attn.data.films.files import open_film, strip
from vision_attn.data.films.sampling import Limits, moments
from vision_attn.data.images.open import Encoded
from vision_attn.export.caption_onnx import film as exported_film
from vision_attn.system.errors import UserError
from vision_attn.viz.films import times_of

av = pytest.importorskip("av", reason="films need the extra [video]")
MILLISECOND = Fraction(1, 1000)
COLOURS = np.array([[[220, 30, 30], [30, 60, 220]], [[40, 200, 40], [230, 230, 60]]], np.uint8)
"""Four colours, of which no turn or reflection is the same."""


def encoded(
    pictures: Sequence[Image.Image], starts: Sequence[float] | None = None, kind: str = "mp4", codec: str = "mpeg4"
) -> bytes:
    """A film whose frames appear at these seconds, or ten in a second."""
    file = BytesIO()
    with av.open(file, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=25 if codec == "mpeg2video" else 10)
        stream.width, stream.height = pictures[0].size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        if starts is not None:
            stream.codec_context.time_base = stream.time_base = MILLISECOND
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_image(picture)
            if starts is not None:
                frame.pts, frame.time_base = round(1000 * starts[number]), MILLISECOND
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def grey(value: int, size: tuple[int, int] = (64, 48)) -> Image.Image:
    return Image.new("RGB", size, (value,) * 3)


def values(film: Sequence[Image.Image]) -> list[float]:
    return [float(np.asarray(frame).mean()) for frame in film]


def on_screen(film: Sequence[Image.Image], step: int) -> list[int]:
    """The numbers of frames of which the n-th has the grey value n times `step`."""
    return [round(value / step) for value in values(film)]


@pytest.mark.parametrize(
    ("kind", "codec"),
    [("mp4", "mpeg4"), ("mov", "mjpeg"), ("matroska", "mpeg4"), ("webm", "libvpx"), ("avi", "mpeg4"), ("flv", "flv"),
     ("mpegts", "mpeg2video"), ("mpeg", "mpeg2video"), ("asf", "wmv2"), ("yuv4mpegpipe", "rawvideo")],
)  # fmt: skip
def test_every_kind_of_film_is_read_with_its_times(kind: str, codec: str) -> None:
    film = open_film(Encoded("a film", encoded([grey(8 * n) for n in range(26)], kind=kind, codec=codec)), 6)
    length = 1 / 25 if codec == "mpeg2video" else 1 / 10
    frames, later = [0, 5, 10, 15, 20, 25], kind == "mpeg"  # old versions of FFmpeg write a gap of one frame there
    assert on_screen(film, 8) == pytest.approx(frames, abs=float(later))
    assert film.times == pytest.approx([length * (n + 0.5) for n in frames], abs=0.002 + length * later)


@pytest.mark.parametrize("frames", [2, 5, 9])
def test_frames_of_a_constant_rate_are_within_half_a_frame(frames: int) -> None:
    """Also of a long film, of which every 2^k-th frame was kept once."""
    count = 500
    film = open_film(Encoded("a film", encoded([grey(n // 2, (16, 16)) for n in range(count)])), frames)
    expected = np.linspace(0, count - 1, frames)
    assert np.abs(2 * np.array(values(film)) - expected).max() <= 3.5  # half a frame, and compression
    assert np.diff(film.times) == pytest.approx([(count - 1) / 10 / (frames - 1)] * (frames - 1), abs=0.002)


def test_frames_of_a_variable_rate_are_evenly_spaced_in_time() -> None:
    """Thirty dark frames of 20 ms, then nine bright ones of a second: dark is a sixteenth of the film."""
    starts = [*(0.02 * n for n in range(30)), *(0.6 + n for n in range(9))]
    pictures = [grey(20 if n < 30 else 60 + 20 * (n - 30)) for n in range(39)]
    film = open_film(Encoded("a film", encoded(pictures, starts)), 9)
    ends = [*starts[1:], starts[-1] + film.times[-1] - starts[-1] + 0.02]
    assert np.diff(film.times) == pytest.approx([np.diff(film.times).mean()] * 8, abs=0.002)
    for time, value in zip(film.times, values(film), strict=True):
        shown = next(n for n, end in enumerate(ends) if time < end)
        assert value == pytest.approx(np.asarray(pictures[shown]).mean(), abs=4), time
    assert sum(value < 40 for value in values(film)) == 1


def test_times_of_a_gif_are_used(tmp_path: Path) -> None:
    """A frame of three seconds, and three of a second; a frame without a time lasts a tenth, as in browsers."""
    pictures = [grey(value) for value in (0, 60, 120, 180)]
    for name, lengths in (("slow.gif", [3000, 1000, 1000, 1000]), ("none.gif", [0, 300, 100, 100])):
        pictures[0].save(tmp_path / name, save_all=True, append_images=pictures[1:], duration=lengths)
    film = open_film(tmp_path / "slow.gif", 9)
    assert film.times == pytest.approx(np.linspace(1.5, 5.5, 9).tolist())
    assert on_screen(film, 60) == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert on_screen(open_film(tmp_path / "none.gif", 6), 60) == [0, 1, 1, 1, 2, 3]
    for name in ("slow.gif", "none.gif"):  # the program beside exported models
        assert values(exported_film(str(tmp_path / name), 9)) == values(open_film(tmp_path / name, 9))


def test_a_film_whose_frames_have_no_times_is_counted() -> None:
    content = encoded([grey(12 * n) for n in range(20)])
    place = content.index(b"stts")
    timeless = content[: place + 16] + struct.pack(">I", 0) + content[place + 20 :]
    film = open_film(Encoded("a film", timeless), 20)
    assert on_screen(film, 12) == [*range(20)] and film.times is None


MATRICES = {
    (1, 0, 0, 1): lambda a: a,
    (0, 1, -1, 0): lambda a: np.rot90(a, -1),  # a quarter clockwise: a telephone held upright
    (-1, 0, 0, -1): lambda a: np.rot90(a, 2),
    (0, -1, 1, 0): np.rot90,
    (-1, 0, 0, 1): np.fliplr,
    (1, 0, 0, -1): np.flipud,
    (0, 1, 1, 0): lambda a: a.transpose(1, 0, 2),
    (0, -1, -1, 0): lambda a: np.rot90(a, 2).transpose(1, 0, 2),
}


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("tilt", [0.0, 0.3])
def test_frames_are_turned_upright_by_the_display_matrix(matrix: tuple[int, ...], tilt: float) -> None:
    """To the nearest right angle, as photographs are by EXIF; the width and the height follow."""
    stored = np.repeat(np.repeat(COLOURS, 48, 0), 64, 1)
    content = encoded([Image.fromarray(stored)] * 4)
    place = content.index(b"tkhd") + 4 + 40
    a, b, c, d = (round(0x10000 * (number if number else tilt)) for number in matrix)
    turned = content[:place] + struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 0x40000000) + content[place + 36 :]
    expected = MATRICES[matrix](stored)
    for frame in open_film(Encoded("a film", turned), 3):
        assert frame.size == expected.shape[1::-1]
        assert np.abs(np.asarray(frame, int) - expected)[10:-10, 10:-10].mean() < 12


def test_pixels_that_are_no_squares_are_made_squares() -> None:
    """As DVDs and cameras store films: 64 x 48 pixels, each twice as wide as high."""
    head, frame = b"YUV4MPEG2 W64 H48 F10:1 A%b C420jpeg\n", b"FRAME\n" + b"\x80" * (64 * 48 * 3 // 2)
    for aspect, size in ((b"2:1", (128, 48)), (b"1:2", (64, 96)), (b"0:0", (64, 48)), (b"65535:1", (64, 48))):
        film = open_film(Encoded("a film", head % aspect + 5 * frame), 3)
        assert film[0].size == size, aspect


def lists_of_films(target: str) -> dict[str, str]:
    """Files that name another one, or an address, in the languages that FFmpeg and players read."""
    track = f"#EXTINF:10,\n{target}\n#EXT-X-ENDLIST\n"
    return {
        "ffconcat": f"ffconcat version 1.0\nfile '{target}'\n",
        "ffconcat with options": f"ffconcat version 1.0\noption safe 0\nstream\nfile '{target}'\nduration 3\n",
        "m3u8": f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n{track}",
        "m3u8 of streams": f"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1000\n{target}\n",
        "m3u8 with a key": f'#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXT-X-KEY:METHOD=AES-128,URI="{target}"\n{track}',
        "mpd": f'<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet>'
        f"<Representation><BaseURL>{target}</BaseURL></Representation></AdaptationSet></Period></MPD>",
        "asx": f'<asx version="3.0"><entry><ref href="{target}"/></entry></asx>',
        "pls": f"[playlist]\nFile1={target}\nNumberOfEntries=1\n",
        "asf": f"[Reference]\nRef1={target}\n",
        "smil": f'<smil><body><video src="{target}"/></body></smil>',
        "rtsp": f"RTSPtext{target}",
        "sdp": f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nu={target}\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 32\n",
        "svg": f'<svg xmlns="http://www.w3.org/2000/svg"><image href="{target}"/></svg>',
        "subtitles": f"1\n00:00:00,000 --> 00:00:01,000\n{target}\n",
        "metadata": f";FFMETADATA1\ntitle={target}\n",
    }


@pytest.mark.parametrize("kind", lists_of_films(""))
def test_what_names_other_files_is_no_film(kind: str, tmp_path: Path, monkeypatch) -> None:
    """As an upload and as a file, whatever its ending; all of the targets are films that can be read."""
    monkeypatch.chdir(tmp_path)
    film = tmp_path / "film.mp4"
    film.write_bytes(encoded([grey(12 * n) for n in range(20)]))
    assert len(open_film("film.mp4", 4)) == 4
    for target in (
        "film.mp4",
        str(film),
        f"file://{film}",
        f"concat:{film}|{film}",
        f"subfile,,start,0,end,0,,:{film}",
    ):
        content = lists_of_films(target)[kind].encode()
        for ending in (".mp4", f".{kind.split()[0]}"):
            (tmp_path / f"list{ending}").write_bytes(content)
            for given in (f"list{ending}", Encoded(f"list{ending}", content)):
                with pytest.raises(UserError, match=rf"^list{ending}: not a readable film \("):
                    open_film(given, 4)


@pytest.mark.parametrize(
    "name", ["frame%03d.mp4", "concat:a|b.mp4", "http:x.mp4", "pipe:0", "-", "a?b*[c].mp4", "x.sdp"]
)
def test_the_name_of_a_film_is_no_address_and_no_pattern(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(encoded([grey(12 * n) for n in range(20)]))
    assert on_screen(open_film(name, 4), 12) == [0, 6, 13, 19]


def test_no_demuxer_that_reads_other_files_is_allowed() -> None:
    refused = {"concat", "hls", "dash", "sdp", "rtp", "rtsp", "sap", "image2", "lavfi", "tty", "imf", "vobsub"}
    assert not {*DEMUXERS.split(",")} & refused


def gif_of(width: int, height: int, frames: int) -> bytes:
    """A GIF of frames of one pixel."""
    frame = b"!\xf9\4\0\5\0\0\0,\0\0\0\0\1\0\1\0\0\2\2\x44\1\0"
    head = b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0\0\0\0\xff\xff\xff"
    return head + frame * frames + b";"


@pytest.mark.slow
def test_what_a_small_file_announces_is_counted_before_it_is_decoded(monkeypatch) -> None:
    def never(*_, **__) -> None:
        raise AssertionError("it is decoded")

    monkeypatch.setattr(Image, "open", never)
    for (width, height, frames), said in (
        ((4000, 4000, 2000), "its frames have more than 4,000,000,000 pixels together"),
        ((65535, 65535, 2), "it has more than 16,777,216 pixels in a frame"),
        ((1, 1, 200_001), "it has more than 200,000 frames"),
    ):
        with pytest.raises(UserError, match=f"a film: not a readable film.*{said}"):
            open_film(Encoded("a film", gif_of(width, height, frames)), 9)
    content = encoded([grey(12 * n) for n in range(20)])
    with pytest.raises(UserError, match="its frames have more than 61,000 pixels together"):
        decoded_film(Encoded("a film", content), 4, 224, Limits(len(content), pixels=61_000))  # 20 of 64 x 48: 61,440
    assert len(decoded_film(Encoded("a film", content), 4, 224, Limits(len(content), pixels=62_000))) == 4


def test_decoding_stops_when_its_time_is_over() -> None:
    """A minute, and half a minute for each megabyte."""
    content, now = encoded([grey(12 * n) for n in range(20)]), iter(range(1000))
    limits = Limits(2_000_000, clock=lambda: 10.0 * next(now))
    assert limits.seconds == 120
    with pytest.raises(UserError, match="a film: not a readable film .decoding it takes more than 120 seconds"):
        decoded_film(Encoded("a film", content), 4, 224, limits)
    now = iter(range(1000))
    with pytest.raises(UserError, match="more than 60 seconds"):
        decoded_film(Encoded("a.gif", gif_of(8, 8, 20)), 4, 224, Limits(0, clock=lambda: 10.0 * next(now)))


def test_titles_in_other_encodings_are_no_reason_to_refuse_a_film() -> None:
    content = encoded([grey(12 * n) for n in range(20)], kind="avi")
    place = content.index(b"Lavf")
    film = open_film(Encoded("a film", content[:place] + b"L\xe9vf" + content[place + 4 :]), 4)
    assert on_screen(film, 12) == [0, 6, 13, 19]


def test_moments_lie_in_the_middle_of_the_first_and_of_the_last_frame() -> None:
    assert moments([0.0, 1.0, 2.0, 3.0], 4.0, 4) == [0.5, 1.5, 2.5, 3.5]
    assert moments([5.0, 7.0, 8.0], 12.0, 3) == [6.0, 8.0, 10.0]


def test_a_strip_knows_its_times() -> None:
    slow = encoded([grey(12 * n) for n in range(21)], [8.0 * n for n in range(21)])
    film = open_film(Encoded("a film", slow), 3)
    assert times_of(strip(film)) == ["4.0 s", "1:22", "2:40"], film.times
    assert times_of(strip(open_film(np.zeros((4, 8, 8, 3), np.uint8), 3))) == []


def test_pictures_of_an_unknown_kind_are_named() -> None:
    content = encoded([grey(12 * n) for n in range(20)], kind="matroska").replace(
        b"V_MPEG4/ISO/ASP", b"V_MPEG9/ISO/ASP"
    )
    with pytest.raises(UserError, match="not a readable film .FFmpeg does not know how its pictures are encoded"):
        open_film(Encoded("a film", content), 4)

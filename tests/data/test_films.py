"""Drawn films: every caption is true of the pixels, and in the right order; and films of files."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vision_attn.data.films.canvas import script_of
from vision_attn.data.films.files import frames_in, open_film, read_film, strip
from vision_attn.data.films.films import DrawnFilms
from vision_attn.data.films.grammar import CONTENT, DIRECTIONS, TURNS, VERBS
from vision_attn.data.images.open import Encoded
from vision_attn.data.scenes.grammar import COLOURS, SHAPES, pair_split
from vision_attn.system.errors import UserError
from vision_attn.task import Task

EVENT = r"a (\w+) (\w+) (moves \w+|stops|turns \w+|leaves|meets a \w+ \w+)"
ORDERS = {
    rf"(?:first )?{EVENT} (?:and )?then {EVENT}": (0, 1),
    rf"(?:first )?{EVENT} (?:(?:and )?then|before) {EVENT} (?:and )?(?:then|finally) {EVENT}": (0, 1, 2),
    rf"{EVENT} before {EVENT}": (0, 1),
    rf"after {EVENT} {EVENT}(?: and then {EVENT})?": (0, 1, 2),
    rf"finally {EVENT} after {EVENT}(?: and then {EVENT})?": (-1, 0, 1),
    rf"before {EVENT} (?:and then {EVENT} )?{EVENT}": None,
}


def told(caption: str) -> list[tuple[str, str, str]]:
    """The events of a caption, (colour, shape, what it does), in the order in which they happen."""
    events = re.findall(EVENT, caption)
    assert any(re.fullmatch(form, caption) for form in ORDERS), caption
    if caption.startswith("finally"):
        return [*events[1:], events[0]]
    return [events[-1], *events[:-1]] if caption.startswith("before") else events


def middle(box: tuple[float, ...]) -> np.ndarray:
    return np.array([box[0] + box[2], box[1] + box[3]]) / 2


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_no_film_shows_a_pair_of_another_split_before_or_after_a_turn(split: str) -> None:
    films, turns, kept = DrawnFilms(mixture=(0.4, 0.4, 0.2)), 0, 0
    for number in range(24):
        samples = films.sample(split, (number, 1), 64)
        for film in range(64):
            script = script_of(samples, film)
            objects = samples.objects[film, : script.num_objects].tolist()
            assert {pair_split(*pair) for pair in combinations(objects, 2)} == {split}
            if TURNS not in script.verbs:
                continue
            actor, turned = script.verbs.index(TURNS), int(samples.turned[film])
            others = objects[:actor] + objects[actor + 1 :]
            colours, shapes = zip(*(divmod(index, len(SHAPES)) for index in objects), strict=True)
            assert turned // len(SHAPES) not in colours and turned % len(SHAPES) == shapes[actor]
            after = {pair_split(turned, other) for other in others}
            assert after <= {split, "train"}
            turns, kept = turns + 1, kept + (after == {split})
    assert kept == turns if split == "train" else kept > turns / 3 > 100


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_caption_tells_what_happens_in_its_order(split: str) -> None:
    films = DrawnFilms(val_images=60, test_images=60, batch_size=60)
    assert films.content_words == CONTENT
    (batch,) = films.split(split)
    verbs = set()
    for film, references, boxes in zip(batch.images, batch.references, batch.boxes, strict=True):
        orders = [told(caption) for caption in references]
        assert len(set(references)) == 5 and all(order == orders[0] for order in orders)
        last = -1.0
        for colour, shape, action in orders[0]:
            verb, *more = action.split()
            verbs.add(verb)
            times = [box[4] for box in boxes[verb]]
            assert len(times) == 3 and np.mean(times) > last
            last = np.mean(times)
            path = np.array([middle(box) for box in boxes[verb]])
            first = int(times[0])
            if verb in ("moves", "leaves", "meets") and first:  # the frames of an event show it from its beginning
                x0, y0, x1, y1 = (round((edge + 1) / 2 * film.shape[-1]) for edge in boxes[verb][0][:4])
                assert torch.equal(*film[first - 1 : first + 1, :, y0:y1, x0:x1])
                assert boxes[verb][0][:4] != boxes[verb][1][:4]
            if verb == "moves":
                assert ((path[-1] - path[0]) * DIRECTIONS[more[0]]).sum() > 0.2
            elif verb == "turns":
                for named, box in ((colour, boxes[verb][0]), (more[0], boxes[verb][-1])):
                    assert nearest_colour(film, box) == named
                assert times == [*range(int(times[0]), int(times[0]) + 3)]
            elif verb == "meets":
                target = next(box for box in boxes[more[2]] if box[4] == times[-1])
                actor = boxes[verb][-1]
                gap = max(max(target[k], actor[k]) - min(target[k + 2], actor[k + 2]) for k in (0, 1))
                assert abs(gap) < 1e-6
            elif verb == "leaves":
                x0, y0, x1, y1, _ = boxes[verb][-1]
                assert (x1 - x0) * (y1 - y0) == 0 and 1 in np.abs(path[-1])
            assert {box for box in boxes[verb] if box[4] in times} <= {*boxes[shape]}
        assert boxes.keys() <= CONTENT
    assert verbs == {*VERBS}


def nearest_colour(film: torch.Tensor, box: tuple[float, ...]) -> str:
    """The colour in the middle of a box."""
    x, y = ((middle(box) + 1) / 2 * film.shape[-1]).astype(int)
    pixel = film[int(box[4]), :, y - 1 : y + 1, x - 1 : x + 1].float().mean((1, 2))
    palette = torch.tensor(list(COLOURS.values())).float()
    return [*COLOURS][int((palette - pixel).square().sum(1).argmin())]


def test_training_films_are_new_in_each_epoch_and_start_anywhere() -> None:
    films = DrawnFilms(batch_size=4, epoch_images=8, rows=2)
    first, second = films.train(0, seed=1)
    (again,) = films.train(0, seed=1, skip=1)
    assert torch.equal(second.images, again.images) and torch.equal(second.words, again.words)
    assert not torch.equal(first.images, next(films.train(1, seed=1)).images)
    assert first.images.shape == (4, 9, 3, 32, 32) and first.words.shape == again.words.shape
    parts = [next(films.train(0, seed=1, rank=rank, world=2)) for rank in (0, 1)]
    assert sorted(id for part in parts for id in part.ids) == sorted(first.ids)
    for key, value, reason in (
        ("frames", 10, "of 3"),
        ("rows", 6, "1 to 5"),
        ("mixture", (0.0,) * 3, "kinds"),
    ):
        with pytest.raises(UserError, match=reason):
            DrawnFilms(**{key: value})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The same film of 20 frames, ever brighter, as mp4, as GIF and as a folder of frames; and files that are none."""
    av = pytest.importorskip("av", reason="films need the extra [video]")
    folder = tmp_path_factory.mktemp("films")
    frames = [Image.new("RGB", (64, 48), (12 * number,) * 3) for number in range(20)]
    with av.open(str(folder / "film.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())
    frames[0].save(folder / "film.gif", save_all=True, append_images=frames[1:], duration=100)
    frames[0].save(folder / "timeless.gif", save_all=True, append_images=frames[1:])
    (folder / "frames").mkdir()
    for number, frame in enumerate(frames):
        frame.save(folder / "frames" / f"{number:02}.png")
    (folder / "text.mp4").write_text("no film")
    (folder / "half.gif").write_bytes((folder / "film.gif").read_bytes()[:30])
    return folder


@pytest.mark.parametrize(
    ("frames", "resolution", "way"),
    [
        (6, 32, "set --task.encoder.frames=9 (or --data.frames=6)"),
        (9, 40, "set --data.size=40"),
        (6, 40, "set --task.encoder.frames=9 (or --data.frames=6) and set --data.size=40"),
        (1, 32, "wrap the encoder of images in vision_attn.encoders.clips.FrameVectors"),
    ],
)
def test_films_that_the_encoder_does_not_take_are_refused_with_the_key_to_set(
    frames: int, resolution: int, way: str
) -> None:
    class Seeing(Task):
        resolution = None

    task = Seeing()
    task.frames, task.resolution = frames, resolution
    with pytest.raises(UserError) as refused:
        DrawnFilms().prepare(task)
    assert str(refused.value) == (
        f"films are drawn with frames=9 of size=32, but the encoder takes {frames} of {resolution} pixels: {way}"
    )


@pytest.mark.parametrize("name", ["film.mp4", "film.gif", "timeless.gif", "frames"])
@pytest.mark.parametrize("frames", [2, 5, 30])
def test_evenly_spaced_frames_of_a_file_are_read(folder: Path, name: str, frames: int) -> None:
    film = read_film(folder / name, frames, 16)
    assert film.shape == (frames, 3, 16, 16)
    expected = 12 * torch.linspace(0, 19, frames).round()
    assert (film.float().mean((1, 2, 3)) - expected).abs().max() < 14  # a frame more or less, and compression
    whole = strip(open_film(folder / name, frames))
    assert whole.size == (48 * frames, 48)


def test_what_is_no_film_is_named(folder: Path) -> None:
    (folder / "empty").mkdir(exist_ok=True)
    (folder / "empty" / ".00.png").touch()
    for name in ("bytes.gif", "bytes.png", "bytes.mp4"):
        (folder / name).touch()
    for name, reason in (
        ("text.mp4", r"not a readable film \(Invalid data found when processing input\)$"),
        ("half.gif", r"not a readable film \(\w+\)$"),
        ("no.mp4", "no such file"),
        ("empty", "no frames"),
        ("bytes.gif", r"not a readable film \(the file is empty\)"),
        ("bytes.mp4", r"not a readable film \(the file is empty\)"),
        ("bytes.png", r"not a readable image \(the file is empty\)"),
    ):
        with pytest.raises(UserError, match=f"{name}.*{reason}"):
            open_film(folder / name, 4)
    with pytest.raises(UserError, match=r"a.gif: not a readable film \(the file is empty\)"):
        open_film(Encoded("a.gif", bytes), 4)
    with pytest.raises(UserError, match=r"\(F, Y, X, 3\)"):
        open_film(np.zeros((4, 8, 8), np.uint8), 4)
    assert len(open_film(np.zeros((4, 8, 8, 3), np.uint8), 6)) == 6


def test_a_single_picture_is_no_film(folder: Path) -> None:
    """A captioner of films would write an empty caption of it."""
    (folder / "one").mkdir(exist_ok=True)
    for name in ("photo.jpg", "still.gif", "one/00.png"):
        Image.new("RGB", (64, 48)).save(folder / name)
    for name in ("photo.jpg", "still.gif", "one"):
        with pytest.raises(UserError, match=f"{name}: a single picture, .* give a film, or a folder of frames"):
            open_film(folder / name, 4)
    with pytest.raises(UserError, match="a single picture"):
        open_film(np.zeros((1, 8, 8, 3), np.uint8), 4)


def test_frames_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("frame10.png", "frame2.png", "frame1.png", ".frame0.png", "b.PNG", "notes.txt"):
        (tmp_path / name).touch()
    assert [file.name for file in frames_in(tmp_path)] == ["b.PNG", "frame1.png", "frame2.png", "frame10.png"]

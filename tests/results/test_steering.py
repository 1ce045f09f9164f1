"""`caption(attend=...)` and `--attend`: where words look is chosen."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vision_attn
from vision_attn.api import Model
from vision_attn.commands import main
from vision_attn.system.errors import UserError
from vision_attn.tasks.steering import Wanted


@cache
def model(name: str = "drawn_scenes") -> Model:
    return vision_attn.load_model(f"weights/{name}", device="cpu")


@cache
def scenes() -> list[tuple[Image.Image, dict]]:
    """Drawn scenes of the test set, and the boxes of what their words name."""
    batch = next(iter(model().source.split("test")))
    pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in batch.images[1:5]]
    return list(zip(pictures, batch.boxes[1:5], strict=True))


def colors(boxes: dict) -> dict:
    return {word: places[0] for word, places in boxes.items() if word in ("blue", "cyan", "green", "purple", "yellow")}


def test_a_word_names_what_it_is_made_to_look_at() -> None:
    """A box, a mask and a point: each colour of the scene is said at the second word, where the map is put on it."""
    for picture, boxes in scenes():
        for color, box in list(colors(boxes).items())[:2]:
            mask = np.zeros((40, 40), dtype=np.uint8)
            left, top, right, bottom = (round((edge + 1) * 20) for edge in box)
            mask[top:bottom, left:right] = 255
            centre = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
            for place in (box, mask, centre):
                said = model().caption(picture, beams=1, attend={2: place})
                assert said.words[:2] == ["a", color] and said.steered == [2]
            assert said.way == "attention of ShowAttendTell, but a chosen place at word 2"
            assert said.record()["steered"] == [2]


def test_places_are_those_of_the_whole_photograph() -> None:
    """The model sees the centre square of a wide photograph: what lies beside it cannot be looked at."""
    (picture, boxes), others = scenes()[0], [each for each, _ in scenes()[1:]]
    wide = Image.new("RGB", (80, 40))
    wide.paste(picture, (20, 0))
    color, (x0, y0, x1, y1) = list(colors(boxes).items())[0]
    box = (x0 / 2, y0, x1 / 2, y1)
    assert model().caption(wide, beams=1, attend={2: box}).words[1] == color
    both = model().caption([wide, picture, *others], beams=1, attend={2: box})
    alone = model().caption(picture, beams=1, attend={2: box})
    assert both[0].words[1] == color and torch.allclose(both[1].alpha, alone.alpha[: len(both[1].alpha)], atol=1e-6)
    assert not torch.allclose(both[0].alpha[1], both[1].alpha[1])  # the same numbers are other places there
    with pytest.raises(UserError, match=r"word 2: \(0.7, 0.0\) lies outside .* x from -0.50 to 0.50"):
        model().caption(wide, attend={2: (0.7, 0.0)})


def test_its_own_map_and_no_strength_change_nothing() -> None:
    picture, boxes = scenes()[0]
    own = model().caption(picture, beams=1)
    again = model().caption(picture, beams=1, attend={2: own.alpha[1], (4, 5): own.alpha[3].numpy()})
    assert again.words == own.words and again.steered == [2, 4, 5]
    same = model().caption(picture, beams=1, attend={number + 1: own.alpha[number] for number in range(len(own.words))})
    assert same.log_prob == own.log_prob and torch.equal(same.alpha, own.alpha)
    for options in ({"beams": 3}, {"strategy": "sampled", "seed": 3}):
        free = model().caption(picture, **options)
        weak = model().caption(picture, attend={2: next(iter(boxes.values()))[0]}, strength=0, **options)
        assert weak.record(maps=True) == free.record(maps=True)


def test_the_end_is_a_word_and_later_ones_are_not() -> None:
    picture, _ = scenes()[0]
    own = model().caption(picture, beams=1)
    last = len(own.words) + 1
    kept = model().caption(picture, beams=1, attend={last: (0, 0), (last + 1, 30): (0, 0)})
    assert kept.words == own.words and kept.steered == [last]
    cut = model().caption(picture, beams=1, max_words=3, attend={3: (0, 0)})
    assert cut.steered == [3] and cut.cut


def test_a_frame_of_a_film() -> None:
    film = np.random.default_rng(0).integers(0, 255, (9, 40, 40, 3), dtype=np.uint8)
    found = model("drawn_films").caption(film, beams=1, attend={1: (-0.9, 0.9, 4), 2: (0.5, 0.5), 3: (-1, -1, 0, 0, 9)})
    at_frame, everywhere, box = found.alpha[0], found.alpha[1], found.alpha[2]
    assert at_frame[3].sum() == pytest.approx(1) and at_frame[3, -3:, :3].sum() > 0.99
    torch.testing.assert_close(everywhere.sum(dim=(1, 2)), torch.full((9,), 1 / 9))
    assert box[8].sum() == pytest.approx(1)
    with pytest.raises(UserError, match="frame of .* is from 1 to 9"):
        model("drawn_films").caption(film, attend={1: (0, 0, 10)})
    with pytest.raises(UserError, match=r"\(9, Y, X\), a map for each frame"):
        model("drawn_films").caption(film, attend={1: np.ones((8, 5, 5))})


@pytest.mark.parametrize(
    ("attend", "said"),
    [
        ({}, "a dict of words"),
        ({0: (0, 0)}, "the words 1 to 30"),
        ({31: (0, 0)}, "the words 1 to 30"),
        ({(3, 2): (0, 0)}, "the words 1 to 30"),
        ({2: (0, 0), (1, 3): (0, 0)}, "two places for word 2"),
        ({2: (0,)}, "not 1 numbers"),
        ({2: (0, 0, 3)}, "has a frame"),
        ({2: (0.5, 0, 0.4, 1)}, "a box is"),
        ({2: (float("nan"), 0)}, "finite"),
        ({2: np.zeros((4, 4))}, "not all 0"),
        ({2: -np.ones((4, 4))}, "not negative"),
        ({2: np.ones((2, 10, 10))}, "one map for each word, not those of 2"),
        ({2: (1.2, 0)}, "outside of what the model sees"),
    ],
)
def test_places_that_there_are_not(attend: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        model().caption(scenes()[0][0], attend=attend)
    with pytest.raises(UserError, match="strength is 1.5"):
        model().caption(scenes()[0][0], attend={1: (0, 0)}, strength=1.5)


def test_what_is_no_place() -> None:
    for attend, said in (
        ({"dog": (0, 0)}, "give its number"),
        ({2: "left"}, "a place is"),
        ((0, 0), "a dict of words"),
    ):
        with pytest.raises(UserError, match=said):
            Wanted(attend, 1.0, 30)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    picture, boxes = scenes()[0]
    color, box = list(colors(boxes).items())[0]
    picture.save(tmp_path / "scene.png")
    mask = Image.new("L", (40, 40))
    mask.paste(255, tuple(round((edge + 1) * 20) for edge in box))
    mask.save(tmp_path / "mask.png")
    command = ["caption", "weights/drawn_scenes", str(tmp_path / "scene.png"), "--device=cpu", "--json"]
    for place in (",".join(map(str, box)), str(tmp_path / "mask.png")):
        assert main([*command, f"--attend=2:{place}", "--strength=0.9"]) == 0
        (said,) = json.loads(capsys.readouterr().out)["captions"]
        assert said["words"][1]["word"] == color and said["steered"] == [2]
    assert main([*command, "--attend=2-3:0,0", "--out", str(tmp_path / "out")]) == 0
    assert "but a chosen place at words 2, 3" in (tmp_path / "out/index.html").read_text()
    for wrong, told in ((["--strength=1"], "add --attend"), (["--attend=Hund:0.8,0.8"], "give the number of a word")):
        assert main([*command, *wrong]) == 1 and told in capsys.readouterr().err
    assert (
        main([*command, "--attend=2:0,0", "--attend=2:1,1"]) == 1 and "has a place already" in capsys.readouterr().err
    )


def test_the_command_says_that_it_looked_and_nothing_changed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    scenes()[0][0].save(tmp_path / "scene.png")
    command = ["caption", "weights/drawn_scenes", str(tmp_path / "scene.png"), "--device=cpu"]
    for options, told in (
        (["--attend=1:0,0"], "looked at the place of --attend, and the caption stays what it was: "),
        (["--attend=2:0,0", "--strength=0"], "--attend changed nothing, since the caption ends before its words, or"),
    ):
        assert main([*command, *options]) == 0
        assert told in capsys.readouterr().err
    model = vision_attn.load("weights/drawn_scenes", device="cpu")
    own = model.caption(tmp_path / "scene.png").text
    spot = next(
        f"{x},{y}" for x in (-0.6, 0.0, 0.6) for y in (-0.6, 0.0, 0.6)
        if model.caption(tmp_path / "scene.png", attend={2: (x, y)}).text != own
    )  # fmt: skip
    assert main([*command, f"--attend=2:{spot}"]) == 0 and not capsys.readouterr().err

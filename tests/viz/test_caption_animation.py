"""A caption as a GIF: a frame for each word, which is marked, and then the plain picture."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from vision_attn.system.errors import UserError
from vision_attn.viz.captions import write_caption_animation
from vision_attn.viz.page import PageItem
from vision_attn.viz.panel_sheets import fitted

PHOTOGRAPHS = Path(__file__).parents[2] / "docs" / "photographs"

GREY = Image.new("RGB", (60, 40), "grey")
MAPS = torch.eye(3)[:, None, :] * torch.tensor([1.0])  # each word looks at another third


def frames(path: Path) -> list[Image.Image]:
    opened, found = Image.open(path), []
    for number in range(opened.n_frames):
        opened.seek(number)
        found.append(opened.convert("RGB"))
    return found


@pytest.mark.parametrize("words", [["a", "black", "dog"], ["كلب", "أسود", "كبير"]])
def test_each_word_has_a_frame_in_which_it_is_marked_and_its_map_shown(words: list[str], tmp_path: Path) -> None:
    *shown, plain = frames(write_caption_animation(tmp_path / "a.gif", PageItem("a.jpg", GREY, words, MAPS)))
    assert len(shown) == 3
    thirds = [frame.crop((32, 32, 480, 331)).convert("L").resize((3, 1), Image.Resampling.BOX) for frame in shown]
    assert [max(range(3), key=lambda third: one.getpixel((third, 0))) for one in thirds] == [0, 1, 2]
    below = (0, 32 + 299 + 4, *plain.size)
    bright = [sum(frame.crop(below).convert("L").histogram()[200:]) for frame in (*shown, plain)]
    assert min(bright[:3]) > bright[3], "a marked word is dark on light"


def test_hard_attention_outlines_the_region(tmp_path: Path) -> None:
    item = PageItem("a.jpg", GREY, ["a", "b", "c"], MAPS, regions=torch.tensor([2, 1, 0]))
    one = frames(write_caption_animation(tmp_path / "a.gif", item))[0]
    other = frames(write_caption_animation(tmp_path / "b.gif", item._replace(regions=None)))[0]
    assert one.tobytes() != other.tobytes()


@pytest.mark.parametrize("item", [PageItem("a.jpg", GREY, ["a"]), PageItem("a.jpg", GREY, [], torch.zeros(0, 2, 2))])
def test_without_maps_or_words_nothing_moves(item: PageItem, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"a.jpg: there are no (maps|words), so nothing moves: save the picture as .png"
    ):
        write_caption_animation(tmp_path / "a.gif", item)
    assert not list(tmp_path.iterdir())


def test_the_colour_of_the_largest_weight_is_kept_though_few_pixels_have_it(tmp_path: Path) -> None:
    alpha = torch.zeros(1, 14, 14)
    alpha[0, 7, 3] = 1
    with Image.open(PHOTOGRAPHS / "surfer.jpg") as surfer:
        item = PageItem("surfer.jpg", surfer.convert("RGB"), ["surfer"], alpha)
    frame, plain = frames(write_caption_animation(tmp_path / "a.gif", item))
    width, height = 448, fitted(item.picture, 448).height
    red, green, blue = frame.getpixel((32 + round(3.5 / 14 * width), 32 + round(7.5 / 14 * height)))
    assert min(red, green) - blue > 80, "yellow"
    other = frames(write_caption_animation(tmp_path / "b.gif", item._replace(title="a.jpg · model")))[1]
    assert other.tobytes() != plain.tobytes(), "the title is shown"

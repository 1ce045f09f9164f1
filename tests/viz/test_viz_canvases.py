"""Pictures of drawing: rectangles lie where the filters were, as thick as sigma; every step is in the animation."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

from vision_attn.system.errors import UserError
from vision_attn.viz.canvases import (
    BORDER,
    FRAME,
    GAP,
    LAST_FRAME,
    LONGEST,
    READ,
    SHEER,
    WRITE,
    Rectangles,
    check,
    enlarged,
    landscape,
    marked,
    outlined,
    spread,
    write_animation,
    write_strips,
)

B, T, SIDE = 3, 4, 28
ZOOM = 4  # of canvases of 28 pixels


def canvases(num_steps: int = T, channels: int = 1) -> torch.Tensor:
    """Ever brighter."""
    level = torch.linspace(0, 0.5, num_steps)
    return level[None, :, None, None, None].expand(B, -1, channels, SIDE, SIDE)


def rectangles(box=(-0.5, -0.5, 0.5, 0.5), sigma: float = 1.0, num_steps: int = T) -> Rectangles:
    return Rectangles(torch.tensor(box).expand(B, num_steps, 4), torch.full((B, num_steps), sigma))


def painted_of(picture: Image.Image, row: int) -> list[bool]:
    """Where a row of a black canvas has been painted, without its frame."""
    return [picture.getpixel((column, row)) != (0, 0, 0) for column in range(1, picture.width - 1)]


@pytest.mark.parametrize("sigma, thick", [(0.0, 1), (1.0, 4), (2.0, 8)])
def test_a_rectangle_is_where_its_filters_are_and_as_thick_as_sigma(sigma, thick):
    black = enlarged(torch.zeros(1, SIDE, SIDE))
    assert black.size == (SIDE * ZOOM + 2, SIDE * ZOOM + 2)
    picture = outlined(black, [-0.5, -0.5, 0.5, 0.5], sigma * ZOOM, WRITE)
    painted = painted_of(picture, black.height // 2)
    assert not any(painted_of(picture, 5)) and not any(painted[36:76])
    left = [column for column, there in enumerate(painted) if there and column < SIDE * ZOOM // 2]
    middle = sum(left) / len(left) + 0.5
    assert abs(middle - SIDE * ZOOM / 4) <= 0.5 and thick <= len(left) <= thick + 1
    assert painted == painted[::-1]


def test_rectangles_far_outside_and_wider_than_the_image_are_drawn_too():
    black = enlarged(torch.zeros(1, SIDE, SIDE))
    assert outlined(black, [-9.0, -9.0, 9.0, 9.0], 1.0, WRITE).tobytes() == black.tobytes()
    assert outlined(black, [1e8, 1e8, 3e8, 3e8], 1.0, WRITE).tobytes() == black.tobytes()
    assert all(painted_of(outlined(black, [-9.0, -9.0, 9.0, 9.0], 1e6, WRITE), 40))


def test_each_turn_has_its_own_rectangle_and_the_canvas_below_it():
    boxes = rectangles().boxes.clone()
    boxes[1, 2] = torch.tensor([-1.0, -1.0, 0.0, 0.0])
    writes = rectangles()._replace(boxes=boxes)
    picture = marked(canvases(), 1, 2, writes)
    assert picture.tobytes() != marked(canvases(), 1, 1, rectangles()).tobytes()
    assert picture.getpixel((70, 70)) == (85, 85, 85)  # a third of 255, nothing over it
    assert marked(canvases(), 1, 2, None).getpixel((1, 1)) == (85, 85, 85)
    assert marked(canvases(), 1, 2, None).getpixel((0, 0)) == ImageColor.getrgb(BORDER)


@pytest.mark.parametrize("channels", [1, 3])
def test_strips(tmp_path, channels):
    path = write_strips(tmp_path / "new" / "strips.png", canvases(30, channels), rectangles(num_steps=30), columns=6)
    picture, panel = Image.open(path), SIDE * ZOOM + 2 + GAP
    assert abs(picture.width - 7 * panel) < 64 and abs(picture.height - B * panel) < 64
    images = canvases(1, channels)[:, 0]
    options = {"reads": rectangles((-1.0, -1.0, 0.0, 0.0)), "images": images}
    both = Image.open(write_strips(tmp_path / "both.png", canvases(T, channels), rectangles(), **options))
    assert abs(both.width - (T + 2) * panel) < 64
    colours = {colour for _, colour in both.getcolors(2**20)}
    first, second = (tuple(round(SHEER * level) for level in ImageColor.getrgb(colour)) for colour in (READ, WRITE))
    assert first in colours and second in colours  # on a canvas that is still black


def test_steps_are_spread_from_first_to_last():
    assert spread(64, 10) == [0, 7, 14, 21, 28, 35, 42, 49, 56, 63]
    assert spread(4, 10) == [0, 1, 2, 3] and spread(1, 10) == [0]


@pytest.mark.parametrize("num_steps", [1, T, 80])
def test_an_animation_has_a_frame_for_every_step_and_ends_without_rectangles(tmp_path, num_steps):
    film = Image.open(write_animation(tmp_path / "film.gif", canvases(num_steps), rectangles(num_steps=num_steps)))
    durations = []
    for number in range(film.n_frames):
        film.seek(number)
        durations.append(film.info["duration"])
    assert film.n_frames == num_steps + 1 and film.info["loop"] == 0
    assert durations[-1] == LAST_FRAME and durations[0] == min(FRAME, LONGEST // num_steps) // 10 * 10
    level = round(255 * (0.5 if num_steps > 1 else 0))
    last = film.convert("RGB")
    assert all(abs(part - level) <= 3 for part in last.getpixel((16 + 44, 16 + 24 + 44)))


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match=r"canvases are \(B, T, 1 or 3, Y, X\), these are \(1, 1, 2, 9, 9\)"):
        write_animation(tmp_path / "film.gif", torch.zeros(1, 1, 2, 9, 9))
    with pytest.raises(UserError, match="3 drawings of 4 time steps"):
        write_strips(tmp_path / "strips.png", canvases(), rectangles(num_steps=3))
    with pytest.raises(UserError, match="images are"):
        check(canvases(), torch.zeros(2, 1, SIDE, SIDE))
    assert not list(tmp_path.iterdir())


def test_reads_are_dashed_where_there_are_writes():
    """Colour alone does not tell them apart."""
    black, box = enlarged(torch.zeros(1, SIDE, SIDE)), [-0.5, -0.5, 0.5, 0.5]
    drawn = [np.array(outlined(black, box, 4.0, READ, dashed=each)).max(axis=2) > 100 for each in (False, True)]
    assert 0.4 < drawn[1].sum() / drawn[0].sum() < 0.6 and not (drawn[1] & ~drawn[0]).any()


@pytest.mark.parametrize("number, columns", [(1, 1), (2, 2), (4, 4), (6, 3), (7, 4), (12, 6), (16, 8)])
def test_panels_are_arranged_with_few_empty_places(number, columns):
    assert landscape(number) == columns

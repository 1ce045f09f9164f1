"""Pictures of where DRAW's classifier read."""

import pytest
import torch
from PIL import Image, ImageColor

from vision_attn.system.errors import UserError
from vision_attn.viz.canvases import READ, SHEER, Rectangles
from vision_attn.viz.glimpses import RIGHT, WRONG
from vision_attn.viz.read_windows import _answer_text, _write, write_reads, write_reads_animation

B, T, SIDE, N = 2, 3, 20, 4


def parts(right: int = 0, num_steps: int = T) -> list:
    """Black images, rectangles of their middle, what was read, labels; and answers, sure of class `right`."""
    reads = Rectangles(torch.tensor([-0.5, -0.5, 0.5, 0.5]).expand(B, num_steps, 4), torch.ones(B, num_steps))
    probabilities = torch.eye(3)[right].expand(B, num_steps, 3)
    return [torch.zeros(B, 1, SIDE, SIDE), reads, torch.ones(B, num_steps, 1, N, N), [0, 0], probabilities]


def first_of(images: torch.Tensor, reads: Rectangles, *others) -> list:
    """The first of the two images alone."""
    return [images[:1], Rectangles(reads.boxes[:1], reads.sigma[:1]), *(part[:1] for part in others)]


def colours(path) -> set[tuple[int, ...]]:
    return {colour for _, colour in Image.open(path).convert("RGB").getcolors(2**20)}


def test_two_lines_for_each_image_and_images_beside_each_other_where_they_have_room(tmp_path):
    one = Image.open(write_reads(tmp_path / "new" / "reads.png", *first_of(*parts())))
    beside = Image.open(write_reads(tmp_path / "reads.png", *parts()))
    panel = 120 + 2 + 4
    assert beside.height == one.height and beside.width - one.width == pytest.approx((T + 1) * panel, abs=10)
    longer = parts(num_steps=2 * T)
    one = Image.open(write_reads(tmp_path / "one.png", *first_of(*longer)))
    below = Image.open(write_reads(tmp_path / "reads.png", *longer))
    assert below.width == one.width and below.height - one.height == pytest.approx(2 * panel, abs=10)
    assert (255, 255, 255) in colours(tmp_path / "reads.png")  # what was read
    assert tuple(round(SHEER * level) for level in ImageColor.getrgb(READ)) in colours(tmp_path / "reads.png")


@pytest.mark.parametrize("said, yes, no", [(0, RIGHT, WRONG), (1, WRONG, RIGHT)])
def test_right_is_green_and_wrong_is_red(tmp_path, said, yes, no):
    found = colours(write_reads(tmp_path / "reads.png", *parts(said)))
    assert ImageColor.getrgb(yes) in found and ImageColor.getrgb(no) not in found


def test_what_is_wrong_is_told_without_colour_too():
    assert [_answer_text(said, 0, ["cat", "dog"]) for said in (0, 1)] == ["cat", "× dog"]
    assert _answer_text(1, None, []) == "1"


@pytest.mark.parametrize("said, yes", [(0, True), (1, False)])
def test_an_animation_has_a_frame_for_each_step_and_ends_with_the_answers(tmp_path, said, yes):
    images, reads, _, *answers = parts(said)
    film = Image.open(write_reads_animation(tmp_path / "reads.gif", images, reads, *answers))
    assert film.n_frames == T + 1
    blue, green, red = [], [], []
    for number in range(film.n_frames):
        film.seek(number)
        seen = [colour for _, colour in film.convert("RGB").getcolors(2**20)]
        blue.append(any(b > max(r + 60, g) for r, g, b in seen))
        green.append(any(g > max(r, b) + 40 for r, g, b in seen))
        red.append(any(r > max(g, b) + 60 for r, g, b in seen))
    assert blue == [True] * T + [False]
    assert green == [yes] * (T + 1) and red == [not yes] * (T + 1)


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path):
    images, reads, patches, labels, probabilities = parts()
    with pytest.raises(UserError, match="2 images, 1 labels, boxes .* do not fit"):
        write_reads(tmp_path / "reads.png", images, reads, patches, labels[:1], probabilities)
    with pytest.raises(UserError, match="do not fit"):
        fewer = Rectangles(reads.boxes[:, :2], reads.sigma[:, :2])
        write_reads(tmp_path / "reads.png", images, fewer, patches, labels, probabilities)
    with pytest.raises(UserError, match="do not fit"):
        write_reads_animation(tmp_path / "reads.gif", images, reads, labels, probabilities[:, 1:])
    assert not list(tmp_path.iterdir())


def test_a_long_name_is_cut_and_its_probability_kept(tmp_path):
    """The panel of an answer has an empty margin, which letters of a long name would fill."""
    panel, size = Image.new("RGB", (120, 40)), 14
    for name in ("W" * 60, "кошка" * 20):
        _write(panel, (60, 30), (name, " 0.98"), "white", size, panel.width, anchor="ms")
        assert not panel.crop((0, 0, 3, 40)).getbbox() and not panel.crop((117, 0, 120, 40)).getbbox()
    assert panel.crop((60, 0, 117, 40)).getbbox()

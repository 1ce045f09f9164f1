"""Pictures of glimpses: what was seen is drawn where it was seen, the path where the glimpses were, and right is not
wrong."""

import pytest
import torch
from PIL import Image, ImageColor

from vision_attn.attention.glimpse import Retina
from vision_attn.system.errors import UserError
from vision_attn.viz.foveated import FAINT, GlimpseTrace, foveated, traced
from vision_attn.viz.glimpses import (
    FRAME,
    LAST_FRAME,
    RIGHT,
    WRONG,
    frames,
    gallery_sheet,
    glimpse_sheet,
    grid,
    write_animation,
    write_gallery,
    write_glimpses,
)
from vision_attn.viz.panel_sheets import DARK, MARGIN, TITLE


def looked(num_glimpses=3, *, Y=20, X=32, channels=1, size=4, scales=2, said=3, seed=0) -> GlimpseTrace:
    """Glimpses at random places of a random image, of which the digit is a 3."""
    chance = torch.Generator().manual_seed(seed)
    image = torch.rand(channels, Y, X, generator=chance)
    locations = torch.rand(num_glimpses, 2, generator=chance) * 2 - 1
    retina = Retina(size=size, num_scales=scales)
    patches = retina(retina.pyramid(image[None]), locations[None])[0]
    probabilities = torch.full((num_glimpses, 10), 0.01)
    probabilities[:, 8], probabilities[-1, [8, said]] = 0.5, torch.tensor([0.01, 0.9])
    return GlimpseTrace(image, locations, patches, 3, said, probabilities)


def has(picture: Image.Image, colour: str) -> bool:
    return any(pixel == ImageColor.getrgb(colour) for _, pixel in picture.getcolors(2**24))


@pytest.mark.parametrize("channels, zoom", [(1, 1), (3, 3)])
@pytest.mark.parametrize("x, y", [(16, 10), (5, 17), (31, 1)])
def test_what_a_glimpse_saw_is_drawn_where_it_was_seen(x, y, channels, zoom):
    """Pixel by pixel, for a glimpse on whole pixels: the image itself, around it means of 2 x 2 pixels, then black."""
    item, (Y, X) = looked(channels=channels), (20, 32)
    location = torch.tensor([[2 * x / X - 1, 2 * y / Y - 1]])
    retina = Retina(size=4, num_scales=2)
    patches = retina(retina.pyramid(item.image[None]), location[None])[0]
    seen = foveated(location, patches, Y, X, zoom)
    padded = torch.nn.functional.pad(item.image, (8, 8, 8, 8))
    for row in range(Y):
        for column in range(X):
            expected = torch.zeros(channels)
            if x - 2 <= column < x + 2 and y - 2 <= row < y + 2:
                expected = item.image[:, row, column]
            elif x - 4 <= column < x + 4 and y - 4 <= row < y + 4:
                top, left = row - (row - y) % 2 + 8, column - (column - x) % 2 + 8
                expected = padded[:, top : top + 2, left : left + 2].mean((1, 2))
            cell = seen[:, row * zoom : (row + 1) * zoom, column * zoom : (column + 1) * zoom]
            assert torch.allclose(cell, expected[:, None, None].expand_as(cell), atol=1e-6)


def test_finer_lies_on_coarser_and_later_on_earlier():
    locations = torch.tensor([[0.0, 0.0], [0.25, 0.0]])
    patches = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[:, :, None, None, None].expand(2, 2, 1, 2, 2)
    row = foveated(locations, patches, 16, 16)[0, 8].int().tolist()
    assert row == [0] * 6 + [2, 1, 1, 3, 3, 4] + [0] * 4
    half = foveated(torch.tensor([[1 / 16, 0.0]]), patches[:1, :1], 16, 16, zoom=2)[0, 16]  # between two pixels
    assert half.nonzero()[:, 0].tolist() == [15, 16, 17, 18]


def test_the_path_goes_through_the_glimpses_and_grows_brighter():
    """On a black picture, ten times as large as the image and too small for numbers."""
    item = looked(Y=20, X=28, size=2, scales=2)
    item = item._replace(locations=torch.tensor([[-0.5, -0.5], [-0.5, 0.5], [0.5, 0.5]]))
    plain = Image.new("RGB", (280, 200))
    accent = torch.tensor(ImageColor.getrgb(DARK.accent)).float()
    one, two, three = (70, 50), (70, 150), (210, 150)
    path = traced(plain, item)
    for place, shade in ((one, FAINT), (two, (1 + FAINT) / 2), (three, 1), ((70, 100), (1 + FAINT) / 2)):
        assert torch.allclose(torch.tensor(path.getpixel(place)).float(), accent * shade, atol=1)
    assert min(path.getpixel((140, 150))) > 80  # the line to the last glimpse
    lit = torch.tensor(list(path.convert("L").tobytes())).view(200, 280) > 40
    for column, rows in (
        (215, (140, 160, 170)),
        (225, (130, 170)),
    ):  # squares of 2 and 4 pixels around it
        drawn = lit[:, column].nonzero()[:, 0].tolist()
        assert all(min(abs(row - y) for y in (*rows, 130)) <= 1 for row in drawn)
        assert all(min(abs(row - y) for row in drawn) <= 1 for y in rows)
    begun = traced(plain, item, 1)
    assert begun.getpixel(one) == path.getpixel(one) and begun.getpixel(two) == (0, 0, 0)


def test_animation_has_a_frame_for_each_glimpse_even_where_nothing_moves(tmp_path):
    item = looked(num_glimpses=4)
    item = item._replace(locations=item.locations[:1].expand(4, 2), patches=item.patches[:1].expand(4, -1, -1, -1, -1))
    with Image.open(write_animation(tmp_path / "new" / "look.gif", item)) as film:
        durations = [film.seek(frame) or film.info["duration"] for frame in range(film.n_frames)]
        assert durations == [FRAME] * 3 + [LAST_FRAME] and film.info["loop"] == 0
    drawn = frames(item)
    assert len({frame.size for frame in drawn}) == 1
    assert [has(frame, RIGHT) for frame in drawn] == [False, False, False, True]
    assert [has(frame, WRONG) for frame in drawn] == [True, True, True, False]  # an 8 is said, then 3
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "look.gif"]


@pytest.mark.parametrize("said", [3, 5])
def test_right_and_wrong_are_seen_at_a_glance(said, tmp_path):
    item = looked(num_glimpses=1, said=said)._replace(probabilities=None)
    with Image.open(write_glimpses(tmp_path / "look.png", item)) as page:
        assert (has(page, RIGHT), has(page, WRONG)) == (said == 3, said != 3)
        assert page.tobytes() == glimpse_sheet(item).tobytes()


def test_gallery_has_right_on_the_left_and_wrong_on_the_right(tmp_path):
    said = [3, 5, 5, 3, 5]
    items = [looked(said=digit, seed=seed) for seed, digit in enumerate(said)]
    page = Image.open(write_gallery(tmp_path / "gallery.png", items, title="Glimpses"))
    left, right = (page.crop((side, 0, side + page.width // 2, page.height)) for side in (0, page.width // 2))
    assert has(left, RIGHT) and not has(left, WRONG) and has(right, WRONG) and not has(right, RIGHT)
    same = gallery_sheet([item for item in items if item.right])  # fills the page
    assert has(same.crop((same.width // 2, 0, same.width, same.height)), RIGHT)
    assert gallery_sheet(items[:1]).width < same.width


@pytest.mark.parametrize("rights, wrongs, columns, rows", [(14, 2, 4, 5), (8, 8, 4, 4), (1, 1, 2, 1), (16, 0, 4, 4)])
def test_gallery_is_wide_however_few_are_wrong(rights, wrongs, columns, rows):
    one = gallery_sheet([looked(num_glimpses=1)])
    page = gallery_sheet([looked(num_glimpses=1, said=3)] * rights + [looked(num_glimpses=1, said=5)] * wrongs)
    assert page.width // (one.width - 2 * MARGIN) == columns
    assert page.height // (one.height - 2 * MARGIN) in (rows - 1, rows)  # the one has a title as well


def test_pages_are_made_of_their_pictures():
    red, blue = Image.new("RGB", (4, 3), "red"), Image.new("RGB", (6, 2), "blue")
    page = grid([red, None, None, blue, red], 2, gap=1)
    assert page.size == (4 + 1 + 6, 3 + 1 + 2 + 1 + 3)
    assert page.crop((0, 0, 4, 3)).tobytes() == page.crop((0, 7, 4, 10)).tobytes() == red.tobytes()
    assert page.crop((5, 4, 11, 6)).tobytes() == blue.tobytes() and page.getpixel((5, 0)) == page.getpixel((4, 4))
    one = glimpse_sheet(looked(num_glimpses=1, Y=28, X=28))  # the image and one panel, of equal size
    assert one.size == (2 * MARGIN + 2 * 224 + 16, 2 * MARGIN + 40 + 16 + TITLE + 224)


@pytest.mark.parametrize("Y, X, size", [(1, 1, 1), (3, 40, 5), (600, 20, 8)])
def test_images_of_any_shape_and_kind(Y, X, size):
    item = looked(num_glimpses=5, Y=Y, X=X, size=size, channels=3)
    kinds = [tensor.double().requires_grad_() for tensor in (item.image, item.locations, item.patches)]
    assert (
        glimpse_sheet(GlimpseTrace(*kinds, 3, 3)).tobytes()
        == glimpse_sheet(item._replace(probabilities=None)).tobytes()
    )
    lost = item._replace(locations=item.locations + 1e30, image=item.image * float("nan"), title="a \ud800 ж")
    assert len(frames(lost)) == 5 and gallery_sheet([lost])


@pytest.mark.parametrize(
    "wrong, told",
    [
        ({"image": torch.zeros(2, 20, 32)}, r"an image is \(1 or 3, Y, X\), this one is \(2, 20, 32\)"),
        ({"image": torch.zeros(3, 20, 32)}, "patches have 1 channels, and the image has 3"),
        ({"locations": torch.zeros(0, 2)}, r"at least one glimpse, these are \(0, 2\)"),
        ({"locations": torch.zeros(2, 2)}, "patches of 3 glimpses, but 2 locations"),
        ({"locations": torch.tensor([[0, 0], [0, float("nan")], [0, 0]])}, r"glimpse 2 is at \(0.0, nan\)"),
        ({"patches": torch.zeros(3, 2, 1, 4, 5)}, r"patches are \(T, K, C, g, g\), these are \(3, 2, 1, 4, 5\)"),
        ({"probabilities": torch.zeros(2, 10)}, r"these are \(2, 10\) for 3 glimpses"),
        ({"said": 10}, "said 10, but probabilities are of 10 classes"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(wrong, told, tmp_path):
    items = [looked(), looked()._replace(title="image 7", **wrong)]
    with pytest.raises(UserError, match=f"image 7: .*{told}"):
        write_gallery(tmp_path / "gallery.png", items)
    for draw in (glimpse_sheet, frames):
        with pytest.raises(UserError, match=told):
            draw(items[1])
    with pytest.raises(UserError, match="no example"):
        write_gallery(tmp_path / "gallery.png", [])
    assert not list(tmp_path.iterdir())


def test_huge_images_are_shown_reduced_and_their_glimpses_close_up(tmp_path):
    """The picture takes no more pixels than that of a small image, and what a glimpse saw is not lost in it."""
    item = looked(channels=3)._replace(full_size=(20_000, 12_500))
    item = item._replace(patches=torch.ones_like(item.patches), image=torch.zeros_like(item.image))
    page = glimpse_sheet(item)
    assert max(page.size) < 2000 and max(gallery_sheet([item, looked()]).size) < 2000
    bright = (torch.tensor(list(page.convert("L").tobytes())) > 250).float().mean()
    assert bright > 0.1  # the glimpses, in their panels; in the image they would be a pixel
    assert len({frame.size for frame in frames(item)}) == 1
    assert max(Image.open(write_glimpses(tmp_path / "look.png", item)).size) < 2000
    middle = looked()._replace(full_size=(64, 40))  # not close up: an image reduced by 2
    assert torch.equal(foveated(middle.locations, middle.patches, 40, 64, zoom=0.5).new_zeros(1), torch.zeros(1))
    assert foveated(middle.locations, middle.patches, 40, 64, zoom=0.5).shape == (1, 20, 32)


def test_a_reduced_drawing_of_glimpses_is_every_other_pixel():
    locations, patches = torch.tensor([[0.1, -0.3]]), torch.rand(1, 1, 1, 8, 8)
    whole, half = (foveated(locations, patches, 30, 40, zoom=zoom)[0] for zoom in (2, 1))
    small = foveated(locations, patches, 30, 40, zoom=0.5)[0]
    assert whole.shape == (60, 80) and small.shape == (15, 20)
    assert torch.equal(small, half[:, :][1::2, 1::2]) or torch.equal(small, whole[2::4, 2::4])


@pytest.mark.parametrize(
    "label, verdict", [(3, "said cat: right"), (0, "said cat: wrong, it is dog"), (None, "said cat, p 0.90")]
)
def test_classes_have_names_and_need_no_truth(label, verdict):
    item = looked()._replace(label=label, names=("dog", *["other"] * 2, "cat", *["more"] * 6))
    assert item.verdict == verdict and item.right is {3: True, 0: False, None: None}[label]
    page = glimpse_sheet(item)
    assert (has(page, RIGHT), has(page, WRONG)) == {3: (True, True), 0: (False, True), None: (False, False)}[label]
    gallery_sheet([item])

"""How RAM looks at an image: the path of its looks and what each one saw (Mnih et al., 2014, figure 3), PNG and GIF."""

import math
from collections.abc import Sequence
from pathlib import Path

from jaxtyping import Float
from PIL import Image, ImageOps
from torch import Tensor

from vision_attn.files import replacing
from vision_attn.viz.looks import Glimpsed, as_picture, checked, foveated, traced
from vision_attn.viz.sheet import DARK, GAP, MARGIN, PANEL, TITLE, Panel, boxed, fitted, save_film, sheet

RIGHT, WRONG = "#4cc38a", "#ff6b62"
FILM = 352  # pixels, about, of the longer side of the two pictures of a frame
TURN, END = 800, 3000  # milliseconds of a frame, and of the last one
SQUARE = "#4d3c22"  # around what a look could see: all that shows where it looked, if there was only black


def write_glimpses(
    path: str | Path,
    image: Float[Tensor, "C Y X"],
    locations: Float[Tensor, "T 2"],
    patches: Float[Tensor, "T K C g g"],
    **answer,
) -> Path:
    """Write a PNG: the image with the path of looks, then what each look saw; returns its path.

    Arguments are those of `Glimpsed`, from `truth` on by name. Points are numbered and grow brighter from first to
    last; the last look's squares are drawn thinly. With `probabilities`, each look is headed by the class that was the
    likeliest after it. Green is right, red is wrong.

    Raises ValueError, before anything is written, where the tensors do not fit each other.
    """
    return _write_png(path, glimpse_sheet(Glimpsed(image, locations, patches, **answer)))


def write_film(
    path: str | Path,
    image: Float[Tensor, "C Y X"],
    locations: Float[Tensor, "T 2"],
    patches: Float[Tensor, "T K C g g"],
    **answer,
) -> Path:
    """Write an animated GIF, one frame per look, the last one held, repeated for ever; returns its path.

    Arguments and errors are those of `write_glimpses`.
    """
    drawn = frames(Glimpsed(image, locations, patches, **answer))
    # This method keeps rare colours, and greys grey.
    colours = grid([*drawn], 1, 0).quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1)
    return save_film(path, drawn, colours, [TURN] * (len(drawn) - 1) + [END])


def write_gallery(path: str | Path, items: Sequence[Glimpsed], *, title: str = "") -> Path:
    """Write a PNG of many images, each with its path and all that was seen of it; returns its path.

    Right answers stand on the left and wrong ones on the right, each row by row in the order given.

    Raises ValueError, before anything is written, where there is no item or an item's tensors do not fit each other.
    """
    return _write_png(path, gallery_sheet(items, title=title))


def glimpse_sheet(looked: Glimpsed) -> Image.Image:
    """The image with the path of looks, large, beside a panel for each look."""
    looked = checked(looked)
    num_looks, num_scales, _, size, _ = looked.patches.shape
    rows = max(1, round(math.sqrt(num_looks / 2)))  # with the large image, the whole is about twice as wide as high
    looks = grid([_headed(*_look(looked, turn, PANEL)) for turn in range(num_looks)], math.ceil(num_looks / rows))
    plain = as_picture(looked.image)
    plain = fitted(plain, round((looks.height - TITLE) * max(plain.size) / plain.height))
    note = f"{_many(num_looks, 'look')} of {size} x {size} at {_many(num_scales, 'scale')}"
    whole = grid([_headed(Panel(_framed(traced(plain, looked), looked), note=note)), looks], 2)
    return _page(whole, looked.verdict, looked.title, _colour(looked.right))


def frames(looked: Glimpsed) -> list[Image.Image]:
    """For each look: the image with the path so far, beside what this look saw. All of one size."""
    looked = checked(looked)
    num_looks, drawn = len(looked.locations), []
    plain = fitted(as_picture(looked.image), _side(looked, FILM))
    for turn in range(num_looks):
        path, caption, ink = traced(plain, looked, turn + 1), f"look {turn + 1} of {num_looks}", DARK.ink
        if turn + 1 == num_looks:
            path, caption, ink = _framed(path, looked), looked.verdict, _colour(looked.right)
        pair = grid([_headed(Panel(path)), _headed(*_look(looked, turn, FILM))], 2)
        drawn.append(_page(pair, caption, looked.title, ink))
    return drawn


def gallery_sheet(items: Sequence[Glimpsed], *, title: str = "") -> Image.Image:
    """Examples, each its path beside all that was seen, in at most as many columns as rows, or in two."""
    if not items:
        raise ValueError("gallery: there is no example to show")
    items = [checked(item) for item in items]
    sides = [[item for item in items if item.right is kind] for kind in (True, False)]
    rows = 1
    while sum(columns := [math.ceil(len(side) / rows) for side in sides]) > max(2, rows):
        rows += 1
    places = [
        side[place] if place < len(side) else None
        for row in range(rows)
        for side, width in zip(sides, columns, strict=True)
        for place in range(row * width, (row + 1) * width)
    ]
    whole = grid([_example(item) for item in places], sum(columns), 3 * GAP)
    return _page(whole, title, "Each image with the path of looks, and all that they saw", DARK.ink)


def grid(pictures: Sequence[Image.Image | None], columns: int, gap: int = GAP) -> Image.Image:
    """Pictures row by row on the sheet's paper, each column as wide and each row as high as it has to be."""
    sizes = [picture.size if picture else (0, 0) for picture in pictures]
    widths = [max(width for width, _ in sizes[column::columns]) for column in range(min(columns, len(sizes)))]
    heights = [max(height for _, height in sizes[row : row + columns]) for row in range(0, len(sizes), columns)]
    size = (sum(widths) + gap * (len(widths) - 1), sum(heights) + gap * (len(heights) - 1))
    page = Image.new("RGB", size, DARK.paper)
    for place, picture in enumerate(pictures):
        row, column = divmod(place, columns)
        if picture:
            page.paste(picture, (sum(widths[:column]) + gap * column, sum(heights[:row]) + gap * row))
    return page


def _look(looked: Glimpsed, turn: int, near: int) -> tuple[Panel, str]:
    """What one look saw, under its number and what was said after it; and the colour of that."""
    seen = _seen(looked, slice(turn, turn + 1), near)
    (x, y), (Y, X), reach = looked.locations[turn].tolist(), looked.image.shape[1:], looked.reach
    across, down = reach / X + 4 / seen.width, reach / Y + 4 / seen.height  # the line, of 2 pixels, covers nothing seen
    seen = boxed(seen, [(x - across, y - down, x + across, y + down)], SQUARE)
    if looked.probabilities is None:
        return Panel(seen, f"{turn + 1}"), DARK.ink
    value, said = looked.probabilities[turn].max(0)
    return Panel(seen, f"{turn + 1}: says {said}", f"p {value:.2f}"), _colour(int(said) == looked.truth)


def _example(looked: Glimpsed | None) -> Image.Image | None:
    """One image of a gallery; None for an empty place."""
    if looked is None:
        return None
    ink, said = _colour(looked.right), f"said {looked.said}" + ("" if looked.right else f", is {looked.truth}")
    sure = "" if looked.probabilities is None else f"p {looked.probabilities[-1, looked.said]:.2f}"
    plain = fitted(as_picture(looked.image), _side(looked, PANEL))
    path = Panel(_framed(traced(plain, looked), looked), said, sure)
    return grid([_headed(path, ink), _headed(Panel(_seen(looked, slice(None), PANEL), note=looked.title))], 2)


def _seen(looked: Glimpsed, looks: slice, near: int) -> Image.Image:
    Y, X = looked.image.shape[1:]
    side = _side(looked, near)
    seen = foveated(looked.locations[looks], looked.patches[looks], Y, X, zoom=max(1, side // max(Y, X)))
    return fitted(as_picture(seen), side)


def _side(looked: Glimpsed, near: int) -> int:
    """The longer side of a panel: near the one wished for, and a whole number of pixels for each of the image's."""
    longer = max(looked.image.shape[1:])
    return round(near / longer) * longer or near


def _headed(panel: Panel, ink: str = DARK.ink) -> Image.Image:
    """One panel below its heading: a sheet of its own, so that its words have a colour of their own; no margin."""
    return ImageOps.crop(sheet([panel], caption="", palette=DARK._replace(ink=ink)), MARGIN)


def _page(whole: Image.Image, caption: str, title: str, ink: str) -> Image.Image:
    """Pictures that have their headings already, below a caption: the line for a heading is cut out of the sheet."""
    page = sheet([Panel(whole)], caption=caption, title=title, palette=DARK._replace(ink=ink))
    start = page.height - MARGIN - whole.height
    above, below = (0, 0, page.width, start - TITLE), (0, start, page.width, page.height)
    return grid([page.crop(above), page.crop(below)], 1, 0)


def _framed(picture: Image.Image, looked: Glimpsed) -> Image.Image:
    return boxed(picture, [(-1, -1, 1, 1)], _colour(looked.right))


def _colour(right: bool) -> str:
    return RIGHT if right else WRONG


def _many(number: int, thing: str) -> str:
    return f"{number} {thing}" + "s" * (number != 1)


def _write_png(path: str | Path, drawn: Image.Image) -> Path:
    with replacing(path) as temporary:
        drawn.save(temporary, "PNG", optimize=True)
    return Path(path)

"""Draw the reads of DRAW's classifier, as PNG and GIF: the window of each time step on the image, and the pixels read.

After figure 4 of DRAW (Gregor et al., 2015): a rectangle covers the grid of filters, and its line width is the sigma of
the filters.
"""

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Float
from PIL import Image, ImageDraw
from torch import Tensor

from vision_attn.system.errors import UserError
from vision_attn.viz.canvases import (
    Rectangles,
    check,
    enlarged,
    laid_out,
    marked,
    played_side,
    side_by_side,
    write_frames,
)
from vision_attn.viz.foveated import as_picture
from vision_attn.viz.glimpses import RIGHT, WRONG, WRONG_MARK
from vision_attn.viz.panel_sheets import DARK, save_picture
from vision_attn.viz.typeface import Typeface

ACROSS = 10  # pictures of a row
SMALL = 16  # approximate size of letters, in pixels
MARGIN = 4  # pixels left empty on both sides of a text
FRAME = 500  # milliseconds of a frame of an animation


class ReadTrace(NamedTuple):
    """One image, the reads of DRAW's classifier at each of T time steps, and its answer."""

    image: Float[Tensor, "C Y X"]
    boxes: Float[Tensor, "T 4"]
    """The read windows, (x0, y0, x1, y1) in [-1, 1]."""
    sigma: Float[Tensor, "T"]
    """The sigma of the filters, in pixels of the image."""
    patches: Float[Tensor, "T C N N"]
    probabilities: Float[Tensor, "T K"]
    label: int | None = None
    """The correct class; None if unknown."""
    title: str = ""
    names: Sequence[str] = ()
    """The names of the classes; empty if they are numbers."""


def write_reads(
    path: str | Path,
    images: Float[Tensor, "B C Y X"],
    reads: Rectangles,
    patches: Float[Tensor, "B T C N N"],
    labels: Sequence[int | None],
    probabilities: Float[Tensor, "B T K"],
    names: Sequence[str] = (),
) -> Path:
    """Write a PNG with two rows per image: the rectangle of each of its T time steps, and below it the pixels read,
    with the most likely class after it. Intensities are in [0, 1]. Returns its path.

    Green is correct; red, with a cross, is wrong; an answer without a label has the usual colour of text. Images stand
    side by side if there are few time steps.

    patches: the pixels read.
    labels: the correct class of each image; None if unknown.
    probabilities: of each of K classes after each time step.
    names: the names of the classes.

    Raises UserError, before anything is written, if the shapes do not fit each other.
    """
    still = _still(images, reads, labels, patches=patches, probabilities=probabilities)
    num_steps, rows = patches.shape[1], []
    for number, image in enumerate(images):
        plain = enlarged(image)
        steps = range(num_steps)
        rows.append([plain, *(marked(still, number, step, None, reads) for step in steps)])
        answers = [Image.new("RGB", plain.size) for _ in steps]
        for step, panel in enumerate(answers):
            value, said = probabilities[number, step].max(0)
            says = _answer_text(int(said), labels[number], names), f" {value:.2f}"
            _read(panel, patches[number, step], says, _colour(int(said), labels[number]))
        last = int(probabilities[number, -1].argmax())
        rows.append([_verdict(plain.size, labels[number], last, names), *answers])
    heads = ["image", *(f"read {step + 1}" for step in range(num_steps))]
    beside = min(len(images), max(1, ACROSS // len(heads)))
    down = -(-len(images) // beside)
    blocks = [rows[2 * down * block : 2 * down * (block + 1)] for block in range(beside)]
    beside_each_other = [[panel for row in line for panel in row or []] for line in zip_longest(*blocks)]
    return save_picture(path, laid_out(beside_each_other, heads * beside))


def write_reads_animation(
    path: str | Path,
    images: Float[Tensor, "B C Y X"],
    reads: Rectangles,
    labels: Sequence[int | None],
    probabilities: Float[Tensor, "B T K"],
    names: Sequence[str] = (),
) -> Path:
    """Write a looping GIF of all images side by side: one frame per time step with its rectangle and the most likely
    class after it, then a longer one with the answers. Returns its path.

    Green is correct; red, with a cross, is wrong; white is an answer without a label.

    Raises UserError, before anything is written, if the shapes do not fit each other.
    """
    still = _still(images, reads, labels, probabilities=probabilities)
    num_images, num_steps = probabilities.shape[:2]
    said, frames, side = probabilities.argmax(dim=-1).tolist(), [], played_side(num_images)
    for step in range(num_steps):
        panels = [marked(still, number, step, None, reads, side) for number in range(num_images)]
        parts = zip(panels, said, labels, strict=True)
        answered = [_answered(panel, row[step], label, names) for panel, row, label in parts]
        frames.append(side_by_side(answered, f"read {step + 1} of {num_steps}"))
    whole = zip(images, said, labels, strict=True)
    answered = [_answered(enlarged(image, side), row[-1], label, names, final=True) for image, row, label in whole]
    return write_frames(path, [*frames, side_by_side(answered, "answers")], FRAME)


def _still(
    images: Float[Tensor, "B C Y X"], reads: Rectangles, labels: Sequence[int | None], **others: Tensor
) -> Float[Tensor, "B T C Y X"]:
    """Repeat the images for every time step, after checking all shapes; `others` are (B, T, ...)."""
    steps = {reads.boxes.shape[:2], reads.sigma.shape, *(other.shape[:2] for other in others.values())}
    if steps != {(len(images), reads.boxes.shape[1])} or len(labels) != len(images):
        shapes = ", ".join(f"{name} {tuple(other.shape)}" for name, other in others.items())
        raise UserError(
            f"reads: {len(images)} images, {len(labels)} labels, boxes {tuple(reads.boxes.shape)}, {shapes} do not fit "
            "each other"
        )
    still = images[:, None].expand(-1, reads.boxes.shape[1], -1, -1, -1)
    check(still, reads)
    return still


def _answered(
    picture: Image.Image, said: int, label: int | None, names: Sequence[str] = (), *, final: bool = False
) -> Image.Image:
    """Return a copy of a picture with the predicted class in its corner and, if `final`, a coloured border."""
    picture, colour = picture.copy(), _colour(said, label)
    place, room = (4, 1), picture.width
    _write(
        picture,
        place,
        (_answer_text(said, label, names), ""),
        colour,
        SMALL - 2,
        room,
        stroke_width=2,
        stroke_fill="black",
    )
    if final:
        draw = ImageDraw.Draw(picture)
        draw.rectangle((0, 0, picture.width - 1, picture.height - 1), outline=colour)
    return picture


def _read(panel: Image.Image, patch: Float[Tensor, "C N N"], says: tuple[str, str], colour: str) -> None:
    """Draw the pixels read into a panel, and the prediction after it below."""
    seen = as_picture(patch.clamp(0, 1)).convert("RGB")
    side = min(panel.width, panel.height - SMALL - 4) // max(seen.size) * max(seen.size)
    panel.paste(seen.resize((side, side), Image.Resampling.NEAREST), ((panel.width - side) // 2, 1))
    _write(panel, (panel.width // 2, panel.height - 4), says, colour, SMALL - 2, panel.width, anchor="ms")


def _verdict(size: tuple[int, int], label: int | None, said: int, names: Sequence[str]) -> Image.Image:
    """Draw a panel with the correct class of an image, if it is known, and the predicted one."""
    panel, colour = Image.new("RGB", size), _colour(said, label)
    told = [f"is {_class_name(label, names)}"] if label is not None else []
    for line, text in enumerate([*told, f"said {_class_name(said, names)}"]):
        place = (size[0] // 2, size[1] // 2 + line * (SMALL + 4))
        _write(panel, place, (text, ""), colour, SMALL, size[0], anchor="ms")
    return panel


def _write(
    panel: Image.Image, place: tuple[int, int], text: tuple[str, str], colour: str, size: int, room: int, **options: Any
) -> None:
    """Write two parts of a text. The first is cut if both together are wider than `room`."""
    type_ = Typeface("".join(text))
    first = type_.shortened(text[0], size, room - 2 * MARGIN - type_.width(text[1], size))
    ImageDraw.Draw(panel).text(place, first + text[1], colour, type_.font(size), **options)


def _colour(said: int, label: int | None) -> str:
    return DARK.ink if label is None else RIGHT if said == label else WRONG


def _answer_text(said: int, label: int | None, names: Sequence[str]) -> str:
    return _class_name(said, names) if label in (None, said) else f"{WRONG_MARK} {_class_name(said, names)}"


def _class_name(number: int, names: Sequence[str]) -> str:
    return names[number] if names else str(number)

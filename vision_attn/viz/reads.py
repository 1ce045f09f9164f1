"""How DRAW's classifier reads an image: where each turn read, and what it read there, as PNG and GIF.

After figure 4 of DRAW (Gregor et al., 2015): a rectangle is as large as its grid of filters, and its line as thick as
the filters' sigma.
"""

from collections.abc import Sequence
from pathlib import Path

from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from vision_attn.files import replacing
from vision_attn.viz.canvases import Rectangles, beside, check, enlarged, laid_out, marked, write_frames
from vision_attn.viz.glimpses import RIGHT, WRONG
from vision_attn.viz.looks import as_picture

SMALL = 16  # pixels, about, of the letters
TURN = 500  # milliseconds of a film's frame


def write_reads(
    path: str | Path,
    images: Float[Tensor, "B C Y X"],
    reads: Rectangles,
    patches: Float[Tensor, "B T C N N"],
    truths: Sequence[int],
    probabilities: Float[Tensor, "B T K"],
) -> Path:
    """Write a PNG: for each image a line with the rectangle of each of its T turns, and a line below it with what was
    read there, intensities in [0, 1], and the class that was the likeliest after it; returns its path.

    Green is right, red is wrong.

    Raises ValueError, before anything is written, where the tensors do not fit each other.
    """
    still = _still(images, reads, truths, patches=patches, probabilities=probabilities)
    num_turns, rows = patches.shape[1], []
    for number, image in enumerate(images):
        plain = enlarged(image)
        turns = range(num_turns)
        rows.append([plain, *(marked(still, number, turn, None, reads) for turn in turns)])
        answers = [Image.new("RGB", plain.size) for _ in turns]
        for turn, panel in enumerate(answers):
            value, said = probabilities[number, turn].max(0)
            _read(panel, patches[number, turn], f"{said} {value:.2f}", int(said) == truths[number])
        said = int(probabilities[number, -1].argmax())
        rows.append([_verdict(plain.size, truths[number], said), *answers])
    page = laid_out(rows, ["image", *(f"read {turn + 1}" for turn in range(num_turns))])
    with replacing(path) as temporary:
        page.save(temporary, "PNG", optimize=True)
    return Path(path)


def write_reads_film(
    path: str | Path,
    images: Float[Tensor, "B C Y X"],
    reads: Rectangles,
    truths: Sequence[int],
    probabilities: Float[Tensor, "B T K"],
) -> Path:
    """Write an animated GIF of all images beside each other, one frame per turn with its rectangle and the class that
    was the likeliest after it, then, held, the images and the answers; returns its path.

    Green is right, red is wrong.

    Raises ValueError, before anything is written, where the tensors do not fit each other.
    """
    still = _still(images, reads, truths, probabilities=probabilities)
    num_images, num_turns = probabilities.shape[:2]
    said, frames = probabilities.argmax(dim=-1).tolist(), []
    for turn in range(num_turns):
        panels = [marked(still, number, turn, None, reads) for number in range(num_images)]
        told = [_told(panel, row[turn], truth) for panel, row, truth in zip(panels, said, truths, strict=True)]
        frames.append(beside(told, f"read {turn + 1} of {num_turns}"))
    parts = zip(images, said, truths, strict=True)
    told = [_told(enlarged(image), row[-1], truth, final=True) for image, row, truth in parts]
    return write_frames(path, [*frames, beside(told, "answers")], TURN)


def _still(
    images: Float[Tensor, "B C Y X"], reads: Rectangles, truths: Sequence[int], **others: Tensor
) -> Float[Tensor, "B T C Y X"]:
    """The same images at every turn, once all fit each other; `others` are (B, T, ...)."""
    turns = {reads.boxes.shape[:2], reads.sigma.shape, *(other.shape[:2] for other in others.values())}
    if turns != {(len(images), reads.boxes.shape[1])} or len(truths) != len(images):
        told = ", ".join(f"{name} {tuple(other.shape)}" for name, other in others.items())
        raise ValueError(
            f"reads: {len(images)} images, {len(truths)} truths, boxes {tuple(reads.boxes.shape)}, {told} do not fit "
            "each other"
        )
    still = images[:, None].expand(-1, reads.boxes.shape[1], -1, -1, -1)
    check(still, reads)
    return still


def _told(picture: Image.Image, said: int, truth: int, *, final: bool = False) -> Image.Image:
    """A copy of a picture with what was said in its corner and, of a final answer, a border of the answer's colour."""
    picture, colour = picture.copy(), RIGHT if said == truth else WRONG
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(SMALL - 2)
    draw.text((4, 1), str(said), colour, font, stroke_width=2, stroke_fill="black")
    if final:
        draw.rectangle((0, 0, picture.width - 1, picture.height - 1), outline=colour)
    return picture


def _read(panel: Image.Image, patch: Float[Tensor, "C N N"], says: str, right: bool) -> None:
    """Put what was read into a panel, and what was said after it below."""
    seen = as_picture(patch.clamp(0, 1)).convert("RGB")
    side = min(panel.width, panel.height - SMALL - 4) // max(seen.size) * max(seen.size)
    panel.paste(seen.resize((side, side), Image.Resampling.NEAREST), ((panel.width - side) // 2, 1))
    place = (panel.width // 2, panel.height - 4)
    ImageDraw.Draw(panel).text(place, says, RIGHT if right else WRONG, ImageFont.load_default(SMALL - 2), "ms")


def _verdict(size: tuple[int, int], truth: int, said: int) -> Image.Image:
    """What an image is, and what was said of it in the end."""
    panel = Image.new("RGB", size)
    draw, colour = ImageDraw.Draw(panel), RIGHT if truth == said else WRONG
    for line, text in enumerate((f"is {truth}", f"said {said}")):
        draw.text((size[0] // 2, size[1] // 2 + line * (SMALL + 4)), text, colour, ImageFont.load_default(SMALL), "ms")
    return panel

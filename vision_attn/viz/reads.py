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
from vision_attn.viz.canvases import READ, Rectangles, enlarged, laid_out, outlined, write_film
from vision_attn.viz.glimpses import RIGHT, WRONG
from vision_attn.viz.looks import as_picture

SMALL = 16  # pixels, about, of the letters


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
    (num_images, num_turns), size = patches.shape[:2], len(images)
    if {num_images, len(reads.boxes), len(probabilities), len(truths)} != {size} or reads.boxes.shape[1] != num_turns:
        raise ValueError(
            f"reads: {size} images, boxes {tuple(reads.boxes.shape)}, patches {tuple(patches.shape)}, "
            f"probabilities {tuple(probabilities.shape)} and {len(truths)} truths do not fit each other"
        )
    rows = []
    for number, image in enumerate(images):
        plain = enlarged(image)
        zoom = (plain.width - 2) / image.shape[-1]
        turns = range(num_turns)
        boxes, sigma = reads.boxes[number].tolist(), reads.sigma[number].tolist()
        rows.append([plain, *(outlined(plain, boxes[turn], sigma[turn] * zoom, READ) for turn in turns)])
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


def write_reads_film(path: str | Path, images: Float[Tensor, "B C Y X"], reads: Rectangles) -> Path:
    """Write an animated GIF of all images beside each other, one frame per turn with its rectangle, then, held, the
    images alone; returns its path.

    Raises ValueError, before anything is written, where the tensors do not fit each other.
    """
    still = images[:, None].expand(-1, reads.boxes.shape[1], -1, -1, -1)
    return write_film(path, still, reads=reads, end="image")


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

"""Write pictures of a classifier's answers to a batch, with its glimpses or reads, and a page of all of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from vision_attn.attention.images import Images
from vision_attn.contracts import ClassifierOutput, Glimpses, Reads
from vision_attn.system.console import progress
from vision_attn.viz.canvases import Rectangles
from vision_attn.viz.glimpses import GlimpseTrace, write_animation, write_gallery, write_glimpses
from vision_attn.viz.index import IndexEntry, write_index
from vision_attn.viz.read_windows import write_reads, write_reads_animation

GLIMPSES = "Numbered points are glimpses, brighter from first to last; squares are what the last one saw."
READS = "A rectangle is the grid of filters, its line as thick as their sigma; below it what was read, and the answer."
JUDGED = " Green is correct; red, with a cross, is wrong."
SAMPLED = " Glimpses were sampled for these pictures, and may differ from those that were measured."
DRAWN = 704
"""The largest side of an image in pictures, in pixels."""


def write_classified(
    folder: Path,
    images: Float[Tensor, "B C Y X"] | Images,
    glance: ClassifierOutput,
    view: Glimpses | Reads | None,
    labels: Sequence[int],
    names: Sequence[str],
    *,
    sampled: bool = False,
) -> list[Path]:
    """Write pictures of the glimpses or reads of a model in each image of a batch, and of their pixels. Returns their
    paths.

    The first path is a page that shows them all. Glimpses get a picture and an animation of each image, and a gallery
    of all; reads get one picture and one animation of all images; a model that sees the whole image gets nothing.

    sampled: whether the page says that glimpses are sampled, and so differ from run to run.
    """
    if view is None:
        return []
    if isinstance(view, Reads):
        assert isinstance(images, Tensor)
        reads, answers = Rectangles(view.boxes, view.sigma), (labels, glance.log_prob[:, 0].exp(), names)
        still = write_reads(folder / "reads.png", images, reads, view.patches, *answers)
        moving = write_reads_animation(folder / "reads.gif", images, reads, *answers)
        entries = [IndexEntry(still, "all reads"), IndexEntry(moving, "the same, moving")]
        return [write_classified_page(folder, entries, READS + JUDGED), still, moving]
    items = glimpsed(images, glance, view, labels, names)
    paths = [write_gallery(folder / "gallery.png", items)]
    sides = "correct answers on the left, wrong ones on the right"
    if len({item.right for item in items}) == 1:
        sides = f"all answers {'correct' if items[0].right else 'wrong'}"
    entries = [IndexEntry(paths[0], f"all images, each beside what was seen of it; {sides}")]
    for number, item in enumerate(progress(items, what="pictures", unit="image"), start=1):
        still = write_glimpses(folder / f"{number:02d}.png", item)
        moving = write_animation(folder / f"{number:02d}.gif", item)
        paths += [still, moving]
        entries.append(IndexEntry(moving, f"image {number}", still))
    guide = GLIMPSES + JUDGED + (SAMPLED if sampled else "")
    return [write_classified_page(folder, entries, guide), *paths]


def write_classified_page(folder: Path, entries: Sequence[IndexEntry], guide: str) -> Path:
    """Write the page of a classifier's pictures.

    guide: the text above them, such as `GLIMPSES` or `READS`.
    """
    return write_index(folder / "index.html", entries, title="Where the model looked", guide=guide)


def glimpsed(
    images: Float[Tensor, "B C Y X"] | Images,
    glance: ClassifierOutput,
    view: Glimpses,
    labels: Sequence[int | None],
    names: Sequence[str],
) -> list[GlimpseTrace]:
    """Return the trace of the first copy of each image, for pictures. Large images are reduced."""
    assert glance.locations is not None
    sizes: list[Any] = [None] * len(images)
    shown: Any = images
    if isinstance(images, Images):
        sizes = [tuple(size) for size in images.extents.tolist()]
        shown = [image.float() / 255 for image in images.sampled(DRAWN)]
    probabilities = glance.log_prob[:, 0].exp()
    said = probabilities[:, -1].argmax(dim=-1).tolist()
    parts = zip(shown, glance.locations[:, 0], view.patches, labels, said, probabilities, sizes, strict=True)
    return [GlimpseTrace._make((*fields[:6], "", fields[6], names)) for fields in parts]

"""Draw pages, pictures and figures of captioned images: each photograph with the maps of its words."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from vision_attn.contracts import DecodedCaption, Encoder
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.data.films.files import open_film, strip
from vision_attn.data.images.open import Encoded, open_photograph
from vision_attn.data.images.squares import seen_extent
from vision_attn.data.photographs.annotation_vectors.vector_files import VectorEntry
from vision_attn.data.photographs.annotation_vectors.vectors import read_boxes
from vision_attn.geometry.extents import WHOLE, Extent
from vision_attn.geometry.objects import over_photograph
from vision_attn.task import Task
from vision_attn.viz.captions import items_of, write_pictures
from vision_attn.viz.figures.paper import Paper
from vision_attn.viz.page import PageItem

PICTURE = 896
"""The smallest side, in pixels, of a reduced photograph: twice the size at which pages show it."""


def write_pages(
    batch: CaptionBatch,
    described: Sequence[DecodedCaption],
    encoder: Encoder | Task,
    folder: Path,
    way: str,
    **options: Any,
) -> list[Path]:
    """Write a sheet for each image and one page of all.

    batch, described, encoder: as for `pictured`.

    way: how maps are made, in words.
    options: `overlay` and `scale`.
    """
    return write_pictures(_items(batch, described, encoder), folder, origin=f"Maps: {way}. ", **options)


def figure_of(
    batch: CaptionBatch,
    described: Sequence[DecodedCaption],
    encoder: Encoder | Task,
    paper: Paper,
    way: str,
    **options: Any,
) -> Any:
    """Draw a figure with a row for each image; see `write_pages`."""
    from vision_attn.viz.figures.maps import Options, rows_figure  # imports matplotlib

    items, titles = _items(batch, described, encoder), [caption.text for caption in described]
    return rows_figure([[item] for item in items], titles, paper, Options(**options), origin=way)


def _items(batch: CaptionBatch, described: Sequence[DecodedCaption], encoder: Encoder | Task) -> list[PageItem]:
    """Return the items of pages, pictures and figures: one for each image."""
    pictures, described, seen = zip(*pictured(batch, described, encoder), strict=True)
    noun, names = "film" if encoder.frames > 1 else "image", zip(batch.files, batch.ids, strict=True)
    titles = [Path(str(file)).name if file else f"{noun} {key}" for file, key in names]
    truth = {"references": batch.references, "boxes": batch.boxes, "seen": seen}
    return items_of(titles, pictures, described, frames=encoder.frames, **truth)


def pictured(
    batch: CaptionBatch, described: Sequence[DecodedCaption], encoder: Encoder | Task
) -> list[tuple[Image.Image, DecodedCaption, Extent]]:
    """Return the picture of each image, its caption, and the part of the picture that the encoder sees and the maps
    cover. A film becomes its frames side by side. See `_over_objects` for annotation vectors that another program
    computed.

    batch: the images, as files or tensors.
    described: their decoded captions.

    encoder: an encoder, or a task that sees photographs by its `fit`.
    """
    vectors = getattr(batch, "vectors", ()) or [None] * len(described)  # a batch of one's own may lack the field
    shown = []
    for file, image, given, caption in zip(batch.files, batch.images, vectors, described, strict=True):
        if given is not None:
            assert isinstance(encoder, Encoder)
            shown.append(_over_objects(caption, file, given, encoder))
        elif file is not None and encoder.frames > 1:
            shown.append((strip(open_film(file, encoder.frames), encoder.fit), caption, WHOLE))
        elif file is not None:
            shown.append(_with_part(file, caption, encoder))
        else:
            drawn = image if image.dim() == 3 else torch.cat([*image], dim=2)  # the frames of a film, side by side
            shown.append((Image.fromarray(drawn.permute(1, 2, 0).cpu().numpy()), caption, WHOLE))
    return shown


def _with_part(
    file: Path | Encoded, caption: DecodedCaption, encoder: Encoder | Task
) -> tuple[Image.Image, DecodedCaption, Extent]:
    photograph = open_photograph(file, at_least=PICTURE)
    return photograph, caption, seen_extent(*photograph.size, encoder.fit)


def _over_objects(
    described: DecodedCaption, file: Path | Encoded, vectors: Path | VectorEntry, encoder: Encoder
) -> tuple[Image.Image, DecodedCaption, Extent]:
    """Return the photograph and its caption for annotation vectors that another program computed. Regions on a grid are
    drawn as those of any encoder. If regions lie on no grid, the maps are drawn on the whole photograph where the boxes
    of the regions are known, and left out where they are not."""
    boxes, seen = None, described.seen
    if encoder.grid[0] == 1 and seen is not None:
        boxes = read_boxes(vectors, lambda: open_photograph(file).size)
    if boxes is not None and seen is not None:
        alpha = over_photograph(seen[:, None], boxes)
        described = described._replace(alpha=alpha, region=None, heads=None)
        return open_photograph(file, at_least=PICTURE), described, WHOLE
    if encoder.pads:
        return open_photograph(file, at_least=PICTURE), described._replace(alpha=None, region=None, heads=None), WHOLE
    return _with_part(file, described, encoder)

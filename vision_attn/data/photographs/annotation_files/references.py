"""Read captions to be scored, and the references of their images, from the files of any tool."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from vision_attn.data.photographs.annotation_files.caption_files import entries, read_photographs, recognised
from vision_attn.data.photographs.photograph import NAMINGS, Photograph, plain_name
from vision_attn.data.record_files import plain_path, read_records
from vision_attn.system.errors import UserError
from vision_attn.system.files import brief

log = logging.getLogger(__name__)
_WRITTEN: tuple[Callable[[str], str], ...] = (
    str,
    str,
    lambda name: PurePosixPath(name).name,
    lambda name: PurePosixPath(name).stem,
)
"""For each of `NAMINGS`, the function that takes the same part of an image's name in a file of results."""


def read_results(path: str | Path) -> dict[int | str, str]:
    """Read one caption for each image, from COCO's results format (a list or JSON lines of {"image_id", "caption"}),
    from another list or table that training reads, or from the lines of `caption --json` (the first caption of each).

    Raises UserError naming the file and the invalid record.
    """
    path = Path(path)
    content = recognised(path)
    if isinstance(content.value, dict):
        raise UserError(f'{path} is not a results file; expected a list, lines or a table of "image_id" and "caption"')
    captions: dict[int | str, str] = {}
    records = read_records(path, "image", "caption", content=content)
    for where, images, texts, _ in entries(path, records):
        for image in images:
            if image in captions:
                raise UserError(f"{where} is the second caption of image {brief(image)}; give one per image")
            captions[image] = texts[0] if texts else ""
    if not captions:
        raise UserError(f"{path} holds no captions")
    log.info("%s: %s, captions of %d images", path, records.shape, len(captions))
    return captions


def read_references(path: str | Path) -> list[Photograph]:
    """Read the images that have captions from any annotation file that training reads, whatever their split. Images
    need no file name. Raises UserError naming the file and the invalid record."""
    annotated = read_photographs(Path(path), by_id=True, download=True)
    captioned = [photograph for photograph in annotated.photographs if photograph.captions]
    if not captioned:
        raise UserError(f"{path} holds no captions")
    captions = sum(len(photograph.captions) for photograph in captioned)
    log.info("%s: %s, %d photographs, %d captions", path, annotated.shape, len(captioned), captions)
    return captioned


def matched(images: Sequence[int | str], photographs: Sequence[Photograph]) -> dict[int | str, Photograph]:
    """Find the photograph for each name or id of `images`; those without one are left out.

    A file names all its images in the same way: by id (a number or text), by file name, by file name without the
    folder, or also without the ending. The way that finds the most images is used; if several find as many, the first.
    Raises UserError if an image may be two photographs, or two images are the same photograph.
    """
    best: dict[int | str, list[Photograph]] = {}
    for naming, written in zip(NAMINGS, _WRITTEN, strict=True):
        named: dict[str, list[Photograph]] = {}
        for photograph in photographs:
            named.setdefault(naming(photograph), []).append(photograph)
        named.pop("", None)  # those without a file name
        texts = {image: written(plain_path(plain_name(str(image)).replace("\\", "/"))) for image in images}
        meant = {image: named[text] for image, text in texts.items() if text in named}
        best = meant if len(meant) > len(best) else best
    taken: dict[int | str, int | str] = {}
    for image, several in best.items():
        best[image] = several = [
            photograph for photograph in several if image in (photograph.id, photograph.name)
        ] or several
        if len(several) > 1:
            raise UserError(
                f"image {brief(image)} may be {brief(several[0].name)} or {brief(several[1].name)}: name the folder too"
            )
        if (other := taken.setdefault(several[0].id, image)) != image:
            raise UserError(f"{brief(other)} and {brief(image)} are the same image; give one caption per image")
    return {image: several[0] for image, several in best.items()}

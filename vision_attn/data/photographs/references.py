"""Captions to be scored, and the references of their images, from the files of any tool."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from vision_attn.data.photographs.caption_files import NAMINGS, Photograph, read_photographs
from vision_attn.data.records import TABLES, read_records
from vision_attn.system.files import brief, read_json

IMAGE_KEYS = ("image_id", "image", "file", "file_name", "filename")
"""The columns or keys that may name the image of a result, by its id or its file."""
FORMATS = (
    'a list (or lines) of {"image_id": ..., "caption": ...}, a CSV file (.csv) with the columns image and caption, '
    "or the lines of `caption --json`"
)
_WRITTEN: tuple[Callable[[str], str], ...] = (
    str,
    str,
    lambda name: PurePosixPath(name).name,
    lambda name: PurePosixPath(name).stem,
)
"""For each of `NAMINGS`, the same part of the name that a result gives its image."""


def read_results(path: str | Path) -> dict[int | str, str]:
    """Read one caption for each image: COCO's results format, a list or JSON lines of {"image_id", "caption"}; CSV with
    the columns image (or another of `IMAGE_KEYS`) and caption; or the lines of `caption --json`, of whose several
    captions the first is taken.

    Raises ValueError naming the file and the invalid record.
    """
    captions: dict[int | str, str] = {}
    for where, record in _results(Path(path)):
        image, caption = read_record(record, where)
        if image in captions:
            raise ValueError(f"{where} is the second caption of image {brief(image)}; give one per image")
        captions[image] = caption
    if not captions:
        raise ValueError(f"{path} holds no captions")
    return captions


def read_record(record: Any, where: str) -> tuple[int | str, str]:
    """Return the image and the caption of a record. Raises ValueError, starting with `where`, if it is invalid."""
    key = next((key for key in IMAGE_KEYS if key in record), None) if isinstance(record, dict) else None
    if key is None or not {"caption", "captions"} & record.keys():
        raise ValueError(f'{where} is not of the form {{"image_id": ..., "caption": ...}}')
    image, caption = record[key], record.get("caption")
    if isinstance(image, bool) or not isinstance(image, int | str):
        raise ValueError(f"{where}: {key} must be an integer or a string, not {brief(image)}")
    if "caption" not in record:
        several = record["captions"]
        if not isinstance(several, list) or not several or not isinstance(several[0], dict):
            raise ValueError(f'{where}: captions must be a list of {{"caption": ...}}, not {brief(several)}')
        caption = several[0].get("caption")
    if not isinstance(caption, str):
        raise ValueError(f"{where}: the caption must be a string, not {brief(caption)}")
    return image, caption


def _results(path: Path) -> Iterable[tuple[str, Any]]:
    """The records of a file of results, and where each is."""
    if path.suffix.lower() in TABLES:
        return read_records(path, "caption")
    records = read_json(path, lines=True)
    if isinstance(records, dict) and not records.keys().isdisjoint(IMAGE_KEYS):  # a single line
        records = [records]
    if not isinstance(records, list):
        raise ValueError(f"{path} is not a results file; expected {FORMATS}")
    return [(f"{path}: record {number}", record) for number, record in enumerate(records)]


def read_references(path: str | Path) -> list[Photograph]:
    """Read the images that have captions from any annotation file that training reads, whatever their split. Of COCO's
    format, images need no file name. Raises ValueError naming the file and the invalid record."""
    photographs, _ = read_photographs(Path(path), by_id=True)
    captioned = [photograph for photograph in photographs if photograph.captions]
    if not captioned:
        raise ValueError(f"{path} holds no captions")
    return captioned


def matched(images: Sequence[int | str], photographs: Sequence[Photograph]) -> dict[int | str, Photograph]:
    """Find the photograph that each of `images` means; those that mean none are left out.

    A file names all its images in the same way: by id (as a number or as text), by file name, without the folder, or
    without the ending too. The way that finds the most images is taken, of equal ones the first. Raises ValueError if
    an image may be two photographs, or two images are the same photograph.
    """
    found: dict[int | str, list[Photograph]] = {}
    for naming, written in zip(NAMINGS, _WRITTEN, strict=True):
        named: dict[str, list[Photograph]] = {}
        for photograph in photographs:
            named.setdefault(naming(photograph), []).append(photograph)
        named.pop("", None)  # those without a file name
        texts = {image: written(str(image).replace("\\", "/")) for image in images}
        meant = {image: named[text] for image, text in texts.items() if text in named}
        found = meant if len(meant) > len(found) else found
    taken: dict[int | str, int | str] = {}
    for image, several in found.items():
        found[image] = several = [one for one in several if image in (one.id, one.name)] or several
        if len(several) > 1:
            raise ValueError(
                f"image {brief(image)} may be {brief(several[0].name)} or {brief(several[1].name)}: name the folder too"
            )
        if (other := taken.setdefault(several[0].id, image)) != image:
            raise ValueError(f"{brief(other)} and {brief(image)} are the same image; give one caption per image")
    return {image: several[0] for image, several in found.items()}

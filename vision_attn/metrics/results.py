"""Read and write captions in the formats of COCO results and COCO annotations."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vision_attn.files import brief, read_json, replacing


def write_results(path: str | Path, captions: Mapping[int | str, str]) -> None:
    """Write one caption per image id in the COCO results format: `[{"image_id": ..., "caption": ...}]`."""
    records = [{"image_id": image, "caption": caption} for image, caption in captions.items()]
    text = json.dumps(records, ensure_ascii=False, indent=0) + "\n"
    with replacing(path) as temporary:
        # An id may hold a lone surrogate, which UTF-8 cannot encode; it is written as JSON's escape.
        temporary.write_bytes(text.encode(errors="backslashreplace"))


def read_results(path: str | Path) -> dict[int | str, str]:
    """Read the caption of each image id from a COCO results file, or from JSON lines of the same records.

    Raises ValueError naming the file and the invalid record.
    """
    records = read_json(path, lines=True)
    if isinstance(records, dict) and "image_id" in records:  # a single line
        records = [records]
    if not isinstance(records, list):
        raise ValueError(f'{path} is not a COCO results file: it must be a list of {{"image_id": ..., "caption": ...}}')
    captions: dict[int | str, str] = {}
    for number, record in enumerate(records):
        image, caption = read_record(record, f"{path}: record {number}")
        if image in captions:
            raise ValueError(
                f"{path}: record {number} is the second caption of image {brief(image)}; give one per image"
            )
        captions[image] = caption
    if not captions:
        raise ValueError(f"{path} holds no captions")
    return captions


def read_references(path: str | Path) -> dict[int | str, list[str]]:
    """Read all captions of each image id from a COCO annotation file. ValueError names the file and the record."""
    content = read_json(path)
    records = content.get("annotations") if isinstance(content, dict) else None
    if not isinstance(records, list):
        raise ValueError(f'{path} is not a COCO annotation file: it has no list under "annotations"')
    captions: dict[int | str, list[str]] = {}
    for number, record in enumerate(records):
        image, caption = read_record(record, f"{path}: annotation {number}")
        captions.setdefault(image, []).append(caption)
    if not captions:
        raise ValueError(f"{path} holds no captions")
    return captions


def read_record(record: Any, where: str) -> tuple[int | str, str]:
    """Return the image id and the caption of a record. Raises ValueError, starting with `where`, if it is invalid."""
    if not isinstance(record, dict) or not {"image_id", "caption"} <= record.keys():
        raise ValueError(f'{where} is not of the form {{"image_id": ..., "caption": ...}}')
    image, caption = record["image_id"], record["caption"]
    if isinstance(image, bool) or not isinstance(image, int | str):
        raise ValueError(f"{where}: image_id must be an integer or a string, not {brief(image)}")
    if not isinstance(caption, str):
        raise ValueError(f"{where}: the caption must be a string, not {brief(caption)}")
    return image, caption

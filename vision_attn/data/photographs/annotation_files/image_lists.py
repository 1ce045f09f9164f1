"""Read JSON objects that list images and their captions, in the shapes of COCO and Karpathy."""

import logging
from pathlib import Path
from typing import Any

from vision_attn.data.photographs.annotation_files.caption_values import Marks, texts
from vision_attn.data.photographs.photograph import Photograph, checked_name, one_line
from vision_attn.system.errors import UserError
from vision_attn.system.files import brief

log = logging.getLogger(__name__)


def expected(path: Path) -> str:
    return (
        f"{path}: not a caption file; expected COCO's format, {{'images': [{{'id', 'file_name'}}], 'annotations': "
        "[{'image_id', 'caption'}]}; Karpathy's, {'images': [{'filename', 'split', 'sentences': [{'raw'}]}]}; {image: "
        "captions}; or a table, JSON lines or a list of image, caption and, optionally, split"
    )


def coco(path: Path, images: list[dict], notes: Any) -> list[Photograph]:
    said: dict[int | str, list[str]] = {}
    for number, image in enumerate(images):
        key = _id(path, f"image {number}", _field(path, f"image {number}", image, "id"))
        if key in said:
            raise UserError(f"{path}: image id {brief(key)} occurs twice; ids must be unique")
        said[key] = []
    unlisted, named, marks = 0, {str(key) for key in said}, Marks(path)
    for number, note in enumerate(_list(path, "annotations", notes)):
        if marks.on(note):
            continue
        where = f"annotation {number}"
        key = _id(path, where, _field(path, where, note, "image_id"))
        captions = _captions(path, where, _field(path, where, note, "caption"))
        if key in said:
            said[key] += captions
        elif str(key) in named:
            expected_type = "number, not a text" if isinstance(key, str) else "text, not a number"
            raise UserError(f"{path}: {where} has image_id {brief(key)}, but the id of that image is a {expected_type}")
        else:
            unlisted += 1
    marks.told()
    if unlisted:
        log.warning("%s: captions of images that the file does not list, which are left out: %d", path, unlisted)
    return [
        Photograph(
            key, checked_name(path, f"image {number}", _field(path, f"image {number}", image, "file_name")), captions
        )
        for number, (image, (key, captions)) in enumerate(zip(images, said.items(), strict=True))
    ]


def coco_by_id(path: Path, images: Any, notes: list) -> list[Photograph]:
    names: dict[int | str, str] = {}
    for image in images if isinstance(images, list) else ():
        key, name = (image.get("id"), image.get("file_name")) if isinstance(image, dict) else (None, None)
        if isinstance(key, int | str) and isinstance(name, str):
            names[key] = name.replace("\\", "/")
    said: dict[int | str, list[str]] = {}
    marks = Marks(path)
    for number, note in enumerate(notes):
        if marks.on(note):
            continue
        where = f"annotation {number}"
        key = _id(path, where, _field(path, where, note, "image_id"))
        said.setdefault(key, []).extend(_captions(path, where, _field(path, where, note, "caption")))
    marks.told()
    return [Photograph(key, names.get(key, ""), captions) for key, captions in said.items()]


def karpathy(path: Path, images: list[dict]) -> list[Photograph]:
    photographs, seen, marks = [], set(), Marks(path)
    for number, image in enumerate(images):
        where = f"image {number}"
        file = checked_name(path, where, _field(path, where, image, "filename"))
        key = _id(path, where, image.get("cocoid", image.get("imgid", file)))
        if key in seen:
            raise UserError(f"{path}: image id {brief(key)} occurs twice; ids must be unique")
        seen.add(key)
        if (folder := image.get("filepath")) not in (None, ""):
            file = str(Path(checked_name(path, where, folder)) / file)
        captions = [
            caption
            for said in _list(path, f"sentences of {where}", image["sentences"])
            if not marks.on(said)
            for caption in _captions(path, where, _field(path, where, said, "raw"))
        ]
        photographs.append(Photograph(key, file, captions))
    marks.told()
    return photographs


def _field(path: Path, where: str, record: Any, name: str) -> Any:
    if not isinstance(record, dict) or name not in record:
        raise UserError(f"{expected(path)}; {where} lacks {name!r}")
    return record[name]


def _list(path: Path, what: str, value: Any) -> list:
    if not isinstance(value, list):
        raise UserError(f"{path}: the {what} must be a list, not {brief(value)}")
    return value


def _id(path: Path, where: str, value: Any) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UserError(f"{path}: the id of {where} must be an integer or a string, not {brief(value)}")
    return value


def _captions(path: Path, where: str, value: Any) -> list[str]:
    """Check a caption, or a list of captions, and make one line of each."""
    if not isinstance(value, str | list):
        raise UserError(f"{path}: the caption of {where} must be a string, not {brief(value)}")
    return [*map(one_line, texts(f"{path}: {where}", value))]

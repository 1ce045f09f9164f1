"""Read the captions of photographs from files in COCO's and Karpathy's formats, CSV and JSON lines."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.data.records import TABLES, read_records
from vision_attn.system.files import brief, read_json

LISTS = (*TABLES, ".jsonl")
"""Endings of files with a record for each caption."""
LONGEST = 100_000
"""Characters that are kept of a caption."""
_SURROGATE = re.compile("[\ud800-\udfff]")
log = logging.getLogger(__name__)


class Photograph(NamedTuple):
    """One image of an annotation file, with its captions."""

    id: int | str
    name: str
    """Path relative to the image folder; after `locate`, relative to the common parent of the folders of all splits."""
    captions: list[str]
    file: Path | None = None
    """Set by `photograph_store.locate`."""


NAMINGS: tuple[Callable[[Photograph], str], ...] = (
    lambda photograph: str(photograph.id),
    lambda photograph: photograph.name,
    lambda photograph: Path(photograph.name).name,
    lambda photograph: Path(photograph.name).stem,
)
"""The ways in which a file may name a photograph: by its id, by its name, without the folder, and without the ending
too."""


def read_photographs(path: Path, *, by_id: bool = False) -> tuple[list[Photograph], list[Any]]:
    """Read all photographs of an annotation file, in its order, and what it says is the split of each.

    path: JSON in COCO's or Karpathy's format; or CSV whose first row names the columns image, caption and, optionally,
        split; or JSON lines of objects with these keys. There an image has a line for each of its captions.
    by_id: of COCO's format, take every image that has a caption, also if the file does not list it or gives it no file
        name. Its name is then empty: it has captions to compare with, but no photograph to train on.

    Raises ValueError naming the file and the invalid record.
    """
    if has_records(path):
        return _listed(path)
    record = read_json(path)
    if by_id and isinstance(record, dict) and isinstance(record.get("annotations"), list):
        photographs = _coco_by_id(path, record.get("images"), record["annotations"])
        return photographs, [None] * len(photographs)
    return _parsed(path, record)


def has_records(path: Path) -> bool:
    """Whether a file has a record for each caption, rather than a list of images."""
    return path.suffix.lower() in LISTS


def _expected(path: Path) -> str:
    return (
        f"{path}: not a caption file; expected COCO's format, {{'images': [{{'id', 'file_name'}}], 'annotations': "
        "[{'image_id', 'caption'}]}, or Karpathy's, {'images': [{'filename', 'split', 'sentences': [{'raw'}]}]}; "
        "a CSV file (.csv), or JSON lines or a list (.jsonl), has image, caption and split"
    )


def _parsed(path: Path, record: Any) -> tuple[list[Photograph], list[Any]]:
    """The photographs of a JSON file that lists its images, and what it says is the split of each."""
    images = record.get("images") if isinstance(record, dict) else None
    if not isinstance(images, list) or not images or not all(isinstance(image, dict) for image in images):
        raise ValueError(_expected(path))
    if "annotations" in record:
        photographs = _coco(path, images, record["annotations"])
    elif all("sentences" in image for image in images):
        photographs = _karpathy(path, images)
    else:
        raise ValueError(_expected(path))
    return photographs, [image.get("split") for image in images]


def _listed(path: Path) -> tuple[list[Photograph], list[Any]]:
    """The photographs of a file with a record for each caption, and what it says is the split of each."""
    captions: dict[str, list[str]] = {}
    splits: dict[str, Any] = {}
    for where, record in read_records(path, "image", "caption"):
        for key in ("image", "caption"):
            if record.get(key) is None:
                raise ValueError(f"{where} has no {key}; each must have image and caption")
            if not isinstance(record[key], str):
                raise ValueError(f"{where}: {key} must be text, not {brief(record[key])}")
        name, split = _name(path, where.removeprefix(f"{path}: "), record["image"]), record.get("split")
        if splits.setdefault(name, split) != split:
            raise ValueError(f"{where}: {brief(name)} has two splits, {brief(splits[name])} and {brief(split)}")
        captions.setdefault(name, []).append(one_line(record["caption"]))
    if not captions:
        raise ValueError(f"{path} has no captions")
    return [Photograph(name, name, said) for name, said in captions.items()], [*splits.values()]


def _coco(path: Path, images: list[dict], notes: Any) -> list[Photograph]:
    said: dict[int | str, list[str]] = {}
    for number, image in enumerate(images):
        key = _id(path, f"image {number}", _field(path, f"image {number}", image, "id"))
        if key in said:
            raise ValueError(f"{path}: image id {brief(key)} occurs twice; ids must be unique")
        said[key] = []
    unlisted, texts = 0, {str(key) for key in said}
    for number, note in enumerate(_list(path, "annotations", notes)):
        where = f"annotation {number}"
        key = _id(path, where, _field(path, where, note, "image_id"))
        caption = _caption(path, where, _field(path, where, note, "caption"))
        if key in said:
            said[key].append(caption)
        elif str(key) in texts:
            kind = "number, not a text" if isinstance(key, str) else "text, not a number"
            raise ValueError(f"{path}: {where} has image_id {brief(key)}, but the id of that image is a {kind}")
        else:
            unlisted += 1
    if unlisted:
        log.warning("%s: captions of images that the file does not list, which are left out: %d", path, unlisted)
    return [
        Photograph(key, _name(path, f"image {number}", _field(path, f"image {number}", image, "file_name")), captions)
        for number, (image, (key, captions)) in enumerate(zip(images, said.items(), strict=True))
    ]


def _coco_by_id(path: Path, images: Any, notes: list) -> list[Photograph]:
    names: dict[int | str, str] = {}
    for image in images if isinstance(images, list) else ():
        key, name = (image.get("id"), image.get("file_name")) if isinstance(image, dict) else (None, None)
        if isinstance(key, int | str) and isinstance(name, str):
            names[key] = name.replace("\\", "/")
    said: dict[int | str, list[str]] = {}
    for number, note in enumerate(notes):
        where = f"annotation {number}"
        key = _id(path, where, _field(path, where, note, "image_id"))
        said.setdefault(key, []).append(_caption(path, where, _field(path, where, note, "caption")))
    return [Photograph(key, names.get(key, ""), captions) for key, captions in said.items()]


def _karpathy(path: Path, images: list[dict]) -> list[Photograph]:
    photographs, seen = [], set()
    for number, image in enumerate(images):
        where = f"image {number}"
        file = _name(path, where, _field(path, where, image, "filename"))
        key = _id(path, where, image.get("cocoid", image.get("imgid", file)))
        if key in seen:
            raise ValueError(f"{path}: image id {brief(key)} occurs twice; ids must be unique")
        seen.add(key)
        if (folder := image.get("filepath")) not in (None, ""):
            file = str(Path(_name(path, where, folder)) / file)
        captions = [
            _caption(path, where, _field(path, where, said, "raw"))
            for said in _list(path, f"sentences of {where}", image["sentences"])
        ]
        photographs.append(Photograph(key, file, captions))
    return photographs


def _field(path: Path, where: str, record: Any, name: str) -> Any:
    if not isinstance(record, dict) or name not in record:
        raise ValueError(f"{_expected(path)}; {where} lacks {name!r}")
    return record[name]


def _list(path: Path, what: str, value: Any) -> list:
    if not isinstance(value, list):
        raise ValueError(f"{path}: the {what} must be a list, not {brief(value)}")
    return value


def _id(path: Path, where: str, value: Any) -> int | str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{path}: the id of {where} must be an integer or a string, not {brief(value)}")
    return value


def _caption(path: Path, where: str, value: Any) -> str:
    """Check a caption, and make one line of it."""
    if not isinstance(value, str):
        raise ValueError(f"{path}: the caption of {where} must be a string, not {brief(value)}")
    return one_line(value)


def one_line(caption: str) -> str:
    """Join the lines of a caption, because line breaks would break the tools that score it, and cut it to `LONGEST`
    characters, because the tokenizer fails for some captions of millions.

    A lone surrogate (half a character, such as the JSON escape \\ud800) becomes a space: UTF-8 cannot encode it.
    """
    return " ".join(_SURROGATE.sub(" ", caption[:LONGEST]).split())


def _name(path: Path, where: str, value: Any) -> str:
    """A path below the image folder, with slashes. Raises ValueError if it could lead out of the folder."""
    if not isinstance(value, str):
        raise ValueError(f"{path}: the file name of {where} must be a string, not {brief(value)}")
    name = " ".join(value.splitlines()).strip()
    parts = re.split(r"[/\\]", name)
    if not name or "\0" in name or not parts[0] or ".." in parts or re.match("[A-Za-z]:", name):
        alone = f": write {parts[-1]}" if parts[-1].strip(". ") else ""
        raise ValueError(
            f"{path}: the file name of {where} is {brief(value)}; it must be a path below the image folder, not empty, "
            f"not absolute, and without `..`{alone}"
        )
    return name.replace("\\", "/")

"""Find photographs and their labels, from a folder for each class or from a file of labels."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vision_attn.data.images.lazy import OPENED
from vision_attn.data.labelled.boxes import Box, box_of, check_pixels
from vision_attn.data.record_files import (
    check_inside,
    hashed_split,
    plain_path,
    read_records,
    say_endings,
    with_endings,
)
from vision_attn.system.errors import UserError
from vision_attn.system.files import brief, find
from vision_attn.system.splits import SPLITS, split_named


class Labelled(NamedTuple):
    """A photograph with the name of its class and the box of its object."""

    file: Path
    label: str
    box: Box | None = None
    """The box in pixels of the upright photograph; None if it is unknown."""


class _Record(NamedTuple):
    """An image before photographs are divided into splits."""

    name: str
    label: str
    split: str | None
    box: Box | None = None


def find_labelled(images: str, labels: str | None = None) -> dict[str, list[Labelled]]:
    """Return the photographs of each split.

    images: a folder. Without `labels`, its subfolders are classes, or splits with a subfolder for each class. If there
        are no classes, the images in the folder, or in the folder of a split, have the label "".
    labels: a CSV file whose first line names the columns image, label and, optionally, split; or JSON lines of objects
        with these keys. Names of images are relative to the folder `images`. The place of the object may be given as
        x0, y0, x1, y1 (or xmin, ymin, xmax, ymax), or as its centre x, y, in pixels of the upright photograph; empty if
        unknown.

    If no photograph has a split, a tenth is for validation and a tenth for testing, chosen by a hash of the names, so
    that they stay the same when photographs are added. If there are splits but no val, a tenth of the training
    photographs is for validation. Raises UserError naming the file and the record that is wrong.
    """
    folder = find(images)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder of images")
    records = list(_from_folder(folder) if labels is None else _from_file(folder, find(labels)))
    if not records:
        raise UserError(
            f"{labels or folder} has no images: expected {folder}/CLASS/IMAGE, {folder}/SPLIT/CLASS/IMAGE, or a file "
            "`labels` of image,label"
        )
    check_pixels(labels, [record.box for record in records if record.box is not None])
    given = {record.split for record in records}
    splits: dict[str, list[Labelled]] = {name: [] for name in SPLITS}
    for name, label, split, box in records:
        if given == {None}:
            split = hashed_split(name)
        elif split in (None, "train") and "val" not in given and hashed_split(name) == "val":
            split = "val"
        splits[split or "train"].append(Labelled(folder / name, label, box))
    if not splits["train"]:
        raise UserError(f"{labels or folder} has no image for training")
    return splits


def _from_folder(folder: Path) -> Iterator[_Record]:
    """Yield the images, sorted."""
    below = {split_named(name): folder / name for name in _folders(folder)}
    places = {split: below[split] for split in SPLITS if split in below} if "train" in below else {None: folder}
    for split, place in places.items():
        labels = _folders(place)
        for label in labels or [""]:
            for parent, folders, names in os.walk(place / label):
                folders.sort()
                for name in sorted(names):
                    if Path(name).suffix.lower() in OPENED and not name.startswith("."):
                        yield _Record((Path(parent) / name).relative_to(folder).as_posix(), label, split)


def _folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _from_file(folder: Path, path: Path) -> Iterator[_Record]:
    seen: set[str] = set()
    records = read_records(path, "image", "label").records
    names = [plain_path(str(record.get("image"))) for _, record in records]
    whole = with_endings(folder, [name for name in names if not os.path.isfile(folder / name)], OPENED)
    say_endings(whole, "images")
    for where, record in records:
        for key in ("image", "label"):
            if not isinstance(record.get(key), str | int) or not str(record[key]).strip():
                raise UserError(f"{where} has no {key}; each must have image and label, as image,label in CSV")
        name, label = plain_path(str(record["image"])), str(record["label"]).strip()
        split = split_named(record.get("split")) or None
        if split not in (None, *SPLITS):
            raise UserError(f"{where} has split {brief(split)}: write {', '.join(SPLITS)}, or leave it empty")
        check_inside(where, name, folder)
        name = whole.get(name, name)
        if name in seen:
            raise UserError(f"{where} names {name} a second time")
        seen.add(name)
        if not os.path.isfile(folder / name):
            raise UserError(f"{where} names {folder / name}, which does not exist: check data.images")
        yield _Record(name, label, split, box_of(where, record))

"""Find photographs with a label each: in a folder for each class, or in a file of labels."""

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
    """A photograph, the name of its class, and where the object is."""

    file: Path
    label: str
    box: Box | None = None
    """The box in pixels of the upright photograph; None if it is unknown."""


class _Record(NamedTuple):
    """An image before splits are made."""

    name: str
    label: str
    split: str | None
    box: Box | None = None


def find_labelled(images: str, labels: str | None = None) -> dict[str, list[Labelled]]:
    """Return the photographs of each split.

    images: a folder. Without `labels`, its subfolders are classes, or splits with a subfolder for each class. Images
        that lie in the folder itself, or in that of a split, without any class, have the label "".
    labels: a CSV file whose first line names the columns image, label and, optionally, split; or JSON lines of objects
        with these keys. Names of images are relative to the folder `images`. Where the object is may be given as
        x0, y0, x1, y1 (or xmin, ymin, xmax, ymax), or as its centre x, y: pixels of the photograph as it is shown,
        upright. Images without are left empty.

    Where no photograph has a split, a tenth are for validation and a tenth for testing, chosen by a hash of their
    names, so that they stay the same when photographs are added. Where there are splits, but not val, a tenth of the
    training photographs are for validation. Raises UserError naming the file and the record that is wrong.
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

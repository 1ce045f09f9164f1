"""Caption files: COCO's format and Karpathy's, with their splits."""

import io
import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

SPLITS = ("train", "val", "test")
log = logging.getLogger(__name__)


class Photograph(NamedTuple):
    """One image of an annotation file, with all that people said about it."""

    id: int | str
    name: str
    """The path below the image folder; once located, below the folder that holds the folders of all splits."""
    captions: list[str]
    file: Path | None = None
    """Where it lies, once it has been located."""


def read_annotations(
    path: Path, *, splits: Path | None = None, split: str | None = None
) -> dict[str, list[Photograph]]:
    """The photographs of an annotation file by split, in its order; "restval" counts as "train".

    The split of an image comes from `split` (the file holds that split alone), else from the file `splits`, else from
    the image's own `split` field; images of another split or of none are left out. Raises ValueError naming the file
    and the record that is wrong.
    """
    record = _load(path)
    images = record.get("images") if isinstance(record, dict) else None
    if not isinstance(images, list) or not images or not all(isinstance(image, dict) for image in images):
        raise ValueError(_expected(path))
    if "annotations" in record:
        photographs = _coco(path, record)
    elif all("sentences" in image for image in images):
        photographs = _karpathy(path, images)
    else:
        raise ValueError(_expected(path))

    if split is not None:
        named = [split] * len(photographs)
    elif splits is not None:
        named = _named_by_file(path, splits, photographs)
    else:
        named = [_split_name(path, image.get("split")) for image in images]
        if not any(named):
            raise ValueError(
                f"{path}: no image has a `split` field of {', '.join(SPLITS)}: give `splits`, a JSON file of "
                "{split: [image names]}, or one annotation file per split"
            )
    found: dict[str, list[Photograph]] = {name: [] for name in SPLITS}
    for photograph, name in zip(photographs, named, strict=True):
        if name is not None:
            found[name].append(photograph)
    return {name: _captioned(path, name, members) for name, members in found.items()}


def locate(photographs: Mapping[str, Sequence[Photograph]], folders: Mapping[str, Path]) -> dict[str, list[Photograph]]:
    """The photographs of each split whose files exist below the split's folder; the others are counted and left out.

    Raises ValueError where a split has no folder, a file is in two splits, or none exists at all.
    """
    root = os.path.commonpath([folder.absolute() for folder in folders.values()])
    found: dict[str, list[Photograph]] = {split: [] for split in photographs}
    split_of: dict[str, str] = {}
    missing = []
    for split, members in photographs.items():
        if members and split not in folders:
            raise ValueError(f"no folder of images is given for split {split}")
        below = Path(os.path.relpath(folders[split].absolute(), root)) if members else Path()
        for photograph in members:
            name, file = (below / photograph.name).as_posix(), folders[split] / photograph.name
            if split_of.setdefault(name, split) != split:
                raise ValueError(f"{file} is in two splits, {split_of[name]} and {split}")
            if file.is_file():
                found[split].append(photograph._replace(name=name, file=file))
            else:
                missing.append(file)
    if not any(found.values()):
        raise ValueError(f"no photograph was found, not even {missing[0] if missing else root}: check `images`")
    if missing:
        log.warning("%d photographs do not exist and are left out, such as %s", len(missing), missing[0])
    return found


def _load(path: Path) -> Any:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:  # not JSON, or not UTF-8
        raise ValueError(f"{path}: not a JSON file ({error})") from error


def _expected(path: Path) -> str:
    return (
        f"{path}: not a caption file; expected COCO's format, {{'images': [{{'id', 'file_name'}}], 'annotations': "
        "[{'image_id', 'caption'}]}, or Karpathy's, {'images': [{'filename', 'split', 'sentences': [{'raw'}]}]}"
    )


def _coco(path: Path, record: Mapping[str, Any]) -> list[Photograph]:
    from pycocotools.coco import COCO

    coco = COCO()
    coco.dataset = record
    try:
        _refuse_twice(path, (image["id"] for image in record["images"]))  # the index would keep the last, silently
        with redirect_stdout(io.StringIO()):
            coco.createIndex()
        strays = sum(len(coco.imgToAnns[image]) for image in coco.imgToAnns.keys() - coco.imgs.keys())
        if strays:
            log.warning("%s: %d captions of images that the file does not list are left out", path, strays)
        return [
            Photograph(
                image["id"],
                _text(path, f"file name of image {image['id']}", image["file_name"]),
                [
                    _text(path, f"caption of annotation {note.get('id')}", note["caption"])
                    for note in coco.imgToAnns.get(image["id"], [])
                ],
            )
            for image in record["images"]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{_expected(path)}; something lacks {error}") from error


def _karpathy(path: Path, images: list[dict]) -> list[Photograph]:
    try:
        _refuse_twice(path, (image.get("cocoid", image.get("imgid", image["filename"])) for image in images))
        return [
            Photograph(
                image.get("cocoid", image.get("imgid", image["filename"])),
                str(Path(image.get("filepath", "")) / _text(path, "filename", image["filename"])),
                [_text(path, f"sentence of {image['filename']}", said["raw"]) for said in image["sentences"]],
            )
            for image in images
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{_expected(path)}; something lacks {error}") from error


def _text(path: Path, what: str, value: Any) -> str:
    """`value` on one line: line breaks of any kind inside a caption would break the tools that score them."""
    if not isinstance(value, str):
        raise ValueError(f"{path}: the {what} is {value!r}, not a text")
    return " ".join(value.split())


def _split_name(path: Path, name: Any) -> str | None:
    if name is None or name in ("", "unused"):
        return None
    if name == "restval":
        return "train"
    if name not in SPLITS:
        raise ValueError(f"{path}: unknown split {name!r}; expected {', '.join(SPLITS)}, restval or unused")
    return name


def _named_by_file(path: Path, splits: Path, photographs: list[Photograph]) -> list[str | None]:
    """The split of each photograph by a JSON file of split name -> image ids, names, or names without ending."""
    members = _load(splits)
    if not isinstance(members, dict) or not all(isinstance(names, list) for names in members.values()):
        raise ValueError(
            f"{splits}: expected JSON of the form {{'train': [names or ids], 'val': [...], 'test': [...]}}"
        )
    split_of: dict[str, str | None] = {}
    for name, entries in members.items():
        split = _split_name(splits, name)
        for entry in map(str, entries):
            if split_of.setdefault(entry, split) != split:
                raise ValueError(f"{splits}: {entry} is in two splits, {split_of[entry]} and {split}")

    keys = (
        lambda photograph: str(photograph.id),
        lambda photograph: photograph.name,
        lambda photograph: Path(photograph.name).name,
        lambda photograph: Path(photograph.name).stem,
    )
    # All entries are of one kind, ids or names: the kind that most photographs answer to.
    key = max(keys, key=lambda key: sum(key(photograph) in split_of for photograph in photographs))
    unknown = list(split_of.keys() - {key(photograph) for photograph in photographs})
    if len(unknown) == len(split_of):
        raise ValueError(f"{splits}: none of its entries ({', '.join(unknown[:3])} ...) is an image of {path}")
    if unknown:
        log.warning("%s: %d entries are no image of %s, such as %s", splits, len(unknown), path, min(unknown))
    return [split_of.get(key(photograph)) for photograph in photographs]


def _captioned(path: Path, split: str, photographs: list[Photograph]) -> list[Photograph]:
    """Those with captions; the others are counted. An error where that leaves none of several."""
    captioned = []
    for photograph in photographs:
        captions = [caption for caption in photograph.captions if caption]
        if captions:
            captioned.append(photograph._replace(captions=captions))
    bare = len(photographs) - len(captioned)
    if bare:
        first = next(photograph.name for photograph in photographs if not any(photograph.captions))
        if not captioned:
            raise ValueError(f"{path}: no image of split {split} has a caption, such as {first}")
        log.warning("%s: %d images of split %s have no caption and are left out, such as %s", path, bare, split, first)
    return captioned


def _refuse_twice(path: Path, values: Iterable[Any]) -> None:
    value, count = max(Counter(values).items(), key=lambda item: item[1])
    if count > 1:
        raise ValueError(f"{path}: image id {value!r} occurs {count} times; ids must be unique")

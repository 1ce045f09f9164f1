"""Read caption files in COCO's and Karpathy's formats, or CSV and JSON lines, with their splits."""

import logging
import re
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.console import printable
from vision_attn.data.records import divided, read_records, split_named
from vision_attn.files import brief, read_json
from vision_attn.task import SPLITS

LISTS = (".csv", ".tsv", ".jsonl")
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


def read_annotations(
    path: Path, *, splits: Path | None = None, split: str | None = None
) -> dict[str, list[Photograph]]:
    """Read the photographs of an annotation file by split, in the file's order; "restval" counts as "train".

    path: JSON in COCO's or Karpathy's format; or CSV whose first row names the columns image, caption and, optionally,
        split; or JSON lines of objects with these keys. There an image has a line for each of its captions.

    The split of an image is `split` if given (for a file with one split), else it comes from the file `splits`, else
    from the image's `split` field. Images without a split are left out. Of CSV or JSON lines in which no image has a
    split, a tenth of the images are for validation and a tenth for testing. Raises ValueError naming the file and the
    invalid record.
    """
    listed = path.suffix.lower() in LISTS
    photographs, given = _listed(path) if listed else _parsed(path)
    if split is not None:
        named = [split] * len(photographs)
    elif splits is not None:
        named = _splits_from_file(path, splits, photographs)
    else:
        named = [_split_name(path, name) for name in given]
        without = [photograph.name for photograph, name in zip(photographs, given, strict=True) if not name]
        if not any(named) and listed:
            named = divided([photograph.name for photograph in photographs])
        elif not any(named):
            raise ValueError(
                f'{path}: no image has a `split` field of {", ".join(SPLITS)}: add "split": "train" and so on to each, '
                "or give data.splits, a JSON file of {split: [image names]}, or one annotation file per split"
            )
        elif without:
            some = printable(without[0])
            log.warning("%s: images that have no `split` and are left out: %d, such as %s", path, len(without), some)
    found: dict[str, list[Photograph]] = {name: [] for name in SPLITS}
    for photograph, name in zip(photographs, named, strict=True):
        if name is not None:
            found[name].append(photograph)
    return {name: _with_captions(path, name, members) for name, members in found.items()}


def _expected(path: Path) -> str:
    return (
        f"{path}: not a caption file; expected COCO's format, {{'images': [{{'id', 'file_name'}}], 'annotations': "
        "[{'image_id', 'caption'}]}, or Karpathy's, {'images': [{'filename', 'split', 'sentences': [{'raw'}]}]}; "
        "a CSV file (.csv), or JSON lines or a list (.jsonl), has image, caption and split"
    )


def _parsed(path: Path) -> tuple[list[Photograph], list[Any]]:
    """The photographs of a JSON file, and what it says is the split of each."""
    record = read_json(path)
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


def _split_name(path: Path, name: Any) -> str | None:
    name = split_named(name)
    if name is None or name in ("", "unused"):
        return None
    if name == "restval":
        return "train"
    if name not in SPLITS:
        raise ValueError(f"{path}: unknown split {brief(name)}; expected {', '.join(SPLITS)}, restval or unused")
    return name


def _splits_from_file(path: Path, splits: Path, photographs: list[Photograph]) -> list[str | None]:
    """Look up the split of each photograph in a JSON file {split: [ids, names, or names without extension]}."""
    members = read_json(splits)
    if not isinstance(members, dict) or not all(isinstance(names, list) for names in members.values()):
        raise ValueError(
            f"{splits}: expected JSON of the form {{'train': [names or ids], 'val': [...], 'test': [...]}}"
        )
    split_of: dict[str, str | None] = {}
    for name, entries in members.items():
        split = _split_name(splits, name)
        for entry in entries:
            if isinstance(entry, bool) or not isinstance(entry, int | str):
                raise ValueError(f"{splits}: {brief(entry)} in {brief(name)} is neither an image name nor an id")
            if split_of.setdefault(str(entry), split) != split:
                raise ValueError(f"{splits}: {entry} is in two splits, {split_of[str(entry)]} and {split}")

    keys = (
        lambda photograph: str(photograph.id),
        lambda photograph: photograph.name,
        lambda photograph: Path(photograph.name).name,
        lambda photograph: Path(photograph.name).stem,
    )
    # All entries are of one kind, ids or names: choose the kind that matches the most photographs.
    key = max(keys, key=lambda key: sum(key(photograph) in split_of for photograph in photographs))
    unknown = list(split_of.keys() - {key(photograph) for photograph in photographs})
    if len(unknown) == len(split_of):
        some = ", ".join(map(brief, unknown[:3]))
        raise ValueError(f"{splits}: none of its entries ({some} ...) is an image of {path}")
    if unknown:
        log.warning("%s: %d entries are not images of %s, such as %s", splits, len(unknown), path, brief(min(unknown)))
    return [split_of.get(key(photograph)) for photograph in photographs]


def _with_captions(path: Path, split: str, photographs: list[Photograph]) -> list[Photograph]:
    """Drop photographs without captions and log their number. Raises ValueError if all are dropped."""
    captioned = []
    for photograph in photographs:
        captions = [caption for caption in photograph.captions if _says_something(caption)]
        if captions:
            captioned.append(photograph._replace(captions=captions))
    bare = len(photographs) - len(captioned)
    empty = sum(len(one.captions) for one in photographs) - sum(len(one.captions) for one in captioned)
    if empty:
        log.warning("%s: captions of split %s without a word, which are left out: %d", path, split, empty)
    if bare:
        first = next(
            printable(photograph.name)
            for photograph in photographs
            if not any(map(_says_something, photograph.captions))
        )
        if not captioned:
            raise ValueError(f"{path}: no image of split {split} has a caption, such as {first}")
        log.warning(
            "%s: images of split %s that have no caption and are left out: %d, such as %s", path, split, bare, first
        )
    return captioned


def _says_something(caption: str) -> bool:
    """Whether a caption has a letter, a digit or a pictograph."""
    kinds = map(unicodedata.category, caption)
    return any(kind[0] in "LN" or kind == "So" for kind in kinds)

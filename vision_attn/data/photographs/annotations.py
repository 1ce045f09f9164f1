"""The photographs of annotation files by split."""

import logging
import unicodedata
from pathlib import Path
from typing import Any

from vision_attn.data.photographs.caption_files import NAMINGS, Photograph, has_records, read_photographs
from vision_attn.data.records import divided, split_named
from vision_attn.system.console import printable
from vision_attn.system.files import brief, read_json
from vision_attn.task import SPLITS

log = logging.getLogger(__name__)


def read_annotations(
    path: Path, *, splits: Path | None = None, split: str | None = None
) -> dict[str, list[Photograph]]:
    """Read the photographs of an annotation file by split, in the file's order; "restval" counts as "train".

    path: a file in one of the formats that `read_photographs` knows.

    The split of an image is `split` if given (for a file with one split), else it comes from the file `splits`, else
    from the image's `split` field. Images without a split are left out. Of CSV or JSON lines in which no image has a
    split, a tenth of the images are for validation and a tenth for testing. Raises ValueError naming the file and the
    invalid record.
    """
    photographs, given = read_photographs(path)
    if split is not None:
        named = [split] * len(photographs)
    elif splits is not None:
        named = _splits_from_file(path, splits, photographs)
    else:
        named = [_split_name(path, name) for name in given]
        without = [photograph.name for photograph, name in zip(photographs, given, strict=True) if not name]
        if not any(named) and has_records(path):
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

    # All entries are of one kind, ids or names: choose the kind that matches the most photographs.
    key = max(NAMINGS, key=lambda key: sum(key(photograph) in split_of for photograph in photographs))
    unknown = list(split_of.keys() - {key(photograph) for photograph in photographs})
    if len(unknown) == len(split_of):
        some = ", ".join(map(brief, unknown[:3]))
        raise ValueError(f"{splits}: none of its entries ({some} ...) is an image of {path}")
    if unknown:
        log.warning("%s: %d entries are not images of %s, such as %s", splits, len(unknown), path, brief(min(unknown)))
    return [split_of.get(key(photograph)) for photograph in photographs]


def _with_captions(path: Path, split: str, photographs: list[Photograph]) -> list[Photograph]:
    """Drop photographs without captions and log their number. Raises ValueError if all are dropped."""
    captioned, bare = [], []
    for photograph in photographs:
        captions = [caption for caption in photograph.captions if _says_something(caption)]
        (captioned if captions else bare).append(photograph._replace(captions=captions))
    empty = sum(len(one.captions) for one in photographs) - sum(len(one.captions) for one in captioned)
    if empty:
        log.warning("%s: captions of split %s without a word, which are left out: %d", path, split, empty)
    if bare:
        first = printable(bare[0].name)
        if not captioned:
            raise ValueError(f"{path}: no image of split {split} has a caption, such as {first}")
        text = "%s: images of split %s that have no caption and are left out: %d, such as %s"
        log.warning(text, path, split, len(bare), first)
    return captioned


def _says_something(caption: str) -> bool:
    """Whether a caption has a letter, a digit or a pictograph."""
    kinds = map(unicodedata.category, caption)
    return any(kind[0] in "LN" or kind == "So" for kind in kinds)

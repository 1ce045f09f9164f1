"""Read the photographs of annotation files with their captions, and divide them into splits."""

import hashlib
import logging
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vision_attn.data.images.open import Encoded
from vision_attn.data.photographs.annotation_files.caption_files import (
    Columns,
    files_of,
    own_files_of,
    read_photographs,
)
from vision_attn.data.photographs.annotation_files.hub_datasets import is_dataset, located
from vision_attn.data.photographs.photograph import NAMINGS, Photograph
from vision_attn.data.photographs.store import Photographs, stored
from vision_attn.data.record_files import divided, plain_path, read_content
from vision_attn.system.console import printable
from vision_attn.system.errors import UserError
from vision_attn.system.files import brief, digest, find, sha256
from vision_attn.system.splits import split_named
from vision_attn.task import SPLITS, known_split

LARGE = 2**24
"""Captions of annotation files with more bytes than this are kept in the cache. Flickr8k's files have 5 MB, COCO's
100."""
FORMAT = 5
"""The version of the captions in the cache. Raise it if their layout or the result of `read_annotations` changes."""
JSON = ("COCO's JSON", "Karpathy's JSON")
"""Shapes of files that must state splits: missing splits are not chosen by a hash."""
log = logging.getLogger(__name__)


def read_splits(
    annotations: str | Mapping[str, str],
    split_files: str | Mapping[str, str] | None = None,
    *,
    columns: Columns | None = None,
    cache: str | None = None,
    download: bool = False,
) -> dict[str, Photographs]:
    """Read all photographs with captions by split, in the order of the annotation files; see `read_annotations`.

    annotations: a file, a folder or a dataset, or one for each split.
    split_files: see `read_annotations`; only for a single file, folder or dataset.
    columns, download: see `read_photographs`.
    cache: a folder in which the captions of large files are kept as arrays, which processes share. Messages about these
        files are then logged only the first time.
    """
    several = isinstance(annotations, Mapping)
    given: dict[str | None, Path] = (
        {known_split(split): located(path) for split, path in annotations.items()}
        if isinstance(annotations, Mapping)
        else {None: located(annotations)}
    )
    lists: Path | dict[str, Path] | None = None
    if split_files and not several:
        lists = (
            {split: find(path) for split, path in split_files.items()}
            if isinstance(split_files, Mapping)
            else find(split_files)
        )

    def read() -> dict[str, Photographs]:
        splits: dict[str, list[Photograph]] = {name: [] for name in SPLITS}
        for split, path in given.items():
            if split is None:
                splits = read_annotations(path, split_files=lists, columns=columns, download=download)
            else:
                splits[split] = read_annotations(path, split=split, columns=columns, download=download)[split]
        splits = _named_apart(splits) if several else splits
        return {split: Photographs.of(members) for split, members in splits.items()}

    places = [*given.values()]
    several_files = [is_dataset(path) or bool(own_files_of(path)) for path in places]
    files = [file for path, kept in zip(places, several_files, strict=True) if not kept for file in files_of(path)]
    files += lists.values() if isinstance(lists, dict) else [lists] if lists else []
    for file in files:  # a config may come from anyone, and reading a pipe or a device might never end
        if not file.is_file():
            raise UserError(f"{file} is not a file")
    if cache is None or any(several_files) or sum(file.stat().st_size for file in files) < LARGE:
        return read()
    checksums = [*map(sha256, files)]

    def unchanged() -> dict[str, Photographs]:
        splits = read()
        if [*map(sha256, files)] != checksums:
            raise UserError(f"{annotations} changed while it was read: run the command again")
        return splits

    rules: list[Any] = [FORMAT, several and [*given], isinstance(lists, dict) and [*lists], columns, checksums]
    return stored(Path(cache).expanduser() / f"captions-{digest(rules)[:12]}", unchanged)


def _named_apart(splits: Mapping[str, list[Photograph]]) -> dict[str, list[Photograph]]:
    """Prefix names with the split where different photographs of several splits share a name, such as the number of a
    row. The same photograph in two splits keeps its name, so that the repetition is detected."""
    owners: dict[str, list[tuple[str, Encoded]]] = {}
    for split, members in splits.items():
        for photograph in members:
            if isinstance(photograph.file, Encoded) and photograph.file.size != -1:
                owners.setdefault(photograph.name, []).append((split, photograph.file))
    different = set()
    for name, several in owners.items():
        if len(several) > 1 and len({hashlib.sha256(file.read()).digest() for _, file in several}) > 1:
            different.add(name)
    return {
        split: [
            photograph._replace(id=name, name=name, file=photograph.file._replace(name=name))
            if photograph.name in different
            and isinstance(photograph.file, Encoded)
            and (name := f"{split}/{photograph.name}")
            else photograph
            for photograph in members
        ]
        for split, members in splits.items()
    }


def read_annotations(
    path: Path,
    *,
    split_files: Path | Mapping[str, Path] | None = None,
    split: str | None = None,
    columns: Columns | None = None,
    download: bool = False,
) -> dict[str, list[Photograph]]:
    """Read the photographs of an annotation file by split, in the file's order; "restval" counts as "train".

    path: a file or folder in any shape that `read_photographs` recognises. A line logs the shape.
    split_files: a JSON file or a list for each split.
    split: the split of all photographs, if the file is for one split.
    columns, download: see `read_photographs`.

    The split of an image is `split` if given, else it comes from `split_files`, else from the image's record. Images
    without a split are left out. If no image has a split, in shapes other than COCO's and Karpathy's, the folder of an
    image is its split if it has the name of one; otherwise a tenth of the images is for validation and a tenth for
    testing. Raises UserError naming the file and the invalid record.
    """
    shape, photographs, given, short, groups = read_photographs(path, columns=columns, download=download)
    names = [photograph.name for photograph in photographs]
    if split is not None:
        named: Sequence[str | None] = [split] * len(photographs)
        by = split
    elif split_files is not None:
        named, by = _splits_from_files(path, split_files, photographs), "from files"
    else:
        named, by = [_split_name(path, name) for name in given], "as stated"
        without = [name for name, known in zip(names, given, strict=True) if not known]
        folders = [split_named(Path(name).parts[0]) for name in names]
        if not any(given) and all(folder in SPLITS for folder in folders):
            named, by = folders, "by folder"
        elif not any(named) and shape not in JSON:
            named, by = _divided(names, groups), "by hash"
        elif not any(named):
            raise UserError(
                f'{path}: no image has a `split` field of {", ".join(SPLITS)}: add "split": "train" and so on to each, '
                "or give data.split_files, a list of names for each split, or one annotation file per split"
            )
        elif without:
            log.warning(
                "%s: images that have no `split` and are left out: %d, such as %s",
                path, len(without), printable(without[0]),
            )  # fmt: skip
    if groups and by != "as stated":
        _warn_of_torn(path, names, named, groups)
    captions = sum(len(photograph.captions) for photograph in photographs)
    log.info("%s: %s, %d photographs, %d captions, splits %s", path, shape, len(photographs), captions, by)
    if short:
        lines = ", ".join(map(str, short[:5]))
        log.warning("%s: lines that lack a column and are left out: %d, such as line %s", path, len(short), lines)
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        log.warning("%s: names of several images: %d, such as %s", path, len(twice), printable(twice[0]))
    splits: dict[str, list[Photograph]] = {name: [] for name in SPLITS}
    for photograph, name in zip(photographs, named, strict=True):
        if name is not None:
            splits[name].append(photograph)
    return {name: _with_captions(path, name, members) for name, members in splits.items()}


def _divided(names: Sequence[str], groups: Mapping[int | str, int | str]) -> list[str]:
    """Choose a split for each name by a hash. Names of one group get the same split."""
    firsts = [str(groups.get(name, name)) for name in names]
    unique = [*dict.fromkeys(firsts)]
    splits = dict(zip(unique, divided(unique), strict=True))
    return [splits[first] for first in firsts]


def _warn_of_torn(
    path: Path, names: Sequence[str], named: Sequence[str | None], groups: Mapping[int | str, int | str]
) -> None:
    """Warn of photographs that share a caption file with a photograph of another split."""
    splits: dict[int | str, str] = {}
    torn = [
        name
        for name, split in zip(names, named, strict=True)
        if split and splits.setdefault(groups.get(name, name), split) != split
    ]
    if torn:
        text = "%s: photographs that share a text with one of another split: %d, such as %s"
        log.warning(text, path, len(torn), printable(torn[0]))


def _split_name(path: Path | str, name: Any) -> str | None:
    name = split_named(name)
    if name is None or name in ("", "unused"):
        return None
    if name == "restval":
        return "train"
    if name not in SPLITS:
        raise UserError(f"{path}: unknown split {brief(name)}; expected {', '.join(SPLITS)}, restval or unused")
    return name


def _members(files: Path | Mapping[str, Path]) -> dict[str, list[Any]]:
    """Return the entries of each split, from one JSON file {split: entries} or from a list for each split."""
    if not isinstance(files, Path):
        return {split: _list(path) for split, path in files.items()}
    members = read_content(files).value
    if not isinstance(members, dict) or not all(isinstance(names, list) for names in members.values()):
        raise UserError(
            f"{files}: expected JSON of the form {{'train': [names or ids], 'val': [...], 'test': [...]}}, or a list "
            f"of names for each split: --data.split_files.train={files.name} and so on"
        )
    return members


def _list(path: Path) -> list[Any]:
    """Read the entries of a list: lines of text, as in Flickr_8k.trainImages.txt, or a list in JSON."""
    content = read_content(path)
    if content.shape == "table":
        return [line.strip() for line in content.value.split("\n") if line.strip()]
    if not isinstance(content.value, list):
        raise UserError(f"{path} must hold a list of names or ids, one a line or in JSON")
    return content.value


def _splits_from_files(path: Path, files: Path | Mapping[str, Path], photographs: list[Photograph]) -> list[str | None]:
    """Return the split of each photograph, looked up by its id, its name, or its name without the folder or the
    ending."""
    where = str(files) if isinstance(files, Path) else " and ".join(map(str, files.values()))
    split_of: dict[str, str | None] = {}
    for name, entries in _members(files).items():
        split = _split_name(where, name)
        for entry in entries:
            if isinstance(entry, bool) or not isinstance(entry, int | str):
                raise UserError(f"{where}: {brief(entry)} in {brief(name)} is neither an image name nor an id")
            if split_of.setdefault(plain_path(str(entry)), split) != split:
                raise UserError(f"{where}: {entry} is in two splits, {split_of[plain_path(str(entry))]} and {split}")

    # All entries are of one kind, ids or names: choose the kind that matches the most photographs.
    ways = [[plain_path(naming(photograph)) for photograph in photographs] for naming in NAMINGS]
    keys = max(ways, key=lambda keys: sum(key in split_of for key in keys))
    unknown = list(split_of.keys() - set(keys))
    if len(unknown) == len(split_of):
        examples = ", ".join(map(brief, unknown[:3]))
        raise UserError(f"{where}: none of its entries ({examples} ...) is an image of {path}")
    if unknown:
        log.warning("%s: %d entries are not images of %s, such as %s", where, len(unknown), path, brief(min(unknown)))
    return [split_of.get(key) for key in keys]


def _with_captions(path: Path, split: str, photographs: list[Photograph]) -> list[Photograph]:
    """Drop photographs without captions and log their number. Raises UserError if all are dropped."""
    captioned, bare = list[Photograph](), list[Photograph]()
    for photograph in photographs:
        captions = [caption for caption in photograph.captions if _says_something(caption)]
        (captioned if captions else bare).append(photograph._replace(captions=captions))
    empty = sum(len(photograph.captions) for photograph in photographs) - sum(
        len(photograph.captions) for photograph in captioned
    )
    if empty:
        log.warning("%s: captions of split %s without a word, which are left out: %d", path, split, empty)
    if bare:
        first = printable(bare[0].name)
        if not captioned:
            raise UserError(f"{path}: no image of split {split} has a caption, such as {first}")
        text = "%s: images of split %s that have no caption and are left out: %d, such as %s"
        log.warning(text, path, split, len(bare), first)
    return captioned


def _says_something(caption: str) -> bool:
    """Return whether a caption has a letter, a digit or a pictograph."""
    categories = map(unicodedata.category, caption)
    return any(category[0] in "LN" or category == "So" for category in categories)

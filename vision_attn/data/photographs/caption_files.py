"""Read the captions of photographs from a file of any shape, which is recognised by its content."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.data.photographs.film_shapes import (
    activitynet,
    is_activitynet,
    is_msr_vtt,
    msr_vtt,
    msvd_lines,
    msvd_rows,
)
from vision_attn.data.photographs.hub_datasets import is_dataset, read_rows
from vision_attn.data.photographs.image_lists import coco, coco_by_id, expected, karpathy
from vision_attn.data.photographs.photograph import Photograph, checked_name, one_line
from vision_attn.data.records import Content, Records, read_content, read_records
from vision_attn.data.tables import places_of
from vision_attn.system.files import brief
from vision_attn.system.splits import SPLITS, split_named

METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
"""Names of the file in each folder of Hugging Face's imagefolder."""
TITLES = ("captions", "annotations", "results")
"""Names without their endings that a file of captions has in a folder of several files."""
SAID = ("raw", "caption", "text", "sentence")
"""Keys of the text of a caption that is an object."""
ENDINGS = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".arrow")
Columns = Mapping[str, str | int]


class Annotated(NamedTuple):
    """What a file says of photographs."""

    shape: str
    photographs: list[Photograph]
    splits: list[Any]
    """What the file says is the split of each; None: nothing."""
    short: list[int]
    """Lines of a table that lack a column, and are left out."""


def files_of(path: Path) -> list[Path]:
    """The annotation files at a path: the file itself; of Hugging Face's imagefolder the file of each folder; of
    another folder the only one that may hold captions, or else the one that is called so in the folder above, as where
    photographs have a folder of their own. Raises ValueError naming the folder if that is not clear."""
    if not path.is_dir():
        return [path]
    splits = [entry for entry in path.iterdir() if split_named(entry.name) in SPLITS]
    splits.sort(key=lambda entry: SPLITS.index(split_named(entry.name)))
    if found := [file for folder in (path, *splits) for name in METADATA if (file := folder / name).is_file()]:
        return found
    here, above = _texts_in(path), _titled(_texts_in(path.resolve().parent))
    for some in (_titled(here), here, [] if here else above):
        if len(some) == 1:
            return some
    several = ", ".join(brief(file.name) for file in here or above)
    raise ValueError(
        f"{path} is a folder with several files that may hold captions, {several}: name one as data.annotations"
        if several
        else f"{path} is a folder without a file of captions: name one, as data.annotations"
    )


def _texts_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS and path.is_file())


def _titled(files: list[Path]) -> list[Path]:
    return [file for file in files if file.stem in TITLES or file.name.endswith(".token.txt")]


def read_photographs(
    path: Path, *, columns: Columns | None = None, by_id: bool = False, download: bool = False
) -> Annotated:
    """Read all photographs of an annotation file, of a folder with one, or of a dataset (`hub_datasets`), in its order.

    columns: the names of columns or keys that are not recognised, for image, caption and split.
    by_id: take every image that has a caption, also if the file does not list it or gives it no file name. Its name is
        then empty: it has captions to compare with, but no photograph to train on.
    download: download a dataset of the hub, if it is not on this machine.

    Raises ValueError naming the file and the invalid record.
    """
    if is_dataset(path):
        rows = read_rows(path, columns or {}, download=download)
        found = _listed(path, Content("dataset", [row.fields for row in rows]), {}, by_id)
        inside = {row.fields["image"]: row.file for row in rows}
        return found._replace(photographs=[one._replace(file=inside.get(one.name)) for one in found.photographs])
    files = files_of(path)
    read = [_read(file, columns or {}, by_id) for file in files]
    if files[0].name not in METADATA or files == [path]:
        return read[0]
    places = [file.parent.relative_to(path).as_posix() for file in files]
    members = []
    for place, one in zip(places, read, strict=True):
        names = [str(Path(place) / photograph.name) for photograph in one.photographs]
        members += [each._replace(id=name, name=name) for each, name in zip(one.photographs, names, strict=True)]
    sizes = ", ".join(f"{split_named(place)} {len(one.photographs)}" for place, one in zip(places, read, strict=True))
    shape = f"imagefolder: {sizes}" if files[0].parent != path else f"imagefolder of {read[0].shape}"
    return Annotated(shape, members, sum((one.splits for one in read), []), sum((one.short for one in read), []))


def _read(path: Path, columns: Columns, by_id: bool) -> Annotated:
    content = recognised(path)
    if not isinstance(content.value, dict):
        return _listed(path, content, columns, by_id)
    value, images, notes = content.value, content.value.get("images"), content.value.get("annotations")
    if by_id and isinstance(notes, list):
        photographs = coco_by_id(path, images, notes)
        return Annotated("COCO's JSON", photographs, [None] * len(photographs), [])
    if not isinstance(images, list) or not images or not all(isinstance(image, dict) for image in images):
        raise ValueError(expected(path))
    splits = [image.get("split") for image in images]
    if "annotations" in value:
        return Annotated("COCO's JSON", coco(path, images, notes), splits, [])
    if all("sentences" in image for image in images):
        return Annotated("Karpathy's JSON", karpathy(path, images), splits, [])
    raise ValueError(expected(path))


def recognised(path: Path) -> Content:
    """Read a file that may hold captions. Records in a JSON object become a list of records; an object in another shape
    is that of COCO or of Karpathy, if it holds captions."""
    content = read_content(path)
    if content.shape == "table" and (lines := msvd_lines(content.value)):
        return Content("MSVD's text", lines)
    if isinstance(content.value, dict) and content.value.keys().isdisjoint(("images", "annotations")):
        for shape, fits, records in OBJECTS:
            if fits(content.value):
                return Content(shape, records(content.value))
    return content


def _all(value: dict[str, Any], holds: Callable[[str, Any], bool]) -> bool:
    return bool(value) and all(holds(key, each) for key, each in value.items())


def _are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(each, kind) for each in values)


OBJECTS: tuple[tuple[str, Callable[[dict], bool], Callable[[dict], list[dict]]], ...] = (
    ("MSR-VTT's JSON", is_msr_vtt, msr_vtt),
    (
        "ActivityNet's JSON, in which the sentences of a film are its caption",
        is_activitynet,
        activitynet,
    ),
    (
        "JSON of one record",
        lambda value: any(places_of(tuple(value), ("image", "caption"), {})),
        lambda value: [value],
    ),
    (
        "JSON lists of each split",
        lambda value: _all(value, lambda name, each: split_named(name) in SPLITS and _are(each, dict)),
        lambda value: [record | {"split": split} for split, each in value.items() for record in each],
    ),
    (
        "JSON of captions by image",
        lambda value: _all(value, lambda _, each: isinstance(each, str) or _are(each, str)),
        lambda value: [{"image": name, "caption": each} for name, each in value.items()],
    ),
)
"""The shapes of JSON objects with records: what they are called, how they are recognised, and their records."""


def entries(path: Path, records: Records) -> Iterator[tuple[str, int | str, list[str], Any]]:
    """Yield where each record is, the name or the id of its image, its captions, and its split.

    Raises ValueError naming the invalid record.
    """
    for where, record in records.rows:
        for key in ("image", "caption"):
            if record.get(key) is None:
                raise ValueError(f"{where} has no {key}; each must have image and caption")
        image = record["image"]
        if isinstance(image, bool) or not isinstance(image, int | str):
            raise ValueError(f"{where}: image must be text or an integer, not {brief(image)}")
        yield where, image, _texts(where, record["caption"]), record.get("split")


def _texts(where: str, value: Any) -> list[str]:
    """The captions in a field: a text, a list of texts or of objects with a text, or such a list as JSON in a text."""
    if isinstance(value, str) and value.startswith('["'):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return [value]
    texts = []
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, dict):
            text = next((text[key] for key in SAID if key in text), text)
        if not isinstance(text, str):
            raise ValueError(f"{where}: caption must be text, not {brief(text)}")
        texts.append(text)
    return texts


def _listed(path: Path, content: Content, columns: Columns, by_id: bool) -> Annotated:
    """The photographs of a file with a record for each caption."""
    captions: dict[int | str, list[str]] = {}
    splits: dict[int | str, Any] = {}
    records = read_records(path, "image", "caption", named=columns, content=content)
    records = records._replace(rows=[*msvd_rows(path, records.rows)])
    for where, image, texts, split in entries(path, records):
        if not by_id and not isinstance(image, str):
            raise ValueError(f"{where}: image must be the name of a file, not {brief(image)}")
        name = image if isinstance(image, int) else checked_name(path, where.removeprefix(f"{path}: "), image)
        if splits.setdefault(name, split) != split:
            raise ValueError(f"{where}: {brief(name)} has two splits, {brief(splits[name])} and {brief(split)}")
        captions.setdefault(name, []).extend(map(one_line, texts))
    if not captions:
        raise ValueError(f"{path} has no captions")
    photographs = [Photograph(name, name if isinstance(name, str) else "", said) for name, said in captions.items()]
    return Annotated(records.shape, photographs, [*splits.values()], records.short)

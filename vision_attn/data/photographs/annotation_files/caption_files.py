"""Read the captions of photographs from a file in any common shape, recognised by its content."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.data.photographs.annotation_files.caption_values import Marks, list_in, texts
from vision_attn.data.photographs.annotation_files.film_shapes import msvd_lines, msvd_rows
from vision_attn.data.photographs.annotation_files.hub_datasets import is_dataset, read_rows
from vision_attn.data.photographs.annotation_files.image_lists import coco, coco_by_id, expected, karpathy
from vision_attn.data.photographs.annotation_files.json_shapes import as_records
from vision_attn.data.photographs.annotation_files.samples import captioned_files, captions_of_files
from vision_attn.data.photographs.photograph import Photograph, checked_name, one_line
from vision_attn.data.record_files import Content, Records, read_content, read_records
from vision_attn.system.console import few, printable
from vision_attn.system.errors import UserError
from vision_attn.system.files import brief
from vision_attn.system.splits import SPLITS, split_named

METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
"""The names of the caption file in a folder of Hugging Face's imagefolder."""
TITLES = ("captions", "annotations", "results")
"""The names, without endings, by which the file of captions is found among several files of a folder."""
ENDINGS = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet", ".arrow")
SHOWN = 8
"""The largest number of keys of a record in a message."""
Columns = Mapping[str, str | int]
log = logging.getLogger(__name__)


class Annotated(NamedTuple):
    """The photographs of a file with their captions and splits."""

    shape: str
    photographs: list[Photograph]
    splits: list[Any]
    """The split that the file states for each photograph; None if it states none."""
    short: list[int]
    """The numbers of lines of a table that lack a column and are left out."""
    groups: Mapping[int | str, int | str] = {}
    """The group of each photograph that shares a caption with others. All of a group must be in one split."""


def files_of(path: Path) -> list[Path]:
    """Find the annotation files at a path: the file itself; the file of each folder of Hugging Face's imagefolder; in
    any other folder, or else in the folder above it, the only file that may hold captions. Raises UserError naming the
    folder if several files fit, or none."""
    if not path.is_dir():
        return [path]
    splits = [entry for entry in path.iterdir() if split_named(entry.name) in SPLITS]
    splits.sort(key=lambda entry: SPLITS.index(split_named(entry.name)))
    if metadata := [file for folder in (path, *splits) for name in METADATA if (file := folder / name).is_file()]:
        return metadata
    here, above = _texts_in(path), _titled(_texts_in(path.resolve().parent))
    for candidates in (_titled(here), here, [] if here else above):
        if len(candidates) == 1:
            return candidates
    several = ", ".join(brief(file.name) for file in here or above)
    raise UserError(
        f"{path} is a folder with several files that may hold captions, {several}: name one as data.annotations"
        if several
        else f"{path} is a folder without a file of captions: name one, as data.annotations, or write the captions of "
        "NAME.jpg into NAME.txt"
    )


def own_files_of(path: Path) -> dict[str, list[Path]]:
    """Find the files of captions for each photograph of a folder in which each photograph has its own, such as `a.jpg`
    and `a.txt`. Empty for any other folder, and for one with a file for all photographs."""
    if not path.is_dir() or any((path / name).is_file() for name in METADATA) or _titled(here := _texts_in(path)):
        return {}
    if not here and len(_titled(_texts_in(path.resolve().parent))) == 1:
        return {}
    return captioned_files(path, deep=True) if not here or captioned_files(path, deep=False) else {}


def _texts_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in ENDINGS and path.is_file())


def _titled(files: list[Path]) -> list[Path]:
    return [file for file in files if file.stem in TITLES or file.name.endswith(".token.txt")]


def read_photographs(
    path: Path, *, columns: Columns | None = None, by_id: bool = False, download: bool = False
) -> Annotated:
    """Read all photographs of an annotation file, of a folder with one, or of a dataset (`hub_datasets`), in order.

    columns: the names of the columns or keys for image, caption and split, if they are not recognised.
    by_id: whether to keep images with captions that the file does not list, or lists without a file name. Such an image
        has an empty name: it has references, but no photograph to train on.
    download: whether to download a dataset of the hub that is not on this machine.

    Raises UserError naming the file and the invalid record.
    """
    if is_dataset(path):
        dataset_rows = read_rows(path, columns or {}, download=download)
        listed = _listed(path, Content("dataset", [row.fields for row in dataset_rows]), {}, by_id)
        inside = {file.name: file for row in dataset_rows for file in row.files}
        return listed._replace(
            photographs=[photograph._replace(file=inside.get(photograph.name)) for photograph in listed.photographs]
        )
    if own := own_files_of(path):
        return _each_file(path, own)
    files = files_of(path)
    read = [_read(file, columns or {}, by_id) for file in files]
    if files[0].name not in METADATA or files == [path]:
        return read[0]
    places = [file.parent.relative_to(path).as_posix() for file in files]
    members, groups = list[Photograph](), dict[int | str, int | str]()
    for place, annotated in zip(places, read, strict=True):
        names = [str(Path(place) / photograph.name) for photograph in annotated.photographs]
        members += [
            photograph._replace(id=name, name=name)
            for photograph, name in zip(annotated.photographs, names, strict=True)
        ]
        groups |= {
            str(Path(place) / str(name)): str(Path(place) / str(group)) for name, group in annotated.groups.items()
        }
    sizes = ", ".join(
        f"{split_named(place)} {len(annotated.photographs)}" for place, annotated in zip(places, read, strict=True)
    )
    shape = f"imagefolder: {sizes}" if files[0].parent != path else f"imagefolder of {read[0].shape}"
    splits, short = sum((annotated.splits for annotated in read), []), sum((annotated.short for annotated in read), [])
    return Annotated(shape, members, splits, short, groups)


def _read(path: Path, columns: Columns, by_id: bool) -> Annotated:
    content = recognised(path)
    if not isinstance(content.value, dict):
        return _listed(path, content, columns, by_id)
    if columns:
        raise UserError(f"{path} is a JSON object whose keys are known: leave out data.columns")
    value, images, notes = content.value, content.value.get("images"), content.value.get("annotations")
    if by_id and isinstance(notes, list):
        photographs = coco_by_id(path, images, notes)
        return Annotated("COCO's JSON", photographs, [None] * len(photographs), [])
    if not isinstance(images, list) or not images or not all(isinstance(image, dict) for image in images):
        raise UserError(expected(path))
    splits = [image.get("split") for image in images]
    if "annotations" in value:
        return Annotated("COCO's JSON", coco(path, images, notes), splits, [])
    if all("sentences" in image for image in images):
        return Annotated("Karpathy's JSON", karpathy(path, images), splits, [])
    raise UserError(expected(path))


def _each_file(path: Path, files: Mapping[str, list[Path]]) -> Annotated:
    """Read the photographs of a folder with caption files for each. Photographs of one name with different endings
    share their captions."""
    photographs, bare, marks = [], [], Marks(path)
    groups: dict[int | str, int | str] = {}
    for name, own in files.items():
        if captions := captions_of_files(own, marks):
            photographs.append(Photograph(name, name, [*captions]))
            groups[name] = str(Path(name).with_suffix(""))
        else:
            bare.append(name)
    marks.told()
    if not photographs:
        raise UserError(f"{path}: no photograph has a caption in the file of its name, such as {printable(bare[0])}")
    if bare:
        text = "%s: photographs without a text of their name, or with an empty one, that are left out: %d, such as %s"
        log.warning(text, path, len(bare), printable(bare[0]))
    return Annotated("a text file for each photograph", photographs, [None] * len(photographs), [], groups)


def recognised(path: Path) -> Content:
    """Read a file that may hold captions. JSON in one of `json_shapes` becomes a list of records; any other object may
    be COCO's or Karpathy's JSON."""
    content = read_content(path)
    if content.shape == "table":
        lines = msvd_lines(content.value)
        return Content("MSVD's text", lines) if lines else content
    return as_records(path, content)


def entries(path: Path, records: Records) -> Iterator[tuple[str, list[int | str], list[str], Any]]:
    """Yield the place of each record, the names or ids of its images, its captions, and its split. Records and captions
    that are marked as not to be used are left out, and their number is logged at the end.

    Raises UserError naming the invalid record.
    """
    marks = Marks(path)
    for where, record in records.records:
        if marks.on(record):
            continue
        for key in ("image", "caption"):
            if record.get(key) is None:
                has = few([printable(str(name)[:60]) for name in record if record[name] is not None], most=SHOWN)
                raise UserError(f"{where} has no {key}; each must have image and caption{has and f', not only {has}'}")
        yield where, _images(where, record["image"]), texts(where, record["caption"], marks), record.get("split")
    marks.told()


def _images(where: str, value: Any) -> list[int | str]:
    """Return the images in a field: a name, an id, or a list of these, which may be written as text."""
    listed = list_in(value) if isinstance(value, str) else value
    images = listed if isinstance(listed, list) else [value]
    for image in images:
        if isinstance(image, bool) or not isinstance(image, int | str):
            raise UserError(f"{where}: image must be text or an integer, not {brief(image)}")
    if not images:
        raise UserError(f"{where} has no image; each must have image and caption")
    return [*dict.fromkeys(images)]


def _listed(path: Path, content: Content, columns: Columns, by_id: bool) -> Annotated:
    """Return the photographs of a list of records."""
    captions: dict[int | str, list[str]] = {}
    splits: dict[int | str, Any] = {}
    several: list[list[int | str]] = []
    torn: list[int | str] = []
    in_lists: set[int | str] = set()
    spelled: dict[str, Any] = {}
    otherwise: dict[str, Any] = {}
    records = read_records(path, "image", "caption", named=columns, content=content)
    records = records._replace(records=[*msvd_rows(path, records.records)])
    for where, images, said, split in entries(path, records):
        named = [(_name(path, where, image, by_id), image) for image in images]
        names = [*dict.fromkeys(name for name, _ in named)]
        for name, image in named:
            if isinstance(name, str) and spelled.setdefault(name, image) != image:
                otherwise.setdefault(name, image)
        if names[1:]:
            in_lists.update(names)
            several.append(names)
        for name in names:
            if splits.setdefault(name, split) == split:
                captions.setdefault(name, []).extend(map(one_line, said))
            elif name in in_lists:
                torn.append(name)
            else:
                raise UserError(f"{where}: {brief(name)} has two splits, {brief(splits[name])} and {brief(split)}")
    if not captions:
        raise UserError(f"{path} has no captions")
    if several:
        log.info("%s: records of several images, whose text belongs to each of them: %d", path, len(several))
    if torn:
        log.warning(
            "%s: images in records of two splits, which keep the split and the texts of the first: %d, such as %s",
            path, len({*torn}), printable(str(torn[0])),
        )  # fmt: skip
    if otherwise:
        name, other = next(iter(otherwise.items()))
        text = "%s: photographs that are named in several ways, each taken as one: %d, such as %s and %s"
        log.warning(text, path, len(otherwise), printable(spelled[name]), printable(other))
    photographs = [Photograph(name, name if isinstance(name, str) else "", said) for name, said in captions.items()]
    return Annotated(records.shape, photographs, [*splits.values()], records.short, _joined(several))


def _name(path: Path, where: str, image: int | str, by_id: bool) -> int | str:
    if not by_id and not isinstance(image, str):
        raise UserError(f"{where}: image must be the name of a file, not {brief(image)}")
    return image if isinstance(image, int) else checked_name(path, where.removeprefix(f"{path}: "), image)


def _joined(lists: Sequence[Sequence[int | str]]) -> dict[int | str, int | str]:
    """Join lists that share an item to groups. Return the representative of each item's group."""
    parents: dict[int | str, int | str] = {}

    def first(item: int | str) -> int | str:
        while (parent := parents.setdefault(item, item)) != item:
            parents[item] = item = parents[parent]  # halves the way for the next search
        return item

    for head, *others in lists:
        for other in others:
            parents[first(other)] = first(head)
    return {item: first(item) for item in [*parents]}

"""Convert the shapes of JSON in which captions are published to records with an image, captions and, mostly, a split.

To read another shape, add a row to `OBJECTS`, or to `LISTS` if the file is a list or lines of JSON.
"""

import logging
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.data.photographs.annotation_files.film_shapes import activitynet, is_activitynet, is_msr_vtt, msr_vtt
from vision_attn.data.record_files import Content
from vision_attn.data.tables import places_of
from vision_attn.system.errors import UserError
from vision_attn.system.splits import SPLITS, split_named

Record = dict[str, Any]
TURNS = ("conversations", "messages")
"""The keys of the turns of a conversation."""
ANSWERS = ("gpt", "assistant")
"""The speakers whose turns are captions."""
log = logging.getLogger(__name__)


class Shape(NamedTuple):
    name: str
    """The name of the shape, in the logged line about the file."""
    fits: Callable[[Any], bool]
    """Returns whether the content of a file has this shape."""
    records: Callable[[Path, Any], list[Record]]
    """Returns the records of a content that fits; the path is for messages."""


def as_records(path: Path, content: Content) -> Content:
    """Convert JSON in one of the shapes below to records. Other content is returned unchanged."""
    value = content.value
    if isinstance(value, list):
        found = next((shape for shape in LISTS if shape.fits(value)), None)
        return Content(f"{content.shape} of {found.name}", found.records(path, value)) if found else content
    if not value.keys().isdisjoint(("images", "annotations")):
        return content  # COCO's or Karpathy's
    found = next((shape for shape in OBJECTS if shape.fits(value)), None)
    return Content(found.name, found.records(path, value)) if found else content


def _all(value: Record, holds: Callable[[str, Any], bool]) -> bool:
    return bool(value) and all(holds(key, each) for key, each in value.items())


def _are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(isinstance(each, kind) for each in values)


def _textcaps(records: list[Record]) -> list[Record]:
    """Merge TextCaps' records to one for each image. A record has one caption and, mostly, also all captions of its
    image."""
    captions: dict[Any, dict[str, None]] = {}
    for record in records:
        said = [record["caption_str"], *(record.get("reference_strs") or ())]
        captions.setdefault(record.get("image_id"), {}).update(dict.fromkeys(map(str, said)))
    return [{"image": image, "caption": [*texts]} for image, texts in captions.items()]


def _are_conversations(value: list[Any]) -> bool:
    return bool(value) and all(
        isinstance(record, dict)
        and any(_are(record.get(key), dict) for key in TURNS)
        and "caption" not in _purposes(tuple(record))
        for record in value
    )


def _conversations(path: Path, value: list[Record]) -> list[Record]:
    """Return the records whose conversation is a single answer about one image; the answer is the caption. Answers of
    longer conversations are no captions, since they answer questions such as "what is to the left of the dog?". Raises
    UserError if no record is left."""
    found = []
    for record in value:
        turns = next(record[key] for key in TURNS if _are(record.get(key), dict))
        answers = [turn for turn in turns if turn.get("from", turn.get("role")) in ANSWERS]
        images = [part for turn in turns for part in _images(turn)]
        named = "image" in _purposes(tuple(record))
        if len(answers) == 1 and (named or images):
            found.append({**record, **({} if named else {"image": images}), "caption": " ".join(_texts(answers[0]))})
    if not found:
        raise UserError(f"{path} has no conversation of an image with a single answer, which would be its caption")
    if others := len(value) - len(found):
        log.warning("%s: conversations of several answers, or without an image, that are left out: %d", path, others)
    return found


@lru_cache(maxsize=1000)
def _purposes(keys: tuple[str, ...]) -> frozenset[str]:
    """Return which of "image" and "caption" are among the keys of a record."""
    return frozenset(places_of(keys, ("image", "caption"), {}))


def _parts(turn: Record) -> Iterator[Record]:
    content: Any = turn.get("value", turn.get("content"))
    yield from content if _are(content, dict) else [{"text": content}]


def _texts(turn: Record) -> list[str]:
    return [part["text"] for part in _parts(turn) if isinstance(part.get("text"), str)]


def _images(turn: Record) -> list[str]:
    return [part["image"] for part in _parts(turn) if isinstance(part.get("image"), str)]


LISTS: tuple[Shape, ...] = (Shape("conversations", _are_conversations, _conversations),)
"""The shapes of lists whose records have no image and caption; lists whose records have both are read unchanged."""
OBJECTS: tuple[Shape, ...] = (
    Shape("MSR-VTT's JSON", is_msr_vtt, lambda path, value: msr_vtt(value)),
    Shape(
        "ActivityNet's JSON, in which the sentences of a film are its caption",
        is_activitynet,
        lambda path, value: activitynet(value),
    ),
    Shape(
        "TextCaps' JSON",
        lambda value: _are(value.get("data"), dict) and all("caption_str" in record for record in value["data"]),
        lambda path, value: _textcaps(value["data"]),
    ),
    Shape(
        "JSON of one record",
        lambda value: any(places_of(tuple(value), ("image", "caption"), {})),
        lambda path, value: [value],
    ),
    Shape(
        "JSON lists of each split",
        lambda value: _all(value, lambda name, each: split_named(name) in SPLITS and _are(each, dict)),
        lambda path, value: [record | {"split": split} for split, each in value.items() for record in each],
    ),
    Shape(
        "JSON of captions by image",
        lambda value: _all(value, lambda _, each: isinstance(each, str) or _are(each, str)),
        lambda path, value: [{"image": name, "caption": each} for name, each in value.items()],
    ),
)
"""The shapes of JSON objects that contain records; the first that fits is used."""

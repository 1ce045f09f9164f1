"""Write captions in COCO's results format, the metrics of each image, and the intervals of metrics."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from vision_attn.system.files import replacing

EACH = "scores.jsonl"
"""The file in which an evaluation writes the metrics of each image."""
INTERVALS = "intervals.json"
"""The file in which an evaluation writes the intervals of its metrics."""

Image: TypeAlias = int | str | tuple[str, int | str]
"""The id of an image; with several data sets, which may share ids, the name of its set and its id."""


def write_results(path: str | Path, captions: Mapping[Image, str]) -> None:
    """Write one caption per image id in the COCO results format: `[{"image_id": ..., "caption": ...}]`, with the
    `source` of each image where it is known."""
    _write(path, json.dumps(_records(captions), ensure_ascii=False, indent=0) + "\n")


def write_each(path: str | Path, captions: Mapping[Any, str], scores: Mapping[Any, Mapping[str, Any]]) -> None:
    """Write a line of JSON for each image: its id, its source, its caption, and its metrics (`Report.by_image`)."""
    records = zip(captions, _records(captions), strict=True)
    lines = [{**record, **scores.get(image, {})} for image, record in records]
    _write(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def write_intervals(path: str | Path, intervals: Mapping[str, Sequence[float]]) -> None:
    """Write the interval of each metric, by its name."""
    _write(path, json.dumps(intervals) + "\n")


def _records(captions: Mapping[Any, str]) -> list[dict[str, Any]]:
    return [
        {"image_id": image[1], "source": image[0], "caption": caption}
        if isinstance(image, tuple)
        else {"image_id": image, "caption": caption}
        for image, caption in captions.items()
    ]


def _write(path: str | Path, text: str) -> None:
    with replacing(path) as temporary:
        # An id may hold a lone surrogate, which UTF-8 cannot encode; it is written as JSON's escape.
        temporary.write_bytes(text.encode(errors="backslashreplace"))

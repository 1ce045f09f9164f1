"""Convert caption files of films in the shapes of MSR-VTT, MSVD and ActivityNet to records. (VATEX already is a list of
records.)"""

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
CLIP = re.compile(r"([\w-]{11}_\d+_\d+)[ \t]+(\S.*)")
"""A line of MSVD's text: a clip of a YouTube film (its id, first and last second), and its caption."""
PART = ("videoid", "start", "end")
"""The columns of MSVD's table that together name a clip."""


def is_msr_vtt(value: dict[str, Any]) -> bool:
    return all(
        isinstance(records := value.get(name), list) and records and all(isinstance(record, dict) for record in records)
        for name in ("videos", "sentences")
    )


def msr_vtt(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a record for each sentence. The splits are those of the films."""
    splits = {film.get("video_id"): film.get("split") for film in value["videos"]}
    records = [
        {"image": said.get("video_id"), "caption": said.get("caption"), "split": splits.get(said.get("video_id"))}
        for said in value["sentences"]
    ]
    return records if any(splits.values()) else [{**record, "split": None} for record in records]


def is_activitynet(value: dict[str, Any]) -> bool:
    return bool(value) and all(
        isinstance(film, dict) and isinstance(film.get("sentences"), list) and "timestamps" in film
        for film in value.values()
    )


def activitynet(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a record for each film. Its sentences tell of its parts, so all together are one caption."""
    return [
        {"image": name, "caption": " ".join(str(sentence).strip() for sentence in film["sentences"])}
        for name, film in value.items()
    ]


def msvd_lines(text: str) -> list[dict[str, Any]] | None:
    """Return the records of MSVD's text, in which lines with # are comments; None for any other text."""
    records = []
    for line in map(str.strip, text.split("\n")):
        if not line or line.startswith("#"):
            continue
        if (match := CLIP.fullmatch(line)) is None:
            return None
        records.append({"image": match[1], "caption": match[2]})
    return records or None


def msvd_rows(path: Path, table_rows: Sequence[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a table. Rows of MSVD get the names of clips; those in languages other than English are left
    out."""
    others = 0
    for where, row in table_rows:
        if all(row.get(column) for column in PART):
            if str(row.get("language", "English")).strip().lower() != "english":
                others += 1
                continue
            row = row | {"image": "_".join(str(row[column]).strip() for column in PART)}
        yield where, row
    if others:
        log.info("%s: captions in other languages than English, which are left out: %d", path, others)

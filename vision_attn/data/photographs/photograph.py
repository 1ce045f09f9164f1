"""`Photograph`, an image of an annotation file with its captions, and the checks of names and captions."""

import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.data.images.open import Encoded
from vision_attn.data.record_files import plain_path
from vision_attn.system.errors import UserError
from vision_attn.system.files import brief

LONGEST = 100_000
"""The largest number of characters of a caption."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class Photograph(NamedTuple):
    """One image of an annotation file, with its captions."""

    id: int | str
    name: str
    """The path relative to the image folder; after `locate`, relative to the common parent of the folders of all
    splits."""
    captions: list[str]
    file: Path | Encoded | None = None
    """Set by `store.locate`, or by a data set that contains the photograph."""


NAMINGS: tuple[Callable[[Photograph], str], ...] = (
    lambda photograph: str(photograph.id),
    lambda photograph: photograph.name,
    lambda photograph: Path(photograph.name).name,
    lambda photograph: Path(photograph.name).stem,
)
"""The ways in which a file may name a photograph: by its id, its name, its name without the folder, and its name
without the folder and the ending."""


def one_line(caption: str) -> str:
    """Normalise a caption. Joins its lines, because line breaks would break the tools that score it. Cuts it to
    `LONGEST` characters, because the tokenizer fails for some captions of millions. Composes letters with their accents
    (NFC), so that a word is the same however it was typed.

    A lone surrogate (half a character, such as the JSON escape \\ud800) becomes a space: UTF-8 cannot encode it.
    """
    return unicodedata.normalize("NFC", " ".join(_SURROGATE.sub(" ", caption[:LONGEST]).split()))


def plain_name(value: str) -> str:
    """Return the name of a photograph in one line, the form in which names of references and results are compared."""
    return " ".join(value.splitlines()).strip()


def checked_name(path: Path, where: str, value: Any) -> str:
    """Return a path below the image folder in normal form, with slashes. Raises UserError if it could lead out of the
    folder."""
    if not isinstance(value, str):
        raise UserError(f"{path}: the file name of {where} must be a string, not {brief(value)}")
    if re.match("https?://", value):
        raise UserError(
            f"{path}: the file name of {where} is the address {brief(value)}: download the photographs, and write the "
            "names of their files there"
        )
    name = plain_name(value)
    segments = re.split(r"[/\\]", name)
    empty = all(segment.strip() in ("", ".") for segment in segments)
    if empty or "\0" in name or not segments[0] or ".." in segments or re.match("[A-Za-z]:", name):
        alone = f": write {segments[-1]}" if segments[-1].strip(". ") else ""
        raise UserError(
            f"{path}: the file name of {where} is {brief(value)}; it must be a path below the image folder, not empty, "
            f"not absolute, and without `..`{alone}"
        )
    return plain_path(name.replace("\\", "/"))

"""Read samples whose files share a name, such as `0001.jpg` and `0001.txt`, from tar files (WebDataset's convention) or
folders."""

import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.data.films.decode import ENDINGS as FILM_ENDINGS
from vision_attn.data.images.open import ENDINGS, Encoded
from vision_attn.data.photographs.annotation_files.caption_values import Marks, flat, list_in, texts
from vision_attn.data.photographs.photograph import one_line
from vision_attn.data.tables import places_of
from vision_attn.data.text_encoding import read_text
from vision_attn.system.errors import UserError

CAPTIONS = ("caption", "txt", "json")
"""The endings of caption files; the first file that contains captions is used."""
META = re.compile(r"__[^/]*__($|/)")
"""Matches the names of files that describe a tar file and belong to no sample, in WebDataset's convention."""
LARGEST_MEMBER = 2**29
"""The largest number of bytes of a file in a tar file, since it is read whole."""

DOTTED = "a dot in the name, which ends at its first dot by WebDataset's rule (write img_1.jpg for img.1.jpg)"
APART = "files that do not follow each other (write the photograph and its captions one after the other)"
BARE = f"no caption ({', '.join(f'.{ending}' for ending in CAPTIONS)})"
BLANK = "no text in the caption"
MARKED = "a mark not to be used"
UNSEEN = "no photograph"
LINKED = "a link in the place of a file"


class Sample(NamedTuple):
    """A photograph of a shard with its captions."""

    photograph: Encoded
    captions: tuple[str, ...]


class LeftOut:
    """Counts the samples that are read, and those that are left out, by reason."""

    def __init__(self) -> None:
        self.read = 0
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, reason: str, name: str) -> None:
        self.counts[reason] += 1
        self.first.setdefault(reason, name)

    def update(self, other: "LeftOut") -> None:
        self.read += other.read
        self.counts += other.counts
        self.first = other.first | self.first

    def __str__(self) -> str:
        total = self.counts.total()
        reasons = (f"{count} with {reason}, such as {self.first[reason]}" for reason, count in self.counts.items())
        return f"{total} of {self.read + total} samples are left out: {'; '.join(reasons)}"


def tar_samples(path: Path, left_out: LeftOut, *, photographs: bool = True) -> Iterator[Sample]:
    """Read the samples of a tar file: successive files that share their name up to the first dot, among them an image
    and captions.

    left_out: counts the samples that are left out.
    photographs: False: photographs are empty.

    Raises UserError naming the tar file if it is damaged.
    """
    incomplete: dict[str, set[str]] = {}
    with _members(path) as (members, content):
        for key, files in _grouped(members):
            plain = [ending for ending in files if f".{ending}" in ENDINGS]
            written = [ending for ending in CAPTIONS if ending in files]
            for name in _dotted(key, files, bool(plain)):
                left_out.add(DOTTED, name)
            if any(not files[ending].isreg() for ending in (*plain[:1], *written)):
                left_out.add(LINKED, key)
            elif plain and written:
                marks = Marks(path)
                captions = captions_in({ending: content(files[ending]) for ending in written}, marks)
                if captions:
                    left_out.read += 1
                    image = content(files[plain[0]]) if photographs else b""
                    yield Sample(Encoded(f"{path.name}/{key}", image), captions)
                else:
                    left_out.add(MARKED if marks.count else BLANK, key)
            elif plain or written:
                incomplete.setdefault(key, set()).add(BARE if plain else UNSEEN)
    for key, lacks in incomplete.items():
        left_out.add(APART if len(lacks) > 1 else lacks.pop(), key)


def named(name: str) -> tuple[str, str]:
    """Split the name of a file at the first dot of its base name, as in WebDataset, into the name of the sample and the
    ending."""
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    return f"{folder}{slash}{stem}", ending.lower()


def _grouped(members: Iterator[tarfile.TarInfo]) -> Iterator[tuple[str, dict[str, tarfile.TarInfo]]]:
    """Group successive files that share a name, by their endings. Hidden files and files without an ending belong to no
    sample."""
    last, files = "", dict[str, tarfile.TarInfo]()
    for member in members:
        key, ending = named(member.name)
        if not ending or key.endswith("/") or not key or META.match(member.name):
            continue
        if key != last or ending in files:
            if files:
                yield last, files
            last, files = key, {}
        files[ending] = member
    if files:
        yield last, files


def _dotted(key: str, endings: Mapping[str, Any], plain: bool) -> list[str]:
    """Return the names of photographs that are lost because a dot in their name makes them further files of the sample
    `key`. If the sample has its own photograph, images without captions (`0001.mask.png`) do not count as lost."""
    split_endings = [ending.rpartition(".") for ending in endings if "." in ending]
    images = dict.fromkeys(stem for stem, _, ending in split_endings if f".{ending}" in ENDINGS)
    said = {stem for stem, _, ending in split_endings if ending in CAPTIONS}
    return [f"{key}.{stem}" for stem in images if stem in said or not plain]


@contextmanager
def _members(path: Path) -> Iterator[tuple[Iterator[tarfile.TarInfo], Callable[[tarfile.TarInfo], bytes]]]:
    """Context manager: open a tar file. Return its files and links, and a function that reads a file. Raises UserError
    naming the tar file if a file in it is too large, or if it is damaged, which may show only after the last file that
    can be found."""
    try:
        with tarfile.open(path, "r:") as file:

            def content(member: tarfile.TarInfo) -> bytes:
                opened = file.extractfile(member)
                assert opened is not None  # `_iterated` yields files alone
                return opened.read()

            yield _iterated(file), content
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"{path} is not a readable tar file: {error}") from error


def _iterated(file: Any) -> Iterator[tarfile.TarInfo]:
    name = ""
    for member in file:
        if member.isreg() or member.issym() or member.islnk():
            name = member.name
            if member.size > LARGEST_MEMBER:
                raise tarfile.TarError(f"{name[:200]} has {member.size:,} bytes")
            yield member
        file.members = []  # or it would keep all
    file.fileobj.seek(file.offset)
    if file.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # `tarfile` just ends there
        raise tarfile.TarError(f"it is damaged or cut off {f'after {name[:200]}' if name else 'at its beginning'}")


def captions_in(contents: Mapping[str, bytes | str], marks: Marks) -> tuple[str, ...]:
    """Return the captions of a sample, from its files: lines of text, or JSON that is a text, a list, or an object with
    `caption` or another name of captions.

    contents: the contents of the files by their endings.
    """
    for ending in CAPTIONS:
        text = contents.get(ending, "")
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace").removeprefix("\ufeff")
        lines = [text] if list_in(text) else text.replace("\r", "\n").split("\n")
        if captions := caption_lines(_in_json(text, marks) if ending == "json" else lines, marks):
            return captions
    return ()


def _in_json(text: str, marks: Marks) -> Any:
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if not isinstance(value, dict):
            return value
        keys = [*value]
        places = places_of(keys, ("caption",), {}).get("caption", [])
        return [] if marks.on(value) else [value[keys[place]] for place in places]
    return []


def caption_lines(value: Any, marks: Marks) -> tuple[str, ...]:
    """Return the captions in a value, one line each, without empty ones; anything else is left out."""
    captions: list[str] = []
    for item in flat([value]):
        with suppress(UserError):
            captions += texts("", item, marks)
    return tuple(filter(None, map(one_line, captions)))


def captioned_files(folder: Path, *, deep: bool) -> dict[str, list[Path]]:
    """Find the caption files of each photograph or film in a folder: files of the same name with one of the endings
    `CAPTIONS`. Empty if there are none.

    deep: whether to search subfolders, too.
    """
    by_photograph: dict[str, list[Path]] = {}
    visited = {os.path.realpath(folder)}
    for place, folders, files in os.walk(folder, followlinks=True):
        below = {os.path.realpath(os.path.join(place, name)): name for name in folders if name[0] != "."}
        folders[:] = sorted(name for real, name in below.items() if deep and real not in visited)
        visited |= below.keys()
        written: dict[str, dict[str, Path]] = {}
        pictures = []
        for name in sorted(files):
            stem, ending = os.path.splitext(name)
            if name.startswith("."):
                continue
            if ending.lower() in ENDINGS | FILM_ENDINGS:
                pictures.append((stem, name))
            elif ending[1:].lower() in CAPTIONS:
                written.setdefault(stem, {})[ending[1:].lower()] = Path(place, name)
        for stem, name in pictures:
            own = written.get(stem, {})
            by_photograph[Path(place, name).relative_to(folder).as_posix()] = [
                own[key] for key in CAPTIONS if key in own
            ]
    return by_photograph if any(by_photograph.values()) else {}


def captions_of_files(files: list[Path], marks: Marks) -> tuple[str, ...]:
    """Return the captions in the files of one photograph. Raises UserError naming a file that is no text."""
    contents = {}
    for file in files:
        if not file.is_file():
            raise UserError(f"{file} is not a file")
        contents[file.suffix[1:].lower()] = read_text(file) if file.stat().st_size else ""
    return captions_in(contents, marks)

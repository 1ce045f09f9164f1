"""`Photographs`, the photographs of a split and their captions as arrays, in memory or in files that processes
share."""

import json
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import TypeVar

import numpy as np
from filelock import AcquireReturnProxy, FileLock, Timeout
from numpy.typing import NDArray

from vision_attn.data.films.files import FILM_ENDINGS
from vision_attn.data.images.open import ENDINGS, Encoded
from vision_attn.data.photographs.photograph import Photograph
from vision_attn.data.photographs.pixels import View
from vision_attn.data.ragged import Ragged, map_array, write_array
from vision_attn.data.record_files import say_endings, with_endings
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.system.console import bytes_of, printable, progress, say
from vision_attn.system.errors import UserError
from vision_attn.system.files import digest, meant, replacing
from vision_attn.task import SPLITS

TEXTS = ("ids", "names", "captions")
"""The attributes of `Photographs` that are texts."""
Kept = TypeVar("Kept")
log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Photographs:
    """The photographs of one split. The arrays may hold more photographs; `members` are the numbers of those of the
    split, in order."""

    ids: Ragged
    """The ids as JSON, since an id is an integer or a string."""
    names: Ragged
    captions: Ragged
    starts: NDArray[np.int64]
    """Photograph i of the arrays has captions starts[i] to starts[i + 1]."""
    members: NDArray[np.int64]
    folder: Path | None = None
    """The folder of the files; set by `locate`, like the next two."""
    name_prefix: str = ""
    """The path from the common parent of the folders of all splits to `folder`; part of a name."""
    sizes: NDArray[np.int64] | None = None
    """The number of bytes of the file of each member; -1: there is no file."""
    files: Sequence[Path | Encoded] | None = None
    """The files of all photographs in the arrays, if the data set contains them or they come from several sources;
    None: they are files of `folder`."""
    store: tuple[Path, str] | None = None
    """The folder and the split of the files with the arrays; None: they are in memory."""
    sources: Mapping[str, "Photographs"] | None = None
    """The photographs of each source by name, if there are several: see `joined`."""

    @classmethod
    def of(cls, photographs: Sequence[Photograph]) -> "Photographs":
        inside = [photograph.file for photograph in photographs if isinstance(photograph.file, Encoded)]
        return cls(
            ids=Ragged.texts(json.dumps(photograph.id) for photograph in photographs),
            names=Ragged.texts(Path(photograph.name).as_posix() for photograph in photographs),
            captions=Ragged.texts(caption for photograph in photographs for caption in photograph.captions),
            starts=np.cumsum([0, *(len(photograph.captions) for photograph in photographs)], dtype=np.int64),
            members=np.arange(len(photographs)),
            sizes=np.array([file.size for file in inside]) if inside else None,
            files=inside or None,
        )

    @classmethod
    def joined(cls, sources: Mapping[str, "Photographs"]) -> "Photographs":
        """Join the photographs of several sources. Names then begin with the name of the source, since files of several
        sources may have the same name. A single source is returned unchanged."""
        sets = [*sources.values()]
        if len(sets) == 1:
            return sets[0]
        first = np.cumsum([0, *(len(photographs.ids) for photographs in sets)])
        captions = np.cumsum([0, *(len(photographs.captions) for photographs in sets)])
        filled = [photographs for photographs in sets if len(photographs.ids)]  # a source may lack a split
        placed = all(photographs.sizes is not None for photographs in filled)
        return cls(
            ids=Ragged.joined([photographs.ids for photographs in sets]),
            names=Ragged.texts(
                f"{source}/{photographs.name_prefix}{name}"
                for source, photographs in sources.items()
                for name in photographs.names.all_texts()
            ),
            captions=Ragged.joined([photographs.captions for photographs in sets]),
            starts=np.concatenate(
                [
                    *(photographs.starts[:-1] + before for photographs, before in zip(sets, captions, strict=False)),
                    captions[-1:],
                ]
            ),
            members=np.concatenate(
                [photographs.members + before for photographs, before in zip(sets, first, strict=False)]
            ),
            sizes=np.concatenate([photographs.sizes for photographs in filled] or [np.arange(0)]) if placed else None,
            files=[file for photographs in filled for file in photographs.all_files()] if placed else None,
            sources=sources,
        )

    @property
    def bounds(self) -> NDArray[np.int64]:
        """The number of the first member of each source, then the number of all members."""
        if self.sources is None:
            return np.array([0, len(self)])
        first = np.cumsum([0, *(len(photographs.ids) for photographs in self.sources.values())])
        return np.searchsorted(self.members, first)

    def save(self, folder: Path, split: str) -> None:
        for name in TEXTS:
            getattr(self, name).save(folder, f"{split}-{name}")
        write_array(folder / f"{split}-starts.npy", self.starts)

    @classmethod
    def map(cls, folder: Path, split: str) -> "Photographs":
        """Map the files that `save` wrote into memory. Raises FileNotFoundError or, if they are damaged, UserError."""
        ids, names, captions = (Ragged.map(folder, f"{split}-{name}", np.uint8) for name in TEXTS)
        starts = map_array(folder / f"{split}-starts.npy", np.int64)
        if not len(starts) == len(ids) + 1 == len(names) + 1 or (starts[0], starts[-1]) != (0, len(captions)):
            raise UserError(f"{folder}: these captions are damaged")
        return cls(ids, names, captions, starts, np.arange(len(ids)), store=(folder, split))

    def selected(self, kept: NDArray[np.bool_]) -> "Photographs":
        """Return the photographs for which `kept` is true."""
        return replace(self, members=self.members[kept], sizes=None if self.sizes is None else self.sizes[kept])

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, number: int) -> Photograph:
        member = int(self.members[number])
        captions = [self.captions.text(caption) for caption in range(self.starts[member], self.starts[member + 1])]
        return Photograph(json.loads(self.ids.text(member)), self.name(number), captions, self.file(number))

    def __iter__(self) -> Iterator[Photograph]:
        return (self[number] for number in range(len(self)))

    def name(self, number: int) -> str:
        """Return the path relative to the image folder; after `locate`, relative to the common parent of all
        folders."""
        return self.name_prefix + self.names.text(int(self.members[number]))

    def all_names(self) -> Iterator[str]:
        """Return the names in order, faster than one by one."""
        kept = np.zeros(len(self.names), dtype=bool)
        kept[self.members] = True
        return map(self.name_prefix.__add__, compress(self.names.all_texts(), kept.tolist()))

    def file(self, number: int) -> Path | Encoded | None:
        if self.files is not None:
            return self.files[int(self.members[number])]
        return None if self.folder is None else self.folder / self.names.text(int(self.members[number]))

    def all_files(self) -> Sequence[Path | Encoded]:
        """Return the file of each photograph in the arrays; only after `locate`."""
        if self.files is not None:
            return self.files
        assert self.folder is not None
        return [self.folder / name for name in self.names.all_texts()]

    def view(self, number: int, *, mirrored: bool) -> View:
        """Return a photograph as the input of an encoder; only after `locate`."""
        name = self.names.text(self.members.item(number))
        file = self.file_prefix + name if self.files is None else self.file(number)
        assert file is not None and self.sizes is not None
        return View(self.name_prefix + name, file, mirrored, self.sizes.item(number))

    @cached_property
    def file_prefix(self) -> str:
        """The beginning of the path of a file, before its name."""
        assert self.folder is not None
        return os.path.join(self.folder, "")

    def encoded(self, vocabulary: Vocabulary, max_length: int) -> Ragged:
        """Return the targets (`Vocabulary.targets`) of all captions in the arrays, including those of photographs that
        are left out. They are saved in the store if there is one."""

        if self.sources is not None:
            return Ragged.joined([photographs.encoded(vocabulary, max_length) for photographs in self.sources.values()])

        def make() -> Ragged:
            texts = progress(
                self.captions.all_texts(), what="words of captions", unit="caption", total=len(self.captions)
            )
            return Ragged.numbers(vocabulary.targets(text, max_length) for text in texts)

        if self.store is None:
            return make()
        folder, split = self.store
        rules = digest(vocabulary.json())[:12]  # the words, and how text is split
        name = f"{split}-targets-{rules}-{max_length}"
        return shared(
            folder, "word ids", lambda: Ragged.map(folder, name, np.int32), make, lambda ids: ids.save(folder, name)
        )


def stored(folder: Path, read: Callable[[], dict[str, Photographs]]) -> dict[str, Photographs]:
    """Return the photographs of all splits, mapped from the files in `folder`. The first process writes the files, from
    the result of `read`."""

    def load() -> dict[str, Photographs]:
        return {split: Photographs.map(folder, split) for split in SPLITS}

    def save(splits: dict[str, Photographs]) -> None:
        if folder.exists():
            log.warning("%s: damaged; writing the captions again", folder)
            shutil.rmtree(folder)
        with replacing(folder) as temporary:
            temporary.mkdir()
            for split, photographs in splits.items():
                photographs.save(temporary, split)
        with suppress(OSError):  # another process may delete some now
            _name_others(folder)

    return shared(folder, "captions", load, read, save)


def _name_others(folder: Path) -> None:
    """Log which folders of captions next to `folder` the user may delete."""
    pattern = f"{folder.name.split('-')[0]}-*"
    others = [other for other in sorted(folder.parent.glob(pattern)) if other.is_dir() and other != folder]
    if others:
        sizes = (sum(path.stat().st_size for path in other.glob("*")) for other in others)
        listed = ", ".join(f"{other.name} ({bytes_of(size)})" for other, size in zip(others, sizes, strict=True))
        say(f"{folder.parent} also holds captions of other annotation files; delete those not needed: {listed}")


def shared(
    folder: Path, what: str, load: Callable[[], Kept], make: Callable[[], Kept], save: Callable[[Kept], None]
) -> Kept:
    """Return the result of `load`. If the files are missing or damaged, one process calls `make` and `save` while the
    others wait. If they cannot be opened or saved for another reason, each process keeps the result of `make` in
    memory.

    what: what messages call the files.
    """
    made, problem = None, "what was written cannot be read"
    try:
        with suppress(FileNotFoundError, UserError):
            return load()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, what):
            with suppress(FileNotFoundError, UserError):  # another process may have made it meanwhile
                return load()
            made = make()
            save(made)
        with suppress(FileNotFoundError, UserError):
            return load()
    except OSError as error:
        problem = printable(str(error))
    log.warning("%s: %s; each process keeps %s in memory", folder, problem, what)
    return make() if made is None else made


def _locked(folder: Path, what: str) -> AcquireReturnProxy:
    """Lock `folder`; to be used in a `with` statement."""
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        return lock.acquire(blocking=False)
    except Timeout:
        log.warning("%s: another process prepares the %s; waiting for it", folder, what)
        return lock.acquire()


def locate(
    photographs: Mapping[str, Photographs], folders: Mapping[str, Path], *, films: bool = False
) -> dict[str, Photographs]:
    """Find the file of each photograph in the folder of its split, unless the data set contains the photograph. A name
    without an ending matches the only file with that stem. Missing photographs are logged and left out.

    folders: the folder of each split.
    films: whether a photograph may be a folder of frames.

    Raises UserError if a split has no folder, if no file exists, or if a name matches two files.
    """
    root = os.path.commonpath([folder.absolute() for folder in folders.values()]) if folders else ""
    what = "films" if films else "photographs"
    placed: dict[str, Photographs] = {}
    located: dict[str, Photographs] = {}
    completed: dict[str, str] = {}
    missing, example = 0, Path(root)
    for split, members in photographs.items():
        if not len(members):
            located[split] = members
            continue
        placed[split] = members
        if members.files is None:
            placed[split] = _placed(members, split, folders, root, films, completed)
        sizes = placed[split].sizes
        assert sizes is not None
        located[split] = placed[split].selected(sizes >= 0)
        if sizes.min() < 0:
            example = example if missing else Path(str(placed[split].file(int(np.argmin(sizes)))))
            missing += len(sizes) - len(located[split])
    say_endings(completed, what)
    if not any(map(len, located.values())):
        hint = meant(example, Path(root)) or ": check data.images"
        raise UserError(f"none of the {what} exist, such as {printable(str(example))}{hint}")
    if missing:
        such = printable(f"{example}{meant(example, Path(root))}")
        log.warning("%s that do not exist and are left out: %d, such as %s", what, missing, such)
    return located


def _placed(
    members: Photographs,
    split: str,
    folders: Mapping[str, Path],
    root: str,
    films: bool,
    completed: dict[str, str],
) -> Photographs:
    """Return the photographs of a split with the folder and the sizes of their files. Missing endings are added to
    names, and noted in `completed`."""
    if split not in folders:
        raise UserError(f"no folder of images is given for split {split}")
    path = Path(os.path.relpath(folders[split].absolute(), root)).as_posix()
    placed = replace(members, folder=folders[split])
    sizes = np.fromiter((_size(placed.file_prefix + name, films) for name in members.all_names()), dtype=np.int64)
    missing = {placed.members.item(number): number for number in np.flatnonzero(sizes < 0).tolist()}
    names = {member: placed.names.text(member) for member in missing}
    whole = with_endings(folders[split], names.values(), FILM_ENDINGS if films else ENDINGS)
    if whole:
        texts = [*placed.names.all_texts()]
        for member in (member for member, name in names.items() if name in whole):
            texts[member] = whole[names[member]]
            sizes[missing[member]] = _size(placed.file_prefix + texts[member])
        placed = replace(placed, names=Ragged.texts(texts))
        completed |= whole
    return replace(placed, name_prefix="" if path == "." else f"{path}/", sizes=sizes)


def _size(file: str, folders: bool = False) -> int:
    """Return the number of bytes of a file; -1 if it does not exist, is not a file, or its name is invalid.

    folders: whether folders count as files.
    """
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return -1
    known = stat.S_ISREG(status.st_mode) or (folders and stat.S_ISDIR(status.st_mode))
    return status.st_size if known else -1

"""Replace or remove the page and the pictures that an earlier call wrote into the same folder, and nothing else.

The page `index.html` ends with a list: the names and digests of the page and of the pictures that were written with it.
The next call into this folder may replace these files, and removes listed pictures that it has not written again. Other
files stay, also a page or a picture that has changed since, or has no mark of this package. A call that would replace
one of them ends with an error before it begins.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vision_attn.system.console import complain, plural
from vision_attn.system.files import replacing
from vision_attn.system.inputs import PICTURES, WRITER, is_read, keeps

PAGE = "index.html"
TAIL = 1 << 20
"""The number of bytes at the end of a page that are searched for the list."""
UNFINISHED = b"<p>This call was interrupted: run the command again.</p>\n"
"""The content of the page while a call has drawn pictures, but not its page."""
MARKS = {
    ".html": b'<meta name="generator" content="vision_attn">',
    ".png": b"Software\0" + WRITER.encode(),
    ".gif": WRITER.encode(),
}
"""The marks of a page and a picture of this package in their first `HEAD` bytes."""
HEAD = 1 << 16
_LIST = re.compile(rb"<!-- pictures: (\{[^<>]*\}) -->\s*\Z")


def others_kept(folder: Path) -> None:
    """Raise UserError if a call would replace a page or picture in `folder` that no earlier call wrote, or that has
    changed since."""
    listed = _listed(folder / PAGE)
    for name in _names(folder):
        path = folder / name
        if not _is_same(path, listed[name]) if name in listed else not _is_marked(path):
            keeps(path, "--out")


@contextmanager
def old_pictures_removed(folder: Path | None) -> Iterator[None]:
    """Context manager: let a command write a page and pictures into `folder`, replacing only those of an earlier call.
    Afterwards the other pictures of that call are removed, and the list of new pictures is added to the page. Nothing
    is removed after an error, or without a page."""
    if folder is None:
        yield
        return
    others_kept(folder)
    listed, before = _listed(folder / PAGE), _found(folder)
    try:
        yield
    except BaseException:  # the same command may replace what this one has written
        with suppress(OSError):
            new = _new(folder, before)
            same = {name for name in listed.keys() - new if _is_same(folder / name, listed[name])}
            if PAGE in new | same or PAGE not in _names(folder):
                _list(folder, new | same)
        raise
    new = _new(folder, before)
    if PAGE not in new:
        return
    old = [folder / name for name in sorted(listed.keys() - new) if _is_same(folder / name, listed[name])]
    for path in old:
        path.unlink(missing_ok=True)
    if old:
        complain(f"removed {plural(len(old), 'picture')} of an earlier call from {folder}")
    _list(folder, new)


def _list(folder: Path, names: set[str]) -> None:
    """Write the list into the page, replacing an older one."""
    if not names:
        return
    content = _content(folder / PAGE) if PAGE in names else UNFINISHED
    digests = {name: _digest(folder / name) for name in sorted(names - {PAGE})}
    told = json.dumps({PAGE: hashlib.sha256(content).hexdigest()} | digests)
    told = told.replace("<", r"\u003c").replace(">", r"\u003e")
    with replacing(folder / PAGE) as temporary:
        temporary.write_bytes(content + f"<!-- pictures: {told} -->\n".encode())


def _names(folder: Path) -> list[str]:
    """Return the names of the page and the pictures in a folder, and of links with such names."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return [path.name for path in paths if path.suffix in PICTURES or path.name == PAGE]


def _found(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return the inode, time and size of the page and pictures in a folder by name: these change when a file is written
    again."""
    pages = {}
    for path in (folder / name for name in _names(folder)):
        if path.is_file() and not path.is_symlink():
            known = path.stat()
            pages[path.name] = (known.st_ino, known.st_mtime_ns, known.st_size)
    return pages


def _new(folder: Path, before: dict[str, tuple[int, int, int]]) -> set[str]:
    """Return the names of the files that were written since `before`."""
    return {name for name, known in _found(folder).items() if before.get(name) != known}


def _listed(page: Path) -> dict[str, str]:
    """Read the list of a page: names of files beside it, and digests. The page may be untrusted."""
    if not page.is_file() or page.is_symlink():
        return {}
    with open(page, "rb") as file:
        file.seek(max(0, page.stat().st_size - TAIL))
        match = _LIST.search(file.read())
    try:
        listed = json.loads(match[1]) if match else {}
    except ValueError:
        return {}
    return {
        name: digest
        for name, digest in listed.items()
        if isinstance(digest, str) and Path(name).name == name and (Path(name).suffix in PICTURES or name == PAGE)
    }


def _is_same(path: Path, digest: str) -> bool:
    """Return whether a file is unchanged since an earlier call wrote it, and no input of this call."""
    return path.is_file() and not path.is_symlink() and not is_read(path) and _digest(path) == digest


def _is_marked(path: Path) -> bool:
    """Return whether a file has the mark of this package. Files of a call that was killed before it wrote a list have
    only this mark."""
    if not path.is_file() or path.is_symlink():
        return False
    with open(path, "rb") as file:
        return MARKS[path.suffix] in file.read(HEAD)


def _digest(path: Path) -> str:
    return hashlib.sha256(_content(path)).hexdigest()


def _content(path: Path) -> bytes:
    """Return the content of a file; of a page without its list."""
    content = path.read_bytes()
    return _LIST.sub(b"", content) if path.name == PAGE else content

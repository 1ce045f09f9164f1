"""Pictures of an earlier call, which would stand among those of a new one in the same folder.

The page `index.html` of a call ends with the names and digests of the pictures that were written with it. The next
call into this folder removes them, unless it has written them again. Other files stay, and so does a picture that has
changed since.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vision_attn.system.console import complain, plural
from vision_attn.system.files import replacing
from vision_attn.system.inputs import PICTURES, is_read

PAGE = "index.html"
TAIL = 1 << 20
"""Bytes at the end of a page in which the list is looked for."""
_LIST = re.compile(rb"<!-- pictures: (\{[^<>]*\}) -->\s*\Z")


@contextmanager
def old_pictures_removed(folder: Path | None) -> Iterator[None]:
    """Within this context, a command writes a page and pictures into `folder`. Then those of an earlier call are
    removed, and the page is given the list of the new ones. Nothing is removed after an error, nor without a page."""
    if folder is None:
        yield
        return
    listed, before = _listed(folder / PAGE), _found(folder)
    yield
    after = _found(folder)
    new = {name for name, known in after.items() if before.get(name) != known}
    if PAGE not in new:
        return
    old = [folder / name for name in sorted(listed.keys() - new) if _is_same(folder / name, listed[name])]
    for path in old:
        path.unlink(missing_ok=True)
    if old:
        complain(f"removed {plural(len(old), 'picture')} of an earlier call from {folder}")
    pictures = {name: _digest(folder / name) for name in sorted(new - {PAGE})}
    told = json.dumps(pictures).replace("<", r"\u003c").replace(">", r"\u003e")
    content = (folder / PAGE).read_bytes()
    with replacing(folder / PAGE) as temporary:
        temporary.write_bytes(content + f"<!-- pictures: {told} -->\n".encode())


def _found(folder: Path) -> dict[str, tuple[int, int, int]]:
    """By their names, what changes when the page and pictures of a folder are written again."""
    found = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if (path.suffix in PICTURES or path.name == PAGE) and path.is_file() and not path.is_symlink():
            known = path.stat()
            found[path.name] = (known.st_ino, known.st_mtime_ns, known.st_size)
    return found


def _listed(page: Path) -> dict[str, str]:
    """The list of a page, which may be anyone's: names of pictures beside it, and digests."""
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
        if isinstance(digest, str) and Path(name).name == name and Path(name).suffix in PICTURES
    }


def _is_same(path: Path, digest: str) -> bool:
    """Whether a picture is what an earlier call wrote, and no input of this one."""
    return path.is_file() and not path.is_symlink() and not is_read(path) and _digest(path) == digest


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

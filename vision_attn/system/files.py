"""Find files, read them, and write them atomically."""

import errno
import filecmp
import hashlib
import json
import math
import os
import platform
import re
import shutil
import tempfile
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vision_attn.system.errors import UserError
from vision_attn.system.inputs import check_replaced, is_read, reads

WINDOWS = os.name == "nt"
LONGEST_NAME = 150
"""The largest number of bytes of a file name that the name of its temporary file contains. File systems allow 255 in
total."""

_HOST = f"{zlib.crc32(platform.node().encode()):08x}"
_LEFT_OVER = re.compile(r"\.(\d+)-([0-9a-f]{8})\..*part", re.DOTALL)
_EVALUATED = re.compile(r"_(train|val|test)\.jsonl?$")
"""The names of files that `eval` writes next to weights."""
_swept: set[Path] = set()


def ours() -> Path:
    """Return the folder that holds `configs`, `weights`, `docs/photographs`, `docs/lesson/index.html` and
    `docs/results.yaml`: the checkout of the project, or, if it was installed from a wheel, a folder inside it."""
    packed = Path(__file__).parents[1] / "shipped"
    return packed if packed.is_dir() else Path(__file__).parents[2]


def shipped(path: str | Path) -> Path:
    """Return the file or folder of the project for `path`, such as `weights/photographs`, if `path` itself does not
    exist. Return `path` unchanged if it exists, or if neither exists."""
    path = Path(path)
    theirs = ours() / path
    if os.path.exists(path) or not os.path.exists(theirs):  # Path.exists raises for names that are too long
        return path
    return theirs


def find_best(folder: Path) -> Path:
    """Return the folder with the weights: `folder`/best of a run, or `folder` itself. Raises UserError for neither."""
    for candidate in (folder / "best", folder):
        if (candidate / "model.safetensors").is_file() and (candidate / "config.yaml").is_file():
            if not is_utf8(str(candidate)):
                named = repr(str(candidate))
                raise UserError(f"{named} is not UTF-8 text, but names of folders with weights must be: rename it")
            for name in os.listdir(candidate):
                if not _EVALUATED.search(name):
                    reads(candidate / name)
            return candidate
    if not folder.is_dir():
        what = "is not a folder" if os.path.lexists(folder) else "does not exist"
        raise UserError(f"{folder} {what}: give the folder of a run, such as weights/photographs")
    if (folder / "last").exists():
        raise UserError(f"{folder} has no best/ yet: the run must reach its first validation")
    raise UserError(f"{folder} is no run: neither it nor its best/ holds model.safetensors and config.yaml")


def find(path: str | Path) -> Path:
    """Return the existing file or folder `path`: as given, under `$VISION_ATTN_DATA`, or under `data/`.

    Raises UserError naming every location that was tried.
    """
    if not str(path):
        raise UserError("a name is empty: name a file or a folder")
    path = Path(path).expanduser()
    candidates = [path]
    if not path.is_absolute():
        root = os.environ.get("VISION_ATTN_DATA")
        candidates += [Path(root).expanduser() / path] if root else []
        candidates += [Path("data") / path]
    for candidate in candidates:
        if os.path.exists(candidate):  # Path.exists raises for names that are too long or contain a null byte
            reads(candidate)
            return candidate
    tried = ", ".join(str(candidate) for candidate in candidates)
    hint = "" if os.environ.get("VISION_ATTN_DATA") else "; set VISION_ATTN_DATA to search another folder of data sets"
    raise UserError(f"{path} was not found (tried {tried}){hint}")


def meant(missing: Path, root: Path) -> str:
    """Return a hint for a message about a missing file: a file with nearly the same name, or with the same name in
    `root`. Empty if there is none."""
    with suppress(OSError):
        for name in os.listdir(missing.parent):
            if _alike(name) == _alike(missing.name):
                return f" (there is {name}, with other capitals or another form of an accent)"
            if _alike(Path(name).stem) == _alike(missing.name):
                return f" (there is {name}: names need their ending)"
    inside = root / missing.name
    return f" (there is {inside}: names are those below the folder of images)" if os.path.isfile(inside) else ""


def _alike(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def read_json(path: str | Path) -> Any:
    """Read a JSON file in UTF-8, with or without a byte order mark. Raises UserError naming the file if it cannot be
    read, is not JSON, or is nested too deeply."""
    try:
        text = contents(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not JSON: it is not UTF-8 text") from error
    return parse_json(path, text)


def contents(path: str | Path) -> bytes:
    """Read a file. Raises UserError naming it if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # UserError: a name that no file can have
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def parse_json(path: str | Path, text: str, *, lines: bool = False) -> Any:
    """Parse JSON. Raises UserError naming the file if it is not JSON, is nested too deeply, or repeats a key of an
    object, so that a value would be lost.

    path: the file, for messages.
    lines: whether to accept JSON lines (one value per line), too, and return the list of their values.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise UserError(f"{path} is nested too deeply") from error
    except _Twice as error:
        raise UserError(f"{path}: {error}") from error
    except ValueError as error:
        values, wrong = _json_lines(path, text)
        if wrong > 1:
            raise UserError(f"{path}, line {wrong}, is not JSON") from error
        if wrong or len(values) < 2:
            raise UserError(f"{path} is not JSON: {error}") from error
        if not lines:
            raise UserError(f"{path} is JSON lines (one value per line), but must be one JSON value") from error
        return values


def _json_lines(path: str | Path, text: str) -> tuple[list[Any], int]:
    """Return the values of JSON lines before the first line that is no JSON, and the number of that line, counted from
    1; 0 if all are JSON. Raises UserError naming the file and the line for a key that an object has twice."""
    values = []
    for number, line in enumerate(text.split("\n"), start=1):
        try:
            values += [json.loads(line, object_pairs_hook=_unique)] if line.strip() else []
        except _Twice as error:
            raise UserError(f"{path}, line {number}: {error}") from error
        except (ValueError, RecursionError):
            return values, number
    return values, 0


class _Twice(UserError):
    """Raised if an object of JSON has the same key twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        (key, times), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise _Twice(f"the key {brief(key)} occurs {times} times in an object: write each key once")
    return unique


def finite(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN and infinities by None, because JSON has neither."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def brief(value: Any) -> str:
    """Describe a JSON value for a message: a single value as it is (cut if long), a list or an object by its type."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Context manager: return a temporary file name next to `path` to write to. The file is renamed to `path` on
    success, and removed on failure.

    Temporary files of killed processes in the same folder are removed first. An OSError names `path`. Raises UserError
    if the running command reads `path`, unless the new content is the same.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    temporary = path.parent / _temporary(path.name)
    try:
        yield temporary
        if temporary.is_file():
            with open(temporary, "r+b" if WINDOWS else "rb") as file:
                os.fsync(file.fileno())
        if not (is_read(path) and temporary.is_file() and filecmp.cmp(temporary, path, shallow=False)):
            check_replaced(path)
            os.replace(temporary, path)
    except OSError as error:
        if error.errno is None:  # raised by Pillow's encoders without a reason
            raise OSError(errno.EIO, str(error) or "cannot be written", str(path)) from error
        if error.filename in (None, str(temporary)):  # `write` to a full disk reports no file name
            error.filename = str(path)
            del error.filename2
        raise
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


@contextmanager
def scratch(name: str, parent: str | Path | None = None) -> Iterator[Path]:
    """Context manager: return a temporary folder in `parent` (by default the system's temporary directory), which is
    removed at the end.

    Folders that killed processes left there are removed first. An OSError about a full disk names `parent`.
    """
    parent = Path(parent or tempfile.gettempdir())
    sweep(parent)
    prefix = _temporary(name).removesuffix("part")
    with tempfile.TemporaryDirectory(prefix=prefix, suffix=".part", dir=parent, ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        except OSError as error:
            if error.filename is None and is_full(error):
                error.filename = str(parent)
            raise


def sweep(folder: Path, *, again: bool = False) -> None:
    """Remove temporary files of killed processes of this machine from `folder`. Done once per process, unless
    `again`."""
    if folder in _swept and not again:
        return
    _swept.add(folder)
    entries: list[os.DirEntry] = []
    with suppress(OSError):
        entries = list(os.scandir(folder))
    for entry in entries:
        left = _LEFT_OVER.fullmatch(entry.name)
        if left and left[2] == _HOST and not _alive(int(left[1])):
            with suppress(OSError):  # it may belong to another user; try the next one
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)


def is_full(error: BaseException) -> bool:
    """Return whether an error says that a disk, a quota or the size limit of a file is used up, so that space would
    help."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def way_on(error: BaseException, then: str = "run the same command again") -> str:
    """Return the advice for a full disk, the end of a message; empty if space would not help."""
    return f"; free some space, then {then}" * is_full(error)


def sha256(path: Path) -> str:
    """Compute the SHA-256 of a file, read in chunks. Raises OSError if it cannot be read."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def digest(content: Any) -> str:
    """Compute the SHA-256 of `content` as JSON, independent of the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def shortened(name: str, most: int = LONGEST_NAME, *, unique: bool = False) -> str:
    """Cut `name` to at most `most` bytes in the encoding of file systems.

    unique: whether to append a checksum of 9 bytes to a name that is cut.
    """
    if len(os.fsencode(name)) <= most:
        return name
    return os.fsencode(name)[:most].decode(errors="ignore") + f".{zlib.crc32(os.fsencode(name)):08x}" * unique


def is_temporary(name: str) -> bool:
    """Return whether `name` is a temporary name of `replacing` or `scratch`, of any process and machine."""
    return _LEFT_OVER.fullmatch(name) is not None


def _temporary(name: str) -> str:
    """Return a hidden file name that identifies the process and the machine; see `sweep`."""
    return f".{os.getpid()}-{_HOST}.{shortened(name, unique=True)}.part"


def _alive(process: int) -> bool:
    if WINDOWS:  # where signal 0 is Ctrl-C
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def is_utf8(text: str) -> bool:
    """Return whether a name is text in UTF-8. Names of files may hold any bytes."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def is_pretrained(name: str | Path) -> bool:
    """Return whether `name` is that of a model of transformers: "transformers:NAME-or-folder"."""
    return str(name).startswith("transformers:")

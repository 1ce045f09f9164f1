"""Code of the user's own: importing what `--trust` names, which runs it, and whether an error came from there."""

import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from vision_attn.system.console import reason_of, suggest
from vision_attn.system.errors import UserError


def import_trusted(module: str) -> ModuleType:
    """Import a module that the user trusts, which may lie in the current folder: that is not on the path of an
    installed command. It is the last place, and only for this import: later ones must not run what lies there."""
    folder = os.getcwd()
    if folder in sys.path or "" in sys.path:
        return import_module(module)
    sys.path.append(folder)
    try:
        return import_module(module)
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)


def own_function(name: str) -> Callable[..., Any]:
    """The function that `module:function` names, of a module that the user trusts. Raises UserError, which says what
    is missing."""
    module, _, function = name.partition(":")
    try:
        found = import_trusted(module)
    except SyntaxError as error:
        raise UserError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    except ImportError as error:
        places = "in the current folder, on PYTHONPATH, or among the installed packages"
        missing = error.name and f"{module}.".startswith(f"{error.name}.")  # and not a package that it imports
        reason = f"there is no module {error.name} {places}" if missing else reason_of(error)
        raise UserError(f"{name} cannot be imported: {reason}") from error
    if not hasattr(found, function):
        own = [key for key, value in vars(found).items() if getattr(value, "__module__", None) == found.__name__]
        raise UserError(f"{name}: there is no {function} in {found.__file__ or module}{suggest(function, own)}")
    return getattr(found, function)


def place_of(error: BaseException) -> tuple[traceback.FrameSummary, Literal["ours", "theirs"]]:
    """The innermost frame of the traceback outside libraries, and whose code it is."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame, owner) for frame in frames if (owner := _owner(frame.filename))]
    return places[-1] if places else (frames[-1], "ours")


def _owner(file: str) -> Literal["ours", "theirs"] | None:
    """Whose code a file holds: this package's, or the user's; None for that of libraries."""
    path = Path(file)
    if Path(__file__).parents[1] in path.parents:
        return "ours"
    libraries = {"site-packages", "dist-packages"} & set(path.parts) or not path.is_file()
    standard = Path(sysconfig.get_path("stdlib")) in path.parents
    return None if libraries or standard else "theirs"

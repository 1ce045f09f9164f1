"""Import the user's own code that `--trust` names, which runs it, and find out whether an error came from there."""

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
    """Import a module that the user trusts. It may lie in the current folder, which is not on the path of an installed
    command. That folder is searched last, and for this import only: later imports must not run files in it."""
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
    """Return the function `module:function` of a module that the user trusts. Raises UserError saying what is
    missing."""
    module, _, function = name.partition(":")
    try:
        imported = import_trusted(module)
    except SyntaxError as error:
        raise UserError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    except ImportError as error:
        places = "in the current folder, on PYTHONPATH, or among the installed packages"
        missing = error.name and f"{module}.".startswith(f"{error.name}.")  # and not a package that it imports
        reason = f"there is no module {error.name} {places}" if missing else reason_of(error)
        raise UserError(f"{name} cannot be imported: {reason}") from error
    if not hasattr(imported, function):
        own = [key for key, value in vars(imported).items() if getattr(value, "__module__", None) == imported.__name__]
        raise UserError(f"{name}: there is no {function} in {imported.__file__ or module}{suggest(function, own)}")
    return getattr(imported, function)


def place_of(error: BaseException) -> tuple[traceback.FrameSummary, Literal["ours", "theirs"]]:
    """Return the innermost frame of the traceback outside libraries, and whether it is this package's code or the
    user's."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame, owner) for frame in frames if (owner := _owner(frame.filename))]
    return places[-1] if places else (frames[-1], "ours")


def _owner(file: str) -> Literal["ours", "theirs"] | None:
    """Return whose code a file holds: this package's or the user's; None for that of libraries."""
    path = Path(file)
    if Path(__file__).parents[1] in path.parents:
        return "ours"
    libraries = {"site-packages", "dist-packages"} & set(path.parts) or not path.is_file()
    standard = Path(sysconfig.get_path("stdlib")) in path.parents
    return None if libraries or standard else "theirs"

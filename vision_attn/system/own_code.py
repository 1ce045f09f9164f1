"""Code of the user's own, which `--trust` names: importing it runs it."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any

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

"""Decide which classes a config may name, so that opening an untrusted run folder runs none of its code.

A run folder may name only classes of `MODULES` and of packages that the user trusts, and only if a parameter expects an
object of such a class (`reader`). So it can only call the constructors of a few modules, with numbers and strings. The
user's own config may name any class that fits.
"""

import inspect
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from vision_attn.system.console import few, printable, suggest
from vision_attn.system.errors import UserError
from vision_attn.task import Source

PARTS = ("attention", "criteria", "data", "encoders", "layers", "metrics", "models", "tasks")
LAYERS = ("activation", "batchnorm", "conv", "dropout", "flatten", "instancenorm", "linear", "normalization", "pooling")
MODULES = (*(f"vision_attn.{part}" for part in PARTS), *(f"torch.nn.modules.{part}" for part in LAYERS))
"""Modules and packages whose classes a run folder may name. From torch only single layers: constructors of others
contain loops whose length is an argument."""

NEVER = frozenset(
    [*sys.stdlib_module_names, "PIL", "numpy", "pip", "pycocoevalcap", "pycocotools", "safetensors", "setuptools",
     "tokenizers", "torch", "tensorboard", "torchvision", "tqdm", "vision_attn", "wandb", "yaml"]
)  # fmt: skip
"""Packages that cannot be declared trusted. They contain no user models, but functions that execute, download, write or
delete files, so a message must never suggest trusting them."""

LARGEST = 10**15
"""The largest number in the config of a run folder. Products of sizes in torch then fit in 64 bits, or fail."""


class Wrong(UserError):
    """Raised for a value of a config that its parameter does not take. The message begins with the key."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key


class Untrusted(Wrong):
    """Raised for a class that a config may not name. The name of the file precedes the message."""

    def __init__(self, path: str, key: str) -> None:
        super().__init__(key, path)
        package, name = path.split(".")[0], short(path)
        hint = f'if you trust it, add --trust {short(package)} (in Python: trust="{short(package)}")'
        self.args = (
            f"names {name}, which no run folder may use" if package in NEVER
            else f"names {name}, which is third-party code: {hint}",
        )  # fmt: skip


class Names:
    """The names that the user's own config may use: any class or function."""

    def find(self, path: str, type_: type, key: str) -> Any:
        """Return the class that `path` names, a subclass of `type_`, or a function. Raises `Wrong`."""
        module, _, name = path.rpartition(".")
        constructor = getattr(imported := _import(module, key), name, None)
        if constructor is None:
            raise _nothing(imported, name, key)
        return _checked(constructor, path, type_, key)

    def trusts(self, constructor: Any) -> bool:
        """Return whether parameters without an annotation may be set."""
        return True

    def check_number(self, value: Any, key: str) -> None:
        """Raise `Wrong` for a number beyond the limits."""


class RunFolder(Names):
    """The names that the config of a run folder may use: classes that are defined in `MODULES`, or in packages of
    `trust`.

    Raises UserError for a name that is no package's, and for packages that cannot be trusted as a whole.
    """

    def __init__(self, trust: Iterable[str] = ()) -> None:
        self.trust = tuple(trust)
        self.modules = (*MODULES, *self.trust)
        for package in self.trust:
            if not all(name.isidentifier() and name.isascii() for name in package.split(".")):
                more = "; repeat --trust for each package" * ("," in package)
                raise UserError(f"{package!r} is not a package name{more}")
            if package.split(".")[0] in NEVER:
                raise UserError(
                    f"--trust {package}: {package.split('.')[0]} has functions that can do anything; its classes that "
                    "a run folder may use need no --trust"
                )

    def find(self, path: str, type_: type, key: str) -> Any:
        """Return the class or function that `path` names, as in `Names`. Imports nothing outside the permitted modules,
        and never looks through an attribute."""
        module, _, name = path.rpartition(".")
        if not _within(module, self.modules) and module != "torch.nn":
            raise Untrusted(path, key)
        constructor = vars(imported := _import(module, key)).get(name)
        if constructor is None:
            raise _nothing(imported, name, key)
        if not _within(home := getattr(constructor, "__module__", None), self.modules):
            if _within(module, self.trust):
                raise Wrong(key, f"{short(path)} is defined in {home or 'another module'}, not in {short(module)}")
            raise Untrusted(path, key)
        if not inspect.isclass(constructor) and not (inspect.isfunction(constructor) and _within(module, self.trust)):
            raise Wrong(key, f"{short(path)} is not a class, and only classes may be named here")
        return _checked(constructor, path, type_, key)

    def trusts(self, constructor: Any) -> bool:
        return _within(constructor.__module__, self.trust)

    def check_number(self, value: Any, key: str) -> None:
        if type(value) in (int, float) and not -LARGEST <= value <= LARGEST:  # also rejects NaN
            raise Wrong(key, f"{short(value)} is outside the range of numbers in a run folder")


def _import(module: str, key: str) -> ModuleType:
    """Import a module. Raises `Wrong` if there is none, and UserError if Python cannot parse it."""
    try:
        return import_module(module)
    except SyntaxError as error:
        raise UserError(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    except ImportError as error:
        own = "" if module.split(".")[0] in NEVER else "; if it is your own, name its folder in PYTHONPATH"
        raise Wrong(key, f"{short(' '.join(str(error).split()))}{own}") from error


def _nothing(module: ModuleType, name: str, key: str) -> Wrong:
    classes = [class_name for class_name, value in vars(module).items() if inspect.isclass(value)]
    return Wrong(key, f"there is no {short(name)} in {short(module.__name__)}{suggest(name, classes)}")


def _checked(constructor: Any, path: str, type_: type, key: str) -> Any:
    """Return `constructor`. Raises `Wrong` unless it is a subclass of `type_`, or another callable."""
    if inspect.isclass(constructor):
        try:
            derives = issubclass(constructor, type_)
        except TypeError:  # a protocol with attributes: only instances can be checked against it
            derives = issubclass(constructor, (nn.Module, Source))
        if not derives:
            others = few([*fitting(type_).values()])
            raise Wrong(key, f"{short(path)} is not a subclass of {type_.__name__}{others and f', as are {others}'}")
    elif not callable(constructor):
        raise Wrong(key, f"{short(path)} is neither a class nor a function")
    return constructor


def fitting(type_: type) -> dict[str, str]:
    """Return the paths of the subclasses of `type_` that are imported, by their names: those of this package, or else
    all. Those without subclasses come first, since others may be mere bases."""
    classes: list[type] = [] if type_ is object else [*_subclasses(type_)]
    for known in classes:
        classes += [subclass for subclass in _subclasses(known) if subclass not in classes]
    named = [known for known in classes if known.__name__ == known.__qualname__ and known.__name__[0] != "_"]
    own = [known for known in named if _within(known.__module__, MODULES)]
    ordered = sorted(own or named, key=lambda known: bool(_subclasses(known)))
    return {known.__name__: f"{_public(known)}.{known.__name__}" for known in ordered}


def _subclasses(type_: type) -> list[type]:
    return type.__subclasses__(type_)  # of a metaclass too, whose own method is another


def _public(type_: type) -> str:
    """Return the shortest name of a module that has this class: of torch.optim.adamw.AdamW, torch.optim."""
    module = type_.__module__
    while (parent := module.rpartition(".")[0]) and getattr(sys.modules.get(parent), type_.__name__, None) is type_:
        module = parent
    return module


def as_packages(packages: str | Iterable[str]) -> tuple[str, ...]:
    """Return the packages that a caller trusts as a tuple. A single package may be given as text."""
    return (packages,) if isinstance(packages, str) else tuple(packages)


def confined(data: Any) -> Any:
    """Return the source in the config of a run folder, restricted: it may not download, or write a cache outside the
    current folder.

    The given cache folder is kept if it contains caches already, and replaced by the default, `cache`, otherwise.
    """
    arguments = data.get("init_args") if isinstance(data, dict) else None
    if not isinstance(arguments, dict):
        return data
    arguments = dict(arguments)
    if "download" in arguments:
        arguments["download"] = False
    if isinstance(arguments.get("cache"), str) and not _holds_caches(Path(arguments["cache"])):
        arguments["cache"] = "cache"
    return data | {"init_args": arguments}


def _holds_caches(folder: Path) -> bool:
    """Return whether `folder` is below the current one, or already contains feature caches."""
    below = not folder.is_absolute() and ".." not in folder.parts and not str(folder).startswith("~")
    try:
        if below and folder.resolve().is_relative_to(Path.cwd().resolve()):  # also where links of the run lead
            return True
        return any(folder.expanduser().glob("*/index.json"))
    except (OSError, RuntimeError, ValueError):  # no access, no such user, a null byte
        return False


def _within(module: Any, modules: Iterable[str]) -> bool:
    """Return whether `module` is one of `modules` or a module below one of them."""
    return isinstance(module, str) and any(
        module == permitted or module.startswith(f"{permitted}.") for permitted in modules
    )


def short(value: Any) -> str:
    """Return a value as text of about 80 characters at most that is safe to print."""
    text = value if isinstance(value, str) else repr(value)
    return printable(text if len(text) <= 80 else f"{text[:80]} ...")

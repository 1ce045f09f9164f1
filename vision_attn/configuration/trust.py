"""Checks of the configs of untrusted run folders, so that opening a run folder runs none of its code.

A config is checked against the type annotations of constructors. Where a parameter expects an instance of a class, or a
callable that returns one, a config may name a subclass defined in `MODULES`. Everywhere else only plain values are
allowed. A config can therefore only call the constructors of a few modules, with numbers and strings.
"""

import inspect
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from torch import nn

from vision_attn.system.console import printable
from vision_attn.system.mistakes import suggest
from vision_attn.task import Source

PARTS = ("attention", "criteria", "data", "encoders", "layers", "metrics", "models", "tasks")
LAYERS = ("activation", "batchnorm", "conv", "dropout", "flatten", "instancenorm", "linear", "normalization", "pooling")
MODULES = (*(f"vision_attn.{part}" for part in PARTS), *(f"torch.nn.modules.{part}" for part in LAYERS))
"""Modules and packages whose classes a run folder may name. From torch only single layers: constructors of others
contain loops whose length is an argument."""

NEVER = frozenset(
    [*sys.stdlib_module_names, "PIL", "jsonargparse", "numpy", "pip", "pycocoevalcap", "pycocotools", "safetensors",
     "setuptools", "tokenizers", "torch", "torchvision", "tqdm", "vision_attn", "wandb", "yaml"]
)  # fmt: skip
"""Packages that cannot be declared trusted. None of them contains user models, and they have functions that execute,
download, write or delete files, so a message must never suggest trusting them."""

CLASSES = 50
"""The largest number of classes that a config may name."""

LARGEST = 10**15
"""The largest number in a config. Products of sizes in torch then fit in 64 bits, or fail."""

_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)+")
_PLAIN = (bool, int, float, str, Path)


class Untrusted(ValueError):
    """A config names a class that it may not name. The message is preceded by the name of the file."""

    def __init__(self, path: str) -> None:
        package = path.split(".")[0]
        shown = _short(path)
        if package in NEVER:
            super().__init__(f"names {shown}, which no run folder may use")
        else:
            hint = f'if you trust it, add --trust {_short(package)} (in Python: trust="{_short(package)}")'
            super().__init__(f"names {shown}, which is third-party code: {hint}")


def as_packages(packages: str | Iterable[str]) -> tuple[str, ...]:
    """The packages that a caller trusts, of which one may be given by itself."""
    return (packages,) if isinstance(packages, str) else tuple(packages)


def check_trust(packages: Iterable[str]) -> None:
    """Raise ValueError for invalid package names, and for packages that cannot be trusted as a whole."""
    for package in packages:
        if not _PATH.fullmatch(f"{package}.x"):
            raise ValueError(
                f"{package!r} is not a package name" + "; repeat --trust for each package" * ("," in package)
            )
        if package.split(".")[0] in NEVER:
            raise ValueError(
                f"--trust {package}: {package.split('.')[0]} has functions that can do anything; its classes that a "
                "run folder may use need no --trust"
            )


def checked(value: Any, expected: Any, key: str, *, trust: Sequence[str] = ()) -> Any:
    """Return a copy of `value`, the content of a config at `key`, after checking that `expected` permits every class.

    expected: the annotation of the parameter that will receive the value.
    trust: further packages that may be named, and imported, which runs their code.

    Raises Untrusted for names from other packages, and ValueError, beginning with the key, for all other errors.
    """
    check_trust(trust)
    return _Walk((*MODULES, *trust), tuple(trust)).value(value, expected, key)


def confined(data: dict[str, Any]) -> dict[str, Any]:
    """Restrict a checked source: it may not download, nor write a cache outside the current folder.

    The given cache folder is kept if it contains caches already, and replaced by the default, `cache`, otherwise.
    """
    arguments = dict(data["init_args"])
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


class _Expected(NamedTuple):
    """A parameter that expects an object: its class, and how many constructor arguments the code itself supplies."""

    kind: type
    given: int


class _Walk:
    """Checks a config against the annotations of constructors. Methods raise like `checked`."""

    def __init__(self, modules: tuple[str, ...], trusted: tuple[str, ...]) -> None:
        self.modules, self.trusted, self.classes = modules, trusted, 0

    def value(self, value: Any, annotation: Any, key: str, default: Any = None) -> Any:
        """Check `value` for a parameter with this annotation."""
        if value is None:
            return None
        kinds = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
        for kind in kinds:
            if (expected := _object(kind)) and not (isinstance(value, str) and str in kinds):
                return self.made(value, expected, key)
            if isinstance(value, list) and (element := _element(kind)) is not None:
                return [self.value(item, element, f"{key}.{number}") for number, item in enumerate(value)]
            if isinstance(value, dict) and _is_mapping(kind):
                element = (*get_args(kind), Any, Any)[1]
                return {name: self.value(item, element, f"{key}.{_short(name)}") for name, item in value.items()}
        if any(map(_is_plain, kinds)):
            return _plain(value, key)
        if isinstance(value, (list, dict)) or value != default:
            raise ValueError(f"{key}: a run folder may not set this")
        return value

    def made(self, value: Any, expected: _Expected, key: str) -> Any:
        """Check the description of an object: a class path, or a class path with arguments."""
        path = value.get("class_path") if isinstance(value, dict) else value
        if not isinstance(path, str) or not _PATH.fullmatch(path):
            raise ValueError(f"{key}: expected a class path such as {MODULES[0]}.module.Class, got {_short(path)!r}")
        self.classes += 1
        if self.classes > CLASSES:
            raise ValueError(f"{key}: the config names more than {CLASSES} classes")
        constructor = self.found(path, expected.kind, key)
        value = value if isinstance(value, dict) else {"class_path": path}
        if extra := set(value) - {"class_path", "init_args"}:
            raise ValueError(f"{key}.{_short(min(extra))}: there is no such key, only class_path and init_args")
        arguments = value.get("init_args", {})
        if not isinstance(arguments, dict):
            raise ValueError(f"{key}.init_args: expected keys and values, got {_short(arguments)!r}")
        return {"class_path": path, "init_args": self.arguments(constructor, arguments, expected.given, key)}

    def found(self, path: str, kind: type, key: str) -> Any:
        """Find the class that `path` names. Imports nothing outside the permitted modules."""
        module, _, name = path.rpartition(".")
        if not within(module, self.modules) and module != "torch.nn":
            raise Untrusted(path)
        try:
            constructor = vars(import_module(module)).get(name)
        except ImportError as error:
            own = "; name its folder in PYTHONPATH" * within(module, self.trusted)
            raise ValueError(f"{key}: {_short(' '.join(str(error).split()))}{own}") from error
        if constructor is None:
            classes = [name for name, value in vars(sys.modules[module]).items() if inspect.isclass(value)]
            raise ValueError(f"{key}: there is no {_short(name)} in {_short(module)}{suggest(name, classes)}")
        if not within(home := getattr(constructor, "__module__", None), self.modules):
            if within(module, self.trusted):
                raise ValueError(
                    f"{key}: {_short(path)} is defined in {home or 'another module'}, not in {_short(module)}"
                )
            raise Untrusted(path)
        if inspect.isclass(constructor):
            if not _derives(constructor, kind):
                raise ValueError(f"{key}: {_short(path)} is not a subclass of {kind.__name__}")
        elif not (inspect.isfunction(constructor) and within(module, self.trusted)):
            raise ValueError(f"{key}: {_short(path)} is not a class, and only classes may be named here")
        return constructor

    def arguments(self, constructor: Any, arguments: dict, given: int, key: str) -> dict:
        """Check the arguments of a constructor against its annotations."""
        parameters, trusted = _parameters(constructor, given), within(constructor.__module__, self.trusted)
        checked = {}
        for name, value in arguments.items():
            parameter = parameters.get(name)
            if trusted and (parameter is None or parameter.annotation is parameter.empty):
                checked[name] = self.loose(value, f"{key}.{name}")
            elif parameter is None:
                raise ValueError(f"{key}.{_short(name)}: there is no such key{suggest(_short(name), parameters)}")
            else:
                checked[name] = self.value(value, parameter.annotation, f"{key}.{name}", parameter.default)
        return checked

    def loose(self, value: Any, key: str) -> Any:
        """Check `value` for a parameter of trusted code without an annotation: any values, and permitted classes."""
        if isinstance(value, list):
            return [self.loose(item, key) for item in value]
        if isinstance(value, dict) and "class_path" in value:
            return self.made(value, _Expected(object, 0), key)
        return {name: self.loose(item, key) for name, item in value.items()} if isinstance(value, dict) else value


def _object(kind: Any) -> _Expected | None:
    """Return the object that a type expects, if a config can describe it by a class path; else None."""
    if get_origin(kind) is Callable:
        given, made = get_args(kind) or (..., object)
        return _Expected(made, 0 if given is ... else len(given)) if inspect.isclass(made) else None
    plain = not inspect.isclass(kind) or get_origin(kind) is not None
    return None if plain or kind in _PLAIN or kind.__module__ == "builtins" else _Expected(kind, 0)


def _element(kind: Any) -> Any:
    """Return the element type of a list that a config may contain; None for all other types."""
    if get_origin(kind) not in (list, tuple, Sequence, Iterable):
        return None
    return next((element for element in get_args(kind) if element is not ...), None)


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) in (dict, Mapping) or kind in (dict, Mapping)


def _is_plain(kind: Any) -> bool:
    return kind in _PLAIN or get_origin(kind) is Literal


def _plain(value: Any, key: str) -> Any:
    """Check that `value` is a single value. The parser checks its type, because it converts some types."""
    if type(value) in (bool, str):
        return value
    if type(value) in (int, float):
        if not -LARGEST <= value <= LARGEST:  # also rejects NaN
            raise ValueError(f"{key}: {_short(value)} is outside the range of numbers in a run folder")
        return value
    raise ValueError(f"{key}: expected a single value, got {_short(value)!r}")


def _parameters(constructor: Any, given: int) -> dict[str, inspect.Parameter]:
    """Return the parameters that a config may set: the named ones, except the leading ones that the code supplies."""
    try:
        parameters = list(inspect.signature(constructor, eval_str=True).parameters.values())
    except (NameError, TypeError, ValueError):
        parameters = []
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    positional = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in named)
    return {one.name: one for one in named[min(given, positional) :]}


def _derives(constructor: type, kind: type) -> bool:
    try:
        return issubclass(constructor, kind)
    except TypeError:  # a protocol with attributes: only instances can be checked against it
        return issubclass(constructor, (nn.Module, Source))


def within(module: Any, modules: Iterable[str]) -> bool:
    """Return whether `module` is one of `modules` or a module below one of them."""
    return isinstance(module, str) and any(module == one or module.startswith(f"{one}.") for one in modules)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return printable(text if len(text) <= 80 else f"{text[:80]} ...")

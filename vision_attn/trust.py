"""What the config of a run folder may name. A run folder may come from anyone, and opening it runs none of its code.

A config is followed along the types of constructors: where a parameter expects an instance of a class, or a callable
that makes one, a config may name a class that derives from that class and is defined in `MODULES`; everywhere else it
may give plain values only. So what a config can run is the constructors of a few modules, with numbers and text.
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

from vision_attn.console import printable
from vision_attn.mistakes import suggest
from vision_attn.task import Source

PARTS = ("attention", "criteria", "data", "encoders", "layers", "metrics", "models", "tasks")
LAYERS = ("activation", "batchnorm", "conv", "dropout", "flatten", "instancenorm", "linear", "normalization", "pooling")
MODULES = (*(f"vision_attn.{part}" for part in PARTS), *(f"torch.nn.modules.{part}" for part in LAYERS))
"""Modules, and packages of modules, whose classes a run folder may name. Of torch, layers without layers inside: the
constructors of the others loop over as many as they are asked for."""

NEVER = frozenset(
    [*sys.stdlib_module_names, "PIL", "jsonargparse", "numpy", "pip", "pycocoevalcap", "pycocotools", "safetensors",
     "setuptools", "tokenizers", "torch", "torchvision", "tqdm", "vision_attn", "wandb", "yaml"]
)  # fmt: skip
"""Packages that cannot be declared trusted. None of them is somebody's model, and they hold functions that run,
download, write or delete anything: a message that suggested to trust them would be a trap."""

CLASSES = 50
"""The most classes that a config may name."""

LARGEST = 10**15
"""The largest number. Sizes that torch multiplies stay within 64 bits, or fail."""

_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)+")
_PLAIN = (bool, int, float, str, Path)


class Untrusted(ValueError):
    """A config names something that it may not name; the message continues the name of the file."""

    def __init__(self, path: str) -> None:
        package = path.split(".")[0]
        shown = _short(path)
        if package in NEVER:
            super().__init__(f"names {shown}, which no run folder may use")
        else:
            hint = f"if you trust it, add --trust {_short(package)}"
            super().__init__(f"names {shown}, which is code from elsewhere: {hint}")


def check_trust(packages: Iterable[str]) -> None:
    """Raise ValueError for names that are no packages, or packages that cannot be trusted as a whole."""
    for package in packages:
        if not _PATH.fullmatch(f"{package}.x"):
            raise ValueError(f"{package!r} is no name of a package")
        if package.split(".")[0] in NEVER:
            raise ValueError(
                f"--trust {package}: {package.split('.')[0]} has functions that can do anything; classes of it that a "
                "run folder may use need no --trust"
            )


def checked(value: Any, expected: Any, key: str, *, trust: Sequence[str] = ()) -> Any:
    """A copy of `value`, the content of a config at `key`, in which every class is one that `expected` permits.

    expected: the annotation of the parameter that will get the value.
    trust: packages that may be named too, and imported, which runs their code.

    Raises Untrusted for names of other packages and ValueError, beginning with the key, for whatever else is wrong.
    """
    check_trust(trust)
    return _Walk((*MODULES, *trust), tuple(trust)).value(value, expected, key)


def confined(data: dict[str, Any]) -> dict[str, Any]:
    """A checked source that downloads nothing, and caches nothing outside the current folder.

    Its cache stays where it is told to be if caches lie there already; else it moves to the default, `cache`.
    """
    arguments = dict(data["init_args"])
    if "download" in arguments:
        arguments["download"] = False
    if isinstance(arguments.get("cache"), str) and not _holds_caches(Path(arguments["cache"])):
        arguments["cache"] = "cache"
    return data | {"init_args": arguments}


def _holds_caches(folder: Path) -> bool:
    """Whether `folder` is below the current one, or holds caches of features already."""
    if not folder.is_absolute() and ".." not in folder.parts and not str(folder).startswith("~"):
        return True
    try:
        return any(folder.expanduser().glob("*/index.json"))
    except (OSError, RuntimeError, ValueError):  # no access, no such user, a zero byte
        return False


class _Expected(NamedTuple):
    """A parameter that gets an object: of which class, and how many arguments its constructor is given by the code."""

    kind: type
    given: int


class _Walk:
    """Follows a config along the types of constructors. Methods raise as `checked` does."""

    def __init__(self, modules: tuple[str, ...], trusted: tuple[str, ...]) -> None:
        self.modules, self.trusted, self.classes = modules, trusted, 0

    def value(self, value: Any, annotation: Any, key: str, default: Any = None) -> Any:
        """`value` as a parameter of this annotation may be given it."""
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
        """What makes an object: a class path, or one with arguments."""
        path = value.get("class_path") if isinstance(value, dict) else value
        if not isinstance(path, str) or not _PATH.fullmatch(path):
            raise ValueError(f"{key}: expected a class path such as {MODULES[0]}.module.Class, got {_short(path)!r}")
        self.classes += 1
        if self.classes > CLASSES:
            raise ValueError(f"{key}: the config names more than {CLASSES} classes")
        thing = self.found(path, expected.kind, key)
        value = value if isinstance(value, dict) else {"class_path": path}
        if extra := set(value) - {"class_path", "init_args"}:
            raise ValueError(f"{key}.{_short(min(extra))}: there is no such key beside class_path and init_args")
        arguments = value.get("init_args", {})
        if not isinstance(arguments, dict):
            raise ValueError(f"{key}.init_args: expected keys and values, got {_short(arguments)!r}")
        return {"class_path": path, "init_args": self.arguments(thing, arguments, expected.given, key)}

    def found(self, path: str, kind: type, key: str) -> Any:
        """The class that `path` names. Nothing outside the modules permitted is imported to find it."""
        module, _, name = path.rpartition(".")
        if not within(module, self.modules) and module != "torch.nn":
            raise Untrusted(path)
        try:
            thing = vars(import_module(module)).get(name)
        except ImportError as error:
            raise ValueError(f"{key}: {_short(' '.join(str(error).split()))}") from error
        if thing is None:
            classes = [name for name, thing in vars(sys.modules[module]).items() if inspect.isclass(thing)]
            raise ValueError(f"{key}: there is no {_short(name)} in {_short(module)}{suggest(name, classes)}")
        if not within(home := getattr(thing, "__module__", None), self.modules):
            if within(module, self.trusted):
                raise ValueError(f"{key}: {_short(path)} is of {home or 'elsewhere'}, and only imported there")
            raise Untrusted(path)
        if inspect.isclass(thing):
            if not _derives(thing, kind):
                raise ValueError(f"{key}: {_short(path)} is no {kind.__name__}")
        elif not (inspect.isfunction(thing) and within(module, self.trusted)):
            raise ValueError(f"{key}: {_short(path)} is no class, and nothing else may be named here")
        return thing

    def arguments(self, thing: Any, arguments: dict, given: int, key: str) -> dict:
        """The arguments of a constructor, each checked by its annotation."""
        parameters, trusted = _parameters(thing, given), within(thing.__module__, self.trusted)
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
        """`value` for a parameter of trusted code that has no type: any values, and classes that may be named."""
        if isinstance(value, list):
            return [self.loose(item, key) for item in value]
        if isinstance(value, dict) and "class_path" in value:
            return self.made(value, _Expected(object, 0), key)
        return {name: self.loose(item, key) for name, item in value.items()} if isinstance(value, dict) else value


def _object(kind: Any) -> _Expected | None:
    """What a type asks for, if that is an object which a config makes by naming a class."""
    if get_origin(kind) is Callable:
        given, made = get_args(kind) or (..., object)
        return _Expected(made, 0 if given is ... else len(given)) if inspect.isclass(made) else None
    plain = not inspect.isclass(kind) or get_origin(kind) is not None
    return None if plain or kind in _PLAIN or kind.__module__ == "builtins" else _Expected(kind, 0)


def _element(kind: Any) -> Any:
    """The type of the elements of a list that a config may write out; None for all other types."""
    if get_origin(kind) not in (list, tuple, Sequence, Iterable):
        return None
    return next((element for element in get_args(kind) if element is not ...), None)


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) in (dict, Mapping) or kind in (dict, Mapping)


def _is_plain(kind: Any) -> bool:
    return kind in _PLAIN or get_origin(kind) is Literal


def _plain(value: Any, key: str) -> Any:
    """A single value: whether it has the right type is for the parser to say, which converts a few."""
    if type(value) in (bool, str):
        return value
    if type(value) in (int, float):
        if not -LARGEST <= value <= LARGEST:  # nor NaN
            raise ValueError(f"{key}: {_short(value)} is no number that a run folder may give")
        return value
    raise ValueError(f"{key}: expected a single value, got {_short(value)!r}")


def _parameters(thing: Any, given: int) -> dict[str, inspect.Parameter]:
    """The parameters that a config may set: those with a name, less the leading ones that the code gives itself."""
    try:
        parameters = list(inspect.signature(thing, eval_str=True).parameters.values())
    except (NameError, TypeError, ValueError):
        parameters = []
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    positional = sum(one.kind is one.POSITIONAL_OR_KEYWORD for one in named)
    return {one.name: one for one in named[min(given, positional) :]}


def _derives(thing: type, kind: type) -> bool:
    try:
        return issubclass(thing, kind)
    except TypeError:  # a protocol with attributes: what classes fulfil it is only known of their instances
        return issubclass(thing, (nn.Module, Source))


def within(module: Any, modules: Iterable[str]) -> bool:
    """Whether `module` is the name of one of `modules`, or of a module below one."""
    return isinstance(module, str) and any(module == one or module.startswith(f"{one}.") for one in modules)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return printable(text if len(text) <= 80 else f"{text[:80]} ...")

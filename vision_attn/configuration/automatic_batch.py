"""`data.batch_size: auto`: training finds the size of batches, and writes it into the config of the run."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from vision_attn.configuration.options import Option
from vision_attn.configuration.parts import PartConfig
from vision_attn.configuration.trust import Wrong
from vision_attn.system.bounded_yaml import flat, read_yaml

AUTO = "auto"
KEY = ("data", "batch_size")
PLACEHOLDER = 1
"""The size of batches until it is found, since constructors need a number."""


def with_placeholder(content: dict[str, Any], options: list[Option]) -> tuple[dict[str, Any], list[Option], bool]:
    """Return a config and its options with a number in place of `auto`, and whether `auto` was the value that
    counts."""
    data: Any = content.get("data")
    arguments: Any = data.get("init_args") if isinstance(data, dict) else None
    written = isinstance(arguments, dict) and arguments.get("batch_size") == AUTO
    if written:
        content = content | {"data": data | {"init_args": arguments | {"batch_size": PLACEHOLDER}}}
    given = [option.text for option in options if option.path == KEY]
    options = [
        option._replace(text=str(PLACEHOLDER)) if option.path == KEY and option.text == AUTO else option
        for option in options
    ]
    return content, options, given[-1] == AUTO if given else written


@contextmanager
def named() -> Iterator[None]:
    """Context manager: let the error for an invalid size of batches mention `auto`."""
    try:
        yield
    except Wrong as error:
        if type(error) is not Wrong or error.key != ".".join(KEY):
            raise
        raise Wrong(error.key, f"{str(error).removeprefix(f'{error.key}: ')}; {AUTO} finds a size that fits") from error


def is_automatic(data: PartConfig) -> bool:
    """Return whether training is to find the size of batches."""
    return data.arguments.get("batch_size") == AUTO


def placed(data: PartConfig, size: int = PLACEHOLDER) -> PartConfig:
    """Return the data with batches of `size` images."""
    return replace(data, arguments=data.arguments | {"batch_size": size})


def size_in(config: Path) -> int | None:
    """Return the size of batches in the config of a run; None if it has none."""
    size = flat(read_yaml(config)).get(".".join(KEY)) if config.is_file() else None
    return size if isinstance(size, int) else None

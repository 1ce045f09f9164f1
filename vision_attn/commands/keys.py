"""List the keys of a config that can be overridden, with their values.

Prints --KEY=VALUE, as `train` and `prepare` take it, a line for each key of CONFIG, defaults included. With overrides,
of the config that they give: --task.model=CLASS lists the keys of that class.
"""

import argparse
import json
from typing import Any

from vision_attn.commands._hints import read_config
from vision_attn.console import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn keys`."""
    parser.add_argument("config", metavar="CONFIG", help="a file or the name of a config, such as sat_soft_scenes")
    parser.set_defaults(overrides=[])


def run(arguments: argparse.Namespace) -> int:
    """Print the keys. Raises ValueError as `train` does."""
    import yaml

    from vision_attn.config import dump

    content = yaml.safe_load(dump(read_config(arguments)))
    content.pop("format", None)
    for key, value in settings(content):
        say(f"--{key}={value if isinstance(value, str) else json.dumps(value)}")
    return 0


def settings(node: Any, path: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    """Return the keys of a config as written on the command line, with values; a class is the value of its key."""
    if not isinstance(node, dict) or not node:
        return [(".".join(path), node)]
    found = [(".".join(path), node["class_path"])] if "class_path" in node else []
    for key, value in node.items():
        if key != "class_path" and not (key == "init_args" and not value):
            found += settings(value, path if key == "init_args" else (*path, str(key)))
    return found

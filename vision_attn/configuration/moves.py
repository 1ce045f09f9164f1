"""Translate old names (dotted paths, arguments, values) in older configs, run folders and command lines to current
ones."""

import re
from collections.abc import Mapping
from typing import Any

from vision_attn.system.console import complain

MODULES = {
    "vision_attn.criteria.looks": "vision_attn.criteria.reinforce_attention",
    "vision_attn.data.captions": "vision_attn.data.photographs.captions",
    "vision_attn.data.clutter": "vision_attn.data.digits.clutter",
    "vision_attn.data.digit_pairs": "vision_attn.data.digits.digit_pairs",
    "vision_attn.data.labelled": "vision_attn.data.labelled.labelled_images",
    "vision_attn.data.large_clutter": "vision_attn.data.digits.large_clutter",
    "vision_attn.data.lines": "vision_attn.data.lines.text_lines",
    "vision_attn.data.mnist": "vision_attn.data.digits.mnist",
    "vision_attn.data.scenes": "vision_attn.data.scenes.scenes",
    "vision_attn.data.shards": "vision_attn.data.photographs.shards",
    "vision_attn.data.strings": "vision_attn.data.lines.mnist_strings",
    "vision_attn.data.targets": "vision_attn.data.scenes.star_scenes",
    "vision_attn.data.two_digits": "vision_attn.data.digits.two_digits",
    "vision_attn.encoders.given": "vision_attn.encoders.precomputed",
    "vision_attn.encoders.joined": "vision_attn.encoders.concatenated",
    "vision_attn.metrics.deletion": "vision_attn.metrics.region_deletion",
    "vision_attn.models.digits": "vision_attn.models.whole_image",
}
"""Modules whose classes a config may name: old -> new."""

CLASSES = {
    "Deletion": "RegionDeletion",
    "Given": "Precomputed",
    "Joined": "Concatenated",
    "ReinforceLooks": "ReinforceAttention",
}
"""Classes of these modules: old -> new."""

PATHS = {
    f"vision_attn.attention.scores.{name}": f"vision_attn.attention.location.{name}"
    for name in ("Location", "ContentLocation")
} | {"vision_attn.encoders.clips.Motion": "vision_attn.encoders.clips.MotionFeatures"}
"""Classes that moved or were renamed, of modules that stay: old -> new dotted path."""

ARGUMENTS = {"forget_looks": "context_dropout", "forget_after": "context_dropout_after", "splits": "split_files"}
"""Arguments of classes of this package: old -> new."""

VALUES = {("at_test", "mode"): "argmax"}
"""Values of arguments of classes of this package: (today's argument, old value) -> new value."""

RUN = {"rehearse": "sanity_check"}
"""Keys of `run`: old -> new."""

REMOVED = ("format",)
"""Keys of a config that mean nothing any more."""

NOTHING: Mapping[str, str] = {}
_PATH = re.compile(r"(vision_attn\.\w+\.\w+)\.([A-Z]\w*)")
_told: set[str] = set()


def moved(config: Any, *, where: Any = None, names: Mapping[str, str] = NOTHING) -> Any:
    """Return a config, or a part of it, with today's names; a current one is unchanged.

    where: the file, which a line names together with each name that moved; None: no line.
    names: the table for the keys of `config`.
    """
    if isinstance(config, str):
        return moved_path(config, where=where)
    if isinstance(config, list):
        return [moved(value, where=where) for value in config]
    if not isinstance(config, dict):
        return config
    ours, renamed = str(config.get("class_path")).startswith("vision_attn."), {}
    for key, value in config.items():
        below = ARGUMENTS if ours and key == "init_args" else RUN if key == "run" else NOTHING
        _tell(key, new := names.get(key, key), where)
        if names is ARGUMENTS and isinstance(value, str):
            value = _moved_value(new, value, where)
        renamed[new] = moved(value, where=where, names=below)
    return renamed


def moved_path(path: str, *, where: Any = None) -> str:
    """Return today's dotted path of a class; any other text as it is."""
    match, new = _PATH.fullmatch(path), PATHS.get(path, path)
    if match and match[1] in MODULES:
        new = f"{MODULES[match[1]]}.{CLASSES.get(match[2], match[2])}"
    _tell(path, new, where)
    return new


def moved_option(key: tuple[str, ...], value: str) -> tuple[tuple[str, ...], str]:
    """Return the key and the value of an option such as "--data=vision_attn.data.labelled.LabelledImages", with today's
    names."""
    last = {"data": ARGUMENTS, "task": ARGUMENTS, "run": RUN}.get(key[0], {}).get(key[-1], key[-1])
    _tell(key[-1], last, "the command line")
    if key[0] == "task":
        value = _moved_value(last, value, "the command line")
    return (*key[:-1], last), moved_path(value, where="the command line")


def _moved_value(argument: str, value: str, where: Any) -> str:
    """Return today's value of an argument."""
    new = VALUES.get((argument, value), value)
    _tell(f"{argument}: {value}", f"{argument}: {new}", where)
    return new


def _tell(old: str, new: str, where: Any) -> None:
    if where is not None and old != new and old not in _told:
        _told.add(old)
        complain(f"{where}: {old} is now {new}")

"""Conversion of configs written by earlier versions."""

from typing import Any

MOVED = {
    "vision_attn.models.backbone.": "vision_attn.encoders.backbone.",
    "vision_attn.models.convnet.": "vision_attn.encoders.convnet.",
    "vision_attn.models.vgg.": "vision_attn.encoders.vgg.",
}
"""Prefixes of dotted paths: old -> new."""

RENAMED = {
    "vision_attn.attention.hard.Hard": {"expected": "expectation_probability"},
    "vision_attn.attention.monotonic.HardMonotonic": {"expected": "expectation_probability"},
    "vision_attn.models.draw.DRAW": {"num_turns": "num_steps"},
}
"""Arguments of classes: old -> new."""

LIKELIHOOD = "vision_attn.criteria.likelihood.Likelihood"
PENALTY = "vision_attn.criteria.doubly_stochastic.DoublyStochastic"
LOOKS = "vision_attn.criteria.looks.ReinforceLooks"


def migrated(config: Any) -> Any:
    """Convert a config: classes and arguments get their new names, and a captioner's `penalty` and `reinforce` become
    `criteria`. A current config is unchanged."""
    if isinstance(config, str):
        return next((new + config.removeprefix(old) for old, new in MOVED.items() if config.startswith(old)), config)
    if isinstance(config, list):
        return [migrated(value) for value in config]
    if not isinstance(config, dict):
        return config
    config = {key: migrated(value) for key, value in config.items()}
    if config.get("at_test") == "draw":
        config["at_test"] = "sample"
    path, options = config.get("class_path"), config.get("init_args")
    if isinstance(path, str) and isinstance(options, dict):
        names = RENAMED.get(path, {})
        config["init_args"] = {names.get(name, name): value for name, value in options.items()}
        if path == "vision_attn.tasks.caption.Captioning":
            config["init_args"] = _with_criteria(config["init_args"])
    return config


def _with_criteria(options: dict[str, Any]) -> dict[str, Any]:
    """Convert the arguments of `Captioning` to criteria. The default of `penalty` was 1."""
    if "criteria" in options or not options.keys() & {"penalty", "reinforce"}:
        return options
    options = dict(options)
    penalty, reinforce = options.pop("penalty", 1.0), options.pop("reinforce", None)
    looks = {"class_path": LOOKS}
    if isinstance(reinforce, dict) and isinstance(reinforce.get("init_args"), dict):
        looks["init_args"] = reinforce["init_args"]
    criteria = {"likelihood": {"class_path": LIKELIHOOD}}
    criteria["penalty"] = {"class_path": PENALTY, "init_args": {"weight": penalty}}
    criteria["looks"] = looks
    return options | {"criteria": criteria}

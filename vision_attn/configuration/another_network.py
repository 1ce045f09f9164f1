"""`--task.encoder.name=resnet50`: another network as the encoder of a config."""

import inspect
from importlib import import_module
from typing import Any

from vision_attn.configuration.options import Option
from vision_attn.system.console import say
from vision_attn.system.errors import UserError

NAME = ("task", "encoder", "name")
ENCODERS = {
    f"vision_attn.encoders.{name}" for name in ("backbone.Backbone", "patches.Patches", "patches.Timm", "vgg.VGG")
}
"""Classes whose settings belong to a network."""
KEPT = {"trainable": bool, "rate": float, "precision": str, "fit": str}
"""Settings that suit any network, of these types: `trainable` may also be a node of one."""


def with_network(content: dict[str, Any], options: list[Option]) -> tuple[dict[str, Any], list[Option]]:
    """A config whose encoder has the settings of the network that an option names, and the other options, which change
    them as usual.

    Node, resolution, weights and normalisation in the config are those of its own network: they are left out, and a
    line says what is in their place; of the config's own network they stay, as a line says too. Raises UserError if
    there is no such network, or if it has no weights and is not trained, unless an option names its weights.
    """
    names = [option.text for option in options if option.path == NAME]
    task: Any = content.get("task")
    encoder = (task.get("init_args") or {}).get("encoder") if isinstance(task, dict) else None
    if not names or not isinstance(encoder, dict) or any(option.path == NAME[:2] for option in options):
        return content, options
    if encoder.get("class_path") not in ENCODERS:
        return content, options
    settings = encoder.get("init_args") or {}
    given = {option.path[-1]: option.text for option in options if option.path[:-1] == NAME[:2]}
    if settings.get("name") == names[-1]:
        say(_told(names[-1], encoder, given, {}) + "; the config has this network already, and its settings stay")
        return content, options
    from vision_attn.encoders.choosing import suited

    found = suited(names[-1])
    module, _, kind = found["class_path"].rpartition(".")
    taken = inspect.signature(getattr(import_module(module), kind)).parameters
    kept = {key: settings[key] for key, type_ in KEPT.items() if key in taken and isinstance(settings.get(key), type_)}
    trainable = str(given.get("trainable", kept.get("trainable"))).lower() == "true"
    if "weights" not in given and not found["init_args"].get("weights", True) and not trainable:
        raise UserError(
            f"encoder {names[-1]} has no weights that could be downloaded, and layers that are not trained would stay "
            "random: give its file as --task.encoder.weights=FILE, or train all of it, --task.encoder.trainable=true"
        )
    say(_told(names[-1], found, given, settings))
    changed = found | {"init_args": found["init_args"] | kept}
    task = task | {"init_args": task["init_args"] | {"encoder": changed}}
    return content | {"task": task}, [option for option in options if option.path != NAME]


def _told(name: str, found: dict[str, Any], given: dict[str, str], before: dict[str, Any]) -> str:
    """What the encoder of a network has, with the options that are given."""
    own = (found.get("init_args") or {}) | given
    kind = found["class_path"].rpartition(".")[2]
    resolution = f" at {own['resolution']} pixels" if "resolution" in own else ""
    parts = [own.get("node", f"its patch tokens ({kind})") + resolution]
    weights = own.get("weights", None if kind == "Backbone" else "pretrained")
    random = weights in (None, "null")
    parts.append("random weights: give task.encoder.weights=FILE" if random else f"weights {weights}")
    if before.get("weights") not in (None, weights):
        parts.append(f"not {before['weights']}, which are of {before.get('name', 'the network in the config')}")
    return f"encoder {name}: {', '.join(parts)}"

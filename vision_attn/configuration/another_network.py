"""`--task.encoder.name=resnet50`: another network as the encoder of a config."""

import inspect
from importlib import import_module
from typing import Any

from vision_attn.configuration.options import Option
from vision_attn.system.console import say

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
    line says what is in their place. Raises UserError if there is no such network.
    """
    names = [option.text for option in options if option.path == NAME]
    task: Any = content.get("task")
    encoder = (task.get("init_args") or {}).get("encoder") if isinstance(task, dict) else None
    if not names or not isinstance(encoder, dict) or any(option.path == NAME[:2] for option in options):
        return content, options
    settings = encoder.get("init_args") or {}
    if settings.get("name") == names[-1] or encoder.get("class_path") not in ENCODERS:
        return content, options
    from vision_attn.encoders.choosing import suited

    found = suited(names[-1])
    module, _, kind = found["class_path"].rpartition(".")
    taken = inspect.signature(getattr(import_module(module), kind)).parameters
    kept = {key: settings[key] for key, type_ in KEPT.items() if key in taken and isinstance(settings.get(key), type_)}
    own = [option.text for option in options if option.path == (*NAME[:2], "weights")]
    say(_told(names[-1], found | {"init_args": found["init_args"] | {"weights": own[-1]}} if own else found, settings))
    changed = found | {"init_args": found["init_args"] | kept}
    task = task | {"init_args": task["init_args"] | {"encoder": changed}}
    return content | {"task": task}, [option for option in options if option.path != NAME]


def _told(name: str, found: dict[str, Any], before: dict[str, Any]) -> str:
    """What the encoder of another network has."""
    own = found["init_args"]
    if "node" in own:
        parts = [f"{own['node']} at {own['resolution']} pixels"]
    else:
        parts = [f"its patch tokens ({found['class_path'].rpartition('.')[2]})"]
    weights = own.get("weights", "pretrained")
    parts.append(f"weights {weights}" if weights else "random weights: give task.encoder.weights=FILE")
    if before.get("weights"):
        parts.append(f"not {before['weights']}, which are of {before.get('name', 'the network in the config')}")
    return f"encoder {name}: {', '.join(parts)}"

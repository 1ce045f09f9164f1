"""Replace the network of a config's encoder by an option such as `--task.encoder.name=resnet50`."""

import inspect
from importlib import import_module
from typing import Any

from vision_attn.configuration.options import Option
from vision_attn.system.console import say
from vision_attn.system.errors import UserError

NAME = ("task", "encoder", "name")
WEIGHTS = ("task", "encoder", "weights")
ENCODERS = {
    f"vision_attn.encoders.{name}" for name in ("backbone.Backbone", "patches.Patches", "patches.Timm", "vgg.VGG")
}
"""Classes of encoders whose settings belong to a network."""
KEPT = {"trainable": bool, "rate": float, "precision": str, "fit": str}
"""Settings that suit any network, with the type for which they do. (`trainable` may also be the name of a node, which
suits one network.)"""


def with_network(content: dict[str, Any], options: list[Option]) -> tuple[dict[str, Any], list[Option]]:
    """Return a config whose encoder has the settings of the network in an option, and the remaining options.

    Node, resolution, weights and normalisation in the config belong to its own network. They are replaced, and a line
    says by which. If the option names the config's own network, they stay, and a line says so. Raises UserError if
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
    from vision_attn.encoders.network_settings import suited

    suitable = suited(names[-1])
    module, _, class_name = suitable["class_path"].rpartition(".")
    taken = inspect.signature(getattr(import_module(module), class_name)).parameters
    kept = {key: settings[key] for key, type_ in KEPT.items() if key in taken and isinstance(settings.get(key), type_)}
    trainable = str(given.get("trainable", kept.get("trainable"))).lower() == "true"
    if "weights" not in given and not suitable["init_args"].get("weights", True) and not trainable:
        raise UserError(
            f"encoder {names[-1]} has no weights that could be downloaded, and layers that are not trained would stay "
            "random: give its file as --task.encoder.weights=FILE, or train all of it, --task.encoder.trainable=true"
        )
    say(_told(names[-1], suitable, given, settings))
    changed = suitable | {"init_args": suitable["init_args"] | kept}
    task = task | {"init_args": task["init_args"] | {"encoder": changed}}
    return content | {"task": task}, [option for option in options if option.path != NAME]


def _told(name: str, encoder: dict[str, Any], given: dict[str, str], before: dict[str, Any]) -> str:
    """Describe the settings of a network's encoder, with the options that are given."""
    own = (encoder.get("init_args") or {}) | given
    class_name = encoder["class_path"].rpartition(".")[2]
    resolution = f" at {own['resolution']} pixels" if "resolution" in own else ""
    settings = [own.get("node", f"its patch tokens ({class_name})") + resolution]
    weights = own.get("weights", None if class_name == "Backbone" else "pretrained")
    random = weights in (None, "null")
    settings.append("random weights: give task.encoder.weights=FILE" if random else f"weights {weights}")
    if before.get("weights") not in (None, weights):
        settings.append(f"not {before['weights']}, which are of {before.get('name', 'the network in the config')}")
    return f"encoder {name}: {', '.join(settings)}"

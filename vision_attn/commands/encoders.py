"""List the networks that can be encoders of photographs, or the nodes of one, with the shapes of their maps.

--task.encoder.name=NAME puts a network into any config of photographs; what follows from the name is listed here.
"""

import argparse
from textwrap import wrap
from typing import Any

from vision_attn.system.console import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn encoders`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a network, such as resnet50 or timm:convnext_tiny")


def run(arguments: argparse.Namespace) -> int:
    """Print the networks, or the nodes of one. Raises UserError if there is no such network."""
    for line in networks_known() if arguments.name is None else described(arguments.name):
        say(line)
    return 0


def networks_known() -> list[str]:
    """Return the names of all networks, by library."""
    from importlib.util import find_spec

    from vision_attn.encoders import networks
    from vision_attn.encoders.efficientnet_lite import SCALES

    lines = [f"of this package: {', '.join(SCALES)}"]
    lines += wrap(f"of torchvision: {', '.join(networks.of_torchvision())}", 110, subsequent_indent="  ")
    if find_spec("timm"):
        from timm import list_models

        lines.append(f"of timm ({len(list_models())}; timm.list_models() lists them), such as timm:convnext_tiny")
    else:
        lines.append("of timm, such as timm:convnext_tiny: pip install 'vision-attn[hub]'")
    return [*lines, "the nodes of one: vision-attn encoders NAME; in a config: --task.encoder.name=NAME"]


def described(name: str) -> list[str]:
    """Describe the network `name`: the encoder that a config gets, and the last node of each shape of its maps."""
    from vision_attn.encoders import networks
    from vision_attn.encoders.network_settings import BACKBONE, suited

    config = suited(name)
    class_name, settings = config["class_path"].rpartition(".")[2], config["init_args"]
    lines = [
        ", ".join([f"{name}: {class_name}", *(f"{key} {value}" for key, value in settings.items() if key != "name")])
    ]
    lines.append(f"weights: {weights_of(name, settings)}")
    if config["class_path"] != BACKBONE:
        return [*lines, "regions: its patch tokens"]
    resolution = settings["resolution"]
    last = {shape: node for node, shape in networks.maps(name, resolution)[1].items()}
    for (size, rows, columns), node in last.items():
        if rows != columns:  # a node within a block, whose channels come last
            continue
        chosen = "  (chosen)" if node == settings["node"] else ""
        lines.append(
            f"{node:<32} {rows} x {columns} regions of {size} numbers, stride {round(resolution / rows)}{chosen}"
        )
    return lines


def weights_of(name: str, settings: dict[str, Any]) -> str:
    """Say where the weights of a network come from, and whether they are on this machine."""
    from vision_attn.encoders import networks

    library = networks.library_of(name)
    if library != "torchvision":
        return {"timm": "pretrained, downloaded by timm from its hub"}.get(
            library, "give a file as task.encoder.weights"
        )
    path = networks.downloaded(networks.preset(name, settings["weights"]))
    return f"{settings['weights']}, {'in' if path.is_file() else 'downloaded into'} {path}"

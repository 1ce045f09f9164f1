"""Find the settings of an encoder from the name of a network: node, resolution, weights and normalisation."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vision_attn.encoders import networks
from vision_attn.geometry.receptive_fields import stride
from vision_attn.system.errors import UserError

SIDE = 14
"""Rows and columns of regions, as in Xu et al. 2015: 196 annotation vectors."""
STRIDES = (16, 32)
POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
BACKBONE = "vision_attn.encoders.backbone.Backbone"
OTHERS = {"mobilenet_v2_torchvision.fp16.safetensors": (networks.HALF, networks.HALF)}
"""The mean and standard deviation of files in our configs, if they are not the usual ones of the network."""
PATCHES, TIMM = "vision_attn.encoders.patches.Patches", "vision_attn.encoders.patches.Timm"


def suited(name: str) -> dict[str, Any]:
    """Return the class and the arguments of an encoder for the network `name`, in the form of a config.

    A convolutional network is cut at its last map of stride 16 or 32 before it is pooled, and sees images whose map has
    14 x 14 regions. A vision transformer gives its patch tokens, at the resolution of its weights. The weights are
    those that the library downloads. Raises UserError if there is no such network, or it has no such map.
    """
    if name.startswith(networks.TIMM):
        plain = name.removeprefix(networks.TIMM)
        network = networks.timm_on_meta(plain)
        if hasattr(network, "num_prefix_tokens"):
            return {"class_path": TIMM, "init_args": {"name": plain}}
    if name.startswith("vit_"):
        return {"class_path": PATCHES, "init_args": {"name": name, "weights": networks.usual_weights(name)}}
    node, step = last_map(name)
    settings = {"name": name, "node": node, "resolution": SIDE * step, "weights": networks.usual_weights(name)}
    if networks.library_of(name) != "torchvision":  # whose mean and standard deviation are the defaults
        mean, std = networks.usual_normalisation(name)
        settings |= {"mean": [*mean], "std": [*std]}
    return {"class_path": BACKBONE, "init_args": settings}


def last_map(name: str) -> tuple[str, int]:
    """Return the last node of a convolutional network, other than a pool, whose map has a stride of 16 or 32, and the
    stride."""
    resolution = SIDE * max(STRIDES)
    try:
        network, shapes = networks.maps(name, resolution)
    except networks.UnknownNetwork:
        raise
    except UserError:  # a network that takes images of one size alone, or cannot be traced
        network, shapes = nn.Identity(), {}
    layers = dict(network.named_modules())
    for node, (_, rows, columns) in reversed(shapes.items()):
        step = stride(resolution, rows)
        if rows == columns and step in STRIDES and not isinstance(layers.get(node), POOLS):
            return node, round(step)
    raise UserError(f"{name} has no map of stride 16 or 32: give task.encoder.node, or another class of encoder")


def other_weights(name: str) -> str:
    """Return advice for a missing file of weights of the network `name`."""
    usual = networks.usual_weights(name)
    if usual is None:
        return (
            f"Give the file of {name} as --task.encoder.weights=FILE, or another network: --task.encoder.name=resnet50"
        )
    return (
        f"Or let {networks.library_of(name)} download the encoder's weights, --task.encoder.weights={usual}, or give "
        f"another file of {name}: --task.encoder.weights=FILE"
    )


def covered(name: str, resolution: int, missing: Sequence[str]) -> str | None:
    """Return the last node of a convolutional network, other than a pool, that comes before all layers in `missing`;
    None if there is none."""
    try:
        network, shapes = networks.maps(name, resolution)
    except UserError:  # as in `last_map`
        return None
    layers, last = dict(network.named_modules()), None
    for node in shapes:
        if any(layer == node or layer.startswith(f"{node}.") for layer in missing):
            return last
        last = last if isinstance(layers.get(node), POOLS) else node
    return None


def network_in(path: Path, name: str) -> str | None:
    """Return the network whose name is part of a file's name, if it is another network than `name`."""
    named = [network for network in (*networks.of_torchvision(), *networks.SCALES) if network in path.stem]
    longest = max(named, key=len, default=None)
    return None if longest and longest in name else longest


def unusual_normalisation(name: str, path: Path, mean: Tensor, std: Tensor) -> Iterator[str]:
    """Yield a warning if images are not normalised as is usual for the network `name`: the mean and standard deviation
    in a config may belong to other weights than the file `path`."""
    usual = [*map(_as_option, OTHERS.get(path.name) or networks.usual_normalisation(name))]
    used = [_as_option(numbers.flatten().tolist()) for numbers in (mean, std)]
    if used != usual:
        yield (
            f"{path.name} is used with mean {used[0]} and std {used[1]}, not with those usual for {name}: if it was "
            f"trained with those, add --task.encoder.mean={usual[0]} --task.encoder.std={usual[1]}"
        )


def _as_option(numbers: Sequence[float]) -> str:
    """Write numbers as an option of the command line takes them."""
    return f"[{','.join(f'{number:.4g}' for number in numbers)}]"

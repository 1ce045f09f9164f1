"""Messages on a file of weights that a config names for a network."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import Tensor

from vision_attn.encoders import networks

OTHERS = {"mobilenet_v2_torchvision.fp16.safetensors": (networks.HALF, networks.HALF)}
"""The mean and standard deviation of files in our configs, where they are not those usual for the network."""


def others(name: str) -> str:
    """Return what to do where the file with the weights of the network `name` is missing."""
    usual = networks.usual_weights(name)
    if usual is None:
        return (
            f"Give the file of {name} as --task.encoder.weights=FILE, or another network: --task.encoder.name=resnet50"
        )
    return f"Or let {networks.library_of(name)} download the encoder's weights: --task.encoder.weights={usual}"


def unusual(name: str, path: Path, mean: Tensor, std: Tensor) -> Iterator[str]:
    """Yield a line if images are not normalised as is usual for weights of the network `name`: the mean and standard
    deviation in a config may belong to the weights that it named before the file `path`."""
    usual = [*map(_written, OTHERS.get(path.name) or networks.usual_normalisation(name))]
    found = [_written(each.flatten().tolist()) for each in (mean, std)]
    if found != usual:
        yield (
            f"{path.name} is used with mean {found[0]} and std {found[1]}, not with those usual for {name}: if it was "
            f"trained with those, add --task.encoder.mean={usual[0]} --task.encoder.std={usual[1]}"
        )


def _written(numbers: Sequence[float]) -> str:
    """Numbers as an option of the command line takes them."""
    return f"[{','.join(f'{each:.4g}' for each in numbers)}]"

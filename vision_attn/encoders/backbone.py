"""Annotation vectors from any torchvision network, cut at a named node."""

import hashlib
import re
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
import torchvision
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torchvision.models import get_model, get_model_weights, list_models
from torchvision.models.feature_extraction import create_feature_extractor

from vision_attn.contracts import Encoder
from vision_attn.files import find
from vision_attn.ranges import check_range
from vision_attn.shapes import require

HINT = "; `data.images.read_image` reads a photograph as one of these"
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LARGEST = 4096
"""Height and width of photographs, in pixels."""


class Backbone(Encoder):
    """(B, 3, S, S) photographs of S = `resolution` pixels -> (B, L, D) annotation vectors, read at `node`.

    Takes uint8 RGB: the normalisation belongs to the weights and is done here. Frozen unless `trainable`; batch-norm
    statistics stay as they were trained either way. Constructed with random weights; `initialise` loads `weights`.

    `name`: any classification network of `torchvision.models`. `node`: as `get_graph_node_names` of
    `torchvision.models.feature_extraction` lists them; its output must be a map (B, D, Y, X).
    `weights`: one of torchvision's names ("IMAGENET1K_V1"), which torchvision downloads and which brings its own mean
    and standard deviation; a safetensors or torch file of the network's state dict; or None. `mean` and `std` are those
    that a file was trained with, for images in [0, 1].
    """

    def __init__(
        self,
        *,
        name: str,
        node: str,
        resolution: int = 224,
        weights: str | None = None,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        trainable: bool = False,
    ):
        super().__init__()
        self.name, self.node, self.resolution, self.weights = name, node, resolution, weights
        self.trainable = trainable
        if name not in list_models(module=torchvision.models):  # others, detectors say, download parts of themselves
            raise ValueError(f"torchvision.models has no classification network {name!r}")
        if not re.fullmatch(r"[\w.]+", node):  # torchvision takes it for a regular expression
            raise ValueError(f"{node!r} is no node of {name}: it would have letters, digits, underscores and dots")
        check_range(type(self).__name__, 1, LARGEST, resolution=resolution)
        try:
            with torch.device("meta"):  # the layers behind the cut, a VGG's classifier for one, never take memory
                network = get_model(name, weights=None, **self.options(resolution)).eval()
                body = create_feature_extractor(network, {node: "map"}).eval()
                shape = body(torch.empty(1, 3, resolution, resolution))["map"].shape
        except (ValueError, TypeError, RuntimeError, AssertionError) as error:  # some need numbers while they are built
            reason = " ".join(str(error).split())
            raise ValueError(f"torchvision's {name} cannot be cut at {node}: {reason}") from None
        layout = self.layout_of(shape)
        if layout is None:
            raise ValueError(f"{name} at {node} gives {tuple(shape)}, not a map (B, D, Y, X): cut it earlier")
        self.region_size, self.grid = layout

        self.body = _with_random_weights(body).requires_grad_(trainable).to(memory_format=torch.channels_last)
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1))

    @staticmethod
    def options(resolution: int) -> dict[str, Any]:
        """What torchvision's constructor is called with."""
        return {}

    @staticmethod
    def layout_of(shape: torch.Size) -> tuple[int, tuple[int, int]] | None:
        """D and the grid of an output of this shape; None where it is not of the right kind."""
        return (shape[1], tuple(shape[2:])) if len(shape) == 4 else None

    @staticmethod
    def regions_of(output: Float[Tensor, "B D Y X"]) -> Float[Tensor, "B L D"]:
        """The annotation vectors of an output, row by row."""
        return output.flatten(2).mT

    def initialise(self) -> None:
        """Load `weights`. Raises ValueError if the file is missing, or lacks layers (which are listed)."""
        if self.weights is None:
            return
        known = get_model_weights(self.name)
        if self.weights in known.__members__:
            state = _download(known[self.weights])
            preset = known[self.weights].transforms()
            for name in ("mean", "std"):
                getattr(self, name).copy_(torch.tensor(getattr(preset, name)).view(3, 1, 1))
        else:
            try:
                path = find(self.weights)
            except ValueError as error:
                names = ", ".join(known.__members__)
                raise ValueError(f"{error}. Or let torchvision download the encoder's weights: {names}") from None
            state = _read(path)
        _load(self.body, state, f"weights {self.weights} of {self.name}")

    def identity(self) -> dict[str, str | int]:
        """What a cache of annotation vectors is asked for: encoders that differ in output differ here."""
        return {
            "backbone": self.name,
            "node": self.node,
            "resolution": self.resolution,
            "checksum": checksum(self)[:16],
        }

    def train(self, mode: bool = True) -> "Backbone":
        return super().train(False)

    def forward(self, images: UInt8[Tensor, "B 3 S S"]) -> Float[Tensor, "B L D"]:
        require("images", images, "B 3 Y X", "uint8", Y=self.resolution, X=self.resolution, hint=HINT)
        images = (images.float() / 255 - self.mean) / self.std
        return self.regions_of(self.body(images.contiguous(memory_format=torch.channels_last))["map"])


def checksum(encoder: nn.Module) -> str:
    """Of all weights and buffers."""
    digest = hashlib.sha256()
    for _, tensor in sorted(encoder.state_dict().items()):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _with_random_weights(body: nn.Module) -> nn.Module:
    """`body` from the meta device on the default one: layers as they initialise themselves, loose parameters small."""
    body.to_empty(device=torch.get_default_device())
    for parameter in body.parameters():
        nn.init.normal_(parameter, std=0.02)
    for module in body.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return body


def _download(weights) -> dict[str, Tensor]:
    try:
        return weights.get_state_dict(progress=True, check_hash=True)
    except (URLError, OSError) as error:
        place = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rsplit("/", 1)[-1]
        raise ValueError(f"{weights} could not be downloaded ({error}); put the file at {place}") from None


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{path} is no safetensors file and no torch state dict of plain tensors: {reason}") from None


def _load(body: nn.Module, state: dict[str, Tensor], what: str) -> None:
    """Layers behind the cut may be in the file; layers before it must be."""
    wanted = body.state_dict()
    missing = sorted(
        {key.rsplit(".", 1)[0] for key in wanted.keys() - state.keys() if "num_batches" not in key}, key=_natural
    )
    if missing:
        raise ValueError(f"{what} lack {len(missing)} layers: {', '.join(missing)}")
    misshapen = [key for key in wanted if key in state and state[key].shape != wanted[key].shape]
    if misshapen:
        raise ValueError(f"{what} have other shapes at {', '.join(misshapen)}: is this file of another network?")
    body.load_state_dict({key: state[key] for key in wanted if key in state}, strict=False)


def _natural(name: str) -> list:
    return [part.zfill(6) if part.isdigit() else part for part in name.split(".")]

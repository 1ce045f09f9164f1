"""`Backbone`: a pretrained network of torchvision or timm as an encoder, cut at a named layer."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vision_attn.contracts import Encoder, Fit
from vision_attn.encoders.efficientnet_lite import SCALES, named
from vision_attn.encoders.folding import Folded
from vision_attn.layers.meta import allocate
from vision_attn.layers.precision import Precision, call_in
from vision_attn.system.checks import check_range, require
from vision_attn.system.console import few, plural, say
from vision_attn.system.errors import UserError
from vision_attn.system.files import find
from vision_attn.system.locks import forked

HINT = "; `data.images.read_image` reads a photograph in this form"
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MAX_RESOLUTION = 4096
"""Limit on the height and width of images, in pixels."""


class Backbone(Encoder):
    """A classification network as an encoder: images (B, 3, S, S) -> annotation vectors (B, L, D), the output of the
    network at `node`.

    Takes uint8 RGB images of S = `resolution` pixels and normalises them itself, because the normalisation belongs to
    the weights. Constructed with random weights; `initialise` loads `weights`. The statistics of batch normalisation
    are never updated.

    name: any classification network of `torchvision.models`; `timm:NAME`, a network of timm (needs the extra `[hub]`);
        or `efficientnet_lite0` to `efficientnet_lite4`, which are part of this package.
    node: a name listed by `get_graph_node_names` of `torchvision.models.feature_extraction`, such as that of a block
        (`features.17`, `blocks.6`); its output must be a map (B, D, Y, X).
    resolution: S, the height and width of images, in pixels.
    weights: weights by name, downloaded with their mean and standard deviation ("IMAGENET1K_V1" of torchvision,
        "pretrained" of timm); a safetensors or torch file of the network's state dict; or None.
    mean, std: the normalisation with which a file of weights was trained, for images in [0, 1].
    trainable: True: train all layers. The name of a node: train only the layers after it, from cached maps of that
        node, through which every path to `node` must lead.
    rate: factor on the learning rate of the layers that are trained.
    precision: "bf16" computes in bfloat16 in any run: faster on GPUs and on processors with instructions for it (AMX,
        AVX-512 BF16), slower on others. Its annotation vectors have a cache of their own.
    fit: the part of a photograph that is resized to S x S: its "centre" square, or the "whole" photograph with a
        changed aspect ratio.
    """

    convolutional = True
    body: Any
    """An `nn.Module` whose `forward` returns a dict of maps."""
    mean: Tensor
    std: Tensor
    _later: nn.Module

    def __init__(
        self,
        *,
        name: str,
        node: str,
        resolution: int = 224,
        weights: str | None = None,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
        trainable: bool | str = False,
        rate: float = 1.0,
        precision: Precision = "fp32",
        fit: Fit = "centre",
    ):
        super().__init__()
        self.fit = fit
        self.name, self.node, self.resolution, self.weights = name, node, resolution, weights
        self.trainable, self.rate, self.precision = bool(trainable), rate, precision
        check_range(type(self).__name__, 1, MAX_RESOLUTION, resolution=resolution)
        check_range(type(self).__name__, 0, 1000, rate=rate)
        from vision_attn.encoders import networks  # imports torchvision, which encoders of other kinds do not need

        self.start = trainable if isinstance(trainable, str) else None
        if self.start == node:
            raise UserError(f"trainable: {name} is cut at {node}, and no layers after it could be trained")
        nodes = {"map": node} if self.start is None else {"start": self.start, "map": node}
        body, shapes = networks.cut(name, nodes, resolution=resolution, options=self.options(resolution))
        layout = self.layout_of(shapes["map"])
        if layout is None:
            shape = tuple(shapes["map"])
            raise UserError(f"{name} at {node} gives {shape}, not a map (B, D, Y, X): choose an earlier node")
        self.region_size, self.grid = layout

        self.body = _with_random_weights(body).requires_grad_(trainable is True).to(memory_format=torch.channels_last)
        if self.start is not None:
            self._start_size = tuple(shapes["start"][2:])
            later = self._after_start(shapes["start"]).requires_grad_(True)
            self.__dict__["_later"] = later  # not a submodule: its layers are those of `body`
        has_norms = any(isinstance(layer, nn.BatchNorm2d) for layer in self.body.modules())
        self._folded = Folded(self.body) if has_norms and not trainable else None
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1))

    def _after_start(self, shape: torch.Size) -> nn.Module:
        """Return the layers after the node that `trainable` names.

        shape: that of the node's output for one image.
        """
        from vision_attn.encoders import networks

        if len(shape) != 4:
            raise UserError(f"trainable: {self.name} at {self.start} gives {tuple(shape)}, not a map (B, D, Y, X)")
        try:
            return networks.between(self.body, "start", "map")
        except UserError as error:
            raise UserError(
                f"trainable: {self.name} at {self.node} is not computed from {self.start} alone: name a node before "
                "it through which everything passes, such as the end of a block"
            ) from error

    @staticmethod
    def options(resolution: int) -> dict[str, Any]:
        """Return arguments of torchvision's constructor that depend on the resolution."""
        return {}

    @staticmethod
    def layout_of(shape: torch.Size) -> tuple[int, tuple[int, int]] | None:
        """Return D and the grid (rows, columns) of an output of this shape; None if it is not the shape of a map."""
        return (shape[1], (shape[2], shape[3])) if len(shape) == 4 else None

    @staticmethod
    def regions_of(output: Float[Tensor, "B D Y X"]) -> Float[Tensor, "B L D"]:
        """Return the annotation vectors of an output, row by row."""
        return output.flatten(2).mT

    def initialise(self) -> None:
        """Load `weights`. Raises UserError if the file is missing or lacks layers. The message names the first missing
        layer, and the last node that the file covers or the network to which it seems to belong."""
        if self.weights is None:
            return
        from vision_attn.encoders import network_settings, networks

        path = None
        if self.weights in networks.offers(self.name):
            state, *preset = networks.download(self.name, self.weights)
            for name, values in zip(("mean", "std"), preset, strict=True):
                getattr(self, name).copy_(torch.tensor(values).view(3, 1, 1))
        else:
            try:
                path = find(self.weights)
            except UserError as error:
                raise UserError(f"{error}. {network_settings.other_weights(self.name)}") from None
            for line in network_settings.unusual_normalisation(self.name, path, self.mean, self.std):
                say(line)
            state = read_state(path)
            state = named(state) if self.name in SCALES else state
        what = f"weights {self.weights} of {self.name}"
        load_state(self.body, state, what, lambda missing: "" if path is None else self._instead(path, missing))

    def _instead(self, path: Path, missing: Sequence[str]) -> str:
        """Say what to do with a file of weights that lacks layers."""
        from vision_attn.encoders import network_settings

        if other := network_settings.network_in(path, self.name):
            return f": by its name, the file is of {other} (--task.encoder.name={other})"
        node = network_settings.covered(self.name, self.resolution, missing) if self.convolutional else None
        if node is None:
            return ": is this file from another network?"
        name = "" if type(self) is Backbone else f"--task.encoder.name={self.name} "
        return f": the file has all layers up to {node} ({name}--task.encoder.node={node})"

    def identity(self) -> dict[str, str | int]:
        """Return the key of a cache of annotation vectors; encoders with different outputs have different keys."""
        cut: dict[str, str | int] = {"backbone": self.name, "node": self.node, "resolution": self.resolution}
        return {**cut, "checksum": checksum(self)[:16], **variants(self)}

    def unfold(self) -> None:
        """Stop folding the normalisations into convolutions: a compiler folds them itself, and an export should contain
        them."""
        self._folded = None

    def compile(self, **options) -> None:
        self.unfold()
        super().compile(**options)
        if self.start is not None:
            self._later.compile(**options)

    def train(self, mode: bool = True) -> "Backbone":
        return super().train(False)

    def forward(self, images: UInt8[Tensor, "B 3 S S"]) -> Float[Tensor, "B L D"]:
        require("images", images, "B 3 Y X", "uint8", Y=self.resolution, X=self.resolution, hint=HINT)
        images = (images.float() / 255 - self.mean) / self.std
        images = images.contiguous(memory_format=torch.channels_last)
        body = self.body if self._folded is None else self._folded
        return self.regions_of(call_in(self.precision, lambda images: body(images)["map"], images))

    def frozen_part(self) -> Encoder | None:
        """Return the layers up to the node that `trainable` names, as an encoder with its own copy of the weights."""
        if self.start is None:
            return super().frozen_part()
        mean, std = (tuple(buffer.flatten().tolist()) for buffer in (self.mean, self.std))
        with forked():  # the constructor draws weights
            frozen = Backbone(
                name=self.name, node=self.start, resolution=self.resolution, mean=mean, std=std,
                precision=self.precision, fit=self.fit,
            )  # fmt: skip
        frozen.to(self.mean.device).load_state_dict(self.state_dict(), strict=False)
        return frozen

    def finish(self, cached: Float[Tensor, "B _ _"]) -> Float[Tensor, "B L D"]:
        if self.start is None:
            return cached
        start = cached.mT.unflatten(2, self._start_size)
        return self.regions_of(call_in(self.precision, self._later, start))


def checksum(encoder: nn.Module) -> str:
    """Return a checksum of all weights and buffers, in hexadecimal."""
    digest = hashlib.sha256()
    for _, tensor in sorted(encoder.state_dict().items()):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def variants(encoder: Encoder) -> dict[str, str]:
    """Return the entries of an encoder's identity for its precision and its `fit`; empty for float32 and the centre
    square."""
    usual = {"precision": "fp32", "fit": "centre"}
    return {name: value for name in usual if (value := getattr(encoder, name)) != usual[name]}


def _with_random_weights(body: nn.Module) -> nn.Module:
    """Move `body` to the default device, with random weights: each layer initialises itself;
    parameters outside of layers, such as class tokens, are small normal numbers."""
    allocate(body, torch.get_default_device())
    for parameter in body.parameters():
        nn.init.normal_(parameter, std=0.02)
    for module in body.modules():
        if reset := getattr(module, "reset_parameters", None):
            reset()
    return body


def read_state(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file or of a torch state dict. Raises UserError if it is neither."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]  # torch says more on further lines
        raise UserError(
            f"{path} is neither a safetensors file nor a torch state dict of plain tensors: {reason}"
        ) from None


def load_state(
    body: nn.Module, state: dict[str, Tensor], what: str, instead: Callable[[Sequence[str]], str] = lambda _: ""
) -> None:
    """Load a state dict into `body`. It must have all layers of `body`; others are ignored. Raises UserError if a layer
    is missing, or has another shape.

    what: the name of the state in the message.
    instead: returns the end of the message, given the layers that are missing.
    """
    wanted = body.state_dict()
    missing = list(
        dict.fromkeys(key.rsplit(".", 1)[0] for key in wanted if key not in state and "num_batches" not in key)
    )
    if missing:
        raise UserError(f"{what} lack {plural(len(missing), 'layer')} ({few(missing, 8)}){instead(missing)}")
    misshapen = [key for key in wanted if key in state and state[key].shape != wanted[key].shape]
    if misshapen:
        raise UserError(f"{what} have different shapes at {', '.join(misshapen)}: is this file from another network?")
    body.load_state_dict({key: state[key] for key in wanted if key in state}, strict=False)

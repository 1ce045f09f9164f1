"""Compute convolutional networks that are not trained with fewer passes over memory.

With fixed statistics, a convolution and the normalisation of its output are one convolution with other weights:
MobileNetV2 is 1.8 times as fast on a CPU core. On CPUs, three things more: few images at a time and activations in
place keep the output of a layer in the processor's cache; oneDNN computes all convolutions; in bfloat16, weights are
converted once, which autocast does at each call.
"""

from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.experimental.optimization import fuse

from vision_attn.encoders.tracing import traced_by_torch
from vision_attn.geometry.receptive_fields import versions
from vision_attn.layers.precision import product_dtype
from vision_attn.system.locks import Turn
from vision_attn.system.machine import multiplies_bf16

PIXELS = 2**18
"""The number of pixels of images that a CPU thread takes at a time."""


class Folded:
    """A network whose batch normalisations are folded into the convolutions before them: the same outputs, to rounding.

    The network is folded at the first call, and again after its tensors have changed or moved. Threads that call it
    meanwhile wait.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._folded: nn.Module | None = None
        self._on_cpu: dict[torch.dtype, nn.Module] = {}
        self._made_from: list[tuple[int, int]] = []
        self._folding = Turn()

    @torch.no_grad()
    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        on_cpu, dtype = images.device.type == "cpu", product_dtype(images)
        with self._folding:
            tensors = versions(self.network)
            if self._folded is None or tensors != self._made_from:
                self._folded, self._made_from, self._on_cpu = self._fold(), tensors, {}
            folded = network = self._folded
            if on_cpu:
                if dtype not in self._on_cpu:
                    self._on_cpu[dtype] = for_cpu(folded, dtype)
                network = self._on_cpu[dtype]
        if not on_cpu:
            return network(images)
        if network is not folded:  # else autocast converts
            images = images.to(dtype)
        pieces = images.split(max(1, PIXELS * torch.get_num_threads() // images.shape[2:].numel()))
        outputs = [network(piece) for piece in pieces]
        return {name: torch.cat([output[name] for output in outputs]) for name in outputs[0]}

    def _fold(self) -> nn.Module:
        """Return a folded copy; the network itself if it has layers that cannot be traced, as some of timm do."""
        try:
            graph = traced_by_torch(self.network)
            traced = GraphModule(self.network, graph).eval()  # has containers of its own, and shares layers
        except Exception:  # layers of other libraries may raise anything
            return self.network
        return fuse(traced, inplace=True, no_trace=True)


class Convolution(nn.Module):
    """A convolution by oneDNN, also where torch would choose MKL: one image of kernels of 1x1 in one thread."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        layer = self.layer
        settings = layer.padding, layer.stride, layer.dilation, layer.groups
        return torch.ops.mkldnn._convolution_pointwise(images, layer.weight, layer.bias, *settings, "none", [], "")


def for_cpu(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a network that computes in `dtype` with convolutions by oneDNN, each followed by its activation in place;
    `network` itself if oneDNN cannot."""
    if not isinstance(network, GraphModule) or not has_onednn(dtype):
        return network
    shared = GraphModule(network, deepcopy(network.graph))
    network = shared if dtype == torch.float32 else deepcopy(network).to(dtype)
    layers: dict[Any, nn.Module] = dict(network.named_modules())
    for node in network.graph.nodes:
        layer = layers.get(node.target) if node.op == "call_module" else None
        if type(layer) is not nn.Conv2d or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            continue
        changed: dict[Node, Any] = {node: Convolution(layer)}
        after = next(iter(node.users))
        if len(node.users) == 1 and after.op == "call_module" and hasattr(layers[after.target], "inplace"):
            changed[after] = copy(layers[after.target])
            changed[after].inplace = True
        for own, replacement in changed.items():
            own.target = f"on_cpu_{own.name}"
            network.add_module(own.target, replacement)
    network.recompile()
    return network


def has_onednn(dtype: torch.dtype) -> bool:
    """Return whether oneDNN computes convolutions in this dtype on this processor."""
    if dtype == torch.bfloat16:
        return multiplies_bf16()
    return dtype == torch.float32 and torch.backends.mkldnn.is_available()

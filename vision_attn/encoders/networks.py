"""Convolutional networks and transformers of torchvision, of timm and of this package, cut at a named layer.

torchvision takes time to import, so only functions that need its networks import it.
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import URLError

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

from vision_attn.encoders.efficientnet_lite import SCALES, EfficientNetLite
from vision_attn.encoders.tracing import own_thread_in, traced_by_torch
from vision_attn.layers.meta import allocate, on_meta
from vision_attn.system.console import reason_of, suggest
from vision_attn.system.errors import UserError
from vision_attn.system.hub import hub_or_cache

TIMM = "timm:"
"""The prefix of the name of a network of timm."""
HALF = (0.5, 0.5, 0.5)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def cut(
    name: str, nodes: Mapping[str, str], *, resolution: int, options: dict[str, Any]
) -> tuple[GraphModule, dict[str, torch.Size]]:
    """Build the network `name`, cut at `nodes`. Returns it, and the shape of each output for one image. Its weights are
    not initialised. Raises UserError if there is no such network or node.

    name: a classification network of torchvision, `timm:NAME` for one of timm, or one of `efficientnet_lite.SCALES`.
    nodes: {name of an output: node}.
    resolution: height and width of images, in pixels.
    options: arguments of torchvision's or timm's constructor.
    """
    for node in nodes.values():
        if not re.fullmatch(r"[\w.]+", node):  # torchvision treats it as a regular expression
            raise UserError(f"{node!r} is not a node of {name}: nodes have letters, digits, underscores and dots")
    try:
        with on_meta():  # layers after the cut, such as the classifier of a VGG, take no memory
            network = _network(name, options)
        if has_tables(network):
            network = _network(name, options)
        with on_meta() if next(network.parameters()).is_meta else nullcontext():
            named = {node: output for output, node in nodes.items()}
            if name in SCALES and named.keys() <= dict(network.named_modules()).keys():
                body = traced(network.eval(), named).eval()
            else:
                library = _timm().models if name.startswith(TIMM) else _torchvision()
                with own_thread_in(import_module("torchvision.models.feature_extraction")):  # which timm's calls
                    body = library.create_feature_extractor(network.eval(), named).eval()
        return body, _output_shapes(body, resolution)
    except (ValueError, TypeError, RuntimeError, AssertionError) as error:  # some networks cannot be built on meta
        if isinstance(error, UnknownNetwork):
            raise
        where = " and ".join(nodes.values())
        hint = f" (vision-attn encoders {name} lists its nodes)" if len(nodes) < 3 else ""
        raise UserError(f"{library_of(name)}'s {name} cannot be cut at {where}: {reason_of(error)}{hint}") from None


class UnknownNetwork(UserError):
    """Raised if there is no network of a name."""


def library_of(name: str) -> str:
    """Return the library that a network belongs to, for messages."""
    return "timm" if name.startswith(TIMM) else "vision_attn" if name in SCALES else "torchvision"


def _network(name: str, options: dict[str, Any]) -> nn.Module:
    """Build a network without pretrained weights."""
    if name.startswith(TIMM):
        return timm_model(name.removeprefix(TIMM), **options)
    if name in SCALES:
        return EfficientNetLite(name)
    known = of_torchvision()
    if name not in known:  # others, such as detectors, download parts themselves
        raise UnknownNetwork(
            f"torchvision.models has no classification network {name!r}{suggest(name, known)} ({TIMM}NAME is a network "
            f"of timm, and {', '.join(SCALES)} are of this package)"
        )
    return _torchvision().get_model(name, weights=None, **options)


def of_torchvision() -> list[str]:
    """Return the names of torchvision's classification networks."""
    library = _torchvision()
    return library.list_models(module=library.torchvision.models)


def traced(network: nn.Module, nodes: Mapping[str, str]) -> GraphModule:
    """Cut a network after modules, as torchvision's `create_feature_extractor` does.

    nodes: {module: name of its output}.
    """
    graph = traced_by_torch(network)
    ends = {path: node for node in graph.nodes for path in node.meta.get("nn_module_stack", ())}
    # A layer that is called several times is cut after its first call.
    ends |= {node.target: node for node in reversed(graph.nodes) if node.op == "call_module"}
    graph.erase_node(graph.output_node())
    graph.output({output: ends[module] for module, output in nodes.items()})
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
    return GraphModule(network, graph)


def _torchvision() -> ModuleType:
    return import_module("vision_attn.encoders.torchvision_networks")


def _timm() -> ModuleType:
    try:
        return import_module("timm")
    except ImportError as error:
        raise UserError("networks of timm need the package timm: pip install 'vision-attn[hub]'") from error


def timm_model(name: str, **options: Any) -> Any:
    """Build a model of timm. Raises UserError if timm is missing or cannot create it."""
    timm = _timm()
    if not timm.is_model(name):  # an address of a hub would be fetched, even for a run folder of a stranger
        raise UnknownNetwork(f"timm has no model {name!r}: timm.list_models() lists them")
    try:
        with hub_or_cache(bool(options.get("pretrained"))):
            return timm.create_model(name, **options)
    except Exception as error:  # timm raises RuntimeError, TypeError, and any exception of a hub
        raise UserError(f"timm cannot create {name}: {reason_of(error)}") from error


def between(network: GraphModule, start: str, end: str) -> GraphModule:
    """Return the part of a network from its output `start` to its output `end`, with the same layers. Raises UserError
    unless `end` depends on `start`, and on it alone."""
    outputs: Any = network.graph.output_node().args[0]  # {name: node}
    graph = Graph()
    known = {outputs[start]: graph.placeholder(start)}
    for node in network.graph.nodes:
        if node not in known and node.op not in ("placeholder", "output") and known.keys() >= set(node.all_input_nodes):
            known[node] = graph.node_copy(node, known.__getitem__)
    if outputs[start] is outputs[end] or outputs[end] not in known:
        raise UserError("the output is not computed from this node alone")
    graph.output(known[outputs[end]])
    return GraphModule(network, graph)


def has_tables(network: nn.Module) -> bool:
    """Return whether the network has buffers other than the statistics of batch normalisation: its constructor computes
    them, such as indices of relative positions."""
    norms = sum(len(list(layer.buffers(recurse=False))) for layer in network.modules() if isinstance(layer, NORMS))
    return len(list(network.buffers())) > norms


@torch.no_grad()
def _output_shapes(body: nn.Module, resolution: int) -> dict[str, torch.Size]:
    """Compute the shape of each output for one image from an empty batch.

    No weight is read, and memory that is never touched is not taken. On the meta device, convolutions and batch
    normalisation would import torch's compiler.
    """
    with torch.device("cpu"):
        allocate(body, "cpu")
        outputs = body(torch.empty(0, 3, resolution, resolution))
    return {name: torch.Size([1, *output.shape[1:]]) for name, output in outputs.items() if isinstance(output, Tensor)}


def maps(name: str, resolution: int) -> tuple[nn.Module, dict[str, tuple[int, int, int]]]:
    """Return the network `name`, and (D, Y, X) of the map of each of its nodes, in order, for images of `resolution`
    pixels."""
    with on_meta(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of initial weights, which are not used
        network = _network(name, {}).eval()
    if name in SCALES:
        nodes = [node for node, _ in network.named_modules() if node.count(".") == 1]  # blocks
    else:
        _torchvision()
        library = _timm().models if name.startswith(TIMM) else import_module("torchvision.models.feature_extraction")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a network has other nodes in training
            nodes = library.get_graph_node_names(network)[1][1:]
    _, shapes = cut(name, {node: node for node in nodes}, resolution=resolution, options={})
    sizes = {node: shapes[node][1:] for node in nodes if len(shapes.get(node, ())) == 4}
    return network, {node: (D, Y, X) for node, (D, Y, X) in sizes.items() if Y > 1}


def timm_on_meta(name: str) -> Any:
    """Build a model of timm without memory, to look at its layers and settings."""
    with on_meta():
        return timm_model(name)


def offers(name: str) -> list[str]:
    """Return the names of the weights that a library offers for the network `name`."""
    if name.startswith(TIMM):
        return ["pretrained"]
    return [] if name in SCALES else [*_torchvision().get_model_weights(name).__members__]


def usual_weights(name: str) -> str | None:
    """Return the name of the weights that a library recommends for the network `name`; None for networks of this
    package."""
    if name.startswith(TIMM) or name in SCALES:
        return "pretrained" if name.startswith(TIMM) else None
    return _torchvision().get_model_weights(name).DEFAULT.name


def usual_normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation with which weights of the network `name` are usually trained, for
    images in [0, 1]."""
    if name in SCALES:
        return HALF, HALF
    if name.startswith(TIMM):
        settings = timm_on_meta(name.removeprefix(TIMM)).pretrained_cfg
        return tuple(settings["mean"]), tuple(settings["std"])
    transforms = _torchvision().get_model_weights(name).DEFAULT.transforms()
    return tuple(transforms.mean), tuple(transforms.std)


def preset(name: str, weights: str) -> Any:
    """Return torchvision's entry of weights by name: their address, and how images are normalised for them."""
    return _torchvision().get_model_weights(name)[weights]


def downloaded(weights: Any) -> Path:
    """Return the path at which torchvision puts the file of weights."""
    return Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rsplit("/", 1)[-1]


def download(name: str, weights: str) -> tuple[dict[str, Tensor], Sequence[float], Sequence[float]]:
    """Download weights that `offers` lists, unless they are here already. Returns their state dict, with the mean and
    the standard deviation of the images with which they were trained. Raises UserError, which says where to put the
    file by hand."""
    if name.startswith(TIMM):
        model = timm_model(name.removeprefix(TIMM), pretrained=True)
        return model.state_dict(), model.pretrained_cfg["mean"], model.pretrained_cfg["std"]
    entry = preset(name, weights)
    try:
        state = entry.get_state_dict(progress=True, check_hash=True)
    except (URLError, OSError) as error:
        raise UserError(f"{entry} could not be downloaded ({error}); put the file at {downloaded(entry)}") from None
    transforms = entry.transforms()
    return state, transforms.mean, transforms.std

"""`open_model`: open a model of torchvision, timm or transformers, or one that your own function makes, to explain
it."""

import logging
from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from vision_attn.explain.libraries.from_transformers import open_transformers
from vision_attn.explain.libraries.image_sizes import image_size, timm_settings
from vision_attn.explain.libraries.opened_model import OpenedModel, reached
from vision_attn.system.console import reason_of, suggest, with_article
from vision_attn.system.errors import UserError
from vision_attn.system.files import find
from vision_attn.system.hub import hub_or_cache
from vision_attn.system.inputs import reads_all
from vision_attn.system.locks import forked
from vision_attn.system.own_code import own_function

log = logging.getLogger(__name__)

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NONE = "none"
"""The value of `weights` for random weights."""


def open_model(
    name: str, *, weights: str | None = None, trust: bool = False, dtype: str = "auto", device_map: str | None = None
) -> OpenedModel:
    """Open a model to explain.

    name: `timm:NAME`, `transformers:NAME-or-folder`, `module:function`, or the name of a torchvision model.

    weights: a file of weights (safetensors, or a torch file of tensors alone), a name of torchvision's, or "none" for
        random weights; by default the library's pretrained ones, which it downloads. Not for transformers, whose
        folders hold their weights.
    dtype, device_map: for transformers: the type of the weights ("auto": as in the file), and the devices of its
        layers, such as "auto", which needs the package accelerate.
    trust: whether to run the code of `module:function`, or of a repository of transformers. The function takes no
        arguments and returns a module from images (B, 3, Y, X) to scores of classes. Its attributes `resolution`,
        `mean`, `std` and `classes` are used if they exist; otherwise the size comes from the model
        (`explain.libraries.image_sizes`), and mean and standard deviation from timm's settings or ImageNet.

    Raises UserError, which says what to install, name or correct.
    """
    options = {"dtype": dtype} | ({"device_map": device_map} if device_map else {})
    if weights != NONE:
        return _opened(name, weights, trust, options)
    with forked(0):  # the same weights each time
        model = _opened(name, weights, trust, options)
        if ":" in name and not name.startswith(("timm:", "transformers:")):
            return model  # whose function knows what its weights are
        for layer in model.module.modules():  # libraries begin with an answer of zeros, on which nothing has an effect
            if isinstance(layer, nn.Linear) and not layer.weight.any():
                nn.init.normal_(layer.weight, std=0.02)
    log.warning("%s has random weights: its answers and maps mean nothing", name)
    return model._replace(random=True)


def _opened(name: str, weights: str | None, trust: bool, options: dict[str, Any]) -> OpenedModel:
    library, colon, rest = name.partition(":")
    if not colon:
        return _torchvision(name, weights)
    if library == "timm":
        with hub_or_cache(weights is None):
            return _timm(rest, weights)
    if library == "transformers":
        if weights not in (None, NONE):
            raise UserError("transformers:FOLDER holds its weights: leave --weights out")
        reads_all(rest)
        with hub_or_cache(not Path(rest).is_dir()):
            return open_transformers(rest, random=weights == NONE, trust=trust, **options)
    if not trust:
        raise UserError(
            f'{name} runs the code of {library}: add --trust {library} if you trust it (in Python: trust="{library}")'
        )
    return _function(library, rest, weights)


class ImageReader:
    """Converts a square picture to a normalised image of the model's size, in a batch of one.

    key: the name of the model's argument.
    """

    def __init__(
        self,
        size: tuple[int, int] = (224, 224),
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        key: str = "x",
    ) -> None:
        self.size, self.key = size, key
        self.mean, self.std = (torch.tensor(values).view(3, 1, 1) for values in (mean, std))

    def __call__(self, picture: Image.Image) -> dict[str, Float[Tensor, "1 3 Y X"]]:
        resized = picture.convert("RGB").resize(self.size[::-1], Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(resized)).permute(2, 0, 1).float() / 255
        return {self.key: ((pixels - self.mean) / self.std)[None]}


def _torchvision(name: str, weights: str | None) -> OpenedModel:
    import torchvision
    from torchvision.models import get_model, get_model_builder, get_model_weights, list_models

    known = list_models(module=torchvision.models)
    if name not in known:
        raise UserError(
            f"{name} is neither a run folder nor a network of torchvision{suggest(name, known)}; other models are "
            "named timm:NAME, transformers:NAME or module:function"
        )
    presets = get_model_weights(name).__members__
    chosen = presets.get(weights or "DEFAULT") or next(iter(presets.values()))
    preset = chosen.transforms()
    size, classes = preset.crop_size[0], chosen.meta["categories"]
    of_one_size = get_model_builder(name).__module__.endswith(".vision_transformer")
    model = get_model(name, weights=None, **({"image_size": size} if of_one_size else {}))
    if weights is None or weights in presets:
        path = Path(torch.hub.get_dir()) / "checkpoints" / chosen.url.rsplit("/", 1)[-1]
        hint = f"; put {chosen.url} at {path}, or give --weights FILE, or --weights none for random weights"
        model.load_state_dict(reached(lambda: chosen.get_state_dict(progress=True, check_hash=True), name, hint))
    elif weights != NONE:
        _load(model, weights, name)
    return OpenedModel(
        model.eval(), "classifier", ImageReader((size, size), preset.mean, preset.std, _argument(model)), classes
    )


def _timm(name: str, weights: str | None) -> OpenedModel:
    try:
        import timm
    except ImportError as error:
        raise UserError("models of timm need the package timm: pip install 'vision-attn[hub]'") from error
    fetched = weights is None and timm.is_model(name)
    hint = "; give --weights FILE, or --weights none for random weights" if fetched else ""
    model = reached(lambda: timm.create_model(name, pretrained=weights is None), f"timm:{name}", hint)
    if weights not in (None, NONE):
        _load(model, weights, name)
    settings = timm.data.resolve_model_data_config(model)
    kind = "classifier" if getattr(model, "num_classes", 0) else "encoder"
    classes: list[str] = []
    if getattr(model, "num_classes", 0) == 1000:
        information = timm.data.ImageNetInfo()
        classes = [information.index_to_description(index).split(",")[0] for index in range(1000)]
    size = tuple(settings["input_size"][1:])
    _say_if_stretched(f"timm:{name}", size)
    reader = ImageReader(size, settings["mean"], settings["std"], _argument(model))
    return OpenedModel(model.eval(), kind, reader, classes)


def _function(module: str, function: str, weights: str | None) -> OpenedModel:
    make = own_function(f"{module}:{function}")
    try:
        signature(make).bind()
    except TypeError as error:
        raise UserError(f"{module}:{function} must be a function that needs no arguments ({error})") from error
    model = make()
    if not isinstance(model, nn.Module):
        raise UserError(f"{module}:{function} returned {with_article(type(model).__name__)}, not a torch.nn.Module")
    if weights not in (None, NONE):
        _load(model, weights, function)
    size, settings = image_size(model), timm_settings(model)
    _say_if_stretched(f"{module}:{function}", size)
    mean = getattr(model, "mean", settings.get("mean", IMAGENET_MEAN))
    std = getattr(model, "std", settings.get("std", IMAGENET_STD))
    reader = ImageReader(size, mean, std, _argument(model))
    return OpenedModel(model.eval(), "classifier", reader, getattr(model, "classes", ()), own=True)


def _say_if_stretched(name: str, size: tuple[int, int]) -> None:
    rows, columns = size
    if rows != columns:
        log.warning("%s takes %d x %d pixels: the centre square of a photograph is stretched to them", name, *size)


def _argument(model: nn.Module) -> str:
    """Return the name of the first argument of `forward`."""
    return next(iter(signature(model.forward).parameters))


def _load(model: nn.Module, weights: str, name: str) -> None:
    """Load a state dict from a file, without running code from it."""
    path = find(weights)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state)
    except Exception as error:
        raise UserError(f"{path} holds no weights of {name}: {reason_of(error)}") from None

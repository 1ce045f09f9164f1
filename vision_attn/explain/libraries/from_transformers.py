"""Open models of transformers, from a folder or a repository of the Hugging Face Hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from vision_attn.explain.libraries.opened_model import OpenedModel, one_line, reached
from vision_attn.system.console import reason_of
from vision_attn.system.errors import UserError

FILES = "config.json, model.safetensors, preprocessor_config.json and, for texts, tokenizer.json"
"""The files that a folder with a model must have."""
CODE = 'it has code of its own, which is run only with --trust transformers (in Python: trust="transformers")'


class Processors(NamedTuple):
    """The tokenizer and the image processor of a model without a common processor."""

    image_processor: Any
    tokenizer: Any


def open_transformers(
    name: str, *, random: bool = False, trust: bool = False, dtype: str = "auto", device_map: str | None = None
) -> OpenedModel:
    """Open a model from a folder or a repository, with the class that its config.json names.

    trust: whether to run the code of the repository, if it has some.
    random: whether to leave the weights random.
    dtype, device_map: as for `open_model`.

    Raises UserError saying which files are missing, or what to install.
    """
    try:
        import transformers
    except ImportError as error:
        raise UserError(
            "models of transformers need the package transformers: pip install 'vision-attn[hub]'"
        ) from error
    transformers.utils.logging.set_verbosity_error()  # it writes bars and advice between our lines
    transformers.utils.logging.disable_progress_bar()
    title, folder = f"transformers:{name}", {"trust_remote_code": trust}
    if Path(name).is_dir():
        folder["local_files_only"] = True
        hint = f"; the folder must hold {FILES}"
    else:
        hint = f"; transformers:FOLDER opens a folder that holds {FILES}"
        hint += " (a file of weights in several parts comes with model.safetensors.index.json), as "
        hint += f"`hf download {name} --local-dir FOLDER` makes it where there is a network"
    config = reached(lambda: _config(transformers, name, **folder), title, hint)
    made = _architecture(config, title)
    constructor = _constructor(transformers, config, made, name, trust)
    if random:
        model = reached(lambda: constructor(config), title)
    else:
        options = {"use_safetensors": True, "attn_implementation": "sdpa", "dtype": dtype, **folder}
        options |= {"device_map": device_map} if device_map else {}
        try:
            model = reached(lambda: constructor.from_pretrained(name, **options), title, hint)
        except UserError as error:
            if "scaled_dot_product_attention" not in str(error):
                raise
            options["attn_implementation"] = "eager"
            model = reached(lambda: constructor.from_pretrained(name, **options), title, hint)
    kind, rest = "encoder", dict[str, Tensor]()
    if getattr(config, "model_type", "") == "vit_mae":
        model, rest = _masked_autoencoder(model)
    elif made.endswith("ForImageClassification"):
        kind = "classifier"
    elif hasattr(model, "get_text_features"):
        kind = "matcher"
    elif model.can_generate() or hasattr(model, "text_decoder"):
        kind = "captioner"
    reads = transformers.AutoImageProcessor if kind in ("classifier", "encoder") else transformers.AutoProcessor
    processor = reached(lambda: reads.from_pretrained(name, **folder), title, hint)
    both = hasattr(processor, "image_processor") and hasattr(processor, "tokenizer")
    if kind in ("captioner", "matcher") and not both:  # one of both, where there is no processor that holds them
        images = reached(lambda: transformers.AutoImageProcessor.from_pretrained(name, **folder), title, hint)
        tokens = reached(lambda: transformers.AutoTokenizer.from_pretrained(name, **folder), title, hint)
        processor = Processors(images, tokens)

    def inputs(picture: Image.Image) -> dict[str, Tensor]:
        images = getattr(processor, "image_processor", processor)
        with one_line(f"the processor of {title} fails on a picture"):
            made = images(images=picture.convert("RGB"), return_tensors="pt")
        return {"pixel_values": pixels_of(made, config, title)} | rest

    classes = _classes(config, title) if kind == "classifier" else []
    return OpenedModel(model.eval(), kind, inputs, classes, processor)


def pixels_of(made: Mapping[str, Tensor], config: Any, title: str) -> Tensor:
    """Return the image among the outputs of a processor. Raises UserError if there is none, as for pix2struct."""
    if "pixel_values" not in made:
        raise UserError(
            f"{title} reads {', '.join(made) or 'nothing'} in the place of images (pixel_values): models of this kind "
            f"({config.model_type}) are not taken"
        )
    return made["pixel_values"]


def _masked_autoencoder(model: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return the encoder of a masked autoencoder (ViTMAE), and inputs with which it sees all patches in their order: by
    default it hides most patches at random and shuffles the rest, in evaluation too."""
    encoder = model.base_model
    encoder.config.mask_ratio = 0.0
    num_patches = encoder.embeddings.position_embeddings.shape[1] - 1
    return encoder, {"noise": torch.linspace(0, 1, num_patches)[None]}


def _architecture(config: Any, title: str) -> str:
    """Return the name of the model class that a config names first. Raises UserError if it names none."""
    names = getattr(config, "architectures", None) or ["none"]
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise UserError(f"{title}: architectures in its config.json must be a list of names, not {names!r:.80}")
    return names[0]


def _classes(config: Any, title: str) -> list[str]:
    """Return the names of the classes, by number. Raises UserError for invalid names."""
    labels = getattr(config, "id2label", None) or {}
    for label in labels.values():
        if not isinstance(label, str | int | float):
            raise UserError(f"{title}: id2label in its config.json must give each class a name, not {label!r:.80}")
    return [str(labels[index]) for index in sorted(labels)]


def _config(transformers: Any, name: str, **options: Any) -> Any:
    """Read the config. Raises UserError if a repository has code of its own that may not be run."""
    try:
        return transformers.AutoConfig.from_pretrained(name, **options)
    except ValueError as error:
        raise UserError(CODE if "trust_remote_code" in str(error) else reason_of(error)) from error


def _constructor(transformers: Any, config: Any, made: str, name: str, trust: bool) -> Any:
    """Return the class of a model, from transformers or a trusted repository. Raises UserError for any other."""
    constructor = getattr(transformers, made, None)
    if isinstance(constructor, type) and issubclass(constructor, transformers.PreTrainedModel):
        return constructor
    classes = getattr(config, "auto_map", None)
    paths = classes.values() if isinstance(classes, dict) else ()
    code = next((path for path in paths if isinstance(path, str) and path.endswith(f".{made}")), None)
    if code is not None and trust:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        return reached(lambda: get_class_from_dynamic_module(code, name), f"transformers:{name}")
    if code is not None:
        raise UserError(f"transformers:{name} cannot be opened: {CODE}")
    raise UserError(
        f"transformers:{name}: its config.json names the architecture {made}, which is none of this version"
    )

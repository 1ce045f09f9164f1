"""Models of transformers, from a folder or by the name of a repository of the Hugging Face Hub."""

from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from torch import Tensor

from vision_attn.explain.opened import Model, reached
from vision_attn.system.console import reason_of

FILES = "config.json, model.safetensors, preprocessor_config.json and, for texts, tokenizer.json"
"""What a folder with a model holds."""
CODE = 'it has code of its own, which is run only with --trust transformers (in Python: trust="transformers")'


class Processors(NamedTuple):
    """A tokenizer and the processor of images, of a model that has no processor of both."""

    image_processor: Any
    tokenizer: Any


def open_transformers(
    name: str, *, random: bool = False, trust: bool = False, dtype: str = "auto", device_map: str | None = None
) -> Model:
    """Open the model in a folder, or of a repository, with the class that its config.json names.

    trust: run the code of the repository if it has some. Raises ValueError saying which files are missing, or what to
    install.
    """
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
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
    made = (getattr(config, "architectures", None) or ["none"])[0]
    constructor = _constructor(transformers, config, made, name, trust)
    if random:
        model = constructor(config)
    else:
        options = {"use_safetensors": True, "attn_implementation": "sdpa", "dtype": dtype, **folder}
        options |= {"device_map": device_map} if device_map else {}
        try:
            model = reached(lambda: constructor.from_pretrained(name, **options), title, hint)
        except ValueError as error:
            if "scaled_dot_product_attention" not in str(error):
                raise
            options["attn_implementation"] = "eager"
            model = reached(lambda: constructor.from_pretrained(name, **options), title, hint)
    kind = "encoder"
    if made.endswith("ForImageClassification"):
        kind = "classifier"
    elif hasattr(model, "get_text_features"):
        kind = "matcher"
    elif model.can_generate() or hasattr(model, "text_decoder"):
        kind = "captioner"
    reads = transformers.AutoImageProcessor if kind in ("classifier", "encoder") else transformers.AutoProcessor
    processor = reached(lambda: reads.from_pretrained(name, **folder), title, hint)
    if kind == "captioner" and not hasattr(processor, "image_processor"):  # a tokenizer, where there are only both
        images = reached(lambda: transformers.AutoImageProcessor.from_pretrained(name, **folder), title, hint)
        tokens = reached(lambda: transformers.AutoTokenizer.from_pretrained(name, **folder), title, hint)
        processor = Processors(images, tokens)
    labels = getattr(config, "id2label", None) or {}

    def inputs(picture: Image.Image) -> dict[str, Tensor]:
        images = getattr(processor, "image_processor", processor)
        return {"pixel_values": images(images=picture.convert("RGB"), return_tensors="pt")["pixel_values"]}

    classes = [labels[index] for index in sorted(labels)] if kind == "classifier" else []
    return Model(model.eval(), kind, inputs, classes, processor)


def _config(transformers: Any, name: str, **options: Any) -> Any:
    """The config. Raises ValueError if a repository has code of its own that may not be run."""
    try:
        return transformers.AutoConfig.from_pretrained(name, **options)
    except ValueError as error:
        raise ValueError(CODE if "trust_remote_code" in str(error) else reason_of(error)) from error


def _constructor(transformers: Any, config: Any, made: str, name: str, trust: bool) -> Any:
    """The class of a model: of transformers, or of a trusted repository. Raises ValueError for any other."""
    constructor = getattr(transformers, made, None)
    if isinstance(constructor, type) and issubclass(constructor, transformers.PreTrainedModel):
        return constructor
    code = next((path for path in getattr(config, "auto_map", {}).values() if path.endswith(f".{made}")), None)
    if code is not None and trust:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        return reached(lambda: get_class_from_dynamic_module(code, name), f"transformers:{name}")
    if code is not None:
        raise ValueError(f"transformers:{name} cannot be opened: {CODE}")
    raise ValueError(
        f"transformers:{name}: its config.json names the architecture {made}, which is none of this version"
    )

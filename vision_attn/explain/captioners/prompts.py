"""Convert pictures and prompts to the inputs of a captioner of transformers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vision_attn.explain.libraries.from_transformers import pixels_of
from vision_attn.explain.libraries.opened_model import one_line
from vision_attn.explain.libraries.opening import OpenedModel
from vision_attn.system.errors import UserError

PROMPTS = {"florence2": "<CAPTION>", "paligemma": "caption en"}
"""The prompts of models that were trained with fixed prompts, by `model_type`."""
INSTRUCTION = "Describe this photograph in one sentence."
"""The prompt of models that follow instructions, which have a chat template."""
PREPENDED = ("florence2",)
"""The `model_type` of models whose processor itself puts the tokens of the image before the text."""


def default_prompt(model: OpenedModel) -> str:
    """Return the prompt that asks a model for a caption; empty where none is needed."""
    chats = getattr(model.processor, "chat_template", None) and image_token(model) is not None
    return PROMPTS.get(model.module.config.model_type, INSTRUCTION if chats else "")


class Inputs(dict[str, Tensor]):
    """The arguments of `generate` for pictures.

    of: a function from another picture to its arguments, with the same prompt.
    size: the width and height of the first picture.
    """

    def __init__(
        self, arguments: Mapping[str, Tensor], of: Callable[[Image.Image], "Inputs"], size: tuple[int, int]
    ) -> None:
        super().__init__(arguments)
        self.of, self.size = of, size


def inputs_of(model: OpenedModel, pictures: Sequence[Image.Image], prompt: str = "") -> Inputs:
    """Return the arguments of `generate`, on the device of the model and in its precision.

    prompt: the text that begins the captions or asks for them.
    """
    inputs = _model_inputs(model, [picture.convert("RGB") for picture in pictures], prompt)
    weights = next(weight for weight in model.module.parameters() if not weight.is_meta)
    arguments = {
        name: value.to(weights.device, model.module.dtype if value.is_floating_point() else None)
        for name, value in inputs.items()
    }
    return Inputs(arguments, lambda picture: inputs_of(model, [picture], prompt), pictures[0].size)


def _model_inputs(model: OpenedModel, pictures: list[Image.Image], prompt: str) -> dict[str, Tensor]:
    processor, texts = model.processor, [prompt] * len(pictures)
    if number := num_queries(model):
        # The processor puts the tokens of the queries before a text; without one, `generate` does.
        if not prompt and hasattr(processor, "qformer_tokenizer"):
            raise UserError('this model answers an instruction: give it as text, such as "Describe the image."')
        if prompt:
            processor.num_query_tokens = number
            return _call_processor(model, text=texts, images=pictures)
    elif image_token(model) is not None:
        with one_line("the model's processor fails on a prompt"):
            prompt, options = _processor_text(model, prompt)
        # Each image in a list of its own, or a processor may take all of them for those of the first text.
        texts, nested = [prompt] * len(pictures), [[picture] for picture in pictures]
        # Images may have different numbers of tiles; what is generated follows the text at once.
        options |= {"padding": True, "padding_side": "left"} if len(pictures) > 1 else {}
        return _call_processor(model, text=texts, images=nested, **options)
    inputs = {"pixel_values": torch.cat([model.inputs(picture)["pixel_values"] for picture in pictures])}
    if prompt:
        with one_line("the model's tokenizer fails"):
            inputs["input_ids"] = _begun(model, prompt).repeat(len(pictures), 1)
    return inputs


def _call_processor(model: OpenedModel, **given: Any) -> dict[str, Tensor]:
    """Call the processor on pictures and texts."""
    with one_line("the model's processor fails"):
        made = dict(model.processor(return_tensors="pt", **given))
    pixels_of(made, model.module.config, "this model")
    return made


def _processor_text(model: OpenedModel, prompt: str) -> tuple[str, dict[str, Any]]:
    """Return the text and the options for the processor of a model that reads the image among the tokens of the
    text."""
    processor, token = model.processor, str(model.processor.image_token)  # which may be an AddedToken
    if token in prompt or model.module.config.model_type in PREPENDED:
        return prompt, {}
    if not getattr(processor, "chat_template", None):
        return f"{token}{prompt}", {}
    content = [{"type": "image"}, {"type": "text", "text": prompt}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    first = processor.tokenizer.bos_token
    return text, {"add_special_tokens": False} if first and text.startswith(first) else {}


def _begun(model: OpenedModel, prompt: str) -> Tensor:
    """Return the tokens (1, T) of a prompt that begins a caption, without the end token that a tokenizer adds; BLIP's
    `generate` removes it itself."""
    tokenizer = model.processor.tokenizer
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    ends = int(ids[0, -1]) in (tokenizer.sep_token_id, tokenizer.eos_token_id)
    return ids[:, :-1] if ends and model.module.config.model_type != "blip" else ids


def image_token(model: OpenedModel) -> int | None:
    """Return the id of the placeholder for a token of the image in a text; None if there is none."""
    config = model.module.config
    return getattr(config, "image_token_id", getattr(config, "image_token_index", None))


def num_queries(model: OpenedModel) -> int:
    """Return the number of learned queries that represent an image (Li et al. 2023, "BLIP-2", section 3.1); 0 if there
    are none."""
    return getattr(model.module.config, "num_query_tokens", None) or 0


def generated(model: OpenedModel, inputs: Mapping[str, Tensor], **options: Any) -> Any:
    """Call `generate` of transformers. Raises UserError if the model or its settings make it fail."""
    with one_line("the model fails to generate a caption"):
        return model.module.generate(**inputs, **options)


def generation_config(module: Any) -> Any:
    """Return the generation config of a model of transformers: its own, or that of its submodule that generates."""
    from transformers import GenerationMixin

    if type(module).generate is not GenerationMixin.generate:
        for name in ("text_decoder", "language_model", "text_model"):
            if getattr(getattr(module, name, None), "generation_config", None) is not None:
                return getattr(module, name).generation_config
    return module.generation_config

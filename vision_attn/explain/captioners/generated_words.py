"""`GeneratedWords`, the subject whose explained answers are the words that a captioner of transformers generates."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from vision_attn.contracts import Fit
from vision_attn.explain.captioners.generation import GeneratedCaptions, generate
from vision_attn.explain.captioners.prompts import Inputs, inputs_of, num_queries
from vision_attn.explain.captioners.word_maps import relevance_of_steps, teacher_forced
from vision_attn.explain.explained_models import ExplainedAnswer, Map, Subject
from vision_attn.explain.libraries.opening import OpenedModel
from vision_attn.explain.map_extents import extent_of_tokens
from vision_attn.explain.methods import EXTRA
from vision_attn.explain.record import record_attention
from vision_attn.geometry.extents import Extent
from vision_attn.metrics.function_words import content_marks, function_words_of
from vision_attn.system.errors import UserError


class GeneratedWord(NamedTuple):
    """A word of a generated caption."""

    sequence: Int[Tensor, "1 S"]
    """The token ids that `generate` returned, the prompt included."""
    steps: int
    """The number of generated tokens at the end of `sequence`."""
    group: Sequence[int]
    """The steps whose tokens make the word."""
    generation: GeneratedCaptions


class GeneratedWords(Subject):
    """A captioner of transformers whose processor converts a picture to one image (3, Y, X). Its method "attention"
    averages over heads, layers and the steps of a word."""

    own = ("attention", "relevance")
    fit: Fit = "whole"
    model: OpenedModel

    def __init__(self, model: OpenedModel, prompt: str = "") -> None:
        self.model, self.module, self.random = model, model.module, model.random
        self.whole = inputs_of(model, [Image.new("RGB", (256, 256))], prompt)
        self.rest = dict(self.whole)
        if self.rest.pop("pixel_values").dim() != 4 or "image_grid_thw" in self.rest:
            raise UserError("this model takes an image in several pieces, which cannot be changed region by region")
        self._placed: Extent | None = None

    def read(self, picture: Image.Image) -> Float[Tensor, "3 Y X"]:
        return inputs_of(self.model, [picture])["pixel_values"][0]

    def questions(self, image: Float[Tensor, "3 Y X"]) -> list[ExplainedAnswer]:
        generation = generate(self.model, self._inputs(image[None]), mean=True, num_beams=1, do_sample=False)
        (caption,) = generation.captions
        marks = content_marks(caption.words, None, function_words_of(caption.text))
        return [
            ExplainedAnswer(word, GeneratedWord(generation.sequences, generation.steps, group, generation), content)
            for word, group, content in zip(caption.words, caption.groups, marks, strict=True)
        ]

    def methods(self, image: Float[Tensor, "3 Y X"]) -> list[str]:
        questions = self.questions(image)
        mapped = bool(questions) and questions[0].target.generation.tokens is not None
        own = [name for name in self.own if mapped and not (name == "relevance" and num_queries(self.model))]
        return [*own, *EXTRA, "occlusion"]

    @torch.no_grad()
    def score(self, images: Float[Tensor, "N 3 Y X"], target: GeneratedWord) -> Float[Tensor, "N"]:
        return self.value(images, target).exp()

    def value(self, inputs: Float[Tensor, "N 3 Y X"], target: GeneratedWord) -> Float[Tensor, "N"]:
        logits = teacher_forced(self.model, self._inputs(inputs), target.sequence, target.steps)
        ids = target.sequence[0, -target.steps :]
        log_prob = logits.float().log_softmax(dim=-1)
        return torch.stack([log_prob[:, step, ids[step]] for step in target.group]).sum(dim=0)

    def map(self, method: str, image: Float[Tensor, "3 Y X"], target: GeneratedWord) -> Map:
        if method not in self.own:
            return Map(self.weights(method, image, target))
        inputs, tokens = self._inputs(image[None]), target.generation.tokens
        assert tokens is not None
        if self._placed is None:  # once: later weights may be random
            self._placed = extent_of_tokens(self.model, *target.generation.patches(self.model, inputs))
        if method == "relevance":
            maps = relevance_of_steps(self.model, inputs, target.sequence, target.steps, tokens, target.group)
            return Map(maps.mean(dim=0), self._placed)
        with torch.no_grad(), record_attention(self.module, queries="all") as record:
            teacher_forced(self.model, inputs, target.sequence, target.steps)
        layers = [attention for attention in record if attention.name in tokens.layers]
        steps = [step - target.steps for step in target.group]
        pictures = [tokens.picture(layer.maps[0][:, steps]).mean(dim=(0, 1)) for layer in layers]
        return Map(torch.stack(pictures).mean(dim=0), self._placed)

    def _inputs(self, images: Float[Tensor, "N 3 Y X"]) -> Inputs:
        rest = {name: value.expand(len(images), *value.shape[1:]) for name, value in self.rest.items()}
        return Inputs({"pixel_values": images, **rest}, self.whole.of, self.whole.size)

"""Compute CLIPScore and RefCLIPScore (Hessel et al., EMNLP 2021): how well captions fit their images, according to
CLIP.

Both are means over images. CLIPScore needs no references: 2.5 max(cos(c, v), 0) for the embeddings c of the caption and
v of the image. RefCLIPScore is the harmonic mean of it and of the largest max(cos(c, r), 0) of the references r.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from vision_attn.metrics.coco.captions import CLIP

PREFIX = "A photo depicts "
"""The prefix of each text."""
WEIGHT = 2.5
"""The paper's w, which stretches cosines to about 0 to 1."""
BATCH = 32


class Embeddings:
    """Embed texts and images, with length 1, by a model of transformers such as CLIP."""

    def __init__(self, model: Any, processor: Any) -> None:
        """processor: the processor of texts and images."""
        self.model, self.processor = model, processor
        self.device = next(model.parameters()).device
        self.longest = getattr(model.config, "text_config", model.config).max_position_embeddings

    def images(self, pictures: Iterable[Image.Image]) -> Float[Tensor, "N D"]:
        pictures, embeddings = iter(pictures), []
        while some := list(islice(pictures, BATCH)):
            pixels = self.processor.image_processor(images=some, return_tensors="pt")["pixel_values"]
            embeddings.append(self._of(self.model.get_image_features, pixel_values=pixels.to(self.model.dtype)))
        return torch.cat(embeddings)

    def texts(self, captions: Sequence[str]) -> Float[Tensor, "N D"]:
        """Embed captions, cut to the largest number of words that the model reads."""
        embeddings = []
        for first in range(0, len(captions), BATCH):
            texts = [PREFIX + caption for caption in captions[first : first + BATCH]]
            options = {"padding": True, "truncation": True, "max_length": self.longest, "return_tensors": "pt"}
            words = self.processor.tokenizer(texts, **options)
            known = {name: words[name] for name in ("input_ids", "attention_mask")}
            embeddings.append(self._of(self.model.get_text_features, **known))
        return torch.cat(embeddings)

    @torch.inference_mode()
    def _of(self, embed: Any, **inputs: Tensor) -> Float[Tensor, "N D"]:
        embedding = embed(**{name: value.to(self.device) for name, value in inputs.items()})
        embedding = embedding if isinstance(embedding, Tensor) else embedding.pooler_output  # versions differ
        return nn.functional.normalize(embedding.float(), dim=-1).cpu()


def clip_scores(
    captions: Float[Tensor, "N D"], images: Float[Tensor, "N D"], references: Sequence[Float[Tensor, "_ D"]]
) -> list[Mapping[str, float]]:
    """Compute CLIPScore and RefCLIPScore of each image from embeddings of length 1."""
    to_image = WEIGHT * (captions * images).sum(dim=-1).clamp(min=0)
    to_reference = torch.stack(
        [(own @ caption).max().clamp(min=0) for own, caption in zip(references, captions, strict=True)]
    )
    both = 2 * to_image * to_reference / (to_image + to_reference).clamp(min=1e-12)
    return [dict(zip(CLIP, pair, strict=True)) for pair in zip(to_image.tolist(), both.tolist(), strict=True)]

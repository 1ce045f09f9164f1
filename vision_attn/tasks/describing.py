"""`Describing`, the part of captioning tasks that decodes captions of images: text and words, with maps on the grid of
regions."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.attention.steered import Steered, Steering
from vision_attn.contracts import END, Captioner, DecodedCaption, Encoder, Fit
from vision_attn.data.caption_batch import CaptionBatch
from vision_attn.data.images.crops import cropped
from vision_attn.data.vocabulary import UNKNOWN
from vision_attn.decode import Decoded, Decoding, Strategy
from vision_attn.geometry.extents import WHOLE, Extent
from vision_attn.layers.padding import real_regions
from vision_attn.metrics.function_words import content_marks, is_content
from vision_attn.system.checks import check_range, require
from vision_attn.task import Task
from vision_attn.tasks.caption_pages import figure_of, write_pages
from vision_attn.tasks.steering import Wanted
from vision_attn.viz.figures.paper import Paper


class Describing(Task):
    """A task whose captioner decodes captions of images. `Captioning` adds training and evaluation."""

    encoder: Encoder
    model: Captioner
    vocabulary: Any
    """A `Vocabulary`, or `Characters`."""
    decoding: Decoding

    @property
    def resolution(self) -> int:
        return self.encoder.resolution

    @property
    def frames(self) -> int:
        return self.encoder.frames

    @property
    def way(self) -> str:
        """How maps are made, in words."""
        mode = f", {self.model.mode}" if self.model.mode else ""
        paper = next(ancestor for ancestor in type(self.model).__mro__ if ".fast." not in ancestor.__module__)
        return f"attention of {paper.__name__}{mode}"

    @property
    def fit(self) -> Fit:
        return self.encoder.fit

    def regions(self, images: Tensor, crops: Float[Tensor, "B 4"] | None = None) -> Float[Tensor, "B L D"]:
        """Compute annotation vectors.

        images: uint8 images (B, 3, S, S), films (B, F, 3, S, S), or their entries in a cache: outputs of
            `encoder.frozen_part()`.
        crops: the part of each image to encode; None: all of it.
        """
        if images.dtype == torch.uint8:
            return self.encoder(images if crops is None else cropped(images, crops))
        regions, number = self.encoder.finish(images.float()), prod(self.encoder.layout)
        if number > 0:
            require("regions", regions, "B L D", "float", L=number)
        return regions

    @torch.no_grad()
    def describe(
        self,
        images: Tensor,
        captions: int | None = None,
        strategy: Strategy = "best",
        decoding: Decoding | None = None,
        *,
        placed: bool = True,
        steering: Steering | None = None,
    ) -> list[Any]:
        """Return the best caption of each of uint8 images (B, 3, S, S), films, or their entries in a cache: see
        `regions`.

        captions: return a list of this number of captions for each image, best first; fewer if the beam finds no more,
            or if groups find equal captions.
        strategy: "best", the best captions of a beam, which is at least that wide; "diverse", the best caption of each
            of that many groups of beams (Vijayakumar et al. 2018); "sampled", independent samples, which may be equal.
        decoding: settings to use in place of this task's.
        placed: whether to compute `extent`, the places of the maps on the image. They are measured at the first call,
            which takes as long as encoding 16 to 48 images.
        steering: the maps that the captioner must use; see `attention.steered`.
        """
        number = 1 if captions is None else captions
        check_range("describe", 1, 1000, captions=number)
        regions = self.regions(images)
        decoded = self._decode(regions, decoding or self.decoding, number, strategy, steering)
        if captions is None:
            return self._described(decoded, regions, placed=placed, steering=steering)
        number = min(captions, decoded.score.shape[1])
        rows = [self._described(decoded, regions, row, placed=placed, steering=steering) for row in range(number)]
        return [complete(of_image, different=strategy == "diverse") for of_image in zip(*rows, strict=True)]

    @torch.no_grad()
    def described_from(
        self, regions: Float[Tensor, "B L D"], decoding: Decoding, steering: Steering | None = None
    ) -> list[DecodedCaption]:
        """Return the best caption of each image, decoded from its annotation vectors."""
        return self._described(self._decode(regions, decoding, 1, "best", steering), regions, placed=False)

    def steering(self, wanted: Wanted, seen: Sequence[Extent]) -> Steering | None:
        """Return the maps for `describe`; None if no map is replaced.

        wanted: the words and places that a user gave.

        seen: the part of each photograph that the encoder sees.
        """
        return wanted.steering(self.encoder.layout, self.encoder.extent(), seen)

    @torch.no_grad()
    def show(self, batch: CaptionBatch, folder: Path, **options: Any) -> list[Path]:
        """Write a sheet for each image and one page of all, with the map of each word. Hard attention is drawn with its
        most likely region.

        options: `overlay` and `scale`, see `viz.attention.attention_sheet`.
        """
        return write_pages(batch, self._shown_captions(batch), self.encoder, folder, self.way, **options)

    @torch.no_grad()
    def figure(self, batch: CaptionBatch, paper: Paper, **options: Any) -> Any:
        """Draw a row for each image: the map and the overlay of the word whose map is sharpest."""
        return figure_of(batch, self._shown_captions(batch), self.encoder, paper, self.way, **options)

    def _shown_captions(self, batch: CaptionBatch) -> list[DecodedCaption]:
        """Return the captions that pictures show."""
        likeliest = next((mode for mode in ("argmax", "mode") if mode in self.model.modes), None)  # "mode" until 1.1
        with self.model.in_mode(likeliest) if likeliest and self.model.mode == "expectation" else nullcontext():
            return self.describe(batch.images.to(next(self.parameters()).device))

    def _by_mode(self, regions: Tensor, placed: bool) -> dict[str, list[DecodedCaption]]:
        """Return captions in each mode of attention at test time, where there are several."""
        described = {}
        for mode in self.model.modes:
            with self.model.in_mode(mode):
                described[mode] = self._described(self._decode(regions, self.decoding), regions, placed=placed)
        return described

    def _decode(
        self,
        regions: Tensor,
        decoding: Decoding,
        captions: int = 1,
        strategy: Strategy = "best",
        steering: Steering | None = None,
    ) -> Decoded:
        once = self.content_ids if decoding.content_once else ()
        model = self.model if steering is None else Steered(self.model, steering, padded=self.encoder.pads)
        return decoding.decode(model, regions, captions=captions, strategy=strategy, never=(UNKNOWN,), once=once)

    @cached_property
    def content_ids(self) -> list[int]:
        """The ids of the content words."""
        words, function_words = self.vocabulary.words, self.vocabulary.function_words
        return [index for index, word in enumerate(words) if index > UNKNOWN and is_content(word, function_words)]

    def _described(
        self,
        decoded: Decoded,
        regions: Tensor,
        row: int = 0,
        *,
        placed: bool = True,
        steering: Steering | None = None,
    ) -> list[DecodedCaption]:
        captions = described(decoded, regions, self.vocabulary, self.encoder, row, placed=placed)
        if steering is None:
            return captions
        steered = steering.strength.any(dim=2).tolist()
        return [
            caption._replace(steered=[t for t, forced in enumerate(words[: caption.steps], start=1) if forced])
            for caption, words in zip(captions, steered, strict=True)
        ]


def described(
    decoded: Decoded,
    regions: Float[Tensor, "B L D"],
    vocabulary: Any,
    encoder: Encoder,
    row: int = 0,
    *,
    placed: bool = True,
) -> list[DecodedCaption]:
    """Return one decoded caption of each image as text and words, with its maps, without padding.

    row: the row of `decoded`; 0 is the best caption.

    placed: whether to compute `extent`; see `Describing.describe`.
    """
    sizes = real_regions(regions).sum(dim=1).tolist() if encoder.pads else [None] * len(regions)
    best = Decoded._make(None if field is None else field[:, row].cpu() for field in decoded)
    extent = encoder.extent(decoded.alpha.shape[-1]) if placed and decoded.alpha is not None else WHOLE
    shape = encoder.layout if encoder.frames > 1 else encoder.grid
    captions = []
    for image, size in enumerate(sizes):
        caption = Decoded._make(None if field is None else field[image] for field in best)
        words, log_prob, score, alpha, region, heads = caption
        length, is_found = int((words > END).sum()), bool(score.isfinite())
        written = [vocabulary.words[index] for index in words[:length].tolist()]
        captions.append(
            DecodedCaption(
                vocabulary.decode(words.tolist()),
                written,
                log_prob[:length].tolist(),
                # Copies: views would keep, and send to other processes, the maps of the whole batch.
                None if alpha is None else alpha[:length, :size].clone().unflatten(-1, shape),
                None if region is None else region[:length].clone(),
                None if heads is None else heads[:length, :, :size].clone().unflatten(-1, shape),
                float(score) if is_found else None,
                is_found and not bool((words == END).any()),
                extent,
                content_marks(written, None, vocabulary.function_words),
            )
        )
    return captions


def complete(captions: Sequence[DecodedCaption], *, different: bool) -> list[DecodedCaption]:
    """Drop the empty rows of an image's captions, but keep at least one.

    different: whether to drop repeated captions as well.
    """
    decoded = [caption for caption in captions if caption.score is not None] or [captions[0]]
    if not different:
        return decoded
    first: dict[str, DecodedCaption] = {}
    for caption in decoded:
        first.setdefault(caption.text, caption)
    return list(first.values())

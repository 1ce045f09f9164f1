"""A trained run, opened: what the Python API and the page ask of it."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vision_attn.attention.images import Images, Sliced, scaled
from vision_attn.configuration.hub import local
from vision_attn.configuration.run_folder import open_run
from vision_attn.contracts import DecodedCaption
from vision_attn.data.images.decode import Encoded
from vision_attn.data.images.lazy import open_pixels, resized
from vision_attn.data.labelled.labelled_images import LabelledImages
from vision_attn.data.lines.text_lines import ink, max_width_of
from vision_attn.decode import Way
from vision_attn.results.displayable import CaptionResult, ClassificationResult, DrawnImages, ResultList
from vision_attn.results.explainer import explainer_of_run
from vision_attn.results.images import Picture, each, photograph, whole
from vision_attn.system.machine import torch_device
from vision_attn.task import Source
from vision_attn.tasks.caption import Captioning
from vision_attn.tasks.classify import Classification
from vision_attn.tasks.generate import Generation, pictures, rectangles
from vision_attn.tasks.transcribe import Transcription
from vision_attn.viz.classified import DRAWN


class Model:
    """A trained run. Which of `caption`, `look`, `transcribe`, `classify` and `draw` works depends on its task."""

    def __init__(
        self,
        task: Any,
        config: dict[str, Any],
        device: torch.device,
        source: Source | None = None,
        name: str = "this model",
    ) -> None:
        self.task, self.config, self.device, self.source, self.name = task, config, device, source, name

    def __repr__(self) -> str:
        return f"<vision_attn model: {type(self.task).__name__}, {type(self.task.model).__name__}, on {self.device}>"

    def caption(
        self,
        images: Picture | Sequence[Picture],
        *,
        captions: int | None = None,
        way: Way = "best",
        seed: int | None = None,
        **settings: int | float,
    ) -> Any:
        """Caption an image, or each image of a list. Returns a `CaptionResult` with `text`, `words`, `log_prob` and
        `alpha` (one map per word), or a list of them.

        captions: return a list of this number of captions of each image, best first. way: "best" of one beam, the best
            of groups of beams that differ ("diverse"), or "sampled". seed: of samples.
        settings: of decoding, for this call alone: beams, max_words, min_words, no_repeat, length_power, diversity,
            temperature, top_p. What they mean: docs/captioning.md.
        """
        self._check(Captioning, "writes captions", "caption")
        if not self.task.sees_squares:
            raise ValueError("this model reads lines: use transcribe()")
        if captions is None and way == "diverse":
            raise ValueError("captions that differ are several: give their number as captions")
        if seed is not None and way != "sampled":
            raise ValueError(f'a seed is of sampled captions: give way="sampled", not {way!r}')

        def batch(read: Sequence[tuple[str, Image.Image, Tensor]]) -> list[CaptionResult | ResultList]:
            pixels = torch.stack([pixels for *_, pixels in read]).to(self.device)
            decoding = self.task.decoding.changed(**settings)
            described = self.task.describe(pixels, 1 if captions is None else captions, way, decoding)
            found = [
                [CaptionResult(*shown, one) for one in some] for (*shown, _), some in zip(read, described, strict=True)
            ]
            return [some[0] if captions is None else ResultList(some) for some in found]

        with nullcontext() if seed is None else self.task.seeded(seed):
            return each(images, partial(photograph, resolution=self.task.resolution, fit=self.task.fit), batch)

    def look(self, images: Picture | Sequence[Picture], text: str | Sequence[str] | None = None, **options: Any) -> Any:
        """Where a captioner, or a classifier of whole photographs, looked: see `Explainer.look`."""
        return explainer_of_run(self.task, self.source, self.name, self.device).look(images, text, **options)

    def transcribe(self, images: Picture | Sequence[Picture]) -> Any:
        """Transcribe an image of a line of characters, or each image of a list. Returns a `CaptionResult` whose `words`
        are the characters, or a list of them. A model that labels columns (CTC) has no `log_prob` of characters."""
        self._check(Transcription, "reads lines", "transcribe")

        def read(image: Picture, number: int) -> CaptionResult:
            title, picture = whole(image, number, at_least=None)  # as the command reads lines
            strip = self.task.strip(ink(picture, self.task.resolution, max_width_of(self.source)), title)
            (item,) = strip.items
            found = DecodedCaption(item.text, item.words, item.log_prob or [], item.alpha, extent=item.extent)
            return CaptionResult(title, strip.picture, found)

        return each(images, read, list)

    def classify(self, images: Picture | Sequence[Picture]) -> Any:
        """Classify an image, or each image of a list, as `vision-attn classify` does: a model that takes glimpses sees
        an image of any size as it is, others see it resized to fit. An array of uint8 (Y, X), or a file of one (.npy),
        may be larger than memory. Returns an `ClassificationResult` with `label`, its `name`, `probabilities` (T, N)
        after each glimpse and `locations` (T, 2), or a list of them."""
        self._check(Classification, "classifies images", "classify")
        source = self.source if isinstance(self.source, LabelledImages) else None
        seed = self.config.get("run", {}).get("seed", 0)

        def read(image: Picture, number: int) -> tuple[str, Sliced]:
            if isinstance(image, str | Path | Encoded):
                opened = open_pixels(image) if source is None else source.open(image)
                return Path(str(image)).name, opened
            if source is None and isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 2:
                return f"image {number}", image  # as it is: it may be mapped from a file larger than memory
            title, picture = whole(image, number)
            if source is None or source.side is None:
                return title, np.array(picture)
            return title, resized(picture, source.side, source.square)

        def answer(title: str, pixels: Sliced) -> ClassificationResult:
            image, extent = self.task.seen(pixels), None
            (found,) = self.task.answer(image, seed)
            view = found.view and type(found.view)(*(part[0].cpu() for part in found.view))
            if isinstance(image, Images):
                (extent,) = map(tuple, image.extents.tolist())
                image = scaled(torch.stack(image.sampled(DRAWN)))
            where = None if found.glance.locations is None else found.glance.locations[0, 0].cpu()
            after = found.glance.log_prob[0].exp().mean(dim=0).cpu()
            return ClassificationResult(title, image[0].cpu(), after, where, view, self.task.class_names, extent)

        return each(images, read, lambda some: [answer(*one) for one in some])

    @torch.no_grad()
    def draw(self, number: int = 16, *, steps: int | None = None, seed: int = 0) -> DrawnImages:
        """Draw new images. `steps`: time steps, by default as trained. Returns a `DrawnImages` with `images` (N, C, Y,
        X)."""
        self._check(Generation, "draws images", "draw")
        drawing = self.task.model.sample(number, steps, torch.Generator().manual_seed(seed))
        return DrawnImages(pictures(drawing.canvases).cpu(), rectangles(self.task.model.write, drawing.writes))

    def _check(self, kind: type, does: str, verb: str) -> None:
        if not isinstance(self.task, kind):
            can = {Transcription: "transcribe", Captioning: "caption", Classification: "classify", Generation: "draw"}
            other = next((name for task, name in can.items() if isinstance(self.task, task)), None)
            hint = f": use {other}()" if other else ""
            raise ValueError(f"{verb}() needs a model that {does}, and this one is a {self.task.kind}{hint}")


def open_model(name: str | Path, *, device: str = "auto", trust: str | Sequence[str] = ()) -> Model:
    """Open a run. Raises ValueError saying what is missing."""
    target = torch_device(device)
    task, source, config = open_run(local(name), trust=trust)
    return Model(task.to(target), config, target, source, str(name))

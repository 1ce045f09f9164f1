"""What a notebook needs: `load` opens a run, whose results show themselves.

    model = vision_attn.load("runs/mine")
    model.caption("photo.jpg")  # a page in which pointing at a word shows where the model looked

Loading runs no code of a run folder: see `vision_attn.config.open_run`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from vision_attn.attention.images import Images, scaled
from vision_attn.config import open_run
from vision_attn.contracts import Described
from vision_attn.data.conversion import in_rgb
from vision_attn.data.images import centre_square
from vision_attn.data.labelled import LabelledImages
from vision_attn.data.lines import ink, max_width_of
from vision_attn.data.photographs import open_photograph
from vision_attn.data.pixels import open_pixels, resized
from vision_attn.hub import local
from vision_attn.machine import torch_device
from vision_attn.shown import Answer, Captioned, Drawn, Several
from vision_attn.task import Source
from vision_attn.tasks.caption import Captioning
from vision_attn.tasks.classify import DRAWN, Classification
from vision_attn.tasks.generate import Generation, pictures, rectangles
from vision_attn.tasks.transcribe import Transcription

Picture = str | Path | Image.Image | np.ndarray | Tensor
"""A file, a picture, or an array: (Y, X), (Y, X, 3), or a tensor (C, Y, X); uint8, or floats in [0, 1]."""

SIDE = 672
"""Pixels that a photograph keeps for pictures."""
BATCH = 16


def load(name: str | Path = "weights/photographs", *, device: str = "auto", trust: Sequence[str] = ()) -> "Model":
    """Open a trained run: its folder, a copy of its `best/`, the name of an included one (`weights/photographs`,
    `weights/ram_cluttered60` and others), or "hf://user/name" on the Hugging Face Hub.

    device: as `run.device`. trust: packages whose code the run may use. Raises ValueError saying what is missing.
    """
    place = torch_device(device)
    task, source, config = open_run(local(name), trust=trust)
    return Model(task.to(place), config, place, source)


class Model:
    """A trained run. Which of `caption`, `transcribe`, `classify` and `draw` works depends on its task."""

    def __init__(self, task: Any, config: dict[str, Any], device: torch.device, source: Source | None = None) -> None:
        self.task, self.config, self.device, self.source = task, config, device, source

    def __repr__(self) -> str:
        return f"<vision_attn model: {type(self.task).__name__}, {type(self.task.model).__name__}, on {self.device}>"

    def caption(self, images: Picture | Sequence[Picture]) -> Any:
        """Caption an image, or each image of a list. Returns a `Captioned` with `text`, `words`, `log_prob` and `alpha`
        (one map per word), or a list of them."""
        self._check(Captioning, "writes captions", "caption")
        if not self.task.sees_squares:
            raise ValueError("this model reads lines: use transcribe()")

        def batch(named: Sequence[tuple[str, Image.Image]]) -> list[Captioned]:
            side = self.task.resolution
            small = [square.resize((side, side), Image.Resampling.BICUBIC) for _, square in named]
            stacked = torch.from_numpy(np.stack([np.array(picture) for picture in small])).permute(0, 3, 1, 2)
            described = self.task.describe(stacked.contiguous().to(self.device))
            return [Captioned(title, square, each) for (title, square), each in zip(named, described, strict=True)]

        return _each(images, lambda image, number: _square(image, number), batch)

    def transcribe(self, images: Picture | Sequence[Picture]) -> Any:
        """Transcribe an image of a line of characters, or each image of a list. Returns a `Captioned` whose `words` are
        the characters, or a list of them. A model that labels columns (CTC) has no `log_prob` of characters."""
        self._check(Transcription, "reads lines", "transcribe")

        def read(image: Picture, number: int) -> Captioned:
            title, picture = _whole(image, number)
            strip = self.task.strip(ink(picture, self.task.resolution, max_width_of(self.source)), title)
            (item,) = strip.items
            return Captioned(title, strip.picture, Described(item.text, item.words, item.log_prob or [], item.alpha))

        return _each(images, read, list)

    def classify(self, images: Picture | Sequence[Picture]) -> Any:
        """Classify an image, or each image of a list, as `vision-attn classify` does: a model that takes glimpses sees
        an image of any size as it is, others see it resized to fit. A file may also be a .npy array larger than memory.
        Returns an `Answer` with `label`, its `name`, `probabilities` (T, N) after each glimpse and `locations` (T, 2),
        or a list of them."""
        self._check(Classification, "classifies images", "classify")
        source = self.source if isinstance(self.source, LabelledImages) else None
        seed = self.config.get("run", {}).get("seed", 0)

        def read(image: Picture, number: int) -> tuple[str, np.ndarray]:
            if isinstance(image, str | Path):
                return Path(image).name, source.open(image) if source else open_pixels(image)
            title, picture = _whole(image, number)
            side = source.side if source else None
            return title, np.array(picture) if side is None else resized(picture, side, source.square)

        def answer(title: str, pixels: np.ndarray) -> Answer:
            image, extent = self.task.seen(pixels), None
            (found,) = self.task.answer(image, seed)
            view = found.view and type(found.view)(*(part[0].cpu() for part in found.view))
            if isinstance(image, Images):
                (extent,) = map(tuple, image.extents.tolist())
                image = scaled(torch.stack(image.sampled(DRAWN)))
            where = None if found.glance.locations is None else found.glance.locations[0, 0].cpu()
            after = found.glance.log_prob[0].exp().mean(dim=0).cpu()
            return Answer(title, image[0].cpu(), after, where, view, self.task.class_names, extent)

        return _each(images, read, lambda some: [answer(*each) for each in some])

    @torch.no_grad()
    def draw(self, number: int = 16, *, steps: int | None = None, seed: int = 0) -> Drawn:
        """Draw new images. `steps`: time steps, by default as trained. Returns a `Drawn` with `images` (N, C, Y, X)."""
        self._check(Generation, "draws images", "draw")
        drawing = self.task.model.sample(number, steps, torch.Generator().manual_seed(seed))
        return Drawn(pictures(drawing.canvases).cpu(), rectangles(self.task.model.write, drawing.writes))

    def _check(self, kind: type, does: str, verb: str) -> None:
        if not isinstance(self.task, kind):
            can = {Transcription: "transcribe", Captioning: "caption", Classification: "classify", Generation: "draw"}
            other = next((name for task, name in can.items() if isinstance(self.task, task)), None)
            hint = f": use {other}()" if other else ""
            raise ValueError(f"{verb}() needs a model that {does}, and this one is a {type(self.task).__name__}{hint}")


def _each(
    images: Picture | Sequence[Picture], read: Callable[[Picture, int], Any], batch: Callable[[Sequence[Any]], list]
) -> Any:
    """Read images and process them in batches; the result of one image that is not in a list is returned alone."""
    if not isinstance(images, list | tuple):
        return batch([read(images, 1)])[0]
    results: list[Any] = []
    for first in range(0, len(images), BATCH):
        some = images[first : first + BATCH]
        results += batch([read(image, first + number) for number, image in enumerate(some, 1)])
    return Several(results)


def _square(image: Picture, number: int) -> tuple[str, Image.Image]:
    """The title of an image, and its centre square in RGB. Raises ValueError for what is no image."""
    title, picture = _whole(image, number)
    square = picture.crop(tuple(round(edge) for edge in centre_square(*picture.size)))
    square.thumbnail((SIDE, SIDE), Image.Resampling.BICUBIC)
    return title, square


def _whole(image: Picture, number: int) -> tuple[str, Image.Image]:
    """The title of an image, and the image in RGB. Raises ValueError for what is no image."""
    if isinstance(image, str | Path):
        title, picture = Path(image).name, open_photograph(image, at_least=SIDE)
    else:
        title = f"image {number}"
        if isinstance(image, np.ndarray | Tensor):
            image = _pictured(image)
        if not isinstance(image, Image.Image):
            raise ValueError(f"{title} is a {type(image).__name__}: give a path, a PIL image, an array or a tensor")
        title = Path(getattr(image, "filename", "") or title).name
        picture = in_rgb(ImageOps.exif_transpose(image))
    return title, picture


def _pictured(array: np.ndarray | Tensor) -> Image.Image:
    """A picture of an array (Y, X) or (Y, X, 3), or of a tensor (C, Y, X). Raises ValueError for others."""
    shape = tuple(array.shape)
    if isinstance(array, Tensor):
        array = array.detach().cpu()
        array = (array.permute(1, 2, 0) if array.ndim == 3 else array).numpy()
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim not in (2, 3) or 0 in shape or (array.ndim == 3 and array.shape[2] != 3):
        raise ValueError(
            f"an array is (Y, X) or (Y, X, 3), a tensor (C, Y, X) with 1 or 3 channels; this one is {shape}"
        )
    if array.dtype == np.bool_ or np.issubdtype(array.dtype, np.floating):
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= 1):
            raise ValueError("an array of floats must lie in [0, 1]; for pixels from 0 to 255 use uint8")
        array = (array * 255.0).round().astype(np.uint8)
    if array.dtype != np.uint8:
        raise ValueError(f"an array is uint8, or floats in [0, 1]; this one is {array.dtype}")
    return Image.fromarray(np.ascontiguousarray(array))

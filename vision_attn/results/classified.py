"""Classes of images and drawn images, as results."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.attention.images import Images, scaled
from vision_attn.contracts import Glimpses, Reads
from vision_attn.results.displayable import Displayable, write_embedded
from vision_attn.system.files import scratch
from vision_attn.viz.canvases import Rectangles, write_strips
from vision_attn.viz.canvases import write_animation as write_drawing
from vision_attn.viz.classified import DRAWN
from vision_attn.viz.foveated import GlimpseTrace, as_picture
from vision_attn.viz.glimpses import write_animation, write_glimpses
from vision_attn.viz.reads import write_reads, write_reads_animation
from vision_attn.viz.sheet import Panel, fitted, save_picture, sheet


@dataclass(repr=False)
class ClassificationResult(Displayable):
    """An image with its class, and where the classifier looked."""

    file: str
    seen: Float[Tensor, "1 C Y X"] | Images
    """What the model was given."""
    probabilities: Float[Tensor, "T N"]
    """Of each class, after each glimpse."""
    locations: Float[Tensor, "T 2"] | None
    """(x, y) of each glimpse in [-1, 1]; None for a model that sees the whole image."""
    view: Glimpses | Reads | None
    """What each glimpse saw."""
    names: Sequence[str] = ()
    """Of classes; empty where they are numbers."""

    @cached_property
    def image(self) -> Float[Tensor, "C Y X"]:
        """The image; of a large one a reduction."""
        seen = self.seen
        return (scaled(torch.stack(seen.sampled(DRAWN))) if isinstance(seen, Images) else seen)[0].cpu()

    @property
    def extent(self) -> tuple[int, int] | None:
        """Width and height of the image, where `image` is a reduction of it."""
        return tuple(self.seen.extents[0].tolist()) if isinstance(self.seen, Images) else None

    @property
    def label(self) -> int:
        return int(self.probabilities[-1].argmax())

    @property
    def name(self) -> str:
        """The name of the class; its number where classes have no names."""
        return self.names[self.label] if self.names else str(self.label)

    @property
    def probability(self) -> float:
        """Of the class."""
        return float(self.probabilities[-1].max())

    @property
    def text(self) -> str:
        return f"{self.name}, p {self.probability:.2f}"

    def record(self, *, maps: bool = False) -> dict[str, Any]:
        """The probability of each class, and the location (x, y) of each glimpse, from -1 to 1."""
        names = self.names or [str(number) for number in range(self.probabilities.shape[1])]
        return {
            "answer": self.name,
            "probability": self.probability,
            "probabilities": dict(zip(names, self.probabilities[-1].tolist(), strict=True)),
            "locations": None if self.locations is None else self.locations.tolist(),
        }

    def __repr__(self) -> str:
        return f"<{self.title}: {self.text}>"

    @property
    def reads(self) -> tuple:
        """The arguments that the pictures of reads share."""
        boxes = Rectangles(self.view.boxes[None], self.view.sigma[None])
        return self.image[None], boxes, [None], self.probabilities[None], self.names

    @property
    def glimpsed(self) -> GlimpseTrace:
        patches = self.view.patches
        parts = (self.image, self.locations, patches, None, self.label, self.probabilities, self.title)
        return GlimpseTrace(*parts, extent=self.extent, names=self.names)

    def write_page(self, path: Path) -> None:
        with scratch("page") as folder:
            if self.view is None:
                self.write_picture(shown := folder / "picture.png")
            else:
                self.write_animation(shown := folder / "animation.gif")
            write_embedded(path, self.title, shown)

    def write_animation(self, path: Path) -> None:
        if isinstance(self.view, Glimpses):
            write_animation(path, self.glimpsed)
        elif isinstance(self.view, Reads):
            write_reads_animation(path, *self.reads)
        else:
            super().write_animation(path)

    def write_picture(self, path: Path) -> None:
        if isinstance(self.view, Glimpses):
            write_glimpses(path, self.glimpsed)
        elif isinstance(self.view, Reads):
            images, boxes, *answer = self.reads
            write_reads(path, images, boxes, self.view.patches[None], *answer)
        else:
            panel = Panel(fitted(as_picture(self.image)), self.name, f"p {self.probability:.2f}")
            save_picture(path, sheet([panel], caption="", title=self.title))


@dataclass(repr=False)
class DrawnImages(Displayable):
    """New images, and how they were drawn."""

    canvases: Float[Tensor, "N T C Y X"]
    writes: Rectangles | None

    @property
    def images(self) -> Float[Tensor, "N C Y X"]:
        return self.canvases[:, -1]

    def __repr__(self) -> str:
        return f"<{len(self.canvases)} images, drawn in {self.canvases.shape[1]} time steps>"

    def write_page(self, path: Path) -> None:
        with scratch("page") as folder:
            self.write_animation(shown := folder / "drawn.gif")
            write_embedded(path, repr(self)[1:-1], shown)

    def write_animation(self, path: Path) -> None:
        write_drawing(path, self.canvases, self.writes)

    def write_picture(self, path: Path) -> None:
        write_strips(path, self.canvases, self.writes)

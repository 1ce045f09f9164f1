"""The results of classifying images and of drawing new ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
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
from vision_attn.viz.figures.paper import Paper
from vision_attn.viz.foveated import GlimpseTrace, as_picture
from vision_attn.viz.glimpses import write_animation, write_glimpses
from vision_attn.viz.panel_sheets import Panel, fitted, save_picture, sheet
from vision_attn.viz.read_windows import ReadTrace, write_reads, write_reads_animation


@dataclass(repr=False)
class ClassificationResult(Displayable):
    """The class of an image, with the glimpses of the classifier."""

    file: str
    seen: Float[Tensor, "1 C Y X"] | Images
    """The input of the model."""
    probabilities: Float[Tensor, "T N"]
    """The probability of each class after each glimpse."""
    locations: Float[Tensor, "T 2"] | None
    """(x, y) of each glimpse in [-1, 1]; None for a model that sees the whole image."""
    view: Glimpses | Reads | None
    """The pixels that each glimpse saw."""
    names: Sequence[str] = ()
    """The names of the classes; empty if they are numbers."""

    @cached_property
    def image(self) -> Float[Tensor, "C Y X"]:
        """The image; a large one is reduced."""
        seen = self.seen
        return (scaled(torch.stack(seen.sampled(DRAWN))) if isinstance(seen, Images) else seen)[0].cpu()

    @property
    def full_size(self) -> tuple[int, int] | None:
        """The width and height of the image if `image` is reduced."""
        return tuple(self.seen.extents[0].tolist()) if isinstance(self.seen, Images) else None

    @property
    def extent(self) -> tuple[int, int] | None:
        """The name of `full_size` until version 1.1."""
        return self.full_size

    @property
    def label(self) -> int:
        return int(self.probabilities[-1].argmax())

    @property
    def name(self) -> str:
        """The name of the class, or its number if classes have no names."""
        return self.names[self.label] if self.names else str(self.label)

    @property
    def probability(self) -> float:
        """The probability of the class."""
        return float(self.probabilities[-1].max())

    @property
    def entropy(self) -> Float[Tensor, "T"]:
        """The entropy of the answer after each glimpse, in nats: how undecided the model still was."""
        entropies: Tensor = torch.special.entr(self.probabilities)
        return entropies.sum(dim=1)

    @property
    def text(self) -> str:
        return f"{self.name}, p {self.probability:.2f}"

    def record(self, *, maps: bool = False) -> dict[str, Any]:
        """Return the probability of each class and, for each glimpse, its location (x, y), from -1 to 1, and the
        entropy of the answer after it, in nats."""
        names = self.names or [str(number) for number in range(self.probabilities.shape[1])]
        return {
            "answer": self.name,
            "probability": self.probability,
            "probabilities": dict(zip(names, self.probabilities[-1].tolist(), strict=True)),
            "locations": None if self.locations is None else self.locations.tolist(),
            "entropy": self.entropy.tolist(),
        }

    def __repr__(self) -> str:
        return f"<{self.title}: {self.text}>"

    @property
    def reads(self) -> tuple[Any, ...]:
        """The arguments that all pictures of reads take."""
        assert isinstance(self.view, Reads)
        boxes = Rectangles(self.view.boxes[None], self.view.sigma[None])
        return self.image[None], boxes, [None], self.probabilities[None], self.names

    @property
    def read(self) -> ReadTrace:
        assert isinstance(self.view, Reads)
        boxes, sigma = (tensor.detach().float().cpu() for tensor in (self.view.boxes, self.view.sigma))
        patches = self.view.patches
        return ReadTrace(self.image, boxes, sigma, patches, self.probabilities, None, self.title, self.names)

    @property
    def glimpsed(self) -> GlimpseTrace:
        assert self.view is not None and self.locations is not None
        return GlimpseTrace(
            self.image, self.locations, self.view.patches, None, self.label, self.probabilities, self.title,
            self.full_size, self.names,
        )  # fmt: skip

    def figure_on(self, paper: Paper, **options: Any) -> Any:
        return self.figure_together([self], paper, **options)

    @classmethod
    def figure_together(cls, results: Sequence["ClassificationResult"], paper: Paper, **options: Any) -> Any:
        """Draw a row for each image: the path of the glimpses, and the pixels that they saw."""
        from vision_attn.viz.figures.glimpses import answers_figure, glimpses_figure, reads_figure

        views = {type(result.view) for result in results}
        if views == {Glimpses}:
            return glimpses_figure([result.glimpsed for result in results], paper, **options)
        if views == {Reads}:
            return reads_figure([result.read for result in results], paper, **options)
        answers = [(as_picture(result.image), result.title, result.text) for result in results]
        return answers_figure(answers, paper, **options)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return `probabilities` (T, N) of each class after each glimpse; `locations` (T, 2), the (x, y) of each
        glimpse from -1 to 1, if the model takes glimpses; `names` (N) of the classes; `text`, the class, and `image`,
        the name of the file, ()."""
        numbers = range(self.probabilities.shape[1])
        arrays = {
            "probabilities": self.probabilities.cpu().numpy(),
            "names": np.array([*self.names] or [str(number) for number in numbers], dtype=np.str_),
            "text": np.array(self.text),
            "image": np.array(self.file.encode(errors="backslashreplace").decode()),
        }
        return arrays if self.locations is None else arrays | {"locations": self.locations.cpu().numpy()}

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
    """New images, and their canvas after each time step."""

    canvases: Float[Tensor, "N T C Y X"]
    writes: Rectangles | None

    @property
    def images(self) -> Float[Tensor, "N C Y X"]:
        return self.canvases[:, -1]

    def __repr__(self) -> str:
        return f"<{len(self.canvases)} images, drawn in {self.canvases.shape[1]} time steps>"

    def figure_on(self, paper: Paper, **options: Any) -> Any:
        from vision_attn.viz.figures.glimpses import drawings_figure

        return drawings_figure(self.canvases, self.writes, paper, **options)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return `canvases` (N, T, C, Y, X), each image after each time step, in [0, 1]; `boxes` (N, T, 4), the left,
        top, right and bottom edges of the write windows from -1 to 1, if the model has them."""
        arrays = {"canvases": self.canvases.cpu().numpy()}
        return arrays if self.writes is None else arrays | {"boxes": self.writes.boxes.cpu().numpy()}

    def write_page(self, path: Path) -> None:
        with scratch("page") as folder:
            self.write_animation(shown := folder / "drawn.gif")
            write_embedded(path, repr(self)[1:-1], shown)

    def write_animation(self, path: Path) -> None:
        write_drawing(path, self.canvases, self.writes)

    def write_picture(self, path: Path) -> None:
        write_strips(path, self.canvases, self.writes)

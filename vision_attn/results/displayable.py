"""Results that show themselves in a notebook, and are saved as a page or a picture."""

import base64
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, SupportsIndex

from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vision_attn.contracts import DecodedCaption, Glimpses, Reads
from vision_attn.contracts.places import Extent
from vision_attn.system.files import scratch
from vision_attn.viz.attention import attention_sheet, light
from vision_attn.viz.canvases import Rectangles, write_strips
from vision_attn.viz.canvases import write_animation as write_drawing
from vision_attn.viz.foveated import GlimpseTrace, as_picture
from vision_attn.viz.glimpses import grid, write_animation, write_gallery
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.reads import write_reads, write_reads_animation
from vision_attn.viz.sheet import DARK, Panel, fitted, save_page, save_picture, sheet

HEIGHT = 640
"""Height of a page in a notebook, in pixels."""


class Displayable(ABC):
    """A result that a notebook displays. `save("look.html")` writes its page, `save("look.png")` its picture."""

    @abstractmethod
    def write_page(self, path: Path) -> None:
        """Write a self-contained HTML page."""

    @abstractmethod
    def write_picture(self, path: Path) -> None:
        """Write a PNG."""

    def save(self, path: str | Path) -> Path:
        """Write the page (.html) or the picture (.png). Raises ValueError for other names."""
        path, writers = Path(path), {".html": self.write_page, ".png": self.write_picture}
        if path.suffix.lower() not in writers:
            raise ValueError(f"{path}: give a name that ends in .html (the page) or .png (the picture)")
        path.parent.mkdir(parents=True, exist_ok=True)
        writers[path.suffix.lower()](path)
        return path

    def page(self) -> str:
        """The HTML page."""
        with scratch("page") as folder:
            self.write_page(folder / "page.html")
            return (folder / "page.html").read_text(encoding="utf-8")

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.page())}" style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'

    def _repr_png_(self) -> bytes:
        with scratch("picture") as folder:
            self.write_picture(folder / "picture.png")
            return (folder / "picture.png").read_bytes()


class InteractiveResult(Displayable):
    """A picture with words that can be pointed at. Several are displayed on one page."""

    title: str

    @property
    @abstractmethod
    def text(self) -> str:
        """The answer in one line: a caption, or the names of classes."""

    @property
    @abstractmethod
    def looked(self) -> PageItem:
        """What the page shows of it."""

    def light(self) -> Float[Tensor, "T height width"]:
        """The map of each word on the pixels of `picture`, as it is drawn: in [0, 1], 1 at the brightest pixel."""
        looked = self.looked
        if looked.alpha is None:
            raise ValueError("this model has no attention, so there are no maps")
        return light(looked.alpha, looked.picture.height, looked.picture.width, looked.extent)

    @classmethod
    def write_together(cls, path: Path, items: Sequence["InteractiveResult"]) -> None:
        """Write one page of several."""
        write_page(path, [item.looked for item in items])

    def write_page(self, path: Path) -> None:
        self.write_together(path, [self])

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{self.title}: {self.text}>"


@dataclass(repr=False)
class CaptionResult(InteractiveResult):
    """A photograph with its caption, or a line with its transcript."""

    title: str
    picture: Image.Image
    """What the model saw: a photograph or its centre square, or the whole line."""
    described: DecodedCaption

    @property
    def text(self) -> str:
        return self.described.text

    @property
    def words(self) -> list[str]:
        return self.described.words

    @property
    def log_prob(self) -> list[float]:
        """Of each word, in nats."""
        return self.described.log_prob

    @property
    def alpha(self) -> Float[Tensor, "T Y X"] | None:
        """The map of each word; None for a captioner without maps."""
        return self.described.alpha

    @property
    def extent(self) -> Extent:
        """Where the regions of the maps lie on the picture: `vision_attn.contracts.places.centres` gives their
        centres."""
        return self.described.extent

    @property
    def looked(self) -> PageItem:
        found = self.described
        options = {"log_prob": found.log_prob or None, "regions": found.region, "extent": found.extent}
        return PageItem(self.title, self.picture, found.words, found.alpha, **options)

    def write_picture(self, path: Path) -> None:
        found = self.described
        options = {"log_prob": found.log_prob or None, "regions": found.region, "extent": found.extent}
        save_picture(path, attention_sheet(self.picture, found.words, found.alpha, title=self.title, **options))


@dataclass(repr=False)
class ClassificationResult(Displayable):
    """An image with its class, and where the classifier looked."""

    title: str
    image: Float[Tensor, "C Y X"]
    probabilities: Float[Tensor, "T N"]
    """Of each class, after each glimpse."""
    locations: Float[Tensor, "T 2"] | None
    """(x, y) of each glimpse in [-1, 1]; None for a model that sees the whole image."""
    view: Glimpses | Reads | None
    """What each glimpse saw."""
    names: Sequence[str] = ()
    """Of classes; empty where they are numbers."""
    extent: tuple[int, int] | None = None
    """Width and height of the image, where `image` is a reduction of it."""

    @property
    def label(self) -> int:
        return int(self.probabilities[-1].argmax())

    @property
    def name(self) -> str:
        """The name of the class; its number where classes have no names."""
        return self.names[self.label] if self.names else str(self.label)

    def __repr__(self) -> str:
        return f"<{self.title}: {self.name}, p {float(self.probabilities[-1].max()):.2f}>"

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
            moving = folder / "animation.gif"
            if isinstance(self.view, Glimpses):
                write_animation(moving, **self.glimpsed._asdict())
            elif isinstance(self.view, Reads):
                write_reads_animation(moving, *self.reads)
            else:
                self.write_picture(moving := folder / "picture.png")
            _embed(path, self.title, moving)

    def write_picture(self, path: Path) -> None:
        if isinstance(self.view, Glimpses):
            write_gallery(path, [self.glimpsed])
        elif isinstance(self.view, Reads):
            images, boxes, *answer = self.reads
            write_reads(path, images, boxes, self.view.patches[None], *answer)
        else:
            note = f"p {float(self.probabilities[-1].max()):.2f}"
            panel = Panel(fitted(as_picture(self.image)), self.name, note)
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
            _embed(path, repr(self)[1:-1], write_drawing(folder / "drawn.gif", self.canvases, self.writes))

    def write_picture(self, path: Path) -> None:
        write_strips(path, self.canvases, self.writes)


class ResultList(Displayable, list):
    """The results of a list of images. Displayed on one page."""

    def __getitem__(self, which: SupportsIndex | slice) -> Any:
        found = super().__getitem__(which)
        return ResultList(found) if isinstance(which, slice) else found

    def write_page(self, path: Path) -> None:
        if all(isinstance(item, InteractiveResult) for item in self):
            (type(self[0]) if self else CaptionResult).write_together(path, self)
            return
        with scratch("page") as folder:
            self.write_picture(folder / "picture.png")
            _embed(path, f"{len(self)} images", folder / "picture.png")

    def _repr_png_(self) -> bytes | None:
        return super()._repr_png_() if self else None

    def write_picture(self, path: Path) -> None:
        if not self:
            raise ValueError(f"{path}: there is no result to draw")
        with scratch("pictures") as folder:
            drawn = []
            for number, item in enumerate(self):
                item.write_picture(folder / f"{number}.png")
                drawn.append(Image.open(folder / f"{number}.png").convert("RGB"))
            save_picture(path, grid(drawn, 1))


def _embed(path: Path, title: str, picture: Path) -> None:
    """Write a page that holds one picture."""
    data = base64.b64encode(picture.read_bytes()).decode()
    page = (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<body style="margin: 0; background: {DARK.paper}">\n'
        f'<img alt="{escape(title)}" style="max-width: 100%" src="data:image/{picture.suffix[1:]};base64,{data}">\n'
    )
    save_page(path, page)

"""Results that show themselves in a notebook, and are saved as a page or a picture."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from vision_attn.geometry.extents import Extent
from vision_attn.system.console import progress
from vision_attn.system.errors import UserError
from vision_attn.system.files import scratch
from vision_attn.viz.captions import write_caption_animation
from vision_attn.viz.html import data_url, filled, write_html
from vision_attn.viz.overlay.scale import light
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.sheet import picture_name

ORIGIN = "Maps of {}: {}. "
HEIGHT = 640
"""Height of a page in a notebook, in pixels."""


class Displayable(ABC):
    """A result that a notebook displays. `save("look.html")` writes its page, `save("look.png")` its picture."""

    file: str
    """The file of the image as it was given, or "image 3" for the third of several that are no files."""

    @property
    def title(self) -> str:
        """The name of the file, without its folder."""
        return Path(self.file).name

    def record(self, *, maps: bool = False) -> dict[str, Any]:
        """Return what JSON holds of the result; with `maps`, also the map of each word."""
        return {}

    @abstractmethod
    def write_page(self, path: Path) -> None:
        """Write a self-contained HTML page."""

    @abstractmethod
    def write_picture(self, path: Path) -> None:
        """Write a PNG."""

    def write_animation(self, path: Path, **look: Any) -> None:
        """Write a GIF. Raises UserError for a result of which nothing moves."""
        raise UserError(f"{path}: nothing of this result moves: save the page (.html) or the picture (.png)")

    def save(self, path: str | Path, **look: str) -> Path:
        """Write the page (.html), the picture (.png) or an animation (.gif). Raises UserError for other names, and for
        a result of which nothing moves.

        look: of results with maps, `overlay` and `scale`: see `InteractiveResult`.
        """
        path = Path(path)
        writers = {".html": self.write_page, ".png": self.write_picture, ".gif": self.write_animation}
        if path.suffix.lower() not in writers:
            raise UserError(
                f"{path}: give a name that ends in .html (the page), .png (the picture) or .gif (an animation)"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        writers[path.suffix.lower()](path, **look)
        return path

    def page(self) -> str:
        """The HTML page."""
        with scratch("page") as folder:
            self.write_page(folder / "page.html")
            return (folder / "page.html").read_text(encoding="utf-8")

    def _repr_html_(self) -> str:
        return filled("notebook.html", page=self.page(), height=HEIGHT)

    def _repr_png_(self) -> bytes:
        with scratch("picture") as folder:
            self.write_picture(folder / "picture.png")
            return (folder / "picture.png").read_bytes()


class InteractiveResult(Displayable):
    """A picture with words that can be pointed at. Several are displayed on one page.

    What shows maps takes `overlay`, a view ("light", "color", "contours" or "cells": see `vision_attn.viz.overlay`),
    and `scale`: whether it ends at the largest weight of each word ("own") or of all ("one").
    """

    model: str = ""
    """The name of the model."""
    way: str = ""
    """How its maps were made."""
    picture: Any
    """What the model saw, a PIL image."""
    described: Any
    """What the model said: it has `words`, `log_prob`, `alpha` and `extent`."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The answer in one line: a caption, or the names of classes."""

    @property
    def words(self) -> Sequence[str]:
        return self.described.words

    @property
    def log_prob(self) -> Sequence[float] | None:
        """The log-probability of each word, in nats; None if the model has none."""
        return self.described.log_prob

    @property
    def alpha(self) -> Float[Tensor, "T *F Y X"] | None:
        """The map of each word, for a film with F frames; None for a model without maps."""
        return self.described.alpha

    @property
    def extent(self) -> Extent:
        """Where the regions of the maps lie on the picture: `vision_attn.geometry.extents.centres` gives their
        centres."""
        return self.described.extent

    @property
    @abstractmethod
    def page_item(self) -> PageItem:
        """The result as an item of a page."""

    def light(self) -> Float[Tensor, "T height width"]:
        """The map of each word on the pixels of `picture`, in [0, 1], 1 at the largest weight."""
        if self.alpha is None:
            raise UserError("this model has no attention, so there are no maps")
        return light(self.alpha, self.picture.height, self.picture.width, self.extent)

    @classmethod
    def write_together(cls, path: Path, results: Sequence["InteractiveResult"], **look: Any) -> None:
        """Write one page of several. look: `overlay` and `scale`."""
        write_page(path, [result.page_item for result in results], origin=origin_of(results), **look)

    @classmethod
    def write_folder(cls, folder: Path, results: Sequence["InteractiveResult"], **look: Any) -> Path:
        """Write NUMBER-TITLE.png for each result, and index.html of all. Returns the path of the page."""
        page = folder / "index.html"
        cls.write_together(page, results, **look)
        for number, result in enumerate(progress(results, what="pictures", unit="image"), start=1):
            result.write_picture(folder / picture_name(number, result.title), **look)
        return page

    def write_page(self, path: Path, **look: Any) -> None:
        self.write_together(path, [self], **look)

    @abstractmethod
    def write_picture(self, path: Path, **look: Any) -> None:
        """Write a PNG. look: `overlay` and `scale`."""

    def show(self, **look: Any) -> Any:
        """Return what a notebook displays, with another `overlay` or `scale` than by default."""
        with scratch("page") as folder:
            self.write_page(folder / "page.html", **look)
            return Framed((folder / "page.html").read_text(encoding="utf-8"))

    def write_animation(self, path: Path, **look: Any) -> None:
        """A frame for each word. look: `overlay` and `scale`."""
        write_caption_animation(path, self.page_item, **look)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{self.title}: {self.text}>"


class Framed:
    """A page that a notebook displays."""

    def __init__(self, page: str) -> None:
        self.page = page

    def _repr_html_(self) -> str:
        return filled("notebook.html", page=self.page, height=HEIGHT)


def origin_of(results: Sequence[InteractiveResult]) -> str:
    """Which models made the maps of some results, and how; empty where that is not known."""
    models, ways = (
        ", ".join(dict.fromkeys(text for result in results if (text := getattr(result, name))))
        for name in ("model", "way")
    )
    known = models and any(result.alpha is not None for result in results)
    return ORIGIN.format(models, ways or "attention") if known else ""


def write_embedded(path: Path, title: str, picture: Path) -> None:
    """Write a page that holds one picture."""
    write_html(path, "picture.html", title=title, source=data_url(picture.read_bytes(), picture.suffix[1:]))

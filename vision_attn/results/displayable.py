"""`Displayable`, the base of all results: notebooks display them, `save` writes a page, a picture, a figure or arrays.
Commands write folders of pages and pictures by it (`--out`)."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vision_attn.results.said import Said
from vision_attn.system.console import progress
from vision_attn.system.errors import UserError
from vision_attn.system.files import replacing, scratch
from vision_attn.viz.captions import write_caption_animation
from vision_attn.viz.figures.paper import DPI, Paper, ending_of
from vision_attn.viz.html import data_url, filled, write_html
from vision_attn.viz.overlay.scale import light
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.panel_sheets import picture_name

ORIGIN = "Maps of {}: {}. "
HEIGHT = 640
"""The height of a page in a notebook, in pixels."""


class Displayable(ABC):
    """A result that a notebook displays. `save("look.html")` writes its page, `save("look.png")` its picture,
    `save("look.pdf")` its figure for a paper, and `save("look.npz")` its arrays."""

    file: str
    """The name of the image's file as it was given; "image 3" for the third image that is no file."""

    @property
    def title(self) -> str:
        """The name of the file, without its folder."""
        return Path(self.file).name

    @property
    def figure_options(self) -> Sequence[str]:
        """The names of options of `figure` that only some kinds of results have."""
        return ()

    def record(self, *, maps: bool = False) -> dict[str, Any]:
        """Return the result as values for JSON.

        maps: whether to add the map of each word.
        """
        return {}

    @abstractmethod
    def write_page(self, path: Path, **view: Any) -> None:
        """Write a self-contained HTML page."""

    @abstractmethod
    def write_picture(self, path: Path, **view: Any) -> None:
        """Write a PNG."""

    def write_animation(self, path: Path, **view: Any) -> None:
        """Write a GIF. Raises UserError for a result in which nothing moves."""
        raise UserError(f"{path}: nothing of this result moves: save the page (.html) or the picture (.png)")

    def figure_on(self, paper: Paper, **options: Any) -> Any:
        """Draw the figure.

        paper: its size and style.
        options: those of `figure_options`.

        Raises UserError for a result without a figure.
        """
        raise UserError(f"{self!r} has no figure: save its page (.html) or its picture (.png)")

    @classmethod
    def figure_together(cls, results: Sequence[Any], paper: Paper, **options: Any) -> Any:
        """Draw one figure of several results of this class. Raises UserError if the class has no such figure."""
        raise UserError("these results have no figure together: draw one of each")

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that `save("look.npz")` writes, by name. Raises UserError for a result without arrays."""
        raise UserError(f"{self!r} has no arrays to save as .npz: record() has its numbers")

    def figure(
        self, *, width: float | int = 6.5, dpi: int | None = None, dark: bool = False, title: str = "", **options: Any
    ) -> Any:
        """Draw a figure for a paper. Returns a `matplotlib.figure.Figure`, which can be changed and saved like any
        other; its text stays text.

        width: in inches; the height follows.
        dpi: dots per inch of photographs and of a PNG; by default 300, or fewer for many photographs, so that a PDF or
            an SVG stays below 2 MB.
        dark: whether to draw light text on a dark background.
        title: a title above the figure, instead of a caption.
        options: for results with maps, `words` (only these, in columns), `overlay` and `scale` (see
            `InteractiveResult`) and `maps` (whether each map also stands beside its overlay; by default if there is
            room).

        Raises UserError for a result that has no figure, and for an option or a word that it does not have.
        """
        known = ("width", "dpi", "dark", "title", *self.figure_options)
        if unknown := next((name for name in options if name not in known), None):
            raise UserError(f"this figure has no option {unknown}: it has {', '.join(known)}")
        return self.figure_on(Paper(width, dpi, dark, title).checked(), **options)

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the page (.html), the picture (.png), an animation (.gif), a figure for a paper (.pdf or .svg), or
        arrays (.npz, see `arrays`). Return the path.

        options: for figures, those of `figure`; a .png with a width, dpi, dark or title is a figure, too. For pages,
            pictures and animations of results with maps, `overlay` and `scale`: see `InteractiveResult`.

        Raises UserError for other endings, and for an animation of a result in which nothing moves.
        """
        path = Path(path)
        ending = path.suffix.lower()
        writers: dict[str, Callable[..., None]] = {
            ".html": self.write_page,
            ".png": self.write_picture,
            ".gif": self.write_animation,
        }
        writers[".npz"] = self.write_arrays
        if ending in (".pdf", ".svg") or (ending == ".png" and options.keys() & {"width", "dpi", "dark", "title"}):
            return self.write_figure(path, **options)
        if ending not in writers:
            raise UserError(
                f"{path}: give a name that ends in .html (the page), .png (the picture), .gif (an animation), .pdf or "
                ".svg (a figure), or .npz (arrays)"
            )
        known = set() if ending == ".npz" else {"overlay", "scale"}
        if unknown := options.keys() - known:
            raise UserError(f"{path}: {', '.join(unknown)} applies to figures: .pdf, .svg, or .png with a width")
        path.parent.mkdir(parents=True, exist_ok=True)
        writers[ending](path, **options)
        return path

    def write_figure(self, path: Path, **options: Any) -> Path:
        """Write `figure(**options)` as a PDF, SVG or PNG. Returns its path. Raises UserError for other names."""
        from vision_attn.viz.figures.drawing import save

        if ending_of(path) == ".png":  # only vectors keep photographs without loss
            options["dpi"] = options.get("dpi") or DPI
        return save(self.figure(**options), path)

    def write_arrays(self, path: Path) -> None:
        """Write `arrays()` as an .npz file, which numpy loads with `allow_pickle=False`."""
        arrays: dict[str, Any] = self.arrays()
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, **arrays)

    def page(self) -> str:
        """Return the HTML page."""
        with scratch("page") as folder:
            self.write_page(folder / "page.html")
            return (folder / "page.html").read_text(encoding="utf-8")

    def _repr_html_(self) -> str:
        return filled("notebook.html", page=self.page(), height=HEIGHT)

    def _repr_png_(self) -> bytes:
        with scratch("picture") as folder:
            self.write_picture(folder / "picture.png")
            return (folder / "picture.png").read_bytes()


class InteractiveResult(Said, Displayable):
    """A picture with words; on its page, pointing at a word shows its map. Several results are displayed on one page.

    Pages, pictures and figures of maps take two options:

    overlay: the view of maps, "light", "color", "contours" or "cells"; see `vision_attn.viz.overlay`.
    scale: whether the scale of colours ends at the largest weight of each word ("own") or of all words ("one").
    """

    model: str = ""
    """The name of the model."""
    way: str = ""
    """The method that made its maps."""
    picture: Any
    """The picture that the model saw, a PIL image."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The answer in one line: a caption, or the names of classes."""

    @property
    def figure_options(self) -> Sequence[str]:
        return ("words", "overlay", "scale", "maps")

    @property
    @abstractmethod
    def page_item(self) -> PageItem:
        """The result as an item of a page."""

    @property
    def origin(self) -> str:
        """The model that made the maps and the method, for the foot of a figure; empty if unknown."""
        return ": ".join(filter(None, (self.model, self.way)))

    @property
    def of_picture(self) -> str:
        """The title of the picture: the file and the model."""
        return " · ".join(filter(None, (self.title, self.model)))

    @property
    def column(self) -> tuple[str, str]:
        """The method and the model, which label the columns of a figure with several results of the same image."""
        return self.way, re.split("[:/]", self.model.rstrip("/"))[-1]

    def figure_on(self, paper: Paper, **options: Any) -> Any:
        """Draw an overlay of every word or, with `words`, a row of the picture and the map and overlay of each of these
        words."""
        from vision_attn.viz.figures.maps import Options, caption_figure

        chosen = Options(**options)
        if chosen.words is None:
            return caption_figure(self.page_item, paper, chosen, self.origin)
        return self.figure_together([self], paper, **options)

    @classmethod
    def figure_together(cls, results: Sequence["InteractiveResult"], paper: Paper, **options: Any) -> Any:
        """Draw a row for each image, with the map and overlay of the `words` or, by default, of the word whose map is
        sharpest. Results of the same image by several methods or models stand side by side. Raises UserError if images
        differ in these methods and models, or if there is nothing to draw."""
        from vision_attn.viz.figures.maps import Options, rows_figure

        columns = list(dict.fromkeys(result.column for result in results))
        rows: dict[Any, list[InteractiveResult]] = {}
        for number, result in enumerate(results):
            rows.setdefault(number if len(columns) == 1 else result.file, []).append(result)
        if any([result.column for result in row] != columns for row in rows.values()):
            raise UserError("the figure has a column for each method or model: give each image once for each of them")
        alone = len(columns) == 1
        titles = [row[0].text if alone else row[0].title for row in rows.values()]
        origin = "; ".join(dict.fromkeys(result.origin for result in results if result.origin))
        items = [[result.page_item for result in row] for row in rows.values()]
        labels = [", ".join(parts) for parts in _different(columns)]
        return rows_figure(items, titles, paper, Options(**options), labels=labels, origin=origin)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return `maps` (T, Y, X), for a film (T, F, Y, X), the weight of each region at each word; `extent` (4), the
        left, top, right and bottom edges of the maps on the picture, from -1 to 1; `words` (T); `probabilities` (T),
        NaN where they are unknown; `text`, and `image`, the name of the file, (). Raises UserError for a model without
        maps."""
        if self.alpha is None:
            raise UserError(f"{self.title}: this model has no attention, so there are no maps to save")
        unknown = np.full(len(self.words), np.nan)
        return {
            "maps": self.alpha.detach().float().cpu().numpy(),
            "extent": np.array(self.extent, dtype=np.float32),
            "words": np.array([*self.words], dtype=np.str_),
            "probabilities": unknown if self.log_prob is None else np.exp(np.array(self.log_prob, dtype=np.float64)),
            "text": np.array(self.text),
            "image": np.array(self.file.encode(errors="backslashreplace").decode()),
        }

    def light(self) -> Float[Tensor, "T height width"]:
        """Return the map of each word at the resolution of `picture`, scaled so that the largest weight is 1."""
        if self.alpha is None:
            raise UserError("this model has no attention, so there are no maps")
        return light(self.alpha, self.picture.height, self.picture.width, self.extent)

    @classmethod
    def write_together(cls, path: Path, results: Sequence["InteractiveResult"], **view: Any) -> None:
        """Write one page of several results. view: `overlay` and `scale`."""
        write_page(path, [result.page_item for result in results], origin=origin_of(results), **view)

    @classmethod
    def write_folder(cls, folder: Path, results: Sequence["InteractiveResult"], **view: Any) -> Path:
        """Write NUMBER-TITLE.png for each result, and index.html of all. Returns the path of the page."""
        page = folder / "index.html"
        cls.write_together(page, results, **view)
        for number, result in enumerate(progress(results, what="pictures", unit="image"), start=1):
            result.write_picture(folder / picture_name(number, result.title), **view)
        return page

    def write_page(self, path: Path, **view: Any) -> None:
        self.write_together(path, [self], **view)

    @abstractmethod
    def write_picture(self, path: Path, **view: Any) -> None:
        """Write a PNG. view: `overlay` and `scale`."""

    def show(self, **view: Any) -> Any:
        """Return the page for a notebook to display.

        view: `overlay` and `scale`.
        """
        with scratch("page") as folder:
            self.write_page(folder / "page.html", **view)
            return Framed((folder / "page.html").read_text(encoding="utf-8"))

    def write_animation(self, path: Path, **view: Any) -> None:
        """Write an animation with a frame for each word. view: `overlay` and `scale`."""
        write_caption_animation(path, self.page_item._replace(title=self.of_picture), **view)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{self.title}: {self.text}>"


def _different(columns: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Return the parts of each column that differ between columns."""
    parts = [words for words in zip(*columns, strict=True) if len({*words}) > 1]
    return [[words[number] for words in parts] for number in range(len(columns))]


class Framed:
    """A page that a notebook displays."""

    def __init__(self, page: str) -> None:
        self.page = page

    def _repr_html_(self) -> str:
        return filled("notebook.html", page=self.page, height=HEIGHT)


def origin_of(results: Sequence[InteractiveResult]) -> str:
    """Return the models and methods that made the maps of the results; empty if unknown."""
    models, ways = (
        ", ".join(dict.fromkeys(text for result in results if (text := getattr(result, name))))
        for name in ("model", "way")
    )
    known = models and any(result.alpha is not None for result in results)
    return ORIGIN.format(models, ways or "attention") if known else ""


def write_embedded(path: Path, title: str, picture: Path) -> None:
    """Write a page that holds one picture."""
    write_html(path, "picture.html", title=title, source=data_url(picture.read_bytes(), picture.suffix[1:]))

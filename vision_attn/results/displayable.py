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
from vision_attn.viz.attention import light
from vision_attn.viz.captions import write_caption_animation
from vision_attn.viz.html import data_url, filled, write_html
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.sheet import picture_name

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

    def write_animation(self, path: Path) -> None:
        """Write a GIF. Raises UserError for a result of which nothing moves."""
        raise UserError(f"{path}: nothing of this result moves: save the page (.html) or the picture (.png)")

    def save(self, path: str | Path) -> Path:
        """Write the page (.html), the picture (.png) or an animation (.gif). Raises UserError for other names, and for
        a result of which nothing moves."""
        path = Path(path)
        writers = {".html": self.write_page, ".png": self.write_picture, ".gif": self.write_animation}
        if path.suffix.lower() not in writers:
            raise UserError(
                f"{path}: give a name that ends in .html (the page), .png (the picture) or .gif (an animation)"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        writers[path.suffix.lower()](path)
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
    """A picture with words that can be pointed at. Several are displayed on one page."""

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
        """The map of each word on the pixels of `picture`, as it is drawn: in [0, 1], 1 at the brightest pixel."""
        item = self.page_item
        if item.alpha is None:
            raise UserError("this model has no attention, so there are no maps")
        return light(item.alpha, item.picture.height, item.picture.width, item.extent)

    @classmethod
    def write_together(cls, path: Path, results: Sequence["InteractiveResult"]) -> None:
        """Write one page of several."""
        write_page(path, [result.page_item for result in results])

    @classmethod
    def write_folder(cls, folder: Path, results: Sequence["InteractiveResult"]) -> Path:
        """Write NUMBER-TITLE.png for each result, and index.html of all. Returns the path of the page."""
        page = folder / "index.html"
        cls.write_together(page, results)
        for number, result in enumerate(progress(results, what="pictures", unit="image"), start=1):
            result.write_picture(folder / picture_name(number, result.title))
        return page

    def write_page(self, path: Path) -> None:
        self.write_together(path, [self])

    def write_animation(self, path: Path) -> None:
        """A frame for each word."""
        write_caption_animation(path, self.page_item)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{self.title}: {self.text}>"


def write_embedded(path: Path, title: str, picture: Path) -> None:
    """Write a page that holds one picture."""
    write_html(path, "picture.html", title=title, source=data_url(picture.read_bytes(), picture.suffix[1:]))

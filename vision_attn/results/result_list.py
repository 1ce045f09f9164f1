"""The results of several images: `results_of` makes them, `ResultList` displays them together."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, SupportsIndex, TypeVar, overload

from PIL import Image

from vision_attn.data.images.squares import in_threads
from vision_attn.results.answered import AnswerResult, StoryAnswer
from vision_attn.results.displayable import Displayable, InteractiveResult, write_embedded
from vision_attn.results.images import FILES, Picture, held, is_one, name_of
from vision_attn.system.console import plural
from vision_attn.system.errors import UserError
from vision_attn.system.files import scratch
from vision_attn.viz.figures.paper import Paper
from vision_attn.viz.glimpses import grid
from vision_attn.viz.panel_sheets import save_picture

BATCH = 16
"""The number of photographs that are encoded and captioned together."""

Images = Picture | Sequence[Picture] | Iterator[Picture]


Result = TypeVar("Result", bound=Displayable)
log = logging.getLogger(__name__)


class ResultList(Displayable, list[Result]):
    """The results of a list of images, displayed on one page."""

    @overload
    def __getitem__(self, which: SupportsIndex) -> Result: ...
    @overload
    def __getitem__(self, which: slice) -> "ResultList[Result]": ...
    def __getitem__(self, which: SupportsIndex | slice) -> "Result | ResultList[Result]":
        return ResultList(super().__getitem__(which)) if isinstance(which, slice) else super().__getitem__(which)

    @property
    def figure_options(self) -> Sequence[str]:
        return self[0].figure_options if self else ()

    def write_page(self, path: Path, **view: Any) -> None:
        items: list[Any] = [item for item in self if isinstance(item, InteractiveResult | AnswerResult)]
        if len(items) == len(self):
            (type(items[0]) if items else InteractiveResult).write_together(path, items, **view)
            return
        with scratch("page") as folder:
            self.write_picture(folder / "picture.png")
            write_embedded(path, f"{len(self)} images", folder / "picture.png")

    def figure_on(self, paper: Paper, **options: Any) -> Any:
        """Draw a row for each result. Raises UserError for results of different kinds."""
        results: list[Displayable] = []
        for item in self:
            results += item if isinstance(item, ResultList) else [item]
        if not results:
            raise UserError("there is no result to draw")
        if any(type(result) is not type(results[0]) for result in results):
            raise UserError("these results are of different kinds: draw a figure of each")
        return type(results[0]).figure_together(results, paper, **options)

    def arrays(self) -> dict[str, Any]:
        raise UserError("maps of several images differ in their shape: save each result as an .npz file of its own")

    def _repr_png_(self) -> bytes | None:
        return None if not self or any(isinstance(item, StoryAnswer) for item in self) else super()._repr_png_()

    def write_picture(self, path: Path, **view: Any) -> None:
        if not self:
            raise UserError(f"{path}: there is no result to draw")
        with scratch("pictures") as folder:
            drawn = []
            for number, item in enumerate(self):
                item.write_picture(folder / f"{number}.png", **view)
                drawn.append(Image.open(folder / f"{number}.png").convert("RGB"))
            save_picture(path, grid(drawn, 1))


def results_of(
    images: Any,
    read: Callable[[Picture], Any],
    answer: Callable[[Sequence[tuple[str, Any]]], list[Any]],
    *,
    unreadable: list[str] | None = None,
    size: int = 1,
    within: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Any:
    """Return the result of an image, a `ResultList` for a list of images, or an iterator of results for an iterator of
    images, of which it holds only a few at a time.

    images: `Images`, one or several.
    read: reads an image.
    answer: a function from (name, read image) of at most `size` images to their results.
    size: the number of images that are answered together; above 1, threads read several images ahead.
    unreadable: a list that collects the messages of images that cannot be read, which are left out. None: they raise
        UserError.
    within: makes a context for each call of `answer`.
    """
    if is_one(images):
        name = name_of(images, 1)
        item = name, read(held(images, name))
        with within():
            return answer([item])[0]

    def attempt(numbered: tuple[int, Picture]) -> tuple[str, Any] | UserError:
        name = name_of(numbered[1], numbered[0])
        try:
            return name, read(held(numbered[1], name))
        except UserError as error:
            told = isinstance(numbered[1], FILES) or str(error).startswith(f"{name}: ")
            return error if told else UserError(f"{name}: {error}")

    def results() -> Iterator[Any]:
        numbered = enumerate(images, 1)
        readable = _readable(in_threads(attempt, numbered) if size > 1 else map(attempt, numbered), unreadable)
        while some := list(islice(readable, size)):
            began = time.perf_counter()
            with within():  # not while the caller has the results, who may ask the model something else
                answered = answer(some)
            log.debug(
                "%s answered in %.2f s, from %s on", plural(len(some), "image"), time.perf_counter() - began, some[0][0]
            )
            yield from answered

    return results() if isinstance(images, Iterator) else ResultList(results())


def _readable(items: Iterator[Any], unreadable: list[str] | None) -> Iterator[tuple[str, Any]]:
    for item in items:
        if not isinstance(item, UserError):
            yield item
        elif unreadable is None:
            raise item
        else:
            unreadable.append(str(item))

"""Read the generated images of a run's own data (scenes, digits, stars), with the boxes of their objects."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from vision_attn.contracts import Fit
from vision_attn.data.digits.mnist import DigitSource
from vision_attn.data.generated_images import GeneratedImages
from vision_attn.data.labelled.boxes import Box
from vision_attn.system.console import progress
from vision_attn.system.errors import UserError
from vision_attn.task import Source, Task


class OwnImages:
    """An iterator over the first images of the test split; `of` returns the boxes of the last one.

    Raises UserError for a run on photographs, whose files can be named.
    """

    def __init__(self, task: Task, source: Source, name: str, number: int) -> None:
        if not isinstance(source, GeneratedImages | DigitSource):
            raise UserError(f"{name} is not of drawn images: name photographs, or a folder of them, to measure it on")
        self.task, self.source, self.number = task, source, number
        self._boxes: Any = None

    def __iter__(self) -> Iterator[Tensor]:
        return iter(progress(self._all(), what="measure", unit="image", total=self.number))

    def _all(self) -> Iterator[Tensor]:
        self.source.only("test")
        self.source.prepare(self.task)
        left = self.number
        for batch in self.source.split("test"):
            for image, self._boxes in zip(batch.images[:left], batch.boxes[:left], strict=True):
                yield image.cpu()
            left -= len(batch.images)
            if left <= 0:
                return

    def of(self, file: str, fit: Fit) -> Callable[[str], Sequence[Box]]:
        """Return a function from the text of an answer to its boxes on the last image: in a scene the objects that the
        word names, otherwise the box of the star or digit."""
        boxes = self._boxes
        if isinstance(boxes, Tensor):
            return lambda _: [_box(boxes.tolist())]
        return lambda text: [_box(box) for box in boxes.get(text, ())]


def _box(numbers: Sequence[Any]) -> Box:
    x0, y0, x1, y1 = map(float, numbers)
    return x0, y0, x1, y1

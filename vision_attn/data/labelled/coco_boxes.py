"""Boxes of objects in photographs, from a file in COCO's format of instances."""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from vision_attn.contracts import Fit
from vision_attn.data.labelled.boxes import Box, placed


class Photograph(NamedTuple):
    """The size of a photograph in pixels, and its boxes with their categories."""

    width: int
    height: int
    boxes: list[tuple[str, Box]]
    """In pixels."""


class Boxes:
    """Boxes by the name of a photograph's file.

    path: a JSON file with `images` (`id`, `file_name`, `width`, `height`), `annotations` (`image_id`, `bbox`: left,
        top, width and height in pixels, and `category_id`) and `categories` (`id`, `name`). Without categories, or with
        a single one, boxes are of every answer; otherwise of the answers that share a word with the category's name.

    Raises ValueError, which names the file, for what is none.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            names = {one["id"]: str(one["name"]) for one in content.get("categories", ())}
            boxes: dict[Any, list[tuple[str, Box]]] = defaultdict(list)
            for one in content["annotations"]:
                x, y, width, height = map(float, one["bbox"])
                category = names.get(one.get("category_id"), "")
                boxes[one["image_id"]].append((category, (x, y, x + width, y + height)))
            self.photographs = {
                Path(one["file_name"]).name: Photograph(int(one["width"]), int(one["height"]), boxes[one["id"]])
                for one in content["images"]
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{path} holds no boxes in COCO's format: {type(error).__name__} {error}") from None
        self.of_all = len(names) < 2

    def of(self, file: str, fit: Fit) -> Callable[[str], list[Box]]:
        """From the text of an answer to its boxes on the part of a photograph that `fit` says."""
        photograph = self.photographs.get(Path(file).name)

        def boxes(text: str) -> list[Box]:
            if photograph is None:
                return []
            words = set(text.lower().split())
            return [
                seen
                for category, box in photograph.boxes
                if self.of_all or words & set(category.lower().split())
                if (seen := placed(box, (photograph.width, photograph.height), square=fit == "centre")) is not None
            ]

        return boxes

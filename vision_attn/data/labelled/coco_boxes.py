"""Read boxes and masks of objects in photographs from a file in COCO's format for instances."""

from collections import defaultdict
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pycocotools import mask as coco

from vision_attn.contracts import Fit
from vision_attn.data.labelled.boxes import Box, placed
from vision_attn.geometry.extents import Extent, Mask
from vision_attn.system.errors import UserError
from vision_attn.system.files import read_json

LARGEST = 2**28
"""The largest number of pixels of a photograph, since a mask takes a byte for each."""


class Instance(NamedTuple):
    """An object in a photograph, in pixels."""

    category: str
    box: Box
    mask: dict[str, Any] | None
    """Run lengths, as in `pycocotools`; None if the file has only a box."""


class BoxedPhotograph(NamedTuple):
    """The size of a photograph in pixels, and its objects."""

    width: int
    height: int
    objects: list[Instance]


class Boxes:
    """Boxes and masks by the name of a photograph's file.

    path: a JSON file with `images` (`id`, `file_name`, `width`, `height`), `annotations` (`image_id`, `category_id`,
        and `bbox`: left, top, width and height in pixels, or `segmentation`: polygons or run lengths) and `categories`
        (`id`, `name`). An object with a segmentation is represented by its mask, others by their boxes. With no
        category or a single one, all objects belong to every answer; otherwise an object belongs to the answers that
        share a word with the name of its category.

    Raises UserError naming the file if it is not in this format.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            content = read_json(path)
            names = {category["id"]: str(category["name"]) for category in content.get("categories", ())}
            known: dict[Any, list[dict[str, Any]]] = defaultdict(list)
            for annotation in content["annotations"]:
                known[annotation["image_id"]].append(annotation)
            self.photographs: dict[str, BoxedPhotograph] = {}
            for image in content["images"]:
                name, width, height = Path(image["file_name"]).name, int(image["width"]), int(image["height"])
                if not (0 < width <= LARGEST and 0 < height * width <= LARGEST):
                    raise UserError(f"{name} has {width} x {height} pixels")
                if name in self.photographs:  # photographs are found by the name of their file alone
                    raise UserError(f"two images are called {name}")
                objects = [
                    _instance(annotation, names.get(annotation.get("category_id"), ""), height, width)
                    for annotation in known[image["id"]]
                ]
                self.photographs[name] = BoxedPhotograph(width, height, objects)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise UserError(f"{path} holds no boxes in COCO's format: {_reason(error)}") from None
        self.of_all = len(names) < 2

    def of(self, file: str, fit: Fit) -> Callable[[str], list[Box | Mask]]:
        """Return a function from the text of an answer to the boxes and masks of the objects that it names, on the part
        of a photograph that `fit` selects."""
        photograph = self.photographs.get(Path(file).name)

        def objects(text: str) -> list[Box | Mask]:
            if photograph is None:
                return []
            words, size = set(text.lower().split()), (photograph.width, photograph.height)
            shapes: list[Box | Mask] = []
            for instance in photograph.objects:
                box = placed(instance.box, size, square=fit == "centre")
                if box is None or not (self.of_all or words & set(instance.category.lower().split())):
                    continue
                if instance.mask is None:
                    shapes.append(box)
                    continue
                pixels = torch.from_numpy(coco.decode(instance.mask)).bool()
                whole = placed((0, 0, *size), size, square=fit == "centre")
                shapes.append(Mask(pixels, Extent(*map(float, whole or ()))))
            return shapes

        return objects


def _instance(record: dict[str, Any], category: str, height: int, width: int) -> Instance:
    """Read an annotation. Raises UserError naming the annotation if it is neither a box nor a mask."""
    try:
        shape = record.get("segmentation")
        runs = _runs(shape, height, width) if shape else None
        edges = [float(edge) for edge in (record["bbox"] or () if runs is None else coco.toBbox(runs))]
        if len(edges) != 4 or not all(map(isfinite, edges)):
            raise UserError(f"bbox is {record['bbox']}, but must be 4 numbers: left, top, width and height")
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        place = f"annotation {record.get('id', '?')} of image {record['image_id']}"
        raise UserError(f"{place}: {_reason(error)}") from None
    x, y, across, down = edges
    return Instance(category, (x, y, x + across, y + down), runs)


def _reason(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)


def _runs(shape: Any, height: int, width: int) -> dict[str, Any]:
    """Return polygons, or run lengths as a list or compressed, as run lengths of `pycocotools`."""
    if isinstance(shape, list):
        for polygon in shape:
            if len(polygon) < 6 or len(polygon) % 2:
                raise UserError(f"a polygon has {len(polygon)} numbers: it needs x and y of at least 3 corners")
        return coco.merge(coco.frPyObjects([[float(edge) for edge in polygon] for polygon in shape], height, width))
    size, counts = shape["size"], shape["counts"]
    if list(size) != [height, width]:
        raise UserError(f"a mask has the size {size}, its photograph {[height, width]} (height, width)")
    return coco.frPyObjects(shape, height, width) if isinstance(counts, list) else dict(shape)

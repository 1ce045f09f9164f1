"""`SceneQuestions`, a data set of questions about drawn scenes that take several steps: "what colour is the thing left
of the red circle?"

Objects stand in the cells of a grid of `CELLS` x `CELLS`, so that an object has at most one neighbour on each side. No
colour and no shape occurs twice in a scene.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from vision_attn.data.generated_images import GeneratedImages
from vision_attn.data.random_streams import integers, stream, uniform
from vision_attn.data.scenes.canvas import Arrangement, draw, side_range
from vision_attn.data.scenes.grammar import COLOURS, SHAPES
from vision_attn.data.stories.question import Question, QuestionBatch, padded
from vision_attn.data.vocabulary import UNKNOWN, Vocabulary, VocabularySource
from vision_attn.system.checks import check_range

CELLS = 3
OBJECTS = len(SHAPES)
"""The number of objects of a scene, one of each shape."""
SIDES = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}
"""(x, y) from an object to its neighbour, y downwards."""
ASKED = ("colour", "shape")


class SampledQuestions(NamedTuple):
    """The random choices of scenes and of the questions about them."""

    scenes: Arrangement
    path: np.ndarray
    """(B, most steps): the supporting objects, from the one that the question names to the one that it asks about; -1
    after the last."""
    asked: np.ndarray
    """(B,): whether the question asks for the colour (0) or the shape (1) of the last object."""


class SceneQuestions(VocabularySource, GeneratedImages):
    """Drawn scenes of six objects, each with one question about them; new in every epoch.

    steps: the possible numbers of supporting objects, one of them at random. 1: "what colour is the circle?"; 2: "what
        colour is the thing left of the red circle?"; 3: "what colour is the thing above the thing left of the red
        circle?"
    size: height and width of images in pixels.
    batch_size, epoch_images, val_images, test_images: as for `GeneratedImages`.

    Raises UserError for sizes and numbers that no scene can be drawn with.
    """

    def __init__(
        self,
        *,
        steps: tuple[int, ...] = (1, 2),
        size: int = 56,
        batch_size: int = 64,
        epoch_images: int = 12800,
        val_images: int = 500,
        test_images: int = 1000,
    ) -> None:
        super().__init__(
            batch_size=batch_size, epoch_images=epoch_images, val_images=val_images, test_images=test_images
        )
        for number in steps or (0,):
            check_range("SceneQuestions", 1, 3, steps=number)
        check_range("SceneQuestions", 40, 512, size=size)
        self.check_pixels(size**2)
        self.steps, self.size = steps, size

    @cached_property
    def vocabulary(self) -> Vocabulary:
        words = [*COLOURS, *SHAPES, *ASKED, "left", "right", "of", "above", "below", "what", "is", "the", "thing"]
        return Vocabulary(words)

    def sample(self, name: str, numbers: tuple[int, ...], num_images: int) -> SampledQuestions:
        bits = stream(*numbers)
        smallest, _ = side_range(self.size)
        pitch = self.size // CELLS
        order = uniform(bits, num_images, OBJECTS).argsort(1)
        colours = uniform(bits, num_images, len(COLOURS)).argsort(1)[:, :OBJECTS]
        cells = uniform(bits, num_images, CELLS**2).argsort(1)[:, :OBJECTS]
        side = integers(bits, smallest, min(pitch - 3, smallest + 3), num_images, OBJECTS)
        corner = np.stack([cells % CELLS, cells // CELLS], axis=2) * pitch + 1
        corner += integers(bits, 0, (pitch - 1 - side)[..., None], num_images, OBJECTS, 2)
        light = 18 + 70 * uniform(bits, num_images, 1, 4) + 26 * uniform(bits, num_images, 3, 4)
        tint = 24 * uniform(bits, num_images, OBJECTS, 3) - 12
        grain = bits.random_raw(num_images * -(-(self.size**2) // 8)).astype("<u8").view(np.uint8)
        grain = grain.reshape(num_images, -1)[:, : self.size**2].reshape(num_images, 1, self.size, self.size)
        nothing = np.zeros((num_images, 0), np.int64)
        scenes = Arrangement(
            np.full(num_images, OBJECTS), colours * len(SHAPES) + order, nothing, nothing, corner, side, nothing,
            light.astype(np.float32), tint.astype(np.float32), grain,
        )  # fmt: skip
        path = np.full((num_images, max(self.steps)), -1)
        for image, which in enumerate(integers(bits, 0, len(self.steps) - 1, num_images)):
            visited = self._path(bits, cells[image], self.steps[which])
            path[image, : len(visited)] = visited
        return SampledQuestions(scenes, path, integers(bits, 0, 1, num_images))

    def _path(self, bits: np.random.PCG64, cells: np.ndarray, steps: int) -> list[int]:
        """Return a random path from neighbour to neighbour that visits no object twice.

        cells: the cells of the objects.
        """
        where = {divmod(int(cell), CELLS)[::-1]: number for number, cell in enumerate(cells)}
        while True:
            path = [int(integers(bits, 0, len(cells) - 1, 1)[0])]
            while len(path) < steps:
                x, y = int(cells[path[-1]]) % CELLS, int(cells[path[-1]]) // CELLS
                near = [where[place] for dx, dy in SIDES.values() if (place := (x + dx, y + dy)) in where]
                near = [number for number in near if number not in path]
                if not near:
                    break
                path.append(near[int(integers(bits, 0, len(near) - 1, 1)[0])])
            if len(path) == steps:
                return path

    def batch(self, name: str, samples: SampledQuestions, ids: Sequence[int]) -> QuestionBatch:
        questions = tuple(self.question(samples, image) for image in range(len(ids)))
        scene_index = np.arange(len(ids))[:, None]
        corner, side = samples.scenes.corner[scene_index, samples.path], samples.scenes.side[scene_index, samples.path]
        edges = np.concatenate([corner, corner + side[..., None]], axis=2) * (2 / self.size) - 1
        edges[samples.path < 0] = np.nan
        index = self.vocabulary.index
        words = [[index.get(word, UNKNOWN) for word in question.text.rstrip("?").split()] for question in questions]
        return QuestionBatch(
            torch.from_numpy(draw(samples.scenes, self.size)),
            padded(words, 6 + 4 * max(self.steps)),
            torch.tensor([index[question.answer] for question in questions]),
            None,
            torch.from_numpy(edges).float(),
            questions,
            tuple(f"{name}-{number}" for number in ids),
        )

    def question(self, samples: SampledQuestions, image: int) -> Question:
        """Return the question about an image, in words."""
        cells = (samples.scenes.corner[image] - 1) // (self.size // CELLS)
        path, objects = [index for index in samples.path[image].tolist() if index >= 0], samples.scenes.objects[image]
        colours, shapes = [*COLOURS], [SHAPES[index % len(SHAPES)] for index in objects]
        asked = int(samples.asked[image])
        first, last = path[0], path[-1]
        named = f"{colours[objects[first] // len(SHAPES)]} {shapes[first]}"
        if len(path) == 1:  # naming what is asked would give the answer away
            named = shapes[first] if asked == 0 else f"{colours[objects[first] // len(SHAPES)]} thing"
        text = f"the {named}"
        for previous, following in zip(path, path[1:], strict=False):
            side = next(side for side, step in SIDES.items() if (cells[following] - cells[previous] == step).all())
            text = f"the thing {side} {text}"
        answer = (colours[objects[last] // len(SHAPES)], shapes[last])[asked]
        return Question(f"what {ASKED[asked]} is {text}?", answer, str(len(path)))

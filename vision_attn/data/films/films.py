"""`DrawnFilms`, a built-in data set of synthetic films with captions. It needs no download, and the place and time of
each event are known.

One event follows the other, and captions tell their order, so that neither a single frame nor a mean of frames is
sufficient. Training films are new in every epoch. Validation and test films are fixed and contain combinations of
objects that training films never do (`scenes.grammar.pair_split`).
"""

from functools import cached_property
from math import inf

import numpy as np
from jaxtyping import UInt8

from vision_attn.data.drawn_captions import DrawnCaptions
from vision_attn.data.films.canvas import Films, arrange, event_frames, pixels, script_of
from vision_attn.data.films.grammar import (
    CONTENT,
    DIRECTIONS,
    MEETS,
    MOVES,
    SEGMENTS,
    TURNS,
    VERBS,
    all_captions,
    tell,
)
from vision_attn.data.random_streams import stream
from vision_attn.data.scenes.grammar import NUM_CAPTIONS, OBJECTS
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.system.checks import check_range
from vision_attn.system.errors import UserError
from vision_attn.task import Task


class DrawnFilms(DrawnCaptions):
    """Films of two or three coloured shapes, two or three of which do something, with five captions each.

    frames: the number of frames of a film, a multiple of 3, at least 6.
    size: height and width of the frames in pixels.
    rows: captions per film in a batch, at most five; `references` always holds all five.
    batch_size, epoch_images, val_images, test_images: as for `GeneratedImages`; images are films.
    mixture: proportions of films of two objects and two events, three objects and two events, and three of both.

    Objects move, stop, meet, change colour and leave: see `films.grammar`. For each word that tells of an event,
    `boxes` of a batch has the boxes of its actor in the frames of the event. Raises UserError for sizes and numbers
    that no film can be drawn with.
    """

    content_words = CONTENT
    films = True
    num_references = 400

    def __init__(
        self,
        *,
        frames: int = 9,
        size: int = 32,
        batch_size: int = 32,
        rows: int = 5,
        epoch_images: int = 12800,
        val_images: int = 200,
        test_images: int = 500,
        mixture: tuple[float, float, float] = (0.2, 0.4, 0.4),
    ) -> None:
        if frames < 2 * SEGMENTS or frames % SEGMENTS:
            raise UserError(f"films: frames={frames} must be a multiple of {SEGMENTS}, and at least {2 * SEGMENTS}")
        if not 1 <= rows <= NUM_CAPTIONS:
            raise UserError(f"films: rows={rows}, but a film has 1 to {NUM_CAPTIONS} captions")
        if not (min(mixture) >= 0 and 0 < sum(mixture) < inf):
            raise UserError(f"films: mixture={mixture} must be proportions of the three kinds of films")
        super().__init__(
            batch_size=batch_size, epoch_images=epoch_images, val_images=val_images, test_images=test_images
        )
        check_range("DrawnFilms", 32, 256, size=size)
        check_range("DrawnFilms", 6, 60, frames=frames)
        check_range("DrawnFilms", 1, 10_000, val_images=val_images, test_images=test_images)
        self.check_pixels(frames * size**2)
        self.frames, self.size, self.rows, self.mixture = frames, size, rows, tuple(mixture)

    def prepare(self, task: Task) -> None:
        """Check that the encoder expects films of this size. There is nothing to download or cache."""
        if (task.frames, task.resolution) == (self.frames, self.size):
            return
        ways = []
        if task.frames == 1:
            ways.append("wrap the encoder of images in vision_attn.encoders.clips.FrameVectors")
        elif task.frames != self.frames:
            ways.append(f"set --task.encoder.frames={self.frames} (or --data.frames={task.frames})")
        if task.resolution != self.size:
            ways.append(f"set --data.size={task.resolution}")
        raise UserError(
            f"films are drawn with frames={self.frames} of size={self.size}, but the encoder takes {task.frames} "
            f"of {task.resolution} pixels: {' and '.join(ways)}"
        )

    def sample(self, name: str, numbers: tuple[int, ...], num_images: int) -> Films:
        return arrange(stream(*numbers), num_images, name, self.mixture, self.frames, self.size)

    def pixels(self, samples: Films) -> UInt8[np.ndarray, "B F 3 S S"]:
        return pixels(samples, self.size)

    def texts(self, samples: Films, image: int) -> list[str]:
        direction, turned = [*DIRECTIONS][samples.direction[image]], int(samples.turned[image])
        objects, forms = samples.objects[image].tolist(), samples.forms[image].tolist()
        return tell(script_of(samples, image), objects, turned, direction, forms)

    def truth(self, samples: Films, image: int) -> dict[str, list[tuple[float, ...]]]:
        return boxes(samples, image, self.size)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """All words of the grammar, or the vocabulary that `restore` read."""
        return Vocabulary.build(all_captions(), min_count=1)


def boxes(films: Films, film: int, size: int) -> dict[str, list[tuple[float, ...]]]:
    """Return, for each word of an event, the boxes of its actor, or of the object that it meets, in the frames of the
    event: (x0, y0, x1, y1, frame), coordinates in [-1, 1] and frames counted from 0. An object that has left has an
    empty box on the border."""
    by_word: dict[str, list[tuple[float, ...]]] = {}
    script, names = script_of(films, film), [OBJECTS[index].split() for index in films.objects[film]]
    corner, side = films.corner[film], films.side[film, None, :, None]
    edges = (np.concatenate([corner, corner + side], axis=-1).clip(0, size) * 2 / size - 1).tolist()

    def add(words: list[str], slot: int, frames: range) -> None:
        for frame in frames:
            for word in words:
                by_word.setdefault(word, []).append((*edges[frame][slot], float(frame)))

    for actor, (verb, segment) in enumerate(zip(script.verbs, script.segments, strict=True)):
        frames = event_frames(verb, segment, len(edges))
        add([*names[actor], VERBS[verb]], actor, frames)
        if verb == MOVES:
            add([[*DIRECTIONS][films.direction[film]]], actor, frames)
        elif verb == TURNS:
            colour = OBJECTS[films.turned[film]].split()[0]
            add([colour], actor, frames[len(frames) // 2 :])
            names[actor] = [colour, names[actor][1]]
        elif verb == MEETS:
            add(names[script.target], script.target, frames)
    return by_word

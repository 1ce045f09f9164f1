"""Answer the requests of the page by calling models: captions, classes, digits, and maps."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vision_attn.data.films.files import SHOWN, open_film
from vision_attn.data.images.lazy import open_pixels
from vision_attn.data.images.open import Encoded, open_as_stored
from vision_attn.data.labelled.labelled_images import LabelledImages
from vision_attn.fast.versions import without_loops
from vision_attn.results.answering import SENTENCES
from vision_attn.results.displayable import Displayable
from vision_attn.results.explainer import Explainer, explainer_of_run, sees_photographs
from vision_attn.results.images import encoded, whole
from vision_attn.results.model import Model
from vision_attn.results.opening import open_model
from vision_attn.system.errors import UserError
from vision_attn.tasks.classify import Classification
from vision_attn.tasks.transcribe import Transcription
from vision_attn.web.game import Played, play
from vision_attn.web.options import number_in, steered

OPTIONS = {
    "answer": ("question",),
    "caption": ("attend", "strength"),
    "classify": (),
    "digit": ("clutter",),
    "glimpses": ("clutter", "seed", "locations"),
    "look": ("text", "method"),
}
"""The options of each verb, besides `model` and `name`."""
MOST, MOST_SEED = 20, 10**6
"""The largest number of pieces of clutter, and the largest seed of their places."""
LONGEST = 100_000
"""The largest number of bytes of a story."""
DIGIT, PIECE = 28, 8
"""The sides of a drawn digit and of a piece of clutter, in pixels."""


def verbs(model: Model | Explainer) -> list[str]:
    """Return the verbs that a model answers. Drawn digits need a canvas of the model's size, which models of images of
    any size do not have."""
    if isinstance(model, Explainer):
        return ["look"]
    task = model.task
    takes = {
        "answer": task.verb == "answer",
        "caption": task.verb in ("caption", "transcribe"),
        "classify": isinstance(task, Classification),
        "digit": isinstance(task, Classification) and takes_digits(task),
        "glimpses": isinstance(task, Classification) and takes_digits(task) and task.model.place_numbers == 2,
        "look": sees_photographs(task) or (task.verb == "caption" and task.unit == "image"),
    }
    return [verb for verb, answers in takes.items() if answers]


def check_served(model: Model | Explainer) -> None:
    """Raise UserError for a model that answers nothing, such as one that draws."""
    if not verbs(model):
        raise UserError(
            f"{model.name} holds a {model.task.kind}, which neither captions nor classifies images, so the page has "
            f"nothing to ask it: vision-attn eval {model.name} --show 8 draws what it does"
        )


def takes_digits(task: Classification) -> bool:
    """Return whether a classifier distinguishes digits, in grey images that are large enough for a digit."""
    channels, height, width = task.image_shape
    return channels == 1 and min(height, width) >= DIGIT and all(map(str.isdigit, task.class_names))


def described(model: Model | Explainer) -> dict[str, Any]:
    """Return the description of a model for the page: its verb, and its input (a photograph, a film, a line or a digit)
    or, for an explained model, its kind. `steerable` tells whether the user may draw places on a photograph, `glimpses`
    the number of glimpses of a model of digits."""
    able = verbs(model)
    if "answer" in able:
        return {"kind": "answer", "takes": "image" if model.task.encoder else "story"}
    if "caption" in able:
        unit = model.task.unit
        description = {"kind": "caption", "takes": "photograph" if unit == "image" else unit}
        return description | (
            {"steerable": True} if unit == "image" and getattr(model.task.model, "steerable", False) else {}
        )
    if "look" in able:
        return {"kind": "look", "takes": model.kind if isinstance(model, Explainer) else "classifier"}
    if "glimpses" in able:
        return {"kind": "digit", "takes": "digit", "glimpses": model.task.model.num_glimpses}
    return {"kind": "digit", "takes": "digit"} if "digit" in able else {"kind": "classify", "takes": "photograph"}


def decode(model: Any, verb: str, file: Encoded) -> None:
    """Decode an upload in all forms that its answer and its page need, while other requests are answered. Raises
    UserError if it cannot be decoded."""
    if verb == "answer" and not model.task.encoder:
        return  # a text
    if verb in ("digit", "glimpses"):
        open_as_stored(file)
    elif verb == "answer":
        encoded(file, model.task.encoder.resolution, model.task.encoder.fit)
        whole(file)
    elif verb == "look":
        own = not isinstance(model, Explainer)
        explainer = explainer_of_run(model.task, model.source, model.name, model.device) if own else model
        whole(file, at_least=explainer.at_least)
    elif verb == "classify":
        model.source.open(file) if isinstance(model.source, LabelledImages) else open_pixels(file)
    elif model.task.frames > 1:
        for at_least in (model.task.resolution, SHOWN):
            open_film(file, model.task.frames, at_least)
    elif isinstance(model.task, Transcription):
        whole(file, at_least=None)
    else:
        encoded(file, model.task.resolution, model.task.fit)
        whole(file)


def answers(
    model: Any, verb: str, options: dict[str, list[str]], files: Sequence[Encoded]
) -> list[Displayable | Played]:
    """Return the result for each image file, with the same options. Photographs are captioned together. Raises
    UserError for files and options that cannot be used."""
    grad = verb == "look"  # maps may need gradients
    with without_loops(len(files) == 1), nullcontext() if grad else torch.inference_mode():
        if verb == "look":
            return [model.look(file, options.get("text"), method=options.get("method", ["auto"])[0]) for file in files]
        if verb == "answer":
            question = options.get("question", [])
            if len(question) != 1:
                raise UserError("give one question")
            return [model.answer(file if model.task.encoder else sentences_of(file), question[0]) for file in files]
        if verb == "caption":
            where = steered(options)
            if not isinstance(model.task, Transcription):
                return model.caption([*files], **where)
            if where:
                raise UserError("attend applies to captions: a reader of lines takes none")
            return model.transcribe([*files])
        if verb in ("digit", "glimpses"):
            pieces, seed = number_in(options, "clutter", MOST), number_in(options, "seed", MOST_SEED)
            size = model.task.image_shape[1:]
            canvases = [scattered(open_as_stored(file), size, pieces or 0, seed) for file in files]
            return [
                play(model, canvas, options) if verb == "glimpses" else model.classify(canvas) for canvas in canvases
            ]
        return [model.classify(file) for file in files]


def sentences_of(story: Encoded) -> list[str]:
    """Return the sentences of a story that was sent as text. Raises UserError if it has none."""
    try:
        text = story.content.decode() if isinstance(story.content, bytes) and len(story.content) <= LONGEST else ""
    except UnicodeDecodeError:
        text = ""
    if sentences := [sentence for sentence in SENTENCES.split(text) if sentence.strip()]:
        return sentences
    raise UserError(f"a story is sent as text in UTF-8, of at least one sentence and at most {LONGEST} bytes")


def scattered(digit: Image.Image, size: Sequence[int], pieces: int, seed: int | None = None) -> Tensor:
    """Return a canvas of `size` (Y, X), with the drawn digit at a random place among pieces of other digits.
    Transparent pixels are no part of a digit. Without a seed, the same picture has the same place."""
    height, width = size
    opaque = Image.alpha_composite(Image.new("RGBA", digit.size, "black"), digit.convert("RGBA"))
    drawn = torch.frombuffer(bytearray(opaque.convert("L").resize((DIGIT, DIGIT)).tobytes()), dtype=torch.uint8)
    canvas = torch.zeros(1, height, width)
    generator = torch.Generator().manual_seed(int(drawn.sum()) if seed is None else seed)

    def at_random(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=generator))

    for _ in range(pieces):
        other, top, left = digits()[at_random(0, len(digits()) - 1)], at_random(4, 16), at_random(4, 16)
        y, x = at_random(0, height - PIECE), at_random(0, width - PIECE)
        canvas[0, y : y + PIECE, x : x + PIECE] += other[top : top + PIECE, left : left + PIECE]
    y, x = at_random(0, height - DIGIT), at_random(0, width - DIGIT)
    canvas += F.pad(drawn.view(1, DIGIT, DIGIT) / 255, (x, width - DIGIT - x, y, height - DIGIT - y))
    return canvas.clamp(max=1)


@cache
def digits() -> Tensor:
    """Return the digits for clutter, (N, 28, 28), generated by the included DRAW."""
    return open_model("weights/draw_mnist", device="cpu").draw(16).images[:, 0]

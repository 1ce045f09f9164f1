"""A game on the page: the user chooses the glimpses of a digit in clutter, and plays against the policy."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple

from PIL import Image
from torch import Tensor

from vision_attn.results.classified import ClassificationResult
from vision_attn.results.model import Model
from vision_attn.system.errors import UserError
from vision_attn.viz.foveated import as_picture, foveated, traced
from vision_attn.viz.html import data_url
from vision_attn.web.options import is_place, parsed

SIDE = 360
"""The side of a picture, in pixels."""
LOCATIONS = "locations is JSON of the places of glimpses, such as [[0.3, -0.2], [0, 0]], in [-1, 1]"


class Played(NamedTuple):
    """The first `number` glimpses of an image, at the user's locations and at the policy's."""

    user: ClassificationResult
    policy: ClassificationResult
    number: int

    def record(self) -> dict[str, Any]:
        """Return JSON: the whole `image`; for "user" and "policy" the picture `shown` to them, and the `answers` of the
        same model after each glimpse with their `probability` and their `entropy` in nats. Pictures are data URLs."""
        whole = as_picture(self.user.image)
        whole = whole.resize((SIDE, SIDE * whole.height // whole.width), Image.Resampling.NEAREST)
        players = {"user": self.user, "policy": self.policy}
        return {"image": address(whole)} | {who: played(result, self.number) for who, result in players.items()}


def played(result: ClassificationResult, number: int) -> dict[str, Any]:
    """Return the picture that one player saw, and the answers."""
    trace = result.glimpsed
    _, height, width = trace.image.shape
    seen = foveated(trace.locations[:number], trace.patches[:number], height, width, SIDE / width)
    names = result.names or [str(label) for label in range(result.probabilities.shape[1])]
    answers = [
        {"answer": names[int(probabilities.argmax())], "probability": float(probabilities.max()), "entropy": entropy}
        for probabilities, entropy in zip(result.probabilities[:number], result.entropy.tolist(), strict=False)
    ]
    return {"shown": address(traced(as_picture(seen), trace, number)), "answers": answers}


def play(model: Model, canvas: Tensor, options: Mapping[str, Sequence[str]]) -> Played:
    """Take both players' first glimpses of an image, as many as the user has chosen. Raises UserError for invalid
    locations."""
    places = parsed(options.get("locations", [""])[0], LOCATIONS)
    if not isinstance(places, list) or not places or not all(map(is_place, places)):
        raise UserError(LOCATIONS)
    user = model.classify(canvas, locations=[tuple(map(float, place)) for place in places])
    return Played(user, model.classify(canvas), len(places))


def address(picture: Image.Image) -> str:
    """Return a picture as a data URL."""
    kept = BytesIO()
    picture.save(kept, "PNG")
    return data_url(kept.getvalue(), "png")

"""What drawn scenes say: the things, which combinations belong to which split, and the captions.

A *thing* is a colour and a shape; it has an index, `len(SHAPES) * colour + shape`. In one scene no colour and no shape
comes twice, so that every content word names exactly one thing.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, product
from zlib import crc32

import numpy as np

COLOURS = {
    "red": (226, 54, 54),
    "green": (58, 176, 74),
    "blue": (52, 116, 240),
    "yellow": (250, 208, 48),
    "purple": (150, 66, 214),
    "pink": (250, 130, 186),
    "cyan": (64, 214, 222),
    "white": (242, 242, 238),
}
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "star")
THINGS = tuple(f"{colour} {shape}" for colour, shape in product(COLOURS, SHAPES))

# Things of which training shows none, at most one of each colour and one of each shape: where more are missing, a
# network learns from their absence (that red is never a circle, say), and sees the shape through the colour.
# The test things were drawn anew once the grammar, the encoder and the training had been settled on validation scenes.
HELD_OUT = {
    "val": ("green diamond", "white cross"),
    "test": ("cyan circle", "pink square", "red triangle", "yellow star"),
}

OPPOSITE = {
    "to the left of": "to the right of",
    "to the right of": "to the left of",
    "above": "below",
    "below": "above",
}

# {a} stands {near} {b}, {b} stands {far} {a}; with three things also {c}, and {b} stands {across} {c}.
# Behind each form its weight: the first is the likeliest, which makes captions varied and yet predictable.
# The opening words tell which thing comes first: only after "here" it is not {a}. A captioner has to choose its place
# before it has chosen the colour it will say there, and could not do so if chance decided in between.
FORMS = {
    1: {
        "a picture of a {a} on its own": 2.0,
        "there is a {a} on its own": 1.5,
        "a {a} on its own": 1.0,
        "there is only a {a}": 1.0,
        "a picture of only a {a}": 1.0,
        "here is just a {a}": 1.0,
        "a {a} and nothing else": 1.0,
    },
    2: {
        "a {a} is {near} a {b}": 2.0,
        "there is a {a} {near} a {b}": 1.5,
        "a {a} {near} a {b}": 1.0,
        "a picture of a {a} {near} a {b}": 1.0,
        "{far} a {a} is a {b}": 1.0,
        "{far} a {a} there is a {b}": 1.0,
        "here is a {b} {far} a {a}": 1.0,
    },
    3: {
        "a {a} is {near} a {b} and a {c}": 2.0,
        "there is a {a} {near} a {b} and a {c}": 1.5,
        "a {a} {near} a {b} and a {c}": 1.0,
        "a picture of a {a} {near} a {b} and a {c}": 1.0,
        "{far} a {a} are a {b} and a {c}": 1.0,
        "{far} a {a} there is a {b} {across} a {c}": 1.0,
        "here are a {b} and a {c} {far} a {a}": 1.0,
    },
}
NUM_CAPTIONS = 5
MAX_THINGS = 3
WEIGHTS = np.array([list(forms.values()) for forms in FORMS.values()])


def thing_split(thing: int) -> str:
    """The one split of whose combinations this thing may be part; "train" for those that may be in any."""
    return next((split for split, names in HELD_OUT.items() if THINGS[thing] in names), "train")


def pair_split(first: int, second: int) -> str | None:
    """The one split in which two things may meet; None where a validation thing would meet a test thing.

    Of the pairs of training things a tenth is held out for validation and a fifth for test, chosen by a checksum of
    their names.
    """
    held_out = {thing_split(first), thing_split(second)} - {"train"}
    if held_out:
        return held_out.pop() if len(held_out) == 1 else None
    tenth = crc32(" with ".join(sorted((THINGS[first], THINGS[second]))).encode()) % 10
    return ("val", "test", "test", *("train",) * 7)[tenth]


@cache
def combinations_of(split: str, num_things: int) -> np.ndarray:
    """Every set of `num_things` things that scenes of `split` may hold, (N, num_things); all its pairs are of `split`.

    The combinations of two splits are disjoint, and so are their pairs.
    """
    if num_things == 1:
        return np.array([[thing] for thing in range(len(THINGS)) if thing_split(thing) == split])

    def fit(first: int, second: int) -> bool:
        (colour, shape), (other_colour, other_shape) = divmod(first, len(SHAPES)), divmod(second, len(SHAPES))
        return colour != other_colour and shape != other_shape and pair_split(first, second) == split

    pairs = {pair for pair in combinations(range(len(THINGS)), 2) if fit(*pair)}
    if num_things == 2:
        return np.array(sorted(pairs))
    return np.array([(i, j, k) for i, j in sorted(pairs) for k in range(i) if {(k, i), (k, j)} <= pairs])


@cache
def sentences(num_things: int, relation: str, across: str) -> tuple[str, ...]:
    """The forms with their relations put in, waiting for {a}, {b} and {c}."""
    words = {"near": relation, "far": OPPOSITE.get(relation, ""), "across": across}
    return tuple(form.format(a="{a}", b="{b}", c="{c}", **words) for form in FORMS[num_things])


def captions_of(things: Sequence[str], relation: str, across: str, forms: Sequence[int]) -> list[str]:
    """Captions of a scene: `things[0]` stands in `relation` to all others, `things[1]` `across` `things[2]`."""
    names = dict(zip("abc", things, strict=False))
    templates = sentences(len(things), relation, across)
    return [templates[form].format(**names) for form in forms]


def all_captions() -> Iterator[str]:
    """Captions that use every form, relation, colour and shape, as often as scenes do, roughly: for a vocabulary."""
    for (number, forms), relation, across in product(FORMS.items(), OPPOSITE, ("to the left of", "above")):
        for start in range(0, len(THINGS), 2):
            names = [THINGS[(start + 7 * other) % len(THINGS)] for other in range(number)]
            yield from captions_of(names, relation, across, range(len(forms)))

"""The grammar of drawn scenes: objects, the split of each combination of objects, and captions.

An *object* is a colour and a shape; its index is `len(SHAPES) * colour + shape`. No colour and no shape occurs twice in
a scene, so that every content word names exactly one object.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, product
from zlib import crc32

import numpy as np

from vision_attn.data.scenes.languages import CHINESE, HEBREW, Name, SceneLanguage

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
OBJECTS = tuple(f"{colour} {shape}" for colour, shape in product(COLOURS, SHAPES))

# Objects that training scenes never contain, at most one of each colour and one of each shape. If more were missing, a
# network would learn from their absence (that red is never a circle, for example) and infer the shape from the colour.
# The test objects were chosen again, at random, after the grammar, the encoder and the training had been settled on
# validation scenes.
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

# Templates of captions. {a} is {near} {b}, and {b} is {far} {a}; with three objects there is also {c}, and {b} is
# {across} {c}. The number is the weight of a template: the first is the most likely, which makes captions varied and
# still predictable. The opening words determine which object is named first: {a}, except after "here". A captioner has
# to attend to an object before it chooses the word for its colour, and could not if the choice of object were random.
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
ENGLISH = SceneLanguage(
    tuple(COLOURS),
    SHAPES,
    "{colour} {shape}",
    {relation: relation for relation in OPPOSITE},
    {n: (*f,) for n, f in FORMS.items()},
)
LANGUAGES: dict[Name, SceneLanguage] = {"english": ENGLISH, "chinese": CHINESE, "hebrew": HEBREW}
NUM_CAPTIONS = 5
MAX_OBJECTS = 3
WEIGHTS = np.array([list(forms.values()) for forms in FORMS.values()])


def object_split(index: int) -> str:
    """Return the only split that may contain a held-out object; "train" for an object that any split may contain."""
    return next((split for split, names in HELD_OUT.items() if OBJECTS[index] in names), "train")


def pair_split(first: int, second: int) -> str | None:
    """Return the only split in which two objects may occur together; None for a validation object with a test object.

    Of the pairs of training objects, a tenth is held out for validation and a fifth for test, chosen by a checksum of
    their names.
    """
    held_out = {object_split(first), object_split(second)} - {"train"}
    if held_out:
        return held_out.pop() if len(held_out) == 1 else None
    tenth = crc32(" with ".join(sorted((OBJECTS[first], OBJECTS[second]))).encode()) % 10
    return ("val", "test", "test", *("train",) * 7)[tenth]


@cache
def pairs_of(split: str) -> np.ndarray:
    """Return a mask of the pairs of objects that may occur together in scenes of `split`, (48, 48)."""
    pairs = np.zeros((len(OBJECTS), len(OBJECTS)), bool)
    for first, second in combinations(range(len(OBJECTS)), 2):
        (colour, shape), (other_colour, other_shape) = divmod(first, len(SHAPES)), divmod(second, len(SHAPES))
        alike = colour == other_colour or shape == other_shape
        pairs[first, second] = pairs[second, first] = not alike and pair_split(first, second) == split
    return pairs


@cache
def combinations_of(split: str, num_objects: int) -> np.ndarray:
    """Return all sets of `num_objects` objects that scenes of `split` may contain, (N, num_objects). All their pairs
    are of `split`.

    The combinations of two splits are disjoint, and so are their pairs.
    """
    if num_objects == 1:
        return np.array([[index] for index in range(len(OBJECTS)) if object_split(index) == split])

    allowed = pairs_of(split)
    pairs = {pair for pair in combinations(range(len(OBJECTS)), 2) if allowed[pair]}
    if num_objects == 2:
        return np.array(sorted(pairs))
    return np.array([(i, j, k) for i, j in sorted(pairs) for k in range(i) if {(k, i), (k, j)} <= pairs])


def content_words(language: Name, index: int) -> tuple[str, str]:
    """Return the words that name the colour and the shape of an object."""
    words, (colour, shape) = LANGUAGES[language], divmod(index, len(SHAPES))
    return words.colours[colour][: words.letters], words.shapes[shape][: words.letters]


@cache
def object_name(language: Name, index: int) -> str:
    words, (colour, shape) = LANGUAGES[language], divmod(index, len(SHAPES))
    return words.object.format(colour=words.colours[colour], shape=words.shapes[shape])


@cache
def sentences(language: Name, num_objects: int, relation: str, across: str) -> tuple[str, ...]:
    """Return the templates with their relations filled in; {a}, {b} and {c} remain."""
    forms, relations = LANGUAGES[language].forms, LANGUAGES[language].relations
    words = {"near": relations[relation], "far": relations[OPPOSITE[relation]], "across": relations[across]}
    return tuple(form.format(a="{a}", b="{b}", c="{c}", **words) for form in forms[num_objects])


def captions_of(
    objects: Sequence[int], relation: str, across: str, forms: Sequence[int], language: Name = "english"
) -> list[str]:
    """Return captions of a scene.

    objects: the indices of the objects.
    relation: the relation of the first object to all others.
    across: the relation of the second object to the third.
    forms: the indices of the templates to use.
    """
    names = dict(zip("abc", (object_name(language, index) for index in objects), strict=False))
    templates = sentences(language, len(objects), relation, across)
    return [templates[form].format(**names) for form in forms]


def all_captions(language: Name = "english") -> Iterator[str]:
    """Yield captions for the vocabulary, with every template, relation, colour and shape, roughly as often as in
    scenes."""
    for (number, forms), relation, across in product(FORMS.items(), OPPOSITE, ("to the left of", "above")):
        for start in range(0, len(OBJECTS), 2):
            objects = [(start + 7 * other) % len(OBJECTS) for other in range(number)]
            yield from captions_of(objects, relation, across, range(len(forms)), language)

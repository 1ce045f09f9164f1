"""The grammar of drawn films: scripts of events, which happen one after the other, and captions that tell them.

A film has `SEGMENTS` segments of equal length, with at most one event in each. All events of a film differ in their
actors and verbs, so that a verb names exactly one event, and an object acts at most once.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, permutations, product
from typing import NamedTuple

import numpy as np

from vision_attn.data.scenes.grammar import COLOURS, OBJECTS, SHAPES, combinations_of

SEGMENTS = 3
VERBS = ("moves", "stops", "turns", "leaves", "meets")
MOVES, STOPS, TURNS, LEAVES, MEETS = range(len(VERBS))
DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}

# Templates of captions with their weights; {1}, {2} and {3} are the events in the order of time. As in
# scenes, the opening word determines which event is told first.
FORMS = {
    2: {
        "{1} then {2}": 2.0,
        "first {1} then {2}": 1.5,
        "{1} and then {2}": 1.0,
        "{1} before {2}": 1.0,
        "finally {2} after {1}": 1.0,
        "before {2} {1}": 1.0,
        "after {1} {2}": 1.0,
    },
    3: {
        "{1} then {2} then {3}": 2.0,
        "first {1} then {2} and finally {3}": 1.5,
        "{1} and then {2} and then {3}": 1.0,
        "{1} before {2} and then {3}": 1.0,
        "finally {3} after {1} and then {2}": 1.0,
        "before {2} and then {3} {1}": 1.0,
        "after {1} {2} and then {3}": 1.0,
    },
}
WEIGHTS = np.array([list(forms.values()) for forms in FORMS.values()])
CONTENT = frozenset((*COLOURS, *SHAPES, *VERBS, *DIRECTIONS))
"""The words that name objects and what they do."""


class Script(NamedTuple):
    """The events of a film. Object e is the actor of event e."""

    num_objects: int
    verbs: tuple[int, ...]
    """The verb of each event, in order: an index into `VERBS`."""
    segments: tuple[int, ...]
    """The segment of each event."""
    target: int
    """The object that the actor of `MEETS` meets; -1 if there is no such event."""


@cache
def scripts(num_objects: int, num_events: int) -> tuple[Script, ...]:
    """Return all scripts that make sense: an object moves before it stops, and an object that is met is present and at
    rest."""
    possible = []
    times = combinations(range(SEGMENTS), num_events)
    for segments, verbs in product(times, permutations(range(len(VERBS)), num_events)):
        if STOPS in verbs and segments[verbs.index(STOPS)] == 0:
            continue
        if MEETS not in verbs:
            possible.append(Script(num_objects, verbs, segments, -1))
            continue
        actor = verbs.index(MEETS)
        gone = {event for event in range(actor) if verbs[event] == LEAVES}
        drifting = {event for event in range(actor, num_events) if verbs[event] == STOPS}
        met = {*range(num_objects)} - {actor} - gone - drifting
        possible += [Script(num_objects, verbs, segments, target) for target in sorted(met)]
    return tuple(possible)


def tell(script: Script, objects: Sequence[int], turned: int, direction: str, forms: Sequence[int]) -> list[str]:
    """Return the captions of a film.

    objects: their indices, in the order of `script`.
    turned: the object that the actor of `TURNS` becomes.
    direction: of the event `MOVES`.
    forms: the templates to use.
    """
    names = [OBJECTS[index] for index in objects]
    events = []
    for actor, verb in enumerate(script.verbs):
        after = {MOVES: f" {direction}", TURNS: f" {OBJECTS[turned].split()[0]}", MEETS: f" a {names[script.target]}"}
        events.append(f"a {names[actor]} {VERBS[verb]}{after.get(verb, '')}")
        if verb == TURNS:
            names[actor] = OBJECTS[turned]
    templates = [*FORMS[len(events)]]
    return [templates[form].format("", *events) for form in forms]


def all_captions() -> Iterator[str]:
    """Yield captions with every template, event, colour and shape, for the vocabulary."""
    sets = np.concatenate([combinations_of("train", SEGMENTS), combinations_of("val", SEGMENTS)])
    for number, objects in enumerate(sets):
        events = 2 + number % 2
        choices = scripts(SEGMENTS, events)
        direction = [*DIRECTIONS][number % len(DIRECTIONS)]
        turned = int(objects[0] + len(SHAPES) * (1 + number % 3)) % len(OBJECTS)
        yield from tell(choices[number % len(choices)], objects.tolist(), turned, direction, range(len(FORMS[events])))

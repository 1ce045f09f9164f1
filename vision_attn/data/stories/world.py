"""Generate stories by simulating a small world of people, places and objects, so that the answer to a question and its
supporting sentences are known.

The stories are like those of tasks 1, 2, 3, 11 and 17 of bAbI (Weston et al. 2015, "Towards AI-Complete Question
Answering", arXiv:1502.05698), with the same words and forms of sentences.

Differs from bAbI: stories of task 3 have at most about 70 sentences, where bAbI's have up to 228, and do not ask about
a place where the object was twice.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from itertools import product
from typing import TypeVar

import numpy as np

from vision_attn.data.random_streams import integers
from vision_attn.data.stories.question import Question
from vision_attn.system.errors import UserError

PEOPLE = {"Daniel": "he", "John": "he", "Mary": "she", "Sandra": "she"}
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
OBJECTS = ("apple", "football", "milk")
MOVES = ("moved to", "went to", "went back to", "journeyed to", "travelled to")
TAKES = ("took", "got", "grabbed", "picked up")
DROPS = ("dropped", "left", "discarded", "put down")
THEN = ("after that", "following that", "then", "afterwards")
FIGURES = ("red square", "blue square", "pink rectangle", "red sphere", "yellow square", "triangle")
SIDES = {"to the left of": (-1, 0), "to the right of": (1, 0), "above": (0, 1), "below": (0, -1)}
"""The direction (x, y), y upwards, from the second figure to the first."""
WORDS = (
    *(word.lower() for word in PEOPLE), *PLACES, *OBJECTS, "moved", "went", "journeyed", "travelled", "back", "took",
    "got", "grabbed", "picked", "up", "dropped", "left", "discarded", "put", "down", "after", "following", "then",
    "afterwards", "that", "he", "she", "red", "blue", "pink", "yellow", "square", "rectangle", "sphere", "triangle",
    "right", "above", "below", "to", "the", "of", "is", "where", "was", "before", "there", "yes", "no",
)  # fmt: skip
"""All words of all tasks."""
NUM_STORIES = {17: 1_440}
"""The number of different stories of tasks that have few: for task 17, 120 orders of three figures times 12 pairs of
sides that do not lead back."""
QUESTIONS = 5
"""The smallest number of questions about a story."""
LONGEST = 70
"""A story of task 3 ends if it has this number of sentences and there is nothing to ask."""
TRIES = 100
"""After this number of successive stories that another split has, the generation fails."""

T = TypeVar("T")


class StoryWorld:
    """The state of the simulated world: people who move, and the objects that they carry. Each written sentence changes
    it."""

    def __init__(self, bits: np.random.PCG64) -> None:
        self.bits = bits
        self.facts: list[str] = []
        self.places: dict[str, tuple[str, int]] = {}
        """The place of each person, and the number of the sentence that tells it."""
        self.holder: dict[str, str] = {}
        """The person that holds an object."""
        self.handled: dict[str, int] = {}
        """The last sentence in which an object was taken or dropped."""
        self.taken: dict[str, int] = {}
        """The last sentence in which an object was taken."""
        self.paths: dict[str, list[tuple[str, int]]] = {}
        """The places where an object was since it was last taken, and the sentences that tell them."""
        self.visits: dict[str, list[str]] = {}
        """All places where an object was, in order."""

    def pick(self, options: Sequence[T]) -> T:
        return options[self.number(0, len(options) - 1)]

    def number(self, low: int, high: int) -> int:
        """Return a random integer from `low` to `high`, both included."""
        return int(integers(self.bits, low, high, 1)[0])

    def move(self) -> None:
        """Write that a random person goes to another place."""
        person = self.pick([*PEOPLE])
        here = self.places.get(person, ("", 0))[0]
        self.go(person, self.pick([place for place in PLACES if place != here]), person)

    def go(self, person: str, place: str, subject: str) -> None:
        """Write that a person goes to a place, and move all objects that the person holds.

        subject: the words for the person in the sentence.
        """
        self.places[person] = place, len(self.facts)
        for thing, holder in self.holder.items():
            if holder == person:
                self.paths[thing].append(self.places[person])
                self.visits[thing].append(place)
        self.facts.append(f"{subject} {self.pick(MOVES)} the {place}.")

    def act(self) -> None:
        """Write that a random person goes to another place, takes an object, or drops one."""
        free = [
            (person, thing)
            for person, thing in product(self.places, OBJECTS)
            if thing not in self.holder
            and self.paths.get(thing, [self.places[person]])[-1][0] == self.places[person][0]
        ]
        what = self.number(0, 9)
        if what < 3 and free:
            person, thing = self.pick(free)
            self.holder[thing], self.paths[thing] = person, [self.places[person]]
            self.visits.setdefault(thing, [self.places[person][0]])
            self.taken[thing] = len(self.facts)
            self._handle(person, TAKES, thing)
        elif what == 3 and self.holder:
            thing = self.pick(sorted(self.holder))
            self._handle(self.holder.pop(thing), DROPS, thing)
        else:
            self.move()

    def _handle(self, person: str, verbs: Sequence[str], thing: str) -> None:
        self.handled[thing] = len(self.facts)
        self.facts.append(f"{person} {self.pick(verbs)} the {thing}{self.pick(('', ' there'))}.")

    def ask(self, kind: str, text: str, answer: str, *support: int) -> Question:
        return Question(text, answer, kind, tuple(self.facts), support)


def where_is_somebody(world: StoryWorld) -> Iterator[Question]:
    """Task 1, one supporting fact: the place to which somebody went last."""
    for _ in range(5):
        world.move()
        world.move()
        person = world.pick(sorted(world.places))
        place, told = world.places[person]
        yield world.ask("1", f"Where is {person}?", place, told)


def where_is_an_object(world: StoryWorld) -> Iterator[Question]:
    """Task 2, two supporting facts: who took or dropped an object last, and where this person was."""
    for _ in range(5):
        for _ in range(world.number(2, 4)):
            world.act()
        while not world.paths:
            world.act()
        thing = world.pick(sorted(world.paths))
        place, told = world.paths[thing][-1]
        yield world.ask("2", f"Where is the {thing}?", place, world.handled[thing], told)


def where_was_an_object(world: StoryWorld) -> Iterator[Question]:
    """Task 3, three supporting facts: who took an object, and the place where this person was before another place.

    The object has been at that other place only once; otherwise there would be two answers. A story ends early if there
    is nothing left to ask.
    """
    for _ in range(5):
        for _ in range(world.number(2, 6)):
            world.act()
        while not (moved := _moved_to_a_new_place(world)):
            if len(world.facts) >= LONGEST:
                return
            world.act()
        thing = world.pick(moved)
        (before, came), (place, told) = world.paths[thing][-2:]
        yield world.ask("3", f"Where was the {thing} before the {place}?", before, world.taken[thing], told, came)


def _moved_to_a_new_place(world: StoryWorld) -> list[str]:
    """Return the objects that were carried to a place where they had not been before."""
    moved = (thing for thing, path in world.paths.items() if len(path) > 1)
    return sorted(thing for thing in moved if world.visits[thing].count(world.paths[thing][-1][0]) == 1)


def where_is_the_person(world: StoryWorld) -> Iterator[Question]:
    """Task 11, basic coreference: where a person is whom a sentence calls he or she."""
    pairs: dict[str, tuple[int, int]] = {}
    for _ in range(5):
        world.move()
        person = max(world.places, key=lambda name: world.places[name][1])
        place = world.pick([other for other in PLACES if other != world.places[person][0]])
        world.go(person, place, f"{world.pick(THEN).capitalize()} {PEOPLE[person]}")
        pairs[person] = len(world.facts) - 2, len(world.facts) - 1
        asked = world.pick(sorted(pairs))
        yield world.ask("11", f"Where is {asked}?", world.places[asked][0], *pairs[asked])


def is_it_on_that_side(world: StoryWorld) -> Iterator[Question]:
    """Task 17, positional reasoning: whether one figure is on a side of another, by way of a third."""
    names = [FIGURES[number] for number in np.argsort(world.bits.random_raw(len(FIGURES)))[:3]]
    places = {names[1]: np.zeros(2)}
    while True:
        first, second = world.pick([*SIDES]), world.pick([*SIDES])
        places[names[0]] = places[names[1]] - SIDES[first]
        places[names[2]] = places[names[1]] + SIDES[second]
        if (places[names[0]] != places[names[2]]).any():
            break
    world.facts += [f"The {names[1]} is {first} the {names[0]}.", f"The {names[2]} is {second} the {names[1]}."]
    for _ in range(8):
        wanted = world.pick(("yes", "no"))
        choices = [
            (figure, side, other)
            for side, (figure, other) in product(SIDES, ((names[0], names[2]), (names[2], names[0])))
            if (np.dot(places[figure] - places[other], SIDES[side]) > 0) == (wanted == "yes")
        ]
        figure, side, other = world.pick(choices)
        yield world.ask("17", f"Is the {figure} {side} the {other}?", wanted, 0, 1)


TASKS: dict[int, Callable[[StoryWorld], Iterator[Question]]] = {
    1: where_is_somebody,
    2: where_is_an_object,
    3: where_was_an_object,
    11: where_is_the_person,
    17: is_it_on_that_side,
}


def story(task: int, num_questions: int, bits: np.random.PCG64) -> list[Question]:
    """Generate the questions of a story: a random choice of `num_questions`, or all if there are fewer."""
    while len(asked := [*TASKS[task](StoryWorld(bits))]) < QUESTIONS:
        pass  # about one story of task 3 in a hundred ends early
    chosen = np.sort(np.argsort(bits.random_raw(len(asked)))[:num_questions])
    return [asked[number] for number in chosen]


def generated(
    task: int, number: int, num_questions: int, bits: np.random.PCG64, taken: Set[tuple[str, ...]] = frozenset()
) -> list[list[Question]]:
    """Generate the questions of stories of a task.

    number: the number of stories.
    num_questions: the largest number of questions about each.
    taken: the facts of questions of other splits. A story with a question after the same sentences is drawn again;
        other stories do not depend on `taken`.

    Raises UserError if hardly any other story of the task exists.
    """
    stories = [story(task, num_questions, bits) for _ in range(number)]
    for place in range(number):
        tries = 0
        while not taken.isdisjoint(question.facts for question in stories[place]):
            tries += 1
            if tries > TRIES:
                raise UserError(
                    f"Stories: task {task}: {TRIES} stories in a row were among those that validation and test have "
                    f"({len(taken):,}): set stories, a tenth of which are for validation, or test_stories lower"
                )
            stories[place] = story(task, num_questions, bits)
    return stories


def questions(task: int, number: int, num_questions: int, bits: np.random.PCG64) -> list[Question]:
    """Return the questions of generated stories of a task, story by story."""
    return [question for told in generated(task, number, num_questions, bits) for question in told]

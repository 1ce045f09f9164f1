"""Stories: an interpreter of their sentences finds the same answers, from the supporting sentences alone as well."""

import re
from itertools import pairwise, permutations, product

import pytest
import torch

from vision_attn.data.random_streams import stream
from vision_attn.data.stories.babi import read_questions
from vision_attn.data.stories.question import Question, encode_questions, shuffled
from vision_attn.data.stories.stories import BabiFiles, Stories
from vision_attn.data.stories.world import DROPS, FIGURES, MOVES, NUM_STORIES, SIDES, TAKES, TASKS, generated, questions
from vision_attn.data.vocabulary import UNKNOWN
from vision_attn.system.errors import UserError

MOVE = re.compile(rf"(\w+ )?(\w+) (?:{'|'.join(MOVES)}) the (\w+)\.")
HANDLE = re.compile(rf"(\w+) ({'|'.join((*TAKES, *DROPS))}) the (\w+)(?: there)?\.")
SIDE = re.compile(rf"(?:The|Is the) ([\w ]+?) (?:is )?({'|'.join(SIDES)}) the ([\w ]+)[.?]")


def interpreted(facts: list[str], question: str) -> str:
    """The answer to a question, from sentences that are read one after the other."""
    if question.startswith("Is "):
        return on_that_side(facts, question)
    places, holder, path, person = {}, {}, {}, ""
    for fact in facts:
        if found := HANDLE.fullmatch(fact):
            person, verb, thing = found.groups()
            if verb in TAKES:
                holder[thing], path[thing] = person, [places[person]] if person in places else []
            else:
                path[thing] = [*path.get(thing, []), places[person]][-2:] if thing not in holder else path[thing]
                holder.pop(thing, None)
            continue
        subject, place = MOVE.fullmatch(
            fact.replace("After that ", "")
            .replace("Following that ", "")
            .replace("Then ", "")
            .replace("Afterwards ", "")
        ).groups()[1:]
        person = person if subject in ("he", "she") else subject
        places[person] = place
        for thing, name in holder.items():
            if name == person:
                path[thing].append(place)
    before = re.fullmatch(r"Where was the (\w+) before the (\w+)\?", question)
    if before:
        thing, place = before.groups()
        return [one for one, other in pairwise(path[thing]) if other == place][-1]
    asked = re.fullmatch(r"Where is (?:the )?(\w+)\?", question)[1]
    return path[asked][-1] if asked in path else places[asked]


def on_that_side(facts: list[str], question: str) -> str:
    first, second = (SIDE.fullmatch(fact).groups() for fact in facts)
    places = {first[2]: (0, 0)}
    for one, side, other in (first, second):
        places[one] = tuple(at + step for at, step in zip(places[other], SIDES[side], strict=True))
    one, side, other = SIDE.fullmatch(question).groups()
    apart = [(a - b) * step for a, b, step in zip(places[one], places[other], SIDES[side], strict=True)]
    return "yes" if sum(apart) > 0 else "no"


@pytest.mark.parametrize("task", TASKS)
def test_answers_follow_from_the_story_and_from_its_supporting_sentences(task: int) -> None:
    asked = questions(task, 40, 5, stream(7, task))
    for one in asked:
        assert interpreted(list(one.facts), one.text) == one.answer
        assert interpreted([one.facts[place] for place in sorted(one.support)], one.text) == one.answer
    assert {len(one.support) for one in asked} == {{1: 1, 2: 2, 3: 3, 11: 2, 17: 2}[task]}
    counts = [sum(one.answer == answer for one in asked) for answer in {one.answer for one in asked}]
    assert max(counts) < 0.6 * len(asked)  # no answer is a good guess


def test_stories_are_the_same_each_time_known_in_words_and_split() -> None:
    source, again, other = (Stories(tasks=(1, 17), stories=10, test_stories=4, seed=seed) for seed in (0, 0, 1))
    assert source.by_split == again.by_split and source.by_split != other.by_split
    assert {name: len(each) for name, each in source.by_split.items()} == {"train": 90, "val": 10, "test": 40}
    batches = [*source.train(2, seed=5)]
    assert len(batches) == len(source) == 2 and not any((batch.facts == UNKNOWN).any() for batch in batches)
    later = [*source.train(2, seed=5, skip=1)]
    assert later[0].ids == batches[1].ids and batches[0].ids != [*source.train(3, seed=5)][0].ids
    parts = [next(source.train(2, seed=5, rank=rank, world=2)) for rank in range(2)]
    assert sorted(sum((part.ids for part in parts), ())) == sorted(batches[0].ids)
    assert sum(len(batch.ids) for batch in source.split("test")) == 40
    assert {len(Stories(questions=one, stories=10).by_split["val"]) for one in (1, 3)} == {1, 3}
    with pytest.raises(UserError, match="there are 1, 2, 3, 11, 17"):
        Stories(tasks=(4,))


def whereabouts(facts: tuple[str, ...], thing: str) -> list[str]:
    """All places where an object was, in order, from sentences that are read one after the other."""
    places, holder, path = {}, "", []
    for fact in facts:
        if found := HANDLE.fullmatch(fact):
            person, verb, other = found.groups()
            if other == thing:
                holder = person if verb in TAKES else ""
                path = path or [places[person]]
            continue
        person, place = MOVE.fullmatch(fact).groups()[1:]
        places[person] = place
        if person == holder:
            path.append(place)
    return path


def test_no_question_has_two_answers() -> None:
    """Of task 3: "Where was the milk before the garden?" when it was in the garden twice. One in five questions was
    about such a place, and 8.8% had two answers."""
    asked = questions(3, 150, 5, stream(3, 3))
    assert len(asked) == 750 and max(len(one.facts) for one in asked) <= 70 + 6
    for one in asked:
        thing, place = re.fullmatch(r"Where was the (\w+) before the (\w+)\?", one.text).groups()
        path = whereabouts(one.facts, thing)
        at = path.index(place)
        assert path.count(place) == 1 and at > 0 and path[at - 1] == one.answer


@pytest.mark.parametrize("task", TASKS)
def test_stories_that_another_split_has_are_drawn_again_and_the_others_kept(task: int) -> None:
    first, alone = generated(task, 30, 5, stream(1, task)), generated(task, 30, 5, stream(2, task))
    again = generated(task, 30, 5, stream(2, task), {alone[3][0].facts, alone[20][-1].facts, *facts(first)})
    assert not (facts(again) & facts(first)) and alone[3][0].facts not in facts(again)
    taken = {alone[3][0].facts, alone[20][-1].facts, *facts(first)}
    for before, after in zip(alone, again, strict=True):
        assert (before == after) == taken.isdisjoint(facts([before]))
    assert again[3] != alone[3] and again[20] != alone[20] and sum(map(len, again)) == 150


def facts(stories: list[list[Question]]) -> set[tuple[str, ...]]:
    """The sentences that questions follow."""
    return {question.facts for story in stories for question in story}


def test_a_world_that_is_too_small_is_told_of() -> None:
    """Of task 17, every story by its grammar; and no endless search where none is left."""
    back = [("to the left of", "to the right of"), ("above", "below")]
    every = {
        (f"The {b} is {first} the {a}.", f"The {c} is {second} the {b}.")
        for (a, b, c), first, second in product(permutations(FIGURES, 3), SIDES, SIDES)
        if {first, second} not in map(set, back)
    }
    source = Stories(tasks=(17,), stories=1000)
    shown = {split: {one.facts for one in some} for split, some in source.by_split.items()}
    assert len(every) == NUM_STORIES[17] and set().union(*shown.values()) <= every
    (line,) = source.remarks
    assert line == (
        f"task 17, of which 1,440 stories exist: different stories are {len(shown['train'])} of 900 for training, "
        f"{len(shown['val'])} of 100 for validation, {len(shown['test'])} of 200 for testing"
    )
    assert not [*Stories(tasks=(1, 2, 11), stories=30, test_stories=10).remarks]
    with pytest.raises(UserError, match="task 17 has only 1,440 stories, half of which .* are 721 for the other"):
        Stories(tasks=(1, 17), stories=1000, test_stories=621)
    with pytest.raises(UserError, match=r"task 17: 100 stories in a row were among .* \(1,440\)"):
        generated(17, 1, 5, stream(0), every)


def test_the_latest_sentence_comes_first_and_early_ones_are_left_out() -> None:
    source = Stories(tasks=(2,), stories=10, max_facts=6)
    for batch in source.split("train"):
        for row, question in enumerate(batch.questions):
            story = question.facts[::-1][:6]
            known = [source.vocabulary.encode(fact) for fact in story]
            assert [[word for word in fact if word] for fact in batch.facts[row].tolist() if any(fact)] == known
            for number, place in enumerate(question.support):
                later = len(question.facts) - 1 - place
                assert batch.support[row, number].nonzero().flatten().tolist() == [later] * (later < 6)


STORY = """1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Daniel went back to the hallway.
5 Where is Daniel?\tHallway\t4
1 Sandra moved to the garden.
2 What is Sandra carrying?\tapple,milk\t1
"""


def test_files_of_babi_are_read(tmp_path) -> None:
    path = tmp_path / "qa1_train.txt"
    path.write_text(STORY)
    first, second, third = read_questions(path, "1")
    assert first.facts == ("Mary moved to the bathroom.", "John went to the hallway.") and first.support == (0,)
    assert (second.text, second.answer, second.support, len(second.facts)) == ("Where is Daniel?", "hallway", (2,), 3)
    assert third.facts == ("Sandra moved to the garden.",) and third.answer == "apple,milk"
    source = BabiFiles(train=(str(path),), test=(str(path),), batch_size=2)
    assert [len(source.by_split[name]) for name in ("train", "val", "test")] == [2, 1, 3]
    (batch,) = source.train(0, seed=0)
    assert set(batch.answers.tolist()) == {source.vocabulary.index[word] for word in ("bathroom", "hallway")}
    assert source.vocabulary.words[int([*source.split("val")][0].answers)] == "apple,milk"


def story_file(path, stories: list[list[str]]) -> str:
    """A file of stories: the sentences of each, a question after each."""
    lines = [
        f"{2 * number + 1} {sentence}.\n{2 * number + 2} Where is {sentence.split()[0]}?\thall\t{2 * number + 1}"
        for sentences in stories
        for number, sentence in enumerate(sentences)
    ]
    path.write_text("\n".join(lines))
    return str(path)


def test_files_are_cut_between_stories_and_what_is_in_two_splits_is_counted(tmp_path) -> None:
    names = ("Ann", "Bob", "Cid", "Dot", "Eve", "Fay", "Gus", "Hal", "Ida", "Jim")
    told = [[f"{one} went to {place}" for place in ("A", "B", "C")] for one in names]
    train = story_file(tmp_path / "train.txt", told)  # of 30 questions a tenth are one story
    longer = story_file(tmp_path / "longer.txt", [*told, ["Kim ran"]])  # the last story is not enough
    test = story_file(tmp_path / "test.txt", [told[0], told[9], told[1][:2], ["Kim went to A"]])
    source = BabiFiles(train=(train, longer), test=(test, test))
    assert [len(source.by_split[name]) for name in ("train", "val", "test")] == [27 + 27, 3 + 4, 9 + 9]
    assert {one.facts[0] for one in source.by_split["val"]} == {"Jim went to A.", "Kim ran."}
    first, second = source.remarks
    assert (
        first
        == second
        == (f"{test}: of what is for testing, 1 of 4 stories and 5 of 9 questions are for training too, word for word")
    )
    (line, *_) = BabiFiles(train=(story_file(tmp_path / "twice.txt", told[:5] * 2),), test=(test,)).remarks
    assert line.endswith("different stories are 5 of 9 for training, 1 of 1 for validation, 4 of 4 for testing")
    with pytest.raises(UserError, match="short.txt: one story cannot be for training and validation"):
        _ = BabiFiles(train=(story_file(tmp_path / "short.txt", told[:1]),), test=(test,)).by_split


@pytest.mark.parametrize(
    "line, message",
    [
        ("Mary moved.", "2: a line is a number and a sentence"),
        ("2 Where is Mary?\tbathroom\t7", "2: a question follows a sentence"),
        ("2 Where is Mary?\tbathroom\t\u00b2", "2: a question follows a sentence"),
        ("9" * 5000 + " Mary moved.", "2: a line is a number and a sentence"),
        ("2 Where is Mary?\t\t1", "2: a question follows a sentence"),
        ("2 John moved to the hallway.", "there is no question in this file"),
    ],
)
def test_what_is_no_story_is_refused_with_its_line(tmp_path, line: str, message: str) -> None:
    path = tmp_path / "story.txt"
    path.write_text(f"1 Mary moved to the bathroom.\n{line}\n")
    with pytest.raises(UserError, match=re.escape(message)):
        read_questions(path, "1")


def test_an_epoch_is_a_permutation() -> None:
    assert sorted(shuffled(50, 3, 1)) == [*range(50)] and (shuffled(50, 3, 1) != shuffled(50, 3, 2)).any()


def test_support_beyond_the_memory_is_not_marked() -> None:
    source = Stories(tasks=(3,), stories=10, max_facts=2)
    assert not encode_questions(source.by_split["train"], source.vocabulary, 2).support.sum(dim=2).gt(1).any()
    assert torch.equal(
        source.encoded("train").facts, encode_questions(source.by_split["train"], source.vocabulary, 2).facts
    )

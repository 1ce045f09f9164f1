"""Stories: an interpreter of their sentences finds the same answers, from the supporting sentences alone as well."""

import re
from itertools import pairwise

import pytest
import torch

from vision_attn.data.random_streams import stream
from vision_attn.data.stories.babi import read_questions
from vision_attn.data.stories.question import encoded, shuffled
from vision_attn.data.stories.stories import BabiFiles, Stories
from vision_attn.data.stories.world import DROPS, MOVES, SIDES, TAKES, TASKS, questions
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
    assert not encoded(source.by_split["train"], source.vocabulary, 2).support.sum(dim=2).gt(1).any()
    assert torch.equal(source.encoded("train").facts, encoded(source.by_split["train"], source.vocabulary, 2).facts)

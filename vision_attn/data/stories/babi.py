"""Read files of stories with questions in the format of bAbI (Weston et al. 2015, arXiv:1502.05698)."""

import re
from pathlib import Path

from vision_attn.data.stories.question import Question
from vision_attn.data.text_encoding import read_text
from vision_attn.system.errors import UserError

NUMBER = re.compile(r"[0-9]{1,9}")
"""Matches the number of a sentence. `int` fails for superscripts and for thousands of digits."""


def read_questions(path: Path, kind: str) -> list[Question]:
    """Return the questions of all stories of a file; see `read_stories`."""
    return [question for story in read_stories(path, kind) for question in story]


def read_stories(path: Path, kind: str) -> list[list[Question]]:
    """Read the questions of each story of a file, each with the preceding sentences of its story. Stories without a
    question are left out.

    A line has a number and a sentence, `1 Mary moved to the bathroom.`, or a number, a question, a tab, the answer, a
    tab, and the numbers of the supporting sentences, `3 Where is Mary?\\tbathroom\\t1`. The number 1 begins a story.
    Raises UserError naming the file and the line.

    kind: the kind of the questions.
    """
    stories: list[list[Question]] = [[]]
    facts: list[str] = []
    places: dict[int, int] = {}
    for row, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        first, _, text = line.strip().partition(" ")
        if not NUMBER.fullmatch(first) or not text.strip():
            raise UserError(f"{path}:{row}: a line is a number and a sentence, as in '1 Mary moved to the bathroom.'")
        number = int(first)
        if number == 1:
            facts, places = [], {}
            stories.append([])
        text, *rest = text.split("\t")
        if not rest:
            places[number] = len(facts)
            facts.append(text.strip())
            continue
        answer, support = rest[0].strip().lower(), rest[1].split() if len(rest) > 1 else []
        if (
            not answer
            or not facts
            or not all(NUMBER.fullmatch(fact_number) and int(fact_number) in places for fact_number in support)
        ):
            raise UserError(
                f"{path}:{row}: a question follows a sentence, and has an answer and the numbers of sentences before "
                "it, with tabs between, as in '3 Where is Mary?<tab>bathroom<tab>1'"
            )
        stories[-1].append(
            Question(
                text.strip(), answer, kind, tuple(facts), tuple(places[int(fact_number)] for fact_number in support)
            )
        )
    if not any(stories):
        raise UserError(f"{path}: there is no question in this file")
    return [story for story in stories if story]

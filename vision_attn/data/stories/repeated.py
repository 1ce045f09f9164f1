"""Count and report repetitions: equal stories within a split, and training stories and questions in another split."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from vision_attn.data.stories.question import Question
from vision_attn.system.splits import PURPOSES

Story = Sequence[Question]
"""The questions about a story, in order."""
SOME = 0.01
"""A larger share of repeated stories in a split is reported."""


class Repeated(NamedTuple):
    """Counts of one split."""

    stories: int
    questions: int
    different: int
    """The number of different stories, compared up to their last question."""
    trained: int
    """The number of stories that are also in the training split."""
    asked: int
    """The number of questions that are also in the training split, word for word, after the same sentences."""


def repeated(stories: Mapping[str, Sequence[Story]]) -> dict[str, Repeated]:
    """Count the repetitions in each split."""
    told = {story[-1].facts for story in stories["train"]}
    asked = {(question.facts, question.text) for story in stories["train"] for question in story}
    return {
        split: Repeated(
            len(split_stories),
            sum(map(len, split_stories)),
            len({story[-1].facts for story in split_stories}),
            sum(story[-1].facts in told for story in split_stories),
            sum((question.facts, question.text) in asked for story in split_stories for question in story),
        )
        for split, split_stories in stories.items()
    }


def remarks(stories: Mapping[str, Sequence[Story]], names: Mapping[str, str]) -> Iterator[str]:
    """Yield messages about the repetitions among the stories of each kind.

    names: what messages call each kind.
    """
    by_kind: dict[str, dict[str, list[Story]]] = defaultdict(lambda: {split: [] for split in PURPOSES})
    for split, split_stories in stories.items():
        for story in split_stories:
            by_kind[story[0].kind][split].append(story)
    for kind, of_kind in by_kind.items():
        counts = repeated(of_kind)
        if any(count.different < (1 - SOME) * count.stories for count in counts.values()):
            said = (
                f"{count.different:,} of {count.stories:,} for {PURPOSES[split]}" for split, count in counts.items()
            )
            yield f"{names[kind]}: different stories are {', '.join(said)}"
        for split in ("val", "test"):
            if (count := counts[split]).trained or count.asked:
                yield (
                    f"{names[kind]}: of what is for {PURPOSES[split]}, {count.trained:,} of {count.stories:,} stories "
                    f"and {count.asked:,} of {count.questions:,} questions are for training too, word for word"
                )

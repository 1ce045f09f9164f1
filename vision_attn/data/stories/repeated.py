"""What is told more than once: stories within a split, and stories and questions of training in another split."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from vision_attn.data.stories.question import Question
from vision_attn.system.splits import PURPOSES

Story = Sequence[Question]
"""The questions about a story, in order."""
SOME = 0.01
"""The share of a split's stories that repeat another one of it, above which that is said."""


class Repeated(NamedTuple):
    """Counts of one split."""

    stories: int
    questions: int
    different: int
    """Different stories, up to their last question."""
    trained: int
    """Stories that are for training too."""
    asked: int
    """Questions that are for training too, word for word, after the same sentences."""


def repeated(stories: Mapping[str, Sequence[Story]]) -> dict[str, Repeated]:
    """Count what the stories of each split repeat."""
    told = {story[-1].facts for story in stories["train"]}
    asked = {(one.facts, one.text) for story in stories["train"] for one in story}
    return {
        split: Repeated(
            len(some),
            sum(map(len, some)),
            len({story[-1].facts for story in some}),
            sum(story[-1].facts in told for story in some),
            sum((one.facts, one.text) in asked for story in some for one in story),
        )
        for split, some in stories.items()
    }


def remarks(stories: Mapping[str, Sequence[Story]], names: Mapping[str, str]) -> Iterator[str]:
    """Lines on what the stories of each kind repeat. names: what to call each kind."""
    kinds: dict[str, dict[str, list[Story]]] = defaultdict(lambda: {split: [] for split in PURPOSES})
    for split, some in stories.items():
        for story in some:
            kinds[story[0].kind][split].append(story)
    for kind, of_kind in kinds.items():
        counts = repeated(of_kind)
        if any(one.different < (1 - SOME) * one.stories for one in counts.values()):
            said = (f"{one.different:,} of {one.stories:,} for {PURPOSES[split]}" for split, one in counts.items())
            yield f"{names[kind]}: different stories are {', '.join(said)}"
        for split in ("val", "test"):
            if (one := counts[split]).trained or one.asked:
                yield (
                    f"{names[kind]}: of what is for {PURPOSES[split]}, {one.trained:,} of {one.stories:,} stories and "
                    f"{one.asked:,} of {one.questions:,} questions are for training too, word for word"
                )

"""The names of the splits of a data set: train, val and test, and other words for them."""

from typing import Any

PURPOSES = {"train": "training", "val": "validation", "test": "testing"}
"""The purpose of each split of a data set."""

SPLITS = tuple(PURPOSES)
"""The names of the splits."""

UNSPLIT = ("restval", "unused")
"""Words that files of captions have in place of a split: "restval" is for training too, "unused" for nothing."""


OTHERS = {
    "validation": "val", "valid": "val", "validate": "val", "dev": "val", "training": "train", "testing": "test",
}  # fmt: skip
"""Other words for the splits."""


def split_named(name: Any) -> Any:
    """Return the split that a word names, in any case; "validation" is val. Other values are returned as they are."""
    if not isinstance(name, str):
        return name
    word = name.strip().lower()
    return OTHERS.get(word, word)

"""The splits of a data set."""

PURPOSES = {"train": "training", "val": "validation", "test": "testing"}
"""What each split of a data set is for."""

SPLITS = tuple(PURPOSES)
"""The names of the splits."""

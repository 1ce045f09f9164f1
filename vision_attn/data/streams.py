"""Independent random streams for generated data, seeded by integers."""

import numpy as np

FRESH, FIXED = 0, 1
"""The first seed of a stream: for training batches, and for the fixed sets of `split`."""


def stream(*numbers: int) -> np.random.PCG64:
    """Return a generator seeded by `numbers`, with the same stream on every machine and in every version of numpy."""
    return np.random.PCG64(np.random.SeedSequence(numbers))

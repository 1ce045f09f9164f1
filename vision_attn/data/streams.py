"""Independent random streams for data that is generated, which follow from whole numbers alone."""

import numpy as np

FRESH, FIXED = 0, 1
"""The first number of a stream: of training batches, and of the fixed sets of `split`."""


def stream(*numbers: int) -> np.random.PCG64:
    """The generator of these numbers, the same on every machine and in every version of numpy."""
    return np.random.PCG64(np.random.SeedSequence(numbers))

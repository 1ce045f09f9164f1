"""Independent random streams for generated data, seeded by integers, and the same on every machine."""

import numpy as np
from jaxtyping import Float, Int

FRESH, FIXED = 0, 1
"""The first seed of the streams for training batches, and of those for the fixed sets of `split`."""


def stream(*numbers: int) -> np.random.PCG64:
    """Return a generator seeded by `numbers`, with the same stream on every machine and in every version of numpy."""
    return np.random.PCG64(np.random.SeedSequence(numbers))


def uniform(bits: np.random.PCG64, *shape: int) -> Float[np.ndarray, "..."]:
    """Sample uniform numbers in [0, 1) from the raw stream, which is the same in all versions of numpy."""
    return (bits.random_raw(int(np.prod(shape))) >> np.uint64(11)).reshape(shape) * 2.0**-53


def integers(bits: np.random.PCG64, low, high, *shape: int) -> Int[np.ndarray, "..."]:
    """Sample uniform integers from `low` to `high`, both included."""
    return (low + np.floor(uniform(bits, *shape) * (np.asarray(high) - low + 1))).astype(np.int64)

"""Find the best words of each row on a CPU, in one pass over the logits, by loops compiled by numba.

Logits are read in blocks that stay in the fastest cache. A block without a logit above the row's K-th best so far, as
almost every block is after the first ones, is passed over by comparisons and a sum of exponentials, both on vectors.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.fast.loops import LOG2_E, compiled, exp2, in_threads, inlined

FEW = 32
"""The largest number of words for each row: each is inserted into a sorted list. For more, tensor operations are
faster."""
BLOCK = 256
"""The number of logits in a block."""
MINUS_INFINITY = np.float32(-np.inf)
ZERO, ONE = np.float32(0), np.float32(1)


def best_words(
    logits: Float[Tensor, "N V"], K: int, barred: Int[Tensor, "N M"] | Int[Tensor, "M"]
) -> tuple[Float[Tensor, "N K"], Int[Tensor, "N K"]]:
    """Do as `fast.best_words.best_words`, for logits in float32 or bfloat16 and K <= V."""
    log_prob = logits.new_empty(len(logits), K, dtype=torch.float32)
    word = torch.empty(log_prob.shape, dtype=torch.int64)
    numbers = logits.detach().contiguous()
    half = logits.dtype == torch.bfloat16
    numbers, search = (numbers.view(torch.int16), _best_of_half) if half else (numbers, _best)
    barred = barred[None] if barred.dim() == 1 else barred
    in_threads(search, numbers.numel(), numbers, barred, log_prob, word)
    return log_prob, word


@compiled
def _best(first, last, logits, barred, log_prob, word):
    for row in range(first, last):
        largest, total = _begin(log_prob[row], word[row])
        mine = barred[row if len(barred) > 1 else 0]
        for start in range(0, logits.shape[1], BLOCK):
            block = logits[row, start : start + BLOCK]
            largest, total = _block(block, start, mine, largest, total, log_prob[row], word[row])
        _normalise(log_prob[row], largest, total)


@compiled
def _best_of_half(first, last, logits, barred, log_prob, word):
    """Find the best words of rows in bfloat16, the upper half of a float32."""
    bits = np.empty(BLOCK, np.int32)
    numbers = bits.view(np.float32)
    for row in range(first, last):
        largest, total = _begin(log_prob[row], word[row])
        mine = barred[row if len(barred) > 1 else 0]
        for start in range(0, logits.shape[1], BLOCK):
            block = logits[row, start : start + BLOCK]
            for i in range(len(block)):
                bits[i] = block[i] << 16
            largest, total = _block(numbers[: len(block)], start, mine, largest, total, log_prob[row], word[row])
        _normalise(log_prob[row], largest, total)


@inlined
def _begin(best, word):
    best[:] = MINUS_INFINITY
    word[:] = 0
    return MINUS_INFINITY, 0.0


@inlined
def _block(block, start, barred, largest, total, best, word):
    """Update the best words, the largest logit and the sum of e^(logit - largest) by those of a block."""
    last = len(best) - 1
    above = ZERO
    for i in range(len(block)):
        above += ONE if block[i] > best[last] else ZERO
    if above > ZERO:
        for i in range(len(block)):
            logit = block[i]
            if logit > best[last]:
                if logit > largest:
                    total *= np.exp(largest - logit)
                    largest = logit
                allowed = True
                for j in range(len(barred)):
                    allowed &= barred[j] != start + i
                if allowed:
                    k = last
                    while k > 0 and best[k - 1] < logit:
                        best[k], word[k] = best[k - 1], word[k - 1]
                        k -= 1
                    best[k], word[k] = logit, start + i
    if largest > MINUS_INFINITY:
        total += _sum_of_exponentials(block, largest)
    return largest, total


@inlined
def _sum_of_exponentials(block, largest):
    """Return sum_i e^(x_i - largest)."""
    total = ZERO
    for i in range(len(block)):
        total += exp2((block[i] - largest) * LOG2_E)
    return total


@inlined
def _normalise(best, largest, total):
    """Convert logits to log-probabilities. A row of minus infinities is unchanged."""
    if largest != MINUS_INFINITY:
        log_total = np.float64(largest) + np.log(total)  # float32 would lose digits of large logits
        for k in range(len(best)):
            best[k] = np.float64(best[k]) - log_total

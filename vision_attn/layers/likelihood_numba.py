"""Log-probabilities of words, and their slopes, on a CPU: loops compiled by numba that read each logit once.

bfloat16 is the upper half of a float32, which is how these loops read and write it.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.layers.loops import LOG2_E, compiled, exp2, in_threads, inlined

BLOCK = 32
"""Rows whose slopes are summed together for the gradient of the bias."""
ZERO, ONE = np.float32(0), np.float32(1)


def log_prob_and_slopes(
    logits: Float[Tensor, "N V"], words: Int[Tensor, "N"], factor: Float[Tensor, "N"]
) -> tuple[Float[Tensor, "N"], Float[Tensor, "V"]]:
    """log softmax(logits)[words]; the sum over rows of its slopes with respect to the logits, times `factor`.

    `logits`, in float32 or bfloat16, contiguous, are overwritten by the slopes times `factor`.
    """
    log_prob = torch.empty(len(logits))
    starts = torch.arange(0, len(logits), BLOCK)
    sums = torch.zeros(len(starts), logits.shape[1])
    half = logits.dtype == torch.bfloat16
    numbers, work = (logits.view(torch.int16), _slopes_of_half) if half else (logits, _slopes)
    in_threads(work, 8 * logits.numel(), starts, numbers, words, factor, log_prob, sums)
    return log_prob, sums.sum(dim=0)


@compiled
def _slopes(first, last, starts, logits, words, factor, log_prob, sums):
    for block in range(first, last):
        for row in range(starts[block], min(starts[block] + BLOCK, len(logits))):
            numbers = logits[row]
            log_prob[row] = _row(numbers, words[row], factor[row], sums[block])


@compiled
def _slopes_of_half(first, last, starts, logits, words, factor, log_prob, sums):
    bits = np.empty(logits.shape[1], np.int32)
    numbers = bits.view(np.float32)
    for block in range(first, last):
        for row in range(starts[block], min(starts[block] + BLOCK, len(logits))):
            halves = logits[row]
            for i in range(len(halves)):
                bits[i] = np.int32(halves[i]) << np.int32(16)
            log_prob[row] = _row(numbers, words[row], factor[row], sums[block])
            for i in range(len(halves)):  # to the nearest, and to the even one of two that are as near
                halves[i] = (bits[i] + np.int32(0x7FFF) + ((bits[i] >> np.int32(16)) & np.int32(1))) >> np.int32(16)


@inlined
def _row(numbers, word, factor, sums):
    """The log-probability of a word. Overwrites the logits with slopes and adds these to `sums`."""
    largest = numbers[0]
    for i in range(len(numbers)):
        largest = max(largest, numbers[i])
    chosen, total = numbers[word] - largest, ZERO
    for i in range(len(numbers)):
        power = exp2((numbers[i] - largest) * LOG2_E)
        numbers[i] = power
        total += power
    scale = -factor / total
    for i in range(len(numbers)):
        numbers[i] *= scale
        sums[i] += numbers[i]
    numbers[word] += factor
    sums[word] += factor
    return chosen - np.log(total)

"""Compute log-probabilities of words, and their derivatives, on a CPU, by loops compiled by numba that read each logit
once.

bfloat16 is the upper half of a float32, which is how these loops read and write it.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.fast.loops import LOG2_E, compiled, exp2, in_threads, inlined

BLOCK = 32
"""The number of rows whose slopes are summed together for the gradient of the bias."""
ZERO, ONE, SIXTEEN = np.float32(0), np.float32(1), np.int32(16)


def log_prob_and_slopes(
    logits: Float[Tensor, "N V"], words: Int[Tensor, "N"], factor: Float[Tensor, "N"]
) -> tuple[Float[Tensor, "N"], Float[Tensor, "V"]]:
    """Return log softmax(logits)[words], and the sum over rows of its derivatives with respect to the logits, times
    `factor`.

    `logits`, in float32 or bfloat16, contiguous, are overwritten by the derivatives times `factor`.
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
        total = sums[block]
        for row in range(starts[block], min(starts[block] + BLOCK, len(logits))):
            numbers = logits[row]
            log_prob[row], scale = _slopes_up_to_scale(numbers, numbers.view(np.int32), words[row])
            scale *= factor[row]
            for i in range(len(numbers)):
                numbers[i] *= scale
                total[i] += numbers[i]


@compiled
def _slopes_of_half(first, last, starts, logits, words, factor, log_prob, sums):
    bits = np.empty(logits.shape[1], np.int32)
    numbers = bits.view(np.float32)
    for block in range(first, last):
        total = sums[block]
        for row in range(starts[block], min(starts[block] + BLOCK, len(logits))):
            halves = logits[row]
            for i in range(len(halves)):
                bits[i] = np.int32(halves[i]) << SIXTEEN
            log_prob[row], scale = _slopes_up_to_scale(numbers, bits, words[row])
            scale *= factor[row]
            for i in range(len(halves)):
                numbers[i] *= scale
                total[i] += numbers[i]  # to the nearest, and to the even one of two that are as near:
                halves[i] = (bits[i] + np.int32(0x7FFF) + ((bits[i] >> SIXTEEN) & np.int32(1))) >> SIXTEEN


@inlined
def _slopes_up_to_scale(numbers, bits, word):
    """Overwrite logits by the slopes of log p(word), 1[word] - p, divided by a number. Returns log p(word) and that
    number."""
    most = np.int32(-(2**31))
    for i in range(len(bits)):  # as integers, whose order is that of the numbers: comparing these takes longer
        most = max(most, bits[i] ^ ((bits[i] >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    largest = np.int32(most ^ ((most >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)
    chosen, total = numbers[word] - largest, ZERO
    for i in range(len(numbers)):
        power = exp2((numbers[i] - largest) * LOG2_E)
        numbers[i] = power
        total += power
    numbers[word] -= total
    return chosen - np.log(total), -ONE / total

"""Find the best words of each row on a GPU, with their log-probabilities, by one kernel that reads each logit once. The
plain version is `fast.best_words`."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from vision_attn.fast.launch import launch, operation

FEW = 10
"""The largest number of words for each row: for more, tensor operations are faster."""
HELD = 16
"""The number of words of each row that are held in registers, a power of two."""
BLOCK = 2048
"""The number of logits that are read at once."""


@operation("best_words")
def best_words(logits: Tensor, K: int, barred: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p of the `K` most likely words of each row, best first, in float32, and the words. K is at most `FEW`.

    logits: (N, V).
    barred: words with log p = -inf, (M) of all rows or (N, M). They come after all other words.
    """
    N, V = logits.shape
    log_prob, words = logits.new_empty(N, K, dtype=torch.float32), logits.new_empty(N, K, dtype=torch.int64)
    of_each = barred.shape[-1] if barred.dim() == 2 else 0
    block = min(BLOCK, triton.next_power_of_2(V))
    tensors = logits.contiguous(), barred.contiguous(), log_prob, words
    launch(_best_words, (N,), *tensors, V, K, barred.shape[-1], of_each, HELD, block, num_warps=4)
    return log_prob, words


@best_words.register_fake
def _(logits: Tensor, K: int, barred: Tensor) -> tuple[Tensor, Tensor]:
    N = len(logits)
    return logits.new_empty(N, K, dtype=torch.float32), logits.new_empty(N, K, dtype=torch.int64)


@triton.jit
@no_type_check
def _best_words(
    logits, barred, log_prob, words, V, K, number_barred, of_each, FEW: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row, slot = tl.program_id(0).to(tl.int64), tl.arange(0, FEW)
    logits += row * V
    barred += row * of_each
    best = tl.full([FEW], -float("inf"), tl.float32)
    word = tl.zeros([FEW], tl.int32)
    largest, total = -float("inf"), 0.0
    for start in range(0, V, BLOCK):
        index = start + tl.arange(0, BLOCK)
        x = tl.load(logits + index, mask=index < V, other=-float("inf")).to(tl.float32)
        most = tl.maximum(largest, tl.max(x))
        finite = tl.where(most == -float("inf"), 0.0, most)
        total = total * tl.exp(largest - finite) + tl.sum(tl.exp(x - finite))
        largest = most
        for j in range(number_barred):
            x = tl.where(index == tl.load(barred + j), -float("inf"), x)
        for _ in range(K):
            worst = tl.min(tl.where(slot < K, best, float("inf")))
            top = tl.max(x)
            if top > worst:
                at = tl.min(tl.where(x == top, index, V))
                place = tl.min(tl.where((best == worst) & (slot < K), slot, FEW))
                best = tl.where(slot == place, top, best)
                word = tl.where(slot == place, at, word)
                x = tl.where(index == at, -float("inf"), x)
    log_total = tl.where(largest == -float("inf"), 0.0, largest + tl.log(total))
    free = slot < K
    for k in range(K):
        top = tl.max(tl.where(free, best, -float("inf")))
        ties = free & (best == top)
        first = tl.min(tl.where(ties, word, V))
        place = tl.min(tl.where(ties & (word == first), slot, FEW))
        tl.store(log_prob + row * K + k, top - log_total)
        tl.store(words + row * K + k, tl.where(top == -float("inf"), 0, first).to(tl.int64))
        free = free & (slot != place)

"""The most likely words of each row, without the log-probabilities of all the others."""

from functools import partial
from math import prod
from types import ModuleType

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.kernels.choice import fused_loops
from vision_attn.kernels.launch import on_gpu
from vision_attn.layers.precision import at_least_float32

FEW = 32
"""The loops insert each word that they find into a sorted list. For longer lists tensor operations are faster."""
FEW_ON_GPU = 10
"""The same for the kernel on a GPU."""


def best_words(
    logits: Float[Tensor, "*rows V"], K: int, barred: Int[Tensor, "M"] | Int[Tensor, "*rows M"]
) -> tuple[Float[Tensor, "*rows K"], Int[Tensor, "*rows K"]]:
    """log p of the `K` most likely words of each row, best first, and the words. `K` is at most V.

    Words in `barred`, of all rows or of each row, have log p = -inf; the probabilities of the others are not changed by
    that. Log-probabilities are float32 or wider.
    """
    if (loops := _loops(logits, K)) is not None:
        rows, mine = (part.reshape(prod(part.shape[:-1]), part.shape[-1]) for part in (logits, barred))
        best = loops.best_words(rows, K, mine)
        return tuple(part.view(*logits.shape[:-1], K) for part in best)
    if K <= FEW_ON_GPU and logits.dtype != torch.float64 and on_gpu(logits):
        from vision_attn.kernels.best_words_triton import best_words as kernel

        mine = barred if barred.dim() == 1 else barred.expand(*logits.shape[:-1], -1).flatten(0, -2)
        return tuple(part.view(*logits.shape[:-1], K) for part in kernel(logits.flatten(0, -2), K, mine))
    log_prob = all_words(logits, barred)
    return log_prob.max(dim=-1, keepdim=True) if K == 1 else log_prob.topk(K)


def all_words(
    logits: Float[Tensor, "*rows V"], barred: Int[Tensor, "M"] | Int[Tensor, "*rows M"]
) -> Float[Tensor, "*rows V"]:
    """log p of every word, float32 or wider; -inf for those in `barred`, of all rows or of each row."""
    log_prob = at_least_float32(logits).log_softmax(dim=-1)
    if barred.dim() == 1:
        return log_prob.index_fill_(-1, barred, -torch.inf)
    return log_prob.scatter_(-1, barred, -torch.inf)


def _loops(logits: Tensor, K: int) -> ModuleType | None:
    """The module with compiled loops, if it serves these logits; tensor operations do the same."""
    if logits.device.type != "cpu" or logits.dtype not in (torch.float32, torch.bfloat16) or K > FEW:
        return None
    return None if torch.compiler.is_compiling() else _numba()


_numba = partial(fused_loops, "best_words")

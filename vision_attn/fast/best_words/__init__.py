"""Find the most likely words of each row, without computing the log-probabilities of all words."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.fast.versions import fast_version
from vision_attn.layers.precision import at_least_float32


def best_words(
    logits: Float[Tensor, "*rows V"], K: int, barred: Int[Tensor, "M"] | Int[Tensor, "*rows M"]
) -> tuple[Float[Tensor, "*rows K"], Int[Tensor, "*rows K"]]:
    """Return log p of the `K` most likely words of each row, best first, and the words. `K` is at most V.

    Log-probabilities are float32 or wider.

    barred: words with log p = -inf, of all rows or of each row. The probabilities of other words do not change.
    """
    if (kernels := fast_version("best_words", logits)) and kernels.FEW >= K:
        rows = logits.shape[:-1]
        mine = barred if barred.dim() == 1 else barred.expand(*rows, -1).reshape(rows.numel(), barred.shape[-1])
        best = kernels.best_words(logits.reshape(rows.numel(), logits.shape[-1]), K, mine)
        return tuple(values.view(*rows, K) for values in best)
    log_prob = all_words(logits, barred)
    return log_prob.max(dim=-1, keepdim=True) if K == 1 else log_prob.topk(K)


def all_words(
    logits: Float[Tensor, "*rows V"], barred: Int[Tensor, "M"] | Int[Tensor, "*rows M"]
) -> Float[Tensor, "*rows V"]:
    """Return log p of every word, in float32 or wider.

    barred: words with log p = -inf, of all rows or of each row.
    """
    log_prob = at_least_float32(logits).log_softmax(dim=-1)
    if barred.dim() == 1:
        return log_prob.index_fill_(-1, barred, -torch.inf)
    return log_prob.scatter_(-1, barred, -torch.inf)

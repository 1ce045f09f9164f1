"""Hash the n-grams of captions of word ids, and count them."""

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from vision_attn.contracts import PAD

ORDERS = 4
"""The number of orders: n-grams have 1 to 4 words."""
MULTIPLIER = 0x9E3779B97F4A7C15 - 2**64
"""The multiplier of hashes; odd, so that multiplication modulo 2**64 is one to one."""


def hashed(words: Int[Tensor, "*rows T"]) -> Int[Tensor, "*rows 4 T"]:
    """Hash the n-grams of each order that begin at each word; 0 if the caption ends within the n-gram."""
    keys, key = [], torch.zeros_like(words)
    for order in range(ORDERS):
        last = F.pad(words, (0, ORDERS))[..., order : order + words.shape[-1]]
        key = ((key + last) * MULTIPLIER).where(last != PAD, 0)
        keys.append(key)
    return torch.stack(keys, dim=-2)


def occurrences(ngrams: Int[Tensor, "*rows 4 T"], among: Int[Tensor, "*rows_too 4 S"]) -> Int[Tensor, "*both 4 T"]:
    """Count how often each n-gram occurs among others. Counts of padding are meaningless, and get a weight of 0
    later."""
    return (ngrams[..., :, None] == among[..., None, :]).sum(dim=-1)

"""Log-probabilities: of given words under a vocabulary layer, in a single buffer of logits; and of classes."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vision_attn.layers.linear import linear, transposed_product
from vision_attn.layers.precise import precise

CACHED = 2**18
"""Elements of a tensor that fits into the cache of a CPU's core with others of its size: 1 MiB in float32."""


def word_log_prob(output: nn.Linear, deep: Float[Tensor, "N E"], words: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
    """log softmax(output(deep))[words], in nats, in float32 or wider.

    The logits of a batch, (N, V), are the largest tensor of a training step; `log_softmax` and its backward pass would
    hold three of them in float32. Here the backward pass overwrites the single buffer with the gradient, so it can run
    only once.
    """
    return _WordLogProb.apply(deep, output.weight, output.bias, words)


class _WordLogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, deep: Tensor, weight: Tensor, bias: Tensor, words: Tensor) -> Tensor:
        ctx.logits = logits = linear(deep, weight, bias)  # in half precision under autocast, and stored in it
        chosen = precise(logits.gather(-1, words[:, None]).squeeze(-1))
        normaliser = torch.empty_like(chosen)
        for rows in _chunks(logits):
            normaliser[rows] = precise(logits[rows]).logsumexp(dim=-1)
        ctx.save_for_backward(deep, weight, words, normaliser)
        return chosen - normaliser

    @staticmethod
    def backward(ctx, grad: Tensor):
        deep, weight, words, normaliser = ctx.saved_tensors
        if ctx.logits is None:
            raise RuntimeError(
                "word_log_prob can be differentiated once: its backward pass overwrites the logits with the gradient"
            )
        slope, ctx.logits = ctx.logits, None
        grad_bias = torch.zeros_like(weight[:, 0])
        for rows in _chunks(slope):  # d log p(word) / d logits = 1[word] - p
            p = precise(slope[rows]).sub(normaliser[rows, None]).exp_()
            p.mul_(-grad[rows, None]).scatter_add_(-1, words[rows, None], grad[rows, None].to(p.dtype))
            grad_bias += p.sum(dim=0)
            slope[rows] = p
        grad_deep = linear(slope, weight.to(slope.dtype).mT)
        grad_weight = transposed_product(slope, deep.to(slope.dtype))
        return grad_deep.to(deep.dtype), grad_weight.to(weight.dtype), grad_bias, None


def _chunks(logits: Tensor) -> list[slice]:
    """Slices of a few rows, so that the float32 intermediates between logits and gradient stay in a CPU's cache."""
    at_once = max(1, (2**26 if logits.is_cuda else CACHED) // logits.shape[1])
    return [slice(first, first + at_once) for first in range(0, len(logits), at_once)]


def class_log_prob(scores: Float[Tensor, "*rows N"]) -> Float[Tensor, "*rows N"]:
    """log p of each class, in nats: the log softmax of the scores, in float32 or wider also under autocast."""
    return precise(scores).log_softmax(dim=-1)

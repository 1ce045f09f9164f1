"""log p of given words under a vocabulary layer, in one buffer of logits."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F


def word_log_prob(output: nn.Linear, deep: Float[Tensor, "N E"], words: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
    """log softmax(output(deep))[words], in nats, in float32 at least.

    The logits of a batch, (N, V), are the largest tensor of a training step; log_softmax and its backward pass would
    hold three. Here the backward pass turns the one buffer into the gradient in place, so it can run only once.
    """
    return _WordLogProb.apply(deep, output.weight, output.bias, words)


class _WordLogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, deep: Tensor, weight: Tensor, bias: Tensor, words: Tensor) -> Tensor:
        logits = F.linear(deep, weight, bias)  # in half precision under autocast
        ctx.computed_in = logits.dtype
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        # logsumexp takes a copy of what it is given, so it is given a little at a time.
        normaliser = torch.cat([part.logsumexp(dim=-1, keepdim=True) for part in logits.split(256)])
        ctx.save_for_backward(deep, weight, words, normaliser)
        ctx.logits = logits
        return (logits.gather(-1, words[:, None]) - normaliser).squeeze(-1)

    @staticmethod
    def backward(ctx, grad: Tensor):
        deep, weight, words, normaliser = ctx.saved_tensors
        if ctx.logits is None:
            raise RuntimeError("word_log_prob can be differentiated once: its logits have become the gradient")
        slope = ctx.logits.sub_(normaliser).exp_().mul_(-grad[:, None])  # d log p(word) / d logits = 1[word] - p
        slope.scatter_add_(-1, words[:, None], grad[:, None].to(slope.dtype))
        ctx.logits = None
        grad_bias = slope.sum(dim=0)
        slope = slope.to(ctx.computed_in)
        grad_deep, grad_weight = slope @ weight.to(slope.dtype), slope.mT @ deep.to(slope.dtype)
        return grad_deep.to(deep.dtype), grad_weight.to(weight.dtype), grad_bias.to(weight.dtype), None

"""Scores: how well each region answers a query, before the softmax.

`project(regions) -> keys` runs once per image, outside the word loop; `forward(query, keys) -> scores` inside it.
Keys are held once per image, queries once per row (caption or beam).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

CACHED = 2**19
"""Numbers that a CPU's cache holds with room to spare: 2 MiB in float32."""


class Additive(nn.Module):
    """e_i = v^T tanh(W_a a_i + W_h h + b): the attention of Show, Attend and Tell, after Bahdanau et al. (2015).

    The tanh of every (region, row) pair is where a captioner spends its time, so it is never taken. With
    t = 1 / (1 + e^{2k} e^{2q}) it holds that tanh(k + q) = 1 - 2t: the exponentials are taken once per key and once per
    query, and a pair costs a multiplication and a division. t is computed again in the backward pass rather than kept,
    because T words would keep T tensors of (R, L, A) per image.
    """

    LIMIT = 40.0
    """Projections are clipped to +-40, so that e^{2k} stays finite in float32; short of it tanh(k + q) is exact."""

    def __init__(self, region_size: int, query_size: int, *, attention_size: int = 512):
        super().__init__()
        self.key = nn.Linear(region_size, attention_size)
        self.query = nn.Linear(query_size, attention_size, bias=False)
        self.weight = nn.Parameter(torch.empty(attention_size).uniform_(-1, 1) / attention_size**0.5)

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L A"]:
        """e^{2k}, k = W_a a_i + b; in float32 at least, whatever autocast does."""
        return self._exponential(self.key(regions))

    def forward(self, query: Float[Tensor, "B R H"], keys: Float[Tensor, "B L A"]) -> Float[Tensor, "B R L"]:
        query = self._exponential(self.query(query))
        if torch.compiler.is_compiling():  # the compiler fuses this, and recomputes it by itself
            return self.weight.sum() - 2 * (_reciprocal(query, keys) * self.weight).sum(dim=-1)
        return _AdditiveScore.apply(query, keys, self.weight)

    def _exponential(self, projection: Tensor) -> Tensor:
        precise = torch.promote_types(projection.dtype, torch.float32)
        return projection.to(precise).clamp(-self.LIMIT, self.LIMIT).mul(2).exp()


class _AdditiveScore(torch.autograd.Function):
    """sum_a v_a (1 - 2 t), t = 1 / (1 + e^{2q} e^{2k}), a few images at a time, so that t stays in cache."""

    @staticmethod
    def forward(ctx, query: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(query, keys, weight)
        scores = query.new_empty(*query.shape[:2], keys.shape[1])
        for image in _chunks(query, keys):
            torch.matmul(_reciprocal(query[image], keys[image]), weight, out=scores[image])
        return scores.mul_(-2).add_(weight.sum())

    @staticmethod
    def backward(ctx, grad: Tensor):
        query, keys, weight = ctx.saved_tensors
        grad = grad.contiguous()
        grad_query, grad_keys, grad_weight = torch.empty_like(query), torch.empty_like(keys), torch.zeros_like(weight)
        for image in _chunks(query, keys):
            t, g = _reciprocal(query[image], keys[image]), grad[image]
            grad_weight += torch.mv(t.flatten(0, -2).T, g.flatten())
            slope = torch.addcmul(t, t, t, value=-1).mul_(g[..., None])  # of -t with respect to log(e^{2q} e^{2k})
            torch.sum(slope, -2, out=grad_query[image])
            torch.sum(slope, -3, out=grad_keys[image])
        grad_query = grad_query.mul_(2 * weight).div_(query)
        grad_keys = grad_keys.mul_(2 * weight).div_(keys)
        return grad_query, grad_keys, grad.sum() - 2 * grad_weight


def _reciprocal(query: Tensor, keys: Tensor) -> Tensor:
    """1 / (1 + e^{2q} e^{2k}) of every row and region, (..., R, L, A). Overflow to infinity has the right limit, 0."""
    return torch.mul(query[..., :, None, :], keys[..., None, :, :]).add_(1).reciprocal_()


def _chunks(query: Tensor, keys: Tensor) -> list[slice]:
    """All images at once on a GPU; on a CPU as many as have their pairs in its cache together."""
    images, rows, _ = query.shape
    at_once = images if keys.is_cuda else max(1, CACHED // (rows * keys[0].numel()))
    return [slice(first, first + at_once) for first in range(0, images, at_once)]

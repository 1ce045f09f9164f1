"""The additive score (Xu et al. 2015, eq. 4) without a tanh for every (region, row) pair.

With t = 1 / (1 + e^{2k} e^{2q}), tanh(k + q) = 1 - 2t. The exponentials are computed once per key and once per query,
and a pair costs one multiplication, one addition and one division. The backward pass recomputes t instead of storing
it, because T words would store T tensors of (R, L, A) per image. `versions` decides whether fused loops, kernels or the
tensor operations of this file compute the pairs.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vision_attn.attention.scores import ROWS, UNPROJECTED, Additive
from vision_attn.contracts.nested import Nested
from vision_attn.fast.accumulate import accumulating, total_of
from vision_attn.fast.versions import fast_version, on_gpu
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.checks import require

CACHED = 2**19
"""The number of elements of a tensor that easily fits into a CPU's cache: 2 MiB in float32."""


LIMIT = 40.0
"""Projections k and q are clipped to +-40, so that e^{2k} stays finite in float32. Below it, tanh(k + q) is exact;
beyond it, it is wrong where k and q nearly cancel."""


class FastAdditive(Additive):
    """`Additive` of keys e^{2k} and queries e^{2q}.

    Equal to `Additive` up to rounding as long as projections k and q lie within +-`LIMIT`, where tanh has long been
    constant. A projection beyond it is clipped, and gets no gradient. The score then differs if the other projection
    nearly cancels it (k = 50 and q = -45 count as 0, not as 5). `run.fast=false` computes such scores exactly.
    """

    def project(self, regions: Float[Tensor, "B L D"]) -> Float[Tensor, "B L A"]:
        """Return e^{2k} with k = W_a a_i + b, in float32 or wider also under autocast."""
        keys = exponential(self.key(regions), LIMIT)
        return accumulating(keys, self.weight, finish=gradient_of_keys)

    def forward(
        self, query: Float[Tensor, "B R H"], keys: Float[Tensor, "B L A"], carry: Nested = None
    ) -> tuple[Float[Tensor, "B R L"], Nested]:
        require("query", query, "B R H", "float", hint=ROWS)
        require("keys", keys, "B L A", "float", B=query.shape[0], A=len(self.weight), hint=UNPROJECTED)
        return additive_score(exponential(self.query(query), LIMIT), keys, self.weight), None


def exponential(x: Float[Tensor, "*rows A"], limit: float) -> Float[Tensor, "*rows A"]:
    """Return e^{2x} with x clipped to +-limit, in float32 or wider also under autocast."""
    if torch.compiler.is_compiling() and not on_gpu(x):  # the compiler fuses this expression
        return at_least_float32(x).clamp(-limit, limit).mul(2).exp()
    return _Exponential.apply(x, limit)


class _Exponential(torch.autograd.Function):
    """e^{2x}. Its backward pass needs only the output, which the score keeps as well."""

    @staticmethod
    def forward(ctx, x: Tensor, limit: float) -> Tensor:
        if kernels := fast_version("exponential", x):
            output = kernels.exponential(x, limit)
        else:
            output = (2 * at_least_float32(x).clamp(-limit, limit)).exp()
        ctx.save_for_backward(output)
        ctx.limit, ctx.dtype = limit, x.dtype
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (output,) = ctx.saved_tensors
        if kernels := fast_version("exponential", output):
            return kernels.gradient_of_exponential(grad, output, ctx.limit, ctx.dtype), None
        smallest, largest = math.exp(-2 * ctx.limit), math.exp(2 * ctx.limit)
        inside = torch.ops.aten.hardtanh_backward(grad, output, smallest, largest)
        return (inside * (2 * output)).to(ctx.dtype), None


def additive_score(
    query: Float[Tensor, "B R A"], keys: Float[Tensor, "B L A"], weight: Float[Tensor, "A"]
) -> Float[Tensor, "B R L"]:
    """Return sum_a v_a tanh(k_a + q_a), computed as v_a (1 - 2t) with t = 1 / (1 + e^{2q} e^{2k}).

    query, keys, weight: e^{2q}, e^{2k} and v.
    """
    if torch.compiler.is_compiling() and not on_gpu(query):  # the compiler fuses this expression
        return weight.sum() - 2 * (_reciprocal(query, keys) * weight).sum(dim=-1)
    return _AdditiveScore.apply(query, keys, weight)


class _AdditiveScore(torch.autograd.Function):
    """sum_a v_a (1 - 2 t) with t = 1 / (1 + e^{2q} e^{2k})."""

    @staticmethod
    def forward(ctx, query: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
        ctx.total = total_of(keys)
        ctx.save_for_backward(query, keys, weight)
        if kernels := fast_version("additive", query):
            return kernels.scores(query, keys, weight)
        with torch.autocast(query.device.type, enabled=False):
            sums = [_reciprocal(query[image], keys[image]) @ weight for image in _chunks(query, keys)]
            return weight.sum() - 2 * torch.cat(sums)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        query, keys, weight = ctx.saved_tensors
        slopes = ctx.total.of(len(keys)) if ctx.total else keys.new_zeros(keys.shape)
        gradients = kernels.gradients if (kernels := fast_version("additive", query)) else _gradients
        grad_query, grad_weight = gradients(query, keys, weight, grad, slopes)
        return grad_query, None if ctx.total else gradient_of_keys(slopes, keys, weight), grad_weight


def gradient_of_keys(slopes: Tensor, keys: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of e^{2k}, given the sums of the gradient of the scores times t (1 - t) over rows."""
    return slopes * (2 * weight) / keys


def _gradients(query: Tensor, keys: Tensor, weight: Tensor, grad: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of `query` and `weight`. Adds the terms of the gradient of `keys` to `slopes`."""
    grad = grad.contiguous()
    of_query, of_weight = [], torch.zeros_like(weight)
    for image in _chunks(query, keys):
        t, g = _reciprocal(query[image], keys[image]), grad[image]
        of_weight += torch.mv(t.flatten(0, -2).T, g.flatten())
        slope = torch.addcmul(t, t, t, value=-1).mul_(g[..., None])  # of -t with respect to log(e^{2q} e^{2k})
        of_query.append(slope.sum(-2))
        slopes[image] += slope.sum(-3)
    return torch.cat(of_query) * (2 * weight) / query, grad.sum() - 2 * of_weight


def _reciprocal(query: Tensor, keys: Tensor) -> Tensor:
    """Return 1 / (1 + e^{2q} e^{2k}) of every row and region, (..., R, L, A). A product that overflows gives the limit,
    0."""
    return torch.mul(query[..., :, None, :], keys[..., None, :, :]).add_(1).reciprocal_()


def _chunks(query: Tensor, keys: Tensor) -> list[slice]:
    """Return slices of the batch: all images on a GPU; on a CPU, as many images as fit into the cache with their (row,
    region) pairs."""
    images, rows, _ = query.shape
    at_once = images if keys.is_cuda else max(1, CACHED // (rows * keys[0].numel()))
    return [slice(first, first + at_once) for first in range(0, images, at_once)]

"""The additive score on a CPU: fused loops, compiled by numba, that hold no tensor of (row, region) pairs.

With Q = e^{2q} and K = e^{2k}, t = 1 / (1 + Q K) of a pair is 1 - tanh(q + k) over 2, so the score of Xu et al. 2015,
eq. 4 is sum_a v_a (1 - 2 t_a). See `scores.Additive`, which clips q and k.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.fast.loops import LOG2_E, compiled, exp2, in_threads

ONE, TWO = np.float32(1), np.float32(2)
LARGE = np.float32(1e30)
"""The limit of products: their reciprocal is 0 in effect, and approximate division stays finite."""


def exponential(x: Float[Tensor, "*rows A"], limit: float) -> Float[Tensor, "*rows A"]:
    """Return e^{2x}, in float32, with x clipped to +-limit, which is at most 43."""
    rows = x.float().reshape(-1, x.shape[-1]).contiguous()
    output = rows.new_empty(rows.shape)
    in_threads(_exponential, 4 * rows.numel(), rows, output, rows.new_tensor([limit]))
    return output.view(x.shape)


def gradient_of_exponential(
    grad: Float[Tensor, "*rows A"], output: Float[Tensor, "*rows A"], limit: float, dtype: torch.dtype
) -> Float[Tensor, "*rows A"]:
    """Return the gradient of x in `dtype`; 0 where x was clipped.

    grad, output: the gradient of the output of `exponential`, and this output.
    """
    grad, rows = grad.reshape(-1, grad.shape[-1]).contiguous(), output.view(-1, output.shape[-1])
    to = rows.new_empty(rows.shape)
    in_threads(_gradient_of_exponential, rows.numel(), grad, rows, to, rows.new_tensor([limit]))
    return to.to(dtype).view(output.shape)


def scores(
    query: Float[Tensor, "B R A"], keys: Float[Tensor, "B L A"], weight: Float[Tensor, "A"]
) -> Float[Tensor, "B R L"]:
    """Return sum_a v_a (1 - 2 t_a) of every row and region. All arguments are float32."""
    output = query.new_empty(*query.shape[:2], keys.shape[1])
    query, keys = query.contiguous(), keys.contiguous()
    in_threads(_scores, query.shape[1] * keys.numel(), query, keys, weight.contiguous(), output)
    return output


def gradients(
    query: Float[Tensor, "B R A"],
    keys: Float[Tensor, "B L A"],
    weight: Float[Tensor, "A"],
    grad: Float[Tensor, "B R L"],
    slopes: Float[Tensor, "B L A"],
) -> tuple[Float[Tensor, "B R A"], Float[Tensor, "A"]]:
    """Return the gradients of `query` and `weight`, given the gradient of the scores. Recomputes t.

    Adds sum_rows grad t (1 - t) to `slopes`; times 2 v / K, it is the gradient of `keys`.
    """
    query, keys, grad = query.contiguous(), keys.contiguous(), grad.contiguous()
    grad_query = query.new_zeros(query.shape)
    sums = query.new_zeros(len(query), len(weight))  # of t times `grad`, by image: no two threads add to the same sum
    inputs = query, keys, weight.contiguous(), grad
    in_threads(_gradients, 4 * query.shape[1] * keys.numel(), *inputs, grad_query, slopes, sums)
    return grad_query, grad.sum() - 2 * sums.sum(dim=0)


@compiled
def _exponential(first, last, x, output, limits):
    limit = limits[0]
    for row in range(first, last):
        values, to = x[row], output[row]
        for a in range(len(values)):
            value = limit if values[a] > limit else -limit if values[a] < -limit else values[a]
            to[a] = exp2(TWO * LOG2_E * value)


@compiled
def _gradient_of_exponential(first, last, grad, output, to, limits):
    largest, smallest = exp2(TWO * LOG2_E * limits[0]), exp2(-TWO * LOG2_E * limits[0])  # to the bit
    for row in range(first, last):
        g, y, x = grad[row], output[row], to[row]
        for a in range(len(y)):
            x[a] = np.float32(0) if y[a] >= largest or y[a] <= smallest else TWO * g[a] * y[a]


@compiled
def _scores(first, last, query, keys, weight, output):
    total = weight.sum()
    for image in range(first, last):
        for region in range(keys.shape[1]):
            k = keys[image, region]
            for row in range(query.shape[1]):
                q = query[image, row]
                score = np.float32(0)
                for a in range(len(weight)):
                    score += weight[a] / (ONE + min(q[a] * k[a], LARGE))
                output[image, row, region] = total - TWO * score


@compiled
def _gradients(first, last, query, keys, weight, grad, grad_query, slopes, sums):
    """Add the gradients of four regions at a time, which saves most of the additions to `grad_query` and `sums` in
    memory."""
    rows, regions = grad.shape[1:]
    for image in range(first, last):
        sums_t = sums[image]
        for region in range(0, regions - 3, 4):
            k0, k1 = keys[image, region], keys[image, region + 1]
            k2, k3 = keys[image, region + 2], keys[image, region + 3]
            to0, to1 = slopes[image, region], slopes[image, region + 1]
            to2, to3 = slopes[image, region + 2], slopes[image, region + 3]
            for row in range(rows):
                q, to_q = query[image, row], grad_query[image, row]
                g0, g1 = grad[image, row, region], grad[image, row, region + 1]
                g2, g3 = grad[image, row, region + 2], grad[image, row, region + 3]
                for a in range(len(weight)):
                    t0 = ONE / (ONE + min(q[a] * k0[a], LARGE))
                    t1 = ONE / (ONE + min(q[a] * k1[a], LARGE))
                    t2 = ONE / (ONE + min(q[a] * k2[a], LARGE))
                    t3 = ONE / (ONE + min(q[a] * k3[a], LARGE))
                    w0, w1, w2, w3 = g0 * t0, g1 * t1, g2 * t2, g3 * t3
                    # t (1 - t) is the slope of -t with respect to log(Q K).
                    s0, s1, s2, s3 = w0 - w0 * t0, w1 - w1 * t1, w2 - w2 * t2, w3 - w3 * t3
                    to0[a] += s0
                    to1[a] += s1
                    to2[a] += s2
                    to3[a] += s3
                    to_q[a] += (s0 + s1) + (s2 + s3)
                    sums_t[a] += (w0 + w1) + (w2 + w3)
        for region in range(regions - regions % 4, regions):
            k, to = keys[image, region], slopes[image, region]
            for row in range(rows):
                q, to_q, g = query[image, row], grad_query[image, row], grad[image, row, region]
                for a in range(len(weight)):
                    t = ONE / (ONE + min(q[a] * k[a], LARGE))
                    w = g * t
                    s = w - w * t
                    to[a] += s
                    to_q[a] += s
                    sums_t[a] += w
        for row in range(rows):
            for a in range(len(weight)):
                grad_query[image, row, a] *= TWO * weight[a] / query[image, row, a]

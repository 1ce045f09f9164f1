"""Weighted sums of vectors on a CPU, and their gradients: loops compiled by numba that read each vector once, for all
rows of its image. Four vectors at a time save most of the additions in memory."""

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vision_attn.fast.loops import compiled, in_threads

ZERO = np.float32(0)


def weighted_sums(weights: Float[Tensor, "B R L"], vectors: Float[Tensor, "B L D"]) -> Float[Tensor, "B R D"]:
    """Return weights @ vectors, in float32."""
    output = weights.new_empty(*weights.shape[:2], vectors.shape[2])
    vectors = vectors.contiguous()
    in_threads(_weighted_sums, weights.shape[1] * vectors.numel(), weights.contiguous(), vectors, output)
    return output


def products(rows: Float[Tensor, "B R D"], vectors: Float[Tensor, "B L D"]) -> Float[Tensor, "B R L"]:
    """Return rows @ vectors^T, in float32."""
    output = rows.new_empty(*rows.shape[:2], vectors.shape[1])
    vectors = vectors.contiguous()
    in_threads(_products, rows.shape[1] * vectors.numel(), rows.contiguous(), vectors, output)
    return output


@compiled
def _weighted_sums(first, last, weights, vectors, output):
    rows, length = weights.shape[1:]
    for image in range(first, last):
        output[image] = ZERO
        for i in range(0, length - 3, 4):
            v0, v1, v2, v3 = vectors[image, i], vectors[image, i + 1], vectors[image, i + 2], vectors[image, i + 3]
            for row in range(rows):
                w, total = weights[image, row], output[image, row]
                w0, w1, w2, w3 = w[i], w[i + 1], w[i + 2], w[i + 3]
                for d in range(len(total)):
                    total[d] += (w0 * v0[d] + w1 * v1[d]) + (w2 * v2[d] + w3 * v3[d])
        for i in range(length - length % 4, length):
            v = vectors[image, i]
            for row in range(rows):
                w, total = weights[image, row, i], output[image, row]
                for d in range(len(total)):
                    total[d] += w * v[d]


@compiled
def _products(first, last, rows, vectors, output):
    number, length = output.shape[1:]
    for image in range(first, last):
        for i in range(0, length - 3, 4):
            v0, v1, v2, v3 = vectors[image, i], vectors[image, i + 1], vectors[image, i + 2], vectors[image, i + 3]
            for row in range(number):
                x, to = rows[image, row], output[image, row]
                s0 = s1 = s2 = s3 = ZERO
                for d in range(len(x)):
                    s0 += x[d] * v0[d]
                    s1 += x[d] * v1[d]
                    s2 += x[d] * v2[d]
                    s3 += x[d] * v3[d]
                to[i], to[i + 1], to[i + 2], to[i + 3] = s0, s1, s2, s3
        for i in range(length - length % 4, length):
            v = vectors[image, i]
            for row in range(number):
                x, s = rows[image, row], ZERO
                for d in range(len(x)):
                    s += x[d] * v[d]
                output[image, row, i] = s

"""DRAW's filterbank in NumPy, one number at a time, from the paper's equations (Gregor et al., ICML 2015, section 3.2).

Indices start at 1, as in the paper: an image has columns a = 1..A and rows b = 1..B, a patch has N rows and columns.
"""

from collections.abc import Sequence

import numpy as np


def window(numbers: Sequence[float], A: int, B: int, N: int) -> tuple[float, float, float, float, float]:
    """g_X, g_Y, delta, sigma and gamma from g~_X, g~_Y, log sigma^2, log delta~ and log gamma (eq. 21; eq. 22 to
    eq. 24)."""
    g_x, g_y, log_variance, log_stride, log_intensity = numbers
    delta = (max(A, B) - 1) / (N - 1) * np.exp(log_stride)
    return (A + 1) / 2 * (g_x + 1), (B + 1) / 2 * (g_y + 1), delta, np.sqrt(np.exp(log_variance)), np.exp(log_intensity)


def moved(numbers: Sequence[float], before: Sequence[float], A: int, B: int, N: int) -> tuple[float, ...]:
    """The same for numbers relative to the previous window, of which `before` is g_X, g_Y and delta."""
    g_x, g_y, log_variance, log_stride, log_intensity = numbers
    before_x, before_y, before_delta = before
    delta = before_delta * np.exp(log_stride)
    assert 0.25 < delta < 2 * (max(A, B) - 1) / (N - 1)  # otherwise it would be clipped
    half = N * before_delta / 2
    sigma = delta / 2 * np.sqrt(np.exp(log_variance))
    return before_x + half * g_x, before_y + half * g_y, delta, sigma, np.exp(log_intensity)


def filters(g: float, delta: float, sigma: float, N: int, A: int) -> np.ndarray:
    """F (N, A) of one axis (eq. 19, eq. 20, eq. 25, eq. 26)."""
    F = np.zeros((N, A))
    for i in range(1, N + 1):
        mu = g + (i - N / 2 - 0.5) * delta
        for a in range(1, A + 1):
            F[i - 1, a - 1] = np.exp(-((a - mu) ** 2) / (2 * sigma**2))
        F[i - 1] /= F[i - 1].sum()
    return F


def read(x: np.ndarray, F_x: np.ndarray, F_y: np.ndarray, gamma: float) -> np.ndarray:
    """gamma F_Y x F_X^T of one channel (B, A) (eq. 27)."""
    (N, A), B = F_x.shape, len(x)
    patch = np.zeros((N, N))
    for j in range(N):
        for i in range(N):
            for b in range(B):
                for a in range(A):
                    patch[j, i] += gamma * F_y[j, b] * x[b, a] * F_x[i, a]
    return patch


def write(w: np.ndarray, F_x: np.ndarray, F_y: np.ndarray, gamma: float) -> np.ndarray:
    """F_Y^T w F_X / gamma of one channel (N, N) (eq. 29)."""
    (N, A), B = F_x.shape, F_y.shape[1]
    image = np.zeros((B, A))
    for b in range(B):
        for a in range(A):
            for j in range(N):
                for i in range(N):
                    image[b, a] += F_y[j, b] * w[j, i] * F_x[i, a] / gamma
    return image

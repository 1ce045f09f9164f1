"""DRAW in NumPy, one image and one number at a time, from the paper's equations (Gregor et al., ICML 2015).

Symbols are the paper's: x an image (C, B, A), c the canvas, r the read, z the latent sample. Everything is float64.
"""

from typing import NamedTuple

import numpy as np
import torch

from tests import references_filterbank as filterbank


class DrawOutput(NamedTuple):
    canvases: list[np.ndarray]
    log_prob: float
    kl: list[float]
    log_ratio: list[float]


def paper_weights(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """The weights of a `DRAW` by their names."""
    return {name: weight.detach().double().numpy() for name, weight in model.named_parameters()}


def draw(w: dict[str, np.ndarray], x: np.ndarray, noise: np.ndarray) -> DrawOutput:
    """Reconstruct x (C, B, A) with noise (T, Z): eq. 3 to eq. 11."""
    c, h_enc, h_dec = w["first_canvas"], w["first_encoded"], w["first_decoded"]
    cell_enc, cell_dec = np.zeros_like(h_enc), np.zeros_like(h_dec)
    canvases, kl, log_ratio = [], [], []
    for epsilon in noise:
        x_hat = x - sigmoid(c)
        r = read(w, x, x_hat, h_dec)
        h_enc, cell_enc = lstm(w, "encoder_gates", [r, h_dec, h_enc], cell_enc)
        mu, log_sigma = np.split(linear(w, "latent", h_enc), 2)
        z = mu + np.exp(log_sigma) * epsilon
        h_dec, cell_dec = lstm(w, "decoder_gates", [z, h_dec], cell_dec)
        c = c + write(w, h_dec, x.shape)
        canvases.append(c)
        kl.append(0.0)
        log_ratio.append(0.0)
        for number, m, s in zip(z, mu, np.exp(log_sigma), strict=True):
            kl[-1] += 0.5 * (m**2 + s**2 - np.log(s**2) - 1)
            log_ratio[-1] += log_normal(number, 0, 1) - log_normal(number, m, s)
    log_prob = 0.0
    for pixel, p in zip(x.flatten(), sigmoid(c).flatten(), strict=True):
        log_prob += np.log(p) if pixel == 1 else np.log(1 - p)
    return DrawOutput(canvases, log_prob, kl, log_ratio)


def read(w: dict[str, np.ndarray], x: np.ndarray, x_hat: np.ndarray, h_dec: np.ndarray) -> np.ndarray:
    """Eq. 27; without a filterbank eq. 17."""
    if "read.filterbank.numbers.weight" not in w:
        return np.concatenate([x.flatten(), x_hat.flatten()])
    C, B, A = x.shape
    N = round(((w["encoder_gates.weight"].shape[1] - 2 * len(h_dec)) / 2 / C) ** 0.5)
    F_x, F_y, gamma = filters(w, "read", h_dec, A, B, N)
    return np.concatenate([filterbank.read(channel, F_x, F_y, gamma).flatten() for channel in [*x, *x_hat]])


def write(w: dict[str, np.ndarray], h_dec: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Eq. 28 and eq. 29; without a filterbank eq. 18."""
    if "write.filterbank.numbers.weight" not in w:
        return linear(w, "write.image", h_dec).reshape(shape)
    C, B, A = shape
    patches = linear(w, "write.patch", h_dec)
    N = round((len(patches) / C) ** 0.5)
    F_x, F_y, gamma = filters(w, "write", h_dec, A, B, N)
    return np.stack([filterbank.write(patch, F_x, F_y, gamma) for patch in patches.reshape(C, N, N)])


def filters(w: dict[str, np.ndarray], part: str, h_dec: np.ndarray, A: int, B: int, N: int):
    numbers = linear(w, f"{part}.filterbank.numbers", h_dec)
    g_x, g_y, delta, sigma, gamma = filterbank.window(numbers, A, B, N)
    F_x, F_y = filterbank.filters(g_x, delta, sigma, N, A), filterbank.filters(g_y, delta, sigma, N, B)
    return F_x, F_y, gamma


def lstm(w: dict[str, np.ndarray], part: str, inputs: list[np.ndarray], cell: np.ndarray):
    i, f, o, candidate = np.split(linear(w, part, np.concatenate(inputs)), 4)  # input, forget and output gate
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(candidate)
    return sigmoid(o) * np.tanh(cell), cell


def linear(w: dict[str, np.ndarray], part: str, x: np.ndarray) -> np.ndarray:
    return w[f"{part}.weight"] @ x + w[f"{part}.bias"]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def log_normal(x: float, mean: float, sigma: float) -> float:
    return -0.5 * ((x - mean) / sigma) ** 2 - np.log(sigma) - 0.5 * np.log(2 * np.pi)

"""The output of a model that draws images, and the windows through which it reads and writes."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Window(NamedTuple):
    """Position, spacing and width of a grid of filters, in pixels counted from 1 as in the paper: the centre of the
    first pixel is at 1, that of the last at X."""

    centre: Float[Tensor, "B R 2"]
    """(g_X, g_Y), the centre of the grid."""
    stride: Float[Tensor, "B R"]
    """delta, the distance between the centres of neighbouring filters."""
    sigma: Float[Tensor, "B R"]
    """The standard deviation of each filter."""
    intensity: Float[Tensor, "B R"]
    """gamma: reads are multiplied by it, writes are divided by it."""


class DrawOutput(NamedTuple):
    """Images drawn in T time steps: reconstructions with the terms of their loss, or new images without."""

    canvases: tuple[Float[Tensor, "B C Y X"], ...]
    """c_t after each time step: the logit of each pixel being 1."""
    writes: tuple[Window | None, ...]
    """Where each time step wrote; None without attention."""
    reads: tuple[Window | None, ...] = ()
    """Where each time step read; None without attention; empty for new images."""
    log_prob: Float[Tensor, "B"] | None = None
    """log p(x | c_T) in nats."""
    kl: Float[Tensor, "B T"] | None = None
    """KL(q(z_t | x, z_1..t-1) || p(z_t)) in nats."""
    log_ratio: Float[Tensor, "B T"] | None = None
    """log p(z_t) - log q(z_t | x, z_1..t-1) of the sampled z, in nats, without gradient."""

"""DRAW (Gregor et al., ICML 2015): reading and drawing images through windows of Gaussian filters, trained by gradient
descent alone.

The classifier of section 4.1 ("differentiable RAM") is `DRAWReader`, which only reads. The variational autoencoder
`DRAW` draws an image over several time steps. Its parts that read and write are interchangeable: they work through a
filterbank, or on the whole image at once ("without attention").
"""

from collections.abc import Callable
from math import log
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.filterbank import Filterbank
from vision_attn.contracts import Classifier, ClassifierOutput, DrawOutput, Reads, Window, one_size
from vision_attn.layers.likelihood import class_log_prob
from vision_attn.layers.linear import Linear
from vision_attn.layers.lstm import LSTMCell
from vision_attn.models.convolutions import Context, PatchFeatures
from vision_attn.system.checks import check_range


class DRAWReader(Classifier):
    """A classifier that reads `num_glimpses` patches of `size` x `size` with a filterbank, and classifies the image
    after each (Gregor et al. 2015, section 4.1).

    h_t = LSTM(read(x, h_{t-1}), h_{t-1}); the previous state sets the window of each read. Without `context` the
    initial state is zero, so the first window is the same for all images; it is learned. The model is deterministic:
    Monte Carlo copies of an image would be identical, so there is always one row.

    Differs from the paper, which does not specify the initialisation: the first window covers the whole image
    (`Filterbank`), and the bias of the LSTM's forget gate starts at `forget`. With neither, the model learned nothing
    from 600 batches of 100x100 pixels; with both, its error was 24% after 840. The loss may include the answers before
    the last (`early_weight` of the task).

    forget: the initial bias of the LSTM's forget gate.
    relative: whether each window moves and zooms the previous one, so that the model need not learn absolute positions
        (`Filterbank`).
    features: computes features of patches; constructed with the number of channels and the height of a patch;
        `PatchFeatures`. The classifier sees their sum over the patches so far. The LSTM does not: a model whose windows
        depend on them does not find the digit (docs/log.md). The paper has none.
    context: computes the initial state; constructed with the number of channels; `Context`. It starts as a state of
        zeros, so that at first all windows cover the whole image. The paper has none.

    Fast version: `fast.models.over_time.FastDRAWReader`.
    """

    place_numbers = 4

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        num_glimpses: int = 8,
        size: int = 12,
        hidden_size: int = 256,
        forget: float = 1.0,
        relative: bool = False,
        features: Callable[[int, int], PatchFeatures] | None = None,
        context: Callable[[int], Context] | None = None,
    ):
        super().__init__()
        check_range("DRAWReader", 1, 1000, num_glimpses=num_glimpses)
        self.num_glimpses, self.hidden_size = num_glimpses, hidden_size
        self.patch_size = image_shape[0] * size**2
        image_shape = one_size("DRAWReader", image_shape)
        self.filterbank = Filterbank(hidden_size, image_shape, size=size, relative=relative)
        self.features = features(image_shape[0], size) if features else None
        self.context = context(image_shape[0]) if context else None
        if self.context:
            self.initial = Linear(self.context.size, 2 * hidden_size)
            nn.init.zeros_(self.initial.weight)
            nn.init.zeros_(self.initial.bias)
        self.gates = Linear(self.patch_size + hidden_size, 4 * hidden_size)
        self.lstm = LSTMCell()
        self.action = Linear(hidden_size + (self.features.size if self.features else 0), num_classes)
        with torch.no_grad():
            self.gates.bias[hidden_size : 2 * hidden_size] = forget
        self.pixels = num_glimpses * self.patch_size + (self.context.pixels if self.context else 0)
        """The number of pixels read from an image. Each pixel of a patch is a weighted sum over the whole image."""

    def forward(
        self,
        images: Float[Tensor, "B C Y X"],
        rows: int = 1,
        mode: str = "sample",
        given: Float[Tensor, "B T 4"] | None = None,
    ) -> ClassifierOutput:
        """Classify images, always in one row: `rows` and `mode` have no effect.

        The loop over time steps computes only what depends on the previous state; answers and locations are computed
        for all time steps at once.

        given: boxes to read, (x0, y0, x1, y1) in [-1, 1]; NaN where the model chooses.
        """
        hidden, cell = self._start(images)
        window, states, read, patches = None, [], [], []
        for step in range(self.num_glimpses):
            window = self.filterbank.window(hidden[:, None], window)
            if given is not None:
                window = self.filterbank.covering(given[:, None, step], window)
            patches.append(self.filterbank.read(images, window))
            hidden, cell = self.lstm(cell, self.gates(patches[-1].flatten(1), hidden))
            read.append(window)
            states.append(hidden)
        windows = Window(*(torch.cat(numbers, dim=1) for numbers in zip(*read, strict=True)))
        seen = torch.stack(states, dim=1)
        if self.features:
            features = self.features(torch.cat(patches, dim=1)[:, :, None])
            seen = torch.cat([seen, features.cumsum(dim=1)], dim=-1)
        log_prob = class_log_prob(self.action(seen))
        return ClassifierOutput(log_prob[:, None], self.filterbank.locations(windows)[:, None], windows=windows)

    def view(self, images: Float[Tensor, "B C Y X"], glance: ClassifierOutput) -> Reads:
        """Return the patch of each read, with intensity 1 in place of the learned one, so that values lie in [0, 1]."""
        assert glance.windows is not None
        windows = glance.windows._replace(intensity=torch.ones_like(glance.windows.intensity))
        return Reads(self.filterbank.read(images, windows), self.filterbank.boxes(windows), windows.sigma)

    def _start(self, images: Float[Tensor, "B C Y X"]) -> tuple[Float[Tensor, "B H"], Float[Tensor, "B H"]]:
        """Return h_0 and c_0."""
        if self.context is None:
            zeros = images.new_zeros(images.shape[0], self.hidden_size)
            return zeros, zeros
        hidden, cell = self.initial(self.context(images)).chunk(2, dim=-1)
        return hidden.tanh(), cell


class ReadPatch(nn.Module):
    """Reads a patch of `size` x `size` from the image and from the error image: gamma [F_Y x F_X^T, F_Y x^ F_X^T]
    (Gregor et al. 2015, eq. 27)."""

    def __init__(self, state_size: int, image_shape: tuple[int, int, int], *, size: int = 2):
        super().__init__()
        self.filterbank = Filterbank(state_size, image_shape, size=size)
        self.read_size = 2 * image_shape[0] * size**2

    def forward(
        self, images: Float[Tensor, "B C Y X"], errors: Float[Tensor, "B C Y X"], state: Float[Tensor, "B 1 H"]
    ) -> tuple[Float[Tensor, "B 1 G"], Window | None]:
        window = self.filterbank.window(state)
        return self.filterbank.read(torch.cat([images, errors], dim=1), window).flatten(2), window


class ReadImage(nn.Module):
    """Reads without attention: the whole image and the whole error image, [x, x^] (Gregor et al. 2015, eq. 17)."""

    def __init__(self, state_size: int, image_shape: tuple[int, int, int]):
        super().__init__()
        self.read_size = 2 * torch.Size(image_shape).numel()

    def forward(
        self, images: Float[Tensor, "B C Y X"], errors: Float[Tensor, "B C Y X"], state: Float[Tensor, "B 1 H"]
    ) -> tuple[Float[Tensor, "B 1 G"], Window | None]:
        return torch.cat([images, errors], dim=1).flatten(1)[:, None], None


class WritePatch(nn.Module):
    """Writes a patch w = W(h^dec) of `size` x `size` (Gregor et al. 2015, eq. 28) as F^_Y^T w F^_X / gamma^ (eq. 29).

    Differs from the paper, which does not specify the initialisation: gamma^ starts at 1 / delta^2, because filters
    that sum to 1 spread each value of the patch over delta^2 pixels. If it started at 1, the gradients of the window
    would be a hundred times the others.
    """

    def __init__(self, state_size: int, image_shape: tuple[int, int, int], *, size: int = 5):
        super().__init__()
        self.filterbank = Filterbank(state_size, image_shape, size=size)
        with torch.no_grad():
            self.filterbank.numbers.bias[4] = -2 * log(max(1.0, self.filterbank.widest_stride))
        self.patch_shape = (image_shape[0], size, size)
        self.patch = Linear(state_size, torch.Size(self.patch_shape).numel())

    def forward(self, state: Float[Tensor, "B 1 H"]) -> tuple[Float[Tensor, "B C Y X"], Window | None]:
        window = self.filterbank.window(state)
        return self.filterbank.write(self.patch(state).unflatten(-1, self.patch_shape), window).squeeze(1), window


class WriteImage(nn.Module):
    """Writes without attention: a linear map from the state to the whole canvas (Gregor et al. 2015, eq. 18)."""

    def __init__(self, state_size: int, image_shape: tuple[int, int, int]):
        super().__init__()
        self.image_shape = image_shape
        self.image = Linear(state_size, torch.Size(image_shape).numel())

    def forward(self, state: Float[Tensor, "B 1 H"]) -> tuple[Float[Tensor, "B C Y X"], Window | None]:
        return self.image(state).view(-1, *self.image_shape), None


class DRAW(nn.Module):
    """The DRAW network: a variational autoencoder that draws images (C, Y, X) of pixels 0 and 1 in `num_steps` time
    steps.

    As in the paper, c_0 and the initial states are learned. States are (B, 1, H): one row per image.

    hidden_size: the size of the LSTMs of encoder and decoder.
    latent_size: the size of z_t.
    read, write: constructed with the size of the decoder's state and the shape of an image; `ReadPatch` and
        `WritePatch`, or `ReadImage` and `WriteImage`.

    Fast version: `fast.models.over_time.FastDRAW`.
    """

    read: Any
    """`ReadPatch`, `ReadImage`, or a module like these."""
    write: Any
    """`WritePatch`, `WriteImage`, or a module like these."""

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        *,
        num_steps: int = 64,
        hidden_size: int = 256,
        latent_size: int = 100,
        read: Callable[[int, tuple[int, int, int]], nn.Module] = ReadPatch,
        write: Callable[[int, tuple[int, int, int]], nn.Module] = WritePatch,
    ):
        super().__init__()
        check_range("DRAW", 1, 1000, num_steps=num_steps)
        self.num_steps, self.hidden_size, self.latent_size = num_steps, hidden_size, latent_size
        self.read = read(hidden_size, image_shape)
        self.write = write(hidden_size, image_shape)
        self.encoder_gates = Linear(self.read.read_size + 2 * hidden_size, 4 * hidden_size)
        self.latent = Linear(hidden_size, 2 * latent_size)
        self.decoder_gates = Linear(latent_size + hidden_size, 4 * hidden_size)
        self.encoder_lstm, self.decoder_lstm = LSTMCell(), LSTMCell()
        self.first_canvas = nn.Parameter(torch.zeros(image_shape))
        self.first_encoded = nn.Parameter(torch.zeros(hidden_size))
        self.first_decoded = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, images: Float[Tensor, "B C Y X"], noise: Float[Tensor, "T B 1 Z"] | None = None) -> DrawOutput:
        """Reconstruct `images` from z_t sampled from the posterior, and compute the terms of the bound.

        At each time step (Gregor et al. 2015): the error image x^ = x - sigma(c_{t-1}) (eq. 3), the read (eq. 4), the
        encoder (eq. 5), z_t ~ N(mu_t, sigma_t^2) (eq. 6) with mu_t (eq. 1) and log sigma_t (eq. 2) linear in the
        encoder's state, the decoder (eq. 7) and the canvas c_t (eq. 8). log p(x | c_T) is minus the loss of eq. 9.

        The loop over time steps computes only what depends on the previous one; likelihood and KL are computed after
        it, for all time steps at once.

        noise: standard normal numbers for each time step; None: sampled.
        """
        if noise is None:
            noise = images.new_empty(self.num_steps, images.shape[0], 1, self.latent_size).normal_()
        canvas, encoded, decoded = self._start(images.shape[0])
        encoder_cell = decoder_cell = torch.zeros_like(encoded)
        posterior, samples, canvases, reads, writes = [], [], [], [], []
        for epsilon in noise:
            glimpse, read = self.read(images, images - canvas.sigmoid(), decoded)
            encoded, encoder_cell = self.encoder_lstm(encoder_cell, self.encoder_gates(glimpse, decoded, encoded))
            posterior.append(self.latent(encoded).to(noise.dtype))
            mean, log_sigma = posterior[-1].chunk(2, dim=-1)
            samples.append(torch.addcmul(mean, log_sigma.exp(), epsilon))
            decoded, decoder_cell = self.decoder_lstm(decoder_cell, self.decoder_gates(samples[-1], decoded))
            stroke, written = self.write(decoded)
            canvas = canvas + stroke
            canvases.append(canvas)
            reads.append(read)
            writes.append(written)
        mean, log_sigma = torch.stack(posterior).squeeze(2).chunk(2, dim=-1)
        z = torch.stack(samples).squeeze(2)
        return DrawOutput(
            tuple(canvases),
            tuple(writes),
            tuple(reads),
            log_prob=-F.binary_cross_entropy_with_logits(canvas, images, reduction="none").flatten(1).sum(dim=1),
            kl=divergence(mean, log_sigma).T,
            log_ratio=((noise.squeeze(2).square() - z.square()) / 2 + log_sigma).detach().sum(dim=-1).T,
        )

    @torch.no_grad()
    def sample(
        self, num_images: int, num_steps: int | None = None, generator: torch.Generator | None = None
    ) -> DrawOutput:
        """Generate new images in any number of time steps.

        Each z_t is sampled from the prior (Gregor et al. 2015, eq. 13); the decoder (eq. 14) and the canvas (eq. 15)
        follow. The images are the last canvas's probabilities (eq. 16 would sample pixels from them).

        num_steps: None: as in training.
        generator: one of the CPU gives the same z on every device.
        """
        num_steps = self.num_steps if num_steps is None else num_steps
        check_range("DRAW.sample", 1, 1000, num_steps=num_steps)
        device = self.first_canvas.device
        shape = (num_steps, num_images, 1, self.latent_size)
        noise = torch.randn(shape, generator=generator, device=generator.device if generator else device).to(device)
        return self.decode(noise)

    def decode(self, noise: Float[Tensor, "T B 1 Z"]) -> DrawOutput:
        """Generate images from the z_t of each time step: the decoder's part of `sample`."""
        canvas, _, decoded = self._start(noise.shape[1])
        cell = torch.zeros_like(decoded)
        canvases, writes = [], []
        for z in noise:
            decoded, cell = self.decoder_lstm(cell, self.decoder_gates(z, decoded))
            stroke, written = self.write(decoded)
            canvas = canvas + stroke
            canvases.append(canvas)
            writes.append(written)
        return DrawOutput(tuple(canvases), tuple(writes))

    def _start(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return c_0, h_0^enc and h_0^dec for `number` images."""
        encoded, decoded = (initial.expand(number, 1, -1) for initial in (self.first_encoded, self.first_decoded))
        return self.first_canvas.expand(number, -1, -1, -1), encoded, decoded


def divergence(mean: Float[Tensor, "*B Z"], log_sigma: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B"]:
    """Return KL(N(mean, sigma^2) || N(0, 1)) in nats, summed over z: a term of the latent loss (Gregor et al. 2015,
    eq. 10), in closed form (eq. 11)."""
    return ((mean.square() + (2 * log_sigma).exp() - 1) / 2 - log_sigma).sum(dim=-1)

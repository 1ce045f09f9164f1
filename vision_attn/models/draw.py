"""DRAW (Gregor et al., ICML 2015): looking and drawing through a window of Gaussian filters, learned by gradient alone.

`DRAWReader`, its classifier of section 4.1 ("differentiable RAM"), only reads. `DRAW` draws an image turn by turn. How
it reads and writes are interchangeable parts: by a filterbank, or all at once ("without attention").
"""

from collections.abc import Callable
from math import log

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.filterbank import Filterbank, Window
from vision_attn.contracts import Classifier, Drawing, Glance, Reads
from vision_attn.layers.likelihood import class_log_prob
from vision_attn.layers.linear import Linear
from vision_attn.layers.lstm import lstm
from vision_attn.ranges import check_range


class DRAWReader(Classifier):
    """An LSTM that reads `num_glimpses` patches of `size` x `size` numbers, each placed by its state before it, and
    answers after each.

    h_t = LSTM(read(x, h_{t-1}), h_{t-1}); the state begins as zeros, so that the first window is the same for all
    images, and is learned. Nothing is drawn by chance: there is always one row, since copies would all say the same.

    Differs from the paper, which does not say where it begins: the first window sees the whole image (`Filterbank`),
    and the bias of the LSTM's forget gates is `forget`. With neither, 600 batches of 100x100 pixels taught nothing;
    with both, 840 led to an error of 24%. Answers before the last may be learned from too (`early_weight` of the task).
    `relative`: each window moves and zooms the one before, so that none need be placed by heart (`Filterbank`).
    """

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
    ):
        super().__init__()
        check_range("DRAWReader", 1, 1000, num_glimpses=num_glimpses)
        self.num_glimpses, self.hidden_size = num_glimpses, hidden_size
        self.patch_size = image_shape[0] * size**2
        self.filterbank = Filterbank(hidden_size, image_shape, size=size, relative=relative)
        self.gates = Linear(self.patch_size + hidden_size, 4 * hidden_size)
        self.action = Linear(hidden_size, num_classes)
        with torch.no_grad():
            self.gates.bias[hidden_size : 2 * hidden_size] = forget

    @property
    def pixels(self) -> int:
        """Numbers that are read per image. Each is a weighted sum over the whole image."""
        return self.num_glimpses * self.patch_size

    def forward(self, images: Float[Tensor, "B C Y X"], rows: int = 1, look: str = "draw") -> Glance:
        """The loop does only what needs the state before it: answers and locations are computed for all at once."""
        hidden = cell = images.new_zeros(len(images), self.hidden_size)
        window, states, each = None, [], []
        for _ in range(self.num_glimpses):
            window = self.filterbank.window(hidden[:, None], window)
            patch = self.filterbank.read(images, window).flatten(1)
            hidden, cell = lstm(self.gates(torch.cat([patch, hidden], dim=-1)), cell)
            each.append(window)
            states.append(hidden)
        windows = Window(*(torch.cat(numbers, dim=1) for numbers in zip(*each, strict=True)))
        log_prob = class_log_prob(self.action(torch.stack(states, dim=1)))
        return Glance(log_prob[:, None], self.filterbank.locations(windows)[:, None], windows=windows)

    def view(self, images: Float[Tensor, "B C Y X"], glance: Glance) -> Reads:
        """What each read saw, at intensity 1: with the learned intensity it would not lie in [0, 1]."""
        windows = glance.windows._replace(intensity=torch.ones_like(glance.windows.intensity))
        return Reads(self.filterbank.read(images, windows), self.filterbank.boxes(windows), windows.sigma)


class ReadPatch(nn.Module):
    """gamma [F_Y x F_X^T, F_Y x^ F_X^T] (eq. 27), `size` x `size` of each."""

    def __init__(self, state_size: int, image_shape: tuple[int, int, int], *, size: int = 2):
        super().__init__()
        self.filterbank = Filterbank(state_size, image_shape, size=size)
        self.read_size = 2 * image_shape[0] * size**2

    def forward(
        self, images: Float[Tensor, "B C Y X"], errors: Float[Tensor, "B C Y X"], state: Float[Tensor, "B 1 H"]
    ) -> tuple[Float[Tensor, "B 1 G"], Window | None]:
        window = self.filterbank.window(state)
        # Side by side in memory as `read` multiplies them, so that it need not copy them once more.
        both = torch.cat([images.transpose(1, 2), errors.transpose(1, 2)], dim=2).transpose(1, 2)
        return self.filterbank.read(both, window).flatten(2), window


class ReadImage(nn.Module):
    """[x, x^], all of both (eq. 17)."""

    def __init__(self, state_size: int, image_shape: tuple[int, int, int]):
        super().__init__()
        self.read_size = 2 * torch.Size(image_shape).numel()

    def forward(
        self, images: Float[Tensor, "B C Y X"], errors: Float[Tensor, "B C Y X"], state: Float[Tensor, "B 1 H"]
    ) -> tuple[Float[Tensor, "B 1 G"], Window | None]:
        return torch.cat([images, errors], dim=1).flatten(1)[:, None], None


class WritePatch(nn.Module):
    """F^_Y^T w F^_X / gamma^, of a patch w of `size` x `size` (eqs. 28, 29).

    Differs from the paper, which does not say where it begins: gamma^ is at first 1 / delta^2, because filters that sum
    to 1 thin each number out over delta^2 pixels. With 1 there, gradients of the window are a hundred times the others.
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
    """A linear map to the whole canvas (eq. 18)."""

    def __init__(self, state_size: int, image_shape: tuple[int, int, int]):
        super().__init__()
        self.image_shape = image_shape
        self.image = Linear(state_size, torch.Size(image_shape).numel())

    def forward(self, state: Float[Tensor, "B 1 H"]) -> tuple[Float[Tensor, "B C Y X"], Window | None]:
        return self.image(state).view(-1, *self.image_shape), None


class DRAW(nn.Module):
    """Draws images of shape (C, Y, X), pixels 0 or 1, in `num_turns` turns.

    `read`, `write`: given the size of the decoder's state and the shape of an image; `ReadPatch` and `WritePatch`, or
    `ReadImage` and `WriteImage`. `hidden_size`: of the encoder's and of the decoder's LSTM. `latent_size`: of z_t.

    As in the paper, c_0 and the first states are learned. States are (B, 1, H): each image is drawn once.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        *,
        num_turns: int = 64,
        hidden_size: int = 256,
        latent_size: int = 100,
        read: Callable[[int, tuple[int, int, int]], nn.Module] = ReadPatch,
        write: Callable[[int, tuple[int, int, int]], nn.Module] = WritePatch,
    ):
        super().__init__()
        check_range("DRAW", 1, 1000, num_turns=num_turns)
        self.num_turns, self.hidden_size, self.latent_size = num_turns, hidden_size, latent_size
        self.read = read(hidden_size, image_shape)
        self.write = write(hidden_size, image_shape)
        self.encoder = Linear(self.read.read_size + 2 * hidden_size, 4 * hidden_size)
        self.latent = Linear(hidden_size, 2 * latent_size)
        self.decoder = Linear(latent_size + hidden_size, 4 * hidden_size)
        self.first_canvas = nn.Parameter(torch.zeros(image_shape))
        self.first_encoded = nn.Parameter(torch.zeros(hidden_size))
        self.first_decoded = nn.Parameter(torch.zeros(hidden_size))

    def forward(self, images: Float[Tensor, "B C Y X"], noise: Float[Tensor, "T B 1 Z"] | None = None) -> Drawing:
        """Draw `images` again, each z_t out of what was seen of them (eqs. 3 to 8), and say how likely they are.

        `noise`: standard normal, one z for each turn; drawn here if not given. The loop does only what needs the turn
        before: likelihood and KL are computed after it, for all turns at once.
        """
        if noise is None:
            noise = images.new_empty(self.num_turns, len(images), 1, self.latent_size).normal_()
        canvas, encoded, decoded = self._start(len(images))
        encoder_cell = decoder_cell = torch.zeros_like(encoded)
        posterior, drawn, canvases, reads, writes = [], [], [], [], []
        for epsilon in noise:
            glimpse, read = self.read(images, images - canvas.sigmoid(), decoded)
            encoded, encoder_cell = lstm(self.encoder(torch.cat([glimpse, decoded, encoded], dim=-1)), encoder_cell)
            posterior.append(self.latent(encoded).to(noise.dtype))
            mean, log_sigma = posterior[-1].chunk(2, dim=-1)
            drawn.append(torch.addcmul(mean, log_sigma.exp(), epsilon))
            decoded, decoder_cell = lstm(self.decoder(torch.cat([drawn[-1], decoded], dim=-1)), decoder_cell)
            stroke, written = self.write(decoded)
            canvas = canvas + stroke
            canvases.append(canvas)
            reads.append(read)
            writes.append(written)
        mean, log_sigma = torch.stack(posterior).squeeze(2).chunk(2, dim=-1)
        z = torch.stack(drawn).squeeze(2)
        return Drawing(
            tuple(canvases),
            tuple(writes),
            tuple(reads),
            log_prob=-F.binary_cross_entropy_with_logits(canvas, images, reduction="none").flatten(1).sum(dim=1),
            kl=divergence(mean, log_sigma).T,
            log_ratio=((noise.squeeze(2).square() - z.square()) / 2 + log_sigma).detach().sum(dim=-1).T,
        )

    @torch.no_grad()
    def sample(self, num_images: int, turns: int | None = None, generator: torch.Generator | None = None) -> Drawing:
        """Draw `num_images` images out of nothing, each z_t from the prior, in any number of turns (eqs. 12 to 14).

        A `generator` of the CPU gives the same z on every device.
        """
        device = self.first_canvas.device
        shape = (turns or self.num_turns, num_images, 1, self.latent_size)
        noise = torch.randn(shape, generator=generator, device=generator.device if generator else device).to(device)
        canvas, _, decoded = self._start(num_images)
        cell = torch.zeros_like(decoded)
        canvases, writes = [], []
        for z in noise:
            decoded, cell = lstm(self.decoder(torch.cat([z, decoded], dim=-1)), cell)
            stroke, written = self.write(decoded)
            canvas = canvas + stroke
            canvases.append(canvas)
            writes.append(written)
        return Drawing(tuple(canvases), tuple(writes))

    def _start(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """c_0, h_0^enc and h_0^dec."""
        states = (first.expand(number, 1, -1) for first in (self.first_encoded, self.first_decoded))
        return self.first_canvas.expand(number, -1, -1, -1), *states


def divergence(mean: Float[Tensor, "*B Z"], log_sigma: Float[Tensor, "*B Z"]) -> Float[Tensor, "*B"]:
    """KL(N(mean, sigma^2) || N(0, 1)) in nats, summed over z (eq. 11)."""
    return ((mean.square() + (2 * log_sigma).exp() - 1) / 2 - log_sigma).sum(dim=-1)

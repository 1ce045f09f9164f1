"""The plain reference: DRAW (Gregor et al., 2015), written from scratch in the style of popular replications.

It follows their choices: the constants of the filterbank are rebuilt for every filterbank of every time step; image and
error image are read by separate products; an LSTM cell has two products; noise is sampled, and the KL summed, inside
the loop; everything is collected in lists. It does not repeat their mistakes: centres lie on the paper's grid, and the
constant of the KL is the size of z.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


def plain_filterbank(parameters: Tensor, size: int, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Parameters (B, 5) of a window -> F_X (B, N, X), F_Y (B, N, Y), gamma (B, 1)."""
    g_x, g_y, log_variance, log_stride, log_intensity = parameters.split(1, dim=1)
    g_x = (width + 1) / 2 * (g_x + 1)
    g_y = (height + 1) / 2 * (g_y + 1)
    stride = (max(height, width) - 1) / (size - 1) * torch.exp(log_stride)
    grid = torch.arange(1, size + 1, dtype=torch.float32, device=parameters.device).view(1, -1)
    mean_x = (g_x + (grid - size / 2 - 0.5) * stride).view(-1, size, 1)
    mean_y = (g_y + (grid - size / 2 - 0.5) * stride).view(-1, size, 1)
    a = torch.arange(1, width + 1, dtype=torch.float32, device=parameters.device).view(1, 1, -1)
    b = torch.arange(1, height + 1, dtype=torch.float32, device=parameters.device).view(1, 1, -1)
    variance = torch.exp(log_variance).view(-1, 1, 1)
    filters_x = torch.exp(-((a - mean_x) ** 2) / (2 * variance))
    filters_y = torch.exp(-((b - mean_y) ** 2) / (2 * variance))
    filters_x = filters_x / (filters_x.sum(2, keepdim=True) + 1e-8)
    filters_y = filters_y / (filters_y.sum(2, keepdim=True) + 1e-8)
    return filters_x, filters_y, torch.exp(log_intensity)


class PlainDRAW(nn.Module):
    """(B, Y * X) images of ones and zeros -> the bound, a mean over images, in nats."""

    def __init__(
        self, side: int = 28, num_steps: int = 10, hidden: int = 256, latent: int = 100, read: int = 5, write: int = 5
    ):
        super().__init__()
        self.side, self.num_steps, self.hidden, self.latent = side, num_steps, hidden, latent
        self.read_size, self.write_size = read, write
        self.encoder = nn.LSTMCell(2 * read * read + hidden, hidden)
        self.mean = nn.Linear(hidden, latent)
        self.log_sigma = nn.Linear(hidden, latent)
        self.decoder = nn.LSTMCell(latent, hidden)
        self.read_parameters = nn.Linear(hidden, 5)
        self.write_parameters = nn.Linear(hidden, 5)
        self.patch = nn.Linear(hidden, write * write)

    def read(self, images: Tensor, errors: Tensor, state: Tensor) -> Tensor:
        filters_x, filters_y, intensity = self.filters(self.read_parameters(state), self.read_size)

        def glimpse(image: Tensor) -> Tensor:
            patch = filters_y.bmm(image.view(-1, self.side, self.side)).bmm(filters_x.transpose(1, 2))
            return intensity * patch.view(-1, self.read_size**2)

        return torch.cat((glimpse(images), glimpse(errors)), dim=1)

    def write(self, state: Tensor) -> Tensor:
        patch = self.patch(state).view(-1, self.write_size, self.write_size)
        filters_x, filters_y, intensity = self.filters(self.write_parameters(state), self.write_size)
        return filters_y.transpose(1, 2).bmm(patch).bmm(filters_x).view(-1, self.side**2) / intensity

    def filters(self, parameters: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
        return plain_filterbank(parameters, size, self.side, self.side)

    def forward(self, images: Tensor, noise: Tensor | None = None) -> Tensor:
        batch, device = len(images), images.device
        canvases, means, sigmas, log_sigmas = [0] * self.num_steps, [], [], []
        encoded = torch.zeros(batch, self.hidden, device=device)
        encoder_cell = torch.zeros(batch, self.hidden, device=device)
        decoded = torch.zeros(batch, self.hidden, device=device)
        decoder_cell = torch.zeros(batch, self.hidden, device=device)
        for t in range(self.num_steps):
            canvas = canvases[t - 1] if t else torch.zeros(batch, self.side**2, device=device)
            glimpse = self.read(images, images - torch.sigmoid(canvas), decoded)
            encoded, encoder_cell = self.encoder(torch.cat((glimpse, decoded), dim=1), (encoded, encoder_cell))
            mean, log_sigma = self.mean(encoded), self.log_sigma(encoded)
            sigma = torch.exp(log_sigma)
            epsilon = torch.randn(batch, self.latent, device=device) if noise is None else noise[t]
            decoded, decoder_cell = self.decoder(mean + sigma * epsilon, (decoded, decoder_cell))
            canvases[t] = canvas + self.write(decoded)
            means.append(mean)
            sigmas.append(sigma)
            log_sigmas.append(log_sigma)
        reconstruction = functional.binary_cross_entropy(torch.sigmoid(canvases[-1]), images, reduction="sum") / batch
        kl = 0
        for t in range(self.num_steps):
            kl = kl + 0.5 * torch.sum(means[t] ** 2 + sigmas[t] ** 2 - 2 * log_sigmas[t], dim=1) - 0.5 * self.latent
        return reconstruction + kl.mean()

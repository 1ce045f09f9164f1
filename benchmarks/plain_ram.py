"""The plain reference: RAM (Mnih et al., 2014), written from scratch in the style of popular replications.

It follows their choices: a Python loop slices the patch of each image, again for every scale and glimpse, after padding
the whole batch; locations are truncated to whole pixels; the widest patch is sliced at full size before it is averaged
down; lists of log-probabilities and baselines are stacked at the end. It has none of our refinements: the location and
the baseline are linear, without hidden layers, and there is one copy of each image.
"""

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional


def plain_patch(images: Tensor, location: Tensor, size: int, *, fetched: bool = False) -> Tensor:
    """Slice patches: square images (B, C, Y, X), locations (B, 2) -> (B, C, size, size), zero outside the image. `size`
    is even.

    Popular replications slice with elements of a tensor. `fetched`: slice with Python integers, all copied at once,
    the fastest form of the loop.
    """
    start = (0.5 * (location + 1) * images.shape[-1]).long()
    end = start + size
    images = functional.pad(images, (size // 2,) * 4)
    if fetched:
        start, end = start.tolist(), end.tolist()
        patches = [
            images[i, :, top:bottom, left:right]
            for i, ((left, top), (right, bottom)) in enumerate(zip(start, end, strict=True))
        ]
    else:
        patches = [images[i, :, start[i, 1] : end[i, 1], start[i, 0] : end[i, 0]] for i in range(len(images))]
    return torch.stack(patches)


def plain_glimpse(images: Tensor, location: Tensor, size: int, num_scales: int, *, fetched: bool = False) -> Tensor:
    """Glimpses (B, K * C, g, g): patches of g, 2g, .. pixels, each averaged down to g x g."""
    patches = []
    for k in range(num_scales):
        patch = plain_patch(images, location, size * 2**k, fetched=fetched)
        patches.append(functional.avg_pool2d(patch, 2**k) if k else patch)
    return torch.cat(patches, dim=1)


class PlainRAM(nn.Module):
    """(B, C, Y, X) images -> log-probabilities of classes; log-probability and baseline of each sampled location."""

    def __init__(self, size: int, num_scales: int, channels: int = 1, glimpses: int = 6, sigma: float = 0.1):
        super().__init__()
        self.size, self.num_scales, self.glimpses, self.sigma = size, num_scales, glimpses, sigma
        self.what = nn.Linear(num_scales * channels * size**2, 128)
        self.where = nn.Linear(2, 128)
        self.what_to_glimpse = nn.Linear(128, 256)
        self.where_to_glimpse = nn.Linear(128, 256)
        self.glimpse_to_hidden = nn.Linear(256, 256)
        self.hidden_to_hidden = nn.Linear(256, 256)
        self.location = nn.Linear(256, 2)
        self.baseline = nn.Linear(256, 1)
        self.action = nn.Linear(256, 10)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = torch.zeros(len(images), 256, device=images.device)
        location = torch.empty(len(images), 2, device=images.device).uniform_(-1, 1)
        log_probs, baselines = [], []
        for t in range(self.glimpses):
            seen = plain_glimpse(images, location, self.size, self.num_scales).flatten(1)
            what, where = functional.relu(self.what(seen)), functional.relu(self.where(location))
            glimpse = functional.relu(self.what_to_glimpse(what) + self.where_to_glimpse(where))
            hidden = functional.relu(self.glimpse_to_hidden(glimpse) + self.hidden_to_hidden(hidden))
            if t < self.glimpses - 1:
                policy = Normal(torch.tanh(self.location(hidden.detach())), self.sigma)
                location = policy.sample()
                log_probs.append(policy.log_prob(location).sum(dim=1))
                baselines.append(self.baseline(hidden.detach()).squeeze(1))
                location = location.clamp(-1, 1)
        log_probabilities = functional.log_softmax(self.action(hidden), dim=1)
        return log_probabilities, torch.stack(log_probs, dim=1), torch.stack(baselines, dim=1)


def plain_ram_loss(model: PlainRAM, images: Tensor, labels: Tensor) -> Tensor:
    """The hybrid loss: cross-entropy, REINFORCE for the locations, squared error for the baseline."""
    log_probabilities, log_probs, baselines = model(images)
    reward = (log_probabilities.detach().argmax(dim=1) == labels).float()
    reward = reward.unsqueeze(1).repeat(1, log_probs.shape[1])
    reinforce = -(log_probs * (reward - baselines.detach())).sum(dim=1).mean()
    return functional.nll_loss(log_probabilities, labels) + reinforce + functional.mse_loss(baselines, reward)

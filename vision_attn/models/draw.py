"""DRAW (Gregor et al., ICML 2015): looking and drawing through a window of Gaussian filters, learned by gradient alone.

Here its classifier of section 4.1, "differentiable RAM", which only reads.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.attention.filterbank import Filterbank, Window
from vision_attn.models.linear import Linear
from vision_attn.models.outputs import Glance
from vision_attn.models.ram import lstm


class DRAWReader(nn.Module):
    """An LSTM that reads `num_glimpses` patches of `size` x `size` numbers, each placed by its state before it, and
    answers after each.

    h_t = LSTM(read(x, h_{t-1}), h_{t-1}); the state begins as zeros, so that the first window is the same for all
    images, and is learned. Nothing is drawn by chance: there is always one row, since copies would all say the same.

    Differs from the paper: the answers before the last one are there to be learned from too
    (`Classification(early_weight)`); the first window is made to see the whole image (see `Filterbank`), and the LSTM
    to remember (`forget`), since otherwise nothing is learned for thousands of steps.
    """

    reinforced = False

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        num_glimpses: int = 8,
        size: int = 12,
        hidden_size: int = 256,
        forget: float = 1.0,
    ):
        super().__init__()
        if num_glimpses < 1:
            raise ValueError(f"DRAWReader: num_glimpses is {num_glimpses}, but it must look at least once")
        self.num_glimpses, self.hidden_size = num_glimpses, hidden_size
        self.patch_size = image_shape[0] * size**2
        self.filterbank = Filterbank(hidden_size, image_shape, size=size)
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
        hidden, windows = self._read(images)
        log_prob = self.action(hidden).log_softmax(dim=-1)
        return Glance(log_prob[:, None], self.filterbank.locations(windows)[:, None])

    def windows(self, images: Float[Tensor, "B C Y X"]) -> Window:
        """Where it reads, for pictures: T glimpses stand where a window has rows, so that `filterbank.read(images,
        windows)` is what all of them see."""
        return self._read(images)[1]

    def _read(self, images: Tensor) -> tuple[Float[Tensor, "B T H"], Window]:
        hidden = cell = images.new_zeros(len(images), self.hidden_size)
        states, windows = [], []
        for _ in range(self.num_glimpses):
            windows.append(self.filterbank.window(hidden[:, None]))
            patch = self.filterbank.read(images, windows[-1]).flatten(1)
            hidden, cell = lstm(self.gates, patch, hidden, cell)
            states.append(hidden)
        return torch.stack(states, dim=1), Window(
            *(torch.cat(numbers, dim=1) for numbers in zip(*windows, strict=True))
        )

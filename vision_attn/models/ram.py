"""RAM, the recurrent attention model (Mnih et al., NIPS 2014): a network that sees patches and chooses where to look.

Its parts are interchangeable: a retina, a core that remembers, a network that says where to look next. R Monte Carlo
copies of an image are its rows; they share its pyramid.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.glimpse import Retina
from vision_attn.contracts import Classifier, Glance, Glimpses
from vision_attn.layers.likelihood import class_log_prob
from vision_attn.layers.linear import Linear, Rectified
from vision_attn.layers.lstm import lstm
from vision_attn.models.policies import Gaussian, Look
from vision_attn.ranges import check_range
from vision_attn.shapes import require


class State(NamedTuple):
    """What is held once per row, between glimpses."""

    hidden: Float[Tensor, "B R H"]
    """h_t, from which the answer is read."""
    place: Float[Tensor, "B R P"]
    """What the location network sees; for most cores h_t without a gradient."""
    memory: tuple[Tensor, ...] = ()
    """What a core alone reads."""


class Rectifier(nn.Module):
    """h_t = ReLU(Linear(h_{t-1}) + Linear(g_t)), the paper's core for classification."""

    pixels = 0
    """Numbers that a core takes from an image by itself."""

    def __init__(self, glimpse_size: int, channels: int, *, hidden_size: int = 256):
        super().__init__()
        self.hidden_size = self.place_size = hidden_size
        self.both = Rectified(glimpse_size + hidden_size, hidden_size)  # the sum of two linear maps is one

    def start(self, images: Float[Tensor, "B C Y X"], rows: int) -> State:
        nothing = images.new_zeros(len(images), rows, self.hidden_size)
        return State(nothing, nothing)

    def forward(self, glimpse: Float[Tensor, "B R G"], state: State) -> State:
        hidden = self.both(torch.cat([glimpse, state.hidden], dim=-1))
        return State(hidden, hidden.detach())


class LSTM(nn.Module):
    """An LSTM as core: the paper's for control tasks, and what replications found to be much better on clutter."""

    pixels = 0

    def __init__(self, glimpse_size: int, channels: int, *, hidden_size: int = 256):
        super().__init__()
        self.hidden_size = self.place_size = hidden_size
        self.gates = Linear(glimpse_size + hidden_size, 4 * hidden_size)

    def start(self, images: Float[Tensor, "B C Y X"], rows: int) -> State:
        nothing = images.new_zeros(len(images), rows, self.hidden_size)
        return State(nothing, nothing, (nothing,))

    def forward(self, glimpse: Float[Tensor, "B R G"], state: State) -> State:
        hidden, cell = lstm(self.gates(torch.cat([glimpse, state.hidden], dim=-1)), *state.memory)
        return State(hidden, hidden.detach(), (cell,))


class ContextLSTM(nn.Module):
    """Two LSTMs, one for what and one for where (Ba et al., ICLR 2015, "DRAM"): the upper one begins with what a small
    conv net makes of the whole image, `context_side` pixels wide, reads the lower one, and places the glimpses.

    The answer is read from the lower one, which never sees the context: so the answer cannot come from it. The upper
    one is trained by REINFORCE alone.

    Differs from the paper: the lower one gets no gradient from the upper one; pixels are averaged, not dropped.
    """

    def __init__(
        self,
        glimpse_size: int,
        channels: int,
        *,
        hidden_size: int = 256,
        place_size: int = 256,
        context_side: int = 12,
        filters: tuple[int, int] = (16, 32),
    ):
        super().__init__()
        check_range("ContextLSTM", 1, 1000, context_side=context_side)
        self.hidden_size, self.place_size, self.context_side = hidden_size, place_size, context_side
        self.pixels = channels * context_side**2
        self.gates = Linear(glimpse_size + hidden_size, 4 * hidden_size)
        self.place_gates = Linear(hidden_size + place_size, 4 * place_size)
        first, second = filters
        self.context = nn.Sequential(
            nn.Conv2d(channels, first, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(first, second, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.initial = Linear(second * ((context_side + 1) // 2) ** 2, 2 * place_size)

    def start(self, images: Float[Tensor, "B C Y X"], rows: int) -> State:
        nothing = images.new_zeros(len(images), rows, self.hidden_size)
        seen = self.context(F.adaptive_avg_pool2d(images, self.context_side)).flatten(1)
        place, place_cell = self.initial(seen)[:, None].expand(-1, rows, -1).chunk(2, dim=-1)
        return State(nothing, place.tanh(), (nothing, place_cell))

    def forward(self, glimpse: Float[Tensor, "B R G"], state: State) -> State:
        cell, place_cell = state.memory
        hidden, cell = lstm(self.gates(torch.cat([glimpse, state.hidden], dim=-1)), cell)
        place, place_cell = lstm(self.place_gates(torch.cat([hidden.detach(), state.place], dim=-1)), place_cell)
        return State(hidden, place, (cell, place_cell))


class GlimpseNetwork(nn.Module):
    """g_t = ReLU(Linear(h_g) + Linear(h_l)), what is seen and where: h_g = ReLU(Linear(rho)), h_l = ReLU(Linear(l))."""

    def __init__(self, patch_size: int, *, what_size: int = 128, where_size: int = 128, glimpse_size: int = 256):
        super().__init__()
        self.glimpse_size = glimpse_size
        self.what = Rectified(patch_size, what_size)
        self.where = Rectified(2, where_size)
        self.both = Rectified(what_size + where_size, glimpse_size)

    def forward(
        self, patches: Float[Tensor, "B R K C g g"], locations: Float[Tensor, "B R 2"]
    ) -> Float[Tensor, "B R G"]:
        return self.both(torch.cat([self.what(patches.flatten(2)), self.where(locations)], dim=-1))


class RAM(Classifier):
    """Looks `num_glimpses` times at an image, and answers after each.

    `retina`: what is seen at a place. `core`: given the size of a glimpse and the number of the image's channels;
    `Rectifier`, `LSTM` or `ContextLSTM`.
    `policy`: given the size of what it sees of the core's state; where to look next, see `policies.py`.
    `first`: the first look is placed uniformly at random (the paper), at the centre, or by the policy, which makes
    sense for a core that knows something before it.

    Locations are (x, y) in [-1, 1]. A draw may fall outside; its log p is that of the draw, and the look is clipped.
    """

    stochastic = True

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        num_glimpses: int = 6,
        retina: Callable[[], Retina] = Retina,
        glimpse: Callable[[int], GlimpseNetwork] = GlimpseNetwork,
        core: Callable[[int, int], nn.Module] = Rectifier,
        policy: Callable[[int], nn.Module] = Gaussian,
        first: Literal["random", "centre", "policy"] = "random",
    ):
        super().__init__()
        check_range("RAM", 1, 1000, num_glimpses=num_glimpses)
        self.num_glimpses, self.first, self.channels = num_glimpses, first, image_shape[0]
        self.retina = retina()
        self.glimpse = glimpse(self.retina.num_scales * image_shape[0] * self.retina.size**2)
        self.core = core(self.glimpse.glimpse_size, image_shape[0])
        self.policy = policy(self.core.place_size)
        self.action = Linear(self.core.hidden_size, num_classes)
        self.state_size = self.core.place_size
        self.reinforced = self.policy.reinforced and (num_glimpses > 1 or first == "policy")
        self.pixels = num_glimpses * self.glimpse.what.in_features + self.core.pixels

    def forward(self, images: Float[Tensor, "B C Y X"], rows: int = 1, look: Look = "draw") -> Glance:
        """`rows` copies of each image, looked at independently. `look`: at draws of the policy, or at its means.

        The loop does only what needs the state before. Answers, and log p of the draws, are computed for all glimpses
        at once: the policy runs without a gradient in the loop, and again with one after it.
        """
        require("images", images, "B C Y X", "float", C=self.channels)
        pyramid, state = self.retina.pyramid(images), self.core.start(images, rows)
        noise = self.policy.noise(images.new_empty(self.num_glimpses, len(images), rows, 2), look)
        hidden, places, draws, locations = [], [], [], []
        for glimpse in range(self.num_glimpses):
            if glimpse or self.first == "policy":
                places.append(state.place)
                with torch.no_grad():
                    draws.append(self.policy.place(state.place, noise[glimpse]))
                location = draws[-1].clamp(-1, 1)
            else:
                location = self._first(images, rows)
            locations.append(location)
            state = self.core(self.glimpse(self.retina(pyramid, location), location), state)
            hidden.append(state.hidden)
        log_prob = class_log_prob(self.action(torch.stack(hidden, dim=2)))
        choice = None
        if self.reinforced and self.training and look == "draw":  # an answer alone needs no estimator
            choice = self.policy.choice(torch.stack(places, dim=2), torch.stack(draws, dim=2))
        return Glance(log_prob, torch.stack(locations, dim=2), choice)

    def view(self, images: Float[Tensor, "B C Y X"], glance: Glance) -> Glimpses:
        return Glimpses(self.retina(self.retina.pyramid(images), glance.locations[:, 0]))

    def restart(self) -> None:
        self.policy.restart()

    def _first(self, images: Tensor, rows: int) -> Float[Tensor, "B R 2"]:
        location = images.new_zeros(len(images), rows, 2)
        return location.uniform_(-1, 1) if self.first == "random" else location

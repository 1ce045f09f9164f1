"""RAM, the recurrent attention model (Mnih et al., NIPS 2014): a classifier that takes a sequence of glimpses of an
image and chooses their locations.

Its parts are interchangeable: a retina that extracts glimpses, a recurrent core, and a policy that chooses the next
location. The rows of an image are its R Monte Carlo copies; they share its pyramid.
"""

from collections.abc import Callable
from math import prod
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.attention.glimpse import Retina
from vision_attn.attention.images import Images
from vision_attn.contracts import Classifier, ClassifierOutput, Glimpses, LocationMode
from vision_attn.layers.likelihood import class_log_prob
from vision_attn.layers.linear import Linear, Rectified
from vision_attn.layers.lstm import LSTMCell
from vision_attn.models.convolutions import Context
from vision_attn.models.policies import Gaussian
from vision_attn.system.checks import check_range, require


class CoreState(NamedTuple):
    """The state of a core between glimpses, for each row."""

    hidden: Float[Tensor, "B R H"]
    """h_t, the input of the classifier."""
    location_state: Float[Tensor, "B R P"]
    """The input of the location network: h_t without a gradient for most cores."""
    memory: tuple[Tensor, ...] = ()
    """Tensors that only the core itself reads, such as an LSTM's cell."""


class Rectifier(nn.Module):
    """The paper's core for classification, h_t = ReLU(Linear(h_{t-1}) + Linear(g_t)).

    hidden_size: the size of h_t, which is also the state that the location network sees.
    """

    pixels = 0
    """The number of pixels that the core reads from an image, in addition to the glimpses."""

    def __init__(self, glimpse_size: int, channels: int, *, hidden_size: int = 256):
        super().__init__()
        self.hidden_size = self.place_size = hidden_size
        self.both = Rectified(glimpse_size + hidden_size, hidden_size)  # the sum of two linear maps, as one layer

    def start(self, images: Float[Tensor, "B C Y X"] | Images, rows: int) -> CoreState:
        zeros = images.new_zeros(images.shape[0], rows, self.hidden_size)
        return CoreState(zeros, zeros)

    def forward(self, glimpse: Float[Tensor, "B R G"], state: CoreState) -> CoreState:
        hidden = self.both(glimpse, state.hidden)
        return CoreState(hidden, hidden.detach())


class LSTM(nn.Module):
    """An LSTM core: the paper's choice for control tasks, and in replications much better on cluttered images."""

    pixels = 0

    def __init__(self, glimpse_size: int, channels: int, *, hidden_size: int = 256):
        super().__init__()
        self.hidden_size = self.place_size = hidden_size
        self.gates = Linear(glimpse_size + hidden_size, 4 * hidden_size)
        self.lstm = LSTMCell()

    def start(self, images: Float[Tensor, "B C Y X"] | Images, rows: int) -> CoreState:
        zeros = images.new_zeros(images.shape[0], rows, self.hidden_size)
        return CoreState(zeros, zeros, (zeros,))

    def forward(self, glimpse: Float[Tensor, "B R G"], state: CoreState) -> CoreState:
        hidden, cell = self.lstm(*state.memory, self.gates(glimpse, state.hidden))
        return CoreState(hidden, hidden.detach(), (cell,))


class ContextLSTM(nn.Module):
    """Two stacked LSTMs, the lower one for what and the upper one for where (DRAM, Ba et al., ICLR 2015).

    The lower LSTM reads the glimpses, and the classifier reads the lower LSTM. The upper LSTM reads the lower one, and
    the location network reads the upper one. A `Context` of the whole image, downsampled to `context_side` x
    `context_side` pixels, gives the initial state of the upper LSTM.

    The lower LSTM never sees the context, so the context cannot determine the class. The upper LSTM is trained by
    REINFORCE only.

    hidden_size, place_size: the sizes of the lower and of the upper LSTM.
    context_side, filters, normalise: `side`, `filters` and `normalise` of `Context`.

    Differs from the paper: no gradient flows from the upper LSTM to the lower one.
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
        normalise: bool = False,
    ):
        super().__init__()
        self.hidden_size, self.place_size = hidden_size, place_size
        self.gates = Linear(glimpse_size + hidden_size, 4 * hidden_size)
        self.place_gates = Linear(hidden_size + place_size, 4 * place_size)
        self.context = Context(channels, side=context_side, filters=filters, normalise=normalise)
        self.pixels = self.context.pixels
        self.initial = Linear(self.context.size, 2 * place_size)
        self.lstm, self.place_lstm = LSTMCell(), LSTMCell()

    @property
    def policy_parts(self) -> tuple[nn.Module, ...]:
        """The modules that REINFORCE alone trains, because only the policy reads their outputs."""
        return self.place_gates, self.context, self.initial

    def start(self, images: Float[Tensor, "B C Y X"] | Images, rows: int) -> CoreState:
        zeros = images.new_zeros(images.shape[0], rows, self.hidden_size)
        upper, upper_cell = self.initial(self.context(images))[:, None].expand(-1, rows, -1).chunk(2, dim=-1)
        return CoreState(zeros, upper.tanh(), (zeros, upper_cell))

    def forward(self, glimpse: Float[Tensor, "B R G"], state: CoreState) -> CoreState:
        cell, upper_cell = state.memory
        hidden, cell = self.lstm(cell, self.gates(glimpse, state.hidden))
        upper, upper_cell = self.place_lstm(upper_cell, self.place_gates(hidden.detach(), state.location_state))
        return CoreState(hidden, upper, (cell, upper_cell))


class GlimpseNetwork(nn.Module):
    """The glimpse network: combines the patches of a glimpse with its location.

    g_t = ReLU(Linear(h_g) + Linear(h_l)) with h_g = ReLU(Linear(rho)) of the patches and h_l = ReLU(Linear(l)) of the
    location (Mnih et al. 2014, section 4).

    what_size, where_size, glimpse_size: the sizes of h_g, h_l and g_t.

    Fast version: `fast.models.over_time.FastGlimpseNetwork`.
    """

    def __init__(
        self,
        patch_shape: tuple[int, int, int, int],
        *,
        what_size: int = 128,
        where_size: int = 128,
        glimpse_size: int = 256,
    ):
        super().__init__()
        self.glimpse_size = glimpse_size
        self.what = Rectified(prod(patch_shape), what_size)
        self.where = Rectified(2, where_size)
        self.both = Rectified(what_size + where_size, glimpse_size)

    def forward(
        self, patches: Float[Tensor, "B R K C g g"], locations: Float[Tensor, "B R 2"]
    ) -> Float[Tensor, "B R G"]:
        return self.both(self.what(patches.flatten(2)), self.where(locations))


class RAM(Classifier):
    """The recurrent attention model (Mnih et al. 2014): takes `num_glimpses` glimpses of an image, and classifies it
    after each. Images may have any size, and `Images` may differ in size.

    Locations are (x, y) in [-1, 1]. A sampled location may lie outside: the glimpse is taken at the location clipped to
    the image, and log p is that of the sample before clipping.

    retina: extracts the glimpse at a location.
    glimpse: the glimpse network, constructed with the shape (K, C, g, g) of the patches of a glimpse; `GlimpseNetwork`,
        or `ConvolutionalGlimpse` of `dram.py`.
    core: the recurrent network, constructed with the size of a glimpse and the number of channels of an image;
        `Rectifier`, `LSTM` or `ContextLSTM`.
    policy: chooses the next location, constructed with the size of the state that it sees; see `policies.py`.
    first: the location of the first glimpse: "random" (uniform, as in the paper), "centre", or "policy", for a core
        that knows something of the image before the first glimpse.

    Fast version: `fast.models.over_time.FastRAM`.
    """

    stochastic = True
    any_size = True
    place_numbers = 2
    retina: Retina
    core: Any
    """`Rectifier`, `LSTM`, `ContextLSTM`, or a module like these."""
    policy: Any
    """`Gaussian`, `Anywhere`, or a module like these."""
    glimpse: Any
    """`GlimpseNetwork`, `ConvolutionalGlimpse`, or a module like these."""

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        num_glimpses: int = 6,
        retina: Callable[[], Retina] = Retina,
        glimpse: Callable[[tuple[int, int, int, int]], nn.Module] = GlimpseNetwork,
        core: Callable[[int, int], nn.Module] = Rectifier,
        policy: Callable[[int], nn.Module] = Gaussian,
        first: Literal["random", "centre", "policy"] = "random",
    ):
        super().__init__()
        check_range("RAM", 1, 1000, num_glimpses=num_glimpses)
        self.num_glimpses, self.first, self.channels = num_glimpses, first, image_shape[0]
        self.retina = retina()
        patch_shape = (self.retina.num_scales, image_shape[0], self.retina.size, self.retina.size)
        self.glimpse = glimpse(patch_shape)
        self.core = core(self.glimpse.glimpse_size, image_shape[0])
        self.policy = policy(self.core.place_size)
        self.action = Linear(self.core.hidden_size, num_classes)
        self.state_size = self.core.place_size
        self.reinforced = self.policy.reinforced and (num_glimpses > 1 or first == "policy")
        self.pixels = num_glimpses * prod(patch_shape) + self.core.pixels
        if not self.reinforced:  # no loss reaches what chooses locations
            for module in (self.policy, *getattr(self.core, "policy_parts", ())):
                module.requires_grad_(False)

    def forward(
        self,
        images: Float[Tensor, "B C Y X"] | Images,
        rows: int = 1,
        mode: LocationMode = "sample",
        given: Float[Tensor, "B T 2"] | None = None,
    ) -> ClassifierOutput:
        """Classify `rows` independent copies of each image.

        The loop over time steps computes only what depends on the previous state. Class scores, and log p of the
        sampled locations, are computed for all glimpses at once: the policy runs without a gradient in the loop, and
        again with one after it.

        mode: "sample" samples locations from the policy, "mean" takes its means.
        given: locations of glimpses to take instead; NaN where the policy chooses.
        """
        if not isinstance(images, Images):
            require("images", images, "B C Y X", "float", C=self.channels)
        pyramid, state = self.retina.pyramid(images), self.core.start(images, rows)
        noise = self.policy.noise(images.new_empty(self.num_glimpses, images.shape[0], rows, 2), mode)
        hidden, location_states, samples, locations = [], [], [], []
        for step in range(self.num_glimpses):
            if step or self.first == "policy":
                location_states.append(state.location_state)
                with torch.no_grad():
                    samples.append(self.policy.locate(state.location_state, noise[step]))
                location = samples[-1].clamp(-1, 1)
            else:
                location = self._first(images, rows)
            if given is not None:
                location = given[:, None, step].where(~given[:, None, step].isnan(), location)
            locations.append(location)
            state = self.core(self.glimpse(self.retina(pyramid, location), location), state)
            hidden.append(state.hidden)
        log_prob = class_log_prob(self.action(torch.stack(hidden, dim=2)))
        choice = None
        if self.reinforced and self.training and mode == "sample":  # outside training, no estimator is needed
            choice = self.policy.choice(torch.stack(location_states, dim=2), torch.stack(samples, dim=2))
        return ClassifierOutput(log_prob, torch.stack(locations, dim=2), choice)

    def view(self, images: Float[Tensor, "B C Y X"] | Images, glance: ClassifierOutput) -> Glimpses:
        assert glance.locations is not None
        return Glimpses(self.retina(self.retina.pyramid(images), glance.locations[:, 0]))

    def restart(self) -> None:
        self.policy.restart()

    def _first(self, images: Tensor | Images, rows: int) -> Float[Tensor, "B R 2"]:
        location = images.new_zeros(images.shape[0], rows, 2)
        return location.uniform_(-1, 1) if self.first == "random" else location

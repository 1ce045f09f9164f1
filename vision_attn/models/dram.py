"""DRAM, the deep recurrent attention model for sequences of objects, and its glimpse network (Ba et al., ICLR 2015)."""

from collections.abc import Callable
from math import nan
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.glimpse import Retina
from vision_attn.contracts import PAD, AttentionMap, Caption, Captioner, Choice, Glimpses, LocationMode, WordGlimpses
from vision_attn.layers.likelihood import WordLogProb
from vision_attn.layers.linear import Linear
from vision_attn.layers.precision import at_least_float32
from vision_attn.models.convolutions import PatchFeatures
from vision_attn.models.policies import Gaussian
from vision_attn.models.ram import RAM, ContextLSTM, CoreState, GlimpseNetwork
from vision_attn.system.checks import require


class ConvolutionalGlimpse(nn.Module):
    """The glimpse network of DRAM: g_t = G_image(patches) * G_loc(location), element by element (Ba et al. 2015,
    section 3.1). It tells shapes better than RAM's, which has no convolutions.

    glimpse_size: the size of g_t.

    Differs from the paper: smaller (`PatchFeatures`; the paper has three convolutions of 64 to 128 filters and 1,024
    units), and the bias of G_loc, which is linear, starts at 1: at first every location passes on what patches show.

    Fast version: `fast.models.over_time.FastConvolutionalGlimpse`.
    """

    def __init__(
        self,
        patch_shape: tuple[int, int, int, int],
        *,
        filters: tuple[int, int] = (32, 32),
        glimpse_size: int = 256,
    ):
        super().__init__()
        scales, channels, side, _ = patch_shape
        self.glimpse_size = glimpse_size
        self.what = PatchFeatures(scales * channels, side, size=glimpse_size, filters=filters)
        self.where = Linear(2, glimpse_size)
        nn.init.ones_(self.where.bias)

    def forward(
        self, patches: Float[Tensor, "B R K C g g"], locations: Float[Tensor, "B R 2"]
    ) -> Float[Tensor, "B R G"]:
        return self.what(patches) * self.where(locations)


class DRAM(Captioner):
    """Predicts one character after the other, each after `num_glimpses` glimpses, until it predicts END (Ba et al.
    2015, section 3.2). Its parts are those of `RAM`; for a single character it is RAM.

    Annotation vectors must be the columns of pixels, see `encoders/pixels.py`. A character depends on glimpses alone,
    not on the characters before. The map of a character is the column where its last glimpse was centred.

    Glimpses are trained by `ReinforceAttention`, whose reward is log p of each character.

    num_glimpses: the number of glimpses for each character.
    retina, glimpse, core, policy: as for `RAM`. The policy also chooses the first location, so the core must know
        something of the image before.

    Fast version: `fast.models.over_time.FastDRAM`.
    """

    modes = ("mean", "sample")

    def __init__(
        self,
        num_words: int,
        region_size: int,
        *,
        num_glimpses: int = 3,
        retina: Callable[[], Retina] = Retina,
        glimpse: Callable[[tuple[int, int, int, int]], nn.Module] = GlimpseNetwork,
        core: Callable[[int, int], nn.Module] = ContextLSTM,
        policy: Callable[[int], nn.Module] = Gaussian,
    ):
        super().__init__()
        shape = (1, region_size, region_size)  # of which RAM uses the number of channels
        options: dict[str, Any] = {"retina": retina, "glimpse": glimpse, "core": core, "policy": policy}
        self.ram = RAM(shape, num_words, num_glimpses=num_glimpses, first="policy", **options)
        self.region_size, self.num_glimpses, self.state_size = region_size, num_glimpses, self.ram.state_size
        self.reinforced = self.ram.policy.reinforced
        self.at_test: LocationMode = "mean"
        self.word_log_prob = WordLogProb()

    @property
    def mode(self) -> LocationMode:
        """How locations are chosen: "sample" samples them from the policy, "mean" takes its means."""
        return "sample" if self.training else self.at_test

    def restart(self) -> None:
        self.ram.restart()

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> tuple[Float[Tensor, "B 1 D L"], CoreState]:
        """Return the image as the memory, and the state of the core before the first glimpse."""
        require("regions", regions, "B L D", "float", D=self.region_size, hint=": columns of pixels")
        images = regions.mT[:, None].contiguous()
        return images, self.ram.core.start(images, rows)

    def step(
        self, word: Int[Tensor, "B R"], state: CoreState, memory: Float[Tensor, "B 1 D L"]
    ) -> tuple[Float[Tensor, "B R V"], CoreState, AttentionMap]:
        return self.step_at(None, state, memory)

    def step_at(
        self, given: Float[Tensor, "B R K 2"] | None, state: CoreState, memory: Float[Tensor, "B 1 D L"]
    ) -> tuple[Float[Tensor, "B R V"], CoreState, AttentionMap]:
        """Perform `step`.

        given: the locations of the K glimpses of this word; NaN leaves a glimpse to the policy.
        """
        taken = self._glimpses(state, self.ram.retina.pyramid(memory), given)
        column = _column_map(taken.locations[-1], memory.shape[-1])
        return self.ram.action(taken.state.hidden), taken.state, AttentionMap(*column)

    def glimpses(
        self, regions: Float[Tensor, "B L D"], num_words: int, given: Float[Tensor, "B T 2"] | None = None
    ) -> WordGlimpses:
        """Return the glimpses for `num_words` words.

        given: locations to use instead; NaN where the policy chooses.
        """
        images, state = self.start(regions, 1)
        pyramid = self.ram.retina.pyramid(images)
        places = None if given is None else of_words(given, num_words, self.num_glimpses)
        locations, hidden = [], []
        for number in range(num_words):
            taken = self._glimpses(state, pyramid, None if places is None else places[:, number, None])
            state = taken.state
            locations += taken.locations
            hidden += taken.hidden
        where = torch.cat(locations, dim=1)
        log_prob = at_least_float32(self.ram.action(torch.cat(hidden, dim=1))).log_softmax(dim=-1)
        return WordGlimpses(where, Glimpses(self.ram.retina(pyramid, where)), log_prob)

    def guided(self, locations: Float[Tensor, "B T 2"]) -> Captioner:
        return Guided(self, locations)

    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"], runs: int = 1) -> Caption:
        require("words", words, "B R T", "integer", B=len(regions), hint=": ids of R transcripts per image")
        words = words.repeat_interleave(runs, dim=1) if runs > 1 else words
        B, R, T = words.shape
        images, state = self.start(regions, R)
        pyramid = self.ram.retina.pyramid(images)
        hidden, states, samples, columns = [], [], [], []
        for _ in range(T):
            taken = self._glimpses(state, pyramid)
            state = taken.state
            hidden.append(state.hidden)
            states += taken.location_states
            samples += taken.samples
            columns.append(_column_map(taken.locations[-1], images.shape[-1]))
        word_mask = words != PAD
        alpha, region = (torch.stack(steps, dim=2) for steps in zip(*columns, strict=True))
        alpha = alpha * word_mask[..., None]
        choice = self._choice(torch.stack(states, dim=2), torch.stack(samples, dim=2), word_mask)
        log_prob, mean = self.word_log_prob(
            self.ram.action,
            torch.stack(hidden, dim=2),
            words,
            with_mean=self.with_mean,
            bars_pad=self.bars_pad,
        )
        return Caption(log_prob, alpha, region, choice, mean_log_prob=mean)

    def _glimpses(self, state: CoreState, pyramid: tuple, given: Float[Tensor, "B R K 2"] | None = None) -> "_Taken":
        """Take the glimpses of a word from `pyramid`, the output of `retina.pyramid`.

        given: locations to use instead of the policy's, where they are not NaN.
        """
        ram, rows = self.ram, state.hidden.shape[1]
        noise = ram.policy.noise(state.hidden.new_empty(self.num_glimpses, len(state.hidden), rows, 2), self.mode)
        location_states, samples, locations, hidden = [], [], [], []
        for number, deviation in enumerate(noise):
            location_states.append(state.location_state)
            with torch.no_grad():
                samples.append(ram.policy.locate(state.location_state, deviation))
            location = samples[-1].clamp(-1, 1)
            if given is not None:
                location = given[:, :, number].where(~given[:, :, number].isnan(), location)
            state = ram.core(ram.glimpse(ram.retina(pyramid, location), location), state)
            locations.append(location)
            hidden.append(state.hidden)
        return _Taken(state, location_states, samples, locations, hidden)

    def _choice(self, states: Tensor, samples: Tensor, word_mask: Tensor) -> Choice | None:
        """Return the samples of all characters for the estimator, the glimpses of a character as one sample; None where
        no estimator is needed."""
        if self.mode != "sample" or not self.reinforced:
            return None
        choice = self.ram.policy.choice(states, samples)
        log_prob, entropy = (
            values.unflatten(2, (-1, self.num_glimpses)).sum(dim=-1) * word_mask
            for values in (choice.log_prob, choice.entropy)
        )
        return Choice(log_prob, entropy, word_mask, choice.state[:, :, :: self.num_glimpses])


class _Taken(NamedTuple):
    """The glimpses of a word."""

    state: CoreState
    """The state of the core after the glimpses."""
    location_states: list[Tensor]
    """The input (B, R, P) of the policy before each glimpse."""
    samples: list[Tensor]
    """The locations (B, R, 2) that the policy chose; they may be outside the image."""
    locations: list[Tensor]
    """The locations (B, R, 2) at which the glimpses were taken."""
    hidden: list[Tensor]
    """The hidden state (B, R, H) of the core after each glimpse."""


class _GuidedState(NamedTuple):
    """The state of a guided DRAM. Held once per row; beams reorder it."""

    own: CoreState
    number: Int[Tensor, "B R"]
    """The number of words so far."""


class Guided(Captioner):
    """A DRAM that takes its first glimpses at given locations: see `Captioner.guided`. Words and later glimpses follow
    from these. It decodes like any captioner."""

    def __init__(self, dram: DRAM, locations: Float[Tensor, "B T 2"]) -> None:
        super().__init__()
        self.dram, self.locations = dram, locations
        self.num_glimpses, self.max_length = dram.num_glimpses, dram.max_length

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> tuple[tuple[Tensor, Tensor], _GuidedState]:
        images, state = self.dram.start(regions, rows)
        require("locations", self.locations, "B T 2", "float", B=len(regions))
        number = torch.zeros(len(regions), rows, dtype=torch.long, device=regions.device)
        K = self.num_glimpses
        words = -(-self.locations.shape[1] // K) + 1  # with one whose glimpses are the policy's
        return (images, of_words(self.locations, words, K)), _GuidedState(state, number)

    def step(
        self, word: Int[Tensor, "B R"], state: _GuidedState, memory: tuple[Tensor, Tensor]
    ) -> tuple[Float[Tensor, "B R V"], _GuidedState, AttentionMap]:
        images, places = memory
        image = torch.arange(len(images), device=images.device)[:, None]
        given = places[image, state.number.clamp(max=places.shape[1] - 1)]
        logits, own, column = self.dram.step_at(given, state.own, images)
        return logits, _GuidedState(own, state.number + 1), column

    def glimpses(self, regions: Float[Tensor, "B L D"], num_words: int) -> WordGlimpses:
        return self.dram.glimpses(regions, num_words, self.locations)


def of_words(locations: Float[Tensor, "B T 2"], num_words: int, num_glimpses: int) -> Float[Tensor, "B W K 2"]:
    """Return the locations of the K glimpses of each of W words; NaN where none is given."""
    missing = num_words * num_glimpses - locations.shape[1]
    return F.pad(locations, (0, 0, 0, missing), value=nan).unflatten(1, (num_words, num_glimpses))


def _column_map(location: Float[Tensor, "B R 2"], columns: int) -> tuple[Float[Tensor, "B R L"], Int[Tensor, "B R"]]:
    """Return a map that is 1 at the column where a glimpse is centred, and the number of this column."""
    column = ((location[..., 0].clamp(-1, 1) + 1) / 2 * columns).long().clamp(max=columns - 1)
    return (column[..., None] == torch.arange(columns, device=column.device)).to(location.dtype), column

"""DRAM, the deep recurrent attention model for sequences of objects, and its glimpse network (Ba et al., ICLR 2015)."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vision_attn.attention.glimpse import Retina
from vision_attn.contracts import PAD, AttentionMap, Caption, Captioner, Choice, Glimpses, LocationMode
from vision_attn.layers.likelihood import WordLogProb
from vision_attn.layers.linear import Linear
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
    """Takes `num_glimpses` glimpses for each character, predicts it, and goes on to the next, until it predicts END (Ba
    et al. 2015, section 3.2). The parts are those of `RAM`; with one character it is RAM.

    Annotation vectors must be the columns of pixels, see `encoders/pixels.py`. A character depends on glimpses alone,
    not on the characters before. The map of a character is the column where its last glimpse was centred.

    Glimpses are trained by `ReinforceAttention`, whose reward is log p of each character.

    num_glimpses: the number of glimpses for each character.
    retina, glimpse, core, policy: as for `RAM`; the core must know something of the image before the first glimpse,
        whose location is the policy's.

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
        state, _, samples = self._glimpses(state, self.ram.retina.pyramid(memory), self.num_glimpses)
        return self.ram.action(state.hidden), state, AttentionMap(*_column_map(samples[-1], memory.shape[-1]))

    def glimpses(self, regions: Float[Tensor, "B L D"], num_words: int) -> tuple[Float[Tensor, "B T 2"], Glimpses]:
        images, state = self.start(regions, 1)
        pyramid = self.ram.retina.pyramid(images)
        _, _, samples = self._glimpses(state, pyramid, num_words * self.num_glimpses)
        locations = torch.cat(samples, dim=1).clamp(-1, 1)
        return locations, Glimpses(self.ram.retina(pyramid, locations))

    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"], runs: int = 1) -> Caption:
        require("words", words, "B R T", "integer", B=len(regions), hint=": ids of R transcripts per image")
        words = words.repeat_interleave(runs, dim=1) if runs > 1 else words
        B, R, T = words.shape
        images, state = self.start(regions, R)
        pyramid = self.ram.retina.pyramid(images)
        hidden, states, samples, maps = [], [], [], []
        for _ in range(T):
            state, before, sampled = self._glimpses(state, pyramid, self.num_glimpses)
            hidden.append(state.hidden)
            states += before
            samples += sampled
            maps.append(_column_map(sampled[-1], images.shape[-1]))
        word_mask = words != PAD
        alpha, region = (torch.stack(of_words, dim=2) for of_words in zip(*maps, strict=True))
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

    def _glimpses(self, state: CoreState, pyramid: tuple, number: int) -> tuple[CoreState, list[Tensor], list[Tensor]]:
        """Take `number` glimpses from `pyramid`, the output of `retina.pyramid`. Returns the state after them, and for
        each glimpse the state that the policy saw and the location that it sampled."""
        ram, rows = self.ram, state.hidden.shape[1]
        noise = ram.policy.noise(state.hidden.new_empty(number, len(state.hidden), rows, 2), self.mode)
        states, samples = [], []
        for deviation in noise:
            states.append(state.location_state)
            with torch.no_grad():
                samples.append(ram.policy.locate(state.location_state, deviation))
            location = samples[-1].clamp(-1, 1)
            state = ram.core(ram.glimpse(ram.retina(pyramid, location), location), state)
        return state, states, samples

    def _choice(self, states: Tensor, samples: Tensor, word_mask: Tensor) -> Choice | None:
        """Return the glimpses of a character as one sample; None where no estimator is needed."""
        if self.mode != "sample" or not self.reinforced:
            return None
        choice = self.ram.policy.choice(states, samples)
        log_prob, entropy = (
            values.unflatten(2, (-1, self.num_glimpses)).sum(dim=-1) * word_mask
            for values in (choice.log_prob, choice.entropy)
        )
        return Choice(log_prob, entropy, word_mask, choice.state[:, :, :: self.num_glimpses])


def _column_map(location: Float[Tensor, "B R 2"], columns: int) -> tuple[Float[Tensor, "B R L"], Int[Tensor, "B R"]]:
    """Return a map that is 1 at the column at which a glimpse is centred, and the number of this column."""
    column = ((location[..., 0].clamp(-1, 1) + 1) / 2 * columns).long().clamp(max=columns - 1)
    return (column[..., None] == torch.arange(columns, device=column.device)).to(location.dtype), column

"""`Steered`: wraps a captioner so that chosen words use given attention maps."""

from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vision_attn.contracts import PAD, AttentionMap, Caption, Captioner, Forced
from vision_attn.contracts.nested import Nested, map_tensors
from vision_attn.layers.padding import real_regions
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.checks import require
from vision_attn.system.errors import UserError


class Steering(NamedTuple):
    """The maps that a captioner must use for the first W words of each image. For later words it uses its own."""

    alpha: Float[Tensor, "B W K L"]
    """The weight of each region, for each of K attention heads in the order of `AttentionMap.heads`, or for all of them
    (K = 1)."""
    strength: Float[Tensor, "B W K"]
    """From 0, where the map stays the captioner's own, to 1, where it is `alpha` alone."""


class SteeredMemory(NamedTuple):
    """The captioner's memory and the steering. Held once per image."""

    own: Nested
    """The captioner's memory."""
    steering: Steering
    """The steering, with one more word of strength 0 for all later words."""


class SteeredState(NamedTuple):
    """The captioner's state and the number of words. Held once per row; beams reorder it."""

    own: Nested
    number: Int[Tensor, "B R"]
    """The number of words so far."""


class Steered(Captioner):
    """A captioner with given maps: the map of word t is s_t m_t + (1 - s_t) alpha_t, with the map m_t and the strength
    s_t of a `Steering`, and the captioner's own map alpha_t.

    Only the map is replaced. The context vector and the carries of the score and of the attention are computed from it,
    and so are the state, the word and all later words. Hard attention takes the most likely region of the new map in
    its mode "argmax", or samples from it in its mode "sample".

    It decodes like any captioner. The maps are part of its memory and the number of words part of its state, so beams
    reorder it, and a search that is replayed on a GPU reads its own maps. With strengths of 0 nothing changes.

    padded: whether regions of zeros are padding (`Encoder.pads`), which gets no weight. A map with all its weight on
        padding gets strength 0.

    Raises UserError for a captioner that is not `steerable`.
    """

    steerable = False

    def __init__(self, captioner: Captioner, steering: Steering, *, padded: bool = False) -> None:
        super().__init__()
        if not captioner.steerable:
            raise UserError(
                f"{type(captioner).__name__} cannot be steered: it has no map of the regions, or one that cannot be "
                "replaced; ShowAttendTell, TopDown and Transformer can be"
            )
        require("strength", steering.strength, "B W K", "float")
        B, W, K = steering.strength.shape
        require("alpha", steering.alpha, "B W K L", "float", B=B, W=W, K=K)
        self.captioner, self.steering, self.padded = captioner, steering, padded
        self.max_length, self.accelerated, self.modes = captioner.max_length, captioner.accelerated, captioner.modes

    @property
    def mode(self) -> str | None:
        return self.captioner.mode

    def in_mode(self, mode: str) -> AbstractContextManager[None]:
        return self.captioner.in_mode(mode)

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> tuple[SteeredMemory, SteeredState]:
        memory, state = self.captioner.start(regions, rows)
        B, L = regions.shape[:2]
        alpha, strength = (field.to(regions.device) for field in self.steering)
        require("alpha", alpha, "B W K L", "float", B=B, L=L, hint=": a weight for each region of each image")
        if self.padded:
            alpha = alpha * real_regions(regions)[:, None, None]
            total = alpha.sum(dim=-1)
            alpha = alpha / torch.where(total > 0, total, 1)[..., None]
            strength = strength * (total > 0)
        dtype = at_least_float32(regions).dtype
        alpha, strength = F.pad(alpha.to(dtype), (0, 0, 0, 0, 0, 1)), F.pad(strength.to(dtype), (0, 0, 0, 1))
        number = torch.zeros(B, rows, dtype=torch.long, device=regions.device)
        return SteeredMemory(memory, Steering(alpha, strength)), SteeredState(state, number)

    def step(
        self, word: Int[Tensor, "B R"], state: SteeredState, memory: SteeredMemory
    ) -> tuple[Float[Tensor, "B R V"], SteeredState, AttentionMap | None]:
        forced = of_words(memory.steering, state.number)
        logits, own, used = self.captioner.step(word, state.own, self.captioner.steer(memory.own, forced))
        return logits, SteeredState(own, state.number + 1), used

    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"], runs: int = 1) -> Caption:
        """Run on given words, one after the other, by `step`. Returns the maps that were used."""
        require("words", words, "B R T", "integer", B=regions.shape[0], hint=": ids of R captions per image")
        memory, state = self.start(regions, words.shape[1])
        log_prob, alpha = [], []
        for before, word in zip(F.pad(words, (1, -1)).unbind(dim=2), words.unbind(dim=2), strict=True):
            logits, state, used = self.step(before, state, memory)
            log_prob.append(at_least_float32(logits).log_softmax(dim=-1).gather(-1, word[..., None]).squeeze(-1))
            assert used is not None
            alpha.append(used.alpha)
        real = words != PAD
        return Caption(torch.stack(log_prob, dim=2) * real, torch.stack(alpha, dim=2) * real[..., None])


def of_words(steering: Steering, number: Int[Tensor, "B R"]) -> Forced:
    """Return the maps of each row's next word. Words after the last map get the last map.

    number: the number of words so far.
    """
    B, W = steering.strength.shape[:2]
    index = number.clamp(max=W - 1) + W * torch.arange(B, device=number.device)[:, None]
    return Forced(*map_tensors(lambda field: field.flatten(0, 1)[index].transpose(1, 2), steering))

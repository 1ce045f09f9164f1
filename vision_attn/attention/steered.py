"""A captioner that is made to look at chosen regions for chosen words, whatever kind of captioner it is."""

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
    """Where a captioner is made to look for the first W words of each image; for later ones it looks as it does."""

    alpha: Float[Tensor, "B W K L"]
    """The weight of each region, for each of K attention heads in the order of `AttentionMap.heads`, or for all of them
    (K = 1)."""
    strength: Float[Tensor, "B W K"]
    """From 0, where the map stays the captioner's own, to 1, where it is `alpha` alone."""


class Memory(NamedTuple):
    """Held once per image."""

    own: Nested
    """The captioner's."""
    steering: Steering
    """With a word more, of strength 0."""


class State(NamedTuple):
    """Held once per row; beams reorder it."""

    own: Nested
    number: Int[Tensor, "B R"]
    """The number of words so far."""


class Steered(Captioner):
    """`captioner` with some of its maps replaced: the map of word t is s_t m_t + (1 - s_t) alpha_t, of the map m_t and
    the strength s_t of a `Steering`, and its own alpha_t.

    Only the map is replaced. All that is computed from it follows: what is seen of the regions, what a score or an
    attention remembers of the map, and so the state, the word and the words after. Hard attention takes the largest
    weight of the new map, or samples from it, in its modes "mode" and "sample".

    It decodes as any captioner does. The maps lie in its memory and the number of words in its state, so beams reorder
    it, and a search that is replayed on a GPU reads its own maps. Strengths of 0 leave all as it is.

    padded: whether regions of zeros are padding (`Encoder.pads`): they get no weight. A map whose weight is all on
        padding has the strength 0.

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

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> tuple[Memory, State]:
        memory, state = self.captioner.start(regions, rows)
        B, L = regions.shape[:2]
        alpha, strength = (part.to(regions.device) for part in self.steering)
        require("alpha", alpha, "B W K L", "float", B=B, L=L, hint=": a weight for each region of each image")
        if self.padded:
            alpha = alpha * real_regions(regions)[:, None, None]
            total = alpha.sum(dim=-1)
            alpha = alpha / torch.where(total > 0, total, 1)[..., None]
            strength = strength * (total > 0)
        kind = at_least_float32(regions).dtype
        alpha, strength = F.pad(alpha.to(kind), (0, 0, 0, 0, 0, 1)), F.pad(strength.to(kind), (0, 0, 0, 1))
        number = torch.zeros(B, rows, dtype=torch.long, device=regions.device)
        return Memory(memory, Steering(alpha, strength)), State(state, number)

    def step(
        self, word: Int[Tensor, "B R"], state: State, memory: Memory
    ) -> tuple[Float[Tensor, "B R V"], State, AttentionMap | None]:
        forced = of_words(memory.steering, state.number)
        logits, own, look = self.captioner.step(word, state.own, self.captioner.steer(memory.own, forced))
        return logits, State(own, state.number + 1), look

    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"], runs: int = 1) -> Caption:
        """Word by word, by `step`: log p and the maps that were used."""
        require("words", words, "B R T", "integer", B=regions.shape[0], hint=": ids of R captions per image")
        memory, state = self.start(regions, words.shape[1])
        log_prob, alpha = [], []
        for before, word in zip(F.pad(words, (1, -1)).unbind(dim=2), words.unbind(dim=2), strict=True):
            logits, state, look = self.step(before, state, memory)
            given = at_least_float32(logits).log_softmax(dim=-1).gather(-1, word[..., None]).squeeze(-1)
            log_prob.append(given)
            assert look is not None
            alpha.append(look.alpha)
        real = words != PAD
        return Caption(torch.stack(log_prob, dim=2) * real, torch.stack(alpha, dim=2) * real[..., None])


def of_words(steering: Steering, number: Int[Tensor, "B R"]) -> Forced:
    """The maps of the word after `number` words, of each row; of later words than there are maps, the last one's."""
    B, W = steering.strength.shape[:2]
    index = number.clamp(max=W - 1) + W * torch.arange(B, device=number.device)[:, None]
    return Forced(*map_tensors(lambda part: part.flatten(0, 1)[index].transpose(1, 2), steering))

"""`RegionDeletion`: measure whether attended regions matter, by deleting them and comparing log p of words (after
Petsiuk et al. 2018, "RISE: Randomized Input Sampling for Explanation of Black-box Models", arXiv:1806.07421)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vision_attn.contracts import Captioner, DecodedCaption, Evaluator, Results
from vision_attn.layers.padding import mean_region
from vision_attn.metrics.function_words import content_marks
from vision_attn.metrics.perturbations import ranks
from vision_attn.system.checks import check_range

MAX_NUMBERS = 2**24
"""The largest number of elements of the changed annotation vectors that are computed at once: 64 MB in float32."""


class Drop(NamedTuple):
    """The fall of log p of a content word, in nats, when regions are replaced by the mean annotation vector."""

    by_map: float
    """The fall without the regions of largest weight at that word."""
    random: float
    """The fall without as many random regions: the mean over several draws."""


class RegionDeletion(Evaluator):
    """The drop of log p of content words when the regions of largest weight are replaced by the mean annotation vector
    of the image, compared with as many random regions. It needs no boxes, only a captioner with a map.

    share: the share of the regions that are replaced, at least one region. 10% of 14 x 14 is 20 regions, about as many
        as an object covers. With far fewer, neighbouring regions still show the object; with far more, random regions
        hit it too.
    draws: the number of random choices of regions for each word.

    Content words are all but function words (`metrics.function_words`). Measured in `eval`, not in validation;
    takes (1 + draws) runs of the captioner for each content word. Random numbers are torch's, which `eval`
    seeds for each batch.
    """

    def __init__(self, share: float = 0.1, draws: int = 4) -> None:
        check_range("RegionDeletion", 0, 1, share=share)
        check_range("RegionDeletion", 1, 1000, draws=draws)
        self.share, self.draws = share, draws
        self.drops: list[Drop] = []

    @torch.no_grad()
    def probe(
        self,
        model: Captioner,
        regions: Float[Tensor, "B L D"],
        words: Int[Tensor, "B 1 T"],
        described: Sequence[DecodedCaption],
    ) -> list[Drop]:
        """Return the drops of all content words of a batch."""
        caption = model(regions, words)
        cases = [
            (image, place)
            for image, said in enumerate(described)
            for place, content in enumerate(content_marks(said.words, said.content))
            if content
        ]
        if caption.alpha is None or not cases:
            return []
        cases.sort(key=lambda case: -case[1])  # the longest first, as captioners expect
        image, place = torch.tensor(cases, device=regions.device).unbind(dim=1)
        real = torch.ones_like(regions[..., 0], dtype=torch.bool) if caption.real is None else caption.real
        number = (self.share * real.sum(dim=1)).round().clamp(min=1)[image]
        alpha, real = caption.alpha[image, 0, place], real[image]
        deleted = [largest(alpha, real, number), *(largest(alpha * 0, real, number) for _ in range(self.draws))]
        mean = mean_region(regions, caption.real)
        after = torch.stack([_log_prob(model, regions, mean, words, image, place, mask) for mask in deleted])
        drops = caption.log_prob[image, 0, place] - after
        return [Drop(*pair) for pair in zip(drops[0].tolist(), drops[1:].mean(dim=0).tolist(), strict=True)]

    def update(self, batch: Any, results: Results) -> None:
        self.drops += results.probed or ()

    def compute(self) -> dict[str, float]:
        """Return means over content words, in nats, and their ratio; empty without content words or maps.

        deletion: the drop without the regions of largest weight.
        deletion_random: the drop without random regions.
        deletion_ratio: the first divided by the second; left out if random regions do not lower log p.
        """
        if not self.drops:
            return {}
        by_map, random = (sum(drops) / len(self.drops) for drops in zip(*self.drops, strict=True))
        ratio = {"deletion_ratio": by_map / random} if random > 0 else {}
        return {"deletion": by_map, "deletion_random": random, **ratio}


def largest(
    weights: Float[Tensor, "N L"], real: Bool[Tensor, "N L"], number: Float[Tensor, "N"]
) -> Bool[Tensor, "N L"]:
    """Mask the `number` largest weights of each row among `real` regions; ties are broken at random."""
    return ranks(weights.masked_fill(~real, -1)) < number[:, None]


def _log_prob(
    model: Captioner,
    regions: Float[Tensor, "B L D"],
    mean: Float[Tensor, "B D"],
    words: Int[Tensor, "B 1 T"],
    image: Int[Tensor, "N"],
    place: Int[Tensor, "N"],
    deleted: Bool[Tensor, "N L"],
) -> Float[Tensor, "N"]:
    """Compute log p of the word at each `place` of the caption of each `image`, with `deleted` regions set to the
    mean."""
    log_probs = []
    size = max(1, MAX_NUMBERS // regions[0].numel())
    for some, last, mask in zip(image.split(size), place.split(size), deleted.split(size), strict=True):
        changed = torch.where(mask[..., None], mean[some, None], regions[some])
        length = int(last.max()) + 1
        # Words after the one that is measured do not change it, so they are not computed.
        before = torch.arange(length, device=words.device) <= last[:, None]
        prefix = words[some, :, :length] * before[:, None]
        log_probs.append(model(changed, prefix).log_prob[torch.arange(len(some)), 0, last])
    return torch.cat(log_probs)

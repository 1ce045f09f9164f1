"""Measure the information in maps and glimpses: mutual information of maps and words, the gap between soft attention
and the expectation that it approximates, the entropy of answers, and the shares of an LSTM's steps.

Numbers are in nats.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.contracts import Captioner, DecodedCaption, Evaluator, Results
from vision_attn.contracts.nested import Nested, map_tensors
from vision_attn.layers.lstm import CellUpdate
from vision_attn.system.checks import check_range


class Information(NamedTuple):
    """Estimates of the mutual information I(X; Y) = H(X) + H(Y) - H(X, Y) of pairs."""

    plug_in: float
    """The estimate from observed frequencies. It is too high: independent pairs have more than 0."""
    miller_madow: float
    """The estimate with (values that occur - 1) / (2 N) added to each entropy (Miller 1955). The correction suffices
    where pairs occur often."""


def mutual_information(x: Int[Tensor, "N"], y: Int[Tensor, "N"]) -> Information:
    """Estimate I(X; Y) of N pairs of numbers from 0 on; 0 without pairs."""
    if not len(x):
        return Information(0.0, 0.0)
    terms = [_entropy(values) for values in (x, y, x * (int(y.max()) + 1) + y)]
    (of_x, more_x), (of_y, more_y), (of_both, more) = terms
    plug_in = of_x + of_y - of_both
    return Information(plug_in, plug_in + more_x + more_y - more)


def _entropy(values: Int[Tensor, "N"]) -> tuple[float, float]:
    """Return the entropy of observed frequencies, and the correction of Miller and Madow."""
    counts = values.bincount()
    counts = counts[counts > 0].double()
    share = counts / counts.sum()
    return float(torch.special.entr(share).sum()), (len(counts) - 1) / (2 * len(values))


class MapInformation(Evaluator):
    """The mutual information between the region of largest weight and the word. It needs no boxes, only a captioner
    with a map.

    min_count: words that occur less often are left out, since the information of rare pairs is mostly chance.
    permutations: the number of random permutations of the maps, for the baseline of chance.
    """

    def __init__(self, min_count: int = 5, permutations: int = 100) -> None:
        check_range("MapInformation", 1, 10**9, min_count=min_count)
        check_range("MapInformation", 2, 10_000, permutations=permutations)
        self.min_count, self.permutations = min_count, permutations
        self.regions: list[tuple[tuple[int, ...], int]] = []
        self.words: list[str] = []

    def update(self, batch: Any, results: Results) -> None:
        for caption in results.described:
            if caption.alpha is not None and (seen := caption.seen) is not None and caption.words:
                grid, seen = tuple(caption.alpha.shape[1:]), seen[: len(caption.words)]
                self.regions += [(grid, region) for region in seen.argmax(dim=1).tolist()]
                self.words += caption.words

    def compute(self) -> dict[str, float]:
        """Return the metrics in nats; empty without maps.

        information: the plug-in estimate minus the mean plug-in estimate of permuted maps. It is never too high, but
        too low if words and regions depend on each other strongly, since fewer pairs then occur by chance.
        information_plug_in, information_miller_madow: see `Information`.
        information_low, information_high: the range of `information` for 95% of permuted maps, whose true value is 0.
        """
        number = Counter(self.words)
        kept = [pair for pair in zip(self.regions, self.words, strict=True) if number[pair[1]] >= self.min_count]
        if not kept:
            return {}
        x, y = (numbered(values) for values in zip(*kept, strict=True))
        information, generator = mutual_information(x, y), torch.Generator().manual_seed(0)
        chance = torch.tensor(
            [
                mutual_information(x[torch.randperm(len(x), generator=generator)], y).plug_in
                for _ in range(self.permutations)
            ],
            dtype=torch.double,
        )
        low, high = (chance - chance.mean()).quantile(torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
        return {
            "information": information.plug_in - chance.mean().item(),
            "information_low": low,
            "information_high": high,
            "information_plug_in": information.plug_in,
            "information_miller_madow": information.miller_madow,
        }


def numbered(values: Sequence[Any]) -> Int[Tensor, "N"]:
    """Number the values in the order in which they first occur."""
    numbers: dict[Any, int] = {}
    return torch.tensor([numbers.setdefault(value, len(numbers)) for value in values])


class Gap(NamedTuple):
    """The distance, at one word, between one pass of soft attention and passes that see one region each."""

    nwgm: float
    """KL(NWGM, one pass), in nats."""
    expectation: float
    """KL(E[p], one pass), in nats."""
    log_prob: float
    """log E[p] - log p of the word that was said."""


class ExpectationGap(Evaluator):
    """The gap between soft attention, which sees the expected context once, and the expectation that it approximates.

    A model that sees one region, sampled by the map, says a word with the expected probability E[p(y)] = sum_i alpha_i
    p(y | region i), which takes L passes. Between them lies the normalised weighted geometric mean (Baldi and Sadowski
    2014; Xu et al. 2015, section 4.2), NWGM[p(y = k)] = exp(E[n_k]) / sum_j exp(E[n_j]) of the logits n, which equals
    the one pass where logits are linear in the context.

    Earlier words and the state are those of soft attention. It applies to captioners with `seeing_each`, is measured in
    `eval`, and takes L rows of the captioner for each word.
    """

    def __init__(self) -> None:
        self.gaps: list[Gap] = []

    @torch.no_grad()
    def probe(
        self,
        model: Captioner,
        regions: Float[Tensor, "B L D"],
        words: Int[Tensor, "B 1 T"],
        described: Sequence[DecodedCaption],
    ) -> list[Gap]:
        """Return the gaps of all words of a batch, END included. Images are processed one by one, since L rows each
        have a vocabulary."""
        if model.seeing_each() is None:
            return []
        return [gap for image in range(len(regions)) for gap in _gaps(model, regions[image, None], words[image, 0])]

    def update(self, batch: Any, results: Results) -> None:
        self.gaps += results.probed or ()

    def compute(self) -> dict[str, float]:
        """Return means over words in nats: nwgm_gap, expectation_gap and expectation_log_prob, the fields of `Gap`;
        empty for a captioner that does not mix regions."""
        if not self.gaps:
            return {}
        nwgm, expectation, log_prob = (sum(gaps) / len(self.gaps) for gaps in zip(*self.gaps, strict=True))
        return {"nwgm_gap": nwgm, "expectation_gap": expectation, "expectation_log_prob": log_prob}


def _gaps(model: Captioner, regions: Float[Tensor, "1 L D"], words: Int[Tensor, "T"]) -> list[Gap]:
    """Return the gaps of the words of one caption."""
    gaps: list[Gap] = []
    memory, state = model.start(regions, 1)
    before = torch.zeros_like(words[None, :1])
    for word in words[words != 0]:
        logits, after, attention = model.step(before, state, memory)
        if attention is None or attention.region is not None:  # hard attention saw one region: nothing was approximated
            return []
        with model.seeing_each() or nullcontext():
            rows = regions.shape[1]
            expected, *_ = model.step(before.expand(-1, rows).contiguous(), _repeated(state, rows), memory)
        gaps.append(gap(logits[0, 0], expected[0], attention.alpha[0, 0], int(word)))
        before, state = word.view(1, 1), after
    return gaps


def gap(logits: Float[Tensor, "V"], by_region: Float[Tensor, "L V"], alpha: Float[Tensor, "L"], word: int) -> Gap:
    """Compute the gap of one word from its logits in one pass and at each region, in float64."""
    logits, by_region, alpha = (tensor.double() for tensor in (logits, by_region, alpha))
    weights = (alpha / alpha.sum())[:, None]
    log_prob = logits.log_softmax(dim=0)
    nwgm = (weights * by_region).sum(dim=0).log_softmax(dim=0)
    expected = (by_region.log_softmax(dim=1) + weights.log()).logsumexp(dim=0)
    divergences = ((log_p.exp() * (log_p - log_prob)).sum() for log_p in (nwgm, expected))
    return Gap(*map(float, (*divergences, expected[word] - log_prob[word])))


def _repeated(state: Nested, rows: int) -> Nested:
    """Repeat the state of one row for several rows."""
    return map_tensors(lambda tensor: tensor.repeat_interleave(rows, dim=1), state)


def answer_entropy(log_prob: Float[Tensor, "B R T N"]) -> Float[Tensor, "B T"]:
    """Compute the entropy of the answer after each glimpse, by the mean probabilities of all copies."""
    return torch.special.entr(log_prob.double().exp().mean(dim=1)).sum(dim=-1)


def cell_parts(updates: Sequence[CellUpdate]) -> Float[Tensor, "states *rows H"]:
    """Split the last cell state c_T of an LSTM into the remains of c_0 and of the update of each step, (prod_{s>t} f_s)
    i_t g_t with the gates of each step. They sum to c_T."""
    parts = [updates[0].before, *(update.written for update in updates)]
    kept = torch.ones_like(parts[0])
    left = [parts[-1]]
    for update, remaining in zip(reversed(updates), reversed(parts[:-1]), strict=True):
        kept = kept * update.forget
        left.append(kept * remaining)
    return torch.stack(left[::-1])


def cell_shares(updates: Sequence[CellUpdate]) -> Float[Tensor, "states *rows"]:
    """Return the share of c_0 and of each step in the last cell state: the projections of `cell_parts`, (part . c_T) /
    |c_T|^2. They sum to 1; a part that the others outweigh is negative."""
    parts = cell_parts(updates).double()
    last = parts.sum(dim=0)
    return (parts * last).sum(dim=-1) / last.square().sum(dim=-1).clamp(min=torch.finfo(torch.double).tiny)


def shares_of_glimpses(updates: Sequence[CellUpdate], number: int) -> Float[Tensor, "states"] | None:
    """Return `cell_shares` of the LSTM behind the answers after `number` glimpses (the first LSTM of a step), averaged
    over copies and summed over images. None if no step of an LSTM was recorded."""
    if not updates:
        return None
    shares = cell_shares(updates[:: len(updates) // number])  # (T+1, B) or (T+1, B, R)
    return shares.flatten(2).mean(dim=2).sum(dim=1) if shares.dim() > 2 else shares.sum(dim=1)

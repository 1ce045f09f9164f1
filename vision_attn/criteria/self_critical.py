"""Self-critical sequence training: REINFORCE of sampled captions, with CIDEr-D and BLEU as their reward."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from hashlib import blake2b
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.reinforce import LeaveOneOut, Reinforce
from vision_attn.contracts import PAD, Captioner, Choice, Criterion
from vision_attn.decode import greedy, sample
from vision_attn.decode.replay import has_graphs
from vision_attn.layers.padding import rounded
from vision_attn.metrics.cider import CiderD, ReferenceTable, padded, word_ids
from vision_attn.metrics.sentence_bleu import sentence_bleu
from vision_attn.system.checks import check_range
from vision_attn.system.console import progress
from vision_attn.system.errors import UserError
from vision_attn.task import Source


class SampledCaptions(NamedTuple):
    """Sampled captions of each image and its references, as word ids padded with PAD."""

    words: Int[Tensor, "B R T"]
    """The samples; with a greedy baseline, followed by the greedy caption."""
    references: Int[Tensor, "B M S"]


class SelfCritical(Criterion):
    """-E[reward of a caption sampled from the captioner], trained by REINFORCE. The reward is CIDEr-D plus
    `bleu_weight` times BLEU-4, and the baseline that of other captions of the image (Rennie et al. 2017; Luo 2020).

    num_samples: captions sampled for each image.
    baseline: "leave-one-out", the mean reward of the other samples of the image (Luo 2020), or "greedy", the reward of
        the greedy caption (Rennie et al. 2017), which must be decoded as well.
    max_words: samples are cut after this number of words; a cut sample has no END, and is scored without it.
    temperature: divides the logits of the captioner from which the run starts, once, before training.
    reward_weight: the factor of this loss, for use together with other criteria.
    bleu_weight: the weight of BLEU-4, from 0 to 1 (`metrics.sentence_bleu`), beside CIDEr-D, from 0 to 10. Rare
        n-grams weigh most in CIDEr-D; in BLEU all weigh the same.
    entropy_weight: the weight of the entropy of a caption's distribution, in nats, that is added to the reward.

    CIDEr-D is 10 times a similarity, as in `pycocoevalcap`, and counts END (see `metrics.cider.CiderD`). Document
    frequencies are counted on the training captions and stored in checkpoints. A run cannot be resumed with other
    captions or another vocabulary.

    A captioner trained by likelihood has a high entropy, since it covers all captions that people write. Its samples
    are then far worse than its greedy captions, and training spends its first epochs on the difference. A temperature
    below 1 saves these epochs: greedy captions stay as they are, and samples come close to them.

    Samples come from the captioner in test mode: without dropout, and with the expectation over regions. They may hold
    the unknown word, which matches no word of a reference and therefore gets rarer. Only PAD is barred, and the
    log-probability of a sample is that of the distribution without it (`Captioner.bars_pad`).

    Logs `reward`, its mean over samples, and `reward_std`, its standard deviation within an image, averaged over
    images: the estimator learns from these differences alone.
    """

    samples = True
    highest_rate = 5e-4
    counted_on: Tensor

    def __init__(
        self,
        model: Captioner,
        *,
        num_samples: int = 5,
        baseline: Literal["leave-one-out", "greedy"] = "leave-one-out",
        max_words: int = 30,
        temperature: float = 1.0,
        reward_weight: float = 1.0,
        bleu_weight: float = 0.0,
        entropy_weight: float = 0.0,
    ):
        super().__init__()
        check_range("SelfCritical", 2, 1000, num_samples=num_samples)
        check_range("SelfCritical", 1, 1000, max_words=max_words)
        check_range("SelfCritical", 0.01, 1, temperature=temperature)
        check_range("SelfCritical", 0, 1000, bleu_weight=bleu_weight)
        self.num_samples, self.greedy, self.max_words = num_samples, baseline == "greedy", max_words
        self.temperature, self.bleu_weight, self.entropy_weight = temperature, bleu_weight, entropy_weight
        self.cider = CiderD()
        self.register_buffer("counted_on", torch.zeros((), dtype=torch.long))
        value = Subtracted if self.greedy else partial(LeaveOneOut, num_runs=num_samples)
        self.reinforce = Reinforce(0, baseline=value, reward_weight=reward_weight, entropy_weight=0.0)
        self.coded: dict[str, list[int]] = {}
        self.table: ReferenceTable | None = None
        """On a GPU: the references of the training images."""

    def prepare(self, source: Source) -> None:
        """Count document frequencies on the training captions, or check that those of the checkpoint belong to them."""
        self.vocabulary, self.coded = source.vocabulary, {}
        self.known = {word: index for index, word in enumerate(source.vocabulary.words)}
        mark = fingerprint(source.vocabulary.words, source.references())
        self.table = None
        if not self.cider.is_counted:
            images = progress(source.references(), what="document frequencies", unit="image")
            self.cider.count([self.ids(caption) for caption in captions] for captions in images)
            self.counted_on.fill_(mark)
        elif mark != self.counted_on:
            raise UserError(
                "the document frequencies of CIDEr-D in the checkpoint were counted on other training captions, or "
                "with another vocabulary: restore these, or start a new run (run.start_from can load its weights)"
            )
        if has_graphs(self.counted_on.device):
            images = ((captions, [self.ids(caption) for caption in captions]) for captions in source.references())
            self.table = ReferenceTable(images, self.counted_on.device)

    def restart(self, model: Captioner) -> None:
        if self.temperature < 1:
            model.sharpen(self.temperature)

    def sample(
        self, model: Captioner, regions: Float[Tensor, "B L D"], references: Sequence[Sequence[str]]
    ) -> SampledCaptions:
        with torch.no_grad(), as_at_test(model):
            captions = [sample(model, regions, rows=self.num_samples, max_words=self.max_words).words]
            if self.greedy:
                captions.append(greedy(model, regions, max_words=self.max_words).words)
        length = min(rounded(max(words.shape[2] for words in captions)), self.max_words)
        words = torch.cat([F.pad(words, (0, length - words.shape[2])) for words in captions], dim=1)
        return SampledCaptions(words, self.texts(references, regions.device))

    def learn(
        self, model: Captioner, regions: Float[Tensor, "B L D"], sampled: tuple[Tensor, ...]
    ) -> dict[str, Tensor]:
        words, references = sampled
        with torch.no_grad():
            reward, baseline = self.reward(words, references).float().tensor_split([self.num_samples], dim=1)
            gained, words = reward - baseline if self.greedy else reward, words[:, : self.num_samples]
        # cuDNN differentiates an LSTM only in training mode.
        with as_at_test(model), barring_pad(model), torch.backends.cudnn.flags(enabled=False):
            log_prob = model(regions, words).log_prob
        if self.entropy_weight:
            gained = gained - self.entropy_weight * log_prob.detach().sum(dim=-1)
        nothing = log_prob.new_zeros(*words.shape, 0)
        choice = Choice(log_prob, torch.zeros_like(log_prob), words != PAD, nothing)
        loss = self.reinforce(choice, gained).loss.mean()
        return {"loss": loss, "reward": reward.mean(), "reward_std": reward.std(dim=1).mean()}

    def reward(self, words: Int[Tensor, "B R T"], references: Int[Tensor, "B M S"]) -> Float[Tensor, "B R"]:
        """Return CIDEr-D plus `bleu_weight` times BLEU-4 of each caption, in float64 (float32 on MPS)."""
        reward = self.cider(words, references)
        return reward + self.bleu_weight * sentence_bleu(words, references) if self.bleu_weight else reward

    def texts(self, references: Sequence[Sequence[str]], device: torch.device) -> Int[Tensor, "B M S"]:
        """Return the word ids of references, padded with PAD."""
        ids = self.table.find(references) if self.table and self.table.words.device == device else None
        if ids is not None:
            return ids
        return padded([[self.ids(caption) for caption in captions] for captions in references]).to(device)

    def ids(self, caption: str) -> list[int]:
        """Return the word ids of a reference. Up to `REMEMBERED` references are remembered."""
        if (ids := self.coded.get(caption)) is None:
            ids = word_ids(self.vocabulary.tokens(caption), self.known)
            if len(self.coded) < REMEMBERED:
                self.coded[caption] = ids
        return ids


REMEMBERED = 2**17
"""The largest number of references whose word ids are kept: splitting a caption into words takes longer than scoring
it."""


class Subtracted(nn.Module):
    """A baseline of 0, for rewards from which the baseline has already been subtracted."""

    num_runs = 1

    def __init__(self, state_size: int):
        super().__init__()

    def forward(self, returns: Tensor, terms: Tensor, choice: Choice) -> Tensor:
        return torch.zeros_like(returns)


@contextmanager
def as_at_test(model: Captioner) -> Iterator[None]:
    """Context manager: put the captioner in test mode, without dropout and with the expectation over regions."""
    training = model.training
    model.eval()
    try:
        with model.in_mode("expectation") if "expectation" in model.modes else nullcontext():
            yield
    finally:
        model.train(training)


@contextmanager
def barring_pad(model: Captioner) -> Iterator[None]:
    """Context manager: `model.forward` gives PAD the probability 0, as sampling does (`Captioner.bars_pad`)."""
    before = model.bars_pad, model.with_mean
    model.bars_pad, model.with_mean = True, False  # nothing here needs the mean
    try:
        yield
    finally:
        model.bars_pad, model.with_mean = before


def fingerprint(words: Sequence[str], images: Iterable[Sequence[str]]) -> int:
    """Return a 63-bit checksum of a vocabulary and of the captions of all images, in their order."""
    state = blake2b(digest_size=8)
    for texts in (words, *images):
        for text in texts:
            state.update(text.encode() + b"\n")
        state.update(b"\0")
    return int.from_bytes(state.digest(), "little") >> 1

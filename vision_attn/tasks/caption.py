"""Captioning: trained on the likelihood of captions, judged by the captions that are decoded."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms.functional import to_pil_image

from vision_attn.attention.hard import Hard, Look, entropy
from vision_attn.attention.reinforce import Reinforce, look_variance
from vision_attn.attention.soft import doubly_stochastic
from vision_attn.console import progress, say
from vision_attn.data.captions import CaptionBatch
from vision_attn.data.images import open_square
from vision_attn.data.vocabulary import UNKNOWN
from vision_attn.decode import END, Decoded, beam_search
from vision_attn.metrics import AttentionCorrectness, AttentionMotion, caption_metrics, write_results
from vision_attn.metrics.attention import total_variation
from vision_attn.metrics.variety import same_caption, sameness
from vision_attn.ranges import check_range
from vision_attn.task import Source, Task
from vision_attn.viz.attention import write_sheet
from vision_attn.viz.page import Looked, write_page
from vision_attn.viz.sheet import picture_name


class Described(NamedTuple):
    """A caption, word by word, with where each word looked."""

    text: str
    words: list[str]
    log_prob: list[float]
    """Of each word, in nats."""
    alpha: Float[Tensor, "T Y X"]
    region: Int[Tensor, "T"] | None
    """The one region that each word saw; None where it saw all."""

    @property
    def seen(self) -> Float[Tensor, "T L"]:
        """What each word saw of each region: its weight, or 1 for the one that was seen and 0 for the others."""
        alpha = self.alpha.flatten(1)
        return alpha if self.region is None else F.one_hot(self.region, alpha.shape[1]).to(alpha.dtype)


class Captioning(Task):
    """-log p(caption | image), a mean over captions, plus `penalty` times the doubly stochastic term (eq. 14); where
    `model` draws its looks, plus the loss of `reinforce`, whose reward is log p of each word (eq. 12).

    `encoder` turns images into annotation vectors (or they come from a cache); `model` is given the sizes of the
    vocabulary and of an annotation vector. Captions are decoded by a beam of `beams`, and the one of the highest
    log p / length ** `length_power` is taken. `validate_with`: the metrics computed in training; `evaluate` with a
    folder computes all.
    """

    def __init__(
        self,
        source: Source,
        *,
        encoder: nn.Module,
        model: Callable[[int, int], nn.Module],
        reinforce: Callable[[int], nn.Module] = Reinforce,
        penalty: float = 1.0,
        beams: int = 3,
        max_words: int = 30,
        length_power: float = 0.0,
        validate_with: list[str] = ["BLEU-4", "CIDEr"],  # noqa: B006 (never changed; jsonargparse shows it)
    ):
        super().__init__()
        check_range("Captioning", 1, 1000, beams=beams, max_words=max_words)
        self.vocabulary = source.vocabulary
        self.content_words = getattr(source, "content_words", frozenset())
        self.encoder = encoder
        self.model = model(len(self.vocabulary), encoder.region_size)
        self.reinforce = reinforce(self.model.hidden_size) if self.model.attention.reinforced else None
        self.penalty = penalty
        self.beams, self.max_words, self.length_power = beams, max_words, length_power
        self.validate_with = list(validate_with)

    def initialise(self) -> None:
        if hasattr(self.encoder, "initialise"):
            self.encoder.initialise()

    def compile(self, **options) -> None:
        """Compile the encoder, and of the decoder what it says itself can be."""
        self.encoder.compile(**options)
        self.model.compile(**options)

    def forward(self, images: Tensor, words: Int[Tensor, "B R T"], *_) -> dict[str, Tensor]:
        if self.reinforce is not None:
            words = words.repeat_interleave(self.reinforce.num_runs, dim=1)
        caption = self.model(self.regions(images), words)
        said = words != 0
        nll = -caption.log_prob.sum()
        metrics = {"loss": nll / said[..., 0].numel(), "nll": (nll / said.sum()).detach()}
        if self.penalty and caption.alpha is not None:
            penalty = doubly_stochastic(caption.alpha).mean()
            metrics["loss"] = metrics["loss"] + self.penalty * penalty
            metrics["penalty"] = penalty.detach()
        if self.reinforce is not None and caption.choice is not None:
            estimate = self.reinforce(caption.choice, caption.log_prob)
            metrics["loss"] = metrics["loss"] + estimate.loss.mean()
            metrics["look_variance"] = look_variance(estimate.advantage, caption.alpha.detach(), caption.choice)
        return metrics | (self._maps(caption.alpha.detach(), said) if caption.alpha is not None else {})

    def _maps(self, alpha: Float[Tensor, "B R T L"], said: Bool[Tensor, "B R T"]) -> dict[str, Tensor]:
        """Of the maps of all words: how sharp they are, and how far they move."""
        number = said.sum()
        moved = total_variation(alpha) * said[..., 1:]
        return {
            "entropy": entropy(alpha).sum() / number,
            "at_mode": alpha.amax(dim=-1).sum() / number,
            "movement": moved.sum() / said[..., 1:].sum().clamp(min=1),
        }

    def regions(self, images: Tensor) -> Float[Tensor, "B L D"]:
        """Annotation vectors: cached ones as they are, those of uint8 images from the encoder."""
        return self.encoder(images) if images.dtype == torch.uint8 else images.float()

    @torch.no_grad()
    def describe(self, images: Tensor) -> list[Described]:
        """Captions of uint8 images (B, 3, S, S), or of cached annotation vectors (B, L, D)."""
        return self._described(self._decode(self.regions(images)))

    @torch.no_grad()
    def evaluate(self, batches: Iterable[CaptionBatch], folder: Path | None = None) -> dict[str, float]:
        """Metrics of decoded captions, the mean negative log-likelihood of the references in nats per word, and, where
        the boxes of things are known, whether attention lies in them. A metric that failed is NaN, and said why."""
        device = next(self.parameters()).device
        candidates, references = {}, {}
        correctness, motion = AttentionCorrectness(self.encoder.grid), AttentionMotion()
        looks = {look: AttentionCorrectness(self.encoder.grid) for look in self._looks(folder)}
        variance: list[float] = []
        log_prob, num_words = 0.0, 0
        for batch in batches:
            regions, words = self.regions(batch.images.to(device)), batch.words.to(device)
            log_prob += self.model(regions, words).log_prob.sum()
            num_words += int((batch.words != 0).sum())
            described = self._described(self._decode(regions))
            for key, caption, truth, boxes in zip(batch.ids, described, batch.references, batch.boxes, strict=True):
                candidates[key], references[key] = caption.text, truth
                motion.update(caption.words, caption.alpha.flatten(1), self.content_words)
                if boxes is not None:
                    correctness.update(caption.words, caption.alpha.flatten(1), boxes, content=self.content_words)
            if folder is not None and self.reinforce is not None:
                variance.append(self._look_variance(regions, words))
            for look, held in looks.items():
                with self.model.attention.looking(look):
                    described = self._described(self._decode(regions))
                for caption, boxes in zip(described, batch.boxes, strict=True):
                    held.update(caption.words, caption.seen, boxes or {}, content=self.content_words)
        if not candidates:
            raise ValueError("there is no image to evaluate: the split is empty")
        report = caption_metrics(candidates, references, names=None if folder else self.validate_with)
        failures = [f"{metric} could not be computed: {reason}" for metric, reason in report.failed.items()]
        metrics = report.metrics | dict.fromkeys(report.failed, float("nan")) | same_caption(candidates.values())
        for line in (*failures, *((*report.notes, *sameness(metrics)) if folder else ())):
            say(line)
        if folder is not None:
            write_results(folder / "captions.json", candidates)
        metrics["nll"] = float(log_prob) / -num_words
        metrics |= motion.compute()
        if variance:
            metrics["look_variance"] = sum(variance) / len(variance)
        if self.content_words:
            metrics |= correctness.compute()
        for look, held in looks.items():
            found = held.compute()
            metrics |= {f"pointing_{look}": found["pointing"], f"mass_{look}": found["mass"]}
        return metrics

    def _looks(self, folder: Path | None) -> tuple[str, ...]:
        """What a look may be at test time, where all are to be held against the boxes of things."""
        several = folder is not None and self.content_words and isinstance(self.model.attention, Hard)
        return get_args(Look) if several else ()

    def _look_variance(self, regions: Tensor, words: Int[Tensor, "B R T"]) -> float:
        """Of looks drawn as in training, at given words."""
        with self.model.attention.looking("draw"):
            caption = self.model(regions, words.repeat_interleave(self.reinforce.num_runs, dim=1))
        estimate = self.reinforce(caption.choice, caption.log_prob)
        return float(look_variance(estimate.advantage, caption.alpha, caption.choice))

    @torch.no_grad()
    def show(self, batch: CaptionBatch, folder: Path) -> list[Path]:
        """A sheet for each image, and one page of all of them: where each word looked. Hard attention is shown as it
        looks at test time; if that is at everything, at the likeliest region of each map instead."""
        attention = self.model.attention
        expects = isinstance(attention, Hard) and attention.at_test == "expectation"
        with attention.looking("mode") if expects else nullcontext():
            described = self.describe(batch.images.to(next(self.parameters()).device))
        seen = [
            open_square(file) if file else to_pil_image(image)
            for file, image in zip(batch.files, batch.images, strict=True)
        ]
        titles = [file.name if file else f"image {key}" for file, key in zip(batch.files, batch.ids, strict=True)]
        return draw(titles, seen, described, folder, references=batch.references, boxes=batch.boxes)

    def _decode(self, regions: Tensor) -> Decoded:
        return beam_search(
            self.model,
            regions,
            beams=self.beams,
            max_words=self.max_words,
            length_power=self.length_power,
            never=(UNKNOWN,),
        )

    def _described(self, decoded: Decoded) -> list[Described]:
        described = []
        best = [None if part is None else part[:, 0].cpu() for part in decoded]
        regions = [None] * len(decoded.words) if best[3] is None else best[3]
        for ids, log_prob, alpha, region in zip(*best[:3], regions, strict=True):
            num_words = int((ids > END).sum())
            text = self.vocabulary.decode(ids.tolist())
            words = [self.vocabulary.words[index] for index in ids[:num_words].tolist()]
            alpha, region = (
                alpha[:num_words].unflatten(1, self.encoder.grid),
                None if region is None else region[:num_words],
            )
            described.append(Described(text, words, log_prob[:num_words].tolist(), alpha, region))
        return described


def draw(
    titles: Sequence[str],
    pictures: Sequence[Image.Image],
    described: Sequence[Described],
    folder: Path,
    *,
    references: Sequence[Sequence[str]] | None = None,
    boxes: Sequence[Mapping | None] | None = None,
) -> list[Path]:
    """Write `folder/NAME.png` for each picture and `folder/index.html` for all; returns their paths, the page first."""
    nothing = [None] * len(titles)
    looked = [
        Looked(title, picture, caption.words, caption.alpha, truth or (), box, caption.log_prob, caption.region)
        for title, picture, caption, truth, box in zip(
            titles, pictures, described, references or nothing, boxes or nothing, strict=True
        )
    ]
    paths = [write_page(folder / "index.html", looked)]
    for number, item in enumerate(progress(looked, what="pictures", unit="image"), 1):
        name = picture_name(number, item.title)
        options = {"title": item.title, "boxes": item.boxes, "log_prob": item.log_prob, "regions": item.regions}
        paths.append(write_sheet(folder / name, item.picture, item.words, item.alpha, **options))
    return paths

"""Captioning: trained on the likelihood of captions, judged by the captions that are decoded."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.functional import to_pil_image

from vision_attn.attention.soft import doubly_stochastic
from vision_attn.data.captions import CaptionBatch
from vision_attn.data.images import open_square
from vision_attn.data.vocabulary import UNKNOWN
from vision_attn.decode import END, Decoded, beam_search
from vision_attn.metrics import AttentionCorrectness, caption_metrics, write_results
from vision_attn.task import Source, Task
from vision_attn.viz.attention import write_sheet
from vision_attn.viz.page import Looked, write_page


class Described(NamedTuple):
    """A caption, word by word, with where each word looked."""

    text: str
    words: list[str]
    log_prob: list[float]
    """Of each word, in nats."""
    alpha: Float[Tensor, "T Y X"]


class Captioning(Task):
    """-log p(caption | image), a mean over captions, plus `penalty` times the doubly stochastic term (eq. 14).

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
        penalty: float = 1.0,
        beams: int = 3,
        max_words: int = 30,
        length_power: float = 0.0,
        validate_with: list[str] = ["BLEU-4", "CIDEr"],  # noqa: B006 (never changed; jsonargparse shows it)
    ):
        super().__init__()
        self.vocabulary = source.vocabulary
        self.content_words = getattr(source, "content_words", frozenset())
        self.encoder = encoder
        self.model = model(len(self.vocabulary), encoder.region_size)
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
        caption = self.model(self.regions(images), words)
        captions = words.shape[0] * words.shape[1]
        nll = -caption.log_prob.sum()
        metrics = {"loss": nll / captions, "nll": (nll / (words != 0).sum()).detach()}
        if self.penalty and caption.alpha is not None:
            penalty = doubly_stochastic(caption.alpha).mean()
            metrics["loss"] = metrics["loss"] + self.penalty * penalty
            metrics["penalty"] = penalty.detach()
        return metrics

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
        correctness = AttentionCorrectness(self.encoder.grid)
        log_prob, num_words = 0.0, 0
        for batch in batches:
            regions, words = self.regions(batch.images.to(device)), batch.words.to(device)
            log_prob += self.model(regions, words).log_prob.sum()
            num_words += int((batch.words != 0).sum())
            described = self._described(self._decode(regions))
            for key, caption, truth, boxes in zip(batch.ids, described, batch.references, batch.boxes, strict=True):
                candidates[key], references[key] = caption.text, truth
                if boxes is not None:
                    correctness.update(caption.words, caption.alpha.flatten(1), boxes, content=self.content_words)
        if not candidates:
            raise ValueError("there is no image to evaluate: the split is empty")
        report = caption_metrics(candidates, references, names=None if folder else self.validate_with)
        failures = [f"{metric} could not be computed: {reason}" for metric, reason in report.failed.items()]
        for line in (*failures, *(report.notes if folder else ())):
            print(line)
        if folder is not None:
            write_results(folder / "captions.json", candidates)
        metrics = report.metrics | dict.fromkeys(report.failed, float("nan"))
        metrics["nll"] = float(log_prob) / -num_words
        return metrics | (correctness.compute() if self.content_words else {})

    @torch.no_grad()
    def show(self, batch: CaptionBatch, folder: Path) -> list[Path]:
        """A sheet for each image, and one page of all of them: where each word looked."""
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
        for ids, log_prob, alpha in zip(*(part[:, 0].cpu() for part in decoded[:3]), strict=True):
            num_words = int((ids > END).sum())
            text = self.vocabulary.decode(ids.tolist())
            words = [self.vocabulary.words[index] for index in ids[:num_words].tolist()]
            described.append(
                Described(text, words, log_prob[:num_words].tolist(), alpha[:num_words].unflatten(1, self.encoder.grid))
            )
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
        Looked(title, picture, caption.words, caption.alpha, truth or (), box, caption.log_prob)
        for title, picture, caption, truth, box in zip(
            titles, pictures, described, references or nothing, boxes or nothing, strict=True
        )
    ]
    paths = [write_page(folder / "index.html", looked)]
    for number, item in enumerate(looked):
        name = f"{number + 1:02d}-{Path(item.title).stem.replace(' ', '-')}.png"
        options = {"title": item.title, "boxes": item.boxes, "log_prob": item.log_prob}
        paths.append(write_sheet(folder / name, item.picture, item.words, item.alpha, **options))
    return paths

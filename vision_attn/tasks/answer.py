"""The task of answering: questions about stories or images, read in several hops."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor, nn

from vision_attn.contracts import Answerer, Answers, Encoder
from vision_attn.data.stories.question import QuestionBatch
from vision_attn.geometry.extents import centres
from vision_attn.layers.padding import real_regions
from vision_attn.metrics.errors import wilson
from vision_attn.system.errors import UserError
from vision_attn.system.files import replacing
from vision_attn.task import Source, Task
from vision_attn.viz.memory_hops import AnsweredImage, AnsweredStory, write_image_hops, write_story_hops


class Judged(NamedTuple):
    """The answers to a batch, compared with the right ones."""

    wrong: Bool[Tensor, "B"]
    nll: Float[Tensor, "B"]
    hits: Float[Tensor, "B K N"]
    """Whether the largest weight of a hop is on the n-th supporting fact, from which the answer follows; see
    `on_largest`."""
    on_support: Float[Tensor, "B K"]
    """Whether the largest weight of a hop is on any supporting fact."""
    known: Bool[Tensor, "B"]
    """Whether the supporting facts of the question are known."""
    kinds: tuple[str, ...]


def on_largest(
    alpha: Float[Tensor, "B K L"], real: Bool[Tensor, "B L"], facts: Bool[Tensor, "B N L"]
) -> Float[Tensor, "B K N"]:
    """Return 1 if the largest weight of a hop is on a fact of a set, else 0. If several facts have the largest weight,
    return the share of them that is in the set.

    The share is the expected score of a random choice among equal weights, so a uniform map scores at chance (as in
    `metrics.attention.AttentionCorrectness`). Padding does not count: the scores of the linear start may all be
    negative, and then the 0 of padding would be the largest.

    real: True at facts, False at padding.
    facts: N sets of facts.
    """
    alpha = alpha.masked_fill(~real[:, None], -torch.inf)
    largest = (alpha == alpha.amax(dim=-1, keepdim=True)) & real[:, None]
    shares = largest.double() / largest.sum(dim=-1, keepdim=True).clamp(min=1)
    return shares @ facts.double().mT


class Answering(Task):
    """Trains an answerer by the cross-entropy of its answers, with or without an encoder.

    The metric `error` is in percent. `hops_on_support` is the share of hops whose largest weight is on a fact from
    which the answer follows: a sentence, or a region whose centre lies in the box of an object. Padding never has the
    largest weight, and equal weights count by their share (see `on_largest`).

    model: constructed with the number of words and the size of a fact; see `Answerer`.
    encoder: images -> annotation vectors, which are the facts; None where facts are the sentences of a story.
    """

    kind, unit, verb = "model that answers questions", "question", "answer"
    own = ("model.linear", "model.lowest", "model.since_lowest")
    model: Answerer
    encoder: Encoder | None

    def __init__(self, source: Source, *, model: Callable[[int, int], Answerer], encoder: Encoder | None = None):
        super().__init__()
        self.vocabulary, self.encoder = source.vocabulary, encoder
        words = len(self.vocabulary)
        self.model = model(words, encoder.region_size if encoder else words)

    uncapturable = ""

    @property
    def resolution(self) -> int | None:
        return self.encoder.resolution if self.encoder else None

    def rates(self) -> list[tuple[nn.Module, float]]:
        return [(self.encoder, self.encoder.rate)] if self.encoder else []

    def initialise(self) -> None:
        if self.encoder:
            self.encoder.initialise()

    def validated(self, metrics: Mapping[str, float]) -> bool:
        return self.model.validated(metrics["nll"])

    def captured_batch(self, batch: QuestionBatch) -> QuestionBatch:
        return batch._replace(support=None, boxes=None, questions=(), ids=())

    def forward(
        self, facts: Tensor, words: Int[Tensor, "B J"], answers: Int[Tensor, "B"], *_: Any
    ) -> dict[str, Tensor]:
        log_prob = self.answered(facts, words).log_prob
        loss = -log_prob.gather(1, answers[:, None]).mean()
        return {"loss": loss, "error": 100 * (log_prob.argmax(dim=1) != answers).float().mean()}

    def answered(self, facts: Tensor, words: Int[Tensor, "B J"]) -> Answers:
        """Answer questions about stories (B, L, W) or uint8 images (B, 3, S, S)."""
        return self.model(self._encoded(facts), words)

    def _encoded(self, facts: Tensor) -> Int[Tensor, "B L W"] | Float[Tensor, "B L D"]:
        return self.encoder(facts) if self.encoder else facts

    @torch.no_grad()
    def predict(self, batch: QuestionBatch, *, full: bool = False) -> Judged:
        device = next(self.parameters()).device
        facts, words, answers = (field.to(device) for field in batch[:3])
        encoded = self._encoded(facts)
        log_prob, alpha = self.model(encoded, words)
        support = self._support(batch).to(device)
        hits = on_largest(alpha, real_regions(encoded), torch.cat([support, support.any(dim=1, keepdim=True)], dim=1))
        return Judged(
            log_prob.argmax(dim=1) != answers,
            -log_prob.gather(1, answers[:, None]).squeeze(1),
            hits[..., :-1],
            hits[..., -1],
            support.flatten(1).any(dim=1),
            tuple(question.kind for question in batch.questions),
        )

    def _support(self, batch: QuestionBatch) -> Bool[Tensor, "B N L"]:
        """Return the supporting facts: sentences, or regions whose centres lie in the boxes of objects."""
        if batch.boxes is None or self.encoder is None:
            assert batch.support is not None
            return batch.support
        middle = centres(*self.encoder.grid, self.encoder.extent()).to(batch.boxes)
        corners = batch.boxes[:, :, None].unflatten(-1, (2, 2))
        return ((middle >= corners[..., 0, :]) & (middle <= corners[..., 1, :])).all(dim=-1)

    @torch.no_grad()
    def judge(self, predictions: Iterable[Judged], folder: Path | None = None) -> dict[str, float]:
        """Compute the error in percent with its 95% interval, also for each kind of question if there are several; nll;
        and, where supporting facts are known, for each hop the share of questions in which its largest weight is on one
        of them. A model without the softmax of its hops also has the metric `linear`, 1.

        With a folder, write hops.json: for each hop, the share of questions in which its largest weight is on the
        first, the second, .. supporting fact, in the order of the reasoning.
        """
        judged = list(predictions)
        if not judged:
            raise UserError("there are no questions to evaluate: the split is empty")
        wrong, nll, known = (
            torch.cat([getattr(batch, name) for batch in judged]) for name in ("wrong", "nll", "known")
        )
        kinds = [kind for batch in judged for kind in batch.kinds]
        low, high = wilson(int(wrong.sum()), len(wrong))
        metrics = {"error": 100 * float(wrong.double().mean()), "error_low": 100 * low, "error_high": 100 * high}
        metrics["nll"] = float(nll.mean())
        if len(names := list(dict.fromkeys(kinds))) > 1:
            for name in names:
                these = torch.tensor([kind == name for kind in kinds], device=wrong.device)
                metrics[f"error_{name}"] = 100 * float(wrong[these].double().mean())
        if self.model.scored:
            metrics["linear"] = 1.0
        if known.any():
            hits, on_any = (
                torch.cat([getattr(batch, name) for batch in judged])[known] for name in ("hits", "on_support")
            )
            on_support = on_any.mean(dim=0)
            metrics["hops_on_support"] = float(on_support.mean())
            metrics |= {f"hop_{hop}_on_support": value for hop, value in enumerate(on_support.tolist(), start=1)}
            if folder is not None:
                with replacing(folder / "hops.json") as path:
                    path.write_text(json.dumps({"share": hits.mean(dim=0).tolist()}) + "\n", encoding="utf-8")
        return metrics

    @torch.no_grad()
    def wrong(self, batch: QuestionBatch) -> Bool[Tensor, "B"]:
        return self.answered(batch.facts, batch.words).log_prob.argmax(dim=1) != batch.answers

    @torch.no_grad()
    def show(self, batch: QuestionBatch, folder: Path) -> list[Path]:
        """Write a page with the reading of each hop: sentences with their weights, or images with their maps."""
        log_prob, alpha = self.answered(batch.facts, batch.words)
        said = [self.vocabulary.words[number] for number in log_prob.argmax(dim=1).tolist()]
        answers = zip(batch.questions, said, log_prob.amax(dim=1).exp().tolist(), alpha.cpu(), strict=True)
        if not self.encoder:
            stories = [
                AnsweredStory(question.text, question.facts, question.support, question.answer, *answer)
                for question, *answer in answers
            ]
            return [write_story_hops(folder / "index.html", stories, scored=self.model.scored)]
        pictures = [Image.fromarray(image.permute(1, 2, 0).cpu().numpy()) for image in batch.facts]
        assert batch.boxes is not None
        grid, extent = self.encoder.grid, self.encoder.extent()
        images = [
            AnsweredImage(
                question.text, question.answer, word, probability, maps.unflatten(1, grid), picture, boxes, extent
            )
            for (question, word, probability, maps), picture, boxes in zip(
                answers, pictures, batch.boxes.tolist(), strict=True
            )
        ]
        return write_image_hops(folder, images, scored=self.model.scored)

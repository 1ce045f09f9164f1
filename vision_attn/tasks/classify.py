"""Classification: trained on answers and on the looks that lead to them, judged by error, pixels and operations."""

import json
from collections.abc import Callable, Iterable
from math import sqrt
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vision_attn.attention.reinforce import Reinforce
from vision_attn.console import progress
from vision_attn.contracts import Classifier, Glance, Glimpses, Reads
from vision_attn.files import replacing
from vision_attn.metrics.cost import multiply_adds
from vision_attn.ranges import check_range
from vision_attn.task import Batch, Source, Task
from vision_attn.viz.canvases import Rectangles
from vision_attn.viz.glimpses import Glimpsed, write_film, write_gallery, write_glimpses
from vision_attn.viz.reads import write_reads, write_reads_film

Testing = Literal["mean", "draw", "copies"]


class Classification(Task):
    """The hybrid loss of RAM (Mnih et al., 2014): -log p(label) after the last glimpse, and REINFORCE for the looks,
    whose reward is 1 for a right answer.

    `model` is given the shape (C, Y, X) of an image and the number of classes. `copies`: Monte Carlo copies of each
    image in training, each as many as `reinforce` compares with one another.

    `early_weight`: of -log p(label) after the glimpses before the last, their mean. Differs from the paper, where it is
    0. `reward`: for the answer after the last glimpse, as in the paper, or after each, which then counts for the looks
    before it. `reward_by`: 1 if the likeliest answer is right, as in the paper, or the probability of the right one:
    the mean of that 1 over answers that are drawn, which tells good looks from bad ones long before answers change.

    `at_test`: what `error` is that of: an answer from looks at the policy's means, from looks that are drawn, or the
    mean answer of `test_copies` copies with looks that are drawn. Evaluation with a folder gives all three.
    """

    own = ("reinforce.", "model.policy.batches")

    def __init__(
        self,
        source: Source,
        *,
        model: Callable[[tuple[int, int, int], int], Classifier],
        reinforce: Callable[[int], nn.Module] = Reinforce,
        copies: int = 1,
        early_weight: float = 0.0,
        reward: Literal["last", "each"] = "last",
        reward_by: Literal["answer", "probability"] = "answer",
        at_test: Testing = "mean",
        test_copies: int = 10,
    ):
        super().__init__()
        check_range("Classification", 1, 1000, copies=copies, test_copies=test_copies)
        if early_weight < 0:
            raise ValueError(f"Classification: early_weight is {early_weight}, but must not be negative")
        self.image_shape = source.image_shape
        self.model = model(source.image_shape, source.num_classes)
        if at_test != "mean" and not self.model.stochastic:
            raise ValueError(f"Classification: at_test is {at_test}, but {type(self.model).__name__} draws no looks")
        self.reinforce = reinforce(self.model.state_size) if self.model.reinforced else None
        self.rows = copies * (self.reinforce.num_runs if self.reinforce else 1)
        self.early_weight, self.reward, self.reward_by = early_weight, reward, reward_by
        self.at_test, self.test_copies = at_test, test_copies

    def restart(self) -> None:
        """Let sigma fall anew."""
        self.model.restart()

    def forward(
        self, images: Float[Tensor, "B C Y X"], labels: Int[Tensor, "B"], boxes: Float[Tensor, "B 4"] | None = None
    ) -> dict[str, Tensor]:
        glance = self.model(images, self.rows)
        label = labels[:, None, None, None].expand(*glance.log_prob.shape[:3], 1)
        log_prob = glance.log_prob.gather(-1, label).squeeze(-1)
        last = -log_prob[..., -1].mean()
        right = log_prob.detach() >= glance.log_prob.detach().amax(dim=-1)
        metrics = {"loss": last, "nll": last.detach(), "error": 100 * (1 - right[..., -1].float().mean())}
        if self.early_weight and log_prob.shape[-1] > 1:
            metrics["loss"] = metrics["loss"] - self.early_weight * log_prob[..., :-1].mean()
        if glance.choice is not None:
            worth = right.float() if self.reward_by == "answer" else log_prob.detach().exp()
            estimate = self.reinforce(glance.choice, self._rewards(worth, glance))
            metrics["loss"] = metrics["loss"] + estimate.loss.mean()
            metrics["advantage"] = estimate.advantage.square().mean()
        return metrics

    def _rewards(
        self, worth: Float[Tensor, "B R T"], glance: Glance
    ) -> Float[Tensor, "B R"] | Float[Tensor, "B R draws"]:
        """One per row, or one per draw: that of the glimpse which the draw placed."""
        if self.reward == "last":
            return worth[..., -1]
        return worth[..., -glance.choice.log_prob.shape[-1] :]

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch], folder: Path | None = None) -> dict[str, float]:
        """Error in percent with its 95% interval, the numbers taken from an image, the multiply-adds of an answer; and,
        where the model looks here and there, the share of last looks of right answers that fall on the digit. With a
        folder also the error of every way of testing, where looks are drawn; and the error after each glimpse, in
        glimpses.json."""
        every = folder is not None and self.model.stochastic
        ways: tuple[Testing, ...] = ("mean", "draw", "copies") if every else (self.at_test,)
        num_images, wrong, wrong_after, on_digit, right_rows = 0, dict.fromkeys(ways, 0), 0, 0, 0
        for batch in batches:
            if not num_images:
                cost = self._cost(batch.images[:1])
            num_images += len(batch.labels)
            for way in ways:
                glance = self.model(batch.images, **self._look(way))
                after = answers(glance) != batch.labels[:, None]
                wrong[way] += after[:, -1].sum()
                if way == self.at_test and glance.locations is not None:
                    wrong_after += after.sum(dim=0)
                    right = glance.log_prob[:, :, -1].argmax(dim=-1) == batch.labels[:, None]
                    on_digit += (right & within(glance.locations[:, :, -1], batch.boxes)).sum()
                    right_rows += right.sum()
        if not num_images:
            raise ValueError("there is no image to evaluate: the split is empty")
        count = int(wrong[self.at_test])
        low, high = wilson(count, num_images)
        metrics = {"error": 100 * count / num_images, "error_low": 100 * low, "error_high": 100 * high} | cost
        if glance.locations is None:
            return metrics
        if folder is not None:
            if self.model.stochastic:
                metrics |= {f"error_{way}": 100 * int(wrong[way]) / num_images for way in ways}
            with replacing(folder / "glimpses.json") as path:
                errors = [100 * int(number) / num_images for number in wrong_after]
                path.write_text(json.dumps({"error": errors}) + "\n", encoding="utf-8")
        return metrics | {"last_look_on_digit": int(on_digit) / max(1, int(right_rows))}

    @torch.no_grad()
    def show(self, batch: Batch, folder: Path) -> list[Path]:
        """Where a batch was looked at and what was seen there: of a retina's looks, a picture and a film for each image
        and one picture of all; of a filterbank's, a picture and a film of all. Nothing of a model that sees all at
        once. Of copies, the first is shown."""
        glance = self.model(batch.images, **self._look(self.at_test))
        view = self.model.view(batch.images, glance)
        if isinstance(view, Reads):
            return self._show_reads(batch, glance, view, folder)
        return self._show_glimpses(batch, glance, view, folder) if view is not None else []

    def _show_glimpses(self, batch: Batch, glance: Glance, view: Glimpses, folder: Path) -> list[Path]:
        probabilities = glance.log_prob[:, 0].exp()
        said = probabilities[:, -1].argmax(dim=-1).tolist()
        parts = (batch.images, glance.locations[:, 0], view.patches, batch.labels.tolist(), said, probabilities)
        items = [Glimpsed(*part) for part in zip(*parts, strict=True)]
        paths = [write_gallery(folder / "gallery.png", items)]
        for number, item in enumerate(progress(items, what="pictures", unit="image"), start=1):
            looked = item._asdict()
            paths.append(write_glimpses(folder / f"{number:02d}.png", **looked))
            paths.append(write_film(folder / f"{number:02d}.gif", **looked))
        return paths

    def _show_reads(self, batch: Batch, glance: Glance, view: Reads, folder: Path) -> list[Path]:
        reads = Rectangles(view.boxes, view.sigma)
        said = (batch.labels.tolist(), glance.log_prob[:, 0].exp())
        return [
            write_reads(folder / "reads.png", batch.images, reads, view.patches, *said),
            write_reads_film(folder / "reads.gif", batch.images, reads, *said),
        ]

    def _look(self, way: Testing) -> dict[str, int | str]:
        """How the model is called."""
        return {"rows": self.test_copies} if way == "copies" else {"look": way}

    def _cost(self, images: Float[Tensor, "1 C Y X"]) -> dict[str, float]:
        """Of one answer, as `error` tells of them."""
        options = self._look(self.at_test)
        rows = options.get("rows", 1) if self.model.reinforced else 1
        return {
            "pixels": float(rows * self.model.pixels),
            "multiply_adds": float(multiply_adds(self.model, images, **options)),
        }


def answers(glance: Glance) -> Int[Tensor, "B T"]:
    """The class that is likeliest after each glimpse, in the mean of all copies."""
    return glance.log_prob.logsumexp(dim=1).argmax(dim=-1)


def within(locations: Float[Tensor, "B R 2"], boxes: Float[Tensor, "B 4"]) -> Bool[Tensor, "B R"]:
    """Which locations lie in the box of their image."""
    corners = boxes[:, None].unflatten(-1, (2, 2))
    return ((locations >= corners[..., 0, :]) & (locations <= corners[..., 1, :])).all(dim=-1)


def wilson(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """The 95% interval of a share of which `count` out of `total` were seen (Wilson 1927)."""
    share, slack = count / total, z * z / total
    middle, half = share + slack / 2, z * sqrt(share * (1 - share) / total + slack / (4 * total))
    return (middle - half) / (1 + slack), (middle + half) / (1 + slack)

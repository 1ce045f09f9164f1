"""Generation: a model that draws images, trained on the variational bound of their likelihood and judged by it."""

import json
from collections.abc import Callable, Iterable
from math import log
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vision_attn.attention.filterbank import Filterbank, Window
from vision_attn.data.binary import fixed, stochastic
from vision_attn.files import replacing
from vision_attn.ranges import check_range
from vision_attn.task import Batch, Source, Task
from vision_attn.viz.canvases import Rectangles, write_film, write_strips


class Generation(Task):
    """The bound -log p(x) <= -log p(x | c_T) + sum_t KL(q(z_t) || p(z_t)), in nats, a mean over images.

    `model` is given the shape (C, Y, X) of an image. `binarisation` of training images: "stochastic", anew each time an
    image comes, or "fixed", always alike. Evaluation is always of the fixed one, which is not that of the files of
    Salakhutdinov and Murray (2008), but drawn as they were.

    `importance_samples`, `importance_images`: for the estimate of log p(x) in evaluation with a folder, how many times
    an image is drawn, and how many images are, the first ones (None: all).
    """

    def __init__(
        self,
        source: Source,
        *,
        model: Callable[[tuple[int, int, int]], nn.Module],
        binarisation: Literal["stochastic", "fixed"] = "stochastic",
        importance_samples: int = 100,
        importance_images: int | None = 1000,
    ):
        super().__init__()
        check_range("Generation", 1, 100_000, importance_samples=importance_samples)
        if importance_images is not None:
            check_range("Generation", 1, 10**9, importance_images=importance_images)
        self.model = model(source.image_shape)
        self.binarised = stochastic if binarisation == "stochastic" else fixed
        self.importance_samples, self.importance_images = importance_samples, importance_images

    def forward(self, images: Float[Tensor, "B C Y X"], *_) -> dict[str, Tensor]:
        drawing = self.model(self.binarised(images))
        reconstruction, kl = -drawing.log_prob.mean(), drawing.kl.sum(dim=1).mean()
        return {"loss": reconstruction + kl, "reconstruction": reconstruction.detach(), "kl": kl.detach()}

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch], folder: Path | None = None) -> dict[str, float]:
        """The bound and its two parts. With a folder also `nll`, the estimate of -log p(x), beside `nll_bound`, the
        bound of the same images; and the KL of each turn, in turns.json."""
        wanted = 0 if folder is None else self.importance_images
        log_prob, kl, estimates = [], [], []
        for batch in batches:
            images = fixed(batch.images)
            drawing = self.model(images)
            log_prob.append(drawing.log_prob)
            kl.append(drawing.kl)
            few = images[:wanted]
            if len(few):
                estimates.append(self.log_likelihood(few))
                wanted = None if wanted is None else wanted - len(few)
        if not kl:
            raise ValueError("there is no image to evaluate: the split is empty")
        reconstruction, turns = -torch.cat(log_prob).double(), torch.cat(kl).double()
        bound = reconstruction + turns.sum(dim=1)
        metrics = {"bound": bound.mean(), "reconstruction": reconstruction.mean(), "kl": turns.sum(dim=1).mean()}
        if estimates:
            estimate = -torch.cat(estimates).double()
            metrics |= {"nll": estimate.mean(), "nll_bound": bound[: len(estimate)].mean()}
            metrics |= {"nll_images": len(estimate), "nll_samples": self.importance_samples}
        if folder is not None:
            with replacing(folder / "turns.json") as path:
                path.write_text(json.dumps({"kl": turns.mean(dim=0).tolist()}) + "\n", encoding="utf-8")
        return {name: float(value) for name, value in metrics.items()}

    @torch.no_grad()
    def log_likelihood(self, images: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B"]:
        """log 1/k sum_k p(x | z_k) p(z_k) / q(z_k | x), k drawings of each binary image, in nats: in expectation below
        log p(x), above the bound, and the nearer to log p(x) the larger k (Burda et al., 2016, eq. 8)."""
        weights = []
        for _ in range(self.importance_samples):
            drawing = self.model(images)
            weights.append(drawing.log_prob + drawing.log_ratio.sum(dim=1))
        return torch.stack(weights).logsumexp(dim=0) - log(self.importance_samples)

    @torch.no_grad()
    def show(self, batch: Batch, folder: Path) -> list[Path]:
        """As many new images as the batch has, as strips and as a film; and strips of how the batch is drawn again."""
        drawn = self.model.sample(len(batch.images), generator=torch.Generator().manual_seed(0))
        images = fixed(batch.images)
        again = self.model(images)
        new = (pictures(drawn.canvases), rectangles(self.model.write, drawn.writes))
        return [
            write_strips(folder / "samples.png", *new),
            write_film(folder / "samples.gif", *new),
            write_strips(
                folder / "reconstructions.png",
                pictures(again.canvases),
                rectangles(self.model.write, again.writes),
                reads=rectangles(self.model.read, again.reads),
                images=images,
            ),
        ]


def pictures(canvases: tuple[Float[Tensor, "B C Y X"], ...]) -> Float[Tensor, "B T C Y X"]:
    """What the canvas shows after each turn: the probability of each pixel being 1."""
    return torch.stack(canvases, dim=1).sigmoid()


def rectangles(part: nn.Module, windows: tuple[Window | None, ...]) -> Rectangles | None:
    """Where each turn read or wrote, as pictures show it; None where everywhere."""
    if None in windows:
        return None
    bank: Filterbank = part.filterbank
    boxes = torch.cat([bank.boxes(window) for window in windows], dim=1)
    return Rectangles(boxes, torch.cat([window.sigma for window in windows], dim=1))

"""The task of generation: trains a model that draws images, on the variational bound of their likelihood."""

import json
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vision_attn.attention.filterbank import Filterbank
from vision_attn.attention.images import luma
from vision_attn.contracts import Window
from vision_attn.data.binarisation import fixed, stochastic
from vision_attn.data.labelled.labelled_images import LabelledImages
from vision_attn.system.checks import check_range
from vision_attn.system.console import progress
from vision_attn.system.errors import UserError
from vision_attn.system.files import replacing
from vision_attn.task import Batch, Source, Task
from vision_attn.viz.canvases import Rectangles, write_animation, write_strips
from vision_attn.viz.figures.paper import Paper
from vision_attn.viz.index import IndexEntry, write_index

log = logging.getLogger(__name__)

GUIDE = "A rectangle is the grid of filters, its line as thick as their sigma: orange is written, dashed blue is read."


class PredictedDrawings(NamedTuple):
    """The measurements of the model's reconstructions of a batch."""

    log_prob: Float[Tensor, "B"]
    """log p(x | c_T), in nats."""
    kl: Float[Tensor, "B T"]
    images: Float[Tensor, "B C Y X"] | None
    """The binary images, where log p(x) is estimated."""


class Generation(Task):
    """Trains a model such as DRAW on the bound -log p(x) <= -log p(x | c_T) + sum_t KL(q(z_t) || p(z_t)), in nats, a
    mean over images (Gregor et al. 2015, eq. 12: the sum of eq. 9 and eq. 10).

    model: constructed with the shape (C, Y, X) of an image. Photographs (`LabelledImages`) must have one size; they are
        converted to grey (1, Y, X), and their labels are not used.
    binarisation: "stochastic" samples the binary pixels of a training image anew each time, "fixed" only once.
        Evaluation is always fixed. The fixed pixels are not those of Salakhutdinov and Murray (2008), but were sampled
        in the same way.
    importance_samples: the number of samples of each image for the estimate of log p(x) in an evaluation with a folder.
    importance_images: the number of images for this estimate, taken from the start of the split (None: all).
    """

    kind = "generator of images"
    verb = "draw"
    uncapturable = ""
    model: Any
    """`DRAW`, or a module like it."""

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
        shape = shape_drawn(source)
        self.model, self.grey = model(shape), source.image_shape is not None and shape[0] < source.image_shape[0]
        self.binarised = stochastic if binarisation == "stochastic" else fixed
        self.importance_samples, self.importance_images = importance_samples, importance_images

    @property
    def settings(self) -> dict[str, Any]:
        names = ("importance_samples", "importance_images")
        return {"binarisation": self.binarised.__name__} | {name: getattr(self, name) for name in names}

    def prepare(self, source: Source) -> None:
        """Log how photographs are converted."""
        if isinstance(source, LabelledImages):
            _, height, width = source.image_shape
            log.info(
                "photographs are drawn in grey, %d x %d pixels: each pixel is 1 with a probability equal to its "
                "intensity, and 0 otherwise (task.binarisation=%s)", width, height, self.binarised.__name__,
            )  # fmt: skip

    def drawable(self, images: Float[Tensor, "B _ Y X"]) -> Float[Tensor, "B C Y X"]:
        """Convert images from 0 to 1 to the colours that the model draws."""
        return luma(images) if self.grey else images

    def forward(self, images: Float[Tensor, "B _ Y X"], *_) -> dict[str, Tensor]:
        drawing = self.model(self.binarised(self.drawable(images)))
        reconstruction, kl = -drawing.log_prob.mean(), drawing.kl.sum(dim=1).mean()
        return {"loss": reconstruction + kl, "reconstruction": reconstruction.detach(), "kl": kl.detach()}

    @torch.no_grad()
    def predict(self, batch: Batch, *, full: bool = False) -> PredictedDrawings:
        images = fixed(self.drawable(batch.images))
        drawing = self.model(images)
        return PredictedDrawings(drawing.log_prob, drawing.kl, images if full else None)

    @torch.no_grad()
    def judge(self, predictions: Iterable[PredictedDrawings], folder: Path | None = None) -> dict[str, float]:
        """Compute the bound and its two terms. With a folder, also compute `nll`, the estimate of -log p(x),
        `nll_bound`, the bound of the same images, and `bound_low` and `bound_high`, the 95% interval of the bound over
        images; and write the KL of each time step to steps.json."""
        wanted = self.importance_images
        log_prob, kl, estimated = list[Tensor](), list[Tensor](), list[Tensor]()
        for predicted in predictions:
            log_prob.append(predicted.log_prob)
            kl.append(predicted.kl)
            if predicted.images is not None and len(few := predicted.images[:wanted]):
                estimated.append(few.bool().cpu())
                wanted = None if wanted is None else wanted - len(few)
        if not kl:
            raise UserError("there are no images to evaluate: the split is empty")
        reconstruction, kl_per_step = -torch.cat(log_prob).cpu().double(), torch.cat(kl).cpu().double()
        bound = reconstruction + kl_per_step.sum(dim=1)
        metrics: dict[str, Any] = {
            "bound": bound.mean(),
            "reconstruction": reconstruction.mean(),
            "kl": kl_per_step.sum(dim=1).mean(),
        }
        if estimated:
            estimate = -self._estimates(estimated).double()
            metrics |= {"nll": estimate.mean(), "nll_bound": bound[: len(estimate)].mean()}
            metrics |= {"nll_images": len(estimate), "nll_samples": self.importance_samples}
        if folder is not None:
            half = 1.96 * bound.std() / math.sqrt(len(bound)) if len(bound) > 1 else torch.nan
            metrics |= {"bound_low": metrics["bound"] - half, "bound_high": metrics["bound"] + half}
            with replacing(folder / "steps.json") as path:
                path.write_text(json.dumps({"kl": kl_per_step.mean(dim=0).tolist()}) + "\n", encoding="utf-8")
        return {name: float(value) for name, value in metrics.items()}

    def _estimates(self, batches: Sequence[Bool[Tensor, "_ C Y X"]]) -> Float[Tensor, "N"]:
        """Compute `log_likelihood` of binary images, on the device of the model, with random numbers that depend on the
        number of the batch alone. It takes much longer than the bound, so it has a progress bar of its own."""
        place, estimates = next(self.parameters()), []
        bar = progress(what="log p(x)", unit="sample", total=len(batches) * self.importance_samples)
        with bar:
            for seed, images in enumerate(batches):
                with self.seeded(seed):
                    estimates.append(self.log_likelihood(images.to(place).float(), bar.update).cpu())
        return torch.cat(estimates)

    @torch.no_grad()
    def log_likelihood(
        self, images: Float[Tensor, "B C Y X"], sampled: Callable[[], object] = lambda: None
    ) -> Float[Tensor, "B"]:
        """Estimate log p(x) of binary images in nats by importance sampling: log 1/k sum_k p(x | z_k) p(z_k) /
        q(z_k | x) with k reconstructions of each image (Burda et al. 2016, eq. 8).

        Its expectation lies between the bound and log p(x), and approaches log p(x) as k grows.

        sampled: called after each of the k samples.
        """
        weights = []
        for _ in range(self.importance_samples):
            drawing = self.model(images)
            weights.append(drawing.log_prob + drawing.log_ratio.sum(dim=1))
            sampled()
        return torch.stack(weights).logsumexp(dim=0) - math.log(self.importance_samples)

    @torch.no_grad()
    def show(self, batch: Batch, folder: Path) -> list[Path]:
        """Write pictures of how images are drawn: as many new images as the batch has, as strips and as an animation,
        and the reconstructions of the batch as strips. Return their paths, first that of a page with all of them."""
        new = self.model.sample(len(batch.images), generator=torch.Generator().manual_seed(0))
        images = fixed(self.drawable(batch.images))
        reconstructed = self.model(images)
        samples = (pictures(new.canvases), rectangles(self.model.write, new.writes))
        entries = [
            IndexEntry(write_animation(folder / "samples.gif", *samples), "new images, drawn step by step"),
            IndexEntry(write_strips(folder / "samples.png", *samples), "the same, a row for each image"),
        ]
        drawn = write_strips(
            folder / "reconstructions.png",
            pictures(reconstructed.canvases),
            rectangles(self.model.write, reconstructed.writes),
            reads=rectangles(self.model.read, reconstructed.reads),
            images=images,
        )
        entries.append(IndexEntry(drawn, "images on the left, and how they are drawn again"))
        page = write_index(folder / "index.html", entries, title="How images are drawn", guide=GUIDE)
        return [page, *(entry.path for entry in entries)]

    @torch.no_grad()
    def figure(self, batch: Batch, paper: Paper) -> Any:
        """Draw new images, as many as the batch has, step by step."""
        from vision_attn.viz.figures.glimpses import drawings_figure  # imports matplotlib

        new = self.model.sample(len(batch.images), generator=torch.Generator().manual_seed(0))
        return drawings_figure(pictures(new.canvases), rectangles(self.model.write, new.writes), paper)


def shape_drawn(source: Source) -> tuple[int, int, int]:
    """Return the shape (C, Y, X) of the images that a model learns to draw. Raises UserError if images of the source
    differ in size."""
    if isinstance(source, LabelledImages):
        return (1, *source.at_one_size()[1:])
    if source.image_shape is None or 0 in source.image_shape:
        raise UserError(
            f"{type(source).__name__} gives no images of one size, which a generator draws: use MNIST, or photographs "
            "of your own with --data=vision_attn.data.labelled.labelled_images.LabelledImages --data.images=FOLDER"
        )
    return source.image_shape


def pictures(canvases: tuple[Float[Tensor, "B C Y X"], ...]) -> Float[Tensor, "B T C Y X"]:
    """Return the image on the canvas after each time step: the probability of each pixel being 1."""
    return torch.stack(canvases, dim=1).sigmoid()


def rectangles(module: Any, windows: tuple[Window | None, ...]) -> Rectangles | None:
    """Return the rectangle that each time step read or wrote, for pictures; None for a model without attention."""
    placed = [window for window in windows if window is not None]
    if len(placed) < len(windows):
        return None
    filterbank: Filterbank = module.filterbank
    boxes = torch.cat([filterbank.boxes(window) for window in placed], dim=1)
    return Rectangles(boxes, torch.cat([window.sigma for window in placed], dim=1))

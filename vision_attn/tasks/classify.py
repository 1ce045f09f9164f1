"""The task of classification: trains a classifier and its choice of glimpses; evaluates its error and its cost."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vision_attn.attention.images import Images, Sliced, scaled
from vision_attn.attention.reinforce import Reinforce
from vision_attn.contracts import Classifier, ClassifierOutput, Glimpses, Reads, Window
from vision_attn.data.images.lazy import fitted
from vision_attn.layers.lstm import recording_updates
from vision_attn.metrics.errors import Counts, Testing, after_glimpses, areal, confusion, predictions, wilson, within
from vision_attn.metrics.information import answer_entropy, shares_of_glimpses
from vision_attn.system.checks import check_range
from vision_attn.system.console import complain
from vision_attn.system.errors import UserError
from vision_attn.system.files import replacing
from vision_attn.task import Batch, Source, Task
from vision_attn.viz.classified import glimpsed, write_classified
from vision_attn.viz.figures.paper import Paper
from vision_attn.viz.read_windows import ReadTrace


class ClassifiedImage(NamedTuple):
    """A classifier's answer for one image, with the parts of the image that it saw."""

    name: str
    """The most likely class."""
    probabilities: Float[Tensor, "N"]
    """The probabilities of all classes: the mean of all copies."""
    glance: ClassifierOutput
    view: Glimpses | Reads | None


class Classification(Task):
    """Trains a classifier with the hybrid loss of RAM (Mnih et al. 2014): cross-entropy after the last glimpse, plus
    REINFORCE for the locations of glimpses (eq. 2 and eq. 3), which maximises the expected reward of eq. 1.

    model: constructed with the shape (C, Y, X) of an image and the number of classes.
    copies: Monte Carlo copies of each image in training. Each is run as often as the baseline of `reinforce` needs.
    early_weight: weight of the mean cross-entropy after the glimpses before the last. Differs from the paper, where it
        is 0.
    box_weight: weight of the squared distance, in coordinates from -1 to 1, between the locations that the model
        chooses (means of its policy, or centres of windows) and the box of the object; 0 inside the box. Needs a source
        that knows boxes; an image without a known box counts as 0. Differs from the papers, whose models are not told
        where the object is, so their results cannot be compared with these.
    reward: "last" rewards the answer after the last glimpse, as in the paper; "each" rewards the answer after every
        glimpse, and credits that glimpse and the earlier ones.
    reward_by: "answer" is 1 if the most likely class is correct and 0 otherwise, as in the paper. "probability" is the
        probability of the correct class: the expectation of the 0/1 reward if the answer were sampled. It has lower
        variance, and separates good glimpses from bad ones long before answers change.
    at_test: how glimpses are chosen when `error` is measured. "mean": at the means of the policy. "sample": sampled.
        "copies": sampled, and the answers of `test_copies` copies are averaged. Evaluation with a folder reports all
        three.
    """

    kind = "classifier"
    verb = "classify"
    own = ("reinforce.", "model.policy.batches")
    model: Classifier
    reinforce: Any
    """`Reinforce`, or a module like it; None for a model that samples nothing."""

    def __init__(
        self,
        source: Source,
        *,
        model: Callable[[tuple[int, int, int], int], Classifier],
        reinforce: Callable[[int], nn.Module] = Reinforce,
        copies: int = 1,
        early_weight: float = 0.0,
        box_weight: float = 0.0,
        reward: Literal["last", "each"] = "last",
        reward_by: Literal["answer", "probability"] = "answer",
        at_test: Testing = "mean",
        test_copies: int = 10,
    ):
        super().__init__()
        check_range("Classification", 1, 1000, copies=copies, test_copies=test_copies)
        for name, weight in {"early_weight": early_weight, "box_weight": box_weight}.items():
            if weight < 0:
                raise UserError(f"Classification: {name} is {weight}, but must not be negative")
        if source.image_shape is None or not source.num_classes:
            raise UserError(
                f"{type(source).__name__} gives no images with labels, which a classifier needs: for photographs of "
                "your own use --data=vision_attn.data.labelled.labelled_images.LabelledImages"
            )
        self.image_shape, self.class_names = source.image_shape, tuple(source.class_names)
        self.num_classes = source.num_classes
        self.model = model(source.image_shape, source.num_classes)
        if at_test != "mean" and not self.model.stochastic:
            name = type(self.model).__name__
            raise UserError(f"Classification: at_test is {at_test}, but {name} samples no glimpses; set it to mean")
        self.reinforce = reinforce(self.model.state_size) if self.model.reinforced else None
        self.rows = copies * (self.reinforce.num_runs if self.reinforce else 1)
        self.early_weight, self.box_weight = early_weight, box_weight
        self.reward, self.reward_by = reward, reward_by
        self.at_test, self.test_copies = at_test, test_copies
        self._costs: dict[tuple, dict[str, float]] = {}

    @property
    def settings(self) -> dict[str, Any]:
        return {"at_test": self.at_test, "test_copies": self.test_copies} if self.model.stochastic else {}

    @property
    def uncapturable(self) -> str:
        return "its images differ in size" if 0 in self.image_shape else ""

    def prepare(self, source: Source) -> None:
        source.check_labels()

    def restart(self, before: Mapping[str, Any]) -> None:
        """Restart the sigma schedule."""
        self.model.restart()

    def forward(
        self,
        images: Float[Tensor, "B C Y X"] | Images,
        labels: Int[Tensor, "B"],
        boxes: Float[Tensor, "B 4"] | None = None,
    ) -> dict[str, Tensor]:
        glance = self.model(images, self.rows)
        label = labels[:, None, None, None].expand(*glance.log_prob.shape[:3], 1)
        log_prob = glance.log_prob.gather(-1, label).squeeze(-1)
        last = -log_prob[..., -1].mean()
        correct = glance.log_prob.argmax(dim=-1) == label[..., 0]
        metrics = {"loss": last, "nll": last.detach(), "error": 100 * (1 - correct[..., -1].float().mean())}
        if self.early_weight and log_prob.shape[-1] > 1:
            metrics["loss"] = metrics["loss"] - self.early_weight * log_prob[..., :-1].mean()
        if glance.choice is not None:
            reward = correct.float() if self.reward_by == "answer" else log_prob.detach().exp()
            estimate = self.reinforce(glance.choice, self._rewards(reward, glance))
            metrics["loss"] = metrics["loss"] + estimate.loss.mean()
            metrics["advantage"] = estimate.advantage.square().mean()
        if self.box_weight:
            outside = self._outside(glance, boxes)
            metrics["loss"] = metrics["loss"] + self.box_weight * outside
            metrics["outside"] = outside.detach()
        return metrics

    def _outside(self, glance: ClassifierOutput, boxes: Float[Tensor, "B 4"] | None) -> Float[Tensor, ""]:
        """Return the mean squared distance of the chosen locations from the boxes."""
        if boxes is None:
            raise UserError(
                "Classification: box_weight must be 0, because the data set knows no boxes of objects: in a file of "
                "labels, give columns x0,y0,x1,y1, in pixels"
            )
        if glance.choice is None and glance.windows is None:
            name = type(self.model).__name__
            raise UserError(f"Classification: box_weight must be 0, because this {name} chooses no locations")
        chosen = glance.locations if glance.choice is None else glance.choice.mean
        assert chosen is not None
        known = boxes.isfinite().all(dim=-1)
        low, high = boxes.nan_to_num()[:, None, None].unflatten(-1, (2, 2)).unbind(dim=-2)
        distance = (chosen - chosen.clamp(low, high)).square().sum(dim=-1)
        return distance.where(known[:, None, None], 0).mean()

    def _rewards(
        self, reward: Float[Tensor, "B R T"], glance: ClassifierOutput
    ) -> Float[Tensor, "B R"] | Float[Tensor, "B R samples"]:
        """Return one reward for each row or, with `reward` "each", one for each sampled location.

        reward: the reward of each glimpse (Mnih et al. 2014, the rewards of eq. 1).
        """
        if self.reward == "last":
            return reward[..., -1]
        assert glance.choice is not None
        return reward[..., -glance.choice.log_prob.shape[-1] :]

    @torch.no_grad()
    def predict(self, batch: Batch, *, full: bool = False) -> Counts:
        modes: tuple[Testing, ...] = ("mean", "sample", "copies") if full and self.model.stochastic else (self.at_test,)
        counts = Counts(self._cost(batch.images[:1]), len(batch.labels), dict.fromkeys(modes, 0))
        for mode in modes:
            with recording_updates(self.model) as updates:
                glance = self.model(batch.images, **self.options(mode))
            answers = predictions(glance)
            mistakes = answers != batch.labels[:, None]
            counts.wrong[mode] = int(mistakes[:, -1].sum())
            if full and mode == self.at_test:
                taken = confusion(batch.labels, answers[:, -1], glance.log_prob.shape[-1])
                counts = counts._replace(confusion=taken)
            if mode == self.at_test and glance.locations is not None:
                counts = counts._replace(wrong_after=mistakes.sum(dim=0))
                if full:
                    shares = shares_of_glimpses(updates, glance.log_prob.shape[2])
                    counts = counts._replace(entropy=answer_entropy(glance.log_prob).sum(dim=0), shares=shares)
                areas = areal(batch.boxes)
                if areas is not None:
                    correct = glance.log_prob[:, :, -1].argmax(dim=-1) == batch.labels[:, None]
                    correct &= areas[:, None]
                    on_digit = correct & within(glance.locations[:, :, -1], batch.boxes)
                    counts = counts._replace(correct_rows=int(correct.sum()), on_digit=int(on_digit.sum()))
        return counts

    @torch.no_grad()
    def judge(self, predictions: Iterable[Counts], folder: Path | None = None) -> dict[str, float]:
        """Compute the error in percent with its 95% interval, the pixels read from an image, and the multiply-adds of
        an answer. For a model that takes glimpses and a source that knows boxes also `last_glimpse_on_digit`: the share
        of correct answers whose last glimpse is centred in the box of the digit or object.

        With a folder, also compute `answer_entropy`, the entropy of the last answer in nats, and, if the model samples
        glimpses, the error for each value of `at_test`. Write the error after each glimpse and its information
        (`after_glimpses`) to glimpses.json, and the confusion matrix to confusion.json.
        """
        predictions = iter(predictions)
        total = next(predictions, None)
        if total is None:
            raise UserError(
                "there are no images to evaluate: the split is empty; training needs some for validation too: give "
                "more, or say which are for train, val and test"
            )
        for counts in predictions:
            total = total.plus(counts)
        count = total.wrong[self.at_test]
        low, high = wilson(count, total.images)
        metrics = {"error": 100 * count / total.images, "error_low": 100 * low, "error_high": 100 * high} | total.cost
        if total.confusion is not None and folder is not None:
            self._write_confusion(total.confusion, folder / "confusion.json")
        if total.wrong_after is None:
            return metrics
        if folder is not None:
            if self.model.stochastic:
                metrics |= {f"error_{mode}": 100 * wrong / total.images for mode, wrong in total.wrong.items()}
            content = after_glimpses(total, self.num_classes)
            if "entropy" in content:
                metrics["answer_entropy"] = content["entropy"][-1]
            with replacing(folder / "glimpses.json") as path:
                path.write_text(json.dumps(content) + "\n", encoding="utf-8")
        if total.on_digit is not None and total.correct_rows is not None:
            metrics["last_glimpse_on_digit"] = total.on_digit / max(1, total.correct_rows)
        return metrics

    def _write_confusion(self, counts: Int[Tensor, "N N"], path: Path) -> None:
        names = [self._named(number) for number in range(len(counts))]
        content = {"classes": names, "answers": dict(zip(names, counts.tolist(), strict=True))}
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
        answered = counts.sum(dim=0)
        if (counts.sum(dim=1) > 0).sum() > 1 and (answered > 0).sum() == 1:
            complain(f"all {int(answered.sum()):,} answers are {names[int(answered.argmax())]}: train it for longer")

    def seen(self, pixels: Sliced) -> Float[Tensor, "1 C Y X"] | Images:
        """Return one image as the input of the model: unchanged if the model takes images of any size, else resized."""
        device, shape = next(self.parameters()).device, self.image_shape
        if self.model.any_size:
            return Images([pixels], shape[0], device)
        return scaled(Images([fitted(pixels, shape)], shape[0]).sampled(max(shape))[0][None].to(device))

    @torch.no_grad()
    def answer(
        self,
        images: Float[Tensor, "B C Y X"] | Images,
        seed: int,
        given: Float[Tensor, "B T P"] | None = None,
    ) -> list[ClassifiedImage]:
        """Classify images with glimpses as `at_test` says.

        seed: of sampled glimpses, which depend on nothing else.
        given: see `Classifier.forward`.
        """
        places = {} if given is None else {"given": given}
        with self.seeded(seed):
            glance = self.model(images, **self.options(self.at_test), **places)
        view = self.model.view(images, glance)
        probabilities = glance.log_prob[:, :, -1].exp().mean(dim=1)
        answers = []
        for number, probability in enumerate(probabilities):
            image, name = slice(number, number + 1), self._named(int(probability.argmax()))
            fields = [None if field is None or field is glance.choice else _of(field, image) for field in glance]
            seen = None if view is None else type(view)(*(field[image] for field in view))
            answers.append(ClassifiedImage(name, probability, ClassifierOutput._make(fields), seen))
        return answers

    @torch.no_grad()
    def show(self, batch: Batch, folder: Path) -> list[Path]:
        """Write pictures of each image with the locations of glimpses and their pixels: see `write_classified`. Of
        several copies, the first is shown. Glimpses are sampled again, so an answer may differ from the measured
        one."""
        glance, sampled = self.model(batch.images, **self.options(self.at_test)), self.at_test != "mean"
        view, labels = self.model.view(batch.images, glance), batch.labels.tolist()
        return write_classified(folder, batch.images, glance, view, labels, self.class_names, sampled=sampled)

    @torch.no_grad()
    def figure(self, batch: Batch, paper: Paper) -> Any:
        """Draw the locations of glimpses in each image, and their patches, as `show` does."""
        from vision_attn.viz.figures.glimpses import glimpses_figure, reads_figure  # imports matplotlib

        glance = self.model(batch.images, **self.options(self.at_test))
        view, labels = self.model.view(batch.images, glance), batch.labels.tolist()
        if view is None:
            raise UserError("this model sees the whole image at once, so there is no figure of it: leave --figure out")
        if isinstance(view, Reads):
            fields = (batch.images, view.boxes, view.sigma, view.patches, glance.log_prob[:, 0].exp(), labels)
            traces = [ReadTrace._make((*trace, "", self.class_names)) for trace in zip(*fields, strict=True)]
            return reads_figure(traces, paper)
        return glimpses_figure(glimpsed(batch.images, glance, view, labels, self.class_names), paper)

    def _named(self, number: int) -> str:
        """Return the name of a class; its number where classes have no names."""
        return self.class_names[number] if self.class_names else str(number)

    def options(self, mode: Testing) -> dict[str, int | str]:
        """Return the arguments of the model's `forward` for a value of `at_test`."""
        return {"rows": self.test_copies} if mode == "copies" else {"mode": mode}

    def _cost(self, images: Float[Tensor, "1 C Y X"] | Images) -> dict[str, float]:
        """Return the cost of one answer with glimpses as `at_test` says. It is measured once for each size of images,
        without changing the random state."""
        options = self.options(self.at_test)
        size = tuple(images.extents[0].tolist()) if isinstance(images, Images) else tuple(images.shape[1:])
        key = (size, *options.items())
        if key not in self._costs:
            from vision_attn.tasks.cost import multiply_adds  # imports triton where there is one

            rows = options.get("rows", 1) if self.model.stochastic else 1
            with self.seeded(0):
                number = multiply_adds(self.model, images, **options)
            self._costs[key] = {"pixels": float(rows * self.model.pixels), "multiply_adds": float(number)}
        return self._costs[key]


def _of(field: Tensor | Window, images: slice) -> Tensor | Window:
    """Return some images of a field of the model's output."""
    return Window(*(numbers[images] for numbers in field)) if isinstance(field, Window) else field[images]

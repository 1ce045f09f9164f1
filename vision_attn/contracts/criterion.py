"""The contract of a criterion: one term of the loss of a captioner."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from vision_attn.contracts.captioner import Caption, Captioner
from vision_attn.system.errors import UserError
from vision_attn.task import Source


class Criterion(nn.Module):
    """One term of the loss of a captioner. Constructed with the captioner.

    Override `forward`; a criterion that samples captions overrides `explore` instead, or its two halves, `sample` and
    `learn`.
    """

    num_runs: int = 1
    """How often each caption must be run, with independent samples."""
    samples: bool = False
    """Whether it samples captions from the captioner: `explore` is called in place of `forward`."""

    @property
    def uncapturable(self) -> str:
        """Why its steps cannot be captured in CUDA graphs (see `Task.uncapturable`)."""
        whole = self.samples and type(self).sample is Criterion.sample
        return "it samples captions in `explore`, without `sample` and `learn`" if whole else ""

    estimates: bool = False
    """Whether it estimates the gradient of sampled regions or locations (`Captioner.reinforced`)."""
    highest_rate: float | None = None
    """The highest learning rate of AdamW that is known not to harm a trained captioner; None: no such limit is
    known."""

    def prepare(self, source: Source) -> None:
        """Take what the loss needs from the training data. Called before training starts or is resumed."""

    def restart(self, model: Captioner) -> None:
        """Change the captioner for this loss. Called when a run starts from the weights of another run that did not
        have this criterion."""

    def forward(self, caption: Caption, words: Int[Tensor, "B R T"]) -> dict[str, Tensor]:
        """Return named scalars. "loss", a mean over captions, is added to the task's loss; the others are logged."""
        raise NotImplementedError

    def checked(self, term: Any) -> dict[str, Tensor]:
        """Return `term`, the output of `forward`. Raises UserError if it is no dict of scalars."""
        name = type(self).__name__
        if not isinstance(term, dict) or (term and "loss" not in term):
            returned = "a dict without it" if isinstance(term, dict) else type(term)
            raise UserError(f"{name} must return a dict with 'loss', or an empty one, but returns {returned}")
        for key, value in term.items():
            if not isinstance(value, Tensor) or value.numel() != 1:
                given = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise UserError(f"{name} returns {key}, which must be a tensor of one number, but is {given}")
        return term

    def explore(
        self, model: Captioner, regions: Float[Tensor, "B L D"], references: Sequence[Sequence[str]]
    ) -> dict[str, Tensor]:
        """Sample captions of images, and return named scalars as `forward` does.

        references: the reference captions of each image.
        """
        return self.learn(model, regions, self.sample(model, regions, references))

    def sample(
        self, model: Captioner, regions: Float[Tensor, "B L D"], references: Sequence[Sequence[str]]
    ) -> tuple[Tensor, ...]:
        """Perform the first half of `explore`: sample captions without a gradient. Returns the input of `learn`."""
        raise NotImplementedError

    def learn(
        self, model: Captioner, regions: Float[Tensor, "B L D"], sampled: tuple[Tensor, ...]
    ) -> dict[str, Tensor]:
        """Perform the second half of `explore`, which a CUDA graph can capture: compute the scalars from the output of
        `sample`."""
        raise NotImplementedError

    def measure(self, model: Captioner, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"]) -> dict[str, Any]:
        """Return further scalars of a full evaluation, computed at given words."""
        return {}


def summed(terms: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the scalars of all terms, with "loss", the sum of their losses, if there is one. Raises UserError for a
    name that two terms log."""
    losses = [term["loss"] for term in terms if "loss" in term]
    scalars: dict[str, Tensor] = {}
    for term in terms:
        logged = {name: value for name, value in term.items() if name != "loss"}
        if twice := logged.keys() & scalars.keys():
            raise UserError(f"{', '.join(sorted(twice))} is logged twice: rename that of your criterion")
        scalars |= logged
    return scalars | ({"loss": sum(losses[1:], start=losses[0])} if losses else {})

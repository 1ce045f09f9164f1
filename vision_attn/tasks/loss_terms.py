"""`Terms`: the criteria of a captioner, whose sum is its loss."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from vision_attn.contracts import Captioner, Criterion
from vision_attn.criteria.doubly_stochastic import DoublyStochastic
from vision_attn.criteria.likelihood import Likelihood
from vision_attn.criteria.reinforce_attention import ReinforceAttention
from vision_attn.system.errors import UserError


class Terms(nn.ModuleDict):
    """Criteria by name. By default those of Xu et al. 2015: likelihood, doubly stochastic penalty, and REINFORCE."""

    def __init__(self, model: Captioner, criteria: Mapping[str, Callable[[Captioner], Criterion]] | None):
        """Build the criteria. Raises UserError if the captioner samples where to look and no criterion trains that."""
        if criteria is None:
            criteria = {"likelihood": Likelihood, "penalty": DoublyStochastic, "looks": ReinforceAttention}
        made = {name: criterion(model) for name, criterion in criteria.items()}
        super().__init__(made)
        self.members = [*made.values()]
        self.num_runs = max((criterion.num_runs for criterion in self.members), default=1)
        """How often the model runs on each given caption."""
        self.given = [criterion for criterion in self.members if not criterion.samples]
        """The criteria on given captions."""
        self.sampling = [criterion for criterion in self.members if criterion.samples]
        """The criteria that sample captions."""
        if model.reinforced and self.given and not any(criterion.estimates for criterion in self.given):
            looks = f"--task.criteria.looks={ReinforceAttention.__module__}.{ReinforceAttention.__qualname__}"
            raise UserError(f"{type(model).__name__} samples where to look, and no criterion trains that: add {looks}")

    def measure(self, model: Captioner, regions: Tensor, words: Tensor) -> dict[str, float]:
        """Return the scalars that all criteria measure on a batch of evaluation."""
        measured = (criterion.measure(model, regions, words) for criterion in self.members)
        return {name: float(value) for scalars in measured for name, value in scalars.items()}

    def restart(self, model: Captioner, before: Mapping[str, Any]) -> None:
        """Restart the criteria that the previous task did not have.

        before: the config of that task.
        """
        criteria = (before.get("init_args") or {}).get("criteria") or {}
        had = {
            description if isinstance(description, str) else description["class_path"]
            for description in criteria.values()
        }
        for criterion in self.members:
            if f"{type(criterion).__module__}.{type(criterion).__qualname__}" not in had:
                criterion.restart(model)

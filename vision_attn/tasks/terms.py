"""The criteria of a captioner, whose sum is its loss."""

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
        """Raises UserError if the captioner samples where to look and no criterion trains that."""
        if criteria is None:
            criteria = {"likelihood": Likelihood, "penalty": DoublyStochastic, "looks": ReinforceAttention}
        made = {name: criterion(model) for name, criterion in criteria.items()}
        super().__init__(made)
        self.each = [*made.values()]
        self.num_runs = max((criterion.num_runs for criterion in self.each), default=1)
        """How often each given caption is run."""
        self.given = [criterion for criterion in self.each if not criterion.samples]
        """Those of given captions."""
        self.sampling = [criterion for criterion in self.each if criterion.samples]
        """Those that sample captions."""
        if model.reinforced and self.given and not any(criterion.estimates for criterion in self.given):
            looks = f"--task.criteria.looks={ReinforceAttention.__module__}.{ReinforceAttention.__qualname__}"
            raise UserError(f"{type(model).__name__} samples where to look, and no criterion trains that: add {looks}")

    def measure(self, model: Captioner, regions: Tensor, words: Tensor) -> dict[str, float]:
        """What all criteria measure of a batch of evaluation."""
        measured = (criterion.measure(model, regions, words) for criterion in self.each)
        return {name: float(value) for each in measured for name, value in each.items()}

    def restart(self, model: Captioner, before: Mapping[str, Any]) -> None:
        """Restart the criteria that the task whose config was `before` did not have."""
        criteria = (before.get("init_args") or {}).get("criteria") or {}
        had = {part if isinstance(part, str) else part["class_path"] for part in criteria.values()}
        for criterion in self.each:
            if f"{type(criterion).__module__}.{type(criterion).__qualname__}" not in had:
                criterion.restart(model)

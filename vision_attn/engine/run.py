"""How long, how precisely and where a model is trained: the settings of `fit` that belong to no model."""

from dataclasses import dataclass
from typing import Literal


@dataclass
class Run:
    """One training run and its folder."""

    folder: str
    """Where the run lives: config.yaml, metrics.jsonl, last/, previous/ (the one before), best/ and pictures/."""
    seed: int = 0
    """Fixes the initial weights, the order of the batches and every draw of training and validation."""
    start_from: str | None = None
    """Folder of a run, or of its best/, whose weights this run begins with, and nothing else of it: for fine-tuning."""
    epochs: int = 10
    """How often all training batches are seen."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of the forward pass under autocast; fp16 adds a gradient scaler. Weights stay in float32."""
    compile: bool = False
    """Compile with torch.compile what `task.compile()` compiles: all of `forward`, unless the task says otherwise."""
    clip: float | None = None
    """Largest 2-norm of the whole gradient; longer ones are scaled down to it. None leaves them as they are."""
    accumulate: int = 1
    """Batches whose gradients are averaged into one optimiser step."""
    warmup: int = 0
    """Optimiser steps in which the learning rate rises linearly, before `schedule` sets in."""
    average: float | None = None
    """Decay of an exponential moving average of the weights (0.999, say), smaller in the first steps. Validation and
    best/ then use the average."""
    validate_every: int = 1
    """Epochs from one validation to the next; the last epoch is always validated. 0 never validates."""
    metric: str = "BLEU-4"
    """The validation metric by which the best weights are kept. While a metric to maximise is practically 0, the
    weights with the lowest `nll` are kept, where validation gives it."""
    mode: Literal["max", "min"] = "max"
    """Whether a larger or a smaller metric is better."""
    patience: int | None = None
    """Validations in a row without a better metric after which training stops. None trains all epochs."""
    rehearse: bool = True
    """Validate one batch before training, so that a mistake in validation shows at once and not after an epoch."""
    save_every: float = 600.0
    """Seconds from one checkpoint to the next; the end of an epoch always saves one."""
    log_every: int = 50
    """Optimiser steps from one line of metrics.jsonl to the next."""
    show: int = 0
    """Images of the first validation batch that are drawn into pictures/ after training, with the best weights."""
    device: str = "auto"
    """`auto` (cuda where there is one, else cpu), `cpu`, `cuda`, `cuda:1`, ..."""
    wandb: bool = False
    """Also log to Weights & Biases. WANDB_MODE=offline works without a network."""

    def __post_init__(self) -> None:
        least = {
            "epochs": 1,
            "accumulate": 1,
            "log_every": 1,
            "warmup": 0,
            "validate_every": 0,
            "save_every": 0,
            "show": 0,
        }
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"run.{name} is {getattr(self, name)}, but must be at least {value}")
        if self.average is not None and not 0 < self.average < 1:
            raise ValueError(f"run.average is {self.average}, but must lie between 0 and 1 (0.999, say), or be null")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"run.clip is {self.clip}, but must be above 0, or null for no clipping")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"run.patience is {self.patience}, but must be at least 1, or null to train all epochs")

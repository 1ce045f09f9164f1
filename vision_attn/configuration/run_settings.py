"""`Run`: the settings of training that do not depend on the model, the key `run` of a config."""

from dataclasses import dataclass
from typing import Literal

from vision_attn.system.errors import UserError

MOST_THREADS = 1024
"""The largest number of threads. By a mistyped number, a process would start more threads than it may, and end without
a message."""


@dataclass
class Run:
    """Settings of one training run."""

    folder: str
    """Folder of the run: config.yaml, metrics.jsonl, last/, previous/ (the checkpoint before), best/, pictures/
    and start/, the words or classes with which it began."""
    seed: int = 0
    """Determines the initial weights, the order of the batches and all sampling in training and validation."""
    start_from: str | None = None
    """Folder of a run, or of its best/, whose weights initialise this run (fine-tuning); no other state is loaded. A
    captioner keeps its words, and new words of the training captions are added. If the folder does not exist, it is
    looked up in the project: `weights/photographs`."""
    epochs: int = 10
    """Passes over the training data."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Autocast precision of the forward pass; fp16 adds a gradient scaler. Weights stay in float32. `auto`: bf16 on a
    CUDA device that has it, otherwise fp32. A resumed run keeps its precision. On a CPU for which oneDNN has no
    bfloat16, such as an x86 processor without AVX-512, bf16 is computed in fp32."""
    fast: bool = True
    """Replace parts of the model by fast versions, which compute the same up to rounding (`fast.accelerate`). False:
    every line of the models runs as it is written, for a debugger, or to rule out a fast version as the cause of a
    problem."""
    compile: bool | Literal["auto"] = False
    """Call `task.compile()`, which compiles all of `forward` unless the task overrides it. `auto`, of older configs,
    means false."""
    capture: bool | Literal["auto"] = "auto"
    """Replay whole steps as CUDA graphs, one for each shape of batch. `auto`: if all parts of the task permit it, as
    the package's own parts do. Not with fp16 or several processes."""
    threads: int | Literal["auto"] = "auto"
    """Number of torch's threads on a CPU. `auto`: 1, or one for each core, whichever is faster in the first 20 steps; a
    resumed run keeps the choice. The number changes the order of sums, so set it to reproduce a run bit for bit."""
    clip: float | None = None
    """Largest L2 norm of the whole gradient; a larger gradient is scaled down to it. None does not clip."""
    accumulate: int = 1
    """Batches whose gradients are averaged into one optimiser step."""
    warmup: int = 0
    """Optimiser steps of linear warmup of the learning rate, before `schedule` starts."""
    average: float | None = None
    """Decay of an exponential moving average of the weights (e.g. 0.999), smaller in the first steps. Validation and
    best/ then use the average."""
    start_share: float = 0.0
    """Share of the weights of `start_from` in the weights that are validated and kept in best/, from 0 (only the
    trained weights) to below 1. An interpolation forgets less than the fine-tuned weights (WiSE-FT)."""
    validate_every: int = 1
    """Epochs between validations; the last epoch is always validated. 0 never validates."""
    metric: str = "BLEU-4"
    """The validation metric that selects the best weights. While a metric to maximise is practically 0, the lowest
    `nll` selects them, where validation gives it."""
    mode: Literal["max", "min"] = "max"
    """Whether a larger or a smaller metric is better."""
    patience: int | None = None
    """Number of consecutive validations without improvement after which training stops. None trains all epochs."""
    sanity_check: bool = True
    """Validate one batch before training, so that an error in validation shows at once and not after an epoch."""
    save_every: float = 600.0
    """Seconds between checkpoints; the end of an epoch always saves one."""
    log_every: int = 50
    """Optimiser steps between lines of metrics.jsonl."""
    show: int = 0
    """Number of images of the first validation batch to draw into pictures/ after training, with the best weights."""
    profile: int = 0
    """Steps to trace, from the tenth on: the folder profile/ of the run then has a trace for Perfetto, the operations
    that take most time, and the milliseconds of waiting for data, forward, backward and update. Such steps are
    slower."""
    device: str = "auto"
    """`auto` (cuda or mps where there is one, else cpu), `cpu`, `cuda`, `cuda:1`, `mps`, ..."""
    wandb: bool = False
    """Also log to Weights & Biases: the config, all lines of metrics.jsonl and, with `show`, pictures, pages and a
    table of captions. Its environment variables work, such as WANDB_MODE=offline and WANDB_PROJECT. In a sweep, each
    trial has a folder of its own, FOLDER/RUN_ID. Without an account, or where the service cannot be reached, it logs
    offline."""
    tensorboard: bool = False
    """Also log to TensorBoard, into the folder tensorboard/ of the run: all numbers of metrics.jsonl and, with `show`,
    pictures and captions. Needs the extra `[tensorboard]`."""

    def __post_init__(self) -> None:
        if not self.folder:
            raise UserError("run.folder is empty: name a folder")
        if self.compile == "auto":
            self.compile = False
        if self.threads != "auto" and not 1 <= self.threads <= MOST_THREADS:
            raise UserError(f"run.threads is {self.threads}, but must be auto, or from 1 to {MOST_THREADS}")
        for least, names in (1, "epochs accumulate log_every"), (0, "warmup validate_every save_every show profile"):
            for name in names.split():
                if getattr(self, name) < least:
                    raise UserError(f"run.{name} is {getattr(self, name)}, but must be at least {least}")
        if self.average is not None and not 0 < self.average < 1:
            raise UserError(f"run.average is {self.average}, but must lie between 0 and 1 (e.g. 0.999), or be null")
        if not 0 <= self.start_share < 1:
            raise UserError(f"run.start_share is {self.start_share}, but must be at least 0 and less than 1")
        if self.start_share and not self.start_from:
            raise UserError("run.start_share is of the weights of run.start_from: name a run there, or leave it out")
        if self.clip is not None and not self.clip > 0:
            raise UserError(f"run.clip is {self.clip}, but must be above 0, or null for no clipping")
        if self.patience is not None and self.patience < 1:
            raise UserError(f"run.patience is {self.patience}, but must be at least 1, or null to train all epochs")

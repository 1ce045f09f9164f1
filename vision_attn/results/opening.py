"""`open_model`: open a run of this package, here or on the hub, or a captioner of transformers, by its name."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from vision_attn.configuration.hub import local
from vision_attn.configuration.run_folder import open_run
from vision_attn.fast import accelerate
from vision_attn.results.model import Model
from vision_attn.system.errors import UserError
from vision_attn.system.files import is_pretrained
from vision_attn.system.locks import DRAWING, LOADING
from vision_attn.system.machine import torch_device

log = logging.getLogger(__name__)


def open_model(
    name: str | Path, *, device: str = "auto", trust: str | Sequence[str] = (), overrides: Sequence[str] = ()
) -> Model:
    """Open a run, or a captioner of transformers (`results.pretrained`). Raises UserError saying what is missing.

    name: the folder of a run, its name on the hub, or the name of a captioner of transformers.
    trust: packages whose code the run may use.
    overrides: options for the config, such as "--task.max_words=12".
    """
    if is_pretrained(name):
        from vision_attn.results.pretrained import open_pretrained

        model = open_pretrained(str(name), device=device, trust=trust, overrides=overrides)
        if not isinstance(model, Model):
            raise UserError(f"{name} is no captioner: vision-attn look {name} IMAGE shows its maps")
        return model
    began, target = time.perf_counter(), torch_device(device)
    folder = local(name)
    with LOADING, DRAWING:  # constructors draw weights, which those of the run replace
        task, source, config = open_run(folder, trust=trust, overrides=overrides)
    task.to(target)
    if config.get("run", {}).get("fast", True):
        accelerate(task)
    weights = sum(parameter.numel() for parameter in task.parameters())
    log.debug("opened %s: %s, %s weights, on %s, in %.2f s", folder, task.kind, f"{weights:,}", target,
              time.perf_counter() - began)  # fmt: skip
    return Model(task, config, target, source, str(name))

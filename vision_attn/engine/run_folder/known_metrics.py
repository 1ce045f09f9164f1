"""Reuse the validation metrics that are stored with the weights from which a run starts."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vision_attn.configuration.run_settings import Run
from vision_attn.engine.run_folder.best import KEY, best_metrics
from vision_attn.system.bounded_yaml import read_yaml
from vision_attn.system.errors import UserError
from vision_attn.system.files import digest, read_json, shipped
from vision_attn.task import Source

TRAINING = ("criteria", "word_vectors")
"""Keys of a task in a config that matter only in training."""


def validation_key(folder: Path, task: nn.Module, data: Source) -> str | None:
    """Return a checksum of everything on which metrics of validation depend: the weights, the split, and the settings
    of the task, including decoding; without the device and the number of captions of an image in `nll`. None if the
    source has no identity of its split, or the run in `folder` has no config."""
    split, config = data.identity("val"), folder / "config.yaml"
    if split is None or not config.is_file():
        return None
    settings: Any = read_yaml(config).get("task")
    given = settings.get("init_args") if isinstance(settings, dict) else None
    if isinstance(given, dict):
        settings = {**settings, "init_args": {key: value for key, value in given.items() if key not in TRAINING}}
    checksum = hashlib.sha256(digest([split, settings]).encode())
    for name, tensor in sorted(task.state_dict().items()):
        if not name.startswith(tuple(getattr(task, "own", ()))):
            checksum.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            checksum.update(_bytes(tensor))
    return checksum.hexdigest()


def known_metrics(run: Run, task: nn.Module, data: Source) -> dict[str, float]:
    """Return the metrics that are stored with the weights from which a run starts, if they are those of this task on
    this data; otherwise {}."""
    folder = shipped(run.start_from or "")
    best = folder if folder.name == "best" else folder / "best"
    try:
        stored = read_json(best / KEY)
    except (UserError, OSError):
        return {}
    same = isinstance(stored, dict) and stored.get("key") == validation_key(Path(run.folder), task, data)
    return best_metrics(best.parent) if same else {}


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() if tensor.numel() else b""

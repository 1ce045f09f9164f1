"""Run folders of tiny models that nobody trained: all that opening needs, in a second."""

from collections.abc import Sequence
from pathlib import Path

import torch

from tests.fake_mnist import write_mnist
from vision_attn.configuration.config import build, read
from vision_attn.configuration.weights import save_weights
from vision_attn.engine.run_folder.claim import claim

CONFIGS = Path(__file__).parents[1] / "configs"
SIZES = {
    "sat_soft_scenes": [
        "--task.encoder.region_size=8", "--task.encoder.width=16", "--task.model.hidden_size=8",
        "--task.model.word_size=8", "--task.model.score.attention_size=8", "--task.max_words=6", "--data.batch_size=4",
        "--data.epoch_images=8", "--data.val_images=4", "--data.test_images=4", "--run.warmup=0", "--run.device=cpu",
    ],
    "top_down_scenes": [
        "--task.encoder.region_size=8", "--task.encoder.width=16", "--task.model.hidden_size=8",
        "--task.model.word_size=8", "--task.model.score.attention_size=8", "--task.max_words=6", "--data.batch_size=4",
        "--data.epoch_images=8", "--data.val_images=4", "--data.test_images=4", "--run.warmup=0", "--run.device=cpu",
    ],
    "transformer_scenes": [
        "--task.encoder.region_size=8", "--task.encoder.width=16", "--task.model.hidden_size=8",
        "--task.model.num_layers=1", "--task.model.num_heads=2", "--task.model.feedforward_size=8",
        "--task.max_words=6", "--data.batch_size=4", "--data.epoch_images=8", "--data.val_images=4",
        "--data.test_images=4", "--run.warmup=0", "--run.device=cpu",
    ],
    "ram_mnist28": [
        "--task.model.num_glimpses=2", "--task.model.glimpse.what_size=4", "--task.model.glimpse.where_size=4",
        "--task.model.glimpse.glimpse_size=8", "--task.model.core.hidden_size=8", "--task.model.policy.hidden_size=4",
        "--run.device=cpu",
    ],
    "draw_mnist": [
        "--task.model.num_steps=2", "--task.model.hidden_size=8", "--task.model.latent_size=4",
        "--task.importance_samples=2", "--run.device=cpu",
    ],
}  # fmt: skip
"""Sizes of the smallest models of a few configs."""


def write_run(config: str, folder: Path, *more: str, sizes: Sequence[str] | None = None) -> Path:
    """A run folder with a `best/`, of one of `SIZES` (or of `sizes`) and `more` overrides. Digits are made up, and lie
    beside the folder."""
    overrides = [*(SIZES[config] if sizes is None else sizes), f"--run.folder={folder}", *more]
    if "mnist" in config:
        overrides.append(f"--data.folder={write_mnist(folder.parent / 'mnist')}")
    resolved = read(CONFIGS / f"{config}.yaml", overrides)
    claim(resolved)
    parts = build(resolved)
    best = folder / "best"
    best.mkdir()
    torch.manual_seed(0)
    save_weights(parts["task"](parts["data"]), best / "model.safetensors")
    parts["data"].export(best)
    (folder / "config.yaml").rename(best / "config.yaml")
    return folder

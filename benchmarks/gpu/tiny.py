"""What `--quick` overrides of configs: models, images and data sets so small that a run takes seconds."""

import json

BACKBONE = {"name": "squeezenet1_1", "node": "features.3", "resolution": 32, "weights": None}
ENCODER = json.dumps({"class_path": "vision_attn.encoders.backbone.Backbone", "init_args": BACKBONE})
TASKS = {
    "ram": ["model.num_glimpses=2", "model.core.hidden_size=8"],
    "draw_reader": ["model.num_glimpses=2", "model.hidden_size=8", "model.size=4"],
    "draw_mnist": ["model.num_steps=2", "model.hidden_size=8", "model.latent_size=4", "importance_samples=2"],
    "sat": [
        f"encoder={ENCODER}",
        "model.hidden_size=8", "model.word_size=8", "model.score.attention_size=8", "max_words=6",
    ],
}  # fmt: skip
"""By how a config's name starts."""
MNIST = ["batch_size=100"]
CLUTTER = ["batch_size=100", "epoch_images=300", "val_images=20", "test_images=20"]
FLICKR8K = ["batch_size=2", "min_count=1"]


def tiny_task(config: str) -> list[str]:
    """Overrides of the task of a config."""
    tiny = next(tiny for start, tiny in TASKS.items() if config.startswith(start))
    return [f"--task.{override}" for override in tiny]


def tiny_run(config: str) -> list[str]:
    """Overrides of everything."""
    data = FLICKR8K if "flickr8k" in config else MNIST if "mnist" in config else CLUTTER
    return [*tiny_task(config), *(f"--data.{override}" for override in data), "--run.show=0", "--run.precision=fp32"]

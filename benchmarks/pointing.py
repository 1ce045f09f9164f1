"""Measure how well maps of a ViT trained with `configs/vit_scenes.yaml` point: `python -m benchmarks.pointing RUN`.

Raw attention, rollout, relevance and Grad-CAM of the answer, against the box of the star whose colour is the answer, on
the test split; and the areas under deletion and insertion curves of the answer's probability.
"""

import argparse
from contextlib import ExitStack
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.configuration.run_folder import open_run
from vision_attn.explain.record import record_attention
from vision_attn.explain.relevance import activation_of, grad_cam
from vision_attn.explain.tokens import ImageAttention, map_shapes
from vision_attn.faithfulness.curves import perturbation_curves
from vision_attn.metrics import AttentionCorrectness
from vision_attn.system.console import progress

WORD = "star"
CURVES = 200  # images of the curves, which take 34 answers each


def maps_of(model: Any, images: Float[Tensor, "B C Y X"]) -> dict[str, Float[Tensor, "B Y X"]]:
    """The map of each method, of the likeliest class of each image."""
    layers = range(1, len(model.blocks))
    with (
        torch.enable_grad(),
        map_shapes(model) as shapes,
        ExitStack() as held,
        record_attention(model, queries="all", gradients=True) as record,
    ):
        activations = [held.enter_context(activation_of(model, f"blocks.{layer}.norms.0")) for layer in layers]
        scores = model.scores(images)
        scores.amax(dim=1).sum().backward()
    model.zero_grad(set_to_none=True)
    attention = ImageAttention(record, shapes, len(images))

    def tokens(tensor: Float[Tensor, "B N H"]) -> Float[Tensor, "B H Y X"]:
        return attention.grid.picture(tensor.mT)

    return {
        "uniform": torch.ones(len(images), attention.grid.rows, attention.grid.columns),
        "raw attention, last layer": attention.raw()[:, -1].mean(dim=1),
        "raw attention, mean of layers": attention.raw().mean(dim=(1, 2)),
        "rollout": attention.rolled(),
        "relevance": attention.relevant(),
    } | {
        f"Grad-CAM, input of layer {layer}": grad_cam(tokens(activation.output), tokens(activation.gradient))
        for layer, activation in zip(layers, activations, strict=True)
    }


def pointing(model: Any, batches: Any, curves: int = CURVES) -> str:
    """The table, in Markdown."""
    correctness: dict[str, AttentionCorrectness] = {}
    areas: dict[str, list[dict[str, float]]] = {}

    def probability(answer: int) -> Any:
        return lambda images: model.scores(images).softmax(dim=1)[:, answer]

    for batch in progress(batches, what="pointing", unit="batch"):
        answers = model.scores(batch.images).argmax(dim=1).tolist()
        for name, maps in maps_of(model, batch.images).items():
            grid = tuple(maps.shape[1:])
            score = correctness.setdefault(name, AttentionCorrectness(grid))
            kept = areas.setdefault(name, [])
            for image, alpha, box, answer in zip(batch.images, maps, batch.boxes, answers, strict=True):
                total = alpha.sum().clamp(min=torch.finfo(alpha.dtype).tiny)
                score.update([WORD], (alpha / total).flatten()[None], {WORD: [box.tolist()]})
                if len(kept) < curves:
                    kept.append(perturbation_curves(probability(answer), image, alpha).areas)
    lines = ["| Map | pointing | mass in the box | deletion (lower) | insertion (higher) |", "|---|---|---|---|---|"]
    for name, score in correctness.items():
        scores = score.compute()
        mean = {key: sum(area[key] for area in areas[name]) / len(areas[name]) for key in ("deletion", "insertion")}
        numbers = (scores["pointing"], scores["mass"], mean["deletion"], mean["insertion"])
        lines.append(f"| {name} | " + " | ".join(f"{number:.3f}" for number in numbers) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pointing", description=__doc__)
    parser.add_argument("run", help="the folder of a run of configs/vit_scenes.yaml, or a copy of its best/")
    parser.add_argument("--quick", action="store_true", help="one batch: tests that it runs, measures nothing")
    options = parser.parse_args()
    task, source, _ = open_run(options.run)
    batches = list(islice(source.split("test"), 1 if options.quick else None))
    print(pointing(task.model, batches, 2 if options.quick else CURVES))


if __name__ == "__main__":
    main()

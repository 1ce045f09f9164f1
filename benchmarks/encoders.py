"""Measure encoders in float32 and in bfloat16: images per second, and the difference of their annotation vectors."""

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.measure import precisions, seconds, table
from benchmarks.shapes import Shapes
from vision_attn.contracts import Encoder
from vision_attn.encoders.backbone import Backbone
from vision_attn.encoders.vgg import VGG

BATCH = 16


def kinds(quick: bool) -> dict[str, Callable[..., Encoder]]:
    """VGG-19 and MobileNetV2 as the configs use them, with random weights."""
    smaller = {"resolution": 32} if quick else {}
    return {
        "VGG-19": partial(VGG, layers=19, weights=None, **{"resolution": 224} | smaller),
        "MobileNetV2": partial(Backbone, name="mobilenet_v2", node="features.17", **{"resolution": 448} | smaller),
    }


@torch.no_grad()
def encoders(shapes: Shapes, repeats: int) -> str:
    """The table. The difference is relative to the vectors in float32."""
    rows = []
    for name, make in kinds(shapes.quick).items():
        torch.manual_seed(0)
        whole, half = make(), make(precision="bf16")
        half.load_state_dict(whole.state_dict())
        images = torch.randint(256, (BATCH, 3, whole.resolution, whole.resolution), dtype=torch.uint8)
        runs = {"fp32": partial(whole, images), "bf16": partial(half, images)}
        taken = seconds({precision: runs[precision] for precision in precisions()}, repeats, name)
        rate = {precision: BATCH / spent for precision, spent in taken.items()}
        if "bf16" not in rate:
            rows.append((name, f"{rate['fp32']:.1f}", "-", "-", "-"))
            continue
        expected = whole(images)
        difference = (half(images) - expected).norm() / expected.norm()
        ratio = f"{rate['bf16'] / rate['fp32']:.1f}x"
        rows.append((name, f"{rate['fp32']:.1f}", f"{rate['bf16']:.1f}", ratio, f"{difference:.1%}"))
    columns = ("", "float32", "bf16", "ratio", "difference of the vectors")
    return table(f"Encoders, {BATCH} images at a time, images/s", columns, rows)

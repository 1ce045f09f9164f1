"""The Python API: `load` opens a run or a model of another library; results display themselves.

    model = vision_attn.load("runs/mine")
    model.caption("photo.jpg")  # a page in which pointing at a word shows where the model looked
    vision_attn.load("vit_b_16").look("photo.jpg")  # what led to the answer

Loading runs no code of a run folder: see `vision_attn.configuration.run_folder.open_run`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vision_attn.results.explainer import Explainer, is_run_name
from vision_attn.results.model import Model
from vision_attn.results.opening import open_model
from vision_attn.results.pretrained import open_pretrained
from vision_attn.system.errors import UserError

__all__ = ["Explainer", "Model", "load"]


def load(
    name: str | Path = "weights/photographs",
    *,
    weights: str | None = None,
    device: str = "auto",
    trust: str | Sequence[str] = (),
    **settings: Any,
) -> Model | Explainer:
    """Open a trained run: its folder, a copy of its `best/`, the name of an included one (`weights/photographs`,
    `weights/ram_cluttered60` and others), or "hf://user/name" on the Hugging Face Hub. Other names are those of
    models elsewhere: a captioner of "transformers:NAME-or-folder" opens as a run does, others as an `Explainer`, as
    `vision-attn look` takes them: a torchvision name, "timm:NAME", or "module:function" of a trusted package.

    weights: of torchvision and timm, a file, or "none" for random ones; by default the pretrained ones, which are
        downloaded. device: as `run.device`. trust: a package, or several, whose code the run or the model may use.

    Raises UserError saying what is missing.
    """
    if not is_run_name(name):
        return open_pretrained(str(name), weights=weights, device=device, trust=trust, **settings)
    if weights is not None:
        raise UserError(f"{name} holds its weights: leave weights out")
    if settings:
        raise UserError(f"{name} is a run, opened as it was trained: leave {', '.join(settings)} out")
    return open_model(name, device=device, trust=trust)

"""The Python API: `load` opens a run or a model of another library; results display themselves.

    model = vision_attn.load("runs/mine")
    model.caption("photo.jpg")  # a page in which pointing at a word shows where the model looked
    vision_attn.load("vit_b_16").look("photo.jpg")  # what led to the answer

Loading runs no code of a run folder: see `vision_attn.configuration.run_folder.open_run`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, overload

from vision_attn.results.decoded import CaptionResult
from vision_attn.results.explainer import Explainer, is_run_name
from vision_attn.results.model import Model
from vision_attn.results.opening import open_model
from vision_attn.results.pretrained import open_pretrained
from vision_attn.system.errors import UserError

__all__ = ["CaptionResult", "Explainer", "Included", "Model", "load", "load_explainer", "load_model"]

Included = Literal[
    "weights/draw_mnist", "weights/draw_mnist32", "weights/draw_mnist64", "weights/draw_reader_cluttered100",
    "weights/drawn_films", "weights/drawn_scenes", "weights/photographs", "weights/ram_cluttered60",
    "weights/ram_photographs", "weights/scene_questions", "weights/stories",
]  # fmt: skip
"""The names of the included runs."""


@overload
def load(
    name: Included | Path = ..., *, weights: None = ..., device: str = ..., trust: str | Sequence[str] = ...
) -> Model: ...
@overload
def load(
    name: str, *, weights: str | None = ..., device: str = ..., trust: str | Sequence[str] = ..., **settings: Any
) -> Model | Explainer: ...


def load(
    name: str | Path = "weights/photographs",
    *,
    weights: str | None = None,
    device: str = "auto",
    trust: str | Sequence[str] = (),
    **settings: Any,
) -> Model | Explainer:
    """Open a trained run, or a model of another library.

    name: a run: its folder, a copy of its `best/`, an included run (`weights/photographs`, `weights/ram_cluttered60`
        and others), or "hf://user/name" on the Hugging Face Hub; a `Path` always is a run. Other models: a
        captioner "transformers:NAME-or-folder" opens as a `Model`, like a run; a torchvision name, "timm:NAME", or
        "module:function" of a trusted package opens as an `Explainer`.
    weights: for torchvision and timm, a file of weights, or "none" for random ones; by default the pretrained weights
        are downloaded.
    device: as `run.device`.
    trust: a package, or several, whose code the run or the model may use.

    Type checkers know the class of the result for an included run and for a `Path`. For other names, use `load_model`
    or `load_explainer`, which return a single class.

    Raises UserError saying what is missing.
    """
    if not (isinstance(name, Path) or is_run_name(name)):
        return open_pretrained(str(name), weights=weights, device=device, trust=trust, **settings)
    if weights is not None:
        raise UserError(f"{name} holds its weights: leave weights out")
    if settings:
        raise UserError(f"{name} is a run, opened as it was trained: leave {', '.join(settings)} out")
    return open_model(name, device=device, trust=trust)


def load_model(name: str | Path = "weights/photographs", **options: Any) -> Model:
    """Open a trained run, or a captioner of another library, with the options of `load`. Raises UserError for other
    models."""
    opened = load(name, **options)
    if not isinstance(opened, Model):
        raise UserError(f"{name} is no run and no captioner: open it with load_explainer")
    return opened


def load_explainer(name: str, **options: Any) -> Explainer:
    """Open a model of another library that is no captioner, with the options of `load`. Raises UserError for others."""
    opened = load(name, **options)
    if not isinstance(opened, Explainer):
        raise UserError(f"{name} is a run or a captioner: open it with load_model")
    return opened

"""Options that several verbs share, such as RUN, --device and --trust, and functions that open a run with them."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision_attn.commands._files import place
from vision_attn.commands._hints import meant, options_only
from vision_attn.system.errors import UserError
from vision_attn.system.files import find_best, is_pretrained, read_json, shipped
from vision_attn.system.memory import collected_later

if TYPE_CHECKING:  # or `--help` would import torch
    from vision_attn.results.model import Model

SHIPPED = Path("weights/photographs")
"""The captioner that comes with the project."""
VIEWS, SCALES = ("color", "light", "contours", "cells"), ("own", "one")
"""The views of maps, the default first, and their scales; `viz.overlay` has the same, but imports torch."""
NO_IMAGES = "no images were named: give photographs, or a folder of them, after the model"


def named(text: str) -> str:
    """Parse an argument that names a run or a model. An empty name, which would be the current folder, is an error."""
    return str(place(text)) and text


def add_run_arguments(
    parser: argparse.ArgumentParser, *, optional: bool = False, captioner: bool = True, pretrained: bool = False
) -> None:
    """Add RUN and the options that every verb on a run takes; other options override the run's config. pretrained:
    whether captioners of transformers are accepted."""
    without = f" (default: {SHIPPED}, which is included)"
    parser.add_argument(
        "folder", metavar="RUN", nargs="?" if optional else None, type=named,
        help="the folder of a run, or a copy of its best/"
        + ", or transformers:NAME-or-folder" * pretrained + without * optional,
    )  # fmt: skip
    if pretrained:
        add_prompt(parser)
    if captioner:
        parser.add_argument("--beams", type=int, metavar="N", help="width of the beam search (default: as trained)")
    add_device_and_trust(parser)
    parser.set_defaults(overrides=[], **({} if captioner else {"beams": None}))


def add_model_and_images(parser: argparse.ArgumentParser, verb: str, *, text: str, out: Path) -> None:
    """Add MODEL, IMAGE and the options of verbs that explain any model; `text` and `verb` are parts of their help."""
    model = "a run folder, a torchvision name, timm:NAME, transformers:NAME"
    parser.add_argument("model", type=named, metavar="MODEL", help=model)
    parser.add_argument("images", nargs="*", type=place, metavar="IMAGE", help="a photograph, or a folder of them")
    parser.add_argument("--recursive", action="store_true", help=f"{verb} the photographs in subfolders too")
    parser.add_argument("--text", action="append", default=[], metavar="TEXT", help=f"{text}; may be repeated")
    parser.add_argument("--out", type=place, default=out, metavar="FOLDER", help=f"write there (default: {out})")
    parser.add_argument(
        "--weights", metavar="FILE", help="of torchvision and timm: a file of weights, or none for random ones"
    )
    add_device_and_trust(parser)


def load_with_images(arguments: argparse.Namespace) -> Any:
    """Open the model of these arguments. Raises UserError without images, unless the model is a run: a run that takes
    no images has its own message with an alternative."""
    with collected_later():
        from vision_attn.api import load
        from vision_attn.results.explainer import is_run_name
    if not arguments.images and not is_run_name(arguments.model):
        raise UserError(NO_IMAGES)
    model = load(arguments.model, weights=arguments.weights, device=arguments.device, trust=arguments.trust)
    model.choose_threads()
    return model


def add_device_and_trust(parser: argparse.ArgumentParser) -> None:
    """Add the options of every verb that opens a model."""
    parser.add_argument("--device", default="auto", help="auto (cuda or mps where there is one), cpu, cuda:1, ...")
    parser.add_argument(
        "--trust", action="append", default=[], metavar="PACKAGE", help="let a model import this package, which runs it"
    )


def add_overlay(parser: argparse.ArgumentParser, *, scale: bool = True) -> None:
    """Add the options of every verb that draws maps. scale: whether the scale can be chosen."""
    parser.add_argument(
        "--overlay",
        choices=VIEWS,
        type=_american,
        help=f"how maps are drawn (default: {VIEWS[0]}); on a page the key v changes it",
    )
    if not scale:
        return
    parser.add_argument(
        "--scale", choices=SCALES,
        help="where the scale of maps ends: at the largest weight of each map (own, the default), or of all (one)",
    )  # fmt: skip


def _american(view: str) -> str:
    """Return the name of a view; "colour", as pages write it, is "color"."""
    return "color" if view == "colour" else view


def view_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of drawing maps that differ from the defaults."""
    return {name: value for name in ("overlay", "scale") if (value := getattr(arguments, name, None)) is not None}


def add_prompt(parser: argparse.ArgumentParser) -> None:
    """Add the option of verbs that open captioners of transformers."""
    text = "of captioners of transformers: the beginning of the caption, or what asks for it"
    parser.add_argument("--prompt", metavar="TEXT", help=text)


def names_after_options(overrides: Sequence[str], wanted: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """Split `overrides` into the `wanted` names, which the parser leaves there after an option, and the rest."""
    names = [word for word in overrides if not word.startswith("-") and wanted(word)]
    return names, [word for word in overrides if word not in names]


def is_run(place: Path) -> bool:
    """Return whether a folder holds a run, weights, or remains of them, or whether the name is that of a pretrained
    model."""
    return is_pretrained(place) or any(
        (place / name).exists() for name in ("config.yaml", "model.safetensors", "best", "last")
    )


def best_of(folder: Path) -> dict[str, Any]:
    """Return the validation metrics and the `step` of the best weights of a run, or of a copy of its best/; empty if
    the folder has none."""
    files = (folder / "best" / "metrics_val.json", folder / "metrics_val.json")
    told: Any = next((read_json(file) for file in files if file.is_file()), {})
    return told if isinstance(told, dict) else {}


def measured_in(name: str) -> Path:
    """Return the folder for the files that `eval` writes about an included run, or a model of another library, whose
    own folders stay unchanged."""
    return Path("runs", Path(name.partition("transformers:")[2] or name).name)


def take_images(arguments: argparse.Namespace, verb: str) -> None:
    """Add the images that the parser left among the overrides. Raises UserError if none is named."""
    names, arguments.overrides = names_after_options(arguments.overrides, lambda word: not is_run(Path(word)))
    arguments.images += map(Path, names)
    if not arguments.images and is_run(shipped(arguments.folder)):
        raise UserError(f"name an image, or a folder of them: vision-attn {verb} {arguments.folder} IMAGE")
    if not arguments.images:
        raise UserError(f"name a run and an image: vision-attn {verb} RUN {arguments.folder}")


@collected_later()
def open_with(arguments: argparse.Namespace) -> "Model":
    """Open the run that `arguments` name, or the ensemble of it and of `arguments.others`. Raises UserError for options
    that do not fit it."""
    model, *others = (_open(arguments, folder) for folder in (arguments.folder, *vars(arguments).get("others", ())))
    if others:
        from vision_attn.tasks.ensemble import ensemble

        for member in (model, *others):
            if is_pretrained(member.name):
                raise UserError(f"an ensemble takes runs with the same words: {member.name} has others")
            if member.task.verb not in ("caption", "transcribe"):
                raise UserError(f"an ensemble needs captioners, but {member.name} holds a {member.task.kind}")
        model.task, model.source = ensemble([model.task, *(member.task for member in others)], model.source)
    model.choose_threads()
    return model


def _open(arguments: argparse.Namespace, folder: str | Path) -> "Model":
    """Open one run with the options in `arguments`."""
    import torch

    from vision_attn.configuration.config import load
    from vision_attn.configuration.hub import local
    from vision_attn.configuration.reader import UnknownKey
    from vision_attn.results.opening import open_model

    options_only(arguments.overrides)
    overrides = list(arguments.overrides)
    if (prompt := vars(arguments).get("prompt")) is not None:
        if not is_pretrained(folder):
            raise UserError(f"--prompt is for captioners of transformers, but {folder} is a run")
        overrides.append(f"--task.prompt={prompt}")
    options = {"device": arguments.device, "trust": arguments.trust, "overrides": overrides}
    try:
        model = open_model(folder, **options)
    except UnknownKey as error:  # of an option
        if is_pretrained(folder):
            from vision_attn.tasks.pretrained import PretrainedSettings

            raise UserError(
                meant(error, {"task": vars(PretrainedSettings()), "data": {}}, options=vars(arguments))
            ) from error
        content = load(find_best(Path(local(folder))) / "config.yaml")
        below: dict[str, Any] = {key: content[key] for key in ("task", "data") if key in content}
        raise UserError(meant(error, below, options=vars(arguments))) from error
    if arguments.beams is not None:
        if model.task.verb not in ("caption", "transcribe"):
            raise UserError(f"--beams is for captioners, but {folder} holds a {model.task.kind}")
        model.task.decoding = model.task.decoding.changed(beams=arguments.beams)
    torch.manual_seed(model.seed)
    return model

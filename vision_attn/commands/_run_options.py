"""What the verbs that use a trained run share: their options, and the run opened on a device."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vision_attn.commands._collection import collected_later
from vision_attn.commands._hints import marked, meant, options_only, shown
from vision_attn.system.files import shipped

if TYPE_CHECKING:  # or `--help` would import torch
    from vision_attn.results.model import Model

SHIPPED = Path("weights/photographs")
"""The captioner that comes with the project."""


def add_run_arguments(parser: argparse.ArgumentParser, *, optional: bool = False, captioner: bool = True) -> None:
    """RUN and the options that every verb on a run takes; other options override the run's config."""
    without = f" (default: {SHIPPED}, which is included)"
    parser.add_argument(
        "folder", metavar="RUN", nargs="?" if optional else None,
        help="the folder of a run, or a copy of its best/" + without * optional,
    )  # fmt: skip
    if captioner:
        parser.add_argument("--beams", type=int, metavar="N", help="width of the beam search (default: as trained)")
    parser.add_argument(
        "--device", default="auto", help="auto (cuda or mps where there is one), cpu, cuda, cuda:1, ..."
    )
    parser.add_argument(
        "--trust", action="append", default=[], metavar="PACKAGE", help="let the run's config import this package too"
    )
    parser.set_defaults(overrides=[], **({} if captioner else {"beams": None}))


def shipped_captioner() -> Path:
    """Return the folder of the included captioner of photographs. Raises ValueError if it is not there."""
    folder = shown(shipped(SHIPPED))
    if not (folder / "model.safetensors").is_file():
        raise ValueError(
            f"{folder}, the captioner that comes with the project, is not here: name a run before the "
            "photographs, such as runs/mine"
        )
    return folder


def names_after_options(overrides: Sequence[str], wanted: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """Split `overrides`, where the parser leaves names after an option, into the `wanted` names and the rest."""
    names: list[str] = []
    rest: list[str] = []
    for word, value in marked(overrides):
        (rest if value or word.startswith("-") or not wanted(word) else names).append(word)
    return names, rest


def is_run(place: Path) -> bool:
    """Return whether a folder holds a run, or weights, or what is left of them."""
    return any((place / name).exists() for name in ("config.yaml", "model.safetensors", "best", "last"))


def missing(command: str, only: str | Path) -> str:
    """What to say where only one name is given, and a run and an image are needed."""
    if is_run(Path(only)):
        return f"name an image, or a folder of them: vision-attn {command} {only} IMAGE"
    return f"name a run and an image: vision-attn {command} RUN {only}"


@collected_later()
def open_with(arguments: argparse.Namespace) -> "Model":
    """The run that `arguments` name, or the ensemble of it and of `arguments.others`. Raises ValueError for what does
    not fit it."""
    model = _open(arguments, arguments.folder)
    if others := vars(arguments).get("others"):
        from vision_attn.tasks.ensemble import ensemble

        members = [model, *(_member(arguments, folder) for folder in others)]
        for member in members:
            if not _is_captioner(member):
                raise ValueError(f"an ensemble is of captioners, but {member.name} holds a {member.task.kind}")
        model.task, model.source = ensemble([member.task for member in members], model.source)
    return model


def _member(arguments: argparse.Namespace, folder: str) -> "Model":
    """Another captioner of an ensemble, with the same options."""
    try:
        return _open(arguments, folder)
    except ValueError:  # perhaps an option that only captioners know
        model = _open(argparse.Namespace(**{**vars(arguments), "overrides": [], "beams": None}), folder)
        if _is_captioner(model):
            raise
        return model


def _is_captioner(model: "Model") -> bool:
    from vision_attn.tasks.caption import Captioning

    return isinstance(model.task, Captioning)


def _open(arguments: argparse.Namespace, folder: str | Path) -> "Model":
    """One run with the options in `arguments`."""
    import torch

    from vision_attn.configuration.config import find_best, load
    from vision_attn.configuration.hub import local
    from vision_attn.configuration.reader import UnknownKey
    from vision_attn.results.model import open_model

    options_only(arguments.overrides)
    options = {"device": arguments.device, "trust": arguments.trust, "overrides": arguments.overrides}
    try:
        model = open_model(folder, **options)
    except UnknownKey as error:  # of an option
        content = load(find_best(Path(local(folder))) / "config.yaml")
        below = {key: content[key] for key in ("task", "data") if key in content}
        raise ValueError(meant(error, below, options=vars(arguments))) from error
    if arguments.beams is not None:
        if not _is_captioner(model):
            raise ValueError(f"--beams is for captioners, but {folder} holds a {model.task.kind}")
        if not 1 <= arguments.beams <= 1000:
            raise ValueError(f"--beams is {arguments.beams}, but must be from 1 to 1,000")
        model.task.decoding = model.task.decoding.changed(beams=arguments.beams)
    torch.manual_seed(model.seed)
    return model

"""Open models of other libraries: captioners of transformers as a `Model`, others as an `Explainer`."""

import inspect
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vision_attn.configuration.config import options_of
from vision_attn.configuration.parts import built, plain
from vision_attn.configuration.reader import ConfigReader, located
from vision_attn.configuration.trust import Names, as_packages
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.explain.libraries.opening import open_model
from vision_attn.results.explainer import Explainer, explainer_of
from vision_attn.results.model import Model
from vision_attn.system.errors import UserError
from vision_attn.system.locks import DRAWING, LOADING
from vision_attn.system.machine import torch_device
from vision_attn.task import Source
from vision_attn.tasks.pretrained import PretrainedCaptioning, PretrainedSettings

DATA = {"class_path": "vision_attn.data.photographs.captions.Captions"}


def experiment(*, task: PretrainedSettings, data: Source) -> None:
    """Declare the keys of a captioner of transformers by the parameters of this function."""


def open_pretrained(
    name: str,
    *,
    weights: str | None = None,
    device: str = "auto",
    trust: str | Sequence[str] = (),
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Model | Explainer:
    """Open a model of another library: see `vision_attn.explain.libraries.opening.open_model`.

    trust: packages whose code the model may use; "transformers": the code of its repository.
    overrides: for captioners of transformers, keys of `PretrainedSettings`, such as "--task.prompt=a photo of", and the
        data to evaluate them on, such as "--data.images=FOLDER": photographs with captions, unless `--data` names
        another class.
    settings: further keys of `PretrainedSettings`.

    Raises UserError, which says what to install, name or correct.
    """
    target = torch_device(device)
    task, source, config = _read(name, overrides)
    try:
        task = replace(task, **settings)
    except TypeError as error:
        raise UserError(f"{name} has no such setting: {error}") from error
    trusted = name.partition(":")[0] in as_packages(trust)
    with LOADING, DRAWING:  # constructors draw weights, which those of the file replace
        model = open_model(name, weights=weights, trust=trusted, dtype=task.dtype, device_map=task.device_map)
    if model.kind != "captioner":
        if task != PretrainedSettings():
            raise UserError(f"{name} is no captioner, so it has no settings of one")
        return explainer_of(model, name, target)
    captioner = PretrainedCaptioning(model.on(target), task, source)
    config["task"] = {"class_path": name, "init_args": asdict(task)}
    return Model(captioner.eval(), config, target, source, name)


def _read(name: str, overrides: Sequence[str]) -> tuple[PretrainedSettings, Source | None, dict[str, Any]]:
    """Return the settings, the source of data (None if not given), and the config."""
    options = options_of(overrides)
    wanted, written = dict(inspect.signature(experiment).parameters), {"task": {}, "data": DATA}
    if not any(option.path[0] == "data" for option in options):
        del wanted["data"], written["data"]
    with located(Path(name), options):
        parts = ConfigReader(Names()).all(wanted, written, "", options)
    source = built(parts["data"]) if "data" in parts else None
    if isinstance(source, Captions) and not source.vocabulary_file:
        source.vocabulary = Vocabulary(())  # the model has its own
    return built(parts["task"]), source, {name: plain(value) for name, value in parts.items()}

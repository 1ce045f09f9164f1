"""Read a YAML config with overrides, check it, and build the arguments of training.

The signature of `experiment`, and below it the constructors that the file names, are the schema.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from vision_attn.configuration.another_network import NAME, WEIGHTS, with_network
from vision_attn.configuration.automatic_batch import AUTO, is_automatic, named, placed, with_placeholder
from vision_attn.configuration.moves import REMOVED, moved, moved_option
from vision_attn.configuration.options import Option, parse_options, value_of
from vision_attn.configuration.parts import PartConfig, built, plain
from vision_attn.configuration.reader import ConfigReader, located
from vision_attn.configuration.run_settings import Run
from vision_attn.configuration.trust import Names, RunFolder, Untrusted, Wrong
from vision_attn.configuration.weights import NAME as FILE
from vision_attn.configuration.weights import read_shapes
from vision_attn.system.bounded_yaml import flat, read_yaml
from vision_attn.system.console import say, suggest
from vision_attn.system.errors import UserError
from vision_attn.system.files import find_best, is_utf8, shipped
from vision_attn.task import Source, Task

FROM_SCRATCH = "from scratch, such as configs/sat_soft_small.yaml"
HEAD = "# Written by vision-attn: the whole config of this run, defaults included.\n"


def experiment(
    *,
    task: Callable[[Source], Task],
    data: Source,
    optimizer: Callable[[Iterable], Optimizer],
    schedule: Callable[[Optimizer, int], LRScheduler] | None = None,
    run: Run,
) -> None:
    """Do nothing: the signature is the schema of configs, and the same as that of `engine.fit.fit`.

    It is separate from `fit`, so that opening a run does not import the engine.
    """


@dataclass
class Config:
    """A config, checked and complete: the keys of `experiment`."""

    task: PartConfig
    data: PartConfig
    optimizer: PartConfig
    schedule: PartConfig | None
    run: Run

    def content(self) -> dict[str, Any]:
        """Return the content of a config file, with every default spelled out."""
        return {key: asdict(self.run) if key == "run" else plain(part) for key, part in vars(self).items()}


def read(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read the config in the YAML file `path`, with overrides such as "--task.model.hidden_size=256".

    `run.folder` is `runs/NAME` unless given. If the file names no class for `task`, missing keys of `task` come from
    the run in `run.start_from`. Raises UserError naming the key that is wrong, also for text that is not UTF-8, which
    the config of a run cannot contain.
    """
    path, options = Path(path), options_of(overrides)
    content, options = with_network(_with_task(load(path), options, where=path), options)
    content, options, automatic = with_placeholder(content, options)
    run = content.get("run")
    if run is None or isinstance(run, dict):
        content["run"] = {"folder": str(Path("runs") / path.stem)} | (run or {})
    with located(path, options), named():
        values = ConfigReader(Names()).all(parameters(), content, "", options)
    config = Config(**values | {"run": built(values["run"])})
    if automatic:
        config.data.arguments["batch_size"] = AUTO
    for key, value in flat(config.content()).items():
        if isinstance(value, str) and not is_utf8(value):
            raise UserError(f"{key} is {value!r}, which is not UTF-8 text: give what it names another name")
    return config


def parameters() -> dict[str, inspect.Parameter]:
    """Return the parameters of `experiment`: the keys of a config."""
    return dict(inspect.signature(experiment).parameters)


def options_of(overrides: Sequence[str]) -> list[Option]:
    """Parse overrides, with today's names. Raises UserError for text that is no option."""
    return [Option(*moved_option(option.path, option.text)) for option in parse_options(overrides)]


def _with_task(content: dict[str, Any], options: Sequence[Option], *, where: Path) -> dict[str, Any]:
    """If `task` names no class, complete it from the run that the config starts from. Raises UserError if an option
    removes that run, or names another network for its encoder."""
    run, task = content.get("run"), content.get("task") or {}
    start = run.get("start_from") if isinstance(run, dict) else None
    given = {option.path: option.text for option in options}
    before = start
    if (text := given.get(("run", "start_from"))) is not None:
        start = value_of(text, (str, type(None)), "run.start_from")
    if isinstance(start, str) and given.get(WEIGHTS, "null") != "null" and NAME not in given:
        _tell_encoder(start)
    if start is None and before is not None and isinstance(task, dict) and "class_path" not in task:
        raise UserError(
            f"{where} takes its encoder and its captioner from the run in run.start_from, which can therefore not be "
            f"null: give a run, or train a config {FROM_SCRATCH}"
        )
    if not isinstance(start, str) or not isinstance(task, dict) or "class_path" in task:
        return content
    written = find_best(shipped(start)) / "config.yaml"
    try:
        theirs = plain(
            ConfigReader(RunFolder()).value(load(written).get("task"), parameters()["task"].annotation, "task")
        )
    except Untrusted as error:
        raise UserError(f"{written} names classes of another package: copy its task into {where}") from error
    except Wrong as error:
        raise UserError(f"{written}: {error}") from error
    network, encoder = given.get(NAME), (theirs.get("init_args") or {}).get("encoder")
    if network and isinstance(encoder, dict) and (encoder.get("init_args") or {}).get("name") != network:
        raise UserError(
            f"a run that starts from another, here {start}, keeps its encoder: leave out --task.encoder.name, or train "
            f"a config {FROM_SCRATCH}"
        )
    return content | {"task": theirs | {"init_args": theirs.get("init_args", {}) | (task.get("init_args") or {})}}


def _tell_encoder(start: str) -> None:
    """Print that weights of an encoder in an option have no effect, if the weights in the run `start` include its
    encoder."""
    folder = shipped(start)
    if folder.is_dir() and any(name.startswith("encoder.") for name in read_shapes(find_best(folder) / FILE)):
        say(
            f"a run that starts from another, here {start}, keeps its encoder: --task.encoder.weights has no effect; "
            "for other weights, train from scratch, without run.start_from"
        )


def build(config: Config) -> dict[str, Any]:
    """Build the arguments of training. Seeds torch first, so that constructors sample by run.seed."""
    torch.manual_seed(config.run.seed)
    automatic = is_automatic(config.data)
    described = vars(config) | ({"data": placed(config.data)} if automatic else {})
    arguments = {name: built(part) for name, part in described.items()}
    if automatic:
        arguments["data"].automatic_batch = True
    return arguments


def dump(config: Config) -> str:
    """Return the resolved config as YAML, with every default spelled out."""
    return HEAD + yaml.safe_dump(config.content(), sort_keys=False)


def load(path: Path) -> dict[str, Any]:
    """Read a config file as plain values, with today's names. Raises UserError as `read_yaml` does, and for unknown
    keys."""
    content, known = moved(read_yaml(path), where=path), list(parameters())
    if not isinstance(content, dict):
        raise UserError(f"{path} is no config: it must hold keys such as {', '.join(known)}")
    unknown = [key for key in content if key not in (*known, *REMOVED)]
    if unknown:
        raise UserError(f"{path}: {unknown[0][:80]}: there is no such key{suggest(unknown[0], known)}")
    return {key: value for key, value in content.items() if key not in REMOVED}

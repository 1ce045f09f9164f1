"""Log a run to Weights & Biases and TensorBoard, in addition to metrics.jsonl."""

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vision_attn.configuration.run_settings import Run
from vision_attn.system.bounded_yaml import flat, read_yaml
from vision_attn.system.console import is_quiet, reason_of, say
from vision_attn.system.errors import UserError
from vision_attn.system.files import replacing


class Watchers:
    """The services that receive the lines and pictures of a run. A service that fails does not stop training: it is
    dropped, and a logged line says so."""

    def __init__(self, folder: Path, run: Run, *, step: int | None) -> None:
        """
        step: the step from which the run in `folder` goes on; None for a new run.
        """
        wanted = {
            "wandb": (run.wandb, lambda: WandB(folder)),
            "tensorboard": (run.tensorboard, lambda: Board(folder, step)),
        }
        self.open: dict[str, Any] = {}
        for name, (asked, start) in wanted.items():
            try:
                if asked:
                    self.open[name] = start()
            except Exception as error:
                say(f"{name} failed to start; training without it: {reason_of(error)}")

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of each service."""
        for name, watcher in [*self.open.items()]:
            try:
                getattr(watcher, method)(*arguments)
            except Exception as error:
                say(f"{name} failed; continuing without it: {reason_of(error)}")
                del self.open[name]


def check_watchers(run: Run) -> None:
    """Raise UserError if the package of a service that should watch the run is missing."""
    if run.tensorboard and not find_spec("tensorboard"):
        raise UserError("run.tensorboard needs the package tensorboard: pip install 'vision-attn[tensorboard]'")


class WandB:
    """A run of Weights & Biases, begun or resumed."""

    def __init__(self, folder: Path) -> None:
        """Start with the config of the folder. The environment may set project, name and id.

        Without an account, or if the service cannot be reached, the run is logged offline, and a line says how to
        upload it. In a terminal, wandb itself asks for an account. With --quiet it prints nothing, unless WANDB_SILENT
        says otherwise.
        """
        if is_quiet():
            os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        ours = {"project": "vision_attn", "name": folder.name}  # An argument would win over the environment.
        ours = {name: value for name, value in ours.items() if not os.environ.get(f"WANDB_{name.upper()}")}
        if not os.environ.get("WANDB_RUN_ID"):
            ours["id"] = _identity(folder / "wandb.txt")
        settings: dict[str, Any] = {"dir": str(folder), "config": _config(folder), "resume": "allow", **ours}
        try:
            self.run = wandb.init(**settings)
        except Exception as error:
            if os.environ.get("WANDB_MODE"):
                raise
            sent = f"`wandb login` and then `wandb sync {folder}/wandb/offline-run-*` send it"
            say(f"wandb logs offline ({reason_of(error)}): {sent}")
            self.run = wandb.init(**settings, mode="offline")

    def numbers(self, line: Mapping[str, Any], step: int) -> None:
        self.run.log(dict(line), step=step)

    def pictures(self, paths: Sequence[Path], step: int) -> None:
        """Send pictures and pages, and a table of the pictures with a description, such as captions with their maps."""
        import wandb

        drawn = {path: wandb.Image(str(path), caption=path.stem) for path in _drawn(paths)}
        pages = {path.stem: wandb.Html(str(path)) for path in paths if path.suffix == ".html"}
        rows = [[path.stem, text, drawn[path]] for path in drawn if (text := _description(path))]
        table = {"captions": wandb.Table(columns=["image", "caption", "maps"], data=rows)} if rows else {}
        self.run.log({"pictures": [*drawn.values()], **table, **pages}, step=step)

    def close(self) -> None:
        self.run.finish()


class Board:
    """A log of TensorBoard in the folder tensorboard/ of a run."""

    def __init__(self, folder: Path, step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Lines that a killed run logged after its checkpoint are logged again.
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=0 if step is None else step + 1)
        lines = (f"    {key}: {value}" for key, value in flat(_config(folder)).items())
        self.writer.add_text("config", "\n".join(lines), step or 0)

    def numbers(self, line: Mapping[str, Any], step: int) -> None:
        for name, value in line.items():
            if value is not None:
                self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def pictures(self, paths: Sequence[Path], step: int) -> None:
        """Log pictures, and their descriptions, such as captions. An animation is logged by its first frame."""
        for path in _drawn(paths):
            with Image.open(path) as file:
                self.writer.add_image(path.stem, np.asarray(file.convert("RGB")), step, dataformats="HWC")
            if text := _description(path):
                self.writer.add_text(f"{path.stem}/caption", text, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


def _config(folder: Path) -> dict[str, Any]:
    return read_yaml(folder / "config.yaml") if (folder / "config.yaml").exists() else {}


def _drawn(paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if path.suffix in (".png", ".gif")]


def _description(path: Path) -> str | None:
    """Return the description in a picture file, such as a caption."""
    with Image.open(path) as file:
        return file.info.get("Description")


def _identity(path: Path) -> str:
    """Read the Weights & Biases id of the run from the file `path`; write a new one if it is missing or damaged."""
    with suppress(FileNotFoundError):
        identity = path.read_bytes().strip()
        if re.fullmatch(rb"[\w-]{1,64}", identity):
            return identity.decode()
        say(f"{path} is damaged: Weights & Biases will show the rest as a new run")
    new = secrets.token_hex(4)
    with replacing(path) as temporary:
        temporary.write_text(new)
    return new

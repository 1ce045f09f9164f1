"""Train the model that a config file describes, or resume its run.

Any key of the config can be overridden: --run.epochs=3 --task.model.hidden_size=256. Run the same command again to
resume: after Ctrl-C at the same step, after a crash from the last checkpoint; the final weights are identical. With
several GPUs: torchrun --nproc-per-node=4 train.py CONFIG.
"""

import argparse
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vision_attn.commands._hints import add_config, read_config
from vision_attn.system.console import complain, end_progress, log_lines, plural, say, unit_of
from vision_attn.system.memory import collected_later


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn train`."""
    add_config(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read the config, claim the folder, build and train. Raises UserError for errors in config, data or folder."""
    with collected_later(), log_lines():
        from vision_attn.configuration.config import build
        from vision_attn.data.photographs.captions import Captions
        from vision_attn.data.words import Spaces
        from vision_attn.engine.fit import fit
        from vision_attn.engine.run_folder.claim import keep_batch_size, training
        from vision_attn.metrics.errors import without_softmax
        from vision_attn.metrics.variety import cut_short, sameness

        config = read_config(arguments)
        config.run.folder = str(trial_folder(Path(config.run.folder)))
        keep_batch_size(config)
        parts = build(config)
    first = os.environ.get("RANK", "0") == "0"
    with log_lines(), leaving_at_once(config.run.compile), training(config) as folder:
        if first:
            epochs = plural(config.run.epochs, "epoch")
            say(f"training {arguments.config} for {epochs} into {folder}")
        metrics = fit(**parts)
    if first:
        best = ", ".join(f"{name} {value:.4g}{unit_of(name)}" for name, value in metrics.items())
        say(f"best on validation: {best or 'not validated'}")
        films = parts["data"].films
        unit = "film" if films else "image"
        # The included captioner, from which finetune_photographs starts, knows words of this kind alone.
        photographs = isinstance(parts["data"], Captions) and not films and parts["data"].words in (None, Spaces.kind)
        remarks = *sameness(metrics, unit, photographs=photographs), *cut_short(metrics), *without_softmax(metrics)
        with log_lines():
            for line in (*remarks, f"evaluate it with: vision-attn eval {folder}{trusting(config)}"):
                say(line)
    return 0


@contextmanager
def leaving_at_once(wanted: bool) -> Iterator[None]:
    """Context manager: when a run is interrupted, end this process, if `wanted`, without waiting for its threads, since
    threads of torch's compiler would first finish compiling."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        status = 130 if isinstance(error, KeyboardInterrupt) else error.code
        if not wanted or not isinstance(status, int):
            raise
        from vision_attn.engine.compiling import end_compiler

        end_progress()
        if status == 130:
            complain("interrupted", error=True)
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with suppress(OSError):  # the reader may have left
                stream.flush()
        end_compiler()
        os._exit(status)


def trial_folder(folder: Path) -> Path:
    """Return the folder of a run: in a sweep of Weights & Biases, that of the trial below it."""
    trial = os.environ.get("WANDB_RUN_ID", "") if os.environ.get("WANDB_SWEEP_ID") else ""
    return folder / trial if re.fullmatch(r"[\w-]+", trial) else folder


def trusting(config: Any) -> str:
    """Return the options with which a run of `config` can be opened: --trust for each package of the user's own."""
    from vision_attn.configuration.parts import parts_of
    from vision_attn.configuration.run_folder import OPENED
    from vision_attn.configuration.trust import NEVER

    named = {component.class_path.split(".")[0] for key in OPENED for component in parts_of(getattr(config, key))}
    return "".join(f" --trust {package}" for package in sorted(filter(None, named - NEVER)))

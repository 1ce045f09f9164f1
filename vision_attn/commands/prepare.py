"""Prepare a data set for training: build the vocabulary, and the cache of the outputs of an encoder's frozen part.

Training does this too if it is not done yet. Run the same command again to resume.
"""

import argparse
import re
import shlex
from pathlib import Path
from typing import Any

from vision_attn.commands._files import writable
from vision_attn.commands._hints import add_config, read_config
from vision_attn.system.console import complain, say
from vision_attn.system.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn prepare`."""
    add_config(parser)


def run(arguments: argparse.Namespace) -> int:
    """Build the task of the config, with its pretrained encoder or from `run.start_from`, and let the source prepare
    for it."""
    from vision_attn.configuration.config import build
    from vision_attn.engine.distributed import launched, own_device
    from vision_attn.engine.run_folder.start import started_from
    from vision_attn.tasks.caption import Captioning

    config = read_config(arguments)
    folder = writable(Path(config.run.folder), "--run.folder")
    device = own_device(config.run.device)
    parts = build(config)
    source = parts["data"]
    if config.run.start_from is not None:
        task, _ = started_from(config.run.start_from, parts["task"], source)
    else:
        task = parts["task"](source)
        task.initialise()
    source.prepare(task.to(device))
    if launched()[1] > 0:  # the first process of torchrun exports and reports
        return 0

    if source.vocabulary is not None:
        _check_vocabulary(source.vocabulary, folder)
        source.export(folder)
        say(f"vocabulary: {len(source.vocabulary):,} words, written into {folder}")
    remarks = [*source.remarks]
    for line in remarks:
        complain(line)
    if isinstance(task, Captioning):
        whole = task.encoder
        cached = None if source.cache is None else whole.frozen_part()
        computed = whole if cached is None else cached
        rows, columns = ("any number of" if side < 0 else side for side in computed.grid)
        what = "annotation vectors" if computed is whole else "vectors before the trained layers,"
        where = "computed again for each batch" if cached is None else f"kept in {source.cache}"
        if source.features:
            where = f"read from {source.features}"
        say(f"{rows} x {columns} {what} of {computed.region_size} numbers per {task.unit}, {where}")
    command = shlex.join(["vision-attn", "train", arguments.config, *arguments.overrides])
    advised = " ".join(re.findall(r"--[\w.]+=\d+", " ".join(remarks)))
    hint = f"; to cut no caption, add {advised}" * bool(advised)
    say(f"{len(source):,} batches in an epoch; train with: {command}{hint}")
    return 0


def _check_vocabulary(vocabulary: Any, folder: Path) -> None:
    """Say that another vocabulary in `folder` is replaced. Raises UserError if a run there has begun with it."""
    from vision_attn.engine.run_folder import checkpoint

    begun = checkpoint.begun(folder)
    file = folder / "start" / "vocabulary.json" if begun else folder / "vocabulary.json"
    before = type(vocabulary).load(file) if file.is_file() else vocabulary
    if before.words == vocabulary.words:
        return
    differs = f"the vocabulary of {folder} has {len(before):,} words, and that of this config {len(vocabulary):,}"
    if begun:
        raise UserError(f"{differs}; a run there has begun with it: name another --run.folder")
    complain(f"{differs}; it is replaced")

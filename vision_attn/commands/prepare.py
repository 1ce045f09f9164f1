"""Make what training needs of a data set: the vocabulary, and the cache of annotation vectors of a frozen encoder.

Training does it too, when it is not done yet; stopped or killed, the same command goes on where it was.
"""

import argparse
from pathlib import Path

from vision_attn.commands._hints import read_config
from vision_attn.commands._places import writable
from vision_attn.console import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn prepare`."""
    parser.add_argument("config", metavar="CONFIG", help="a file such as configs/sat_soft_flickr8k.yaml")
    parser.set_defaults(overrides=[])


def run(arguments: argparse.Namespace) -> int:
    """Build the task of the config, with its pretrained encoder, and let the source prepare for it."""
    from vision_attn.commands._opened import torch_device
    from vision_attn.config import build

    config = read_config(arguments)
    folder = writable(Path(config.run.folder), "--run.folder")
    device = torch_device(config.run.device)
    parts = build(config)
    source = parts["data"]
    task = parts["task"](source)
    task.initialise()
    source.prepare(task.to(device))

    vocabulary = getattr(source, "vocabulary", None)
    if vocabulary is not None:
        source.export(folder)
        say(f"vocabulary: {len(vocabulary):,} words, written into {folder}")
    encoder, cache = getattr(task, "encoder", None), getattr(source, "cache", None)
    if encoder is not None:
        rows, columns = encoder.grid
        vectors = f"{rows} x {columns} annotation vectors of {encoder.region_size} numbers per image"
        kept = f"kept in {cache}" if cache and not encoder.trainable else "computed anew for each batch"
        say(f"{vectors}, {kept}")
    say(f"{len(source):,} batches in an epoch; train with: vision-attn train {arguments.config}")
    return 0

"""Train what a config file describes, from nothing or from wherever its run folder stands.

Any key of the config may be overridden: --run.epochs=3 --task.model.hidden_size=256. Stopped, the same command goes on
exactly where it was; killed, from its last checkpoint, to the same end. With several GPUs:
torchrun --nproc-per-node=4 train.py CONFIG.
"""

import argparse
import os


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn train`."""
    parser.add_argument("config", metavar="CONFIG", help="a file such as configs/sat_soft_scenes.yaml")
    parser.set_defaults(overrides=[])


def run(arguments: argparse.Namespace) -> int:
    """Read, claim the folder, build, fit. Raises ValueError for mistakes in config, data or folder."""
    from vision_attn.config import build, claim, read
    from vision_attn.engine.loop import fit

    config = read(arguments.config, arguments.overrides)
    folder = claim(config)
    if os.environ.get("RANK", "0") == "0":
        epochs = f"{config.run.epochs} epoch" + "s" * (config.run.epochs != 1)
        print(f"training {arguments.config} for {epochs} into {folder}", flush=True)
    metrics = fit(**build(config))
    if os.environ.get("RANK", "0") == "0":
        best = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        print(f"best on validation: {best or 'not validated'}\nevaluate it with: vision-attn eval {folder}")
    return 0

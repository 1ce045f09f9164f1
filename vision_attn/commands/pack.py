"""Make a small folder of a trained run that can be copied anywhere: its best weights in float16, and all they need.

The folder holds the whole model, also the weights of a pretrained encoder, and opens without the data and without any
other file: with `caption` and `eval`, and a run starts from it with --run.start_from=FOLDER. An encoder that was
trained with the captioner is frozen in it, which makes it faster. A README.md in the folder is kept.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

from vision_attn.commands._hints import shown
from vision_attn.system.console import say
from vision_attn.system.files import find_best, shipped

KEPT = ("README.md",)
EVALUATED = ("metrics_*.json", "captions_*.json", "glimpses_*.json", "confusion_*.json")
"""What `eval` writes into a packed folder. It belongs to the weights that were there, and goes with them."""
COPIED = ("config.yaml", "vocabulary.json", "classes.json", "image_size.json", "metrics_val.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn pack`."""
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="the folder of a run, or a copy of its best/")
    parser.add_argument("out", type=Path, metavar="FOLDER", help="a new folder, or one that was packed before")


def run(arguments: argparse.Namespace) -> int:
    """Write the folder. Raises ValueError if there is no run, or if FOLDER holds something else."""
    from vision_attn.engine.folders import replacing_folder

    best, out = find_best(shipped(arguments.run_folder)), Path(arguments.out)
    if out.name == "best" or (out.exists() and not replaceable(out)) or out.resolve() == best.resolve():
        raise ValueError(f"{out} holds something else than packed weights: name another folder")
    with replacing_folder(out) as part:
        pack(best, part)
        for name in KEPT:
            if (out / name).is_file():
                shutil.copyfile(out / name, part / name)
    size = sum(path.stat().st_size for path in out.iterdir())
    say(f"{shown(out)}: {size / 1e6:.1f} MB, of {sum(path.stat().st_size for path in best.iterdir()) / 1e6:.1f} MB")
    return 0


def pack(best: Path, part: Path) -> None:
    """Write packed weights into the folder `part`. Raises ValueError if those in `best` are damaged."""
    import yaml

    from vision_attn.configuration.config import HEAD, load
    from vision_attn.configuration.weights import NAME, in_half, read_shapes

    config = load(best / "config.yaml")
    read_shapes(best / NAME)
    for name in COPIED:
        if (best / name).is_file():
            shutil.copyfile(best / name, part / name)
    if freeze(config):
        (part / "config.yaml").write_text(HEAD + yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    in_half(best / NAME, part / NAME)


def freeze(config: dict[str, Any]) -> bool:
    """Freeze the encoder of a captioner in its config. Returns whether a part of it was trained."""
    encoder = config["task"].get("init_args", {}).get("encoder")
    settings = encoder.get("init_args", {}) if isinstance(encoder, dict) else {}
    trained = bool(settings.get("trainable"))
    if trained:
        settings["trainable"] = False
    return trained


def replaceable(out: Path) -> bool:
    """Whether `out` is a folder that holds packed weights alone, or nothing but a README.md."""
    from vision_attn.configuration.weights import NAME

    ours = (NAME, *COPIED, *KEPT, *EVALUATED)
    return out.is_dir() and all(any(path.match(name) for name in ours) for path in out.iterdir())

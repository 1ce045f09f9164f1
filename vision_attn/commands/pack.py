"""Make a small folder of a trained run that can be copied anywhere: its best weights in float16, and all they need.

The folder holds the whole model, also the weights of a pretrained encoder, and opens without the data and without any
other file: with `caption` and `eval`, and a run starts from it with --run.start_from=FOLDER. An encoder that was
trained with the captioner is frozen in it, which makes it faster. A README.md in the folder is kept.
"""

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

from vision_attn.commands._files import place
from vision_attn.commands._hints import shown
from vision_attn.system.console import bytes_of, say
from vision_attn.system.errors import UserError
from vision_attn.system.files import find_best, is_utf8, shipped
from vision_attn.system.splits import PURPOSES

KEPT = ("README.md",)
EVALUATED = ("metrics", "captions", "glimpses", "confusion")
"""The files NAME_SPLIT.json that `eval` writes into a packed folder. They belong to the weights that were there, and
are removed with them."""
COPIED = (
    "config.yaml", "vocabulary.json", "function_words.json", "classes.json", "image_size.json", "metrics_val.json"
)  # fmt: skip

TRAINED = ("best", "last", "previous")
"""The folders of a run, which training replaces."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn pack`."""
    parser.add_argument("run_folder", type=place, metavar="RUN", help="the folder of a run, or a copy of its best/")
    parser.add_argument("out", type=place, metavar="FOLDER", help="a new folder, or one that was packed before")


def run(arguments: argparse.Namespace) -> int:
    """Write the folder. Raises UserError if there is no run, or if FOLDER holds something else."""
    from vision_attn.engine.run_folder.folders import lock_folder, replacing_folder, settle, workplace

    best, out = find_best(shipped(arguments.run_folder)), Path(arguments.out)
    if out.name in ("", ".."):
        raise UserError(f"{out} is the name of no new folder: name the folder itself")
    if not is_utf8(str(out)):
        raise UserError(
            f"{str(out)!r} is not UTF-8 text, but names of folders with weights must be: name another folder"
        )
    out = out.resolve() if out.is_symlink() else out
    other = f"{out} holds something else than packed weights: name another folder"
    if out.name in TRAINED or best.resolve() in (out.resolve(), *out.resolve().parents):
        raise UserError(other)
    with lock_folder(out.parent, f"{workplace(out).name}.lock", packed=out):
        settle(out)  # what a killed process has left
        if os.path.lexists(out) and not replaceable(out):
            raise UserError(other)
        with replacing_folder(out) as scratch:
            pack(best, scratch)
            for name in KEPT:
                if (out / name).is_file():
                    shutil.copyfile(out / name, scratch / name)
    sizes = [bytes_of(sum(path.stat().st_size for path in folder.iterdir())) for folder in (out, best)]
    say(f"{shown(out)}: {sizes[0]}, of {sizes[1]}")
    return 0


def pack(best: Path, out: Path) -> None:
    """Write packed weights into the folder `out`. Raises UserError if those in `best` are damaged."""
    import yaml

    from vision_attn.configuration.config import HEAD, load
    from vision_attn.configuration.weights import NAME, in_half, read_shapes

    config = load(best / "config.yaml")
    read_shapes(best / NAME)
    for name in COPIED:
        if (best / name).is_file():
            shutil.copyfile(best / name, out / name)
    if freeze(config):
        (out / "config.yaml").write_text(HEAD + yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    in_half(best / NAME, out / NAME)


def freeze(config: dict[str, Any]) -> bool:
    """Freeze the encoder of a captioner in its config. Returns whether a part of it was trained."""
    encoder = config["task"].get("init_args", {}).get("encoder")
    settings = encoder.get("init_args", {}) if isinstance(encoder, dict) else {}
    trained = bool(settings.get("trainable"))
    if trained:
        settings["trainable"] = False
    return trained


def replaceable(out: Path) -> bool:
    """Return whether `out` is a folder that holds only packed weights, or nothing but a README.md."""
    from vision_attn.configuration.weights import NAME, is_half

    if not out.is_dir():
        return False
    names = {path.name for path in out.iterdir() if path.is_file()}
    packed = {NAME, "config.yaml"} <= names and is_half(out / NAME)
    evaluated = {f"{name}_{split}.json" for name in EVALUATED for split in PURPOSES}
    ours = {NAME, *COPIED, *KEPT, *evaluated} if packed else {*KEPT}
    return names <= ours and len(names) == len(os.listdir(out))

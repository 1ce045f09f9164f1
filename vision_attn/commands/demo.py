"""Caption five photographs, then train a captioner on drawn scenes in a few minutes, and show where each word looked.

The photographs are captioned by weights/photographs, which is included. The captioner of scenes is measured on unseen
combinations. Everything is written to runs/demo; the last lines say how long training took and how well it does. Run it
again to resume after an interruption, or to evaluate a finished run again.
"""

import argparse
import time
from pathlib import Path

from vision_attn.commands._files import place
from vision_attn.commands._hints import shown
from vision_attn.system.console import say
from vision_attn.system.files import ours, read_json

NAME = "sat_soft_scenes.yaml"
SHOWN = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn demo`."""
    parser.add_argument("--out", type=place, default=Path("runs/demo"), metavar="FOLDER", help="default: runs/demo")
    parser.set_defaults(overrides=[])


def run(arguments: argparse.Namespace) -> int:
    """Run `caption`, then `train` and `eval --show` with configs/sat_soft_scenes.yaml."""
    from vision_attn.commands import main

    out, photographs = arguments.out, sorted((ours() / "docs" / "photographs").glob("*.jpg"))
    say("photographs, and their captions by the included captioner, which knows everyday things:")
    if status := main(["caption", *(str(shown(path)) for path in photographs), f"--out={out / 'photographs'}"]):
        return status
    say("")
    start = time.perf_counter()
    if status := main(["train", str(ours() / "configs" / NAME), f"--run.folder={out}", *arguments.overrides]):
        return status
    say("")
    say("on scenes with combinations that are not in the training data:")
    status = main(["eval", str(out), f"--show={SHOWN}"])
    if (out / "metrics_test.json").is_file():
        metrics = read_json(out / "metrics_test.json")
        minutes, seconds = divmod(round(time.perf_counter() - start), 60)
        say("")
        say(f"{minutes} min {seconds} s: BLEU-4 {metrics['BLEU-4']:.3f}, pointing {metrics['pointing']:.3f}")
    say("")
    say("pointing: how often the most attended region lies on the object that the word names.")
    say(f"point at a word to see where it looked: {(out / 'pictures_test' / 'index.html').resolve()}")
    return status

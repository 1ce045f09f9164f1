"""Caption five photographs, then train a captioner on drawn scenes in a few minutes, and show where each word looked.

The photographs are captioned by weights/photographs, which is included. The captioner of scenes is measured on unseen
combinations. Everything is written to runs/demo; the last lines say how long training took and how well it does. Run it
again to resume after an interruption, or to evaluate a finished run again.
"""

import argparse
import time
from pathlib import Path
from types import ModuleType

from vision_attn.commands._hints import shown
from vision_attn.system.console import say
from vision_attn.system.files import ours, read_json

NAME = "sat_soft_scenes.yaml"
SHOWN = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn demo`."""
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), metavar="FOLDER", help="default: runs/demo")
    parser.set_defaults(overrides=[])


def run(arguments: argparse.Namespace) -> int:
    """Caption the photographs, then run `train` and `eval --show` with configs/sat_soft_scenes.yaml."""
    from vision_attn.commands import eval as evaluation
    from vision_attn.commands import train

    config, out = ours() / "configs" / NAME, arguments.out
    caption_photographs(ours() / "docs" / "photographs", out / "photographs")
    start = time.perf_counter()
    overrides = [f"--run.folder={out}", *arguments.overrides]
    status = train.run(argparse.Namespace(config=config, overrides=overrides))
    say("")
    say("on scenes with combinations that are not in the training data:")
    status = status or run_command(evaluation, [str(out), "--show", str(SHOWN)])
    if (out / "metrics_test.json").is_file():
        metrics = read_json(out / "metrics_test.json")
        minutes, seconds = divmod(round(time.perf_counter() - start), 60)
        say("")
        say(f"{minutes} min {seconds} s: BLEU-4 {metrics['BLEU-4']:.3f}, pointing {metrics['pointing']:.3f}")
    say("")
    say("pointing: how often the most attended region lies on the object that the word names.")
    say(f"point at a word to see where it looked: {(out / 'pictures_test' / 'index.html').resolve()}")
    return status


def caption_photographs(photographs: Path, out: Path) -> None:
    """Print captions of all photographs in a folder, and write a page of where each word looked into `out`."""
    from vision_attn.commands import caption

    paths = [str(shown(path)) for path in sorted(photographs.glob("*.jpg"))]
    say("photographs, and their captions by the included captioner, which knows little but people and dogs outdoors:")
    run_command(caption, [*paths, "--out", str(out)])
    say("")


def run_command(command: ModuleType, words: list[str]) -> int:
    """Run another command with the defaults of its options."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))

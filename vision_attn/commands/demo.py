"""Train a captioner on drawn scenes in a few minutes, measure it on unseen combinations, and show where it looks.

Everything is written to runs/demo. Run it again to resume after an interruption, or to evaluate a finished run again.
If the config or the code has changed since, it trains from scratch.
"""

import argparse
import shutil
from pathlib import Path

from vision_attn.console import say

NAME = "sat_soft_scenes.yaml"
SHOWN = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn demo`."""
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), metavar="FOLDER", help="default: runs/demo")
    parser.set_defaults(overrides=[])


def run(arguments: argparse.Namespace) -> int:
    """Run `train`, then `eval --show`, with configs/sat_soft_scenes.yaml."""
    import vision_attn
    from vision_attn.commands import eval as evaluation
    from vision_attn.commands import train

    root = Path(vision_attn.__file__).parent.parent
    config, out = root / "configs" / NAME, arguments.out
    if not config.is_file():
        raise ValueError(f"{config} does not exist: the demo runs from a checkout of the project, not from a wheel")
    if outdated(out, [config, *Path(vision_attn.__file__).parent.rglob("*.py")]):
        say(f"{out} was made by other code or another config: training from scratch")
        shutil.rmtree(out)

    overrides = [f"--run.folder={out}", *arguments.overrides]
    status = train.run(argparse.Namespace(config=config, overrides=overrides))
    say("")
    say("on scenes with combinations that are not in the training data:")
    options = {"beams": None, "device": "auto", "trust": [], "overrides": [], "out": None, "split": "test"}
    status = status or evaluation.run(argparse.Namespace(folder=out, show=SHOWN, **options))
    say("")
    say("pointing: how often the most attended region lies on the object that the word names.")
    say(f"point at a word to see where it looked: {(out / 'pictures' / 'index.html').resolve()}")
    return status


def outdated(out: Path, sources: list[Path]) -> bool:
    """Return whether config or code are newer than the demo in `out`. False for any other folder, which is kept."""
    made = out / "config.yaml"
    ours = made.is_file() and "vision_attn.data.scenes.Scenes" in made.read_text(encoding="utf-8", errors="replace")
    return ours and max(source.stat().st_mtime for source in sources) > made.stat().st_mtime

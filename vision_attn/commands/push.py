"""Upload a trained run to the Hugging Face Hub, with a model card, for vision_attn.load("hf://USER/NAME").

Uploads what `pack` makes: the best weights in float16, the config, the vocabulary and the metrics. The card names the
model, its data and its metrics, and how to use it; a README.md beside the weights is used instead. Log in with
`hf auth login` first, or set HF_TOKEN.
"""

import argparse
from pathlib import Path

from vision_attn.commands._run_options import named
from vision_attn.commands.pack import pack
from vision_attn.system.console import say
from vision_attn.system.files import scratch, shipped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn push`."""
    parser.add_argument("run_folder", type=named, metavar="RUN", help="the folder of a run, or a copy of its best/")
    parser.add_argument("name", metavar="USER/NAME", help="the repository on the hub; made if necessary")
    parser.add_argument("--private", action="store_true", help="make the repository private")


def run(arguments: argparse.Namespace) -> int:
    """Pack, write the card and upload. Raises UserError if there is no run, or if the hub refuses it."""
    from vision_attn.configuration.config import find_best
    from vision_attn.configuration.hub import card, upload

    folder = shipped(arguments.run_folder)
    best = find_best(folder)
    with scratch("push") as packed:
        pack(best, packed)
        readme = best / "README.md"
        if readme.is_file():
            (packed / "README.md").write_bytes(readme.read_bytes())
        text = card(packed, arguments.name, Path(folder).resolve().name)
        (packed / "README.md").write_text(text, encoding="utf-8")
        address = upload(packed, arguments.name, private=arguments.private)
    say(f'uploaded: vision_attn.load("{address}")')
    return 0

"""Serve a web page on this machine: choose a photograph, or draw a digit, and see where models look.

MODEL is a run, or a model of another library, named as for `vision-attn look`: a torchvision name, timm:NAME,
transformers:NAME-or-folder, or module:function with --trust. Without a MODEL, the included runs: the captioner of
photographs, RAM and DRAW's reader. Two models of photographs, or two of digits, are compared side by side. Images are
neither stored nor logged. The page is at http://127.0.0.1:7860, for this machine alone; --host lets others in, without
a password. docs/look.md lists the limits of uploads, connections and time.
"""

import argparse
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from vision_attn.commands._run_options import add_device_and_trust, add_prompt, named
from vision_attn.system.console import complain, say
from vision_attn.system.errors import UserError
from vision_attn.system.files import is_pretrained

ALONG = ("weights/photographs", "weights/ram_cluttered60", "weights/draw_reader_cluttered100")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn serve`."""
    parser.add_argument(
        "models", nargs="*", type=named, metavar="MODEL",
        help="a run, a copy of its best/, hf://USER/NAME, or a model named as for vision-attn look",
    )  # fmt: skip
    parser.add_argument(
        "--weights", action="append", metavar="FILE",
        help="of torchvision and timm: a file of weights, or none for random ones; once for each of these models",
    )  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="0.0.0.0 for all (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=7860, metavar="N", help="default: 7860")
    add_prompt(parser)
    add_device_and_trust(parser)


def short_names(names: Sequence[str]) -> list[str]:
    """Shorten each name to as many of its last parts as distinguish different names."""
    parts = [Path(name).parts for name in names]

    def short(mine: tuple[str, ...]) -> str:
        others = [other for other in parts if other != mine]
        number = next((n for n in range(1, len(mine)) if all(mine[-n:] != other[-n:] for other in others)), len(mine))
        return "/".join(mine[-number:])

    return [short(mine) or name for name, mine in zip(names, parts, strict=True)]


def run(arguments: argparse.Namespace) -> int:
    """Load the models and serve them until Ctrl-C. Raises UserError if one cannot be opened or shown, or the address
    used."""
    if missing := [name for name in ("starlette", "uvicorn") if find_spec(name) is None]:
        raise UserError(f"the page needs {' and '.join(missing)}: pip install 'vision-attn[web]'")
    if not 0 <= arguments.port < 2**16:
        raise UserError(f"--port is {arguments.port}: give a number from 1 to 65535, or 0 for any that is free")
    names = arguments.models or ALONG
    say(f"loading {', '.join(names)} ...")
    from vision_attn.api import load
    from vision_attn.results.explainer import is_run_name
    from vision_attn.web import make_server

    others = [name for name in names if not is_run_name(name)]
    weights = arguments.weights or [None] * len(others)
    if len(weights) != len(others):
        raise UserError(f"--weights is given {len(weights)} times, but {len(others)} models are no runs: give as many")
    given = iter(weights)
    options = {"device": arguments.device, "trust": arguments.trust}
    server = make_server([], host=arguments.host, port=arguments.port)  # a port in use is found before loading
    try:
        with server:
            for name, title in zip(names, short_names(names), strict=True):
                file = None if is_run_name(name) else next(given)
                given_prompt = {"prompt": arguments.prompt} if arguments.prompt and is_pretrained(name) else {}
                model = load(name, weights=file, **given_prompt, **options)
                model.choose_threads()
                server.add(title, model)
            say(f"ready: open {server.url} in a browser; Ctrl-C ends it")
            server.serve_forever()
    except KeyboardInterrupt:
        if server.is_computing:  # for clients that were told 503. Python would wait for its thread
            complain("interrupted", error=True)
            os._exit(130)
        raise
    return 0

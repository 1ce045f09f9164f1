"""Serve a web page on this machine: drop a photograph, or draw a digit, and watch where models look.

Without a MODEL, the included ones: the captioner of photographs, RAM and DRAW's reader. Two captioners, or two
classifiers, are compared side by side. Images are neither stored nor logged. The page is at http://127.0.0.1:7860, for
this machine alone; --host lets others in, without a password.
"""

import argparse

from vision_attn.console import say

ALONG = ("weights/photographs", "weights/ram_cluttered60", "weights/dram_cluttered100")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn serve`."""
    parser.add_argument("models", nargs="*", metavar="MODEL", help="a run, a copy of its best/, or hf://USER/NAME")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="0.0.0.0 for all (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=7860, metavar="N", help="default: 7860")
    parser.add_argument("--device", default="auto", help="auto (cuda or mps where there is one), cpu, cuda, ...")
    parser.add_argument(
        "--trust", action="append", default=[], metavar="PACKAGE", help="let a run's config import this package too"
    )


def run(arguments: argparse.Namespace) -> int:
    """Load the models and serve them until Ctrl-C. Raises ValueError if one cannot be opened, or the address used."""
    from vision_attn.api import load
    from vision_attn.web import make_server

    names = arguments.models or ALONG
    with make_server([], host=arguments.host, port=arguments.port) as server:  # a port in use is found before loading
        server.models += [(name, load(name, device=arguments.device, trust=arguments.trust)) for name in names]
        say(f"open http://{arguments.host}:{server.server_port} in a browser; Ctrl-C ends it")
        server.serve_forever()
    return 0

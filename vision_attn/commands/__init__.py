"""The command line: one verb per file of this folder. A new file here is a new verb.

A verb's file has a docstring, whose first line is its help, and two functions: `add_arguments(parser)` and
`run(arguments) -> int`, the exit status. A verb that sets the default `overrides=[]` gets in it whatever options it
does not know, such as `--run.epochs=3`. Nothing is imported but the verb that was asked for.
"""

import argparse
import ast
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from vision_attn import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. A user's mistake is one line on standard error and a status that is not 0."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="vision-attn", description="Image captioners that show where they look.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"vision-attn {__version__}")
    parsers = parser.add_subparsers(metavar="VERB", required=True, title="verbs")
    verbs = {path.stem: path for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))}
    chosen = next((word for word in argv if not word.startswith("-")), None)
    try:
        for name, path in verbs.items():
            words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            verb = parsers.add_parser(
                name, help=words.split("\n")[0], description=words, allow_abbrev=False,
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )  # fmt: skip
            verb.add_argument("--debug", action="store_true", help="show the traceback of an error")
            if name == chosen:
                module = import_module(f"{__name__}.{name}")
                module.add_arguments(verb)
                verb.set_defaults(run=module.run, parser=verb)
        arguments, rest = parser.parse_known_args(argv)
        if rest and not hasattr(arguments, "overrides"):
            arguments.parser.error(f"unrecognized arguments: {' '.join(rest)}")
        arguments.overrides = rest
        logging.basicConfig(format="vision-attn: %(message)s", level=logging.INFO)
        return arguments.run(arguments)
    except (ValueError, OSError, KeyboardInterrupt) as error:
        if os.environ.get("VISION_ATTN_DEBUG", "0") not in ("", "0") or "--debug" in argv:
            raise
        return _complain(error)


def _complain(error: BaseException) -> int:
    """One line for what went wrong, and the exit status."""
    if isinstance(error, KeyboardInterrupt):
        print("vision-attn: interrupted", file=sys.stderr)
        return 130
    if isinstance(error, BrokenPipeError):
        # Whatever is still buffered has no reader: let Python's flush at exit go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("vision-attn: error: whoever read the output closed it", file=sys.stderr)
        return 141
    print(f"vision-attn: error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
    return 1

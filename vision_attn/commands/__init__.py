"""The command line: one verb per file of this folder. A new file here is a new verb.

A verb's file has a docstring, whose first line is its help, and two functions: `add_arguments(parser)` and
`run(arguments) -> int`, the exit status. A verb that sets the default `overrides=[]` gets in it whatever options it
does not know, such as `--run.epochs=3`. Nothing is imported but the verb that was asked for.

Exit statuses: 0, done; 1, a mistake of the user, a damaged file or a full disk; 2, a mistake in the arguments; 70, a
bug of ours; 130, interrupted; 141, nobody reads the output. Every failure is one line on standard error. A bug is one
line too, with its place in the code: a traceback tells users nothing, and `--debug` (or VISION_ATTN_DEBUG=1) shows it.
"""

import argparse
import ast
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from vision_attn import __version__
from vision_attn.console import complain, log_to_terminal, printable

BUG = 70  # EX_SOFTWARE of sysexits.h
LONGEST = 2000  # characters of a complaint: what it quotes may be a whole file


class Parser(argparse.ArgumentParser):
    """Escapes what it says of arguments: a wildcard may have made them out of any file's name."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status. See above for what a failure prints."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(prog="vision-attn", description="Image captioners that show where they look.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"vision-attn {__version__}")
    parsers = parser.add_subparsers(metavar="VERB", required=True, title="verbs")
    verbs = {path.stem: path for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))}
    chosen = next((word for word in argv if not word.startswith("-")), None)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be any bytes
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
        log_to_terminal()
        return arguments.run(arguments)
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        if os.environ.get("VISION_ATTN_DEBUG", "0") not in ("", "0") or "--debug" in argv:
            raise
        return _tell(error)


def _tell(error: BaseException) -> int:
    """Print one line for what went wrong; returns the exit status."""
    if isinstance(error, KeyboardInterrupt):
        complain("interrupted")
        return 130
    if isinstance(error, BrokenPipeError):
        # Whatever is still buffered has no reader: let Python's flush at exit go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        complain("error: whoever read the output closed it")
        return 141
    line = " ".join(_reason(error).split())
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 4 :]}"
    complain(f"error: {line}")
    return 1 if _expected(error) else BUG


def _expected(error: BaseException) -> bool:
    """Whether the user, a file or the machine is at fault, as far as its type tells."""
    return isinstance(error, ValueError | OSError | MemoryError | RecursionError) or _panic(error) or _memory(error)


def _reason(error: BaseException) -> str:
    """What to tell of `error`."""
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        full = "; free some space, then run the same command again" * (error.errno in (errno.ENOSPC, errno.EDQUOT))
        return f"{error.filename}: {error.strerror}{full}"
    if isinstance(error, ValueError | OSError):
        return text or type(error).__name__
    if _memory(error):
        return f"out of memory ({text or type(error).__name__}): take smaller batches, with --data.batch_size, say"
    if isinstance(error, RecursionError):
        return "something that was read is nested too deeply, or refers to itself"
    if _panic(error):
        return f"a library gave up on something that it read: {text}"
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "vision_attn" in frame.filename] or frames[-1:]
    place = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return f"this is a bug in vision-attn: {type(error).__name__}{place}: {text}; --debug shows where it came from"


def _memory(error: BaseException) -> bool:
    """Python's MemoryError, and what torch raises in its place."""
    said = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("out of memory" in said or "can't allocate memory" in said)
    )


def _panic(error: BaseException) -> bool:
    """Whether a library written in Rust failed an assertion of its own: tokenizers and safetensors may."""
    return type(error).__name__ == "PanicException"

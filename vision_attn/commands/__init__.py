"""The command line: each file of this folder is a subcommand (a verb), so a new file adds one.

A verb's file has a docstring, whose first line is its help, and two functions: `add_arguments(parser)` and
`run(arguments) -> int`, which returns the exit status. A verb that sets the default `overrides=[]` receives all unknown
options there, such as `--run.epochs=3`. Only the requested verb is imported.

Exit statuses: 0, success; 1, a user error (`UserError`, or any error in code of the user's own), a damaged file or a
full disk; 2, an error in the arguments; 70, a bug in vision-attn, such as any other ValueError; 130, interrupted; 141,
output closed by its reader. Every failure is one line on standard error, except the last. For a bug it names the place
in the code; `--debug` (or VISION_ATTN_DEBUG=1) shows the traceback.
"""

import argparse
import ast
import inspect
import logging
import os
import platform
import signal
import sys
import threading
import time
import tokenize
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from vision_attn import __version__
from vision_attn.commands._hints import HELD, joined, spaces_held
from vision_attn.engine.timing.start import START
from vision_attn.system.console import complain, discard, end_progress, log_to_terminal, printable, suggest
from vision_attn.system.errors import UserError
from vision_attn.system.files import way_on
from vision_attn.system.inputs import inputs_kept
from vision_attn.system.memory import check_address_space, is_short_of_memory, left_at_exit, shortage, way_out
from vision_attn.system.own_code import place_of

BUG = 70  # EX_SOFTWARE of sysexits.h
log = logging.getLogger(__name__)
LONGEST = 2000  # characters of an error message, which may quote a whole file


class Parser(argparse.ArgumentParser):
    """A parser that escapes arguments in error messages: a shell wildcard may expand to any file name."""

    given: Sequence[str] = ()
    """The command line."""

    @property
    def actions(self) -> Sequence[argparse.Action]:
        """The arguments that were added, of which argparse has no public list."""
        return self._actions

    @property
    def options(self) -> Collection[str]:
        """The options that were added, such as --debug."""
        return {option: action for action in self.actions for option in action.option_strings}

    def error(self, message: str) -> NoReturn:
        taking = [
            name
            for action in self.actions
            if action.nargs == "+"
            for name in action.option_strings
            if name in self.given
        ]
        if taking and "are required" in message:
            message += f"; {taking[0]} takes all that follows: name them before it"
        super().error(printable(message))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status (see the module docstring)."""
    argv = given = list(sys.argv[1:] if argv is None else argv)
    began = time.perf_counter()
    START.begin()
    left_at_exit()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names may hold any bytes
    try:
        chosen = next((word for word in argv if not word.startswith("-")), None)
        parser, verbs = parser_of(chosen)
        if not argv:
            parser.print_help(sys.stderr)
            return 2
        if chosen and chosen not in verbs:
            parser.error(f"there is no verb {chosen}{suggest(chosen, verbs)}")
        if chosen in verbs:
            verbs[chosen].given = argv
        if chosen in verbs and verbs[chosen].get_default("overrides") is not None:
            argv = spaces_held(joined(argv, verbs[chosen].options), verbs[chosen].options)
        elif chosen in verbs and argv[0] == chosen:  # names may follow options
            parser, argv = verbs[chosen], argv[1:]
        mixed = parser is verbs.get(chosen or "")
        if mixed and "--" in argv:  # which argparse loses where names may follow options
            end = argv.index("--")
            argv = argv[:end] + [f"./{word}" if word.startswith("-") else word for word in argv[end + 1 :]]
        arguments, rest = parser.parse_known_intermixed_args(argv) if mixed else parser.parse_known_args(argv)
        if rest and not hasattr(arguments, "overrides"):
            arguments.parser.error(f"unrecognized arguments: {' '.join(rest)}")
        arguments.overrides = [word.replace(HELD, " ") for word in rest]
        log_to_terminal(quiet=arguments.quiet, verbose=arguments.verbose)
        if chosen != "completion":
            check_address_space()
        with inputs_kept(), _noting_signals():
            log.debug("vision-attn %s, Python %s: %s", __version__, platform.python_version(), " ".join(given))
            status = arguments.run(arguments)
            log.debug("done in %.1f s, exit status %d", time.perf_counter() - began, status)
            return status
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic in a Rust library is not an Exception
        if os.environ.get("VISION_ATTN_DEBUG", "0") not in ("", "0") or "--debug" in argv:
            raise
        return _tell(error)


def parser_of(*chosen: str | None) -> tuple[Parser, dict[str, Parser]]:
    """Create the parser of the command line, and of each verb. Only the `chosen` verbs are imported and have their
    arguments."""
    parser = Parser(
        prog="vision-attn",
        description="Image captioning and recurrent visual attention: train, measure, and see where a model looks.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"vision-attn {__version__}")
    parsers = parser.add_subparsers(metavar="VERB", required=True, title="verbs")
    verbs = {}
    for name, path in all_verbs().items():
        words = docstring(path)
        verb = verbs[name] = parsers.add_parser(
            name, help=words.split("\n")[0], description=words, allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        verb.add_argument("--debug", action="store_true", help="show the traceback of an error")
        loudness = verb.add_mutually_exclusive_group()
        loudness.add_argument(
            "--quiet", action="store_true", help="print results and errors alone: no progress, no remarks"
        )
        loudness.add_argument("--verbose", action="store_true", help="also print what is opened, written and timed")
        if name in chosen:
            module = import_module(f"{__name__}.{name}")
            module.add_arguments(verb)
            verb.set_defaults(run=module.run, parser=verb)
    return parser, verbs


def docstring(path: Path) -> str:
    """Return the docstring of a module. Only the file's beginning is read: each command reads the files of all verbs,
    and parsing them takes longer than many a command."""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                return inspect.cleandoc(ast.literal_eval(token.string)) if token.type == tokenize.STRING else ""
    return ""


def all_verbs() -> dict[str, Path]:
    """Return the file of each verb."""
    return {path.stem: path for folder in __path__ for path in sorted(Path(folder).glob("[a-z]*.py"))}


def _tell(error: BaseException) -> int:
    """Print one line about an error. Returns the exit status."""
    end_progress()
    if _is_interrupt(error):
        complain("interrupted", error=True)
        return 130
    if isinstance(error, BrokenPipeError):
        discard(sys.stdout)  # or Python's flush at exit would fail
        return 141
    message, status = _message_and_status(error)
    line = " ".join(message.split())
    if len(line) > LONGEST:
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 4 :]}"
    complain(f"error: {line}", error=True)
    return status


_signals: list[int] = []
"""The interruptions of this process: a library that is interrupted while it is imported may lose the exception."""


@contextmanager
def _noting_signals() -> Iterator[None]:
    """Note Ctrl-C in `_signals` within this context; it still raises KeyboardInterrupt."""
    default = signal.default_int_handler
    _signals.clear()
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not default:
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        _signals.append(number)
        default(number, frame)

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, default)


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether Ctrl-C is the cause: a library may turn it into an error of its own, such as while imported."""
    if _signals and not isinstance(error, UserError | OSError):
        return True
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _message_and_status(error: BaseException) -> tuple[str, int]:
    """Return the message for an error, and the exit status: 1 where the user, a file or the machine is the cause."""
    text = str(error) or type(error).__name__
    if type(error).__name__ == "PanicException":  # of a library in Rust: tokenizers or safetensors
        return f"a library failed on an input: {text}", 1
    if is_short_of_memory(error):
        return f"out of memory ({shortage(error)}): {way_out()}", 1
    if isinstance(error, RecursionError):
        return "an input is nested too deeply, or contains itself", 1
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}{way_on(error)}", 1
    if isinstance(error, UserError | OSError):
        return text, 1
    frame, owner = place_of(error)
    whose = "this is a bug in vision-attn" if owner == "ours" else "your own code failed"
    place = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
    message = f"{whose}: {place}: {text}; --debug shows where it came from"
    return message, BUG if owner == "ours" else 1

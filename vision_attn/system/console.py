"""Console output: a progress bar for long work, and text that is safe to print to a terminal.

File names, captions, words and messages of other libraries may hold any characters. Print text that contains them with
`say`, `complain` or the handler of `log_to_terminal`.
"""

import difflib
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tqdm import tqdm

SECONDS = 30.0
"""Seconds between two lines of progress if standard error is not a terminal."""
_quiet = False
"""Whether `complain` prints errors alone, and no progress is shown: set by `log_to_terminal`."""
_logging = False
"""Whether lines of `say` belong to a log, and are not results: set within `log_lines`."""


def progress(
    items: Iterable | None = None, *, what: str, unit: str, total: int | None = None, initial: int = 0
) -> tqdm:
    """Return a tqdm bar over `items`, or one to `update` manually, on standard error.

    If standard error is not a terminal (a pipe, a log file), the bar prints a line every 30 seconds instead; with
    --quiet, nothing.
    """
    options: dict[str, Any] = {"mininterval": 0.1, "dynamic_ncols": True}
    bar = tqdm
    if _quiet or sys.stderr is None:  # closed by the parent process
        options = {"disable": True}
    elif not sys.stderr.isatty():
        bar, options = _Lines, {"mininterval": SECONDS, "maxinterval": SECONDS, "ncols": 100}
    return bar(
        items, desc=printable(what), unit=unit, unit_scale=False, total=total, initial=initial, leave=False, **options
    )  # fmt: skip


def leave_out(bar: tqdm, seconds: float) -> None:
    """Exclude the latest `seconds` from the estimate of the remaining time of `bar`."""
    if not bar.disable:
        bar.start_t += seconds
        bar.last_print_t += seconds


def end_progress() -> None:
    """Remove the bars of work that an error ended; otherwise they would be drawn again below its message."""
    for bar in list(getattr(tqdm, "_instances", ())):
        with suppress(OSError):  # the reader may have left
            bar.close()


def say(*columns: str) -> None:
    """Print one line on standard output, above any progress bar, with tabs between columns. With --quiet, lines within
    `log_lines` are not printed."""
    if sys.stdout is not None and not (_quiet and _logging):
        _write("\t".join(map(printable, columns)), sys.stdout)


@contextmanager
def log_lines() -> Iterator[None]:
    """Context manager: mark the lines of `say` as the log of long work, such as training, which --quiet silences."""
    global _logging
    before, _logging = _logging, True
    try:
        yield
    finally:
        _logging = before


def is_quiet() -> bool:
    """Return whether --quiet was given."""
    return _quiet


def unit_of(metric: str) -> str:
    """Return the unit that follows a metric: "%" for errors, which all tasks give in percent."""
    return "%" if metric == "error" or metric.startswith("error_") else ""


def signed(value: float) -> str:
    """Return a number with its sign and three decimals, or with two digits if it is too small for three decimals."""
    return f"{value:+.3f}" if not value or abs(value) >= 0.0005 else f"{value:+.1e}"


def complain(text: str, by: str = "vision-attn", *, error: bool = False) -> None:
    """Print one line on standard error, above any progress bar, prefixed with the name of the program, or of the
    library that complains. With --quiet, only if it is an error."""
    if sys.stderr is not None and (error or not _quiet):
        _write(printable(f"{by}: {text}"), sys.stderr)


_unread: dict[Any, BrokenPipeError] | None = None
"""The streams without a reader, within `to_the_end`; None outside of it."""


def _write(line: str, stream: Any) -> None:
    if _unread and stream in _unread:
        return
    try:
        try:
            tqdm.write(line, file=stream)
        except AttributeError:  # of tqdm, which could not make its lock: memory is short
            stream.write(f"{line}\n")
        stream.flush()
    except BrokenPipeError as error:
        if _unread is None:
            raise
        _unread[stream] = error
        discard(stream)


def discard(stream: Any) -> None:
    """Redirect a stream without a reader, its buffer included, to the null device."""
    with suppress(OSError, ValueError):  # a stream of a notebook or a test may have no file
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
        finally:
            os.close(null)


@contextmanager
def to_the_end(needed: bool = True) -> Iterator[None]:
    """Context manager: continue when the reader of the output leaves, as in `vision-attn caption ... | head -1`, so
    that files are written completely, and raise the BrokenPipeError at the end. Does nothing unless `needed`."""
    global _unread
    if not needed or _unread is not None:
        yield
        return
    _unread = {}
    try:
        yield
        for error in _unread.values():
            raise error
    finally:
        _unread = None


def suggest(word: str, known: Iterable[str]) -> str:
    """Return a suggestion such as `; did you mean hidden_size?`, or the whole list if no name is similar. Case is
    ignored."""
    known, same = sorted(known), word.casefold()
    folded = {name.casefold(): name for name in known}
    close = [name for name in known if name.casefold().startswith(same)][:3]
    close = close or [folded[name] for name in difflib.get_close_matches(same, folded, n=3)]
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return f"; choose from: {', '.join(known)}" if len(known) in range(1, 40) else ""


def few(names: Sequence[str], most: int = 3) -> str:
    """Return the first `most` names, and how many more there are."""
    return ", ".join(names[:most]) + f" and {len(names) - most} more" * (len(names) > most)


def plural(number: int, noun: str) -> str:
    """Return a number of things in words: "1 image", "2,000 images"."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def bytes_of(number: int | float) -> str:
    """Return a number of bytes in a suitable unit: "12.3 kB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000
    return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"


def with_article(noun: str) -> str:
    """Return a noun with its article: "a tuple", "an int"."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def reason_of(error: BaseException) -> str:
    """Return the message of an error in one line of at most 300 characters; its type if it has no message."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def log_to_terminal(*, quiet: bool = False, verbose: bool = False) -> None:
    """Print `logging` messages with `complain`, unless logging is configured already. Other libraries print only
    warnings, under their names. Pillow's messages about damaged files are left out, since our errors name the files.

    quiet: print errors alone, also with `complain`, and no progress.
    verbose: also print this package's messages for debugging.
    """
    global _quiet
    _quiet = quiet
    logging.basicConfig(handlers=[_Complaints()], level=logging.WARNING)
    logging.getLogger("vision_attn").setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"PIL\.")


class _Complaints(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            library = record.name.partition(".")[0]
            by = "vision-attn" if library == "vision_attn" else library
            complain(record.getMessage(), by, error=record.levelno >= logging.ERROR)
        except Exception:
            self.handleError(record)


def printable(text: str) -> str:
    r"""Escape control characters, line separators and bidirectional control characters in `text`, such as \n.

    Unescaped, a file name or a word could forge a line of output or send commands to the terminal. Bytes that are not
    UTF-8 (surrogates of `os.fsdecode`) are kept, except control bytes.
    """
    return _HARMFUL.sub(_escaped, text)


_HARMFUL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udc9f\udd00-\udfff]")
"""Control characters, also as bytes that are not UTF-8; line separators; bidirectional control characters; halves of
characters."""


def _escaped(match: re.Match) -> str:
    character = match[0]
    if "\udc80" <= character < "\udd00":
        return f"\\x{ord(character) - 0xDC00:02x}"
    return ascii(character)[1:-1]  # unlike .encode("unicode_escape"), imports nothing, so needs no file descriptor


class _Lines(tqdm):
    """A progress bar that prints a new line at most every `SECONDS`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.printed = time.monotonic()
        super().__init__(*arguments, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if msg is None and time.monotonic() - self.printed >= SECONDS:
            self.printed = time.monotonic()
            with suppress(BrokenPipeError):  # progress is not worth a failure
                self.fp.write(f"{self}\n")
                self.fp.flush()

    def clear(self, nolock: bool = False) -> None:
        """Clear nothing: lines stay."""

"""Python's garbage collector at start-up and at the end, where there is nothing for it to find.

Importing torch makes a million objects that all stay. Looking through them again and again takes a fifth of the time
of importing, and once more at exit a third.
"""

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_later() -> Iterator[None]:
    """Within this context, the garbage collector does not run; later, it leaves out what was made here."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if running:
            gc.enable()


def left_at_exit() -> None:
    """At exit, leave all objects to the operating system. Files are closed and exit handlers run as always."""
    atexit.register(_leave)


def _leave() -> None:
    if "triton" in sys.modules:  # it complains of each of its objects that is left
        gc.unfreeze()
    else:
        gc.freeze()

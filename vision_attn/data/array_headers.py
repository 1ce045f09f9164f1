"""A lock for the headers of numpy's files."""

import sys
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

PARSING: AbstractContextManager[Any] = Lock() if (3, 11) <= sys.version_info < (3, 11, 8) else nullcontext()
"""Held while numpy reads a header, which is a Python literal: Python 3.11.0 to 3.11.7 raise SystemError where two
threads parse one at the same time (https://github.com/python/cpython/issues/106905)."""

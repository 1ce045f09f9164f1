"""Check whether the Hugging Face Hub can be reached; if not, let libraries use their caches."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies

WAIT = 3.0
"""Seconds to wait for a connection to the hub."""


@contextmanager
def hub_or_cache(needed: bool = True) -> Iterator[None]:
    """Context manager: if the hub cannot be reached, let libraries use only their caches. Otherwise they would retry
    each of several files, with pauses, for a minute."""
    if not needed:
        yield
        return
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _is_reached(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def is_missing(error: BaseException | None) -> bool:
    """Return whether an error, or one that led to it, says that a file is not in the hub's cache and could not be
    fetched without a network."""
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    while error is not None:
        if isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_reached(address: str) -> bool:
    parts = urlsplit(address)
    if getproxies() or os.environ.get("ALL_PROXY") or not parts.hostname:  # a proxy answers for the hub
        return True
    try:
        with socket.create_connection((parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)), WAIT):
            return True
    except OSError:
        return False

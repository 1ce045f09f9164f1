"""A port where processes meet."""

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """Return a port that is free and that the system gives to no client: by the time processes meet there, another test
    could have been given it."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")

"""Chaos: malicious files, damaged files, and processes killed at every moment.

`make chaos` runs all of it and prints a table; `VISION_ATTN_CHAOS=0.05` runs a twentieth, as CI does. Every test draws
from a seed of its own, so a failure happens again.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

SHARE = float(os.environ.get("VISION_ATTN_CHAOS", "1"))
_tallies: list["Tally"] = []


class Tally:
    """Attempts of one kind, and what failed of them."""

    def __init__(self, name: str) -> None:
        self.name, self.attempts, self.failures, self.slowest = name, 0, [], 0.0

    def add(self, failure: str | None, seconds: float = 0.0) -> None:
        """Count one attempt; `failure` says what went wrong, None that nothing did."""
        self.attempts += 1
        self.slowest = max(self.slowest, seconds)
        if failure is not None:
            self.failures.append(failure)

    def check(self, *, at_least: int = 1) -> None:
        """Fail the test when an attempt failed, or when there were too few."""
        assert not self.failures, f"{len(self.failures)} of {self.attempts} failed, such as:\n" + "\n".join(
            self.failures[:5]
        )
        assert self.attempts >= at_least


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Tally:
    """A count of attempts and failures, printed in the table at the end."""
    _tallies.append(Tally(request.node.nodeid.split("/")[-1]))
    return _tallies[-1]


@pytest.fixture
def share() -> Callable[[int], int]:
    """How many of `number` attempts to make."""
    return lambda number: max(1, round(number * SHARE))


BY_LOT = ("test_every_verb", "test_places_of_all_kinds")
"""Files whose cases are few attempts each: of these a share of the cases is run."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = []
    for item in items:
        if Path(item.fspath).is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.chaos)
            if item.path.stem in BY_LOT and crc32(item.name.encode()) % 1000 >= 1000 * SHARE:
                left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _tallies:
        return
    terminalreporter.section("chaos")
    for tally in _tallies:
        failed = f"{len(tally.failures)} failures"
        terminalreporter.line(
            f"{tally.attempts:7,} attempts  {failed:>13}  slowest {tally.slowest:5.2f} s  {tally.name}"
        )

"""Draw a chart of error against the length of the line: `python -m benchmarks.lengths PICTURE NAME=FOLDER ..`, with
folders that `eval --out` wrote, or runs.
"""

import json
import sys
from pathlib import Path

from benchmarks.charts import Axis, Chart, folders, save

LOWEST = 0.1
"""Errors below this, in percent, are drawn here: the axis is logarithmic, and 0 would not be seen."""


def read(folder: Path) -> list[tuple[float, float]]:
    """The character error rate, in percent, of test lines of each length."""
    errors = json.loads((folder / "transcripts_test.json").read_text())["error_by_length"]
    return [(int(length), max(LOWEST, error)) for length, error in errors.items()]


def main(picture: str, *named: str) -> None:
    lines = {name: read(folder) for name, folder in folders("lengths", named).items()}
    error = Axis("character error", "{:g}%".format)
    save([Chart(lines, Axis("characters in the line", logarithmic=False), error)], picture)


if __name__ == "__main__":
    main(*sys.argv[1:])

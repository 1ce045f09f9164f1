"""The tables at the head of docs/results.md, written from docs/results.yaml, which has seeds and splits."""

import re
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results.md"
NUMBERS = ROOT / "docs" / "results.yaml"


def tables() -> list[dict[str, Any]]:
    return yaml.safe_load(NUMBERS.read_text())


def cell(table: dict[str, Any], row: dict[str, Any], column: str) -> str:
    """One cell: a text, or the mean of the seeds with their standard deviation."""
    value = row.get(column, "")
    if column == "seeds":
        return ", ".join(map(str, value))
    if isinstance(value, str):
        return f"*{value}*" if re.search("[A-Za-z]", value) and not row.get("seeds") else value
    assert len(value) == len(row["seeds"]), (table["heading"], row, column)
    decimals = table["decimals"][column]
    text = f"{mean(value):.{decimals}f}" + (f" +- {stdev(value):.{decimals}f}" if len(value) > 1 else "")
    return f"**{text}**" if column in row.get("bold", ()) else text


def written(table: dict[str, Any]) -> str:
    """The table as Markdown."""
    columns = table["columns"]
    rows = [columns, *([cell(table, row, column) for column in columns] for row in table["rows"])]
    head, *lines = ["|" + "".join(f" {text} |" if text else " |" for text in row) + "\n" for row in rows]
    return "".join([head, "|" + "---|" * len(columns) + "\n", *lines])


def with_tables(text: str) -> str:
    """The text of docs/results.md with the tables as the numbers say."""
    for table in tables():
        place = re.compile(rf"(^## {re.escape(table['heading'])}\n(?:(?![|#]).*\n)*)(?:\|.*\n)+", re.MULTILINE)
        assert len(place.findall(text)) == 1, table["heading"]
        text = place.sub(lambda found, table=table: found[1] + written(table), text)
    return text

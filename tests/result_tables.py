"""What is written from docs/results.yaml: the tables at the head of docs/results.md, with seeds and splits; and the
plan of half an hour of an H200 in docs/gpu.md."""

import re
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from vision_attn.commands._paper_rows import rates, seconds, tables, trainings

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results.md"
GPU = ROOT / "docs" / "gpu.md"
PLAN = re.compile(r"(<!-- plan: .*? -->\n)(?:\|.*\n|\n|All .*\n)*?(?=<!-- end of plan -->)")


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


def planned() -> list[str]:
    """The trainings of all rows that need no photographs."""
    return [name for name, one in trainings().items() if one.rate and not one.rate.startswith("photographs")]


def plan() -> str:
    """The plan as Markdown: a line for each rate, with the trainings that have it."""
    by_rate: dict[str, list[str]] = {}
    for name in planned():
        by_rate.setdefault(trainings()[name].rate, []).append(name)
    lines = ["| trainings | number | images | images/s | | s |", "|---|---|---|---|---|---|"]
    for rate, names in by_rate.items():
        images, known = sum(trainings()[name].images for name in names), rates()[rate]
        lines.append(
            f"| {rate} | {len(names)} | {images / 1e6:.2f}M | {known['images']:,} | {known['from']} "
            f"| {seconds(names, gpu=True):.0f} |"
        )
    total = seconds(planned(), gpu=True)
    lines += ["", f"All {len(planned())} trainings, one after the other: {total / 60:.0f} minutes.", ""]
    return "".join(f"{line}\n" for line in lines)


def with_plan(text: str) -> str:
    """The text of docs/gpu.md with the plan as the file of rows says."""
    return PLAN.sub(lambda found: found[1] + plan(), text)

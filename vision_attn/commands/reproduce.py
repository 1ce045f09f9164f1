"""Make rows of papers again: train, measure, and say whether a number is worse than the documents say.

Without a row, it lists all rows: their paper, its number and ours, seeds, time, and whether their data are found.
ROW... or --all trains and measures rows, the fastest first, and writes a page and a table. Run the same command again
to resume. The exit status is 1 if a row is worse by more than two standard errors, or failed. Keys of configs may be
overridden, as for `train`: --run.epochs=3.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from vision_attn.commands._files import check_writable, place
from vision_attn.commands._hints import options_only
from vision_attn.commands._paper_rows import PaperRow, chosen, clock, missing, needed, paper_rows, seconds
from vision_attn.system.console import complain, say
from vision_attn.system.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn reproduce`."""
    parser.add_argument(
        "rows",
        nargs="*",
        metavar="ROW",
        help="names of rows, or patterns such as 'strings_*'; without any, all are listed",
    )
    parser.add_argument("--all", action="store_true", help="all rows whose data are found")
    parser.add_argument(
        "--out", type=place, default=Path("runs/reproduce"), metavar="FOLDER", help="default: runs/reproduce"
    )
    parser.add_argument("--hours", type=float, metavar="H", help="only the rows that fit into this time, as estimated")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="the first N seeds of rows (default: 1)")
    parser.add_argument("--included", action="store_true", help="measure the included weights of rows; train nothing")
    parser.add_argument(
        "--quick", action="store_true", help="tiny models on made-up data: whether every row runs; judges nothing"
    )
    parser.add_argument("--show", type=int, default=8, metavar="N", help="draw N images of each row (default: 8)")
    parser.add_argument("--device", default="auto", help="auto (cuda or mps where there is one), cpu, cuda:1, ...")
    parser.set_defaults(overrides=[])


def run(arguments: argparse.Namespace) -> int:
    """List rows, or make them. Raises UserError for unknown rows, or if none can be made."""
    options_only(arguments.overrides)
    for name, least in (("seeds", 1), ("show", 0)):
        if getattr(arguments, name) < least:
            raise UserError(f"--{name} is {getattr(arguments, name)}, but must be at least {least}")
    if not (arguments.rows or arguments.all or arguments.quick or arguments.included):
        for line in listed():
            say(line)
        return 0
    from vision_attn.commands._reproduce_plan import Plan

    out = arguments.out / "quick" if arguments.quick else arguments.out
    plan = Plan(
        out, arguments.seeds, arguments.included, arguments.device, arguments.show, arguments.overrides, arguments.quick
    )
    wanted = _rows_to_make(arguments)
    from vision_attn.commands._reproduce_loop import reproduce

    check_writable(out, "--out")
    return reproduce(wanted, plan, arguments.hours)


def _rows_to_make(arguments: argparse.Namespace) -> list[PaperRow]:
    """Return the rows to make. Raises UserError for rows that cannot be made."""
    named = chosen(arguments.rows)
    wanted = named or [row for row in paper_rows() if row.name]
    if arguments.included:
        without = [row.name for row in named if not row.weights]
        if without:
            raise UserError(f"{', '.join(map(str, without))} has no included weights: leave --included out")
        wanted = [row for row in wanted if row.weights]
    elif without := [row.name for row in named if not row.trainings]:
        raise UserError(f"how {without[0]} was trained cannot be repeated: --included measures its weights")
    else:
        wanted = [row for row in wanted if row.trainings]
    if arguments.quick:
        return wanted
    kept = []
    for row in wanted:
        if not (lacking := missing(row)):
            kept.append(row)
        elif named:
            raise UserError(
                f"{row.name} needs {lacking[0]}, which is not found: put it into the folder VISION_ATTN_DATA"
            )
        else:
            complain(f"left out: {row.name}, whose {lacking[0]} is not found")
    if not kept:
        raise UserError("no row is left whose data are found: set VISION_ATTN_DATA to the folder of data sets")
    return kept


def listed() -> Iterator[str]:
    """Yield the lines of the list: a heading for each table, then its rows."""
    table = ""
    for row in paper_rows():
        if row.table != table:
            table = row.table
            yield ""
            yield f"{table}"
        gpu = seconds(needed(row), gpu=True) if row.trainings else None
        time = [f"{row.hardware or 'a core of a CPU'}"] + ([f"H200 about {clock(gpu)}"] if gpu else [])
        lacking = missing(row)
        state = f"no {lacking[0]}" if lacking else "data are there"
        how = "weights included" if row.weights else ""
        if not row.name:
            how = f"not by this command: {row.command}" if row.command else "not by this command: docs/results.md"
        numbers = ", ".join(f"{column} {_before(row, column)}" for column in row.before)
        yield f"  {row.name or '-'}: {row.what}"
        yield "    " + "; ".join(
            text
            for text in (
                f"paper {row.paper}" if row.paper else "",
                f"ours {numbers}",
                f"{'seeds' if len(row.seeds) > 1 else 'seed'} {', '.join(map(str, row.seeds))}",
                ", ".join(time), state, how,
            )
            if text
        )  # fmt: skip


def _before(row: PaperRow, column: str) -> str:
    values: Sequence[float] = row.before[column]
    return f"{sum(values) / len(values):.{row.decimals[column]}f}"

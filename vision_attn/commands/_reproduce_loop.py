"""The loop of `vision-attn reproduce`: make one row after the other, and write the page after each."""

import time
from collections.abc import Sequence
from contextlib import suppress

from vision_attn.commands._old_pictures import old_pictures_removed, others_kept
from vision_attn.commands._paper_rows import PaperRow, clock
from vision_attn.commands._quick_rows import write_data
from vision_attn.commands._reproduce_page import TABLE, cells, state_of, write_pages
from vision_attn.commands._reproduce_plan import (
    QUICK,
    STOPPED,
    Plan,
    eval_words,
    is_measured,
    left,
    measurements,
    numbers,
    steps,
    train_words,
)
from vision_attn.system.console import complain, plural, say
from vision_attn.system.memory import collected_later


def reproduce(rows: Sequence[PaperRow], plan: Plan, hours: float | None) -> int:
    """Make the rows, the fastest first, and write page and table after each. Return the exit status: 1 if a row failed
    or is worse than the documents say; the status of the verb if one was interrupted."""
    with collected_later():
        import torch

    others_kept(plan.out)
    gpu = torch.cuda.is_available() and plan.device in ("auto", "cuda")
    times = {row.name: left(row, plan, gpu=gpu) for row in rows}
    order = sorted(rows, key=lambda row: float("inf") if (time := times[row.name]) is None else time)
    if not plan.quick and not plan.included:
        order = _rows_that_fit(order, times, hours, gpu)
    elif plan.quick:
        write_data(plan.out / QUICK)
    failed: dict[str, str] = {}
    for number, row in enumerate(order, start=1):
        began = time.monotonic()
        say(f"{number} of {len(order)}: {row.name}: {row.what}")
        status = make(row, plan)
        measured = numbers(row, plan)
        if status in STOPPED:
            _write(order, failed, plan)
            return status
        if measured is None:
            failed[str(row.name)] = "failed"
        for line in measured or ():
            column, before, now, state = cells(row, line)
            say(f"  {column}: before {before}, now {now}" + ("" if plan.quick else f": {state}"))
        say(f"  {'failed' if measured is None else 'measured'} after {time.monotonic() - began:.0f} s")
        if not plan.quick or row is order[-1]:
            _write(order, failed, plan)
    states = {row.name: state_of(numbers(row, plan), row.name in failed) for row in order}
    worse = [name for name, state in states.items() if state == "worse" and not plan.quick]
    for what, names in (("worse than the documents say", worse), ("failed", list(failed))):
        if names:
            complain(f"{what}: {', '.join(map(str, names))}")
    say(f"written to {plan.out / 'index.html'} and {plan.out / TABLE}")
    return 1 if worse or failed else 0


def make(row: PaperRow, plan: Plan) -> int:
    """Train and measure a row, unless done already. Return the exit status of the first verb that failed."""
    from vision_attn.commands import main

    measured = [measurement for some in measurements(row, plan).values() for measurement in some]
    pending = [measurement for measurement in measured if not is_measured(*measurement)]
    trained = steps(row, plan)
    for training in trained:
        if status := main(train_words(training, row, plan)):
            return status
    done = set()
    for training, out, options in pending if not trained else measured:
        if out in done or is_measured(training, out, options):
            continue
        done.add(out)
        status = main(eval_words(training, out, options, plan))
        if status and (status in STOPPED or not is_measured(training, out, options)):
            return status
    return 0


def _rows_that_fit(
    rows: Sequence[PaperRow], times: dict[str, float | None], hours: float | None, gpu: bool
) -> list[PaperRow]:
    """Say how long the rows take, and return those that fit into `hours`."""
    kept, total, unknown = [], 0.0, 0
    for row in rows:
        known = times[row.name]
        if hours is not None and (known is None or total + known > 3600 * hours):
            complain(f"left out: {row.name}, which takes {clock(known) if known is not None else 'an unknown time'}")
            continue
        kept.append(row)
        total, unknown = total + (known or 0.0), unknown + (known is None)
    where = "one H200" if gpu else "a core of a CPU as in docs/results.md, with AVX-512"
    more = f", and {plural(unknown, 'row')} of unknown time" if unknown else ""
    say(f"{plural(len(kept), 'row')}: about {clock(total)} on {where}{more}; run the same command again to resume")
    return kept


def _write(rows: Sequence[PaperRow], failed: dict[str, str], plan: Plan) -> None:
    notes = [f"Trained with other settings than before: {' '.join(plan.options)}."] if plan.options else []
    notes += ["Tiny models on made-up data: these numbers say nothing."] if plan.quick else []
    notes += ["Included weights were measured, and nothing was trained."] if plan.included else []
    ignored = (OSError,) if failed else ()  # of a full disk, the row that failed has told
    with suppress(*ignored), old_pictures_removed(plan.out):
        write_pages(rows, failed, plan, notes)

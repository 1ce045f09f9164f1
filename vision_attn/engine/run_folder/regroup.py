"""Resume a run with batches of another size, for example after memory was short, with as many images per step as
before."""

from pathlib import Path

from vision_attn.configuration.run_settings import Run
from vision_attn.engine.run_folder.checkpoint import Position
from vision_attn.system.errors import UserError
from vision_attn.task import Source


def as_begun(data: Source, position: Position) -> Source:
    """If `data.batch_size` is `auto`, return `data` with the size of batches that was found when the run began."""
    before = position.plan.get("batch_size")
    return data.resized(before) if before and data.automatic_batch else data


def same_steps(data: Source, position: Position, run: Run) -> bool:
    """Return whether a step has as many images as when the run began, though batches have another size."""
    plan = position.plan
    before, now = plan.get("batch_size"), data.batch_size
    if before is None or now is None or before == now:
        return False
    return now * run.accumulate == before * plan["accumulate"]


def regroup(folder: Path, data: Source, position: Position, run: Run) -> bool:
    """Convert the position of the run in `folder` to batches of the current size. Return whether the size has changed.
    Raises UserError if the data has changed."""
    plan = position.plan
    other = same_steps(data, position, run)
    now, before = len(data.resized(plan["batch_size"]) if other else data), plan["batches"]
    if now != before:
        raise UserError(
            f"{folder}: the data had {before:,} training batches when this run began, and now {now:,}: bring"
            f" back the data, or give another --run.folder (--run.start_from={folder} begins with its weights)"
        )
    if other:
        batches, done = len(data), position.batch // plan["accumulate"] * run.accumulate
        position.batch = batches if position.batch >= before else min(batches, done)
        plan |= {"batches": batches, "batch_size": data.batch_size, "accumulate": run.accumulate}
    return other

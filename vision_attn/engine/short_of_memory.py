"""Make the errors for lack of memory in training and evaluation, which name a size of batches that fits and its
keys."""

from pathlib import Path

from vision_attn.engine.batch_size import DoesNotFit, Trial, largest, parts
from vision_attn.engine.run_folder import checkpoint
from vision_attn.engine.training import Training
from vision_attn.system.errors import UserError
from vision_attn.task import Source

PAGE = "docs/out_of_memory.md says what else to do"


def in_training(training: Training, short: str | DoesNotFit) -> UserError:
    """Return the error that ends a run for lack of memory. It tries smaller batches, so call it when nothing refers to
    the tensors of the step any more.

        short: the reason in words if a step failed, or the error of validation.
    """
    data, run, world = training.data, training.run, training.world
    if isinstance(short, DoesNotFit):
        where, size, fits, reason = "validation", short.size, short.fits, short.reason
    else:
        where, reason = f"step {training.position.step + 1}", short
        if data.batch_size is None:
            return UserError(f"out of memory in {where} ({reason}): {PAGE}")
        size = data.batch_size
        # Alone, a process cannot try what all have to do together.
        fits = size // 2 if world.size > 1 else largest(_trial(training).fits, parts(size))
    last = checkpoint.peek(Path(run.folder)) if world.is_main else None
    way = "No checkpoint was written yet: run the same command with" if world.is_main else "Run the same command with"
    if last is not None:
        way = f"{run.folder}/last holds step {last.step}: resume it by the same command with"
    keys = _keys(data, fits, run.accumulate, validation=where == "validation")
    tried = world.size == 1 or isinstance(short, DoesNotFit)
    return UserError(_told(where, size, fits, reason, f"{way} {keys}", tried=tried))


def in_evaluation(error: DoesNotFit, data: Source) -> UserError:
    """Return the error that ends an evaluation for lack of memory."""
    key = "evaluation_batch_size" if hasattr(data, "evaluation_batch_size") else "batch_size"
    way = f"Add --data.{key}={error.fits}; a narrower beam needs less too"
    return UserError(_told("this evaluation", error.size, error.fits, error.reason, way))


def _trial(training: Training) -> Trial:
    run, world = training.run, training.world
    return Trial(training.task, training.data, world.device, training.step.autocast, seed=run.seed)


def _keys(data: Source, fits: int, accumulate: int, *, validation: bool) -> str:
    """Return the options with which batches have at most `fits` images."""
    if validation and hasattr(data, "evaluation_batch_size"):
        return f"--data.evaluation_batch_size={fits}"
    whole = data.batch_size or fits
    size = max((size for size in range(1, min(fits, whole) + 1) if whole % size == 0), default=1)
    options = f"--data.batch_size={size} --run.accumulate={accumulate * whole // size}"
    return f"{options}, which make the same steps in smaller parts"


def _told(where: str, size: int, fits: int, reason: str, way: str, *, tried: bool = True) -> str:
    if not fits:
        return f"out of memory in {where} ({reason}), and not even a batch of one image fits: {PAGE}"
    fitting = f"{fits} {'fit' if tried else 'may fit'}"
    return f"out of memory in {where}, with {size} images in a batch ({reason}): {fitting}. {way}; {PAGE}"

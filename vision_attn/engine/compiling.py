"""torch.compile in training: what of its messages reaches the user."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from vision_attn.system.errors import UserError

LOGGERS = ("torch._dynamo", "torch._inductor", "torch.fx")


def quiet_compiler() -> None:
    """Keep warnings of torch.compile from the user, who can do nothing about them, unless TORCH_LOGS asks for some."""
    if "TORCH_LOGS" in os.environ:
        return
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module=name.replace(".", r"\.") + r"($|\.)")


@contextmanager
def clear_of_compiler_errors() -> Iterator[None]:
    """Turn errors of torch.compile into a UserError with their first line."""
    try:
        yield
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        said = str(error).strip().split("\n")[0]
        raise UserError(f"run.compile: {said} (install what is missing, or remove run.compile)") from error

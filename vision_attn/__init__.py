"""Image captioning and recurrent visual attention: models that look, trained, measured and shown.

`vision_attn.load(NAME)` opens a trained run, or a model of another library: see `vision_attn/api.py`. What you can mend
(a file, a key, an argument) raises `vision_attn.UserError`, a ValueError.
"""

from importlib import import_module
from typing import Any

from vision_attn.system.errors import UserError

__version__ = "1.1.0"
__all__ = ["UserError", "load"]


def __getattr__(name: str) -> Any:
    """Import `load` when it is used: it needs torch, and `import vision_attn` does not."""
    if name == "load":
        return import_module("vision_attn.api").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]

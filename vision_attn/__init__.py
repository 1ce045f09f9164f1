"""Image captioning and recurrent visual attention: train models, measure them, and see where they look.

`vision_attn.load(NAME)` opens a trained run, or a model of another library: see `vision_attn/api.py`. Type checkers
read `__init__.pyi`. A run is a `vision_attn.Model`, and each of its captions a `vision_attn.CaptionResult`. A mistake
that you can correct (in a file, a key, an argument) raises `vision_attn.UserError`, a ValueError.
"""

from vision_attn.system.errors import UserError

__version__ = "1.1.0"
__all__ = ["CaptionResult", "Model", "UserError", "load", "load_explainer", "load_model"]


def __getattr__(name: str) -> object:
    """Import the functions and classes of `vision_attn/api.py` at their first use, so that `import vision_attn` does
    not import torch."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("vision_attn.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

"""Image captioning and recurrent visual attention: models that look, trained, measured and shown.

`vision_attn.load(NAME)` opens a trained run, or a model of another library: see `vision_attn/api.py`, and
`__init__.pyi` for what type checkers read. A run is a `vision_attn.Model`, and each of its captions a
`vision_attn.CaptionResult`. A mistake that you can mend (in a file, a key, an argument) raises `vision_attn.UserError`,
a ValueError.
"""

from vision_attn.system.errors import UserError

__version__ = "1.1.0"
__all__ = ["CaptionResult", "Model", "UserError", "load", "load_explainer", "load_model"]


def __getattr__(name: str) -> object:
    """Import the functions and classes of `vision_attn/api.py` when they are used: they need torch, and `import
    vision_attn` does not."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("vision_attn.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

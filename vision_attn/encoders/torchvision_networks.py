"""Import torchvision without torch's compiler, which only its detectors need. Importing this module takes as long as
captioning a photograph, so `networks` imports it when the first network of torchvision is built."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo.utils"


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Context manager: keep imports of torchvision from importing torch's compiler.

    The compiler takes as long to import as torch. Only detectors of torchvision use it, through one function. The
    stand-in module imports the compiler when that function is called.
    """
    if COMPILER in sys.modules:
        yield
        return
    deferred: Any = ModuleType(COMPILER)
    sys.modules[COMPILER] = deferred

    def leave() -> None:
        if sys.modules.get(COMPILER) is deferred:
            del sys.modules[COMPILER]

    def other(name: str) -> Any:
        if name.startswith("__"):  # the import system asks for attributes such as __path__
            raise AttributeError(name)
        leave()
        return getattr(import_module(COMPILER), name)

    deferred.is_compile_supported = lambda device: import_module(COMPILER).is_compile_supported(device)
    deferred.__getattr__ = other
    try:
        yield
    finally:
        leave()


with _without_compiler():
    import torchvision  # noqa: F401
    from torchvision.models import get_model, get_model_weights, list_models  # noqa: F401
    from torchvision.models.feature_extraction import create_feature_extractor  # noqa: F401

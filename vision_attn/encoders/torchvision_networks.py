"""What is used of torchvision. Imported when the first of its networks is built: it takes as long as a caption does."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo.utils"


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Within this context, importing torchvision does not import torch's compiler.

    The compiler takes as long to import as torch. Of torchvision only detectors use it, by one function, which then
    imports it when called.
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

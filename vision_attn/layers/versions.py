"""Whether the weights of a module have changed."""

from torch import nn


def versions(module: nn.Module) -> list[tuple[int, int]]:
    """Return what differs after a parameter or buffer of `module` has been changed in place, or moved."""
    tensors = module.state_dict().values()
    return [(tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors]

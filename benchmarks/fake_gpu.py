"""Simulate a GPU that does not compute: code takes its path for CUDA, and the kernels that it would launch are counted.

Tensors are torch's fake tensors on "cuda": they have shapes and no numbers. Every operation that is not a view counts
as one kernel, except those in `KERNELS`, and our own, which declare how many they launch (`fast.launch.operation`). The
counts of captured steps on an H200 are within a tenth of these (docs/results_speed.md). What `torch.compile` would
fuse is not counted.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import _engine_run_backward
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from vision_attn.fast.launch import OPERATIONS

GPU, META = torch.device("cuda", 0), torch.device("meta")
LARGE_ROW = 1024
"""The number of elements of a row beyond which top-k takes several passes."""
KERNELS: dict[str, Callable[[tuple, Any], int]] = {
    "aten::topk": lambda arguments, _: 16 if arguments[0].shape[-1] > LARGE_ROW else 2,
    "aten::sort": lambda *_: 2,
    "aten::convolution_backward": lambda _, outputs: sum(isinstance(output, Tensor) for output in outputs),
    "aten::native_layer_norm_backward": lambda *_: 2,
}
"""Operations of more than one kernel, as the profiles of an H200 show."""
NONE = {"aten::_unsafe_view", "aten::lift_fresh", "aten::is_same_size", "aten::_local_scalar_dense", "aten::set_"}
NO_KERNEL = ("aten::empty", "aten::new_empty", "aten::sym_", "prim::", "profiler::")


class Launches(TorchDispatchMode):
    """Counts the kernels that operations would launch."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return sum(self.counted.values())

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function is torch.ops.prim.device.default:  # the engine of autograd has no queue for a GPU that is not there
            return META
        options = {name: GPU if option == META else option for name, option in (options or {}).items()}
        outputs = function(*arguments, **options)
        name = function._schema.name
        made = [tensor for tensor in tree_leaves(outputs) if isinstance(tensor, Tensor)]
        inputs = [tensor for tensor in tree_leaves((arguments, options)) if isinstance(tensor, Tensor)]
        free = function.is_view or name in NONE or name.startswith(NO_KERNEL)
        on_device = any(tensor.device.type == "cuda" and prod(tensor.shape) for tensor in (*made, *inputs))
        if not free and on_device:
            if name in OPERATIONS:
                self.counted[name] += OPERATIONS[name].kernels(*arguments, *options.values())
            else:
                self.counted[name] += KERNELS.get(name, lambda *_: 1)(arguments, outputs)
        return outputs


LOW = {
    F.linear, torch.matmul, Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, torch.mm, torch.bmm, torch.addmm,
    torch.baddbmm, torch.mv, F.conv1d, F.conv2d, torch.einsum,
}  # fmt: skip
HIGH = {
    torch.exp, Tensor.exp, torch.log, Tensor.log, torch.softmax, Tensor.softmax, F.softmax, torch.log_softmax,
    Tensor.log_softmax, F.log_softmax, torch.sum, Tensor.sum, torch.cumsum, Tensor.cumsum, F.layer_norm, torch.norm,
    F.binary_cross_entropy_with_logits, Tensor.pow, Tensor.square, torch.square, Tensor.reciprocal, torch.prod,
}  # fmt: skip


class Autocast(TorchFunctionMode):
    """Autocast as on CUDA. Torch's own sees the device that `Launches` names, for which it does not cast.

    Casts of weights are kept, as torch keeps them until the outermost context of autocast ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(self, function, types, arguments=(), options=None):
        options = options or {}
        if function is Tensor.backward:  # networks may be computed again in it
            with self:
                backward(arguments[0])
            return None
        if function is F.dropout:  # one kernel, which torch chooses by the device that it is told
            return torch.native_dropout(arguments[0], options["p"], True)[0]
        if function is F.scaled_dot_product_attention:  # the same
            return attention(*map(self.half, arguments), **options)
        if torch.is_autocast_enabled("cuda"):
            if function in LOW:
                arguments, options = tree_map_only(FakeTensor, self.half, (arguments, options))
            elif function in HIGH:
                arguments, options = tree_map_only(FakeTensor, self.full, (arguments, options))
        return function(*arguments, **options)

    def half(self, tensor: Tensor) -> Tensor:
        if tensor.dtype != torch.float32 or tensor.device.type != "cuda":
            return tensor
        if not (tensor.requires_grad and tensor.is_leaf):
            return tensor.bfloat16()
        if id(tensor) not in self.kept:
            self.kept[id(tensor)] = tensor, tensor.bfloat16()
        return self.kept[id(tensor)][1]

    @staticmethod
    def full(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def attention(query: Tensor, keys: Tensor, values: Tensor, attn_mask: Tensor) -> Tensor:
    """The kernel of scaled dot-product attention with a mask of numbers."""
    bias = attn_mask.expand(*query.shape[:2], -1, -1)
    return torch.ops.aten._scaled_dot_product_efficient_attention(query, keys, values, bias, True)[0]


def backward(loss: Tensor) -> None:
    """The work of `loss.backward()`, without its check of modes."""
    options = {"allow_unreachable": True, "accumulate_grad": True}
    _engine_run_backward((loss,), (torch.ones_like(loss),), False, False, (), **options)


@contextmanager
def fake_gpu() -> Iterator[None]:
    """Within this context, tensors are made without numbers, also on "cuda", and autocast to bfloat16 works there."""
    with ExitStack() as stack:
        for target, name, value in (
            ("torch.cuda.amp.common", "amp_definitely_not_available", lambda: False),
            ("torch.cuda", "is_bf16_supported", lambda *_, **__: True),
        ):
            stack.enter_context(mock.patch(f"{target}.{name}", value))
        is_cuda = property(lambda tensor: tensor.device.type == "cuda")
        stack.enter_context(mock.patch.object(FakeTensor, "is_cuda", is_cuda, create=True))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def moved(module: nn.Module) -> nn.Module:
    """Replace the weights and buffers of a module by fake ones on "cuda"."""
    replaced: dict[int, Tensor] = {}  # weights that modules share stay shared
    for submodule in module.modules():
        for tensors in (submodule._parameters, submodule._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = replaced.setdefault(id(tensor), like(tensor))
    return module


def like(tensor: Tensor) -> Tensor:
    """A fake tensor on "cuda" like `tensor`; a parameter if that is one."""
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    return nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake


def launches(run: Callable[[], object]) -> Counter[str]:
    """The kernels of a call of `run`, within `fake_gpu`, by operation."""
    with Autocast(), Launches() as launched:
        run()
    return launched.counted

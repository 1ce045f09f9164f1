"""Linear layers that are fast on any CPU.

On CPUs torch multiplies float32 matrices with MKL, which takes its fastest paths on Intel's processors alone. oneDNN,
which is part of torch too, has no such limit: on one thread of an AMD EPYC with AVX-512, products of a captioner's
sizes ran at 115 to 180 Gflop/s with oneDNN and at 78 to 94 with MKL. On Intel's processors MKL is the faster one for
small matrices. In bfloat16 torch uses oneDNN itself, but writes the bias to the output first and adds to it, which
takes a sixth of the time of a vocabulary layer.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vision_attn.kernels.choice import is_cuda
from vision_attn.system.context import within
from vision_attn.system.machine import is_intel, multiplies_bf16

_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
_arrange = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, rectified: bool = False) -> Tensor:
    """input weight^T + bias, without a gradient, by the faster library; followed by a ReLU if `rectified`."""
    if _by_onednn(input, weight):
        output = _by(input, _arranged(input, weight), bias)
    elif bias is not None and _in_half(input, weight):
        output = _by(input, weight, bias)
    else:
        output = F.linear(input, weight, bias)
    return output.relu() if rectified else output


def _by(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _onednn(input, weight, bias, "none", [], "")  # its own "relu" makes 0 of NaN


def transposed_product(a: Tensor, b: Tensor) -> Tensor:
    """a^T b of (N, V) and (N, E), such as the gradient of a weight.

    In float32 oneDNN copies the left factor of a product if it is transposed, and not the right one, and is slow where
    the result has few columns. So the smaller of the two comes first. Without AVX-512 MKL is as fast, and copies none.
    """
    if a.device.type != "cpu" or (NARROW and a.dtype == torch.float32):
        return a.mT @ b
    if a.dtype != torch.float32 or a.shape[1] <= b.shape[1]:
        return linear(a.mT, b.mT)
    return linear(b.mT, a.mT).mT


NARROW = torch.backends.cpu.get_cpu_capability() == "AVX2"
"""Whether vector instructions have 256 bits, not the 512 with which oneDNN leads."""

SMALL = 2**17 if NARROW else 2**11
"""Numbers in a weight below which a call of oneDNN costs more than it saves: more without AVX-512, where MKL is fast.
Going forward, the number of rows does not matter, so that each of several processes computes its part of a batch as
one process computes the whole."""


def _by_onednn(input: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is the faster library: in eager mode, on a CPU that is not Intel's, in float32, above `SMALL`."""
    float32_on_cpu = input.device.type == "cpu" and input.dtype == weight.dtype == torch.float32
    unsupported = _onednn is None or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    empty = not input.numel()  # which oneDNN refuses
    return float32_on_cpu and not (unsupported or empty) and not is_intel() and weight.numel() >= SMALL


def _in_half(*tensors: Tensor) -> bool:
    """Whether oneDNN can multiply these tensors in bfloat16."""
    if torch.compiler.is_compiling() or _onednn is None:
        return False
    served = all(each.dtype == torch.bfloat16 and each.device.type == "cpu" and each.numel() for each in tensors)
    return served and multiplies_bf16()


FEW = 16
"""Rows below which arranging a weight gains nothing."""

Arranged = dict[tuple[Tensor, torch.dtype], tuple[Tensor | None, ...]]
"""Weights in the order in which oneDNN reads them, in float32 or with their bias in bfloat16."""

_constant: ContextVar[Arranged | None] = ContextVar("constant", default=None)


@contextmanager
def constant_weights(arranged: Arranged | None = None) -> Iterator[None]:
    """Within this context, in which no weight changes and none gets a gradient, each is arranged for oneDNN, and under
    autocast cast to bfloat16, once instead of at every product.

    arranged: the weights that were arranged before, to which those of this context are added; by default those of the
        context around this one, or none.
    """
    if arranged is None:
        arranged = {} if _constant.get() is None else _constant.get()
    with within(_constant, arranged):
        yield


def _arranged(input: Tensor, weight: Tensor) -> Tensor:
    """`weight`, within `constant_weights` in the order in which oneDNN reads it, from `FEW` rows on."""
    arranged = _constant.get()
    if arranged is None or input.numel() < FEW * input.shape[-1] or not isinstance(weight, nn.Parameter):
        return weight
    key = weight, weight.dtype
    if key not in arranged:
        arranged[key] = (_arrange(weight, None),)
    return arranged[key][0]


def _halved(input: Tensor, layer: nn.Linear) -> Tensor | None:
    """`layer(input)` as autocast to bfloat16 computes it, if weights are constant and oneDNN serves it."""
    if torch.compiler.is_compiling():  # torch 2.11 compiles no context variable
        return None
    arranged, weight, bias = _constant.get(), layer.weight, layer.bias
    if arranged is None or torch.is_grad_enabled() or not isinstance(weight, nn.Parameter):
        return None
    if not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return None
    if not all(each.dtype in (torch.float32, torch.bfloat16) for each in (input, weight)):
        return None
    if not _in_half(half := input.bfloat16()):
        return None
    key = weight, torch.bfloat16
    if key not in arranged:
        arranged[key] = _arrange(weight.bfloat16(), None), None if bias is None else bias.bfloat16()
    return _by(half, *arranged[key])


class Linear(nn.Linear):
    """`nn.Linear` that uses the faster library: see `linear`. Raises ValueError for sizes below 1."""

    rectified = False
    """Whether the output is max(0, x W^T + b)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device=None, dtype=None):
        if min(in_features, out_features) < 1:
            raise ValueError(f"a layer of {in_features} inputs and {out_features} outputs: both must be at least 1")
        super().__init__(in_features, out_features, bias, device, dtype)

    def forward(self, input: Float[Tensor, "*rows M"]) -> Float[Tensor, "*rows N"]:
        if _by_onednn(input, self.weight):
            return _product(input, self.weight, self.bias, rectified=self.rectified)
        if self.rectified and self.bias is not None and _one_kernel(input, self.weight):
            rows = input.to(self.weight.dtype).reshape(-1, input.shape[-1])
            return torch._addmm_activation(self.bias, rows, self.weight.t()).view(*input.shape[:-1], -1)
        if (output := _halved(input, self)) is None:
            output = super().forward(input)
        return F.relu(output) if self.rectified else output


def _one_kernel(input: Tensor, weight: Tensor) -> bool:
    """Whether a GPU computes a product and its ReLU by one kernel: without a gradient, of weights that are cast."""
    if not input.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    autocast = torch.is_autocast_enabled("cuda")
    return weight.dtype == (torch.get_autocast_dtype("cuda") if autocast else input.dtype)


class Rectified(Linear):
    """A linear layer followed by ReLU, max(0, x W^T + b), by the faster library: see `linear`."""

    rectified = True


def _product(input: Tensor, weight: Tensor, bias: Tensor | None, *, rectified: bool) -> Tensor:
    """`_Product` of rows in any number of dimensions. Views are made here: one that a custom function returns cannot
    be changed in place."""
    if not torch.is_grad_enabled():
        return linear(input, weight, bias, rectified=rectified)
    output = _Product.apply(input.reshape(-1, input.shape[-1]), weight, bias, rectified)
    return output.view(*input.shape[:-1], output.shape[-1])


class _Product(torch.autograd.Function):
    """input weight^T + bias, followed by a ReLU if `rectified`."""

    @staticmethod
    def forward(ctx, input: Tensor, weight: Tensor, bias: Tensor | None, rectified: bool) -> Tensor:
        output = linear(input, weight, bias, rectified=rectified)
        ctx.save_for_backward(input, weight, output if rectified else None)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        (input, weight, output), needed = ctx.saved_tensors, ctx.needs_input_grad
        if output is not None:
            grad = torch.ops.aten.threshold_backward(grad, output, 0)
        return (
            linear(grad, weight.t()) if needed[0] else None,
            transposed_product(grad, input) if needed[1] else None,
            grad.sum(dim=0) if needed[2] else None,
            None,
        )


def side_by_side(layers: Sequence[nn.Linear], input: Float[Tensor, "*rows M"]) -> list[Tensor]:
    """layer(input) of each layer: in training on a GPU by one product, see `one_product`."""
    if (outputs := one_product(layers, input)) is None:
        return [layer(input) for layer in layers]
    return list(outputs.split([layer.out_features for layer in layers], dim=-1))


def one_product(layers: Sequence[nn.Linear], input: Float[Tensor, "*rows M"]) -> Float[Tensor, "*rows N"] | None:
    """The outputs of all layers, one after the other. None but in training on a GPU, and where something else wants to
    see the calls of the layers."""
    watched = any(layer._forward_hooks or layer._forward_pre_hooks or layer.bias is None for layer in layers)
    if watched or torch.compiler.is_compiling() or not (is_cuda(input) and torch.is_grad_enabled()):
        return None
    weight, bias = (torch.cat([getattr(layer, part) for layer in layers]) for part in ("weight", "bias"))
    return F.linear(input, weight, bias)

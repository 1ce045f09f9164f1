"""Multiply matrices fast on any CPU, by MKL or oneDNN, whichever is faster.

On CPUs torch multiplies float32 matrices with MKL, which uses its fastest code only on Intel's processors. oneDNN, also
a part of torch, has no such limit: on one thread of an AMD EPYC with AVX-512, products of a captioner's sizes ran at
115 to 180 Gflop/s with oneDNN and at 78 to 94 with MKL. On Intel's processors MKL is the faster one for small matrices.
In bfloat16 torch uses oneDNN itself, but writes the bias to the output first and adds to it, which takes a sixth of the
time of a vocabulary layer.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.system.machine import is_intel, multiplies_bf16

_onednn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
_arrange = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    rectified: bool = False,
    arranged: "Arranged | None" = None,
) -> Tensor:
    """Return input weight^T + bias, without a gradient, by the faster library; followed by a ReLU if `rectified`.

    arranged: see `Arranged`; None: nothing is rearranged.
    """
    if by_onednn(input, weight):
        output = _by(input, _in_order(input, weight, arranged), bias)
    elif bias is not None and _in_half(input, weight):
        output = _by(input, weight, bias)
    else:
        output = F.linear(input, weight, bias)
    return output.relu() if rectified else output


def _by(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    assert _onednn is not None
    return _onednn(input, weight, bias, "none", [], "")  # its own "relu" makes 0 of NaN


def transposed_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a^T b of (N, V) and (N, E), such as the gradient of a weight.

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
"""The number of elements of a weight below which a call of oneDNN costs more than it saves: more without AVX-512, where
MKL is fast. Going forward, the number of rows does not matter, so that each of several processes computes its part of a
batch as one process computes the whole."""


def differs(weight: Tensor) -> bool:
    """Return whether products with `weight` may ever use another library than torch's choice. If not, products need not
    check."""
    if weight.dtype == torch.float32:
        return weight.device.type == "cpu" and not is_intel() and weight.numel() >= SMALL
    return weight.dtype == torch.bfloat16 and weight.device.type == "cpu"


def by_onednn(input: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN is the faster library: in eager mode, on a CPU that is not Intel's, in float32, above
    `SMALL`."""
    float32_on_cpu = input.device.type == "cpu" and input.dtype == weight.dtype == torch.float32
    unsupported = _onednn is None or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling()
    empty = not input.numel()  # which oneDNN refuses
    return float32_on_cpu and not (unsupported or empty) and not is_intel() and weight.numel() >= SMALL


def _in_half(*tensors: Tensor) -> bool:
    """Return whether oneDNN can multiply these tensors in bfloat16."""
    if torch.compiler.is_compiling() or _onednn is None:
        return False
    for tensor in tensors:
        if tensor.dtype != torch.bfloat16 or tensor.device.type != "cpu" or not tensor.numel():
            return False
    return multiplies_bf16()


FEW = 16
"""With fewer rows, rearranging a weight gains nothing."""

Arranged = dict[tuple[Tensor, torch.dtype], tuple[Tensor, Tensor | None]]
"""Weights rearranged in the order in which oneDNN reads them: in float32, or in bfloat16 with their bias."""


def _in_order(input: Tensor, weight: Tensor, arranged: Arranged | None) -> Tensor:
    """Return `weight`; for `FEW` rows or more, rearranged if `arranged` is given."""
    if arranged is None or input.numel() < FEW * input.shape[-1] or not isinstance(weight, nn.Parameter):
        return weight
    key = weight, weight.dtype
    if key not in arranged:
        assert _arrange is not None
        arranged[key] = _arrange(weight, None), None
    return arranged[key][0]


def halved(input: Tensor, layer: nn.Linear, arranged: Arranged) -> Tensor | None:
    """Return `layer(input)` as autocast to bfloat16 computes it, if oneDNN supports it; else None. Weights must be
    constant."""
    weight, bias = layer.weight, layer.bias
    if not torch.is_autocast_enabled("cpu") or torch.get_autocast_dtype("cpu") != torch.bfloat16:
        return None
    if torch.is_grad_enabled() or not isinstance(weight, nn.Parameter):
        return None
    if not all(tensor.dtype in (torch.float32, torch.bfloat16) for tensor in (input, weight)):
        return None
    if not _in_half(half := input.bfloat16()):
        return None
    key = weight, torch.bfloat16
    if key not in arranged:
        assert _arrange is not None
        arranged[key] = _arrange(weight.bfloat16(), None), None if bias is None else bias.bfloat16()
    return _by(half, *arranged[key])

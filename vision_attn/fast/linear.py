"""Linear layers with the fastest product of a device, and with one gradient for all time steps of a loop."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vision_attn.fast.products import Arranged, by_onednn, halved, linear, transposed_product
from vision_attn.fast.time_loops import InLoop
from vision_attn.layers.linear import Linear, Rectified, side_by_side


class FastLinear(InLoop, Linear):
    """`Linear` by the faster library. In a loop over time steps, one product computes the gradient of its weights."""

    rectified = False
    """Whether the output is max(0, W x + b)."""
    arranged: Arranged | None = None
    """Within `constant_weights`, the rearranged weights."""

    def forward(self, *inputs: Float[Tensor, "*rows _"]) -> Float[Tensor, "*rows N"]:
        if self.loop is None or torch.compiler.is_compiling():  # a time step alone may be compiled
            return self.product(*inputs)
        return self.loop.layer(self, self.product, *inputs)

    def product(self, *inputs: Float[Tensor, "*rows _"]) -> Float[Tensor, "*rows N"]:
        """Compute the layer outside of loops, or in a time step that collects nothing."""
        input = side_by_side(inputs) if len(inputs) > 1 else inputs[0]
        if by_onednn(input, self.weight):
            return _product(input, self, rectified=self.rectified)
        if self.rectified and self.bias is not None and _one_kernel(input, self.weight):
            rows = input.to(self.weight.dtype).reshape(-1, input.shape[-1])
            return torch._addmm_activation(self.bias, rows, self.weight.t()).view(*input.shape[:-1], -1)
        if self.arranged is None or (output := halved(input, self, self.arranged)) is None:
            output = F.linear(input, self.weight, self.bias)
        return F.relu(output) if self.rectified else output


@contextmanager
def constant_weights(model: nn.Module, arranged: Arranged | None = None) -> Iterator[None]:
    """Context manager for code in which no weight of `model` changes or gets a gradient: rearrange each weight for
    oneDNN, and under autocast cast it to bfloat16, once instead of at every product.

    arranged: weights that were rearranged before, to which further ones are added; by default none. Layers that belong
        to an outer context stay there.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, FastLinear) and layer.arranged is None]
    arranged = {} if arranged is None else arranged
    try:
        for layer in layers:
            layer.__dict__["arranged"] = arranged
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("arranged", None)


class FastRectified(FastLinear, Rectified):
    """`Rectified` as `FastLinear` computes it."""

    rectified = True


def _one_kernel(input: Tensor, weight: Tensor) -> bool:
    """Return whether a GPU computes a product and its ReLU by one kernel: without a gradient, and with weights that are
    already cast."""
    if not input.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    autocast = torch.is_autocast_enabled("cuda")
    return weight.dtype == (torch.get_autocast_dtype("cuda") if autocast else input.dtype)


def _product(input: Tensor, layer: FastLinear, *, rectified: bool) -> Tensor:
    """Return `_Product` of rows in any number of dimensions. Views are made here: one that a custom function returns
    cannot be changed in place."""
    if not torch.is_grad_enabled():
        return linear(input, layer.weight, layer.bias, rectified=rectified, arranged=layer.arranged)
    output = _Product.apply(input.reshape(-1, input.shape[-1]), layer.weight, layer.bias, rectified)
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

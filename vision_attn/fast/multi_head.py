"""Multi-head attention with fewer GPU kernels: one product for several projections, and fused attention."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.multi_head import MultiHead
from vision_attn.contracts import Forced
from vision_attn.fast.attend import attended
from vision_attn.fast.versions import is_cuda


class FastMultiHead(MultiHead):
    """`MultiHead`, on a GPU by fused kernels."""

    def remember(self, x: Float[Tensor, "N S M"]) -> tuple[Float[Tensor, "N K S d"], Float[Tensor, "N K S d"]]:
        heads = [self.split(projection) for projection in projected(self.projections, x)]
        return heads[0], heads[-1]

    def within(self, x: Float[Tensor, "N S H"], visible: Tensor) -> Float[Tensor, "N S H"]:
        """Compute self-attention. On a GPU, `visible` is 0 if a word sees another and -inf if not, because the kernel
        adds it to scores."""
        if not is_cuda(x):
            return super().within(x, visible)
        products = projected([self.query, *self.projections], x)
        query, *heads = (product.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for product in products)
        context = F.scaled_dot_product_attention(query, heads[0], heads[-1], attn_mask=visible.unsqueeze(-3))
        return self.output(context.transpose(1, 2).flatten(2))

    def weighed(
        self, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None, forced: Forced | None = None
    ) -> tuple[Tensor, Tensor]:
        if forced is not None or not is_cuda(query):
            return super().weighed(query, keys, values, visible, forced)
        scores = query @ keys.mT
        if visible is not None:
            scores = scores.masked_fill(~visible.unsqueeze(-3), -torch.inf)
        outputs = attended(scores.flatten(0, 1), values.flatten(0, 1), query.shape[-1] ** -0.5)
        return tuple(output.unflatten(0, query.shape[:2]) for output in outputs)


def projected(layers: Sequence[nn.Linear], input: Float[Tensor, "*rows M"]) -> list[Tensor]:
    """Compute layer(input) of each layer: in training on a GPU by one product, see `one_product`."""
    if (outputs := one_product(layers, input)) is None:
        return [layer(input) for layer in layers]
    return list(outputs.split([layer.out_features for layer in layers], dim=-1))


def one_product(layers: Sequence[nn.Linear], input: Float[Tensor, "*rows M"]) -> Float[Tensor, "*rows N"] | None:
    """Compute the outputs of all layers, one after the other, by one product. None unless in training on a GPU."""
    without_bias = any(layer.bias is None for layer in layers)
    if without_bias or torch.compiler.is_compiling() or not (is_cuda(input) and torch.is_grad_enabled()):
        return None
    weight, bias = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("weight", "bias"))
    return F.linear(input, weight, bias)

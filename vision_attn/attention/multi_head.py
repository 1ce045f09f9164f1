"""Multi-head attention of a Transformer (Vaswani et al., NIPS 2017)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vision_attn.attention.soft import normalised
from vision_attn.contracts import Forced
from vision_attn.layers.linear import Linear


class MultiHead(nn.Module):
    """Multi-head attention: each head is a scaled dot-product attention, softmax(Q K^T / sqrt(d)) V (Vaswani et al.
    2017, eq. 1), over d = H / (number of heads) features of the projections Q, K and V (section 3.2.2).

    shared_values: whether values equal keys, V = K, so that one projection serves both. Differs from the paper, where
        it is False.

    Differs from the paper: the projections have biases.

    Fast version: `fast.multi_head.FastMultiHead`.
    """

    def __init__(self, size: int, key_size: int, num_heads: int, *, shared_values: bool = False):
        super().__init__()
        self.num_heads = num_heads
        self.query = Linear(size, size)  # W^Q
        self.key = Linear(key_size, size)  # W^K
        self.value = None if shared_values else Linear(key_size, size)  # W^V
        self.output = Linear(size, size)  # W^O

    @property
    def projections(self) -> list[Linear]:
        """The layers that compute keys and values; a single one if they are shared."""
        return [self.key] if self.value is None else [self.key, self.value]

    def split(self, x: Float[Tensor, "N S H"]) -> Float[Tensor, "N K S d"]:
        """Split x into the features of each head. Contiguous, so that products of heads need no further copy."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).contiguous()

    def remember(self, x: Float[Tensor, "N S M"]) -> tuple[Float[Tensor, "N K S d"], Float[Tensor, "N K S d"]]:
        """Compute the keys and values of x, the vectors to attend to."""
        projected = [self.split(layer(x)) for layer in self.projections]
        return projected[0], projected[-1]

    def within(self, x: Float[Tensor, "N S H"], visible: Tensor) -> Float[Tensor, "N S H"]:
        """Compute self-attention of x, without its weights.

        visible: (N, S, S), whether a word sees another.
        """
        return self(x, *self.remember(x), visible)[0]

    def forward(
        self,
        query: Float[Tensor, "N Q H"],
        keys: Float[Tensor, "N K S d"],
        values: Float[Tensor, "N K S d"],
        visible: Bool[Tensor, "*N #Q S"] | None = None,
        forced: Forced | None = None,
    ) -> tuple[Float[Tensor, "N Q H"], Float[Tensor, "N K Q S"]]:
        """Return the output and the weights of every head.

        keys, values: the output of `remember`.
        visible: whether a query sees a key; None: every query sees every key.
        forced: weights that take the place of those of the heads.
        """
        return self.combined(*self.weighed(self.split(self.query(query)), keys, values, visible, forced))

    def weighed(
        self, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None, forced: Forced | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the context of every head, and its weights."""
        scores, size = query @ keys.mT, query.shape[-1]
        if visible is not None:
            scores = scores.masked_fill(~visible.unsqueeze(-3), -torch.inf)
        alpha = normalised(scores / size**0.5, forced)
        return alpha.to(values.dtype) @ values, alpha

    def combined(self, context: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        return self.output(context.transpose(1, 2).flatten(2)), alpha

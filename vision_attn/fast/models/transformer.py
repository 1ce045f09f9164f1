"""A Transformer without padding, and with fewer GPU kernels."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vision_attn.contracts import Caption
from vision_attn.fast import ragged
from vision_attn.fast.cast import casting_weights
from vision_attn.fast.multi_head import one_product
from vision_attn.fast.versions import is_cuda
from vision_attn.layers.precision import product_dtype
from vision_attn.models.transformer import Transformer, _real


class FastTransformer(ragged.HasRows, Transformer):
    """`Transformer` without padding after the words of each image. On a GPU, weights are cast once, and one product
    computes the keys and values of all layers."""

    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"]) -> Caption:
        if torch.compiler.is_compiling():
            return self._forward(regions, words)
        with casting_weights(self):
            return self._forward(regions, words)

    def _forward(self, regions: Tensor, words: Tensor) -> Caption:
        B, R, T = words.shape
        if self.max_length < T:
            return super().forward(regions, words)  # which refuses
        memory, index = self._memory(regions), ragged.packed(words, self.lengths)
        row, time = index // T, index % T
        x = self._embedded(F.pad(words, (1, -1)).flatten(1).gather(1, index), self.positions[time])
        x, alpha = self._through_layers(x, self._visible(row, time), memory)
        position = (index + torch.arange(B, device=words.device)[:, None] * (R * T)).flatten()
        deep = self.norm(x).flatten(0, 1)
        log_prob, mean = self.word_log_prob(
            self.output, deep, words, with_mean=self.with_mean, bars_pad=self.bars_pad, position=position
        )
        alpha = ragged.unpacked(alpha, index, words)
        return Caption(log_prob, alpha, real=_real(memory), mean_log_prob=mean)

    def _remembered(self, regions: Float[Tensor, "B L D"]) -> list[tuple[Tensor, Tensor]]:
        attentions = [layer.to_regions for layer in self.layers]
        projections = [projection for attention in attentions for projection in attention.projections]
        if (product := one_product(projections, regions)) is None:
            return super()._remembered(regions)
        heads = product.unflatten(-1, (len(projections), attentions[0].num_heads, -1))  # (B, L, parts, K, d)
        by_layer = heads.permute(2, 0, 3, 1, 4).contiguous().unbind()  # one copy for all of them
        number = len(attentions[0].projections)
        return list(zip(by_layer[::number], by_layer[number - 1 :: number], strict=True))

    def _visible(self, row: Int[Tensor, "B Q"], time: Int[Tensor, "B Q"]) -> Tensor:
        """Return the mask that a GPU's kernel adds to scores, computed once for all layers."""
        visible = super()._visible(row, time)
        if not is_cuda(row):
            return visible
        return self.positions.new_zeros((), dtype=product_dtype(self.positions)).where(visible, -torch.inf)

    def _mean(self, maps: list[Tensor]) -> Float[Tensor, "B Q L"]:
        return torch.cat(maps, dim=1).mean(dim=1) if is_cuda(maps[0]) else super()._mean(maps)

"""A vision transformer (Dosovitskiy et al., ICLR 2021) as a classifier."""

from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.contracts import Classifier, ClassifierOutput, one_size
from vision_attn.layers.likelihood import class_log_prob
from vision_attn.layers.linear import Linear
from vision_attn.layers.norm import PreNorm
from vision_attn.system.checks import check_range, require
from vision_attn.system.errors import UserError


class SelfAttention(nn.Module):
    """Multi-head self-attention (Dosovitskiy et al. 2021, appendix A, eq. 5 to 8)."""

    def __init__(self, size: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.projections = Linear(size, 3 * size)  # U_qkv
        self.output = Linear(size, size)  # U_msa

    def forward(self, x: Float[Tensor, "B N H"]) -> Float[Tensor, "B N H"]:
        query, key, value = self.projections(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value)
        return self.output(seen.transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    """Self-attention (eq. 2) and a feed-forward network (eq. 3), each in a residual block with layer normalisation
    before it."""

    def __init__(self, size: int, num_heads: int, feedforward_size: int):
        super().__init__()
        self.norms = nn.ModuleList(PreNorm(size) for _ in range(2))
        self.attention = SelfAttention(size, num_heads)
        self.feedforward = nn.Sequential(Linear(size, feedforward_size), nn.GELU(), Linear(feedforward_size, size))

    def forward(self, x: Float[Tensor, "B N H"]) -> Float[Tensor, "B N H"]:
        x = x + self.attention(self.norms[0](x))
        return x + self.feedforward(self.norms[1](x))


class VisionTransformer(Classifier):
    """Classifies the whole image by the class token of a Transformer over its patches (eq. 1 to 4). Deterministic:
    there is always one row.

    patch: height and width of a patch in pixels; divides those of the image.
    overlap: how many pixels of its neighbours a patch includes on each side. Differs from the paper, where it is 0:
        with overlap a small model sees the shape of an object within one token, and learns from few images.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        patch: int = 16,
        overlap: int = 0,
        hidden_size: int = 768,
        num_layers: int = 12,
        num_heads: int = 12,
        feedforward_size: int = 3072,
    ):
        super().__init__()
        check_range("VisionTransformer", 0, 1000, overlap=overlap)
        check_range("VisionTransformer", 1, 1000, patch=patch, num_layers=num_layers, num_heads=num_heads)
        channels, *sides = one_size("VisionTransformer", image_shape)
        if any(side % patch for side in sides):
            raise UserError(f"VisionTransformer: patches of {patch} pixels do not divide images of {tuple(sides)}")
        if hidden_size % num_heads:
            raise UserError(f"VisionTransformer: hidden_size={hidden_size} is no multiple of num_heads={num_heads}")
        self.image_shape, self.pixels = image_shape, prod(image_shape)
        num_patches = prod(side // patch for side in sides)
        self.patches = nn.Conv2d(channels, hidden_size, patch + 2 * overlap, patch, overlap)  # E
        self.token = nn.Parameter(torch.zeros(1, 1, hidden_size))  # x_class
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + num_patches, hidden_size))  # E_pos
        self.blocks = nn.ModuleList(EncoderLayer(hidden_size, num_heads, feedforward_size) for _ in range(num_layers))
        self.norm = nn.LayerNorm(hidden_size)
        self.output = Linear(hidden_size, num_classes)

    def forward(self, images: Float[Tensor, "B C Y X"], rows: int = 1, mode: str = "sample") -> ClassifierOutput:
        C, Y, X = self.image_shape
        require("images", images, "B C Y X", "float", C=C, Y=Y, X=X)
        return ClassifierOutput(class_log_prob(self.scores(images))[:, None, None], None, None)

    def scores(self, images: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B N"]:
        """Return the score of each class, before the softmax."""
        x = self.patches(2 * images - 1).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), 1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x)[:, 0])

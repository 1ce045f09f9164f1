"""Ragged batches: captions of unequal length without computing padding.

`CaptionBatch` sorts images, and the captions of each image, by decreasing length, so the images and rows that still
have a word at a time step come first. A time step computes only these leading images and rows.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.layers import accumulate
from vision_attn.layers.likelihood import word_log_prob
from vision_attn.layers.nested import Nested, map_tensors


def schedule(words: Int[Tensor, "B R T"]) -> list[tuple[int, int]]:
    """For each time step, how many leading images and leading rows still have a word.

    On a GPU every time step computes all images and rows: there a synchronisation costs more than padding.
    """
    B, R, T = words.shape
    if words.is_cuda:
        return [(B, R)] * T
    alive = words != 0
    images = (alive.any(1) * torch.arange(1, B + 1)[:, None]).amax(0).tolist()
    rows = (alive.any(0) * torch.arange(1, R + 1)[:, None]).amax(0).tolist()
    return [(b, r) for b, r in zip(images, rows, strict=True) if b]


def positions(words: Int[Tensor, "B R T"], steps: list[tuple[int, int]]) -> Int[Tensor, "N"]:
    """The index of each scheduled word in `words.flatten()`, time step by time step."""
    index = torch.arange(words.numel(), device=words.device).view(words.shape)
    return torch.cat([index[:b, :r, t].flatten() for t, (b, r) in enumerate(steps)])


def leading(nested: Nested, images: int, rows: int | None = None) -> Nested:
    """Select the leading images, and rows, of nested tensors. A tensor that has no others is returned unchanged,
    because the gradient of a slice is as large as the whole tensor."""

    def cut(part: Tensor) -> Tensor:
        if len(part) == images and (rows is None or part.shape[1] == rows):
            return part
        return accumulate.leading(part, images) if rows is None else part[:images, :rows]

    return map_tensors(cut, nested)


def padded(steps: list[Tensor], words: Int[Tensor, "B R T"]) -> Tensor:
    """Stack the outputs of scheduled time steps, (b, r, ...) each, into (B, R, T, ...), with zeros elsewhere."""
    B, R, T = words.shape
    sizes = [(0, 0) * (step.dim() - 2) + (0, R - step.shape[1], 0, B - step.shape[0]) for step in steps]
    stacked = torch.stack([F.pad(step, size) for step, size in zip(steps, sizes, strict=True)], dim=2)
    return F.pad(stacked, (0, 0) * (stacked.dim() - 3) + (0, T - len(steps)))


def packed(words: Int[Tensor, "B R T"]) -> Int[Tensor, "B Q"]:
    """The indices of the words of each image in its part of `words.flatten(1)`, one caption after the other.

    Q is the number of words of the image that has the most; padding fills the rows of the others. On a GPU it is R T,
    in any case: there a synchronisation costs more than padding.
    """
    said = words.flatten(1) != 0
    longest = said.shape[1] if words.is_cuda else int(said.sum(dim=1).amax())
    return said.byte().argsort(dim=1, descending=True, stable=True)[:, :longest]


def unpacked(parts: Float[Tensor, "B Q N"], index: Int[Tensor, "B Q"], words: Int[Tensor, "B R T"]) -> Tensor:
    """Undo `packed`: vectors of the words at `index`, as (B, R, T, N), with zeros at padding."""
    index = index[..., None].expand_as(parts)
    whole = parts.new_zeros(len(parts), words[0].numel(), parts.shape[-1]).scatter(1, index, parts)
    return whole.unflatten(1, words.shape[1:]) * (words != 0)[..., None]


def caption_log_prob(
    output: nn.Linear, deep: Tensor, words: Int[Tensor, "B R T"], position: Int[Tensor, "N"]
) -> Tensor:
    """log p of each word, (B, R, T) in nats, zero at padding.

    `deep` (N, E) is the input of the vocabulary layer `output` for the words at each `position` of `words.flatten()`.
    """
    log_prob = word_log_prob(output, deep, words.flatten()[position])
    return log_prob.new_zeros(words.numel()).scatter(0, position, log_prob).view(words.shape)

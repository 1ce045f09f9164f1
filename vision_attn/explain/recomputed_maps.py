"""Recompute the attention maps of some queries from queries and keys, in blocks that need little memory."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from vision_attn.layers.precision import at_least_float32

BLOCK = 2**20
"""The number of scores that are computed at once: 4 MiB in float32."""
KEYS = 256
"""The number of keys that are converted to float32 at once."""


def attention_weights(
    query: Float[Tensor, "B K Q E"],
    key: Float[Tensor, "B G N E"],
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
    queries: list[int],
) -> Float[Tensor, "B K queries N"]:
    """Compute softmax(q k^T scale + mask) for some queries, in blocks. Heads of `query` may share heads of `key`.

    queries: the indices of the queries.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    device_type = query.device.type
    if torch.is_autocast_enabled(device_type) and query.dtype == torch.float32:  # the model's kernel sees them rounded
        query, key = (tensor.to(torch.get_autocast_dtype(device_type)) for tensor in (query, key))
    B, K, _, _ = query.shape
    N = key.shape[-2]
    query = at_least_float32(query[:, :, queries] if len(queries) < query.shape[-2] else query)
    maps = torch.empty(B, K, len(queries), N, dtype=query.dtype, device=query.device)
    at_once = max(1, BLOCK // (B * K * N))
    with torch.autocast(device_type, enabled=False):
        for first in range(0, len(queries), at_once):
            block = slice(first, first + at_once)
            numbers = torch.tensor(queries[block], device=query.device)
            scores = grouped_product(query[:, :, block] * scale, key)
            if causal:
                scores.masked_fill_(torch.arange(N, device=query.device) > numbers[:, None], -torch.inf)
            if mask is not None:
                given = mask[:, :, numbers]
                scores = scores.masked_fill_(~given, -torch.inf) if given.dtype == torch.bool else scores.add_(given)
            nothing = scores.amax(dim=-1, keepdim=True) == -torch.inf
            maps[:, :, block] = scores.softmax(dim=-1).masked_fill_(nothing, 0)
    return maps


def grouped_product(queries: Float[Tensor, "B K Q E"], keys: Float[Tensor, "B G N E"]) -> Float[Tensor, "B K Q N"]:
    """Return queries keys^T, where K / G heads of `queries` share a head of `keys`."""
    groups = queries.shape[1] // keys.shape[1]
    if groups > 1:
        queries, keys = queries.unflatten(1, (-1, groups)), keys[:, :, None]
    # A type that needs no conversion is not copied; the others are converted in blocks.
    blocks = keys.split(KEYS if keys.dtype.itemsize < 4 else keys.shape[-2], dim=-2)
    products = [at_least_float32(queries) @ at_least_float32(block).mT for block in blocks]
    product = products[0] if len(products) == 1 else torch.cat(products, dim=-1)
    return product if groups == 1 else product.flatten(1, 2)


def four_axes(tensor: Tensor) -> Shaped[Tensor, "B K Q E"]:
    """Reshape to one axis of images and one of heads."""
    while tensor.dim() < 4:
        tensor = tensor.unsqueeze(-3)
    return tensor.flatten(0, -4)

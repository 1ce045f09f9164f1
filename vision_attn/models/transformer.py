"""A Transformer decoder over annotation vectors (Vaswani et al., NIPS 2017), with the maps of its cross-attention.

`forward` runs all words of an image's captions at once, as one sequence, with a mask under which each word sees the
earlier words of its own caption. `step` caches the keys and values of earlier words in the state, in tensors of fixed
size. So every step costs the same, and beams reorder the cache.
"""

from math import log
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.multi_head import MultiHead
from vision_attn.contracts import PAD, AttentionMap, Caption, Captioner, Forced
from vision_attn.layers.dropout import Dropout
from vision_attn.layers.likelihood import WordLogProb
from vision_attn.layers.linear import Linear
from vision_attn.layers.norm import PreNorm
from vision_attn.layers.padding import real_regions
from vision_attn.system.checks import check_range, require
from vision_attn.system.errors import UserError


class TransformerState(NamedTuple):
    """The words so far as cached keys and values. Held once per row; beams reorder it."""

    position: Int[Tensor, "B R"]
    """The number of words so far."""
    keys: tuple[Float[Tensor, "B R K T d"], ...]
    """The keys of each layer's masked self-attention, head by head; zero at positions not reached yet."""
    values: tuple[Float[Tensor, "B R K T d"], ...]
    """The values of each layer's masked self-attention, likewise."""


class TransformerMemory(NamedTuple):
    """The keys and values of the cross-attention of each layer. Held once per image."""

    keys: tuple[Float[Tensor, "B K L d"], ...]
    values: tuple[Float[Tensor, "B K L d"], ...]
    real: Bool[Tensor, "B 1 L"] | None = None
    """Which regions are not padding; None: all."""
    forced: Forced | None = None
    """The maps that the heads of all layers must use for the next word; None: the maps that their scores give."""


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention and a feed-forward network, each in a residual block with layer
    normalisation before it ("pre", Xiong et al. 2020) or after the sum ("post", the paper)."""

    def __init__(
        self,
        size: int,
        region_size: int,
        num_heads: int,
        feedforward_size: int,
        dropout: float,
        norm: str,
        shared_values: bool,
    ):
        super().__init__()
        self.pre = norm == "pre"
        self.to_words = MultiHead(size, size, num_heads, shared_values=shared_values)
        self.to_regions = MultiHead(size, region_size, num_heads, shared_values=shared_values)
        self.feedforward = nn.Sequential(
            Linear(size, feedforward_size), nn.ReLU(), Dropout(dropout), Linear(feedforward_size, size)
        )  # max(0, x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, eq. 2)
        self.norms = nn.ModuleList((PreNorm if self.pre else nn.LayerNorm)(size) for _ in range(3))
        self.dropout = Dropout(dropout)

    def before(self, block: int, x: Tensor) -> Tensor:
        """Return the input of residual block `block`."""
        return self.norms[block](x) if self.pre else x

    def after(self, block: int, x: Tensor, change: Tensor) -> Tensor:
        """Return the output of residual block `block`: LayerNorm(x + Sublayer(x)) in the paper."""
        x = x + self.dropout(change)
        return x if self.pre else self.norms[block](x)


class Transformer(Captioner):
    """A Transformer decoder of `num_layers` layers of width `hidden_size` with `num_heads` heads. The embedding is also
    the output layer (section 3.4).

    positions: "sinusoidal" (the paper, section 3.5), "learned", or "none": only the mask then shows the order of words.
    norm: "pre" (trains without a long warm-up) or "post" (the paper).
    shared_values: whether values are the keys; see `MultiHead`.
    max_length: the largest number of words in a caption, END included; also the size of the cache.

    The map of a word is the mean of the cross-attention of all heads of all layers; `step` returns each head too.

    Fast version: `fast.models.transformer.FastTransformer`.
    """

    steerable = True
    layers: Any
    """An `nn.ModuleList` of `DecoderLayer`."""
    positions: Tensor
    max_length: int

    def __init__(
        self,
        num_words: int,
        region_size: int,
        *,
        hidden_size: int = 512,
        num_layers: int = 3,
        num_heads: int = 8,
        feedforward_size: int = 2048,
        dropout: float = 0.1,
        norm: Literal["pre", "post"] = "pre",
        positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal",
        shared_values: bool = False,
        max_length: int = 64,
    ):
        super().__init__()
        check_range("Transformer", 1, 1000, num_layers=num_layers, num_heads=num_heads, max_length=max_length)
        if hidden_size % (2 * num_heads):
            raise UserError(
                f"Transformer: hidden_size={hidden_size} must be a multiple of 2 * num_heads={2 * num_heads}"
            )
        self.region_size, self.max_length, self.pads = region_size, max_length, False
        self.embedding = nn.Embedding(num_words, hidden_size)  # word 0 starts a caption
        nn.init.normal_(self.embedding.weight, std=hidden_size**-0.5)
        table = sinusoids(max_length, hidden_size)
        if positions == "learned":
            self.positions = nn.Parameter(0.02 * torch.randn_like(table))
        else:
            self.register_buffer("positions", table * (positions != "none"), persistent=False)
        sizes = hidden_size, region_size, num_heads, feedforward_size
        self.layers = nn.ModuleList(DecoderLayer(*sizes, dropout, norm, shared_values) for _ in range(num_layers))
        self.norm = PreNorm(hidden_size) if norm == "pre" else nn.Identity()
        self.dropout, self.word_log_prob = Dropout(dropout), WordLogProb()
        self.output = nn.Linear(hidden_size, num_words)
        self.output.weight = self.embedding.weight

    def leave_out_padding(self) -> None:
        self.pads = True

    def steer(self, memory: TransformerMemory, forced: Forced) -> TransformerMemory:
        heads, given = sum(layer.to_regions.num_heads for layer in self.layers), forced.alpha.shape[1]
        if given not in (1, heads):
            raise UserError(f"maps of {given} attention heads, but the layers have {heads} in all: give one, or all")
        return memory._replace(forced=forced)

    def start(self, regions: Float[Tensor, "B L D"], rows: int) -> tuple[TransformerMemory, TransformerState]:
        memory = self._memory(regions)
        position = torch.zeros(regions.shape[0], rows, dtype=torch.long, device=regions.device)
        B, K, _, d = memory.keys[0].shape
        empty = memory.keys[0].new_zeros(B, rows, K, self.max_length, d)
        return memory, TransformerState(position, (empty,) * len(self.layers), (empty,) * len(self.layers))

    def step(
        self, word: Int[Tensor, "B R"], state: TransformerState, memory: TransformerMemory
    ) -> tuple[Float[Tensor, "B R V"], TransformerState, AttentionMap]:
        B, R = word.shape
        x = self._embedded(word, self.positions[state.position.clamp(max=self.max_length - 1)])
        slots = torch.arange(self.max_length, device=word.device)
        visible = (slots <= state.position[..., None]).flatten(0, 1)[:, None]  # (B R, 1, T)
        here = (slots == state.position[..., None])[:, :, None, :, None]
        cached, heads = [], []
        for number, layer in enumerate(self.layers):
            query = layer.before(0, x)
            new = layer.to_words.remember(query.flatten(0, 1)[:, None])  # (B R, K, 1, d)
            keys, values = (
                torch.where(here, vectors.unflatten(0, (B, R)), cache[number])
                for vectors, cache in zip(new, (state.keys, state.values), strict=True)
            )
            cached.append((keys, values))
            flat = (tensor.flatten(0, 1) for tensor in (query[:, :, None], keys, values))
            x = layer.after(0, x, layer.to_words(*flat, visible)[0].view_as(x))
            x, alpha = self._look(number, x, memory)
            heads.append(alpha)
        alpha = torch.cat(heads, dim=1).transpose(1, 2)  # (B, R, K, L)
        return (
            self.output(self.norm(x)),
            TransformerState(state.position + 1, *zip(*cached, strict=True)),
            AttentionMap(alpha.mean(dim=2), None, alpha),
        )

    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"]) -> Caption:
        require("words", words, "B R T", "integer", B=regions.shape[0], hint=": ids of R captions per image")
        R, T = words.shape[1:]
        if self.max_length < T:
            raise UserError(f"Transformer: captions of {T} words, but max_length is {self.max_length}")
        memory, index = self._memory(regions), torch.arange(R * T, device=words.device)[None]
        row, time = index // T, index % T
        x = self._embedded(F.pad(words, (1, -1)).flatten(1), self.positions[time])
        x, alpha = self._through_layers(x, self._visible(row, time), memory)
        deep = self.norm(x).unflatten(1, (R, T))
        log_prob, mean = self.word_log_prob(self.output, deep, words, with_mean=self.with_mean, bars_pad=self.bars_pad)
        alpha = alpha.unflatten(1, (R, T)) * (words != PAD)[..., None]
        return Caption(log_prob, alpha, real=_real(memory), mean_log_prob=mean)

    def _through_layers(
        self, x: Float[Tensor, "B Q H"], visible: Tensor, memory: TransformerMemory
    ) -> tuple[Float[Tensor, "B Q H"], Float[Tensor, "B Q L"]]:
        """Return the output of the last layer, and the mean map of all heads of all layers.

        visible: see `_visible`.
        """
        maps = []
        for number, layer in enumerate(self.layers):
            x = layer.after(0, x, layer.to_words.within(layer.before(0, x), visible))
            x, seen = self._look(number, x, memory)
            maps.append(seen)
        return x, self._mean(maps)

    @torch.no_grad()
    def sharpen(self, temperature: float) -> None:
        """Divide the logits by `temperature` by scaling the last normalisation and the bias. The output weights must
        not change: they are the embeddings."""
        last = self.norm if isinstance(self.norm, nn.LayerNorm) else self.layers[-1].norms[2]
        for weight in (last.weight, last.bias, self.output.bias):
            weight.div_(temperature)

    def _memory(self, regions: Float[Tensor, "B L D"]) -> TransformerMemory:
        require("regions", regions, "B L D", "float", D=self.region_size)
        real = real_regions(regions)[:, None] if self.pads else None
        keys, values = zip(*self._remembered(regions), strict=True)
        return TransformerMemory(keys, values, real)

    def _remembered(self, regions: Float[Tensor, "B L D"]) -> list[tuple[Tensor, Tensor]]:
        """Return the keys and values of the cross-attention of each layer."""
        return [layer.to_regions.remember(regions) for layer in self.layers]

    def _visible(self, row: Int[Tensor, "B Q"], time: Int[Tensor, "B Q"]) -> Bool[Tensor, "B Q Q"]:
        """Return which words each word sees: the earlier ones of its caption, and itself."""
        return (row[:, :, None] == row[:, None]) & (time[:, :, None] >= time[:, None])

    def _mean(self, maps: list[Tensor]) -> Float[Tensor, "B Q L"]:
        """Return the mean over layers and heads."""
        first, *others = (alpha.mean(dim=1) / len(maps) for alpha in maps)
        return sum(others, start=first)

    def _embedded(self, words: Int[Tensor, "*rows"], positions: Float[Tensor, "*steps H"]) -> Float[Tensor, "*rows H"]:
        """Return embeddings times sqrt(H), plus positions (sections 3.4 and 3.5)."""
        return self.dropout(self.embedding(words) * self.embedding.embedding_dim**0.5 + positions)

    def _look(self, number: int, x: Tensor, memory: TransformerMemory) -> tuple[Tensor, Float[Tensor, "B K Q L"]]:
        """Run the cross-attention and the feed-forward network of a layer, for all queries (B, Q, H) of an image."""
        layer, heads, seen = self.layers[number], self.layers[number].to_regions.num_heads, memory
        forced = None if seen.forced is None else seen.forced.heads(number * heads, heads)
        change, alpha = layer.to_regions(layer.before(1, x), seen.keys[number], seen.values[number], seen.real, forced)
        x = layer.after(1, x, change)
        return layer.after(2, x, layer.feedforward(layer.before(2, x))), alpha


def _real(memory: TransformerMemory) -> Bool[Tensor, "B L"] | None:
    """Return which regions are not padding; None: all."""
    return None if memory.real is None else memory.real[:, 0]


def sinusoids(length: int, size: int) -> Float[Tensor, "{length} {size}"]:
    """Return the table PE(t, 2i) = sin(t / 10000^(2i / size)), PE(t, 2i + 1) = cos of the same (section 3.5)."""
    frequency = torch.exp(torch.arange(0, size, 2) * (-log(10000) / size))
    angle = torch.arange(length)[:, None] * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)

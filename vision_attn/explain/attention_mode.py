"""`Recorder`, a torch function mode that intercepts the operations of a model and records its attention maps."""

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from vision_attn.explain.recomputed_maps import attention_weights, four_axes, grouped_product
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.errors import UserError

Queries = int | Sequence[int] | Literal["all"]


# Names, not bound methods: a recorder that referred to itself would keep its maps until the garbage collector runs.
HANDLERS = {
    "scaled_dot_product_attention": "fused",
    "multi_head_attention_forward": "multi_head",
    "_native_multi_head_attention": "native",
    "softmax": "softmax",
    **dict.fromkeys(("dropout", "to", "type_as", "type", "float", "half", "bfloat16", "contiguous"), "passed"),
    **dict.fromkeys(("matmul", "__matmul__", "bmm", "einsum"), "product"),
}
"""The name of each function of torch, with the method of `Recorder` that handles it."""


class RecordedAttention:
    """The attention that a module computed in one call."""

    def __init__(self, name: str, call: int, maps: Tensor, queries: tuple[int, ...], num_queries: int) -> None:
        self.name = name
        """The module, as in `model.named_modules()`."""
        self.call = call
        """The number of earlier calls in which the module computed attention, such as those for earlier words."""
        self.maps: Float[Tensor, "B K Q N"] = maps
        """The weights of N keys for each recorded query and head, in float32 or wider, before dropout and without a
        gradient. A row sums to 1, or is 0 where everything is masked."""
        self.queries = queries
        """The indices of the recorded queries in this call, one for each row of `maps`."""
        self.num_queries = num_queries
        """The number of queries in the call."""
        self.gradient: Float[Tensor, "B K Q N"] | None = None
        """The gradient of `maps`, after `backward`, where gradients are recorded."""

    def __repr__(self) -> str:
        return f"RecordedAttention({self.name!r}, call={self.call}, maps={tuple(self.maps.shape)})"


class AttentionRecord(list[RecordedAttention]):
    """All recorded attentions, in the order of their computation. Indexed with a name, it returns the list of one
    module's attentions."""

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        if attentions := [attention for attention in self if attention.name == key]:
            return attentions
        raise KeyError(f"no attention of {key!r} was recorded; recorded: {', '.join(self.names) or 'nothing'}")

    @property
    def names(self) -> list[str]:
        """The modules that computed attention, in the order of their first call."""
        return list(dict.fromkeys(attention.name for attention in self))


class Recorder(TorchFunctionMode):
    """Records attention by intercepting every function of torch, whatever name it was imported under."""

    def __init__(self, queries: Queries, layers: re.Pattern[str], gradients: bool, mean: bool = False) -> None:
        super().__init__()
        self.queries, self.layers, self.gradients, self.mean = queries, layers, gradients, mean
        self.record, self.thread = AttentionRecord(), threading.get_ident()
        self.running: list[tuple[str, nn.Module]] = []

    def enter(self, name: str, module: nn.Module, _: tuple) -> None:
        if threading.get_ident() == self.thread:
            self.running.append((name, module))

    def leave(self, *_: Any) -> None:
        if threading.get_ident() == self.thread:
            self.running.pop()

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        handler = HANDLERS.get(getattr(func, "__name__", "")) if self.running else None
        if handler is None or not self.layers.search(self.running[-1][0]):
            return func(*args, **(kwargs or {}))
        return getattr(self, handler)(func, *args, **(kwargs or {}))

    def fused(
        self,
        func: Callable,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        """Handle F.scaled_dot_product_attention: recompute its maps for the queries to record."""
        output = func(query, key, value, attn_mask, dropout_p, is_causal, **options)
        attn_mask = _plain(attn_mask, query.device)
        packed = _has_packed_heads(query, key, self.running[-1][1])

        def heads(tensor: Tensor) -> Tensor:
            """Reshape to (B, K, Q, E). Packed heads move from the axis of queries to an axis of their own."""
            tensor = four_axes(tensor)
            return tensor.flatten(1, 2)[:, :, None] if packed else tensor

        if attn_mask is not None:
            attn_mask = heads(attn_mask.expand(*query.shape[:-1], key.shape[-2]))
        queries = self.wanted_queries(1 if packed else query.shape[-2])
        with torch.no_grad():
            scale = options.get("scale")
            maps = attention_weights(heads(query), four_axes(key), attn_mask, is_causal, scale, queries)
        self.keep(maps, queries, 1 if packed else query.shape[-2], output, lambda slope: grouped_product(
            heads(slope)[:, :, queries], four_axes(value)
        ))  # fmt: skip
        return output

    def multi_head(self, func: Callable, *args: Any, **kwargs: Any) -> Any:
        """Handle F.multi_head_attention_forward. Modes are disabled within it, so the functions that it calls are
        replaced while it runs."""
        mine, num_heads = threading.get_ident(), args[4] if len(args) > 4 else kwargs["num_heads"]
        fused, softmax = F.scaled_dot_product_attention, F.softmax

        def replaced_fused(*args: Any, **kwargs: Any) -> Tensor:
            return self.fused(fused, *args, **kwargs) if threading.get_ident() == mine else fused(*args, **kwargs)

        def replaced_softmax(*args: Any, **kwargs: Any) -> Tensor:
            output = softmax(*args, **kwargs)
            if threading.get_ident() == mine:
                self.keep_computed(output, output.unflatten(0, (-1, num_heads)))
            return output

        F.scaled_dot_product_attention, F.softmax = replaced_fused, replaced_softmax
        try:
            return func(*args, **kwargs)
        finally:
            F.scaled_dot_product_attention, F.softmax = fused, softmax

    def native(self, func: Callable, query: Tensor, key: Tensor, value: Tensor, *args: Any) -> Any:
        """Handle the fast path of nn.MultiheadAttention, which has no gradient: recompute queries and keys."""
        output = func(query, key, value, *args)
        _, num_heads, weight, bias, _, _, mask, *_ = args
        biases = (None, None) if bias is None else bias.chunk(3)[:2]
        query, key = (
            F.linear(tensor, matrix, shift).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for tensor, matrix, shift in zip((query, key), weight.chunk(3)[:2], biases, strict=True)
        )
        if mask is not None:
            mask = mask if mask.dim() == 4 else mask[:, None, None]  # of keys alone
            mask = (mask == 0).expand(*query.shape[:-1], key.shape[-2])
        queries = self.wanted_queries(query.shape[-2])
        self.keep(
            attention_weights(query, key, mask, False, None, queries),
            queries,
            query.shape[-2],
            output[0],
            at_least_float32,
        )
        return output

    def softmax(self, func: Callable, *args: Any, **kwargs: Any) -> Tensor:
        """Mark the result of a softmax over the last axis, which may be attention."""
        output = func(*args, **kwargs)
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if output.dim() >= 3 and dim in (-1, output.dim() - 1):
            _mark(output, output)
        return output

    def passed(self, func: Callable, *args: Any, **kwargs: Any) -> Any:
        """Keep the mark of a tensor through dropout and changes of type."""
        output = func(*args, **kwargs)
        origin = _origin(args[0] if args else None)
        if origin is not None and isinstance(output, Tensor) and output is not origin:
            _mark(output, origin)
        return output

    def product(self, func: Callable, *args: Any, **kwargs: Any) -> Tensor:
        """Record a marked softmax that is multiplied with another tensor, since it is attention."""
        if not args:  # named: the left one comes first in the signature of each
            left = next((kwargs[name] for name in ("input", "self") if name in kwargs), None)
            operands = (left,)
        else:
            operands = args[1:] if isinstance(args[0], str) else args[:1]  # of einsum; of the others, the left one
        for operand in operands[0] if operands and isinstance(operands[0], list | tuple) else operands:
            if (origin := _origin(operand)) is not None:
                self.keep_computed(origin, four_axes(origin))
        return func(*args, **kwargs)

    def keep_computed(self, weights: Tensor, maps: Float[Tensor, "B K Q N"]) -> None:
        """Record a map that the model computed itself, for the queries to record."""
        queries, shape = self.wanted_queries(maps.shape[-2]), maps.shape
        kept = at_least_float32(maps.detach()[:, :, queries])
        self.keep(
            kept, queries, shape[-2], weights, lambda slope: at_least_float32(slope.reshape(shape)[:, :, queries])
        )

    def wanted_queries(self, num_queries: int) -> list[int]:
        """Return the indices of the queries to record."""
        if self.queries == "all":
            return list(range(num_queries))
        wanted = [self.queries] if isinstance(self.queries, int) else list(self.queries)
        for query in wanted:
            if not -num_queries <= query < num_queries:
                raise UserError(
                    f"{self.running[-1][0]} has {num_queries} queries, none with the number {query}: ask for "
                    "others, or name the layers to record"
                )
        return [query % num_queries for query in wanted]

    def keep(
        self, maps: Tensor, queries: list[int], num_queries: int, output: Tensor, slope: Callable[[Tensor], Tensor]
    ) -> None:
        """Add an attention to the record.

        maps: its rows for `queries`, out of `num_queries`.
        output: a tensor computed from the maps.
        slope: converts the gradient of `output` to the gradient of the maps.
        """
        name, maps = self.running[-1][0], maps.mean(dim=1, keepdim=True) if self.mean else maps
        attention = RecordedAttention(
            name, sum(other.name == name for other in self.record), maps, tuple(queries), num_queries
        )
        self.record.append(attention)
        if self.gradients and output.requires_grad:

            def store(gradient: Tensor) -> None:
                with torch.no_grad():
                    attention.gradient = slope(gradient)

            output.register_hook(store)


def _plain(mask: Tensor | None, device: torch.device) -> Tensor | None:
    """Return a `torch.nn.attention.bias.CausalBias`, which holds no numbers, as a mask of numbers; other masks are
    unchanged."""
    if type(mask) in (Tensor, type(None), nn.Parameter):
        return mask
    from torch.nn.attention.bias import CausalBias, CausalVariant

    if not isinstance(mask, CausalBias):
        return mask
    shift = mask.seq_len_kv - mask.seq_len_q if mask.variant is CausalVariant.LOWER_RIGHT else 0
    return torch.ones(mask.seq_len_q, mask.seq_len_kv, dtype=torch.bool, device=device).tril(shift)


def _mark(tensor: Any, origin: Tensor) -> None:
    with suppress(AttributeError):  # of subclasses without a dictionary
        tensor.softmax_origin = None if tensor is origin else origin  # None: no reference of a tensor to itself


def _origin(tensor: Any) -> Tensor | None:
    """Return the marked softmax that a tensor is or was computed from; None for other tensors."""
    if not isinstance(tensor, Tensor) or "softmax_origin" not in vars(tensor):
        return None
    origin = vars(tensor)["softmax_origin"]
    return tensor if origin is None else origin


def _has_packed_heads(query: Tensor, key: Tensor, module: nn.Module) -> bool:
    """Return whether the heads that share a key lie on the axis of queries. The library transformers puts them there in
    grouped-query attention with a mask if there is a single query."""
    groups = getattr(module, "num_key_value_groups", 1)
    if groups == 1 or query.shape[-2] != groups or query.shape[-3] != key.shape[-3]:
        return False
    heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
    return heads == groups * query.shape[-3]

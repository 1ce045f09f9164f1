"""`record_attention`: record the attention of any PyTorch model without changing the model or its outputs, bit for bit.

    with record_attention(model) as record:
        model(images)
    record["blocks.11.attn"][0].maps  # (B, K, Q, N): heads, the queries asked for, keys

Three forms of attention are recorded, under whatever name they were imported: `F.scaled_dot_product_attention`,
`nn.MultiheadAttention`, and a softmax over the last axis whose result is multiplied with values (`matmul`, `bmm`, `@`,
`einsum`), as in Swin, BLIP and every "eager" attention. Not recorded: kernels of other libraries (FlashAttention,
xFormers), `flex_attention`, and a softmax that is changed before the product by anything but dropout and a change of
type. The fused path that `nn.TransformerEncoderLayer` takes without gradients is off while recording, which changes the
rounding of its outputs.
"""

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vision_attn.explain.attention_mode import AttentionRecord, Queries, Recorder
from vision_attn.system.errors import UserError

_one_at_a_time = threading.RLock()


@contextmanager
def record_attention(
    model: nn.Module, *, queries: Queries = 0, layers: str = "", gradients: bool = False, mean: bool = False
) -> Iterator[AttentionRecord]:
    """Context manager: record the attention of `model` in this thread. Outputs stay the same, bit for bit. Functions of
    torch are replaced meanwhile, so another thread that wants to record waits until the context ends. With several
    threads, call the module itself within it: `caption` or `look` of a loaded model would wait for the model's lock,
    which another thread may hold while it waits for this context.

    queries: the queries to record: a number or several (0 is a ViT's class token; -1 is the last one, which in
        generation gives one row per generated word), or "all" for full maps. Rows are computed in blocks, so that a few
        rows of a long sequence take little memory.
    layers: a regular expression; only modules whose names it matches (`re.search`) are recorded.
    gradients: also keep the gradient of each map, once `backward` has run. Not with `mean`.
    mean: keep the mean over the heads alone, K = 1: long generations take much less memory.

    Raises UserError for compiled and scripted models, whose operations Python does not see, and for the index of a
    query that a layer does not have.
    """
    _refuse_compiled(model)
    recorder = Recorder(queries, re.compile(layers), gradients, mean)
    with _one_at_a_time, following(model, recorder.enter, recorder.leave), recorder, _fast_paths():
        yield recorder.record


@contextmanager
def following(model: nn.Module, enter: Callable[..., None], leave: Callable[..., None]) -> Iterator[None]:
    """Context manager: call `enter` with the name and the inputs of each module of `model` before it runs, and `leave`
    after it, also if it raises."""
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(partial(enter, name)))
            hooks.enter_context(module.register_forward_hook(leave, always_call=True))
        yield


@contextmanager
def _fast_paths() -> Iterator[None]:
    """Context manager: let nn.MultiheadAttention take its fast path under a mode, in this thread. Otherwise its outputs
    would be rounded differently."""
    mine, original = threading.get_ident(), torch.overrides.has_torch_function

    def has_torch_function(args: Iterable[Any]) -> bool:
        if threading.get_ident() != mine:
            return original(args)
        return any(isinstance(argument, Tensor) and type(argument) not in (Tensor, nn.Parameter) for argument in args)

    torch.overrides.has_torch_function = has_torch_function
    try:
        yield
    finally:
        torch.overrides.has_torch_function = original


def _refuse_compiled(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UserError(
                f"{name or 'the model'} is a TorchScript module: give the Python model that it was made from"
            )
        compiled = type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
        if compiled or hasattr(module.forward, "_torchdynamo_orig_callable"):
            original = "its `_orig_mod`" if hasattr(module, "_orig_mod") else "the model before torch.compile"
            raise UserError(
                f"{name or 'the model'} is compiled, and compiled code hides its attention: give {original}"
            )

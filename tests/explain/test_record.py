"""Recording the attention of models that know nothing of it."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.architectures import ARCHITECTURES, HEADS, TEXT, hf_blip, hf_llava
from vision_attn.explain.record import record_attention
from vision_attn.system.errors import UserError


def tensors(output: Any) -> list[Tensor]:
    """All tensors of an output, whatever holds them."""
    if isinstance(output, Tensor):
        return [output]
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors(part)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_outputs_stay_the_same_and_maps_are_those_of_eager_attention(name: str) -> None:
    torch.manual_seed(0)
    model, run, eager = ARCHITECTURES[name]()
    with torch.no_grad():
        for weights in model.parameters():  # the libraries' own random weights attend nearly everywhere
            if weights.dim() > 1:
                weights.normal_(std=2 / weights[0].numel() ** 0.5)
        plain = tensors(run(model))
        with record_attention(model, queries="all") as record:
            recorded = tensors(run(model))
        expected = eager()
    assert plain and all(torch.equal(one, other) for one, other in zip(plain, recorded, strict=True))
    assert set(expected) == set(record.names) and len(record) >= 2
    for place, maps in expected.items():
        for one, reference in zip(record[place], maps, strict=True):
            torch.testing.assert_close(one.maps, reference.reshape(one.maps.shape), rtol=0, atol=1e-5)
    assert any(one.maps.amax() > 3 / one.maps.shape[-1] for one in record)
    for one in record:
        torch.testing.assert_close(one.maps.sum(-1), torch.ones(one.maps.shape[:-1]), rtol=0, atol=1e-5)


class Toy(nn.Module):
    """One attention, computed from its inputs as they are."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, **self.options)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def identity_values(keys: int, *lead: int) -> Tensor:
    """Values with which the output of attention is its map."""
    return torch.eye(keys, dtype=torch.float64).expand(*lead, keys, keys)


@pytest.mark.parametrize(
    "case", ["plain", "causal", "causal, more keys", "bool", "padding", "float", "scale", "grouped"]
)
def test_maps_are_those_that_the_kernel_used(case: str) -> None:
    """With the identity as values, the output is the map."""
    Q, N, groups = (5, 8, 1) if case == "causal, more keys" else (6, 6, 2 if case == "grouped" else 1)
    visible = torch.rand(2, 1, Q, N, generator=torch.Generator().manual_seed(0)) > 0.4
    visible[..., 0] = True
    options: dict[str, Any] = {
        "causal": {"is_causal": True},
        "causal, more keys": {"is_causal": True},
        "bool": {"attn_mask": visible},
        "padding": {"attn_mask": visible[:, :, :1]},
        "float": {"attn_mask": normal(Q, N)},
        "scale": {"scale": 0.3},
        "grouped": {"enable_gqa": True, "is_causal": True},
    }.get(case, {})
    query, key = normal(2, 4, Q, 3), normal(2, 4 // groups, N, 3)
    model = Toy(**options)
    with record_attention(model, queries=[3, -1]) as record:
        output = model(query, key, identity_values(N, 2, 4 // groups))
    (one,) = record
    assert one.queries == (3, Q - 1) and one.num_queries == Q and one.name == ""
    torch.testing.assert_close(one.maps, output[:, :, [3, Q - 1]])


def test_a_query_that_sees_nothing_has_an_empty_map() -> None:
    model = Toy(attn_mask=torch.tensor([[True, False], [False, False]]))
    with record_attention(model, queries="all") as record:
        model(normal(1, 1, 2, 3), normal(1, 1, 2, 3), normal(1, 1, 2, 3))
    assert record[0].maps[0, 0].tolist() == [[1, 0], [0, 0]]


def test_attention_under_names_imported_elsewhere_is_seen() -> None:
    from torch import softmax
    from torch.nn.functional import scaled_dot_product_attention as attention

    class Other(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = attention(x, x, x)
            alpha = nn.Softmax(dim=-1)(x @ x.mT)
            x = torch.einsum("bkqn,bkne->bkqe", alpha, x)
            alpha = softmax(x @ x.mT, 3).to(torch.float32)
            return (alpha @ x.float()).softmax(dim=-1)  # the last softmax is no attention

    with record_attention(Other(), queries="all") as record:
        Other()(normal(1, 2, 3, 4))  # another model, which is not recorded
        assert not record
    model = Other()
    with record_attention(model, queries="all") as record:
        model(normal(1, 2, 3, 4))
    assert len(record) == 3 and [one.call for one in record] == [0, 1, 2]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_multihead_attention_with_padding(grad: bool, weights: bool) -> None:
    """The fast path without gradients, the slow one with them, and the one that returns its weights itself."""
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    x, padding = torch.randn(2, 6, 16), torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    options = {"key_padding_mask": padding, "need_weights": weights, "average_attn_weights": False}
    with torch.set_grad_enabled(grad):
        plain = model(x, x, x, **options)
        with record_attention(model, queries="all") as record:
            output = model(x, x, x, **options)
        reference = model(x, x, x, **(options | {"need_weights": True}))[1]
    assert torch.equal(plain[0], output[0]) and len(record) == 1
    torch.testing.assert_close(record[0].maps, reference, rtol=0, atol=1e-6)
    assert not record[0].maps[1, ..., 4:].any()


def test_gradients_of_maps_are_those_of_eager_attention() -> None:
    query, key, value = (normal(2, 4, 5, 3).requires_grad_() for _ in range(3))
    key.data, value.data = normal(2, 2, 6, 3), normal(2, 2, 6, 3)
    target = normal(2, 4, 5, 3)
    model = Toy(enable_gqa=True)
    with record_attention(model, queries=[1, 2], gradients=True) as record:
        (model(query, key, value) * target).sum().backward()
    assert record[0].gradient is not None
    alpha = (query @ key.repeat_interleave(2, 1).mT / 3**0.5).softmax(-1).detach().requires_grad_()
    (alpha @ value.repeat_interleave(2, 1) * target).sum().backward()
    torch.testing.assert_close(record[0].gradient, alpha.grad[:, :, 1:3])
    torch.testing.assert_close(record[0].maps, alpha.detach()[:, :, 1:3])


def test_gradients_of_a_softmax_are_kept() -> None:
    class Eager(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.alpha = (x @ x.mT).softmax(dim=-1)
            return F.dropout(self.alpha, 0.1, self.training) @ x

    model, x = Eager().eval(), normal(1, 2, 4, 3).requires_grad_()
    with record_attention(model, queries=[2], gradients=True) as record:
        output = model(x)
        model.alpha.retain_grad()
        output.square().sum().backward()
    torch.testing.assert_close(record[0].gradient, model.alpha.grad[:, :, 2:3])


def test_generation_gives_one_map_for_each_word() -> None:
    """Step by step with a cache: row -1 of each call is that of the word being generated."""
    transformers = pytest.importorskip("transformers", reason="needs the extra [hub]: transformers")
    torch.manual_seed(0)
    model, inputs = hf_blip(transformers)
    model = model.eval()
    with torch.no_grad():
        plain = model.generate(inputs["pixel_values"], max_new_tokens=5, min_new_tokens=5)
        with record_attention(model, queries=-1, layers="crossattention") as record:
            words = model.generate(inputs["pixel_values"], max_new_tokens=5, min_new_tokens=5)
    assert torch.equal(plain, words) and len(record.names) == TEXT["num_hidden_layers"]
    for name in record.names:
        assert len(record[name]) == 5 and {one.maps.shape for one in record[name]} == {(2, HEADS, 1, 17)}


def test_grouped_queries_with_a_cache_and_padding_keep_their_heads() -> None:
    """For a single query under a mask, transformers puts the queries of a group on the axis of queries."""
    transformers = pytest.importorskip("transformers", reason="needs the extra [hub]: transformers")
    torch.manual_seed(0)
    model, inputs = hf_llava(transformers)
    model = model.eval()
    inputs["attention_mask"] = inputs["attention_mask"].flip(1)  # padding on the left, as in generation
    inputs["input_ids"] = inputs["input_ids"].flip(1)
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "return_dict_in_generate": True, "output_attentions": True}
    with torch.no_grad(), record_attention(model, queries=-1, layers="language_model") as record:
        words = model.generate(**inputs, max_new_tokens=4, min_new_tokens=4)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model.generate(**inputs, **options)
    assert torch.equal(words, eager.sequences)
    for layer, name in enumerate(record.names):
        assert len(record[name]) == 4
        for one, step in zip(record[name], eager.attentions, strict=True):
            torch.testing.assert_close(one.maps, step[layer][:, :, -1:], rtol=0, atol=1e-5)


def test_maps_under_autocast_are_those_of_rounded_queries_and_keys() -> None:
    built = ARCHITECTURES["torchvision: ViT"]()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain = built.run(built.model)
        with record_attention(built.model, queries="all") as record:
            assert torch.equal(built.run(built.model), plain)
    query, key = normal(1, 1, 4, 8).float() * 3, normal(1, 1, 5, 8).float() * 3
    with torch.autocast("cpu", torch.bfloat16), record_attention(model := Toy(), queries="all") as record:
        model(query, key, key)
    rounded = (query.bfloat16().float() @ key.bfloat16().float().mT / 8**0.5).softmax(-1)
    torch.testing.assert_close(record[0].maps, rounded, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_rows_of_a_long_sequence_take_little_memory(dtype) -> None:
    """4,096 tokens: the bytes allocated by recording the class token's rows, beyond those of the model."""
    from torch.profiler import ProfilerActivity, profile

    class Long(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x, x)

    def peak(queries: Any) -> int:
        """The largest sum of live allocations on the CPU, from the profiler's log of them."""
        model, x = Long(), torch.rand(1, 4, 4096, 16, dtype=dtype)
        with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
            if queries is None:
                model(x)
            else:
                with record_attention(model, queries=queries) as record:
                    model(x)
                assert record[0].maps.shape == (1, 4, 1, 4096)
        events = [event for event in log.profiler.kineto_results.events() if event.name() == "[memory]"]
        total = highest = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            total += event.nbytes()
            highest = max(highest, total)
        return highest

    assert 0 < peak(0) <= 1.2 * peak(None)


def test_models_that_hide_their_attention_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    scripted = torch.jit.trace(model, torch.zeros(1, 2))
    with pytest.raises(UserError, match="is a TorchScript module"), record_attention(scripted):
        pass
    model[0]._compiled_call_impl = model[0]._call_impl  # what `compile` sets, which would import the compiler
    with pytest.raises(UserError, match="0 is compiled, and compiled code hides its attention: give the model before"):
        record_attention(model).__enter__()


@pytest.mark.compile
def test_compiled_models_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(UserError, match="the model is compiled, and .*: give its `_orig_mod`"):
        record_attention(torch.compile(model)).__enter__()
    model.forward = torch.compile(model.forward)
    with pytest.raises(UserError, match="the model is compiled"):
        record_attention(model).__enter__()
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].compile()
    with pytest.raises(UserError, match="0 is compiled"):
        record_attention(model).__enter__()


def test_mistakes_are_named() -> None:
    model, x = Toy(), normal(1, 1, 3, 2)
    with record_attention(model, queries=5), pytest.raises(UserError, match="has 3 queries, none with the number 5"):
        model(x, x, x)
    with record_attention(model) as record:
        model(x, x, x)
    with pytest.raises(KeyError, match="no attention of 'block' was recorded"):
        record["block"]


def test_nothing_is_left_behind() -> None:
    model, fused, softmax = Toy(), F.scaled_dot_product_attention, F.softmax
    overrides = torch.overrides.has_torch_function
    with pytest.raises(RuntimeError), record_attention(model):
        model(normal(1, 1, 3, 2), normal(1, 1, 3, 4), normal(1, 1, 3, 2))
    assert F.scaled_dot_product_attention is fused and F.softmax is softmax
    assert torch.overrides.has_torch_function is overrides
    assert not model._forward_hooks and not model._forward_pre_hooks


def test_threads_record_one_after_the_other() -> None:
    """Each finds its own attention, and leaves the functions of torch as they were."""
    torch.manual_seed(0)
    model = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(4)).train()
    fused, softmax, x = F.scaled_dot_product_attention, F.softmax, torch.rand(1, 5, 8)

    def record(_: int) -> list[int]:
        with record_attention(model) as found:
            for attention in model:
                attention(x, x, x)
        return [one.maps.shape[1] for one in found]

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(record, range(60))) == [[2] * 4] * 60
    assert F.scaled_dot_product_attention is fused and F.softmax is softmax
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.modules())


def test_products_may_name_what_they_multiply() -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            weights = (x @ x.mT).softmax(dim=-1)
            return torch.bmm(input=weights, mat2=x) + torch.matmul(input=weights, other=x)

    with record_attention(model := nn.Sequential(Named()), queries="all") as record:
        model(torch.rand(2, 5, 4))
    assert [one.maps.shape for one in record] == [(2, 1, 5, 5)] * 2


def test_maps_are_freed_when_the_record_is() -> None:
    """Without the garbage collector, which runs rarely: many images in a row would fill the memory."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    gc.disable()
    try:
        with record_attention(attention, queries="all", gradients=True) as record:
            x = torch.rand(1, 5, 8)
            attention(x, x, x, need_weights=False)[0].sum().backward()
        maps = weakref.ref(record[0].maps)
        assert record[0].gradient is not None and maps() is not None
        del record
        assert maps() is None
    finally:
        gc.enable()

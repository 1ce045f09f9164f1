"""The Triton kernels of the additive score, against the formula with tanh and against tensor operations.

They run on a GPU where there is one. They also run on the CPU, on Triton's interpreter (interpreted.py).
"""

import os

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests import pretend
from tests.fast.interpreted import check_on_the_interpreter
from vision_attn.fast import versions
from vision_attn.fast.additive import FastAdditive, _AdditiveScore
from vision_attn.fast.versions import runs_on

additive_gpu = pytest.importorskip("vision_attn.fast.additive.gpu", reason="triton is not installed")
lstm_gpu = pytest.importorskip("vision_attn.fast.lstm.gpu")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
GPU = pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs a CUDA device")
RUNS = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA device, or TRITON_INTERPRET=1"
)
CPU = pytest.mark.skipif(INTERPRETED, reason="not for the interpreter")
DEVICE = "cpu" if INTERPRETED else "cuda"

SHAPES = [(1, 1, 1, 1), (3, 2, 7, 5), (2, 5, 17, 33), (2, 3, 9, 130), (1, 2, 3, 600), (1, 130, 2, 3)]
"""(B, R, L, A): A below, at and above the width of a tile; more than one block of regions; more than 128 rows."""


def inputs(shape: tuple[int, int, int, int], scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v in float64 on `DEVICE`."""
    (B, R, L, A), generator = shape, torch.Generator().manual_seed(sum(shape))
    sizes = (B, R, A), (B, L, A), (A,)
    return tuple(torch.randn(size, generator=generator).double().mul(scale).to(DEVICE) for size in sizes)


def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q[:, :, None] + k[:, None]).tanh() @ v


def score(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """By kernels or by tensor operations: `versions.fast_version` decides."""
    return _AdditiveScore.apply((2 * q).exp(), (2 * k).exp(), v)


def values_and_gradients(function, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    arguments = [argument.detach().requires_grad_() for argument in arguments]
    output = function(*arguments)
    weights = torch.linspace(-1, 2, output.numel(), dtype=output.dtype, device=output.device).view_as(output)
    return output.detach(), *torch.autograd.grad(output, arguments, weights)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are launched."""
    names, launch = [], additive_gpu.launch

    def record(kernel, *arguments, **options) -> None:
        names.append(kernel.__name__)
        launch(kernel, *arguments, **options)

    pretend.launching(monkeypatch, additive_gpu, record)
    return names


@pytest.fixture
def kernels(launched: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Takes scores to the kernels on every device. Lists the names of the kernels that were launched."""
    pretend.kernels(monkeypatch)
    return launched


def check(arguments: tuple[Tensor, ...], expected: tuple[Tensor, ...], rtol: float, atol: float) -> None:
    for ours, other in zip(values_and_gradients(score, arguments), expected, strict=True):
        torch.testing.assert_close(ours.double(), other, rtol=rtol, atol=atol)


@RUNS
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_equal_the_formula(shape, kernels) -> None:
    arguments = inputs(shape)
    expected = values_and_gradients(formula, arguments)
    check(arguments, expected, rtol=1e-10, atol=1e-10)
    check(tuple(argument.float() for argument in arguments), expected, rtol=1e-5, atol=2e-5)
    assert kernels == ["_score_kernel", "_gradient_kernel"] * 2


@RUNS
@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_kernels_equal_tensor_operations(scale, kernels) -> None:
    arguments = tuple(argument.float() for argument in inputs((2, 3, 11, 20), scale))
    with versions.plainly():
        expected = values_and_gradients(score, arguments)
    assert not kernels
    check(arguments, tuple(part.double() for part in expected), rtol=1e-5, atol=2e-5 * scale)


@RUNS
def test_gradients_are_those_of_finite_differences(kernels) -> None:
    torch.autograd.gradcheck(score, [argument.requires_grad_() for argument in inputs((1, 2, 3, 2))])


@RUNS
@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)])
def test_nothing_to_sum_gives_zeros(shape, kernels) -> None:
    B, R, L, A = shape
    output, *gradients = values_and_gradients(score, inputs(shape))
    assert output.shape == (B, R, L) and [part.shape for part in gradients] == [(B, R, A), (B, L, A), (A,)]
    assert not any(part.any() for part in (output, *gradients))


@RUNS
def test_projections_at_their_limits_give_the_limits_of_tanh(kernels) -> None:
    """The products reach e^{160}, which overflows to infinity, and e^{-160}, which underflows to 0."""
    limits = torch.tensor([-40.0, 0.0, 40.0], device=DEVICE)
    arguments = limits.view(1, 3, 1), limits.view(1, 3, 1), torch.tensor([3.0], device=DEVICE)
    expected = values_and_gradients(formula, tuple(argument.double() for argument in arguments))
    check(arguments, expected, rtol=1e-5, atol=1e-5)


@RUNS
def test_nan_is_not_lost(kernels) -> None:
    q, k, v = inputs((2, 2, 5, 16))
    q[1, 0, 3] = torch.nan
    missing = score(q, k, v).isnan()
    assert missing[1, 0].all() and missing.sum() == 5


@RUNS
def test_strided_tensors_are_read_right(kernels) -> None:
    q, k, v = inputs((2, 3, 5, 6))
    strided = q.mT.contiguous().mT, k[:1].expand(2, -1, -1), v.repeat_interleave(2)[::2]
    assert not any(argument.is_contiguous() for argument in strided)
    solid = tuple(argument.contiguous() for argument in strided)
    for one, other in zip(values_and_gradients(score, strided), values_and_gradients(score, solid), strict=True):
        assert torch.equal(one, other)


@RUNS
def test_gradients_are_the_same_every_time(kernels) -> None:
    arguments = tuple(argument.float() for argument in inputs((2, 3, 40, 20)))
    first = values_and_gradients(score, arguments)
    for _ in range(2 if INTERPRETED else 50):
        again = values_and_gradients(score, arguments)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@RUNS
def test_the_custom_operators_are_declared_correctly(kernels) -> None:
    q, k, v = inputs((2, 3, 9, 130))
    torch.library.opcheck(additive_gpu.scores, (q.exp(), k.exp(), v))
    torch.library.opcheck(additive_gpu.gradients, (q.exp(), k.exp(), v, q.new_ones(2, 3, 9), k.new_zeros(k.shape)))


@RUNS
@pytest.mark.compile
def test_compiled_equals_eager(kernels) -> None:
    torch.compiler.reset()
    compiled = torch.compile(score, fullgraph=True, backend="aot_eager" if INTERPRETED else "inductor")
    arguments = tuple(argument.float() for argument in inputs((2, 3, 9, 20)))
    results = values_and_gradients(score, arguments), values_and_gradients(compiled, arguments)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
    assert kernels == ["_score_kernel", "_gradient_kernel"] * 2


# On the CPU, without a GPU.


@CPU
@pytest.mark.compile
def test_all_that_is_compiled_holds_on_the_interpreter() -> None:
    """The other tests above run there with those of test_kernels.py."""
    check_on_the_interpreter("compile", "test_additive_gpu.py")


@pytest.mark.slow
@CPU
@pytest.mark.parametrize("size", [512, 1], ids=lambda size: f"A={size}")
@pytest.mark.parametrize(
    ("kernel", "width"), [("_score_kernel", "SCORE_WIDTH"), ("_gradient_kernel", "GRADIENT_WIDTH")]
)
def test_kernels_compile_for_a_gpu(kernel, width, size) -> None:
    """For an H100, as far as ptxas. At full size: loads of four numbers, and no waiting for shared memory.

    At size 1, all sizes are 1, which Triton makes constants; so does a call at these sizes.
    """
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(additive_gpu, kernel)
    block_l, block_a = additive_gpu._tile(size, getattr(additive_gpu, width))
    constants = {"A": size, "BLOCK_L": block_l, "BLOCK_A": block_a} | ({} if size > 1 else dict.fromkeys("BRL", 1))
    types = dict.fromkeys("BRL", "i32") | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "*fp32") for name in function.arg_names}
    places = {name: (place,) for place, name in enumerate(function.arg_names)}
    aligned = {places[name]: [["tt.divisibility", 16]] for name, kind in signature.items() if kind == "*fp32"}
    source = ASTSource(function, signature, {places[name]: value for name, value in constants.items()}, aligned)
    compiled = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1, "enable_fp_fusion": True})
    assert compiled.asm["cubin"]
    assert "rsqrt.approx.ftz.f32" in compiled.asm["ptx"] and "div.full" not in compiled.asm["ptx"]
    assert size == 1 or ("ld.global.v4" in compiled.asm["ptx"] and compiled.metadata.shared == 0)


@CPU
def test_the_device_decides(monkeypatch) -> None:
    monkeypatch.setattr(versions, "runs_on", lambda device: True)  # asked by launching a kernel, which needs a GPU
    with FakeTensorMode():
        query = torch.empty(1, 1, 1, device="cuda")
        assert versions.fast_version("additive", query) is additive_gpu
        assert versions.fast_version("additive", query.cpu()) is not additive_gpu
        assert versions.fast_version("additive", query.half()) is versions.fast_version("weighted_sum", query) is None
        pretend.no_triton(monkeypatch)
        assert versions.fast_version("additive", query) is None


@CPU
def test_without_a_compiler_it_says_so_and_tensor_operations_take_over(monkeypatch) -> None:
    def fail(*arguments) -> None:
        raise RuntimeError("Failed to find C compiler.\nMore about it")

    pretend.launching(monkeypatch, lstm_gpu, fail)
    runs_on.cache_clear()
    try:
        with pytest.warns(
            UserWarning, match=r"without its Triton kernels, so more slowly: Failed to find C compiler.$"
        ):
            assert not runs_on(torch.device("cpu"))
        assert not runs_on(torch.device("cpu"))  # and says so once
    finally:
        runs_on.cache_clear()


# On a GPU.


def model_and_inputs(dtype: torch.dtype = torch.float32) -> tuple[FastAdditive, Tensor, Tensor]:
    torch.manual_seed(0)
    score = FastAdditive(12, 10, attention_size=48)
    return score.to(dtype), torch.randn(4, 30, 12, dtype=dtype), torch.randn(4, 3, 10, dtype=dtype)


def trained(score: FastAdditive, regions: Tensor, query: Tensor) -> list[Tensor]:
    """The scores, and the gradients of all parameters."""
    score.zero_grad()
    output, _ = score(query, score.project(regions))
    output.square().sum().backward()
    return [output.detach().cpu(), *(parameter.grad.cpu() for parameter in score.parameters())]


@GPU
def test_gpu_the_class_takes_its_scores_from_the_kernels(launched) -> None:
    model, *arguments = model_and_inputs()
    expected = trained(model, *arguments)
    for one, other in zip(trained(model.cuda(), *(x.cuda() for x in arguments)), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert launched == ["_score_kernel", "_gradient_kernel"]


@GPU
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gpu_autocast_leaves_scores_in_float32(dtype) -> None:
    model, *arguments = model_and_inputs()
    expected = trained(model, *arguments)
    with torch.autocast("cuda", dtype):
        ours = trained(model.cuda(), *(x.cuda() for x in arguments))
    assert ours[0].dtype == torch.float32
    for one, other in zip(ours, expected, strict=True):
        assert (one - other).norm() < 0.03 * other.norm()


@GPU
@pytest.mark.compile
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_gpu_compiled_class_equals_the_eager_one(mode) -> None:
    torch.compiler.reset()
    model, *arguments = model_and_inputs()
    model, arguments = model.cuda(), [x.cuda() for x in arguments]
    expected = trained(model, *arguments)
    compiled = torch.compile(lambda regions, query: model(query, model.project(regions))[0], mode=mode, fullgraph=True)
    for _ in range(3):  # warm up, record, replay
        model.zero_grad()
        torch.compiler.cudagraph_mark_step_begin()
        output = compiled(*arguments)
        output.square().sum().backward()
        ours = [output.detach().cpu(), *(parameter.grad.cpu() for parameter in model.parameters())]
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@GPU
def test_gpu_a_captured_graph_replays_values_and_gradients() -> None:
    arguments = [argument.float().requires_grad_() for argument in inputs((2, 3, 30, 48))]
    weights = torch.ones(2, 3, 30, device=DEVICE)

    def step() -> tuple[Tensor, ...]:
        output = score(*arguments)
        return output, *torch.autograd.grad(output, arguments, weights)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        arguments[0].add_(0.5)
    graph.replay()
    for one, other in zip(captured, step(), strict=True):
        torch.testing.assert_close(one, other)


@GPU
def test_gpu_no_tensor_of_pairs_is_stored() -> None:
    B, R, L, A = 4, 16, 196, 512
    arguments = [argument.float().requires_grad_() for argument in inputs((B, R, L, A))]
    values_and_gradients(score, tuple(arguments))  # what stays after a first call is not counted
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    values_and_gradients(score, tuple(arguments))
    assert torch.cuda.max_memory_allocated() - before < B * R * L * A * 4 / 2

"""The fused additive score on a CPU: values and gradients against the formula and tensor operations."""

import os
import sys
import threading

import pytest
import torch
from torch import Tensor

from tests import pretend
from vision_attn.attention.scores import Additive
from vision_attn.fast import additive, versions
from vision_attn.fast.additive import FastAdditive, _AdditiveScore

additive_cpu = pytest.importorskip("vision_attn.fast.additive.cpu", reason="numba is not installed")
loops = pytest.importorskip("vision_attn.fast.loops")

SHAPES = [(1, 1, 1, 1), (3, 2, 7, 5), (2, 5, 196, 64), (5, 3, 4, 33)]


def inputs(shape: tuple[int, int, int, int], scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v in float64, with gradients."""
    images, rows, regions, size = shape
    generator = torch.Generator().manual_seed(sum(shape))
    sizes = (images, rows, size), (images, regions, size), (size,)
    return tuple(
        torch.randn(size, generator=generator, dtype=torch.float64).mul(scale).requires_grad_() for size in sizes
    )


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q[:, :, None] + k[:, None]).tanh() @ v


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _AdditiveScore.apply(*((x.float() * 2).exp() for x in (q, k)), v.float())


def gradients(score, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    output = score(*arguments)
    weights = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view_as(output)
    return output.detach(), *torch.autograd.grad((output * weights).sum(), arguments)


@pytest.mark.parametrize("shape", SHAPES)
def test_fused_loops_equal_the_formula(shape) -> None:
    arguments = inputs(shape)
    for ours, expected in zip(gradients(fused, arguments), gradients(plain, arguments), strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=2e-5 * shape[2] ** 0.5)


@pytest.mark.parametrize("with_loops", [True, False])
def test_autocast_leaves_the_score_and_its_gradients_in_float32(with_loops) -> None:
    arguments = inputs(SHAPES[1])
    with versions.without_loops(not with_loops):
        expected = gradients(fused, arguments)
        with torch.autocast("cpu", torch.bfloat16):
            found = gradients(fused, arguments)
    for ours, plainly in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, plainly, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("with_loops", [True, False])
@pytest.mark.parametrize("turned", [False, True])
def test_the_exponential_is_clipped_and_so_is_its_gradient(with_loops, turned) -> None:
    x = torch.randn(7, 6, 33, generator=torch.Generator().manual_seed(0)).mul(20)
    x[0, 0, :4] = torch.tensor([40.5, -40.5, 39.9, -39.9])
    x = (x.mT if turned else x).requires_grad_()
    grad = torch.linspace(-1, 2, x.numel()).view_as(x)
    with versions.without_loops(not with_loops):
        output = additive.exponential(x, 40.0)
        (ours,) = torch.autograd.grad(output, x, grad)
    exact = x.detach().double().clamp(-40, 40).mul(2).exp()
    torch.testing.assert_close(output.double(), exact, rtol=4e-6, atol=0)
    assert 1 < (x.abs() > 40).sum() < x.numel() / 2
    expected = (2 * grad.double() * exact).masked_fill(x.abs() > 40, 0)
    torch.testing.assert_close(ours.double(), expected, rtol=4e-6, atol=0)


def test_the_exponential_of_nan_is_nan() -> None:
    x = torch.full((3, 4), torch.nan).requires_grad_()
    output = additive.exponential(x, 40.0)
    (grad,) = torch.autograd.grad(output.sum(), x)
    assert output.isnan().all() and grad.isnan().all()


def test_without_numba_tensor_operations_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = inputs((2, 5, 196, 64))
    ours = gradients(fused, arguments)
    monkeypatch.setitem(sys.modules, additive_cpu.__name__, None)
    versions._loops.cache_clear()
    try:
        assert versions.fast_version("additive", torch.zeros(1)) is None
        others = gradients(fused, arguments)
    finally:
        versions._loops.cache_clear()
    for one, other in zip(ours, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=3e-3)


def test_projections_at_their_limits_give_the_limits_of_tanh() -> None:
    q, k, v = torch.tensor([-40.0, 40.0]), torch.tensor([-40.0, 0.0, 40.0]), torch.tensor([3.0])
    score = fused(q.view(1, 2, 1), k.view(1, 3, 1), v)
    expected = 3 * (q[:, None] + k).tanh()
    torch.testing.assert_close(score[0], expected)
    arguments = inputs((2, 3, 6, 17), scale=30.0)
    limited = [x.detach().clamp(-40, 40).requires_grad_() for x in arguments[:2]]
    for part in gradients(fused, (*limited, arguments[2])):
        assert part.isfinite().all()


@pytest.mark.parametrize("with_loops", [True, False])
@pytest.mark.parametrize("beyond", [False, True])
def test_large_scores_are_those_of_the_plain_class(with_loops, beyond) -> None:
    """Of projections up to the limit, where e^{2k} e^{2q} overflows or vanishes, and beyond it where none cancel."""
    torch.manual_seed(0)
    keys, queries = torch.randn(2, 7, 8), torch.randn(2, 3, 8)
    keys, queries = (part / part.abs().max() * 39.9 for part in (keys, queries))
    if beyond:
        keys, queries = 3 * keys.abs(), 3 * queries.abs()
    plainly, fast, weight = Additive(8, 8, attention_size=8), FastAdditive(8, 8, attention_size=8), torch.randn(8)
    found = []
    for score in (plainly, fast):
        score.weight = torch.nn.Parameter(weight)
        score.key, score.query = torch.nn.Identity(), torch.nn.Identity()
        with versions.without_loops(not with_loops):
            found.append(score(queries, score.project(keys))[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


def test_nan_is_not_lost() -> None:
    """A loss that is not finite must stop a training, so the compiler may not assume that there is no NaN."""
    q, k, v = (x.detach() for x in inputs((2, 2, 5, 16)))
    q[1, 0, 3] = torch.nan
    missing = fused(q, k, v).isnan()
    assert missing[1, 0].all() and missing.sum() == 5


def test_any_number_of_threads_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend.threads_that_share_little(monkeypatch)
    arguments, before, results = inputs((5, 2, 9, 20)), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5, 7):
            torch.set_num_threads(threads)
            results.append(gradients(fused, arguments))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(one, other) for one, other in zip(results[0], result, strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend.threads_that_share_little(monkeypatch)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    q, k, v = (x.detach().float() for x in inputs((4, 2, 3, 8)))
    expected = additive_cpu.scores(q, k, v)
    child = os.fork()
    if not child:
        deadline = threading.Timer(20, os._exit, [2])
        deadline.daemon = True
        deadline.start()
        os._exit(0 if torch.equal(additive_cpu.scores(q, k, v), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

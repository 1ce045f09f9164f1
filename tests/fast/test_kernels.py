"""Triton's kernels against the plain versions, values and gradients, run by Triton's interpreter on a CPU."""

import os
from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest
import torch
from torch import Tensor

from tests import pretend
from tests.fast.interpreted import check_on_the_interpreter
from vision_attn.contracts import Captioner
from vision_attn.fast import accelerate, versions

pytest.importorskip("triton", reason="triton is not installed")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
RUNS = pytest.mark.skipif(not INTERPRETED, reason="run with TRITON_INTERPRET=1")


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="starts what runs there")
def test_all_of_this_holds_on_the_interpreter() -> None:
    """With those of the additive score, which run on a GPU as well, and with what operations launch: starting a process
    takes ten seconds."""
    check_on_the_interpreter("not compile", "test_kernels.py", "test_additive_gpu.py", "test_launches.py")


def launches(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[tuple[object, tuple, dict]]:
    """Lists what a module of kernels launches in place of launching it: kernel, arguments, options."""
    listed: list[tuple[object, tuple, dict]] = []

    def launch(kernel: object, grid: object, *arguments: object, **options: object) -> None:
        listed.append((kernel, arguments, options))

    pretend.launching(monkeypatch, module, launch)
    return listed


def calls(half: torch.dtype) -> dict[str, Callable[[], object]]:
    """A call of each operation, at sizes of a captioner, by the module with its kernels."""
    from vision_attn.fast.additive import exponential_gpu as exponential
    from vision_attn.fast.attend import gpu as attend
    from vision_attn.fast.best_words import beam_gpu as beam
    from vision_attn.fast.best_words import gpu as best_words
    from vision_attn.fast.best_words import words_gpu as write
    from vision_attn.fast.filterbank import gpu as filterbank
    from vision_attn.fast.filterbank import window_gpu as window
    from vision_attn.fast.lstm import gpu as lstm
    from vision_attn.fast.models import recurrent_gpu as pointwise
    from vision_attn.fast.norm import gpu as norm

    gates, cell, scores, regions = (
        torch.empty(sizes, dtype=dtype)
        for sizes, dtype in (
            ((320, 2048), half), ((320, 512), torch.float32), ((64, 5, 196), torch.float32), ((64, 196, 512), half),
        )
    )  # fmt: skip
    context = torch.empty(64, 5, 512, dtype=half)
    images, patches, one, two, F = (
        torch.empty(sizes) for sizes in ((4, 2, 28, 28), (4, 1, 2, 5, 5), (4, 1), (4, 1, 2), (4, 1, 5, 28))
    )
    numbers, extremes = torch.empty(4, 1, 5), [10.0, 3.0, 2.5, 0.25, 6.0]
    words, ended, logits = torch.empty(4, 3, 3).long(), torch.empty(4, 3).bool(), torch.empty(12, 10_000, dtype=half)
    return {
        "best_words": lambda: best_words.best_words(logits, 3, words[0, 0]),
        "beam": lambda: beam.extend(logits[:12, :3].float().view(4, 3, 3), words, ended.float(), ended, 3, None, 1, 0),
        "words": lambda: write.write_words(
            logits[:, :3].float(), words[0], words[0, 0], words[0], ended[0], words, scores, 1, 0
        ),
        "norm": lambda: norm.normalise(cell, cell[0], cell[0], 1e-5, half),
        "norm, backward": lambda: norm.gradients(gates[:, :512], cell, cell[0], cell[:, :2]),
        "pointwise": lambda: pointwise.tanh_of_sum(gates, gates, cell, half),
        "pointwise, gated": lambda: pointwise.gated(gates[:, :1], gates),
        "pointwise, gated, backward": lambda: pointwise.gated_gradients(gates, gates[:, :1], gates),
        "lstm": lambda: lstm.update(gates, gates, gates, cell),
        "lstm, backward": lambda: lstm.gradients(cell, cell, gates.float(), cell, cell, half == torch.bfloat16),
        "exponential": lambda: exponential.exponential(gates, 40.0),
        "exponential, backward": lambda: exponential.gradient_of_exponential(gates.float(), gates.float(), 40.0, half),
        "attend": lambda: attend.attend(scores, regions, 1.0),
        "attend, backward": lambda: attend.gradients(context, scores, context, scores, regions, 1.0, half),
        "window": lambda: window.window(numbers, two, one, two[0, 0], extremes),
        "window, absolute": lambda: window.window(numbers, None, None, two[0, 0], extremes),
        "window, backward": lambda: window.gradients(
            numbers, one, two[0, 0], [two, one, one, one], [two, one, one, one], extremes
        ),
        "filterbank": lambda: filterbank.filters(two, one, one, 5, 28, 28),
        "filterbank, read": lambda: filterbank.read(images, F, F, one, False),
        "filterbank, write": lambda: filterbank.write(patches, F, F, one, True),
        "filterbank, backward": lambda: filterbank.gradients(images, patches, two, one, one, one, F, F, True),
    }


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile")
@pytest.mark.parametrize("half", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", calls(torch.float32))
def test_kernels_compile_for_a_gpu(name, half, monkeypatch) -> None:
    """For an H100, as far as ptxas."""
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {
        torch.float32: "*fp32",
        torch.bfloat16: "*bf16",
        torch.int64: "*i64",
        torch.bool: "*i1",
        int: "i32",
        float: "fp32",
    }
    listed = launches(monkeypatch, versions._kernels(name.split(",")[0]))
    calls(half)[name]()
    for function, arguments, options in listed:
        given = dict(zip(function.arg_names, arguments, strict=True))
        constants = {function.arg_names[place] for place in function.constexprs}
        signature = {
            key: "constexpr" if key in constants else types[value.dtype if isinstance(value, Tensor) else type(value)]
            for key, value in given.items()
        }
        places = {key: (place,) for place, key in enumerate(given)}
        source = ASTSource(function, signature, {places[key]: given[key] for key in constants})
        assert compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["cubin"]
    assert listed


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def values_and_gradients(function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> list[Tensor]:
    """What a function returns, and the gradients of a weighted sum of it."""
    inputs = [part.detach().requires_grad_() for part in inputs]
    outputs = function(*inputs)
    loss = sum((part * random(*part.shape, seed=9)).sum() for part in outputs)
    return [*(part.detach() for part in outputs), *torch.autograd.grad(loss, inputs)]


@RUNS
@pytest.mark.parametrize(
    ("rows", "parts", "dtype"),
    [((3,), 1, torch.float32), ((2, 1, 70), 2, torch.float32), ((2, 1, 70), 3, torch.bfloat16)],
    ids=str,
)
def test_an_lstm(rows, parts, dtype, monkeypatch) -> None:
    from vision_attn.fast.lstm import FastLSTMCell
    from vision_attn.layers.lstm import LSTMCell

    inputs = random(*rows, 5), *(2 * random(*rows, 20, seed=part + 1, dtype=dtype) for part in range(parts))

    def plain(cell: Tensor, *gates: Tensor) -> tuple[Tensor, ...]:
        return LSTMCell()(cell, sum(part.float() for part in gates))

    expected = values_and_gradients(plain, *inputs)
    pretend.kernels(monkeypatch)
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(values_and_gradients(FastLSTMCell(), *inputs), expected, **tolerance)


@RUNS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1, 20])
def test_the_exponential(dtype, scale, monkeypatch) -> None:
    from vision_attn.fast import additive as module

    x = scale * random(3, 7, 200, dtype=dtype)

    def exponential(x: Tensor) -> tuple[Tensor]:
        return (module.exponential(x, 15.0),)

    expected = values_and_gradients(exponential, x)
    pretend.kernels(monkeypatch)
    rtol = 1e-2 if dtype == torch.bfloat16 else 2e-5  # Triton's interpreter does not round to the nearest bfloat16
    torch.testing.assert_close(values_and_gradients(exponential, x), expected, rtol=rtol, atol=1e-9)
    x[0, 0, 0] = torch.nan
    assert exponential(x)[0].isnan().sum() == 1


@RUNS
@pytest.mark.parametrize("sizes", [(2, 3, 5, 7), (1, 17, 70, 65), (2, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_and_context_of_soft_attention(sizes, dtype, monkeypatch) -> None:
    """More rows, regions and features than a tile has, and fewer."""
    from vision_attn.attention.soft import Soft
    from vision_attn.fast.attend import FastSoft

    B, R, L, D = sizes
    inputs = 3 * random(B, R, L), random(B, L, D, seed=1, dtype=dtype)
    expected = values_and_gradients(partial(Soft().attended, scale=0.7), *inputs)
    pretend.kernels(monkeypatch)
    ours = values_and_gradients(partial(FastSoft().attended, scale=0.7), *inputs)
    tolerance = {"rtol": 2e-2, "atol": 6e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, **tolerance)
    torch.testing.assert_close(ours[1].sum(dim=-1), torch.ones(B, R))


@RUNS
def test_gradients_of_annotation_vectors_are_summed_over_time(monkeypatch) -> None:
    from vision_attn.fast import attend as module
    from vision_attn.fast.accumulate import accumulating

    def loop(scores: Tensor, regions: Tensor, sum_in_place: bool) -> tuple[Tensor, ...]:
        regions = accumulating(regions) if sum_in_place else regions
        return tuple(module.attended(part, regions)[0] for part in scores)

    inputs = random(4, 2, 3, 6), random(2, 6, 5, seed=1)
    expected = values_and_gradients(lambda *given: loop(*given, False), *inputs)
    pretend.kernels(monkeypatch)
    torch.testing.assert_close(
        values_and_gradients(lambda *given: loop(*given, True), *inputs), expected, rtol=1e-4, atol=1e-5
    )


@RUNS
def test_scores_of_minus_infinity_have_weight_zero(monkeypatch) -> None:
    """Also where they fill a tile."""
    from vision_attn.fast import attend as module

    scores, regions = random(1, 2, 70), random(1, 70, 5, seed=1)
    scores[0, 0, :40] = scores[0, 1, 3] = -torch.inf
    expected = module.attended(scores, regions)
    pretend.kernels(monkeypatch)
    for one, other in zip(module.attended(scores, regions), expected, strict=True):
        torch.testing.assert_close(one, other)


@RUNS
@pytest.mark.parametrize("relative", [False, True], ids=["absolute", "relative"])
@pytest.mark.parametrize("sizes", [(2, 1, 1, 40, 36, 5), (1, 2, 2, 7, 9, 17)], ids=str)
def test_the_filterbank(relative, sizes, monkeypatch) -> None:
    """Two windows one after the other, a read and a write, of images with more pixels than a tile, and of several
    channels and rows; also clipped logarithms and strides."""
    from vision_attn.attention.filterbank import Filterbank

    B, R, C, Y, X, N = sizes
    filterbank = Filterbank(8, (C, Y, X), size=N, relative=relative)
    inputs = random(B, C, Y, X), random(2, B, R, 8, seed=1), random(B, R, C, N, N, seed=2)

    def both(images: Tensor, states: Tensor, patches: Tensor) -> tuple[Tensor, ...]:
        first = filterbank.window(states[0])
        window = filterbank.window(2 * states[1], first)
        images = images + filterbank.write(patches, first).sum(dim=1)
        return filterbank.read(images, window), filterbank.write(patches, window), *window

    expected = values_and_gradients(both, *inputs)
    accelerate(filterbank)
    pretend.kernels(monkeypatch)
    ours = values_and_gradients(both, *inputs)
    for one, other in zip(ours, expected, strict=True):
        assert (one - other).norm() <= 1e-4 * other.norm()


@RUNS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("K", "V"), [(1, 11), (3, 5000), (10, 12)])
def test_best_words(K, V, dtype, monkeypatch) -> None:
    """Of a vocabulary smaller and larger than a block, with barred words for all rows and for each row."""
    from vision_attn.fast import best_words as module

    logits = (4 * random(2, 3, V)).to(dtype)
    for barred in (torch.tensor([0, 2]), torch.randint(0, V, (2, 3, 4), generator=torch.Generator().manual_seed(1))):
        with versions.plainly():
            expected = module.best_words(logits, K, barred)
        with monkeypatch.context() as kernel:
            pretend.kernels(kernel)
            log_prob, words = module.best_words(logits, K, barred)
        torch.testing.assert_close(log_prob, expected[0], rtol=1e-5, atol=1e-5)
        finite = log_prob.isfinite()
        chosen = module.all_words(logits, barred).gather(-1, words)
        torch.testing.assert_close(chosen[finite], log_prob[finite], rtol=1e-5, atol=1e-5)  # ties may fall otherwise
        assert all(len(set(row)) == K for row in words[finite.all(dim=-1)].tolist())


@RUNS
def test_best_words_of_a_row_of_minus_infinities(monkeypatch) -> None:
    from vision_attn.fast.best_words.gpu import best_words

    log_prob, words = best_words(torch.full((1, 9), -torch.inf), 3, torch.tensor([0]))
    assert log_prob.isneginf().all() and words.tolist() == [[0, 0, 0]]


@RUNS
@pytest.mark.parametrize(("groups", "length_power"), [(1, 0.0), (2, 1.0)])
def test_a_beam(groups, length_power, monkeypatch) -> None:
    """The same captions, also of groups with a penalty and of beams wider than the vocabulary."""
    from vision_attn.decode import beam_search

    class Markov(Captioner):
        """The next word depends on the word before, and on the image's number."""

        def start(self, regions: Tensor, rows: int) -> tuple[Tensor, Tensor]:
            return regions, regions.new_zeros(len(regions), rows)

        def step(self, word: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, None]:
            return table[word] * memory[:, :1], state, None

    for width, number in ((4, 7), (8, 5)):
        captioner, table, regions = Markov(), 3 * random(number, number), torch.tensor([1.0, 2.0, -1.0])[:, None, None]
        options = {"beams": width, "groups": groups, "max_words": 5, "length_power": length_power}
        expected = beam_search(captioner, regions, **options)
        accelerate(captioner)
        with monkeypatch.context() as kernel:
            pretend.kernels(kernel)
            found = beam_search(captioner, regions, **options)
        torch.testing.assert_close(found.score, expected.score)
        assert torch.equal(found.words, expected.words)


@RUNS
@pytest.mark.parametrize("options", [{}, {"min_words": 2, "no_repeat": 1}, {"never": (1, 2, 3, 4)}], ids=str)
def test_words_of_rows_that_continue_themselves(options, monkeypatch) -> None:
    """The same captions, greedy and sampled, also where rules bar words, or all of them (then a row ends)."""
    from tests.graphs import PlainGraph
    from vision_attn.decode import greedy, sample

    class Markov(Captioner):
        """The next word depends on the word before, and on the image's number."""

        def start(self, regions: Tensor, rows: int) -> tuple[Tensor, Tensor]:
            return regions, regions.new_zeros(len(regions), rows)

        def step(self, word: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, None]:
            return table[word] * memory[:, :1], state, None

    captioner, table, regions = Markov(), 2 * random(5, 5), torch.tensor([1.0, 2.0, -1.0])[:, None, None]
    accelerate(captioner)
    pretend.replayed_searches(monkeypatch, PlainGraph)
    for decode in (greedy, partial(sample, rows=3)):
        found = []
        for kernel in (False, True):
            pretend.kernels(monkeypatch, kernel)
            torch.manual_seed(0)
            found.append(decode(captioner, regions, max_words=6, **options))
        assert torch.equal(found[0].words, found[1].words) and (found[0].words > 0).any() == ("never" not in options)
        torch.testing.assert_close(found[0].log_prob, found[1].log_prob)


@RUNS
@pytest.mark.parametrize("rows", [(3,), (30, 10)], ids=str)
def test_a_normalisation_before_products(rows, monkeypatch) -> None:
    """With few rows, and with more than there are programs of the backward pass."""
    from vision_attn.fast.norm import FastPreNorm

    norm, x = FastPreNorm(70), 3 * random(*rows, 70) + 1
    with torch.no_grad():
        for seed, weight in enumerate(norm.parameters()):
            weight.copy_(1 + random(70, seed=seed))
    weights = [weight.detach() for weight in norm.parameters()]
    found = []
    for kernel in (False, True):
        pretend.kernels(monkeypatch, kernel)

        def normalised(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
            return (torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (x,)).bfloat16(),)

        with torch.autocast("cpu", torch.bfloat16):
            found.append(values_and_gradients(normalised, x, *weights))
            assert norm(x).dtype == (torch.bfloat16 if kernel else torch.float32)
    torch.testing.assert_close(found[1], found[0], rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(found[1][1:], found[0][1:], rtol=1e-5, atol=1e-4)


@RUNS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("gates", [1, 70])
def test_pointwise_expressions(gates, dtype, monkeypatch) -> None:
    from vision_attn.fast.models import recurrent as module

    a, b, c = random(2, 3, 70), random(2, 3, 70, seed=1, dtype=dtype), random(2, 3, 70, seed=2, dtype=dtype)

    def both(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return module.tanh_of_sum(a, b, c), module.gated(c[..., :gates], b)

    expected = values_and_gradients(both, a, b, c)
    pretend.kernels(monkeypatch)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(values_and_gradients(both, a, b, c), expected, **tolerance)

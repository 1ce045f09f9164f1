"""The most likely words: fused loops and tensor operations against a plain sort of log-probabilities."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from tests import pretend
from vision_attn.fast import versions
from vision_attn.fast.best_words import best_words

BARRED = torch.tensor([0, 2])


@pytest.fixture(params=["loops", "tensor operations"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "loops":
        pytest.importorskip("vision_attn.fast.best_words.cpu", reason="numba is not installed")
        assert versions.fast_version("best_words", torch.zeros(1, 1)) is not None
    with versions.without_loops(request.param != "loops"):
        yield


def plain(logits: Tensor, K: int) -> tuple[Tensor, Tensor]:
    log_prob = logits.double().log_softmax(dim=-1)
    log_prob[..., BARRED] = -torch.inf
    ordered = log_prob.sort(dim=-1, descending=True, stable=True)
    return ordered.values[..., :K], ordered.indices[..., :K]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("V", [6, 255, 256, 700])
@pytest.mark.parametrize("scale", [0.01, 3.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_words_and_probabilities_are_those_of_a_sort(V: int, scale: float, dtype: torch.dtype) -> None:
    logits = (scale * torch.randn(3, 5, V, generator=torch.Generator().manual_seed(V))).to(dtype)
    for K in (1, 3, 4):
        found, words = best_words(logits, K, BARRED)
        expected, _ = plain(logits, K)
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=2e-6)
        said = logits.double().log_softmax(-1).gather(-1, words)  # equal logits may come in any order
        torch.testing.assert_close(said, expected, rtol=1e-6, atol=2e-6)
        assert all(len(set(row)) == K for row in words.flatten(0, 1).tolist())


@pytest.mark.usefixtures("way")
def test_the_first_of_equal_words_is_the_best() -> None:
    logits = torch.zeros(2, 1, 600)
    logits[0, 0, 300:] = 1
    assert best_words(logits, 1, BARRED)[1].flatten().tolist() == [300, 1]


@pytest.mark.usefixtures("way")
def test_a_barred_word_keeps_its_share_of_the_probability() -> None:
    logits = torch.zeros(1, 1, 300)
    logits[..., 2] = 50
    found, words = best_words(logits, 2, BARRED)
    assert not set(words.flatten().tolist()) & {0, 2}
    torch.testing.assert_close(found, torch.full((1, 1, 2), -50.0))


@pytest.mark.usefixtures("way")
def test_words_without_probability() -> None:
    """Logits of -inf: of most words, and of all that are allowed."""
    logits = torch.full((2, 1, 600), -torch.inf)
    logits[0, 0, [300, 599]] = torch.tensor([5.0, 4.0])
    logits[1, 0, 2] = 0
    found, words = best_words(logits, 3, BARRED)
    torch.testing.assert_close(found[0, 0, :2], torch.tensor([5.0, 4.0]).log_softmax(0))
    assert words[0, 0, :2].tolist() == [300, 599]
    assert found[0, 0, 2] == -torch.inf and (found[1] == -torch.inf).all()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_logits_that_are_no_numbers_are_not_hidden(wrong: float) -> None:
    logits = torch.randn(1, 1, 600)
    logits[..., 400] = wrong
    found, words = best_words(logits, 2, torch.tensor([0]))
    assert found.isnan().any() and ((words >= 0) & (words < 600)).all()


def test_threads_share_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(7, 1, 600)
    one = best_words(logits, 3, BARRED)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    pytest.importorskip("vision_attn.fast.loops", reason="numba is not installed")
    pretend.threads_that_share_little(monkeypatch)
    assert all(map(torch.equal, best_words(logits, 3, BARRED), one))


def test_logits_need_not_lie_in_a_row() -> None:
    logits = torch.randn(40, 3, 5).permute(2, 1, 0)
    ours, expected = (partial(best_words, K=2, barred=BARRED)(part) for part in (logits, logits.contiguous()))
    assert all(map(torch.equal, ours, expected))


def test_no_word_is_barred(way):
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    log_prob, word = best_words(logits, 2, torch.zeros(0, dtype=torch.long))
    assert word.tolist() == [[1, 2]]
    torch.testing.assert_close(log_prob, logits.log_softmax(dim=-1)[:, [1, 2]])

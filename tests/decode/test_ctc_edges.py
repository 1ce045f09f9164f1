"""CTC at its edges: transcripts that are cut, strips that are too short, probabilities of 0 and near 0."""

from collections.abc import Callable
from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.decode.test_ctc import collapsed, enumerated, model
from vision_attn.contracts import END
from vision_attn.criteria.self_critical import as_at_test
from vision_attn.decode import Decoded, beam_search, greedy, sample
from vision_attn.decode.ctc import align, best_path, prefix_beam_search
from vision_attn.models.ctc import CTC

B, L, V = 2, 4, 5
EVERYTHING = 200


@cache
def strips() -> tuple[CTC, Tensor, list[dict[tuple[int, ...], float]]]:
    """A model, annotation vectors of two strips, and p of every transcript of each."""
    built, regions = model(), torch.randn(B, L, 4, generator=torch.Generator().manual_seed(2)).double()
    lines = [{text: p for text, (p, *_) in enumerated(frames).items()} for frames in built.frames(regions).detach()]
    return built, regions, lines


def cut(texts: list[tuple[int, ...]]) -> Tensor:
    """Transcripts of one length, without END."""
    return torch.tensor(texts)[None].expand(B, -1, -1)


@pytest.mark.parametrize("length", [1, 2, 3, L])
def test_a_transcript_without_end_is_the_beginning_of_every_longer_one(length: int) -> None:
    captioner, regions, lines = strips()
    texts = list(product((2, 3, 4), repeat=length))
    log_prob = captioner(regions, cut(texts)).log_prob
    for line, rows in zip(lines, log_prob, strict=True):
        for text, row in zip(texts, rows, strict=True):
            wanted = sum(p for whole, p in line.items() if whole[:length] == text)
            assert row.sum().exp().item() == pytest.approx(wanted, rel=1e-9, abs=1e-300)
            assert row[:-1].abs().sum() == 0


def test_whole_and_cut_transcripts_in_one_batch_equal_those_alone() -> None:
    captioner, regions, _ = strips()
    words = torch.tensor([[3, 4, 1], [3, 1, 0], [4, 4, 3], [3, 0, 0], [0, 0, 0], [1, 0, 0]])
    together = captioner(regions, words.expand(B, -1, -1)).log_prob.sum(dim=-1)
    alone = [captioner(regions, row.expand(B, 1, -1)).log_prob.sum(dim=-1)[:, 0] for row in words]
    torch.testing.assert_close(together, torch.stack(alone, dim=1))
    assert (together[:, 4] == 0).all()  # a row without words, which is no transcript


def test_the_gradient_of_a_cut_transcript_is_that_of_enumeration() -> None:
    captioner, regions, _ = strips()
    frames = captioner.frames(regions)
    paths = [path for path in product((0, 2, 3, 4), repeat=L) if collapsed(path)[:2] == (3, 4)]
    summed = sum(frames[:, range(L), path].sum(dim=-1).exp() for path in map(list, paths)).log().sum()
    expected = torch.autograd.grad(summed, captioner.output.weight)[0]
    found = torch.autograd.grad(captioner(regions, cut([(3, 4)])).log_prob.sum(), captioner.output.weight)[0]
    torch.testing.assert_close(found, expected)


def test_what_a_strip_is_too_short_for_has_a_finite_gradient() -> None:
    captioner, regions, _ = strips()
    words = torch.tensor([[3, 3, 3], [3, 4, 3]]).expand(B, -1, -1)  # "333" needs five columns
    log_prob = captioner(regions, words).log_prob.sum(dim=-1)
    assert log_prob[:, 0].isneginf().all() and log_prob[:, 1].isfinite().all()
    gradient = torch.autograd.grad(log_prob.where(log_prob.isfinite(), 0).sum(), captioner.output.weight)[0]
    assert gradient.isfinite().all() and gradient.abs().sum() > 0


@pytest.mark.parametrize("max_words", [1, 2, 3, L, L + 1])
@pytest.mark.parametrize("search", [greedy, sample, beam_search])
def test_decoded_log_probabilities_are_those_of_forward(search: Callable[..., Decoded], max_words: int) -> None:
    """Self-critical training samples by `step` and differentiates `forward`: both must mean the same."""
    captioner, regions, _ = strips()
    torch.manual_seed(0)
    options = {"rows": 20} if search is sample else {}
    with as_at_test(captioner):
        decoded = search(captioner, regions, max_words=max_words, **options)
        log_prob = captioner(regions, decoded.words).log_prob
    possible = decoded.score.isfinite()
    assert possible[:, 0].all()
    torch.testing.assert_close(log_prob.sum(dim=-1)[possible], decoded.log_prob.sum(dim=-1)[possible])


@pytest.mark.parametrize("max_words", [1, 2, 3, L + 1])
def test_whole_and_cut_transcripts_together_have_probability_1(max_words: int) -> None:
    captioner, regions, lines = strips()
    decoded = beam_search(captioner, regions, beams=EVERYTHING, max_words=max_words)
    torch.testing.assert_close(decoded.score.exp().sum(dim=1), torch.ones(B).double(), rtol=0, atol=1e-6)
    for line, score, words in zip(lines, decoded.score, decoded.words, strict=True):
        texts = {(text, max_words) if len(text) < max_words else (text[:max_words], 0) for text in line}
        assert score.isfinite().sum() == len(texts)
        assert score[score.isfinite()].min() > -1000 and not words[~score.isfinite()].any()


@pytest.mark.parametrize("max_words", [1, 2, 3, L, L + 1])
def test_prefix_beam_search_cuts_as_a_search_of_words_does(max_words: int) -> None:
    captioner, regions, _ = strips()
    general = beam_search(captioner, regions, beams=EVERYTHING, max_words=max_words)
    found = prefix_beam_search(captioner.frames(regions), beams=EVERYTHING, max_words=max_words)
    number = int(general.score.isfinite().sum(dim=1).min())
    assert found.score.isfinite().sum(dim=1).min() == number
    torch.testing.assert_close(found.score[:, :number], general.score[:, :number])
    assert torch.equal(found.words[:, 0], general.words[:, 0, : found.words.shape[2]])


def test_a_cut_transcript_is_aligned_with_the_beginning() -> None:
    """The same character comes again, more clearly, after the place at which the transcript is cut."""
    p = torch.full((1, 6, V), 1e-3)
    p[0, :, 0] = torch.tensor([0.1, 0.1, 0.9, 0.1, 0.9, 1e-3])
    p[0, [0, 1, 3, 5], [3, 4, 3, 4]] = torch.tensor([0.9, 0.6, 0.9, 0.99])
    alpha = align(p.log(), torch.tensor([[[3, 4]]]))
    assert alpha[0, 0].argmax(dim=-1).tolist() == [0, 1]
    whole = align(p.log(), torch.tensor([[[3, 4, 1]]]))
    assert whole[0, 0, :2].argmax(dim=-1).tolist() == [0, 5]


@pytest.mark.parametrize("search", [greedy, sample, beam_search])
def test_rules_that_no_transcript_fulfils_leave_no_row(search: Callable[..., Decoded]) -> None:
    captioner, regions, _ = strips()
    decoded = search(captioner, regions, max_words=9, min_words=8)
    assert (decoded.score == -torch.inf).all() and not decoded.words.any() and not decoded.log_prob.any()


def log_probs(numbers: list[float]) -> Tensor:
    """One strip of five labels, normalised, with END impossible; -inf for labels of weight 0."""
    frames = torch.tensor(numbers).view(1, -1, V).double()
    frames[..., END] = -torch.inf
    return frames.log_softmax(dim=-1)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4).flatmap(lambda n: st.lists(
    st.sampled_from([-torch.inf, -2000.0, -120.0, -3.0, 0.0, 1.0]), min_size=n * V, max_size=n * V)))  # fmt: skip
@example([0.0, 0, -torch.inf, -torch.inf, -torch.inf] * 3)
@example([-torch.inf, 0, -torch.inf, -torch.inf, 0.0] * 3)
def test_decoding_labels_with_probabilities_of_0_and_near_0(numbers: list[float]) -> None:
    frames = log_probs(numbers)
    if frames.isnan().any():
        return  # a column without any label
    lines = {text: p for text, p in best_sums(frames[0]).items() if p > -torch.inf}
    decoded = prefix_beam_search(frames, beams=EVERYTHING)
    kept = decoded.score[0].isfinite()
    found = [tuple(word for word in row.tolist() if word > END) for row in decoded.words[0, kept]]
    assert len(set(found)) == len(found) == len(lines)
    for text, score in zip(found, decoded.score[0, kept].tolist(), strict=True):
        assert score == pytest.approx(lines[text], rel=1e-9, abs=1e-9)
    assert not decoded.words[0, ~kept].any()
    path = best_path(frames)
    assert path.score.item() == pytest.approx(frames.amax(dim=-1).sum().item())
    for each in (decoded, path):
        characters, possible = each.words > END, each.score.isfinite()[..., None]
        total = each.alpha.sum(dim=-1)
        torch.testing.assert_close(total, (characters & possible).double(), rtol=1e-9, atol=1e-9)


def best_sums(frames: Tensor) -> dict[tuple[int, ...], float]:
    """log p of every transcript of one strip, summed over its paths, in logarithms."""
    found: dict[tuple[int, ...], list[Tensor]] = {}
    for path in product((0, 2, 3, 4), repeat=len(frames)):
        found.setdefault(collapsed(path), []).append(frames[range(len(frames)), path].sum())
    return {text: float(torch.stack(sums).logsumexp(dim=0)) for text, sums in found.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_maps_of_characters_where_all_weights_underflow(dtype: torch.dtype) -> None:
    """Character 3 has p = e^-200 and e^-201 in its columns, so that the ordinary exponential is 0 in all."""
    frames = torch.full((1, 4, V), -300.0)
    frames[..., 0] = -250
    frames[0, 1:3, 3] = torch.tensor([-200.0, -201.0])
    alpha = align(frames.to(dtype), torch.tensor([[[3, 1]]]))
    torch.testing.assert_close(alpha[0, 0, 0], torch.tensor([0, 0.731059, 0.268941, 0]), rtol=0, atol=1e-5)
    assert not alpha[0, 0, 1].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_labels_in_half_precision_decode_as_their_own_values_in_float32(dtype: torch.dtype) -> None:
    _, regions, _ = strips()
    half = model().frames(regions).to(dtype)
    for decode in (best_path, prefix_beam_search):
        for found, expected in zip(decode(half), decode(half.float()), strict=True):
            assert found is expected is None or torch.equal(found, expected)


def test_hundreds_of_columns_do_not_underflow() -> None:
    """p of a cut transcript of 300 unlikely characters is far below the smallest number of float32."""
    torch.manual_seed(0)
    captioner = CTC(V, 4, hidden_size=4).eval()
    regions, words = torch.randn(1, 400, 4), torch.tensor([3, 4] * 150).view(1, 1, -1)
    log_prob = captioner(regions, words).log_prob.sum()
    ended = captioner(regions, torch.nn.functional.pad(words, (0, 1), value=END)).log_prob.sum()
    assert -1000 < ended < log_prob < 0
    exact = captioner.double()(regions.double(), words).log_prob.sum()
    assert log_prob.item() == pytest.approx(exact.item(), rel=1e-5)

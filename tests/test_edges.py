"""The edges of attention, decoding, criteria and metrics: impossible words, zeros, one region, half precision."""

import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests import references
from vision_attn.attention.hard import entropy
from vision_attn.attention.monotonic import stopping
from vision_attn.attention.scores import Cosine
from vision_attn.attention.soft import Soft, normalised
from vision_attn.contracts import END, PAD, Caption, Captioner
from vision_attn.criteria.ctc import CTCLoss
from vision_attn.criteria.doubly_stochastic import DoublyStochastic
from vision_attn.criteria.likelihood import Likelihood
from vision_attn.decode import beam_search, greedy, sample
from vision_attn.faithfulness.curves import perturbation_curves
from vision_attn.metrics.attention import AttentionCorrectness, AttentionMotion, map_statistics
from vision_attn.metrics.perturbations import constant

V, T = 4, 3
edges = settings(max_examples=40, deadline=None)


class Table(Captioner):
    """Its logits depend on the time step and on the word before alone."""

    def __init__(self, logits: Tensor):
        super().__init__()
        self.logits = logits

    def start(self, regions, rows):
        return regions, torch.zeros(len(regions), rows, dtype=torch.long)

    def step(self, word, state, memory):
        return self.logits[state, word], state + 1, None


def spelled(words: Tensor) -> tuple[int, ...]:
    return tuple(word for word in words.tolist() if word != PAD)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # by loops and by tensor operations
def test_searches_of_languages_with_impossible_words(dtype: torch.dtype) -> None:
    numbers = st.sampled_from([-torch.inf, -torch.inf, -2000.0, -90.0, 0.0, 1.5, 3000.0])

    @settings(edges, max_examples=15)
    @given(st.lists(numbers, min_size=T * V * V, max_size=T * V * V))
    def check(logits: list[float]) -> None:
        table = torch.tensor(logits, dtype=dtype).view(T, V, V)
        assume(not table.isneginf().all(dim=-1).any())
        log_prob = table.double().log_softmax(dim=-1)
        every = references.every_caption(lambda said: log_prob[len(said), said[-1] if said else PAD], (2, 3), T)
        wanted = {said.words: sum(said.log_prob) for said in every if sum(said.log_prob) > -torch.inf}
        model, regions = Table(table), torch.zeros(1, 1, 1)
        whole = beam_search(model, regions, beams=60, max_words=T)
        assert {spelled(row) for row in whole.words[0] if row.any()} == wanted.keys()
        for found in (
            whole,
            beam_search(model, regions, beams=4, groups=2, max_words=T),
            greedy(model, regions, max_words=T),
            sample(model, regions, rows=4, max_words=T),
        ):
            assert found.log_prob.isfinite().all()
            for row, score in zip(found.words[0], found.score[0].tolist(), strict=True):
                assert score == pytest.approx(wanted.get(spelled(row), -torch.inf), rel=1e-4, abs=1e-4)
                assert row.any() or score == -torch.inf

    check()


maps = st.integers(1, 4).flatmap(
    lambda regions: st.lists(
        st.lists(st.sampled_from([0.0, 0.0, 1e-300, 0.25, 0.5, 1.0]), min_size=regions, max_size=regions),
        max_size=4,
    )
)


@edges
@given(maps, st.lists(st.sampled_from(["a", "dog", "cat"]), min_size=4, max_size=4))
def test_metrics_of_maps_with_zeros_and_of_one_region(rows: list[list[float]], words: list[str]) -> None:
    regions = len(rows[0]) if rows else 1
    alpha, words = torch.tensor(rows, dtype=torch.float64).view(-1, regions), words[: len(rows)]
    box = (-1.0, -1.0, 0.0, 1.0)  # the left half
    measured = AttentionCorrectness((1, regions))
    measured.update(words, alpha, {"dog": [box]}, {"dog", "cat"})
    hits, masses = [], []
    for word, row in zip(words, rows, strict=True):
        if word != "a":
            inside = [word == "dog" and (2 * i + 1) / regions - 1 <= 0 for i in range(regions)]
            best = [i for i in range(regions) if row[i] == max(row) > 0]
            hits.append(sum(inside[i] for i in best) / len(best) if best else 0)
            masses.append(sum(row[i] for i in range(regions) if inside[i]))
    found = measured.compute()
    assert found["pointing"] == pytest.approx(sum(hits) / max(1, len(hits)))
    assert found["mass"] == pytest.approx(sum(masses) / max(1, len(masses)))
    motion = AttentionMotion()
    motion.update(words, alpha)
    moved = [sum(abs(one - other) for one, other in zip(*pair, strict=True)) / 2 for pair in itertools.pairwise(rows)]
    entropies = [-sum(p * math.log(p) for p in row if p) for row in rows]
    for name, values in {"movement": moved, "entropy": entropies}.items():
        assert motion.compute().get(name) == (pytest.approx(sum(values) / len(values)) if values else None)


@edges
@given(st.lists(st.tuples(st.sampled_from([0.0, 1e-30, 0.3, 1.0]), st.sampled_from([0.0, 0.5, 1.0])), min_size=1,
                max_size=6))  # fmt: skip
def test_a_search_along_columns_with_probabilities_of_0_and_1(columns: list[tuple[float, float]]) -> None:
    stops, before = torch.tensor(columns, dtype=torch.float64).unbind(1)
    reached, expected = 0.0, []
    for column, (_, start) in enumerate(columns):
        reached = (1 - columns[column - 1][0] if column else 0) * reached + start
        expected.append(reached * (columns[column][0] if column < len(columns) - 1 else 1))
    alpha = stopping(stops, before)
    torch.testing.assert_close(alpha, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(alpha.sum(), before.sum())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [0.0, 1e-6, 1.0, 1e4, 6e4])
def test_cosines_of_vectors_of_any_length(dtype: torch.dtype, size: float) -> None:
    """In float16 the square of 300 overflows, and that of 1e-4 is 0; a vector of zeros has a cosine of 0."""
    torch.manual_seed(0)
    score = Cosine(8, 8, sharpness=1.0)
    regions = (size * torch.rand(2, 5, 8)).to(dtype).requires_grad_()
    query = (size * torch.rand(2, 3, 8)).to(dtype).requires_grad_()
    found, _ = score(query, score.project(regions))
    one, other = (part.detach().double() for part in (query, regions))
    shortest = Cosine.SHORTEST
    lengths = [part.norm(dim=-1, keepdim=True).clamp(min=shortest) for part in (one, other)]
    expected = (one / lengths[0]) @ (other / lengths[1]).mT
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-2 if dtype == torch.bfloat16 else 3e-3)
    seen = Soft()(found, regions)
    gradients = torch.autograd.grad(seen.alpha.square().sum(), [regions, query])
    assert seen.context.isfinite().all() and all(gradient.isfinite().all() for gradient in gradients)


def test_scores_that_overflow_float16_are_weighted_equally() -> None:
    scores = torch.tensor([[torch.inf, 0.0, torch.inf, -torch.inf]], dtype=torch.float16, requires_grad=True)
    alpha = normalised(scores)
    assert alpha.tolist() == [[0.5, 0, 0.5, 0]] and alpha.dtype == torch.float32
    assert torch.autograd.grad(entropy(alpha).sum(), scores)[0].isfinite().all()


@pytest.mark.parametrize("rows", [[[1]], [[0]], [[1], [0]], [[0], [0]]])
def test_a_batch_of_empty_captions_has_a_finite_loss(rows: list[list[int]]) -> None:
    """Captions that are END alone, and rows of padding, in place of captions that an image lacks."""
    words = torch.tensor(rows, dtype=torch.long).view(1, len(rows), 1)
    alpha = torch.full((*words.shape, 2), 0.5) * (words != PAD)[..., None]
    log_prob = torch.full(words.shape, -2.0) * (words != PAD)
    model, number = Table(torch.zeros(1, V, V)), sum(row == [END] for row in rows)
    for criterion in (Likelihood, CTCLoss, DoublyStochastic):
        found = criterion(model)(Caption(log_prob, alpha), words)
        assert all(value.isfinite() for value in found.values()), criterion.__name__
        if criterion is not DoublyStochastic:
            assert found["loss"].item() == pytest.approx(2 * number / len(rows))
    assert all(value.isfinite() for value in map_statistics(alpha, words != PAD).values())


@edges
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.booleans())
def test_curves_of_maps_of_zeros_and_of_one_region(rows: int, columns: int, steps: int, even: bool) -> None:
    """Both curves begin and end at the two whole images."""
    image, weights = torch.rand(1, 6, 6), torch.full((rows, columns), float(even))
    curves = perturbation_curves(
        lambda images: images.flatten(1).mean(dim=1), image, weights, steps=steps, fill=constant(torch.zeros(1, 6, 6))
    )
    full = image.mean().item()
    for curve, (first, last) in zip(curves, ((full, 0), (0, full)), strict=True):
        assert [curve[0].item(), curve[-1].item()] == pytest.approx([first, last], abs=1e-6)
        assert all(area >= 0 for area in curves.areas.values())

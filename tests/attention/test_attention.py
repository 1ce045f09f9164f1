"""Scores and soft attention against the paper's equations, written out."""

import inspect
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from tests import references
from tests.ways import prepared
from vision_attn.attention.filterbank import Filterbank
from vision_attn.attention.glimpse import Retina
from vision_attn.attention.hard import Hard, StraightThrough
from vision_attn.attention.location import ContentLocation
from vision_attn.attention.scores import Additive, Cosine, Dot, Score
from vision_attn.attention.soft import Soft, doubly_stochastic
from vision_attn.system.errors import UserError

ROOT = Path(__file__).parents[2]
B, R, L, D, H, A = 2, 3, 5, 4, 6, 7


@pytest.fixture
def additive(both_ways):
    torch.manual_seed(0)
    return prepared(Additive(D, H, attention_size=A).double())


@pytest.fixture
def inputs():
    torch.manual_seed(1)
    return torch.randn(B, L, D).double(), torch.randn(B, R, H).double()


def test_additive_is_the_papers_equation(additive, inputs):
    regions, query = inputs
    scores = additive(query, additive.project(regions))[0]
    weights = additive.key.weight, additive.query.weight, additive.key.bias, additive.weight
    for b in range(B):
        for r in range(R):
            slow = references.additive_scores(regions[b], query[b, r], *weights)
            torch.testing.assert_close(scores[b, r], slow, rtol=1e-12, atol=1e-12)


def test_additive_gradient_is_that_of_the_tanh(additive, inputs):
    """The fast backward pass is written by hand: against finite differences, and against autograd through the tanh."""
    regions, query = (part.requires_grad_() for part in inputs)
    everything = [regions, query, *additive.parameters()]
    torch.autograd.gradcheck(lambda *_: additive(query, additive.project(regions))[0], everything)

    seed = torch.randn(B, R, L).double()
    fast = torch.autograd.grad(additive(query, additive.project(regions))[0], everything, seed)
    pairs = additive.key(regions)[:, None] + additive.query(query)[:, :, None]
    slow = torch.autograd.grad(pairs.tanh() @ additive.weight, everything, seed)
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_additive_survives_large_projections(both_ways):
    """tanh saturates; e^{2k} must not overflow into NaN, forward or backward."""
    score = prepared(Additive(1, 1, attention_size=1))
    with torch.no_grad():
        score.key.weight.fill_(1)
        score.key.bias.zero_()
        score.query.weight.fill_(1)
        score.weight.fill_(1)
    regions = torch.tensor([-1e4, -30.0, 0.0, 30.0, 1e4]).view(1, 5, 1).requires_grad_()
    scores, _ = score(torch.tensor([[[0.5]]]), score.project(regions))
    torch.testing.assert_close(scores.flatten(), torch.tanh(regions.flatten() + 0.5))
    scores.sum().backward()
    assert regions.grad.isfinite().all() and score.query.weight.grad.isfinite().all()


def test_additive_is_near_its_float32_under_autocast(additive, inputs):
    regions, query = (part.float() for part in inputs)
    additive = additive.float()
    exact = additive(query, additive.project(regions))[0]
    with torch.autocast("cpu", torch.bfloat16):
        keys = additive.project(regions)
        scores, _ = additive(query, keys)
    if type(additive) is not Additive:  # e^{2k} is not rounded
        assert keys.dtype == scores.dtype == torch.float32
    torch.testing.assert_close(scores.float(), exact, rtol=0.03, atol=0.03)


def test_sharp_attention_is_indexing(both_ways):
    regions = torch.randn(B, L, D)
    chosen = torch.tensor([[0, 2, 4], [1, 1, 3]])
    alpha = torch.nn.functional.one_hot(chosen, L).float()
    picked = regions.gather(1, chosen[..., None].expand(-1, -1, D))
    torch.testing.assert_close(prepared(Soft()).expected(alpha, regions), picked)


def test_expected_context_is_the_weighted_sum(inputs, both_ways):
    regions, _ = inputs
    alpha = torch.rand(B, R, L).double().softmax(-1)
    found = prepared(Soft()).expected(alpha, regions)
    for b in range(B):
        for r in range(R):
            torch.testing.assert_close(found[b, r], references.expected_context(alpha[b, r], regions[b]))


def test_doubly_stochastic_counts_each_captions_own_words():
    lengths = [[4, 2], [3, 1]]
    alpha = torch.rand(2, 2, 4, L).double()
    for b in range(2):
        for r in range(2):
            alpha[b, r, lengths[b][r] :] = 0
    penalty = doubly_stochastic(alpha.float())
    for b in range(2):
        for r in range(2):
            slow = references.doubly_stochastic(alpha[b, r, : lengths[b][r]])
            torch.testing.assert_close(penalty[b, r].double(), slow, rtol=1e-5, atol=1e-5)
    evenly = torch.full((1, 1, L, L), 1 / L)
    torch.testing.assert_close(doubly_stochastic(evenly), torch.zeros(1, 1))


def test_with_a_gain_scores_begin_alike_and_change_faster(inputs):
    regions, query = (0.1 * part.float() for part in inputs)  # where tanh is nearly linear
    spread, change = {}, {}
    for gain in (1.0, 10.0):
        torch.manual_seed(0)
        score = Additive(D, H, attention_size=64, gain=gain)
        optimizer = torch.optim.Adam(score.parameters(), lr=1e-4)
        before = score(query, score.project(regions))[0]
        spread[gain] = before.std().item()
        before[..., 0].sum().backward()
        optimizer.step()
        change[gain] = (score(query, score.project(regions))[0] - before).abs().mean().item()
    assert spread[10.0] == pytest.approx(spread[1.0], rel=0.1) and change[10.0] > 2 * change[1.0]
    with pytest.raises(UserError, match="Additive: gain is 0.0"):
        Additive(D, H, gain=0.0)


def test_the_example_of_the_docs_runs():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "attention.md").read_text(), re.DOTALL)
    made: dict = {}
    exec(code, made)
    shapes = {name: tuple(made[name].shape) for name in ("scores", "patches", "patch", "strokes")}
    assert shapes == {
        "scores": (8, 5, 196), "patches": (8, 3, 2, 1, 12, 12),
        "patch": (8, 5, 1, 12, 12), "strokes": (8, 5, 1, 60, 60),
    }  # fmt: skip
    assert made["seen"].context.shape == (8, 5, 512) and made["seen"].alpha.sum(-1).allclose(torch.ones(8, 5))


def unchecked(module, method="forward"):
    """A method as it is where annotations are not checked."""
    return partial(inspect.unwrap(getattr(type(module), method)), module)


def test_modules_say_which_shapes_they_take(both_ways):
    regions, states = torch.randn(4, 49, 32), torch.randn(4, 3, 32)
    for score in (
        Additive(32, 32, attention_size=8),
        Dot(32, 32),
        Cosine(32, 32),
        ContentLocation(32, 32, grid=(7, 7)),
    ):
        said = r"query must be a tensor \(B, R, H\) of float, but is \(4, 32\).*R states"
        with pytest.raises(UserError, match=said):
            unchecked(prepared(score))(states[:, 0], score.project(regions))
    scores = torch.randn(4, 3, 49)
    for attention in (Soft(), Hard(), StraightThrough()):
        for wrong in (scores[:1], scores[..., :48], torch.randn(4, 3, 54), scores[:, 0]):
            with pytest.raises(UserError, match=r"scores must be a tensor \(4, R, 49\) of float, but is"):
                unchecked(prepared(attention))(wrong, regions)
    with pytest.raises(UserError, match=r"give what `pyramid\(images\)` returns"):
        unchecked(Retina())(torch.rand(4, 1, 28, 28), torch.zeros(4, 1, 2))
    with pytest.raises(UserError, match=r"state must be a tensor \(B, R, H\)"):
        unchecked(prepared(Filterbank(32, (1, 28, 28))), "window")(states[:, 0])
    with pytest.raises(UserError, match="Nothing must override project"):
        Nothing().project(regions)


class Nothing(Score):
    pass


def test_a_way_to_look_that_there_is_not_is_refused():
    """In a process of its own: here annotations are checked."""
    code = """
from vision_attn.attention.hard import Hard, StraightThrough
from vision_attn.attention.monotonic import HardMonotonic, Monotonic
for kind in (Hard, StraightThrough, Monotonic, HardMonotonic):
    try:
        kind(at_test="draw")
    except ValueError as error:
        print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    for line, kind in zip(said.splitlines(), ("Hard", "StraightThrough", "Monotonic", "HardMonotonic"), strict=True):
        assert line.startswith(f"{kind} has no mode 'draw'; its modes are expectation, ")

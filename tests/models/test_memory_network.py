"""The memory network: against loops, its ties, its padding, and its linear start."""

import pytest
import torch

from vision_attn.models.memory_network import MemoryNetwork, Regions, WordEmbedding, weighted_words

FACTS = torch.tensor([[[5, 3, 4], [7, 6, 0], [3, 4, 0]], [[8, 5, 3], [3, 0, 0], [0, 0, 0]]])
QUESTIONS = torch.tensor([[6, 3, 0], [4, 5, 7]])


def made(**options) -> MemoryNetwork:
    torch.manual_seed(0)
    model = MemoryNetwork(9, 9, size=5, **options).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(10)
    return model


def sentence(table: torch.Tensor, words: list[int]) -> torch.Tensor:
    """Section 4.1, word by word and feature by feature."""
    words, d = [word for word in words if word], table.shape[1]
    found = torch.zeros(d)
    for j, word in enumerate(words, start=1):
        for k in range(1, d + 1):
            found[k - 1] += ((1 - j / len(words)) - (k / d) * (1 - 2 * j / len(words))) * table[word, k - 1]
    return found


def slow(model: MemoryNetwork, facts: list[list[int]], words: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One story, as the paper writes it."""
    state, maps = sentence(model.question.weight, words), []
    for first, last in model.steps:
        A, C = model.facts[first], model.facts[last]
        m, c = (
            torch.stack([sentence(part.words.weight, fact) + part.times.weight[i] for i, fact in enumerate(facts)])
            for part in (A, C)
        )
        p = torch.exp(m @ state) / torch.exp(m @ state).sum()
        state = (state if model.between is None else model.between.weight @ state) + p @ c
        maps.append(p)
    return (model.answer.weight @ state).log_softmax(dim=0), maps


@torch.no_grad()
@pytest.mark.parametrize("tying", ["adjacent", "layerwise"])
def test_hops_equal_the_paper_s_equations(tying: str) -> None:
    model = made(tying=tying)
    found = model(FACTS, QUESTIONS)
    for row, number in enumerate((3, 2)):
        log_prob, maps = slow(model, FACTS[row, :number].tolist(), QUESTIONS[row].tolist())
        torch.testing.assert_close(found.log_prob[row], log_prob)
        torch.testing.assert_close(found.alpha[row, :, :number], torch.stack(maps))
    assert not found.alpha[1, :, 2].any() and found.alpha.sum(dim=2).allclose(torch.ones(2, 3))


def test_embeddings_are_tied_as_in_section_2_2() -> None:
    adjacent, layerwise = made(num_hops=3), made(num_hops=3, tying="layerwise")
    assert adjacent.steps == [(0, 1), (1, 2), (2, 3)] and layerwise.steps == [(0, 1)] * 3
    assert adjacent.question is adjacent.facts[0].words and adjacent.answer is adjacent.facts[3].words
    assert len([*adjacent.parameters()]) == 8 and len([*layerwise.parameters()]) == 2 * 2 + 3


def test_initial_weights_have_the_deviation_that_is_asked_for() -> None:
    weights = [[*made(std=std).parameters()] for std in (0.1, 0.3)]
    assert all(torch.allclose(3 * one, other) for one, other in zip(*weights, strict=True))


@torch.no_grad()
def test_the_linear_start_has_no_softmax_and_ends_when_validation_is_no_better() -> None:
    model = made(linear_start=3)
    m = model.facts[0](weighted_words(FACTS, 9), model._times(FACTS))
    scores = (m @ model.question.sentence(weighted_words(QUESTIONS, 9))[..., None]).squeeze(-1) * FACTS.any(dim=-1)
    torch.testing.assert_close(model(FACTS, QUESTIONS).alpha[:, 0], scores)
    assert model.validated(2.0) and model.validated(1.0) and model.linear
    for _ in range(model.patience - 1):
        assert model.validated(1.5) and model.linear
    assert model.validated(1.0) and not model.linear and not model.validated(0.5)
    assert model(FACTS, QUESTIONS).alpha.sum(dim=2).allclose(torch.ones(2, 3))
    again = made(linear_start=3)
    again.load_state_dict(model.state_dict())
    assert not again.linear


@torch.no_grad()
def test_empty_memories_only_in_training_and_at_most_the_last_time() -> None:
    model = made(noise=0.5)
    assert model._times(FACTS).equal(torch.arange(3).expand(2, 3))
    model.train()
    times = torch.stack([model._times(FACTS) for _ in range(200)])
    assert (times.diff(dim=-1) >= 1).all() and 1.2 < times[..., 0].float().mean() / 0.5 + 1 < 2.8
    assert model.facts[0](weighted_words(FACTS, 9), times[0] + 1000).isfinite().all()


@torch.no_grad()
def test_regions_are_pooled_in_hops_and_a_sharp_map_reads_one_region() -> None:
    torch.manual_seed(0)
    model = MemoryNetwork(9, 4, facts=Regions, num_hops=2, size=4, tying="layerwise").eval()
    regions = 3 * torch.eye(4)[None]
    model.facts[0].linear.weight.copy_(30 * torch.eye(4))
    model.facts[1].linear.weight.copy_(torch.eye(4).roll(1, dims=0))  # what is read of a region points at the next
    model.between.weight.zero_()
    model.question = WordEmbedding(9, 4)
    model.question.weight.zero_()
    model.question.weight[5, 1] = 1
    alpha = model(regions, torch.tensor([[5, 5]])).alpha
    assert alpha.argmax(dim=2).tolist() == [[1, 2]] and alpha.amax() > 0.99

"""Ragged batches: which captions a time step computes, and in which order."""

import pytest
import torch

from vision_attn.fast import ragged


def words_of(lengths: list[list[int]]) -> torch.Tensor:
    """Word ids 1, 2, .. of captions of these lengths, (B, R, T)."""
    lengths = torch.tensor(lengths)
    position = torch.arange(int(lengths.max()) + 2)
    numbers = torch.arange(1, lengths.numel() * len(position) + 1).view(*lengths.shape, -1)
    return numbers.where(position < lengths[..., None], 0)


@pytest.mark.parametrize(
    "lengths", [[[4, 3], [4, 1], [2, 2]], [[1, 3], [4, 1], [2, 2]], [[3]], [[2, 2], [2, 2]], [[3, 0, 2], [0, 0, 0]]]
)
def test_time_steps_compute_every_word_once_and_no_padding(lengths) -> None:
    """Also of captions that are not sorted, and of captions without a word."""
    words = words_of(lengths)
    rows = torch.arange(words[..., 0].numel())  # of the captions that are packed so far: first all
    steps = ragged.schedule(words)
    assert len(steps) == max(map(max, lengths))
    for t, step in enumerate(steps):
        rows = rows if step.kept is None else rows[step.kept]
        now = words.flatten()[step.position]
        assert now.tolist() == words.flatten(0, 1)[rows, t].tolist() and (now != 0).all()
        assert now.tolist() == [word for word in words[..., t].flatten().tolist() if word]
        there = ragged.spread(now.double(), step)
        cut = words[: step.images, : step.rows, t]
        assert torch.equal(there[cut != 0].long(), cut[cut != 0])
        assert torch.equal(ragged.collect(there, step).long(), now)
        assert (step.places is None) == (step.sources is None) == bool((cut != 0).all())


def test_captions_without_a_word_have_no_gradient() -> None:
    words = words_of([[3, 2], [2, 1]])
    step = ragged.schedule(words)[1]
    packed = torch.randn(len(step.position), 5, dtype=torch.float64, requires_grad=True)
    assert step.sources is not None
    assert torch.autograd.gradcheck(lambda x: ragged.collect(ragged.spread(x, step).sin(), step), packed)


def test_without_a_step_nothing_is_packed() -> None:
    rows = torch.randn(2, 3, 4)
    assert ragged.spread(rows, None) is rows and ragged.collect(rows, None) is rows

"""Recurrent captioners whose loop computes the captions that still have a word: their order, and what they return."""

from functools import partial

import pytest
import torch

from tests.models.test_show_attend_tell import UNSORTED, build, draw
from vision_attn.attention.hard import Hard
from vision_attn.contracts.nested import tensors_of
from vision_attn.fast import accelerate
from vision_attn.fast.likelihood import weighted_words
from vision_attn.fast.models.recurrent import longest_first
from vision_attn.metrics.cider import padded
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.top_down import TopDown


def test_captions_are_run_in_the_order_that_is_fastest():
    words = padded([[[3, 1], [3, 3, 1], [1]], [[4, 4, 4, 1], [1], [4, 1]]])
    image, row = longest_first(words)
    lengths = (words[image[:, None], row] != 0).sum(dim=-1)
    assert image.tolist() == [1, 0] and lengths.tolist() == [[4, 2, 1], [3, 2, 1]]


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("pads", [False, True])
@pytest.mark.parametrize("kind", [ShowAttendTell, TopDown])
def test_in_another_order_a_caption_is_the_same(kind, pads, runs):
    """Samples come in any order, and are run longest first: what is returned belongs to the captions as given. With a
    map so sharp that the region of a sample is known."""
    model = build(kind, attention=partial(Hard, expectation_probability=0.0), dropout=0.0)
    accelerate(model)
    with torch.no_grad():
        model.score.weight.mul_(1e4)
    model.train().with_mean = True
    regions, words = draw(UNSORTED)
    if pads:
        model.leave_out_padding()
        regions[1, 3:] = 0
    expected = model(regions, words, runs)
    with weighted_words(model):
        found = model(regions, words, runs)
    assert (found.real is None) != pads and found.choice is not None and found.mean_log_prob is not None
    said = words.repeat_interleave(runs, dim=1) != 0
    for one, other in zip(tensors_of(found._replace(real=None)), tensors_of(expected._replace(real=None)), strict=True):
        torch.testing.assert_close(one[said], other[said])
    if pads:
        assert torch.equal(found.real, expected.real)

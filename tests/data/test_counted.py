"""Batches of fixed sets know their number, as a progress bar with the time left needs it."""

import pytest

from vision_attn.data.counted_batches import Counted, slices


@pytest.mark.parametrize(("rank", "world", "expected"), [(0, 1, ["abc", "def", "g"]), (1, 2, ["def"]), (3, 4, [])])
def test_slices_of_one_process(rank, world, expected):
    batches = slices(lambda part: "abcdefg"[part], 7, 3, rank=rank, world=world)
    assert len(batches) == len(expected) and list(batches) == expected


def test_the_length_is_that_of_all_items_also_after_the_first():
    batches = Counted((number for number in range(3)), 3)
    assert next(batches) == 0 and len(batches) == 3 and list(batches) == [1, 2]

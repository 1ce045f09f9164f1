"""Batches of few shapes, with captions of all lengths in the same proportions."""

import json
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import pretend
from vision_attn.attention.hard import Hard
from vision_attn.contracts import END, PAD
from vision_attn.data.grouping import SHAPES, Stratified, padding, strata
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.scenes.scenes import Scenes
from vision_attn.encoders.precomputed import Precomputed
from vision_attn.engine.batches import few
from vision_attn.engine.capture import signature
from vision_attn.fast import accelerate, ragged
from vision_attn.fast.ragged import row_lengths
from vision_attn.models.show_and_tell import ShowAndTell
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.top_down import TopDown
from vision_attn.models.transformer import Transformer
from vision_attn.task import Static, Task


def lengths(num_images: int, num_rows: int, seed: int = 0) -> np.ndarray:
    """As those of Flickr8k: most have 8 to 16 words, a few many more; those of an image are more alike."""
    rng = np.random.default_rng(seed)
    image = rng.normal(0, 1.5, (num_images, 1))
    words = rng.gamma(9, 1.25, (num_images, num_rows)) + image
    return -np.sort(-np.clip(words.round().astype(int), 3, 26), axis=1)


def test_few_shapes_leave_little_padding():
    given = lengths(3000, 5)
    grouping = Stratified(given, 64)
    groups = grouping.epoch(np.random.default_rng(1))
    assert len(groups) == len(grouping) == 46 and len({group.shape for group in groups}) == SHAPES
    assert padding(groups, given) < 0.12 < 0.5 < 1 - given.mean() / given.max()
    for group in groups:
        assert len(group.members) == 64 and (given[group.members] <= np.array(group.shape)).all()
        assert all(one[0] >= other[0] for one, other in pairwise(group.shape))  # longest first
        assert given[group.members].mean() == pytest.approx(given.mean(), rel=0.06)  # a fair sample


@pytest.mark.parametrize("num_images, batch_size", [(3000, 64), (200, 64), (12, 4), (100, 8), (13, 5), (3, 8)])
def test_every_image_is_in_an_epoch_once_or_left_out(num_images, batch_size):
    given = lengths(num_images, 3)
    grouping, seen = Stratified(given, batch_size), np.zeros(num_images, dtype=int)
    for epoch in range(40):
        members = np.concatenate([group.members for group in grouping.epoch(np.random.default_rng(epoch))])
        assert len(set(members)) == len(members) == len(grouping) * min(batch_size, num_images)
        seen[members] += 1
    assert seen.min() > 0


def test_strata_have_the_sizes_asked_for_and_like_lengths():
    given = np.repeat([[9, 9], [9, 5], [5, 5], [3, 2]], 3, axis=0)
    given = given[np.random.default_rng(0).permutation(12)]
    found = strata(given, [3, 3, 3, 3])
    assert sorted(np.concatenate(found)) == [*range(12)]
    assert all((given[members] == given[members[0]]).all() for members in found)
    assert [len(members) for members in strata(given, [1, 4, 2, 5])] == [1, 4, 2, 5]


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """60 photographs with annotation vectors and captions of 3 to 20 words."""
    folder, rng = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    (folder / "vectors").mkdir()
    images, annotations = [], []
    for number in range(60):
        np.save(folder / "vectors" / f"{number}.npy", np.full((4, 3), number, dtype=np.float32))
        (folder / f"{number}.png").touch()
        split = "train" if number < 56 else "val"
        images.append({"id": number, "file_name": f"{number}.png", "split": split})
        annotations += [
            {"id": 5 * number + row, "image_id": number, "caption": "word " * rng.integers(3, 21)} for row in range(5)
        ]
    (folder / "captions.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    return folder


class Looking(Task):
    """As much of a task as a source needs."""


def captions_of(folder: Path, rows: int) -> Captions:
    source = Captions(
        images=str(folder), annotations=str(folder / "captions.json"), features=str(folder / "vectors"),
        batch_size=8, min_count=1, rows=rows,
    )  # fmt: skip
    task = Looking()
    task.encoder = Precomputed(grid=(2, 2), region_size=3)
    source.prepare(task)
    return source


@pytest.mark.parametrize("rows", [2, 5, 7])
def test_photographs_have_places_in_batches(photographs, rows):
    """Also where an epoch chooses some of their captions, or repeats them."""
    source = captions_of(photographs, rows)
    shapes = set()
    for epoch in range(3):
        batches = list(source.train(epoch, seed=0))
        assert len(batches) == len(source) == 7
        assert len({image for batch in batches for image in batch.ids}) == 56
        for batch in batches:
            used = (batch.words != PAD).sum(dim=2)
            assert batch.words.shape == (8, rows, max(map(max, batch.lengths)))
            assert (used <= torch.tensor(batch.lengths)).all() and (used.diff(dim=1) <= 0).all()
        shapes |= {batch.lengths for batch in batches}
    assert len(shapes) <= SHAPES
    parts = [list(source.train(2, seed=0, rank=rank, world=2)) for rank in (0, 1)]
    for whole, one, other in zip(batches, *parts, strict=True):
        assert sorted(whole.ids) == sorted(one.ids + other.ids)
        assert (one.lengths, other.lengths) == (whole.lengths[::2], whole.lengths[1::2])


def test_batches_of_scenes_have_one_shape():
    scenes = Scenes(batch_size=8, epoch_images=80, rows=3)
    batches = list(scenes.train(1, seed=2))
    assert len({(batch.words.shape, batch.lengths) for batch in batches}) == 1
    assert all(((batch.words != PAD).sum(dim=2) <= torch.tensor(batch.lengths)).all() for batch in batches)
    assert (
        1 - sum(int((batch.words != PAD).sum()) for batch in batches) / (10 * sum(map(sum, batches[0].lengths))) < 0.4
    )
    parts = [list(scenes.train(1, seed=2, rank=rank, world=2)) for rank in (0, 1)]
    for whole, one, other in zip(batches, *parts, strict=True):
        assert one.lengths + other.lengths == whole.lengths and one.words.shape[2] == whole.words.shape[2]


def test_lengths_of_rows_are_part_of_what_a_graph_depends_on():
    batch = next(Scenes(batch_size=4, epoch_images=8).train(0, seed=0))
    other = batch._replace(lengths=Static([*batch.lengths[:-1], (1,) * 5]))
    assert signature(batch) != signature(other)
    assert few(batch._replace(images=batch.images), 2).lengths == batch.lengths


CAPTIONERS = {
    "soft": partial(ShowAttendTell, hidden_size=6, word_size=5),
    "hard": partial(ShowAttendTell, hidden_size=6, word_size=5, attention=Hard),
    "top-down": partial(TopDown, hidden_size=6, word_size=5),
    "no attention": partial(ShowAndTell, hidden_size=6, word_size=5),
    "transformer": partial(Transformer, hidden_size=8, num_layers=1, num_heads=2, feedforward_size=8),
}


@pytest.mark.parametrize("name, runs", [*((name, 1) for name in CAPTIONERS), ("hard", 2)])
def test_captioners_skip_rows_of_which_lengths_are_known(name, runs, monkeypatch):
    """As on a GPU, where words cannot be read without waiting for it: the results are those of a whole batch."""
    torch.manual_seed(0)
    model = CAPTIONERS[name](11, 6).eval()
    accelerate(model)
    words = torch.randint(4, 11, (3, 3, 7))
    for row, length in enumerate((7, 4, 2)):
        words[:, row, length:] = PAD
        words[:, row, length - 1] = END
    words[1, 0, 5:] = PAD  # shorter than the row
    regions = torch.rand(3, 5, 6)
    given = {"runs": runs} if runs > 1 else {}
    expected = model(regions, words, **given)
    expected.log_prob.sum().backward()
    gradients = [one.grad for one in model.parameters()]
    model.zero_grad()
    pretend.unread_words(monkeypatch)
    lengths = Static([(7, 4, 2), (6, 4, 2), (7, 5, 2)])
    steps = ragged.schedule(words, lengths)
    assert len(ragged.places_of_words(words, lengths)) == sum(len(step.position) for step in steps) == 39
    assert ragged.packed(words, lengths).shape == (3, 14)
    assert len(ragged.places_of_words(words)) == 63  # where nothing is known
    with row_lengths(model, lengths):
        assert all(part.lengths == lengths for part in model.modules() if isinstance(part, ragged.HasRows))
        found = model(regions, words, **given)
    assert all(part.lengths is None for part in model.modules() if isinstance(part, ragged.HasRows))
    found.log_prob.sum().backward()
    torch.testing.assert_close(found.log_prob, expected.log_prob)
    if found.alpha is not None:
        torch.testing.assert_close(found.alpha, expected.alpha)
    for one, other in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(one.grad, other)

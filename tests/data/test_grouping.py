"""Batches of few shapes: captions of nearly the same length meet."""

import json
from functools import partial

import numpy as np
import pytest
import torch

from vision_attn.attention.hard import Hard
from vision_attn.contracts import END, PAD
from vision_attn.data.grouping import SHAPES, Grouping, grouped, padding, shapes_of
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.scenes.scenes import Scenes
from vision_attn.encoders.precomputed import Precomputed
from vision_attn.engine.batches import few
from vision_attn.engine.capture import signature
from vision_attn.layers import ragged
from vision_attn.layers.ragged import row_lengths
from vision_attn.models.show_and_tell import ShowAndTell
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.transformer import Transformer
from vision_attn.task import Task


def lengths(num_images: int, num_rows: int, seed: int = 0) -> np.ndarray:
    """As those of Flickr8k: most have 8 to 16 words, a few many more; those of an image are more alike."""
    rng = np.random.default_rng(seed)
    image = rng.normal(0, 1.5, (num_images, 1))
    words = rng.gamma(9, 1.25, (num_images, num_rows)) + image
    return -np.sort(-np.clip(words.round().astype(int), 3, 26), axis=1)


@pytest.mark.parametrize("whole, share", [(False, 0.14), (True, 0.17)])
def test_few_shapes_leave_little_padding(whole, share):
    given = lengths(3000, 5)
    grouping = Grouping(given, 3000, 64, whole=whole)
    groups = grouping.epoch(given, np.random.default_rng(1))
    assert len(groups) == len(grouping) and len({group.shape for group in groups}) <= SHAPES
    assert padding(groups, given) < share < 1 - given.mean() / 26
    captions = [len(group.members) * len(group.shape) for group in groups]
    assert 0.85 * 320 <= min(captions) <= max(captions) <= 320
    for group in groups:
        assert (given[group.members][:, group.rows] <= group.shape).all()


@pytest.mark.parametrize("num_images, batch_size, num_rows", [(3000, 64, 5), (200, 64, 5), (12, 4, 5), (100, 8, 8)])
def test_every_image_is_left_out_as_seldom(num_images, batch_size, num_rows):
    given = lengths(num_images, num_rows)
    grouping = Grouping(given, num_images, batch_size, whole=False)
    seen = np.zeros((num_images, num_rows), dtype=int)
    for epoch in range(8):
        for group in grouping.epoch(given, np.random.default_rng(epoch)):
            assert len(set(group.members)) == len(group.members)
            seen[group.members, group.rows] += 1
    assert seen.max() == 8 and seen.mean() > 0.95 * 8
    longest, others = seen[given[:, 0] >= np.median(given[:, 0])], seen[given[:, 0] < np.median(given[:, 0])]
    assert longest.mean() == pytest.approx(others.mean(), abs=0.3)


def test_an_image_is_in_the_smallest_shape_that_holds_it_if_batches_fill():
    given = np.repeat([[9, 9], [9, 5], [5, 5], [3, 2]], 8, axis=0)
    shapes = shapes_of(given, 4)
    assert sorted(map(tuple, shapes.tolist())) == [(3, 2), (5, 5), (9, 5), (9, 9)]
    groups = grouped(given, shapes, 8, np.random.default_rng(0))
    assert sorted(tuple(shape) for _, shape in groups) == [(3, 2), (5, 5), (9, 5), (9, 9)]
    assert all((given[members] == shape).all() for members, shape in groups)


def test_longer_rows_than_those_that_shapes_are_found_from_lengthen_the_longest_shape():
    shapes = shapes_of(np.array([[5, 4], [3, 3]]), 2)
    groups = grouped(np.array([[4, 4], [3, 3], [2, 2], [9, 1]]), shapes, 2, np.random.default_rng(0))
    assert sorted(tuple(shape) for _, shape in groups) in ([(3, 3), (9, 4)], [(5, 4), (9, 4)], [(9, 4), (9, 4)])


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


def captions_of(folder, *, costly: bool) -> Captions:
    source = Captions(
        images=str(folder), annotations=str(folder / "captions.json"), features=str(folder / "vectors"),
        batch_size=8, min_count=1,
    )  # fmt: skip
    task = Looking()
    task.encoder, task.costly_images = Precomputed(grid=(2, 2), region_size=3), costly
    source.prepare(task)
    return source


def test_captions_of_cached_photographs_meet_by_length(photographs):
    source = captions_of(photographs, costly=False)
    batches = list(source.train(0, seed=0))
    assert len(batches) == len(source)
    for batch in batches:
        B, R, T = batch.words.shape
        used = (batch.words != PAD).sum(dim=2)
        assert batch.lengths[0] == T and len(batch.lengths) == R
        assert (used <= torch.tensor(batch.lengths)).all() and (batch.words == END).sum() == B * R
    counts = {image: [] for image in range(56)}
    for batch in batches:
        for image, words in zip(batch.ids, batch.words, strict=True):
            counts[image] += (words != PAD).sum(dim=1).tolist()
    whole = [image for image, found in counts.items() if len(found) == 5]
    texts = {one.id: one.captions for one in source.photographs["train"]}
    assert len(whole) > 40
    for image in whole:
        assert sorted(counts[image]) == sorted(len(text.split()) + 1 for text in texts[image])


def test_photographs_that_take_long_meet_with_all_their_captions(photographs):
    source = captions_of(photographs, costly=True)
    batches = list(source.train(0, seed=0))
    assert len(batches) == len(source) == 7 and all(batch.words.shape[:2] == (8, 5) for batch in batches)
    assert len({image for batch in batches for image in batch.ids}) == 56


def test_batches_of_scenes_have_one_shape():
    scenes = Scenes(batch_size=8, epoch_images=80, rows=3)
    batches = list(scenes.train(1, seed=2))
    assert len({(batch.words.shape, batch.lengths) for batch in batches}) == 1
    assert all(((batch.words != PAD).sum(dim=2) <= torch.tensor(batch.lengths)).all() for batch in batches)
    parts = [list(scenes.train(1, seed=2, rank=rank, world=2)) for rank in (0, 1)]
    for whole, one, other in zip(batches, *parts, strict=True):
        assert one.lengths == other.lengths == whole.lengths and one.words.shape[2] == whole.words.shape[2]


def test_lengths_of_rows_are_part_of_what_a_graph_depends_on():
    batch = next(Scenes(batch_size=4, epoch_images=8).train(0, seed=0))
    other = batch._replace(lengths=type(batch.lengths)([*batch.lengths[:-1], 1]))
    assert signature(batch) != signature(other)
    assert few(batch._replace(images=batch.images), 2).lengths == batch.lengths


CAPTIONERS = {
    "soft": partial(ShowAttendTell, hidden_size=6, word_size=5),
    "hard": partial(ShowAttendTell, hidden_size=6, word_size=5, attention=Hard),
    "no attention": partial(ShowAndTell, hidden_size=6, word_size=5),
    "transformer": partial(Transformer, hidden_size=8, num_layers=1, num_heads=2, feedforward_size=8),
}


@pytest.mark.parametrize("name, runs", [("soft", 1), ("hard", 1), ("hard", 2), ("no attention", 1), ("transformer", 1)])
def test_captioners_skip_rows_of_which_lengths_are_known(name, runs, monkeypatch):
    """As on a GPU, where words cannot be read without waiting for it: the results are those of a whole batch."""
    torch.manual_seed(0)
    model = CAPTIONERS[name](11, 6).eval()
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
    monkeypatch.setattr(ragged, "readable", lambda words: False)
    with row_lengths((7, 4, 2)):
        assert len(ragged.places_of_words(words)) == sum(len(step.position) for step in ragged.schedule(words)) == 39
        assert ragged.packed(words).shape == (3, 13)
        found = model(regions, words, **given)
    assert len(ragged.places_of_words(words)) == 63  # outside nothing is known
    found.log_prob.sum().backward()
    torch.testing.assert_close(found.log_prob, expected.log_prob)
    if found.alpha is not None:
        torch.testing.assert_close(found.alpha, expected.alpha)
    for one, other in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(one.grad, other)

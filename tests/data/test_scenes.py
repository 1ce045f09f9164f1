"""Drawn scenes: every caption is true, every box is tight, and test scenes show what training never does."""

import hashlib
import re
from itertools import combinations

import numpy as np
import pytest
import torch

from vision_attn.data.scenes.canvas import SAMPLES, arrange, background, covers, draw, side_range, stamps
from vision_attn.data.scenes.grammar import COLOURS, LANGUAGES, OBJECTS, SHAPES, combinations_of, object_name
from vision_attn.data.scenes.scenes import Scenes
from vision_attn.system.errors import UserError
from vision_attn.task import Task

SPLITS = ("train", "val", "test")
OBJECT, RELATION = r"a (\w+ \w+)", r"(to the left of|to the right of|above|below)"


def stands(box, relation, other) -> bool:
    """A reading of the geometry that shares nothing with the code that drew it."""
    if relation in ("to the right of", "below"):
        relation = {"to the right of": "to the left of", "below": "above"}[relation]
        box, other = other, box
    way_x = (other[0] + other[2]) / 2 - (box[0] + box[2]) / 2
    way_y = (other[1] + other[3]) / 2 - (box[1] + box[3]) / 2
    if relation == "to the left of":
        return box[2] < other[0] and way_x > 1.4 * abs(way_y)
    return box[3] < other[1] and way_y > 1.4 * abs(way_x)


def claims(caption: str) -> tuple[set[str], list[tuple[str, str, str]]]:
    """What a sentence says: its objects, and (object, relation, object)."""
    opening = r"(?:a picture of |there is |here is )?"
    if match := re.fullmatch(rf"{opening}(?:only |just )?{OBJECT}(?: on its own| and nothing else)?", caption):
        return {match[1]}, []
    if match := re.fullmatch(rf"{opening}{OBJECT}(?: is)? {RELATION} {OBJECT}(?: and {OBJECT})?", caption):
        others = [other for other in match.group(3, 4) if other]
        return {match[1], *others}, [(match[1], match[2], other) for other in others]
    if match := re.fullmatch(rf"here are {OBJECT} and {OBJECT} {RELATION} {OBJECT}", caption):
        return set(match.group(1, 2, 4)), [(name, match[3], match[4]) for name in match.group(1, 2)]
    if match := re.fullmatch(rf"{RELATION} {OBJECT} (?:is|are|there is) {OBJECT}(?: and {OBJECT})?", caption):
        others = [other for other in match.group(3, 4) if other]
        return {match[2], *others}, [(other, match[1], match[2]) for other in others]
    match = re.fullmatch(rf"{RELATION} {OBJECT} there is {OBJECT} {RELATION} {OBJECT}", caption)
    assert match, f"the parser does not know: {caption}"
    both = [(other, match[1], match[2]) for other in match.group(3, 5)]
    return set(match.group(2, 3, 5)), [*both, (match[3], match[4], match[5])]


@pytest.mark.parametrize("split", SPLITS)
def test_every_caption_is_true(split):
    scenes = Scenes(val_images=200, test_images=200)
    kinds, relations = set(), set()
    for batch in scenes.split(split):
        for references, boxes in zip(batch.references, batch.boxes, strict=True):
            assert len(set(references)) == 5
            for caption in references:
                objects, said = claims(caption)
                assert {word for name in objects for word in name.split()} == set(boxes), caption
                where = {}
                for name in objects:
                    colour, shape = name.split()
                    assert boxes[colour] == boxes[shape] and len(boxes[colour]) == 1
                    where[name] = boxes[colour][0]
                for name, relation, other in said:
                    assert stands(where[name], relation, where[other]), (caption, where)
                    relations.add((len(objects), relation))
                kinds.add((len(objects), re.sub(rf"{OBJECT}|{RELATION}", "_", caption)))
    assert len(relations) == 8  # four relations, with two objects and with three
    assert len(kinds) == 21, sorted(kinds)  # seven forms for one, two and three objects


@pytest.mark.parametrize("size", [40, 56, 96])
def test_boxes_are_tight(size):
    scenes = arrange(np.random.PCG64(5), 60, "train", (1.0, 1.0, 1.0), size)
    still = scenes._replace(grain=np.full_like(scenes.grain, 127))
    bare = still._replace(num_objects=np.zeros_like(still.num_objects))
    drawn = np.abs(draw(still, size).astype(int) - draw(bare, size)).max(1) > 2
    expected = np.zeros_like(drawn)
    for image in range(60):
        for slot in range(scenes.num_objects[image]):
            (x, y), side = scenes.corner[image, slot], scenes.side[image, slot]
            assert min(x, y) > 0 and max(x, y) + side < size
            assert not expected[image, y : y + side, x : x + side].any(), "two objects overlap"
            expected[image, y : y + side, x : x + side] = True
            inside = drawn[image, y : y + side, x : x + side]
            for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]):
                assert edge.any(), OBJECTS[scenes.objects[image, slot]]
    assert not (drawn & ~expected).any()


def test_the_middle_of_a_box_has_the_colour_that_is_said():
    batch = next(iter(Scenes(val_images=64).split("val")))
    assert batch.images.dtype == torch.uint8 and batch.images.shape == (64, 3, 56, 56)
    palette = torch.tensor(list(COLOURS.values())).float()
    for image, boxes in zip(batch.images.float(), batch.boxes, strict=True):
        for word in set(boxes) & set(COLOURS):
            x0, y0, x1, y1 = boxes[word][0]
            x, y = round((x0 + x1 + 2) * 14), round((y0 + y1 + 2) * 14)
            pixel = image[:, y - 1 : y + 2, x - 1 : x + 2].mean((1, 2))
            assert list(COLOURS)[(palette - pixel).square().sum(1).argmin()] == word
        assert (image.std((1, 2)) > 2).all()  # the background is not constant


def test_uniform_attention_points_badly():
    shares = [
        (box[2] - box[0]) * (box[3] - box[1]) / 4
        for batch in Scenes(test_images=300).split("test")
        for boxes in batch.boxes
        for (box,) in boxes.values()
    ]
    assert 0.03 < np.mean(shares) < 0.1 and max(shares) < 0.15


def test_shapes_differ_by_more_than_an_edge():
    masks = stamps(*side_range(56))
    for first, second in combinations(range(len(SHAPES)), 2):
        for side, (one, other) in enumerate(zip(masks[first], masks[second], strict=True), start=12):
            assert np.abs(one - other).sum() > 0.1 * side**2, (SHAPES[first], SHAPES[second], side)


def test_coverage_is_the_area():
    sides = np.array([14, 15])
    areas = stamps(14, 15).sum((2, 3)) / sides**2
    expected = {"circle": np.pi / 4, "square": 1, "triangle": 0.5, "diamond": 0.5, "cross": 1 - 0.64**2}
    for shape, area in expected.items():
        assert areas[SHAPES.index(shape)] == pytest.approx(area, abs=1 / SAMPLES / 7)
    assert covers("star", np.array([0.0, 0.9]), np.array([0.0, 0.9])).tolist() == [True, False]


def test_the_background_meets_its_corners():
    light = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    picture = background(light, 7)
    np.testing.assert_allclose(picture[0][:, [0, 0, -1, -1], [0, -1, 0, -1]], light[0])
    np.testing.assert_allclose(picture[0, :, 3, 3], light[0].mean(1), rtol=1e-6)


def combination_sets(split):
    sets = {frozenset(row) for number in (1, 2, 3) for row in combinations_of(split, number).tolist()}
    pairs = {frozenset(pair) for row in sets for pair in combinations(sorted(row), 2)}
    return sets, pairs


def test_combinations_of_the_splits_are_disjoint():
    sets = {split: combination_sets(split) for split in SPLITS}
    for one, other in combinations(SPLITS, 2):
        for mine, theirs in zip(sets[one], sets[other], strict=True):
            assert mine and theirs and not mine & theirs, (one, other)
    seen = {OBJECTS[index] for row in sets["train"][0] for index in row}
    assert {word for name in seen for word in name.split()} == set(COLOURS) | set(SHAPES)
    for split in ("val", "test"):
        unseen = {OBJECTS[row[0]] for row in combinations_of(split, 1).tolist()}
        assert unseen and not unseen & seen


@pytest.mark.parametrize("split", SPLITS)
def test_scenes_show_combinations_of_their_split(split):
    allowed = {frozenset(OBJECTS[index] for index in row) for n in (1, 2, 3) for row in combinations_of(split, n)}
    source = Scenes(val_images=150, test_images=150, epoch_images=150, batch_size=50)
    batches = [*source.split(split), *(source.train(3, seed=1) if split == "train" else ())]
    shown = {frozenset(claims(references[0])[0]) for batch in batches for references in batch.references}
    assert shown <= allowed and {len(objects) for objects in shown} == {1, 2, 3}


def same(one, other):
    assert torch.equal(one.images, other.images) and torch.equal(one.words, other.words)
    assert one[2:] == other[2:]


def test_training_batches_depend_on_seed_and_epoch_alone():
    source = Scenes(batch_size=8, epoch_images=27)
    epoch = list(source.train(2, seed=7))
    assert len(epoch) == len(source) == 3
    for batch, again in zip(epoch, Scenes(batch_size=8, epoch_images=27).train(2, seed=7), strict=True):
        same(batch, again)
    for batch, later in zip(epoch[2:], source.train(2, seed=7, skip=2), strict=True):
        same(batch, later)
    for other in (source.train(2, seed=8), source.train(1, seed=7)):
        assert not torch.equal(next(other).images, epoch[0].images)
    assert len({image for batch in epoch for image in batch.ids}) == 24


def test_parts_of_all_processes_are_the_batch():
    source = Scenes(batch_size=12, epoch_images=24)
    whole = next(source.train(0, seed=3))
    parts = [next(source.train(0, seed=3, rank=rank, world=3)) for rank in range(3)]
    assert all(len(part.ids) == 4 for part in parts)
    joined = {i: (image, refs) for part in parts for i, image, refs in zip(part.ids, *part[:1], part[3], strict=True)}
    assert set(joined) == set(whole.ids)
    for i, image, references in zip(whole.ids, whole.images, whole.references, strict=True):
        assert torch.equal(joined[i][0], image) and joined[i][1] == references
    with pytest.raises(UserError, match="a batch of 12 .* 5 processes"):
        next(source.train(0, seed=3, rank=0, world=5))


def test_fixed_splits_do_not_depend_on_the_batches():
    def pictures(batch_size):
        batches = Scenes(batch_size=batch_size, test_images=20, epoch_images=64).split("test")
        return {i: image for batch in batches for i, image in zip(batch.ids, batch.images, strict=True)}

    one, other = pictures(20), pictures(6)
    assert list(sorted(one)) == list(sorted(other)) == list(range(20))
    assert all(torch.equal(one[i], other[i]) for i in one)
    with pytest.raises(UserError, match="unknown split 'dev'.*train, val, test"):
        next(Scenes().split("dev"))


def test_processes_that_evaluate_draw_batches_of_their_own():
    drawn = []

    class Noting(Scenes):
        def pixels(self, samples):
            drawn.append(samples)
            return super().pixels(samples)

    source = Noting(batch_size=4, test_images=18, epoch_images=64)
    whole = list(source.split("test"))
    for rank in range(2):
        drawn.clear()
        part = list(source.split("test", rank=rank, world=2))
        assert len(part) == len(drawn) == (3, 2)[rank]
        for batch, same in zip(part, whole[rank::2], strict=True):
            assert batch.ids == same.ids and batch.references == same.references and batch.boxes == same.boxes
            assert torch.equal(batch.images, same.images) and torch.equal(batch.words, same.words)


def test_words_are_sorted_targets():
    source = Scenes(batch_size=32, epoch_images=32, rows=3)
    batch = next(source.train(0, seed=0))
    lengths = (batch.words != 0).sum(-1)
    assert batch.words.shape[:2] == (32, 3) and batch.words.shape[2] == lengths.max()
    assert (lengths.diff(dim=1) <= 0).all() and (lengths[:, 0].diff() <= 0).all()
    for rows, references in zip(batch.words, batch.references, strict=True):
        targets = sorted([*source.vocabulary.encode(caption), 1] for caption in references[:3])
        assert sorted(row[row != 0].tolist() for row in rows) == targets
    assert not (batch.words == 2).any() and batch.files == (None,) * 32


def test_vocabulary_is_complete_and_travels(tmp_path):
    source = Scenes(val_images=100)
    spoken = {word for batch in source.split("val") for refs in batch.references for c in refs for word in c.split()}
    assert spoken == set(source.vocabulary.words[3:]) and source.content_words <= spoken
    source.export(tmp_path)
    other = Scenes()
    other.vocabulary.words.reverse()  # restoring replaces what was there
    other.restore(tmp_path)
    assert other.vocabulary.words == source.vocabulary.words
    same(next(other.train(0, seed=0)), next(source.train(0, seed=0)))


def test_pixels_are_the_same_on_every_machine():
    """A change of these sums is a change of the data set: results before and after cannot be compared."""
    batch = next(iter(Scenes(test_images=16).split("test")))
    spoken = "\n".join(caption for references in batch.references for caption in references)
    sums = [hashlib.sha256(data).hexdigest()[:16] for data in (batch.images.numpy().tobytes(), spoken.encode())]
    assert sums == ["22d3e9648e50877c", "31b92c7a914fee84"]


@pytest.mark.parametrize(
    "wrong", [{"size": 20}, {"rows": 6}, {"mixture": (0.0, 0.0, 0.0)}, {"epoch_images": 10}, {"test_images": 0}]
)
def test_mistakes_are_named(wrong):
    with pytest.raises(UserError, match=f"scenes: .*{next(iter(wrong))}="):
        Scenes(**wrong)


def test_an_encoder_of_another_size_is_refused():
    class Large(Task):
        resolution = 224

    with pytest.raises(UserError, match="size=56, but the encoder takes 224 pixels"):
        Scenes().prepare(Large())
    Scenes(size=224).prepare(Large())


@pytest.mark.parametrize(
    ("language", "words"), (("chinese", "characters"), ("chinese", "pieces"), ("hebrew", "pieces"))
)
def test_other_languages_say_the_same(language, words, tmp_path):
    options = {"val_images": 40, "size": 40, "batch_size": 20}
    source = Scenes(language=language, words=words, max_words=60, **options)
    english = next(iter(Scenes(**options).split("val")))
    batch = next(iter(source.split("val")))
    known = dict(zip(english.ids, zip(english.references, english.boxes, strict=True), strict=True))
    decoded = source.vocabulary.decode
    for image, boxes, references in zip(batch.ids, batch.boxes, batch.references, strict=True):
        texts, theirs = known[image]
        assert sorted(boxes.values()) == sorted(theirs.values()) and boxes.keys() <= source.content_words
        for text, caption in zip(texts, references, strict=True):
            assert decoded(source.encode(caption)) == caption
            order = [caption.index(name) for name in spoken_of(text, language)]
            assert order == sorted(order)  # objects are named in the same order
    source.export(tmp_path)
    again = Scenes()
    again.restore(tmp_path)
    assert again.vocabulary.encode(references[0]) == source.vocabulary.encode(references[0])
    assert len({*LANGUAGES[language].colours, *LANGUAGES[language].shapes}) == len(COLOURS) + len(SHAPES)


def spoken_of(text: str, language: str) -> list[str]:
    """The names, in a language, of the objects of an English caption, in its order."""
    found = sorted((text.index(name), index) for index, name in enumerate(OBJECTS) if name in text)
    return [object_name(language, index) for _, index in found]

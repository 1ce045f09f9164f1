"""Annotation files of every form, and the batches made of them."""

import errno
import json
import logging
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image
from torch import nn

from tests import pretend
from vision_attn.contracts import Encoder, Fit
from vision_attn.data.images.crops import cropped
from vision_attn.data.images.squares import read_image
from vision_attn.data.photographs import mirrored_views
from vision_attn.data.photographs.annotations import read_annotations
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.photographs.pixels import HeldPixels
from vision_attn.data.vocabulary import END, PAD, SPECIALS, Vocabulary
from vision_attn.system.errors import UserError
from vision_attn.task import Task


class Pool(Encoder):
    """Averages 2x2 pixels: 8x8 images to 16 annotation vectors of 3."""

    resolution, grid, region_size = 8, (4, 4), 3

    def __init__(self, trainable: bool = False) -> None:
        super().__init__()
        self.trainable = trainable

    def identity(self) -> dict[str, str | int]:
        return {"backbone": "none", "node": "pool", "resolution": 8, "checksum": "0"}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.avg_pool2d(images.float(), 2).flatten(2).transpose(1, 2)


class Looking(Task):
    def __init__(self, trainable: bool = False) -> None:
        super().__init__()
        self.encoder = Pool(trainable)


SPLIT_OF = ["train"] * 12 + ["val"] * 3 + ["test"] * 4
WORDS = ["a", "dog", "runs", "in", "the", "green", "park", "with", "one", "small", "red", "ball"]


def coco(count: int = 19, split: bool = True) -> dict:
    """Image i has 1 + i % 4 captions; caption j of it says i + j + 1 words."""
    images = [
        {"id": 100 + i, "file_name": f"{i:02}.png"} | ({"split": SPLIT_OF[i]} if split else {}) for i in range(count)
    ]
    notes = [
        {"id": 10 * i + j, "image_id": 100 + i, "caption": " ".join((WORDS * 3)[: i + j + 1]) + f" {i}-{j} ."}
        for i in range(count)
        for j in range(1 + i % 4)
    ]
    return {"images": images, "annotations": notes}


def karpathy() -> dict:
    record = coco()
    said = {image["id"]: [] for image in record["images"]}
    for note in record["annotations"]:
        said[note["image_id"]].append({"raw": note["caption"]})
    return {
        "images": [
            {
                "imgid": number, "cocoid": image["id"], "filepath": "images", "filename": image["file_name"],
                "split": "restval" if number == 0 else image["split"], "sentences": said[image["id"]],
            }
            for number, image in enumerate(record["images"])
        ]
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A folder of photographs, of which number i is of shade i, and their annotation file."""
    (tmp_path / "images").mkdir()
    for number in range(19):
        pixels = np.full((8, 8, 3), number, dtype=np.uint8)
        pixels[:, 4:] = 200
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number:02}.png")
    write(tmp_path / "captions.json", coco())
    return tmp_path


def write(path, record):
    path.write_text(json.dumps(record), encoding="utf-8")
    return str(path)


def source(folder, *, prepare: bool = True, trainable: bool = False, **options) -> Captions:
    options = {
        "images": str(folder / "images"), "annotations": str(folder / "captions.json"), "min_count": 1,
        "batch_size": 4, "evaluation_batch_size": 3, "cache": str(folder / "cache"), **options,
    }  # fmt: skip
    captions = Captions(**options)
    if prepare:
        captions.prepare(Looking(trainable))
    return captions


def names(captions: Captions) -> dict[str, list[str]]:
    return {split: [photograph.name for photograph in members] for split, members in captions.photographs.items()}


def same_photographs(one: dict, other: dict) -> bool:
    return {split: list(members) for split, members in one.items()} == {
        split: list(members) for split, members in other.items()
    }


# Forms of annotation files.


def test_all_forms_read_the_same(folder):
    expected = source(folder, prepare=False).photographs
    assert [len(members) for members in expected.values()] == [12, 3, 4]
    assert expected["val"][0].id == 112 and len(expected["val"][1].captions) == 2

    bare = write(folder / "bare.json", coco(split=False))
    by_name, by_id, by_stem, each = {}, {}, {}, {}
    for number, split in enumerate(SPLIT_OF):
        by_name.setdefault(split, []).append(f"{number:02}.png")
        by_stem.setdefault(split, []).append(f"{number:02}")
        by_id.setdefault(split, []).append(100 + number)
    for members in (by_name, by_id, by_stem, {**by_id, "unused": []}):
        splits = write(folder / "splits.json", members)
        read = source(folder, prepare=False, annotations=bare, split_files=splits).photographs
        assert same_photographs(read, expected)

    for split in ("train", "val", "test"):
        record = coco()
        record["images"] = [image for image in record["images"] if image["split"] == split]
        each[split] = write(folder / f"{split}.json", record)
    assert same_photographs(source(folder, prepare=False, annotations=each).photographs, expected)

    karpathys = write(folder / "karpathy.json", karpathy())
    theirs = source(folder, annotations=karpathys, images=str(folder))
    assert [[p.id for p in members] for members in theirs.photographs.values()] == [
        [p.id for p in members] for members in expected.values()
    ]
    assert next(iter(theirs.split("val"))).files == next(iter(source(folder).split("val"))).files


def test_a_folder_for_each_split(folder):
    (folder / "other").mkdir()
    for number in range(12, 19):
        (folder / "images" / f"{number:02}.png").rename(folder / "other" / f"{number:02}.png")
    other = str(folder / "other")
    captions = source(folder, images={"train": str(folder / "images"), "val": other, "test": other})
    assert {file.parent.name for batch in captions.split("val") for file in batch.files} == {"other"}
    assert [batch.images[0, 0, 0].item() for batch in captions.split("val")] == [14]
    with pytest.raises(UserError, match="no folder of images is given for split val"):
        source(folder, images={"train": str(folder / "images")})


def test_line_breaks_inside_captions_become_spaces(folder):
    record = coco()
    record["annotations"][0]["caption"] = "a\r\ndog\u2028runs\x0bin\x0c\tred "
    write(folder / "captions.json", record)
    assert source(folder, prepare=False).photographs["train"][0].captions == ["a dog runs in red"]


def broken(change):
    record = coco()
    change(record)
    return record


MISTAKES = {
    "is not JSON": "{",
    "has no captions": [],
    "expected COCO's format": {"images": [{"id": 1}]},
    "expected COCO's format, .*; annotation 0 lacks 'caption'": broken(
        lambda record: record["annotations"][0].pop("caption")
    ),
    "image 3 lacks 'file_name'": broken(lambda record: record["images"][3].pop("file_name")),
    "caption of annotation 0 must be a string, not 7": broken(
        lambda record: record["annotations"][0].update(caption=7)
    ),
    "image id 101 occurs twice": broken(lambda record: record["images"][0].update(id=101)),
    'unknown split "tset"': broken(lambda record: record["images"][0].update(split="tset")),
    "no image has a `split` field": coco(split=False),
    "no image of split train has a caption, such as 00.png": {**coco(), "annotations": []},
}


@pytest.mark.parametrize("complaint", MISTAKES)
def test_mistakes_in_the_file_are_named(folder, complaint):
    mistake = MISTAKES[complaint]
    (folder / "captions.json").write_text(mistake if isinstance(mistake, str) else json.dumps(mistake))
    with pytest.raises(UserError, match=f"captions.json.*{complaint}") as raised:
        source(folder)
    assert "\n" not in str(raised.value)


def test_other_mistakes_are_named(folder):
    with pytest.raises(UserError, match="nothing.json was not found"):
        source(folder, annotations="nothing.json")
    with pytest.raises(UserError, match="nowhere was not found"):
        source(folder, images="nowhere")
    with pytest.raises(UserError, match="unknown split 'dev'"):
        source(folder, annotations={"dev": str(folder / "captions.json")})
    with pytest.raises(UserError, match="unknown split 'dev'"):
        source(folder).split("dev")
    with pytest.raises(UserError, match="rows is 0, but must be from 1 to 1,000"):
        source(folder, rows=0)
    with pytest.raises(UserError, match=r"call prepare\(task\) before"):
        source(folder, prepare=False).split("val")
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match="none of the photographs exist, such as .*00.png"):
        source(folder, images=str(folder / "empty"))
    for splits, complaint in (
        ([1], "expected JSON of the form"),
        ({"train": ["x"]}, "none of its entries"),
        ({"train": [100], "val": [100]}, "100 is in two splits, train and val"),
        ({"tset": [100]}, 'unknown split "tset"'),
    ):
        with pytest.raises(UserError, match=f"splits.json.*{complaint}"):
            source(folder, split_files=write(folder / "splits.json", splits))
    record = coco()
    record["images"][15]["file_name"] = "00.png"
    write(folder / "captions.json", record)
    with pytest.raises(UserError, match="00.png is in two splits, train and test"):
        source(folder)


def test_an_empty_split_is_named(folder):
    captions = source(folder, split_files=write(folder / "splits.json", {"test": [100, 101]}), vocabulary=None)
    captions.restore(exported(folder))
    assert len(captions.split("test")) == 1  # judged without a training set
    for empty in (lambda: captions.split("val"), lambda: captions.train(0, seed=0), lambda: len(captions)):
        with pytest.raises(UserError, match="captions.json: split (val|train) has no images"):
            empty()


def exported(folder):
    source(folder, prepare=False).export(folder)
    return folder


def test_what_cannot_be_used_is_counted_and_left_out(folder, caplog):
    record = coco()
    record["annotations"] = [note for note in record["annotations"] if note["image_id"] != 101]
    record["annotations"].append({"id": 999, "image_id": 555, "caption": "of nothing"})
    write(folder / "captions.json", record)
    (folder / "images" / "02.png").unlink()
    (folder / "images" / "03.png").write_bytes((folder / "images" / "03.png").read_bytes()[:60])
    for options in ({}, {"cache": None}):
        caplog.clear()
        captions = source(folder, **options)
        batches = list(captions.split("train"))
        seen = {image for batch in batches for image in batch.ids}
        assert seen == set(range(100, 112)) - {101, 102, 103}
        for batch in batches:
            assert len(batch.images) == len(batch.words) == len(batch.ids) == len(batch.references)
        for said in (
            "images of split train that have no caption and are left out: 1, such as 01.png",
            "captions of images that the file does not list, which are left out: 1",
            "photographs that do not exist and are left out: 1, such as",
            "03.png: not a readable image",
            "03.png" if options else "1 of 17 photographs cannot be read",
        ):
            assert said in caplog.text
    for number in range(12, 15):
        (folder / "images" / f"{number}.png").write_text("")
    with pytest.raises(UserError, match="no photograph of split val can be read"):
        source(folder).split("val")
    with pytest.raises(UserError, match="no photograph of a whole batch can be read, such as .*1[234].png"):
        list(source(folder, cache=None).split("val"))


def test_images_without_a_split_are_counted(folder, caplog):
    record = coco()
    del record["images"][3]["split"]
    record["images"][4]["split"] = "unused"
    write(folder / "captions.json", record)
    source(folder)
    assert "images that have no `split` and are left out: 1, such as 03.png" in caplog.text


def test_a_cache_may_complain_of_strangers_and_in_any_words(folder, caplog):
    source(folder)
    (index,) = (folder / "cache").glob("*/index.json")
    content = json.loads(index.read_text())
    content["shards"][0]["unreadable"] = {"nobody.png": "", "03.png": "bad\x1b[2J\nforged.png: bad"}
    index.write_text(json.dumps(content))
    captions = source(folder)
    assert sum(len(batch.ids) for batch in captions.split("train")) == 11
    assert r"03.png: bad\x1b[2J\nforged.png: bad" in caplog.text and "1 of 19 photographs cannot" in caplog.text


# Batches.


def test_batches_hold_what_the_contract_says(folder):
    captions = source(folder, rows=3)
    batches = list(captions.train(0, seed=1))
    assert len(batches) == len(captions) == 3
    for batch in batches:
        assert batch.images.shape == (4, 16, 3) and batch.images.dtype == torch.float16
        assert batch.words.shape[:2] == (4, 3) and batch.boxes == (None,) * 4
        lengths = (batch.words != PAD).sum(2)
        assert (lengths.diff(dim=1) <= 0).all() and (lengths <= torch.tensor(batch.lengths)).all()
        assert batch.words.shape[2] == max(map(max, batch.lengths)) and (batch.words == END).sum() == 12
        for image, references, file, rows, vectors in zip(
            batch.ids, batch.references, batch.files, batch.words.tolist(), batch.images, strict=True
        ):
            assert file.name == f"{image - 100:02}.png" and vectors[0, 0] == image - 100
            spoken = [captions.vocabulary.decode(row) for row in rows]
            own = [reference.removesuffix(" .") for reference in references]
            assert len(own) == 1 + (image - 100) % 4 and set(spoken) <= set(own)
            assert len(set(spoken)) == min(3, len(own))  # none again before all have come


def test_captions_take_turns_over_epochs(folder):
    captions = source(folder, rows=1, batch_size=12)
    said = set()
    for epoch in range(40):
        (batch,) = captions.train(epoch, seed=0)
        said |= {captions.vocabulary.decode(row[0]) for row in batch.words.tolist()}
    assert len(said) == 12 // 4 * (1 + 2 + 3 + 4)


def same(one, other) -> bool:
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {}, {"cache": None}, {"residency": "memory"}, {"residency": "device"}, {"flips": True},
        {"trainable": True, "flips": True, "crops": 0.5},
    ],
)  # fmt: skip
def test_order_depends_on_seed_and_epoch_alone(folder, options):
    captions = source(folder, **options)
    whole = list(captions.train(3, seed=5))
    next(captions.train(9, seed=9))  # a reader left early disturbs nothing
    again = list(source(folder, **options).train(3, seed=5))
    assert all(same(one, other) for one, other in zip(whole, again, strict=True))
    for skip in (1, 2, 3):
        rest = list(captions.train(3, seed=5, skip=skip))
        assert len(rest) == 3 - skip
        assert all(same(one, other) for one, other in zip(whole[skip:], rest, strict=True))
    orders = {
        tuple(image for batch in captions.train(epoch, seed=seed) for image in batch.ids)
        for epoch, seed in ((3, 5), (4, 5), (3, 6))
    }
    assert len(orders) == 3


@pytest.mark.parametrize("options", [{}, {"trainable": True, "flips": True, "crops": 0.5}])
def test_parts_of_all_processes_are_the_whole_batch(folder, options):
    captions = source(folder, **options)
    whole = list(captions.train(1, seed=0))
    parts = [list(captions.train(1, seed=0, rank=rank, world=2)) for rank in (0, 1)]
    for number, batch in enumerate(whole):
        mine, other = parts[0][number], parts[1][number]
        assert len(mine.ids) == len(other.ids) == 2
        assert sorted(mine.ids + other.ids) == sorted(batch.ids)
        for part in (mine, other):
            for number, (image, words) in enumerate(zip(part.ids, part.words, strict=True)):
                expected = batch.words[batch.ids.index(image)]
                if options:
                    assert torch.equal(part.crops[number], batch.crops[batch.ids.index(image)])
                assert torch.equal(words, expected[:, : words.shape[1]]) and not expected[:, words.shape[1] :].any()
        assert (mine.lengths, other.lengths) == (batch.lengths[::2], batch.lengths[1::2])
    with pytest.raises(UserError, match="a batch of 4 cannot be split evenly among 3"):
        captions.train(0, seed=0, world=3)


def test_a_set_smaller_than_a_batch_is_one_batch(folder):
    captions = source(folder, batch_size=64)
    (batch,) = captions.train(0, seed=0)
    assert len(batch.ids) == 12 and len(captions) == 1
    dropped = source(folder, batch_size=5)
    assert [len(batch.ids) for batch in dropped.train(0, seed=0)] == [5, 5] and len(dropped) == 2


def test_evaluation_sees_each_image_once_in_order(folder):
    captions = source(folder)
    for split, count in (("train", 12), ("val", 3), ("test", 4)):
        batches = captions.split(split)
        seen = [image for batch in batches for image in batch.ids]
        assert sorted(seen) == sorted(photograph.id for photograph in captions.photographs[split])
        assert len(seen) == count and len(batches) == -(-count // 3)
        assert seen == [image for batch in batches for image in batch.ids]  # and may be read again
    for rank in (0, 1):
        part = captions.split("test", rank=rank, world=2)
        whole = list(captions.split("test"))[rank::2]
        assert [batch.ids for batch in part] == [batch.ids for batch in whole] and len(part) == 1


def test_the_summary_counts_photographs_and_words(folder):
    captions = source(folder)
    words = len(captions.vocabulary)
    assert captions.summary == f"photographs: 12 for training, 3 for validation, 4 for testing; {words} words"


@pytest.mark.parametrize("options", [{"cache": None}, {"trainable": True}])
def test_without_a_cache_batches_carry_photographs(folder, options):
    captions = source(folder, **options)
    for batch in captions.train(0, seed=0):
        assert batch.images.shape == (4, 3, 8, 8) and batch.images.dtype == torch.uint8
        for image, file in zip(batch.images, batch.files, strict=True):
            assert torch.equal(image, read_image(file, 8))
    assert not (folder / "cache").exists()


def seen(batch) -> torch.Tensor:
    """What an encoder sees of a batch, or saw of a cached one."""
    return batch.images if batch.crops is None else cropped(batch.images, batch.crops)


def test_crops_are_of_training_photographs_alone_and_differ_in_each_epoch(folder):
    """Held on the device or read from files, a batch is the same, and so is its order without crops."""
    plain, options = source(folder, trainable=True), {"crops": 0.5, "trainable": True}
    captions, found = source(folder, **options), []
    with pytest.MonkeyPatch.context() as patch:
        pretend.held_photographs(patch, held)
        kept = source(folder, **options)
    for epoch in range(2):
        batches = [list(each.train(epoch, seed=0)) for each in (captions, kept, plain)]
        for one, other, whole in zip(*batches, strict=True):
            assert same(one, other) and same(one._replace(crops=None), whole)
            found.append(one.crops)
    found = torch.cat(found)
    assert len(found.unique(dim=0)) == len(found) == 24 and (found[:, 2] - found[:, 0]).min() >= 1
    assert all(batch.crops is None for each in (captions, kept) for batch in each.split("train"))


def held(views, resolution: int, device: torch.device, *, repeated: bool, fit: Fit, frames: int) -> HeldPixels:
    """Photographs held as on a GPU."""
    return HeldPixels(views, resolution, device, fit=fit, room=5 * 3 * 8 * 8)


def test_cached_vectors_are_not_cropped(folder):
    with pytest.raises(UserError, match=r"data\.crops and data\.cache exclude each other.*--data\.cache=null"):
        source(folder, crops=0.8)
    evaluated = source(folder, crops=0.8, prepare=False)
    evaluated.only("test")
    evaluated.prepare(Looking())  # which crops nothing
    with pytest.raises(UserError, match="crops is 0.0, but must be from"):
        source(folder, crops=0.0, cache=None)
    assert source(folder, crops=0.8, cache=None).train(0, seed=0).__next__().crops is not None


@pytest.mark.parametrize("options", [{}, {"cache": None}])
def test_flips_mirror_half_of_the_training_images_only(folder, options):
    captions = source(folder, flips=True, batch_size=12, **options)

    def left(batch) -> list[float]:
        images = seen(batch).float()
        return (images[:, 0, 0] if images.dim() == 3 else images[:, 0, 0, 0]).tolist()

    mirrored = sum(
        shade == 200 for epoch in range(20) for batch in captions.train(epoch, seed=0) for shade in left(batch)
    )
    assert 80 < mirrored < 160  # of 240
    assert all(shade < 20 for batch in captions.split("train") for shade in left(batch))


@pytest.mark.parametrize("options", [{}, {"cache": None}])
def test_each_photograph_is_mirrored_into_itself(folder, options, monkeypatch):
    """Also where the files of the splits are mixed, one cannot be read, and views are made in blocks of three."""
    monkeypatch.setattr(mirrored_views, "BLOCK", 3)  # of 4,096 views
    rng, coco = np.random.default_rng(0), json.loads((folder / "captions.json").read_text())
    for path in sorted((folder / "images").iterdir()):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    splits = [image["split"] for image in coco["images"]]
    for image, place in zip(coco["images"], rng.permutation(len(splits)), strict=True):
        image["split"] = splits[place]
    write(folder / "captions.json", coco)
    broken = next(image for image in coco["images"] if image["split"] == "train")
    (folder / "images" / broken["file_name"]).write_text("broken")

    files = {image["id"]: folder / "images" / image["file_name"] for image in coco["images"]}
    found = {"straight": 0, "mirrored": 0}
    for epoch in range(3):
        for batch in source(folder, flips=True, **options).train(epoch, seed=0):
            for image, key in zip(seen(batch), batch.ids, strict=True):
                pixels = read_image(files[key], 8)
                shown = {"straight": pixels, "mirrored": pixels.flip(-1)}
                if image.dim() == 2:
                    shown = {name: Pool()(each[None])[0] for name, each in shown.items()}
                same = [name for name, each in shown.items() if torch.allclose(image.float(), each.float(), atol=0.2)]
                assert len(same) == 1, key
                found[same[0]] += 1
    assert min(found.values()) > 8 and sum(found.values()) >= 3 * 8


@pytest.mark.parametrize("kind", ["number, not a text", "text, not a number"])
def test_ids_that_differ_in_kind_are_named(folder, kind):
    record = coco()
    part, key = (record["annotations"], "image_id") if kind.startswith("number") else (record["images"], "id")
    for item in part:
        item[key] = str(item[key])
    write(folder / "captions.json", record)
    with pytest.raises(UserError, match=f"but the id of that image is a {kind}"):
        source(folder)


def test_an_evaluation_computes_the_vectors_of_its_split_alone(folder):
    """Unless there is a complete cache of all: then that one is used."""

    def computed(**options) -> list[int]:
        evaluated = source(folder, prepare=False, **options)
        evaluated.only("test")
        evaluated.prepare(Looking())
        assert sum(len(batch.ids) for batch in evaluated.split("test")) == 4
        return sorted(json.loads(index.read_text())["shape"][0] for index in folder.glob("cache/*/index.json"))

    assert computed(flips=True) == [4]
    source(folder)
    assert computed(flips=True) == [4, 19]
    for cache in (folder / "cache").iterdir():
        if json.loads((cache / "index.json").read_text())["shape"][0] == 4:
            shutil.rmtree(cache)
    assert computed() == [19]
    next(folder.glob("cache/*/00000.npy")).unlink()
    (folder / "cache" / "interrupted").mkdir()
    assert computed() == [4, 19]


def test_flips_compute_the_mirrored_training_photographs_alone(folder):
    """They use the cache of the others, made by a run without flips."""
    before = source(folder)
    (straight,) = (folder / "cache").iterdir()
    written = (straight / "00000.npy").stat().st_mtime_ns
    source(folder, flips=True)
    assert (straight / "00000.npy").stat().st_mtime_ns == written
    (mirrored,) = set((folder / "cache").iterdir()) - {straight}
    assert (
        len(np.load(mirrored / "00000.npy")) == len(before.photographs["train"]) < len(np.load(straight / "00000.npy"))
    )


def test_long_captions_are_cut(folder):
    captions = source(folder, max_length=5)
    widths = [batch.words.shape[2] for batch in captions.train(0, seed=0)]
    assert max(widths) == 6
    ended = 0
    for batch in captions.train(0, seed=0):
        lengths, ends = (batch.words != PAD).sum(dim=-1), batch.words == END
        cut = ~ends.any(dim=-1)  # at five words, without END
        assert cut.any() and (lengths[cut] == 5).all()
        assert torch.equal(ends.any(dim=1).sum(dim=-1) > 0, (~cut).any(dim=1))
        ended += int(ends.sum())
    assert ended


def test_an_error_in_the_reading_thread_reaches_the_caller(folder):
    captions = source(folder, cache=None, batch_size=1)
    batches = iter(captions.train(0, seed=0))
    first = next(batches)
    for file in (folder / "images").iterdir():
        if file not in first.files:
            file.write_text("")
    with pytest.raises(UserError, match="no photograph of a whole batch can be read, such as .*png"):
        list(batches)


def test_what_cannot_be_read_does_not_depend_on_the_batches_of_an_evaluation(folder):
    (folder / "images" / "18.png").write_text("")
    for size in (1, 3, 4):  # alone in its batch, and among others
        captions = source(folder, cache=None, evaluation_batch_size=size)
        assert [image for batch in captions.split("test") for image in batch.ids].count(118) == 0
        assert sum(len(batch.ids) for batch in captions.split("test")) == 3


# The vocabulary.


def test_vocabulary_is_counted_read_or_restored(folder):
    counted = source(folder, prepare=False, min_count=3)
    assert counted.vocabulary.words[3:5] == ["a", "dog"] and "0-0" not in counted.vocabulary.words
    assert "16-0" not in source(folder, prepare=False).vocabulary.words  # of a test image
    assert len(source(folder, prepare=False, max_words=4).vocabulary) == 7
    counted.export(folder / "run")
    read = source(folder, prepare=False, vocabulary=str(folder / "run" / "vocabulary.json"))
    restored = source(folder, prepare=False, annotations="not needed")
    restored.restore(folder / "run")
    assert read.vocabulary.words == restored.vocabulary.words == counted.vocabulary.words


def test_preparing_twice_works_once(folder, caplog):
    caplog.set_level(logging.DEBUG)
    captions, task = source(folder, prepare=False), Looking()
    captions.prepare(task)
    first = captions._pictures
    captions.prepare(task)
    assert captions._pictures is first


# Real data.


def test_flickr8k(data_folder, tmp_path):
    options = {"images": "flickr8k/images", "annotations": "flickr8k/captions.json", "cache": None}
    by_field = Captions(**options)
    assert {split: len(members) for split, members in by_field.photographs.items()} == {
        "train": 6000, "val": 1000, "test": 1000,
    }  # fmt: skip
    assert all(len(photograph.captions) == 5 for members in by_field.photographs.values() for photograph in members)
    by_file = Captions(**options, split_files="flickr8k/split.json")
    assert {split: set(members) for split, members in names(by_file).items()} == {
        split: set(members) for split, members in names(by_field).items()
    }
    assert len(by_field.vocabulary) == 2539


def test_coco_val2017(data_folder):
    captions = Captions(images="coco", annotations={"val": "coco/captions_val2017.json"})
    members = captions.photographs["val"]
    assert len(members) == 5000 and sum(len(photograph.captions) for photograph in members) == 25014
    assert all(type(photograph.id) is int for photograph in members)
    with pytest.raises(UserError, match="split train has no images"):
        _ = captions.vocabulary


# Captions of large files, kept in the cache.


def kept(folder, monkeypatch, **options) -> Captions:
    """A source that treats every file as a large one."""
    pretend.large_captions(monkeypatch)
    return source(folder, **options)


def annotations_are_read_by(patch: pytest.MonkeyPatch, reader: Callable | None) -> None:
    """In the middle of reading a test changes the file. None: a test fails if they are read, which no result shows."""
    patch.setattr("vision_attn.data.photographs.annotations.read_annotations", reader)


def pairs(captions: Captions) -> list:
    batches = [*captions.train(0, seed=0), *captions.train(1, seed=0), *captions.split("val"), *captions.split("test")]
    return [
        (batch.ids, batch.references, batch.files, batch.words.tolist(), batch.images.tolist()) for batch in batches
    ]


def in_cache(captions: Captions) -> bool:
    return captions.photographs["train"].store is not None


def test_captions_in_the_cache_are_the_same(folder, monkeypatch):
    """Also with a photograph that is missing, one that cannot be read, names beyond UTF-8, and flips."""
    record = coco()
    (folder / "images" / "03.png").unlink()
    (folder / "images" / "04.png").write_text("")
    (folder / "images" / "06.png").rename(folder / "images" / "\udcff.png")
    record["images"][5]["file_name"], record["images"][6]["file_name"] = "half\ud800.png", "\udcff.png"
    write(folder / "captions.json", record)
    expected = pairs(source(folder, flips=True))
    first = kept(folder, monkeypatch, flips=True)
    assert in_cache(first) and pairs(first) == expected

    class Encoding(Vocabulary):
        encode = None  # not called again

    annotations_are_read_by(monkeypatch, None)
    again = source(folder, prepare=False, flips=True)
    again.vocabulary = Encoding(first.vocabulary.words[len(SPECIALS) :], first.vocabulary.splitter)
    again.prepare(Looking())
    assert pairs(again) == expected
    assert isinstance(again.photographs["train"].captions.values.base, np.memmap)


def test_captions_of_large_files_are_in_the_cache(folder):
    text = (folder / "captions.json").read_text()
    for more, large in ((0, False), (2**24, True)):
        (folder / "captions.json").write_text(text + " " * more)
        assert in_cache(source(folder)) == large
        assert not in_cache(source(folder, cache=None))


def test_other_captions_are_kept_apart(folder, monkeypatch):
    for options in ({}, {"min_count": 3}, {"max_length": 2}):
        expected = pairs(source(folder, cache=None, **options))
        captions = kept(folder, monkeypatch, prepare=False, **options)
        captions.prepare(Looking(trainable=True))
        assert pairs(captions) == expected
    record = coco()
    record["annotations"][0]["caption"] = "something else"
    other = write(folder / "other.json", record)
    assert kept(folder, monkeypatch, annotations=other).photographs["train"][0].captions[0] == "something else"
    splits = {"train": [100, 101], "val": [102]}
    by_file = kept(folder, monkeypatch, split_files=write(folder / "splits.json", splits))
    assert names(by_file) == {"train": ["00.png", "01.png"], "val": ["02.png"], "test": []}
    whole = coco(split=False)
    for split in ("train", "val"):
        each = {split: write(folder / "whole.json", whole)}
        captions = kept(folder, monkeypatch, prepare=False, annotations=each, split_files="ignored.json")
        assert {name for name, members in names(captions).items() if members} == {split}


def test_captions_of_other_files_in_the_cache_are_named(folder, monkeypatch, capsys):
    first = kept(folder, monkeypatch).photographs["train"].store[0]
    (folder / "captions.json").write_text((folder / "captions.json").read_text() + " ")
    assert "annotation files" not in capsys.readouterr().out
    second = kept(folder, monkeypatch).photographs["train"].store[0]
    said = capsys.readouterr().out
    assert re.search(rf"cache also holds captions of other .*: {first.name} \(\d\.\d kB\)\n", said)
    assert second.name not in said
    kept(folder, monkeypatch)
    assert not capsys.readouterr().out  # only when captions are written


@pytest.mark.parametrize("part", ["train-captions.values", "train-names.starts", "val-starts", "test-ids.values"])
@pytest.mark.parametrize("damage", ["cut", "gone", "other", "kind", "header"])
def test_damaged_captions_in_the_cache_are_read_again(folder, monkeypatch, part, damage, caplog):
    first = kept(folder, monkeypatch)
    expected, path = pairs(first), first.photographs["train"].store[0] / f"{part}.npy"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    elif damage == "gone":
        path.unlink()
    elif damage == "other":
        np.save(path, np.arange(2))
    elif damage == "kind":
        np.save(path, np.load(path).astype(np.float64))
    else:
        path.write_bytes(path.read_bytes().replace(b"}", b" ", 1))
    assert pairs(kept(folder, monkeypatch)) == expected
    assert "damaged; writing the captions again" in caplog.text
    words = next(path.parent.glob("train-targets-*.starts.npy"))
    words.write_bytes(b"")
    assert pairs(kept(folder, monkeypatch)) == expected


def fill_the_disk(patch: pytest.MonkeyPatch) -> None:
    """Nothing more can be written into the cache of captions."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    patch.setattr("numpy.lib.format.write_array_header_1_0", full)


def test_captions_stay_in_memory_if_the_cache_cannot_be_written(folder, monkeypatch, caplog):
    expected = pairs(source(folder, cache=None))
    (folder / "file").write_text("not a folder")
    for cache in ("file", "cache"):
        if cache == "cache":
            fill_the_disk(monkeypatch)
        captions = kept(folder, monkeypatch, prepare=False, cache=str(folder / cache))
        captions.prepare(Looking(trainable=True))
        assert pairs(captions) == expected and not in_cache(captions)
        assert "each process keeps captions in memory" in caplog.text
        caplog.clear()
    assert not list((folder / "cache").glob("captions-*"))


def test_word_ids_stay_in_memory_if_they_cannot_be_written(folder, monkeypatch, caplog):
    expected = pairs(source(folder, cache=None))
    captions = kept(folder, monkeypatch, prepare=False)
    captions.prepare(Looking(trainable=True))
    assert in_cache(captions)
    fill_the_disk(monkeypatch)
    assert pairs(captions) == expected and "each process keeps word ids in memory" in caplog.text


def test_captions_that_cannot_be_opened_now_are_not_removed(folder, monkeypatch, caplog):
    store = kept(folder, monkeypatch).photographs["train"].store[0]
    before = sorted(path.stat().st_mtime_ns for path in store.iterdir())

    def too_many(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(np, "load", too_many)
        assert not in_cache(source(folder, prepare=False))
    assert sorted(path.stat().st_mtime_ns for path in store.iterdir()) == before
    assert "damaged" not in caplog.text and in_cache(source(folder, prepare=False))


def test_a_cache_that_may_only_be_read_serves(folder, monkeypatch, caplog):
    expected = pairs(kept(folder, monkeypatch))

    def refused(*_: object, **__: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(FileLock, "acquire", refused)
    again = source(folder)
    assert in_cache(again) and pairs(again) == expected
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_one_of_several_reads_the_captions(folder, monkeypatch, caplog):
    store = kept(folder, monkeypatch, prepare=False).photographs["train"].store[0]
    aside = store.rename(store.with_name("aside"))
    annotations_are_read_by(monkeypatch, None)  # the other one reads
    with ThreadPoolExecutor(1) as pool:
        with FileLock(store.with_name(f".{store.name}.lock")):  # of the other one
            waits = pool.submit(lambda: in_cache(source(folder, prepare=False)))
            while "another process prepares the captions; waiting for it" not in caplog.text:
                assert not waits.done()
                time.sleep(0.01)
            aside.rename(store)
        assert waits.result()


def test_a_file_that_changes_while_it_is_read_is_not_stored(folder, monkeypatch):
    def changes(path: Path, **options: object):
        found = read_annotations(path, **options)
        path.write_text(path.read_text() + " ")
        return found

    annotations_are_read_by(monkeypatch, changes)
    with pytest.raises(UserError, match="captions.json changed while it was read"):
        _ = kept(folder, monkeypatch, prepare=False).photographs
    assert not list((folder / "cache").glob("captions-*"))


def test_the_identity_of_a_split_is_of_what_metrics_depend_on(folder):
    """Which are its own photographs and captions, and the words; not how training forms batches."""
    before = source(folder).identity("val")
    assert before == source(folder, batch_size=3, rows=1, crops=1.0).identity("val")
    assert before != source(folder, max_length=3).identity("val")
    assert before != source(folder).identity("test")
    record = coco()
    shown = next(image["id"] for image in record["images"] if image["split"] == "val")
    next(one for one in record["annotations"] if one["image_id"] == shown)["caption"] += " again"
    write(folder / "captions.json", record)
    assert source(folder).identity("val") != before

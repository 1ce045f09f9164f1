"""Several data sets of photographs in one run: shares, turns, caches, copies, and metrics of each."""

import csv
import io
import json
import os
import shutil
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file

from tests.data.test_captions import Looking, Pool, same
from tests.engine.test_start_from import MODELS, train
from tests.test_contracts import SmallestEncoder
from vision_attn.commands import main
from vision_attn.configuration.config import read
from vision_attn.contracts import PAD
from vision_attn.data.grouping import SHAPES
from vision_attn.data.images.open import Encoded
from vision_attn.data.photographs import copies
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.photographs.copies import alike, different_bits, first_copies, mark
from vision_attn.data.photographs.mirrored_views import Views
from vision_attn.data.photographs.pixels import View
from vision_attn.data.photographs.shares import EpochPlaces, mean_places
from vision_attn.data.photographs.sources import PhotographSet
from vision_attn.system.errors import UserError
from vision_attn.tasks.caption import Captioning

SOME = ["a red dog", "the cat sits here", "a small bird", "two men ride on a long road", "one tree", "the sea"]
REAL = Path(__file__).parents[2] / "docs" / "photographs"


def photograph(path: Path, seed: int) -> None:
    """A smooth one, unlike any other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    Image.fromarray(cells).resize((40, 30), Image.Resampling.BICUBIC).save(path)


def split_of(number: int, train: int) -> str:
    return "train" if number < train else ("val", "test")[(number - train) % 2]


@pytest.fixture
def folder(tmp_path):
    """`ours`, COCO's JSON of 8 photographs for training with two captions each, and `theirs`, a table of 40 with one to
    five; both have 6 more, the same names of files, and the same ids."""
    record = {"images": [], "annotations": []}
    for number in range(14):
        photograph(tmp_path / f"ours/images/{number:02}.png", number)
        record["images"].append({"id": number, "file_name": f"{number:02}.png", "split": split_of(number, 8)})
        record["annotations"] += [
            {"id": 9 * number + k, "image_id": number, "caption": f"{SOME[(number + k) % 4]} of mine"} for k in range(2)
        ]
    (tmp_path / "ours/captions.json").write_text(json.dumps(record))
    with open(tmp_path / "theirs.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["photo", "caption", "split"])
        for number in range(46):
            photograph(tmp_path / f"theirs/{number:02}.png", 1000 + number)
            for k in range(1 + number % 5):
                table.writerow([f"{number:02}.png", f"{SOME[(number + k) % 6]} of theirs", split_of(number, 40)])
    return tmp_path


def sets(folder: Path, **shares: float | None) -> list[PhotographSet]:
    return [
        PhotographSet(
            name="ours", images=str(folder / "ours/images"), annotations=str(folder / "ours/captions.json"),
            share=shares.get("ours"),
        ),
        PhotographSet(
            name="theirs", images=str(folder / "theirs"), annotations=str(folder / "theirs.csv"),
            columns={"image": "photo"}, share=shares.get("theirs"),
        ),
    ]  # fmt: skip


def both(folder: Path, *, prepare: bool = True, trainable: bool = False, only: str = "", **options) -> Captions:
    options = {"sources": sets(folder), "min_count": 1, "batch_size": 4, "evaluation_batch_size": 2, **options}
    captions = Captions(**{"cache": str(folder / "cache"), **options})
    if only:
        captions.only(only)
    if prepare:
        captions.prepare(Looking(trainable))
    return captions


def shown(captions: Captions, epoch: int = 0, seed: int = 0) -> Counter:
    """How often an epoch shows each photograph."""
    return Counter(
        one for batch in captions.train(epoch, seed=seed) for one in zip(batch.sources, batch.files, strict=True)
    )


@pytest.mark.parametrize("trainable", [False, True])
def test_a_source_may_lack_splits(folder, trainable):
    """One's own photographs for training, which another set's captions validate; from files, and from a cache."""
    record = json.loads((folder / "ours/captions.json").read_text())
    record["images"] = [image for image in record["images"] if image["split"] == "train"]
    kept = {image["id"] for image in record["images"]}
    record["annotations"] = [caption for caption in record["annotations"] if caption["image_id"] in kept]
    (folder / "ours/captions.json").write_text(json.dumps(record))
    captions = both(folder, trainable=trainable, flips=True)
    assert captions.summary.startswith("photographs: 48 for training, 3 for validation, 3 for testing; ")
    assert by_source(shown(captions)) == {"ours": 8, "theirs": 40}
    assert {source for batch in captions.split("val") for source in batch.sources} == {"theirs"}


def by_source(counts: Counter) -> Counter:
    found = Counter()
    for (source, _), number in counts.items():
        found[source] += number
    return found


def test_every_photograph_comes_once_with_one_vocabulary(folder):
    captions = both(folder)
    assert {"mine", "theirs", "sea"} <= {*captions.vocabulary.words}
    counts = shown(captions)
    assert len(captions) == 12 and set(counts.values()) == {1} and by_source(counts) == {"ours": 8, "theirs": 40}
    for batch in captions.train(0, seed=0):
        for source, file, references, identity in zip(
            batch.sources, batch.files, batch.references, batch.ids, strict=True
        ):
            assert file.parent.name == {"ours": "images", "theirs": "theirs"}[source]
            assert all(text.endswith({"ours": "mine", "theirs": "theirs"}[source]) for text in references)
            assert int(file.stem) == (identity if source == "ours" else int(Path(identity).stem))
    assert captions.summary.startswith("photographs: 48 for training, 6 for validation, 6 for testing; ")
    assert captions.summary.endswith(" words; an epoch shows 8 of ours, 40 of theirs")
    assert len(list(captions.references())) == 48
    rehearsed = sets(folder)
    rehearsed[1].new_words = False
    words = {*both(folder, prepare=False, sources=rehearsed).vocabulary.words}
    assert "mine" in words and not {"theirs", "sea"} & words


@pytest.mark.parametrize(
    "options",
    [
        {}, {"share": 0.5}, {"share": 0.5, "turns": "captions", "flips": True}, {"turns": "captions", "cache": None},
        {"share": 0.25, "trainable": True, "crops": 0.5, "flips": True, "cache": None},
    ],
)  # fmt: skip
def test_order_depends_on_seed_and_epoch_alone_and_parts_are_the_whole(folder, options):
    share = options.pop("share", None)
    options["sources"] = sets(folder, theirs=share)
    captions = both(folder, **options)
    whole = list(captions.train(3, seed=5))
    assert len(whole) == len(captions)
    again = both(folder, **options)
    assert len(list(again.train(0, seed=9))) == len(whole)
    for skip in (0, 1, len(whole) - 1):
        rest = list(again.train(3, seed=5, skip=skip))
        assert len(rest) == len(whole) - skip
        assert all(same(one, other) for one, other in zip(whole[skip:], rest, strict=True))
    halves = [list(captions.train(3, seed=5, rank=rank, world=2)) for rank in (0, 1)]
    for batch, *parts in zip(whole, *halves, strict=True):
        for rank, part in enumerate(parts):
            assert part.files == batch.files[rank::2] and part.sources == batch.sources[rank::2]
            assert torch.equal(part.images, batch.images[rank::2]) and part.lengths == batch.lengths[rank::2]
    assert [batch.files for batch in whole] != [batch.files for batch in again.train(4, seed=5)]


def test_a_share_is_exact_and_its_photographs_take_turns(folder):
    captions = both(folder, sources=sets(folder, theirs=0.5))
    assert len(captions) == 4 and captions.summary.endswith("an epoch shows 8 of ours, 8 of theirs")
    seen, shapes = Counter(), set()
    for epoch in range(30):
        counts = shown(captions, epoch)
        assert by_source(counts) == {"ours": 8, "theirs": 8} and set(counts.values()) == {1}
        seen += Counter({one: number for one, number in counts.items() if one[0] == "theirs"})
        for batch in captions.train(epoch, seed=0):
            shapes.add(batch.lengths)
            assert ((batch.words != PAD).sum(2) <= torch.tensor(batch.lengths)).all()
    assert len(seen) == 40 and 3 <= min(seen.values()) <= max(seen.values()) <= 9, "6 times each on average"
    assert len(shapes) <= SHAPES
    given = both(folder, sources=sets(folder, ours=0.75, theirs=0.25))  # 48 turns
    counts = shown(given)
    assert by_source(counts) == {"ours": 36, "theirs": 12}
    assert {number for (source, _), number in counts.items() if source == "ours"} == {4, 5}


def test_turns_by_captions(folder):
    captions = both(folder, turns="captions")
    total = Counter()
    for epoch in range(50):
        counts = shown(captions, epoch)
        assert by_source(counts) == {"ours": 6, "theirs": 42}, "16 and 120 captions of 136, in 48 turns"
        total += counts
    theirs = {file.stem: number / 50 for (source, file), number in total.items() if source == "theirs"}
    for number in range(40):
        assert theirs[f"{number:02}"] == pytest.approx(42 / 120 * (1 + number % 5), abs=0.11)


def test_what_is_due_adds_up():
    captions = np.array([1, 2, 3, 4, 5, 5, 5, 5])
    bounds = np.array([0, 5, 8])
    options = {"by_captions": True, "batch_size": 3}
    due = mean_places(captions, bounds, {"a": None, "b": 0.4}, **options)
    assert due[:5].sum() == pytest.approx(4) and due[5:].sum() == pytest.approx(2), "5 / 0.6 turns, in whole batches"
    assert np.allclose(due[:5] / captions[:5], due[0]) and np.allclose(due[5:], 2 / 3)
    assert mean_places(captions, bounds, {"a": None, "b": None}, by_captions=False, batch_size=3) is None
    lengths = np.tile(captions[:, None], (1, 2))
    turns = EpochPlaces(due, bounds, lengths)
    total = np.zeros(8)
    for epoch in range(400):
        members = turns.epoch(epoch, seed=3)
        assert len(members) == 6 and (lengths[members] <= turns.lengths).all()
        total += np.bincount(members, minlength=8)
    assert np.allclose(total / 400, due, atol=0.02)
    with pytest.raises(UserError, match="data.sources: b has a share, but no photograph for training"):
        mean_places(captions, np.array([0, 8, 8]), {"a": None, "b": 0.4}, **options)


def test_the_cache_of_a_set_alone_is_used(folder, monkeypatch):
    encoded = []
    forward = Pool.forward
    monkeypatch.setattr(Pool, "forward", lambda self, images: encoded.append(len(images)) or forward(self, images))
    one = {"images": str(folder / "ours/images"), "annotations": str(folder / "ours/captions.json")}
    alone = Captions(**one, min_count=1, batch_size=4, cache=str(folder / "cache"))
    alone.prepare(Looking())
    assert sum(encoded) == 14
    encoded.clear()
    captions = both(folder)
    assert sum(encoded) == 46, "those of the other set alone"
    encoded.clear()
    again = both(folder, only="val", evaluate=["theirs"])
    assert [batch.sources[0] for batch in again.split("val")] == ["theirs"] * 2 and not encoded
    vectors = {
        (batch.sources[n], batch.ids[n]): batch.images[n]
        for batch in captions.split("train")
        for n in range(len(batch.ids))
    }
    for batch in alone.split("train"):
        assert batch.sources == ()
        assert all(torch.equal(vectors["ours", one], each) for one, each in zip(batch.ids, batch.images, strict=True))
    shutil.rmtree(folder / "cache")
    encoded.clear()
    tested = both(folder, only="test", evaluate=["ours"])
    assert sum(encoded) == 3 == sum(len(batch.ids) for batch in tested.split("test"))


def test_flips_and_unreadable_files_are_those_of_their_source(folder, caplog):
    (folder / "theirs/03.png").write_bytes(b"no image")
    captions = both(folder, flips=True)
    assert "1 of 60 photographs cannot be read" in caplog.text and str(folder / "theirs/03.png") in caplog.text
    plain = {
        (batch.sources[n], batch.ids[n]): batch.images[n]
        for batch in captions.split("train")
        for n in range(len(batch.ids))
    }
    assert ("ours", 3) in plain and ("theirs", "03.png") not in plain and len(plain) == 47
    mirrored = 0
    for batch in captions.train(0, seed=1):
        for source, one, vectors in zip(batch.sources, batch.ids, batch.images, strict=True):
            whole = plain[source, one]
            flipped = whole.view(4, 4, 3).flip(1).view(16, 3)
            assert torch.equal(vectors, whole) or torch.allclose(vectors, flipped, atol=1)
            mirrored += not torch.equal(vectors, whole)
    assert 10 < mirrored < 40
    pixels = both(folder, cache=None)
    names = {view.name for view in pixels._views}
    assert len(names) == 60 and {"ours/03.png", "theirs/03.png"} <= names
    assert pixels._views[14].name == "theirs/00.png" and isinstance(pixels._located["ours"].views, Views)


def test_vectors_of_other_programs(folder):
    for name, count in (("ours", 14), ("theirs", 46)):
        (folder / f"{name}_vectors").mkdir()
        for number in range(count):
            value = number + 100 * (name == "theirs")
            np.save(folder / f"{name}_vectors/{number:02}.npy", np.full((16, 3), value, np.float32))
    given = sets(folder)
    for one in given:
        one.features = str(folder / f"{one.name}_vectors")
    (folder / "theirs_vectors/05.npy").unlink()
    captions = both(folder, sources=given)
    count = 0
    for batch in captions.split("train"):
        for source, file, vectors in zip(batch.sources, batch.files, batch.images, strict=True):
            assert (vectors == int(file.stem) + 100 * (source == "theirs")).all()
            count += 1
    assert count == 47


@pytest.mark.parametrize(
    "options, said",
    [
        ({"images": "here"}, r"data.sources and data.images exclude each other: .* with --data.images=null"),
        ({"sources": []}, "data.sources is empty"),
        ({"sources": None}, "data.images is missing: name a folder of photographs, or several data sets .data.sources"),
        ({"sources": [PhotographSet("x")]}, "data.sources.0.name is missing: give one that consists of letters"),
        ({"sources": [PhotographSet("x", "a/b")]}, "data.sources.0.name is 'a/b', but must consist of letters"),
        ({"sources": [PhotographSet(None, "a")]}, "data.sources: a has no images"),
        ({"sources": [PhotographSet("x", "a"), PhotographSet("y", "a")]}, "a is the name of two data sets"),
        ({"sources": [PhotographSet("x", "a", share=1.0)]}, "share of a is 1, but must be above 0 and below 1"),
        ({"sources": [PhotographSet("x", n, share=0.5) for n in "abc"]}, "shares are 1.5 together, but must be 1"),
        ({"sources": [PhotographSet("x", n, share=s) for n, s in (("a", 0.6), ("b", 0.5), ("c", None))]},
         "shares are 1.1 together, but must be below 1"),
        ({"sources": [PhotographSet("x", "a", features="v"), PhotographSet("x", "b")]}, "`features` of all data sets"),
        ({"sources": [PhotographSet("x", "a", new_words=False)]}, "the vocabulary would be empty"),
        ({"evaluate": ["others"]}, "data.evaluate: others is no source; there are ours, theirs"),
    ],
)  # fmt: skip
def test_mistakes_are_named(folder, options, said):
    with pytest.raises(UserError, match=said):
        both(folder, prepare=False, **options)


# Copies.


def smaller(path: Path, out: Path) -> Path:
    """The photograph at half the size, saved again as JPEG of quality 74."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(path) as image:
        image.convert("RGB").resize((image.width // 2, image.height // 2)).save(out, quality=74)
    return out


def test_a_smaller_photograph_saved_again_is_a_copy_and_no_other_is(tmp_path):
    files = sorted(REAL.glob("*.jpg"))
    again = [smaller(file, tmp_path / file.name) for file in files]
    turned = tmp_path / "turned.png"
    Image.open(files[0]).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(turned)
    gone = tmp_path / "none.jpg"
    marks = np.array([mark(View(str(file), file)) for file in (*files, gone, *again, turned, gone)], copies.MARK)
    count = len(files)
    assert count > 3
    assert first_copies(marks).tolist() == [*range(count + 1), *range(count), 2 * count + 1, 2 * count + 2]
    assert (different_bits(marks["hash"][:count] ^ marks["hash"][count + 1 : 2 * count + 1]) <= copies.BITS).all()
    assert different_bits(np.array([0, 2**63 + 5, 2**64 - 1], np.uint64)).tolist() == [0, 3, 64]


def test_drawings_that_differ_in_one_shape_are_no_copies(tmp_path):
    """A circle or a square in the corner of a white picture: nearly all pixels are equal, and so are the hashes."""
    for name in ("ellipse", "rectangle"):
        image = Image.new("RGB", (96, 96), "white")
        draw = ImageDraw.Draw(image)
        draw.ellipse((60, 60, 84, 84), "yellow")
        getattr(draw, name)((14, 14, 38, 38), "blue")
        image.save(tmp_path / f"{name}.png")
    marks = np.array([mark(View(file.name, file)) for file in sorted(tmp_path.glob("*.png"))], copies.MARK)
    assert different_bits(marks["hash"][:1] ^ marks["hash"][1:]) <= copies.BITS
    assert first_copies(marks).tolist() == [0, 1]


def test_hashes_without_alike_pixels_are_no_copies():
    pixels = np.random.default_rng(0).integers(0, 256, (3, copies.SIDE, copies.SIDE, 3), dtype=np.uint8)
    pixels[1] = np.clip(pixels[0].astype(int) + 8, 0, 255)
    assert alike(pixels[[0, 0, 1]], pixels[[1, 2, 2]]).tolist() == [True, False, False]
    marks = np.zeros(3, copies.MARK)
    marks["known"], marks["pixels"] = 1, pixels
    assert first_copies(marks).tolist() == [0, 0, 2]
    marks["hash"] = [0, 0b11111, 0]
    assert first_copies(marks).tolist() == [0, 1, 2], "5 bits are too many"
    many = np.concatenate([marks[:1]] * 3000)
    assert not first_copies(many).any(), "thousands of one image are soon told"


def test_copies_among_real_photographs(data_folder):
    """Nearly all copies are found, and no other photograph is taken for one."""
    record = json.loads((data_folder / "everyday/captions.json").read_text())["images"]
    files = [data_folder / "everyday/images" / image["file_name"] for image in record[::20]]

    def again(file: Path) -> Encoded:
        content = io.BytesIO()
        with Image.open(file) as image:
            image.convert("RGB").resize((image.width // 2, image.height // 2)).save(content, "JPEG", quality=74)
        return Encoded(str(file), content.getvalue())

    marks = np.array([mark(View(str(one), one)) for one in (*files, *map(again, files))], copies.MARK)
    first, count = first_copies(marks), len(files)
    assert count > 200 and first[:count].tolist() == [*range(count)]
    found = first[count:] == np.arange(count)
    assert found.mean() > 0.97 and (found | (first[count:] >= count)).all()


def test_a_photograph_of_two_sets_stays_in_one_split(folder, caplog):
    """In the test split if it stands in one, or else in the one for validation; a line says how many."""
    real = sorted(REAL.glob("*.jpg"))
    record = json.loads((folder / "ours/captions.json").read_text())
    for number, split in ((12, "val"), (13, "test")):
        assert record["images"][number]["split"] == split
        record["images"][number]["file_name"] = f"{number}.jpg"
        shutil.copy(real[number - 12], folder / f"ours/images/{number}.jpg")
        smaller(real[number - 12], folder / f"theirs/{number}.jpg")
    (folder / "ours/captions.json").write_text(json.dumps(record))
    table = (folder / "theirs.csv").read_text().replace("12.png", "12.jpg").replace("13.png", "13.jpg")
    (folder / "theirs.csv").write_text(table.replace("44.png", "44.jpg"))  # of the val split, a copy of ours' test
    smaller(real[1], folder / "theirs/44.jpg")
    shutil.copy(folder / "theirs/20.png", folder / "theirs/21.png")  # both for training
    captions = both(folder)
    assert caplog.text.count("are copies of others") == 1
    assert "copies of others in the data, also resized or saved again: 4; left out" in caplog.text
    assert "1 of val and 2 of train, such as " in caplog.text and "a copy of " in caplog.text
    used = {
        split: {
            (source, file.stem)
            for batch in captions.split(split)
            for source, file in zip(batch.sources, batch.files, strict=True)
        }
        for split in ("train", "val", "test")
    }
    assert [len(used[split]) for split in used] == [46, 5, 6]
    assert ("ours", "12") in used["val"] and ("ours", "13") in used["test"]
    assert not {("theirs", "12"), ("theirs", "13"), ("theirs", "44")} & (used["train"] | used["val"])
    assert {("theirs", "20"), ("theirs", "21")} <= used["train"]
    shown_files = {(source, file.stem) for source, file in shown(captions)}
    assert shown_files <= used["train"]
    val = {
        file.stem
        for batch in both(folder, only="val").split("val")
        for file in batch.files
        if batch.sources[0] == "theirs"
    }
    assert len(val) == 2 and "44" not in val
    kept = both(folder, without_copies=False)
    assert sum(len(batch.ids) for batch in kept.split("train")) == 48
    hashes = sorted((folder / "cache").glob("hashes-*.npy"))
    assert len(hashes) == 2
    hashes[0].write_bytes(b"damaged")
    assert sum(len(batch.ids) for batch in both(folder).split("train")) == 46
    again = both(folder, cache=None)
    assert sum(len(batch.ids) for batch in again.split("train")) == 46


# Metrics and runs.


def build(source, **options) -> Captioning:
    torch.manual_seed(0)
    options = {"encoder": SmallestEncoder(), "model": MODELS["soft"], "max_words": 6, **options}
    return Captioning(source, **options).eval()


def test_metrics_of_each_source_are_those_of_it_alone(folder, tmp_path):
    captions = both(folder, prepare=False, cache=None)
    task = build(captions)
    captions.prepare(task)
    out = tmp_path / "out"
    out.mkdir()
    metrics = task.evaluate(captions.split("test"), out)
    assert {"CIDEr", "nll", "METEOR", "cut"} <= metrics.keys()
    records = json.loads((out / "captions.json").read_text())
    lines = [json.loads(line) for line in (out / "scores.jsonl").read_text().splitlines()]
    assert Counter(record["source"] for record in records) == {"ours": 3, "theirs": 3}
    assert [(line["source"], line["image_id"]) for line in lines] == [(r["source"], r["image_id"]) for r in records]
    assert np.mean([line["CIDEr"] for line in lines]) == pytest.approx(metrics["CIDEr"])
    for one in sets(folder):
        alone = Captions(
            images=one.images, annotations=one.annotations, columns=one.columns, cache=None, evaluation_batch_size=2
        )
        alone.vocabulary = captions.vocabulary
        alone.prepare(task)
        expected = task.evaluate(alone.split("test"), out)
        assert all("source" not in record for record in json.loads((out / "captions.json").read_text()))
        assert {f"{name}_{one.name}": value for name, value in expected.items()} == pytest.approx(
            {name: value for name, value in metrics.items() if name.endswith(f"_{one.name}")}, nan_ok=True
        )
        captions.evaluate = [one.name]
        chosen = task.evaluate(captions.split("test"))
        assert all(
            chosen[name] == chosen[f"{name}_{one.name}"] == metrics[f"{name}_{one.name}"] for name in ("nll", "CIDEr")
        )


class Interrupted(Captioning):
    """Asks to stop at a step."""

    at = 0
    steps = 0

    def forward(self, *batch):
        Interrupted.steps += 1
        if Interrupted.steps == Interrupted.at:
            os.kill(os.getpid(), signal.SIGINT)
        return super().forward(*batch)


def test_a_run_stopped_in_the_middle_of_an_epoch_ends_as_one_that_was_not(folder, capsys):
    """Selected by the metric of one source, which no first batch of validation has by itself."""

    def run(name: str, at: int) -> None:
        Interrupted.at, Interrupted.steps = at, 0
        data = both(folder, prepare=False, cache=None, sources=sets(folder, theirs=0.5))
        task = partial(Interrupted, max_words=4, beams=1)
        train(data, folder / name, task=task, epochs=2, metric="CIDEr_theirs", mode="max")

    run("whole", 0)
    with pytest.raises(KeyboardInterrupt):
        run("parts", 6)
    run("parts", 0)
    assert "resuming" in capsys.readouterr().out
    whole, parts = (load_file(folder / name / "last/model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    lines = [json.loads(line) for line in (folder / "whole/metrics.jsonl").read_text().splitlines()]
    assert {"val/CIDEr", "val/CIDEr_ours", "val/nll_theirs"} <= {name for line in lines for name in line}


def test_a_config_names_sources(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    theirs = "{name: theirs, images: theirs, annotations: theirs.csv, columns: {image: photo}, share: 0.5}"
    ours = "{name: ours, images: ours/images, annotations: ours/captions.json}"
    config = str(Path(__file__).parents[2] / "configs/sat_soft_small.yaml")
    options = ["--data.images=null", "--data.annotations=null", f"--data.sources=[{ours}, {theirs}]"]
    found = read(config, options)
    assert [one.arguments["share"] for one in found.data.arguments["sources"]] == [None, 0.5]
    written = found.content()["data"]["init_args"]["sources"]
    assert written[1] == {
        "images": "theirs", "name": "theirs", "annotations": "theirs.csv", "split_files": None,
        "columns": {"image": "photo"}, "features": None, "share": 0.5, "new_words": True,
    }  # fmt: skip
    with pytest.raises(UserError, match=r"data.sources.1.shares: there is no such key; did you mean share"):
        read(config, [*options[:2], f"--data.sources=[{ours}, {theirs.replace('share:', 'shares:')}]"])
    assert main(["keys", config, *options]) == 0
    assert "--data.evaluate=null" in capsys.readouterr().out

"""Photographs with labels: how they are found, split, read and batched, and a whole run on them."""

import json
import logging
import mmap

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.drawn_objects import write
from tests.whole_runs import CONFIGS, steps, train
from vision_attn.attention.images import Images
from vision_attn.commands import main
from vision_attn.data.images.lazy import fitted, open_pixels
from vision_attn.data.labelled.labelled_images import LabelledImages, read_classes
from vision_attn.data.labelled.labels import find_labelled
from vision_attn.data.scenes.grammar import OBJECTS
from vision_attn.system.errors import UserError

COLOURS = {"red": (200, 0, 0), "green": (0, 200, 0), "blue": (0, 0, 200), "grey": (90, 90, 90)}


def photograph(path, label: str, number: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20 + 3 * number % 17, 24 + 5 * number % 13), COLOURS[label]).save(path)


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """A folder for each of four classes, with 12 photographs each."""
    folder = tmp_path_factory.mktemp("classes")
    for label in COLOURS:
        for number in range(12):
            photograph(folder / label / f"{number}.png", label, number)
    (folder / "red" / "notes.txt").write_text("no image")
    (folder / ".hidden").mkdir()
    return folder


def names(found) -> dict[str, list[str]]:
    return {split: [item.file.name for item in items] for split, items in found.items()}


def test_a_folder_for_each_class_is_split_by_names(classes, tmp_path):
    found = find_labelled(str(classes))
    assert sum(map(len, found.values())) == 48 and min(map(len, found.values())) > 0
    assert all(item.file.parent.name == item.label for items in found.values() for item in items)
    fewer = tmp_path / "fewer"
    for number in range(6):  # the others keep their splits
        photograph(fewer / "red" / f"{number}.png", "red")
    where = {item.file.name: split for split, items in found.items() for item in items if item.label == "red"}
    photograph(fewer / "blue" / "0.png", "blue")
    again = find_labelled(str(fewer))
    assert all(where[item.file.name] == split for split in again for item in again[split] if item.label == "red")


def test_folders_of_splits(tmp_path):
    for split, number in (("train", 30), ("test", 2)):
        for index in range(number):
            photograph(tmp_path / split / "red" / f"{split}{index}.png", "red")
    found = names(find_labelled(str(tmp_path)))
    assert found["test"] == ["test0.png", "test1.png"]
    assert len(found["train"]) + len(found["val"]) == 30 and 0 < len(found["val"]) < 12
    photograph(tmp_path / "val" / "red" / "v.png", "red")
    assert names(find_labelled(str(tmp_path)))["val"] == ["v.png"]
    expected = names(find_labelled(str(tmp_path)))
    for split, name in {"train": "Training", "val": "validation", "test": "Testing"}.items():
        (tmp_path / split).rename(tmp_path / name)
    assert names(find_labelled(str(tmp_path))) == expected


def test_a_file_that_marks_test_images_alone_leaves_some_for_validation(tmp_path):
    lines = ["image,label,split"]
    for number in range(60):
        photograph(tmp_path / f"{number}.png", "red")
        lines.append(f"{number}.png,{number % 2},{'test' if number % 5 == 0 else ''}")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    found = find_labelled(str(tmp_path), str(tmp_path / "labels.csv"))
    assert len(found["test"]) == 12 and 0 < len(found["val"]) < 12 and sum(map(len, found.values())) == 60


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_file_of_labels(form, classes, tmp_path):
    records = [("red/0.png", "1", "train"), ("blue/1.png", "sky, blue", "val"), ("grey/2.png", "1", "test")]
    path = tmp_path / f"labels.{form}"
    if form == "csv":
        path.write_text('image,label,split\nred/0.png,1,train\nblue/1.png,"sky, blue",val\ngrey/2.png,1,test\n')
    else:
        lines = (json.dumps({"image": image, "label": label, "split": split}) for image, label, split in records)
        path.write_text("\n".join(lines))
    source = LabelledImages(images=str(classes), labels=str(path))
    assert {split: [(item.file.relative_to(classes).as_posix(), item.label) for item in items]
            for split, items in source.splits.items()} == {
        split: [(image, label)] for image, label, split in records
    }  # fmt: skip
    assert source.class_names == ("1", "sky, blue") and source.num_classes == 2


@pytest.mark.parametrize(
    "lines, message",
    [
        ("image,name\nred/0.png,1", 'the first row must name the columns "image" and "label"'),
        ("image:label\nred/0.png:1", 'and may name "split"; line 1 is "image:label"'),
        ("red/0.png,1\nred/1.png,1", 'the first row must name the columns "image" and "label"'),
        ("image,label\nred/0.png,red, dark", "line 2: more fields than columns: a label with a comma"),
        ("image,label\n../red/0.png,1", 'line 2: image "../red/0.png" must be the name of a file in'),
        ("image,label\nred/0.png,", "line 2 has no label"),
        ("image,label\nred/0.png,1\nred/0.png,2", "line 3 names red/0.png a second time"),
        ("image,label\nmissing.png,1", "which does not exist: check data.images"),
        ("image,label,split\nred/0.png,1,trian", 'line 2 has split "trian": write train, val, test, or leave it'),
        ("image,label,split\nred/0.png,1,test", "has no image for training"),
        ("image,label", "has no images: expected"),
    ],
)
def test_a_wrong_record_is_named(lines, message, classes, tmp_path):
    (tmp_path / "labels.csv").write_text(lines)
    with pytest.raises(UserError, match=message):
        find_labelled(str(classes), str(tmp_path / "labels.csv"))


def test_a_split_without_photographs_is_named(classes, tmp_path):
    (tmp_path / "labels.csv").write_text("image,label,split\nred/0.png,1,train\nblue/1.png,2,val\n")
    source = LabelledImages(images=str(classes), labels=str(tmp_path / "labels.csv"))
    with pytest.raises(UserError, match="no photograph has the split test; there are some for train, val"):
        next(source.split("test"))


def test_batches_hold_every_photograph_at_its_size_and_resume(classes):
    source = LabelledImages(images=str(classes), batch_size=8, flips=True)
    epoch = list(source.train(2, seed=1))
    assert len(epoch) == len(source) and source.image_shape == (3, 0, 0)
    sizes = {tuple(extent) for batch in epoch for extent in batch.images.extents.tolist()}
    assert len(sizes) > 5
    for batch in epoch:
        for image, label in zip(batch.images.sampled(1), batch.labels, strict=True):
            assert tuple(image.flatten().tolist()) == COLOURS[source.class_names[label]]
    again = list(source.train(2, seed=1, skip=1))
    assert [batch.labels.tolist() for batch in again] == [batch.labels.tolist() for batch in epoch[1:]]
    halves = [next(source.train(2, seed=1, rank=rank, world=2)).labels for rank in (0, 1)]
    assert torch.equal(torch.stack(halves, dim=1).flatten(), epoch[0].labels)
    assert [batch.labels.tolist() for batch in source.train(3, seed=1)] != [batch.labels.tolist() for batch in epoch]


def test_processes_that_evaluate_open_photographs_of_their_own(classes):
    whole = list(LabelledImages(images=str(classes), evaluation_batch_size=4).split("train"))
    opened = []

    class Noting(LabelledImages):
        def open(self, path):
            opened.append(path)
            return super().open(path)

    source = Noting(images=str(classes), evaluation_batch_size=4)
    assert len(whole) > 3
    for rank in (0, 1):
        opened.clear()
        part = list(source.split("train", rank=rank, world=2))
        assert [batch.labels.tolist() for batch in part] == [batch.labels.tolist() for batch in whole[rank::2]]
        assert len(opened) == sum(len(batch.labels) for batch in part)


def test_photographs_are_mirrored_half_of_the_time(tmp_path):
    half = np.zeros((20, 20, 3), np.uint8)
    half[:, :10] = 255
    for number in range(60):
        (tmp_path / "train" / "left").mkdir(parents=True, exist_ok=True)
        Image.fromarray(half).save(tmp_path / "train" / "left" / f"{number}.png")
    source = LabelledImages(images=str(tmp_path), batch_size=20, flips=True)
    bright = [int(image[0, 0, 0]) for batch in source.train(0, seed=0) for image in batch.images.sampled(20)]
    assert 0.3 < np.mean(bright) / 255 < 0.7 and set(bright) == {0, 255}


def test_squares_are_a_tensor(classes):
    source = LabelledImages(images=str(classes), side=16, square=True, batch_size=8)
    batch = next(source.train(0, seed=0))
    assert batch.images.shape == (8, 3, 16, 16) and source.image_shape == (3, 16, 16)
    assert 0.7 < batch.images.max() < 0.8
    with pytest.raises(UserError, match="square=true needs a side"):
        LabelledImages(images="x", square=True)


def test_a_photograph_that_cannot_be_read_is_left_out_and_named_once(classes, tmp_path, caplog):
    (tmp_path / "labels.csv").write_text("image,label,split\n" + "".join(
        f"red/{number}.png,red,train\n" for number in range(3)) + "bad.png,red,train\n")  # fmt: skip
    for number in range(3):
        photograph(tmp_path / "red" / f"{number}.png", "red")
    (tmp_path / "bad.png").write_bytes(b"nothing")
    source = LabelledImages(images=str(tmp_path), labels=str(tmp_path / "labels.csv"), batch_size=4)
    with caplog.at_level(logging.WARNING):
        assert [len(batch.labels) for epoch in (0, 1) for batch in source.train(epoch, seed=0)] == [3, 3]
    assert [record.getMessage().count("bad.png") for record in caplog.records] == [1]


def test_classes_of_a_run_are_kept_and_extended(classes, tmp_path):
    source = LabelledImages(images=str(classes))
    source.export(tmp_path)
    other = LabelledImages(images="nowhere")
    other.restore(tmp_path)
    assert other.class_names == source.class_names == ("blue", "green", "grey", "red")
    photograph(tmp_path / "new" / "pink" / "0.png", "red")
    photograph(tmp_path / "new" / "red" / "0.png", "red")
    later = LabelledImages(images=str(tmp_path / "new"))
    assert later.extend(tmp_path) == (4, 5) and later.class_names == ("blue", "green", "grey", "red", "pink")
    assert later.extend(tmp_path / "new") is None
    for wrong in ("{}", "[]", "[1]", '["a", "a"]', "x"):
        (tmp_path / "classes.json").write_text(wrong)
        with pytest.raises(UserError, match="classes.json"):
            read_classes(tmp_path / "classes.json")


def test_pixels_of_files(tmp_path):
    wide = Image.new("RGB", (80, 40), "red")
    wide.save(tmp_path / "wide.png")
    assert open_pixels(tmp_path / "wide.png").shape == (40, 80, 3)
    assert open_pixels(tmp_path / "wide.png", side=20).shape == (10, 20, 3)
    assert open_pixels(tmp_path / "wide.png", side=20, square=True).shape == (20, 20, 3)
    array = np.zeros((300, 600), np.uint8)
    array[:, 300:] = 200
    np.save(tmp_path / "wide.npy", array)
    mapped = open_pixels(tmp_path / "wide.npy")
    assert isinstance(mapped.array.base, np.memmap) and np.array_equal(mapped[:, :], array)
    far = np.s_[5:300:40, 3:600:50]  # read from the file, not mapped
    assert mmap.PAGESIZE < 40 * 600 and mapped[far].base is None
    assert mapped[5:20, 3:20].base is not None
    assert np.array_equal(mapped[far], array[far]) and np.array_equal(mapped[::-100, ::9], array[::-100, ::9])
    colours = np.arange(300 * 600 * 3, dtype=np.uint8).reshape(300, 600, 3)
    for order in "CF":
        np.save(tmp_path / "colours.npy", np.asarray(colours, order=order))
        assert np.array_equal(open_pixels(tmp_path / "colours.npy")[far], colours[far])
    small = open_pixels(tmp_path / "wide.npy", side=20, square=True)
    assert small.shape == (20, 20, 3) and small[10, 2].max() < 5 and small[10, 17].min() > 195
    inside = fitted(array, (3, 40, 40))
    assert inside.shape == (40, 40, 3) and not inside[:10].any() and inside[20, 35].min() > 195
    np.save(tmp_path / "floats.npy", array.astype(float))
    (tmp_path / "text.npy").write_text("text")
    for name in ("floats.npy", "text.npy"):
        with pytest.raises(UserError, match=f"{name}: not a readable array of pixels") as told:
            open_pixels(tmp_path / name)
        assert "pickle" not in str(told.value)
    with pytest.raises(UserError, match="none.npy: no such file"):
        open_pixels(tmp_path / "none.npy")


TINY = {
    "task.model.num_glimpses": 2, "task.model.retina.size": 4, "task.model.glimpse.glimpse_size": 8,
    "task.model.core.hidden_size": 8, "task.model.core.place_size": 8, "data.batch_size": 16, "data.flips": "false",
    "run.epochs": 1, "run.warmup": 0, "run.device": "cpu", "run.log_every": 1, "run.sanity_check": "false",
    "run.validate_every": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(classes, tmp_path_factory):
    """A run of the config on the four classes, of two steps."""
    folder = tmp_path_factory.mktemp("run") / "run"
    settings = TINY | {"data.images": classes, "data.labels": "null", "run.folder": folder}
    assert main(train("ram_photographs", **settings)) == 0
    return folder


def test_a_run_is_trained_evaluated_and_shown(run, classes, tmp_path):
    assert len(steps(run)) == 2 and (CONFIGS / "ram_photographs.yaml").is_file()
    assert main(["eval", str(run), "--device=cpu", f"--out={tmp_path}", "--show=2"]) == 0
    metrics = json.loads((tmp_path / "metrics_test.json").read_text())
    assert 0 <= metrics["error"] <= 100 and "last_glimpse_on_digit" not in metrics
    assert {path.name for path in (tmp_path / "pictures_test").iterdir()} == {
        "index.html", "gallery.png", "01.png", "01.gif", "02.png", "02.gif"
    }  # fmt: skip


def test_a_run_is_packed_with_its_classes_and_classifies_without_its_data(run, classes, tmp_path, capsys):
    assert main(["pack", str(run), str(tmp_path / "packed")]) == 0
    image = str(classes / "red" / "3.png")
    capsys.readouterr()
    assert main(["classify", str(tmp_path / "packed"), image, "--data.images=nowhere", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["probabilities"]) == set(COLOURS) and answer["answer"] in COLOURS
    assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert np.shape(answer["locations"]) == (2, 2)


def test_a_run_begins_with_the_size_of_each_split_and_needs_two_classes(classes, tmp_path, capsys):
    lines = ["image,label,split", *(f"red/{number}.png,red,train" for number in range(12))]
    settings = TINY | {"data.images": classes, "data.labels": tmp_path / "labels.csv", "run.folder": tmp_path / "run"}
    (tmp_path / "labels.csv").write_text("\n".join([*lines, "blue/1.png,blue,val", ""]))
    assert main(train("ram_photographs", **settings)) == 0
    assert "photographs of 2 classes: 12 for training, 1 for validation\n" in capsys.readouterr().out
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    assert main(train("ram_photographs", **settings | {"run.folder": tmp_path / "one"})) == 1
    assert "have the label red: there is nothing to tell apart" in capsys.readouterr().err


def test_an_unknown_class_is_named(run, classes, tmp_path, capsys):
    (tmp_path / "labels.csv").write_text("image,label,split\nred/0.png,orange,train\nred/1.png,orange,test\n")
    status = main(["eval", str(run), "--device=cpu", f"--out={tmp_path}", f"--data.labels={tmp_path / 'labels.csv'}"])
    assert status == 1 and "trained without the class orange" in capsys.readouterr().err


def test_a_model_of_whole_images_needs_squares(classes, tmp_path, capsys):
    settings = TINY | {"data.images": classes, "data.labels": "null", "run.folder": tmp_path / "run"}
    plain = {key: value for key, value in settings.items() if not key.startswith("task.")}
    plain["task.model"] = "vision_attn.models.whole_image.FullyConnected"
    assert main(train("ram_photographs", **plain)) == 1
    assert "FullyConnected takes images of one size" in capsys.readouterr().err
    assert main(train("ram_photographs", **plain, **{"data.side": 12, "data.square": "true"})) == 0


def test_images_move_and_are_cut_like_tensors(classes):
    batch = next(LabelledImages(images=str(classes)).split("train"))
    assert isinstance(batch.images, Images) and len(batch.images[:2]) == 2
    moved = batch.images.to("meta", non_blocking=True)
    assert moved.new_zeros(2).device.type == "meta" and moved.extents.device.type == "cpu"


def test_a_notebook_sees_whole_images_of_any_size_and_names(run, classes):
    from vision_attn.api import load

    files = [classes / "red" / f"{number}.png" for number in (1, 2)]
    answers = load(str(run / "best"), device="cpu").classify(files)
    assert all(answer.name in COLOURS and answer.name in repr(answer) for answer in answers)
    assert {max(answer.image.shape[1:]) for answer in answers} == {72}  # as in training
    assert len({answer.image.shape for answer in answers}) == 2


def test_drawn_objects_are_photographs_with_labels(tmp_path):
    """The folder that docs/glimpses.md makes: sizes differ, and the object is not cut off."""
    write(tmp_path, {"train": 6, "val": 2, "test": 2})
    source = LabelledImages(images=str(tmp_path / "images"), labels=str(tmp_path / "labels.csv"), batch_size=6)
    assert {name: len(items) for name, items in source.splits.items()} == {"train": 6, "val": 2, "test": 2}
    assert set(source.class_names) < set(OBJECTS)
    extents = next(source.train(0, seed=0)).images.extents
    assert extents.min() >= 72 and extents.max() <= 96 and len(extents.unique()) > 3

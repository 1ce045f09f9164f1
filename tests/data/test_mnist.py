"""MNIST: every digit in its split and nowhere else, resumed and shared exactly, mistakes named."""

import gzip
import hashlib
import os
import struct
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest
import torch
from chaos.children import attempt_all
from fake_mnist import FILES, NUM_TEST, NUM_TRAIN, NUM_VAL, number, numbered, write_idx, write_mnist
from torch import nn
from torchvision import datasets

from vision_attn.data.digits.mnist import MNIST, moved, read_mnist
from vision_attn.data.digits.mnist_files import read_idx
from vision_attn.system.errors import UserError
from vision_attn.task import Task

NAMES = [name for pair in FILES.values() for name in pair]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_mnist(tmp_path_factory.mktemp("data") / "mnist")


def same(one, other):
    assert len(one) == len(other)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def test_each_split_has_its_digits_once_and_in_order(folder):
    source = MNIST(folder=folder, batch_size=20)
    first = {"train": 0, "val": NUM_TRAIN, "test": 0}
    for split, count in (("train", NUM_TRAIN), ("val", NUM_VAL), ("test", NUM_TEST)):
        batches = list(source.split(split))
        images = torch.cat([batch.images for batch in batches])
        labels = torch.cat([batch.labels for batch in batches])
        expected = np.arange(first[split], first[split] + count)
        assert number(images) == expected.tolist() and labels.tolist() == (expected % 10).tolist()
        pixels = numbered()["test" if split == "test" else "train"][expected]
        np.testing.assert_allclose(images[:, 0].numpy(), pixels / 255, atol=1e-7)
    assert images.dtype == torch.float32 and images.max() == 1 and labels.dtype == torch.int64
    assert batches[0].boxes.tolist() == [[-1, -1, 1, 1]] * 20
    with pytest.raises(UserError, match="unknown split 'dev'.*train, val, test"):
        next(source.split("dev"))


def test_training_shows_training_digits_once_and_no_validation_digit(folder):
    source = MNIST(folder=folder, batch_size=64)
    epochs = [[number(batch.images) for batch in source.train(epoch, seed=5)] for epoch in range(8)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [64] * len(source) == [64] * (NUM_TRAIN // 64)
        shown = sum(batches, [])
        assert len(set(shown)) == len(shown) and max(shown) < NUM_TRAIN
    assert set().union(*(sum(batches, []) for batches in epochs)) == set(range(NUM_TRAIN))  # what is left out changes
    assert epochs[0] != epochs[1]
    assert epochs[0] != [number(batch.images) for batch in source.train(0, seed=6)]


def test_processes_share_the_batches_of_a_split(folder):
    source = MNIST(folder=folder, batch_size=60)
    whole = list(source.split("test"))
    parts = [list(source.split("test", rank=rank, world=2)) for rank in range(2)]
    assert len(whole) > 1 and sum(map(len, parts)) == len(whole)
    for index, batch in enumerate(whole):
        same(batch, parts[index % 2][index // 2])


def test_skipped_batches_change_nothing_and_parts_make_the_batch(folder):
    source = MNIST(folder=folder, batch_size=60)
    epoch = list(source.train(2, seed=7))
    later = list(MNIST(folder=folder, batch_size=60).train(2, seed=7, skip=3))
    assert len(epoch) == 5 and len(later) == 2 and not list(source.train(2, seed=7, skip=5))
    for batch, again in zip(epoch[3:], later, strict=True):
        same(batch, again)
    parts = [list(source.train(2, seed=7, skip=1, rank=rank, world=3)) for rank in range(3)]
    for whole, *shares in zip(epoch[1:], *parts, strict=True):
        for rank, share in enumerate(shares):
            same([field[rank::3] for field in whole], share)
    with pytest.raises(UserError, match="a batch of 60 .* 7 processes"):
        next(source.train(0, seed=0, world=7))


def test_prepare_moves_the_digits_to_the_weights(folder):
    task = Task()
    source = MNIST(folder=folder)
    source.prepare(task)  # a task without weights: stays
    assert source.digits["val"].images.device.type == "cpu"
    task.layer = nn.Linear(1, 1, device="meta")
    source.prepare(task)
    source.prepare(task)
    batch = next(source.train(0, seed=0))
    assert {part.device.type for part in batch} == {"meta"} and batch.images.shape == (256, 1, 28, 28)


def test_packed_files_are_read_alike_and_found_under_the_data_folder(folder, tmp_path, monkeypatch):
    write_mnist(tmp_path / "mnist", packed=True)
    monkeypatch.setenv("VISION_ATTN_DATA", str(tmp_path))
    for packed, plain in zip(read_mnist("mnist").values(), read_mnist(folder).values(), strict=True):
        same(packed, plain)


def test_missing_files_are_named_with_their_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VISION_ATTN_DATA", str(tmp_path / "sets"))
    with pytest.raises(UserError) as nothing:
        next(MNIST().split("test"))
    assert all(f"{name}.gz" in str(nothing.value) for name in NAMES)
    assert str(tmp_path / "sets" / "mnist") in str(nothing.value) and str(nothing.value).endswith(
        "--data.download=true of vision-attn train, prepare or eval"  # other verbs read MNIST too, without this option
    )
    write_mnist(tmp_path / "sets" / "mnist")
    (tmp_path / "sets" / "mnist" / NAMES[3]).unlink()
    with pytest.raises(UserError, match=f"MNIST: {NAMES[3]}.gz not found in"):
        read_mnist("mnist")


def test_offline_download_says_which_files_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.MNIST, "mirrors", [(tmp_path / "nowhere").as_uri() + "/"])
    with pytest.raises(UserError) as offline:
        read_mnist(str(tmp_path / "mnist"), download=True)
    assert "could not be downloaded" in str(offline.value) and "\n" not in str(offline.value)
    assert all(f"{name}.gz" in str(offline.value) for name in NAMES) and str(tmp_path / "mnist") in str(offline.value)
    assert not list((tmp_path / "mnist").iterdir())


def test_download_by_torchvision_brings_the_files(folder, tmp_path, monkeypatch):
    mirror = tmp_path / "mirror"
    write_mnist(mirror, packed=True)
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in mirror.iterdir()}
    monkeypatch.setattr(datasets.MNIST, "resources", list(sums.items()))
    monkeypatch.setenv("VISION_ATTN_DATA", str(tmp_path / "sets"))
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=mirror)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(datasets.MNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
        downloaded = read_mnist("mnist", download=True)
        server.shutdown()
    for mine, theirs in zip(downloaded.values(), read_mnist(folder).values(), strict=True):
        same(mine, theirs)
    assert {path.name for path in (tmp_path / "sets" / "mnist").iterdir()} == set(sums)
    assert len(read_mnist("mnist", download=True)["test"].labels) == NUM_TEST  # the server is gone: nothing is fetched


@pytest.mark.parametrize("damage", ["cut", "empty", "other", "headless"])
def test_damaged_files_are_named(damage, tmp_path):
    folder = tmp_path / "mnist"
    write_mnist(folder, packed=True)
    path = folder / f"{NAMES[2]}.gz"
    content = path.read_bytes()
    wrong = {"cut": content[:-99], "empty": b"", "other": gzip.compress(b"hello"), "headless": content[9:]}
    path.write_bytes(wrong[damage])
    with pytest.raises(UserError, match=f"{NAMES[2]}.gz .*damaged"):
        read_mnist(str(folder))


LAYOUTS = {
    "a dot": "{part}-{kind}.idx{d}-ubyte",
    "a dot, gzipped": "{part}-{kind}.idx{d}-ubyte.gz",
    "gzipped without the ending": "{part}-{kind}-idx{d}-ubyte",
    "unpacked with the ending": "{part}-{kind}-idx{d}-ubyte.gz",
    "other words": "{kind} ({PART}).bin",
    "no part": "{kind}{number}",
    "no word": "{number}{d}.dat",
    "capitals": "{PART}-{KIND}-IDX{d}-UBYTE",
    "a folder for each": "{part}-{kind}-idx{d}-ubyte/{part}-{kind}-idx{d}-ubyte",
    "a folder for each part": "{part}/{kind}.idx",
    "torchvision": "raw/{part}-{kind}-idx{d}-ubyte",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_are_recognised_by_their_headers(layout, folder, tmp_path, caplog):
    place = tmp_path / "mnist"
    for order, (part, names) in enumerate(FILES.items()):
        for name in names:
            kind, part = name.split("-")[1], name.split("-")[0]
            file = place / LAYOUTS[layout].format(
                part=part,
                PART=part.upper(),
                kind=kind,
                KIND=kind.upper(),
                d=3 if kind == "images" else 1,
                number=order,
            )
            file.parent.mkdir(parents=True, exist_ok=True)
            content = (tmp_path.parent / folder / name).read_bytes()
            packed = file.suffix == ".gz" if "ending" not in layout else layout.startswith("gzipped")
            file.write_bytes(gzip.compress(content) if packed else content)
    (place / "README.txt").write_text("digits")
    with caplog.at_level("INFO"):
        read = read_mnist(str(place))
    for mine, theirs in zip(read.values(), read_mnist(folder).values(), strict=True):
        same(mine, theirs)
    if "ending" not in layout:
        assert "taken by their headers: " in caplog.text and " as t10k-labels-idx1-ubyte" in caplog.text


@pytest.mark.parametrize("layout", ["{}/{}.idx", "{}_{}", "mnist.{}.{}.gz"])
def test_a_name_says_more_than_the_size(layout, tmp_path):
    """A test set that is larger than the training set."""
    for part, count in (("train", 24), ("test", 40)):
        for kind, array in (("images", np.full((count, 28, 28), count)), ("labels", np.arange(count) % 10)):
            path = tmp_path / "train and test" / layout.format(part, kind)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_idx(path, array)
    read = read_mnist(str(tmp_path / "train and test"))
    assert [len(part.labels) for part in read.values()] == [22, 2, 40] and read["test"].images.unique().tolist() == [40]


def test_known_names_come_first_and_others_complete_them(folder, tmp_path):
    place = tmp_path / "mnist"
    write_mnist(place)
    for kind in ("images", "labels"):  # another set of the same sizes
        for name in NAMES:
            if kind in name:
                array = np.full((7, 28, 28) if kind == "images" else 7, 3)
                write_idx(place / name.replace("-idx", " (1)-idx"), array)
    expected = read_mnist(folder)
    for read in (lambda: read_mnist(str(place)), lambda: read_mnist(str(place))):
        for mine, theirs in zip(read().values(), expected.values(), strict=True):
            same(mine, theirs)
        if (place / NAMES[2]).exists():
            (place / NAMES[2]).rename(place / "digits.idx3")  # whose number of images is that of the known labels
    (place / "nested").mkdir()
    (place / "digits.idx3").rename(place / "nested" / "digits.idx3")
    same(read_mnist(str(place))["test"], expected["test"])


def test_files_that_are_not_clear_are_named(tmp_path):
    place = tmp_path / "mnist"
    write_mnist(place)
    for order, name in enumerate(NAMES):
        (place / name).rename(place / f"{'x' if order % 2 else 'a'}{order}")
    write_idx(place / "b", np.arange(NUM_TEST) % 10)
    with pytest.raises(
        UserError, match="MNIST: train-images.* not clear, rename the right ones: .*b \\(120\\)"
    ) as error:
        read_mnist(str(place))
    assert "a0 (327 x 28 x 28)" in str(error.value) and "\n" not in str(error.value)
    for name in ("b", "x3"):
        (place / name).unlink()
    with pytest.raises(UserError, match="not match, rename the right ones: a0 .327 x 28 x 28., a2 .*, x1 .327."):
        read_mnist(str(place))
    for name in ("a2", "x1"):
        (place / name).unlink()
    write_idx(place / "a2", np.zeros((327, 28, 28)))
    for name in ("x1", "x3"):
        write_idx(place / name, np.arange(327) % 10)
    with pytest.raises(UserError, match="not match"):  # two sets of the same size: which is for training?
        read_mnist(str(place))


def test_files_that_are_not_mnist_are_refused(tmp_path):
    folder = tmp_path / "mnist"
    write_mnist(folder)
    write_idx(folder / NAMES[3], np.zeros(7))
    with pytest.raises(UserError, match=r"t10k-labels.*\(120, 28, 28\) and \(7,\)"):
        read_mnist(str(folder))
    write_mnist(folder, {"train": np.zeros((11, 28, 28)), "test": np.zeros((1, 28, 28))})
    with pytest.raises(UserError, match="11 training digits: at least 12 are needed"):
        read_mnist(str(folder))
    with pytest.raises(UserError, match="batch_size=0"):
        MNIST(batch_size=0)


def header(*shape: int) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)


PROMISES = {
    "declares 4294967295 bytes": header(2**32 - 1),
    "declares 0 x 28 x 28 bytes": header(0, 28, 28),
    "declares 60000 x 0 x 28 bytes": header(60000, 0, 28),
    "declares 4294967295 x 4294967295 x 4294967295 bytes": header(*[2**32 - 1] * 3),
    "is not an MNIST file": header(2, 2, 2, 2) + bytes(16),
    "is not an MNIST file:": header() + bytes(1),
    "is not a complete MNIST file": header(10, 28, 28) + bytes(7841),
    "is not a complete MNIST": header(10, 28, 28) + bytes(7839),
}


@pytest.mark.parametrize("complaint", PROMISES)
def test_a_header_is_judged_before_what_follows_is_read(complaint, tmp_path):
    for name in ("a", "a.gz"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(PROMISES[complaint]) if path.suffix else PROMISES[complaint])
        with pytest.raises(UserError, match=f"{name} {complaint}.* download it again"):
            read_idx(path)


@pytest.mark.parametrize("shape", [(10, 28, 28), (2**31,)])
def test_a_packed_file_of_gigabytes_is_not_unpacked(shape, tmp_path):
    member = gzip.compress(bytes(2**26))
    (tmp_path / "a.gz").write_bytes(gzip.compress(header(*shape)) + member * 48)  # 3 GB in 3 MB
    (outcome,) = attempt_all(read_idx, [tmp_path / "a.gz"], megabytes=100)
    assert outcome.status == "refused" and "a.gz" in outcome.said


def test_labels_that_are_no_digits_are_named_with_their_place(tmp_path):
    folder = tmp_path / "mnist"
    write_mnist(folder, packed=True)
    labels = np.arange(NUM_TEST) % 10
    labels[[7, 9]] = 200, 10
    write_idx(folder / NAMES[3], labels, packed=True)
    with pytest.raises(UserError, match=f"{NAMES[3]}.gz: label 200 of image 7 is not a digit"):
        read_mnist(str(folder))


def test_a_fifo_is_not_opened(tmp_path):
    folder = tmp_path / "mnist"
    write_mnist(folder)
    (folder / NAMES[0]).unlink()
    os.mkfifo(folder / NAMES[0])
    with pytest.raises(UserError, match=f"{NAMES[0]} is not a regular file"):
        read_mnist(str(folder))


def test_the_real_set(data_folder):
    digits = read_mnist(str(data_folder / "mnist"))
    assert [len(part.labels) for part in digits.values()] == [55000, 5000, 10000]
    assert digits["train"].labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert digits["test"].labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert digits["train"].images.float().mean().item() == pytest.approx(33.3, abs=0.1)


def test_moved_digits_lose_only_what_leaves():
    """Against slicing, for every move."""
    image = torch.rand(1, 1, 5, 6)
    for right in range(-2, 3):
        for down in range(-2, 3):
            expected = torch.zeros(9, 10)
            expected[2 + down : 7 + down, 2 + right : 8 + right] = image[0, 0]
            found = moved(image, torch.tensor([[right + 2, down + 2]]), 2)
            torch.testing.assert_close(found[0, 0], expected[2:7, 2:8])


def test_shifted_epochs_are_exact_to_skip_and_leave_validation_still(folder):
    source = MNIST(folder=folder, batch_size=8, shift=2)
    source.prepare(Task())
    whole = list(source.train(3, seed=1))
    later = list(source.train(3, seed=1, skip=len(whole) - 1))
    assert torch.equal(whole[-1].images, later[0].images) and torch.equal(whole[-1].labels, later[0].labels)
    halves = [list(source.train(3, seed=1, rank=rank, world=2))[0].images for rank in (0, 1)]
    assert torch.equal(whole[0].images[0::2], halves[0]) and torch.equal(whole[0].images[1::2], halves[1])
    still = MNIST(folder=folder, batch_size=8)
    still.prepare(Task())
    plainly = list(still.train(3, seed=1))
    assert torch.equal(plainly[0].labels, whole[0].labels) and not torch.equal(plainly[0].images, whole[0].images)
    assert torch.equal(next(iter(still.split("val"))).images, next(iter(source.split("val"))).images)

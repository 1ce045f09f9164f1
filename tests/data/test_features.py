"""The feature cache: right values, the same bytes after any kill, and refusals."""

import errno
import hashlib
import json
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock
from PIL import Image
from torch import nn

from tests import pretend
from vision_attn.contracts import Encoder
from vision_attn.data.images.squares import read_image
from vision_attn.data.photographs.annotation_vectors import features
from vision_attn.data.photographs.annotation_vectors.features import Features, cached_features
from vision_attn.data.photographs.pixels import View
from vision_attn.system.errors import UserError

CPU = torch.device("cpu")


class Pool(Encoder):
    """Averages 2x2 pixels: 28x28 images to 196 annotation vectors of 3."""

    resolution, grid, region_size, trainable = 28, (14, 14), 3, False

    def __init__(self, node: str = "pool") -> None:
        super().__init__()
        self.node = node
        self.calls = 0

    def identity(self) -> dict[str, str | int]:
        return {"backbone": "none", "node": self.node, "resolution": self.resolution, "checksum": "0"}

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert not self.training and images.shape[0] <= 16
        self.calls += 1
        return nn.functional.avg_pool2d(images.float(), 2).flatten(2).transpose(1, 2)


class Failing(Pool):
    """Fails at the batch with this number, counted from 0."""

    def __init__(self, batch: int, error: BaseException) -> None:
        super().__init__()
        self.batch, self.error = batch, error

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.calls == self.batch:
            raise self.error
        return super().forward(images)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    pretend.shards(monkeypatch, 16)


@pytest.fixture
def views(tmp_path) -> list[View]:
    folder = tmp_path / "images"
    folder.mkdir()
    draws = np.random.default_rng(0)
    for number in range(40):
        Image.fromarray(draws.integers(0, 256, (30, 34, 3), dtype=np.uint8)).save(folder / f"{number:02}.png")
    return [View(path.name, path) for path in sorted(folder.iterdir())]


def contents(folder: Path) -> dict[str, str]:
    """Checksums of all files of a cache but its lock."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.name != ".lock"
    }


@pytest.mark.parametrize("residency", ["memmap", "memory", "device"])
def test_vectors_are_the_encoders(views, tmp_path, residency):
    encoder = Pool().train()
    folder = cached_features(tmp_path / "cache", encoder, views)
    assert encoder.training and folder.name.startswith("none-pool-28-")
    cache = Features([folder], residency, CPU)
    rows = np.array([39, 0, 16, 15, 0])
    found = cache.gather(rows, cache.space(len(rows)))
    images = torch.stack([read_image(views[row].file, 28) for row in rows])
    assert torch.equal(found, Pool().eval()(images).half())
    assert not cache.unreadable


def test_used_in_place_when_it_fits(views, tmp_path):
    folder = cached_features(tmp_path / "cache", Pool(), views)
    before, again = contents(folder), Pool()
    assert cached_features(tmp_path / "cache", again, views) == folder
    assert again.calls == 0 and contents(folder) == before


@pytest.mark.skipif(not hasattr(mmap.mmap, "madvise"), reason="the system takes no advice on memory")
def test_all_vectors_of_a_batch_are_read_ahead(views, tmp_path):
    """Before the first one is copied: those of all rows, each with the pages that it begins and ends in."""
    folder, asked = cached_features(tmp_path / "cache", Pool(), views), []

    class Map:
        def __init__(self, shard):
            self.shard, self.offset, self.base = shard, shard.offset, self

        def __getitem__(self, row):
            assert len(asked) == len(rows)
            return self.shard[row]

        def madvise(self, option, start, length):
            self.shard.base.madvise(option, start, length)  # refuses what is not in the file
            asked.append(range(start, start + length))

    cache = Features([folder], "memmap", CPU)
    shard, size = cache.shard, 2 * np.prod(cache.shape)
    cache.shard = lambda number: Map(shard(number))
    rows = np.array([len(views) - 1, 0, 3])
    cache.gather(rows, cache.space(len(rows)))
    for row, part in zip(rows.tolist(), asked, strict=True):
        first = shard(row // features.SHARD).offset + row % features.SHARD * size
        assert first in part and first + size - 1 in part and part.start % mmap.PAGESIZE == 0


def test_caches_of_other_encoders_and_images_stand_side_by_side(views, tmp_path):
    folders = {
        cached_features(tmp_path / "cache", Pool(), views),
        cached_features(tmp_path / "cache", Pool("other"), views),
        cached_features(tmp_path / "cache", Pool(), views[:20]),
        cached_features(tmp_path / "cache", Pool(), [*views, *(view._replace(mirrored=True) for view in views)]),
    }
    assert len(folders) == 4
    Image.new("RGB", (30, 30)).save(views[0].file)  # another photograph under the same name
    assert cached_features(tmp_path / "cache", Pool(), views) not in folders


def test_mirrored_views(views, tmp_path):
    both = [*views[:4], *(view._replace(mirrored=True) for view in views[:4])]
    cache = Features([cached_features(tmp_path / "cache", Pool(), both)], "memmap", CPU)
    straight, mirrored = cache.gather(np.array([1, 5]), cache.space(2)).reshape(2, 14, 14, 3)
    assert torch.equal(straight, mirrored.flip(1)) and not torch.equal(straight, mirrored)


def test_a_cache_of_pixels_that_were_resized_otherwise_is_made_again(views, tmp_path, monkeypatch, caplog):
    make = features.make_header
    with monkeypatch.context() as before:  # as older versions wrote it
        before.setattr(features, "make_header", lambda *given: {k: v for k, v in make(*given).items() if k != "pixels"})
        old = cached_features(tmp_path / "cache", Pool(), views)
    new = cached_features(tmp_path / "cache", Pool(), views)
    assert new != old and f"{old}: made when photographs were resized in another way" in caplog.text
    caplog.clear()
    assert cached_features(tmp_path / "cache", Pool(), views) == new and not caplog.text


def test_a_cache_of_another_is_refused(views, tmp_path):
    ours, theirs = (cached_features(tmp_path / "cache", Pool(node), views) for node in ("ours", "theirs"))
    shutil.copy(theirs / "index.json", ours / "index.json")
    with pytest.raises(UserError, match="made for another encoder.*theirs.*ours.*remove the folder"):
        cached_features(tmp_path / "cache", Pool("ours"), views)


def test_lost_and_damaged_shards_are_computed_again(views, tmp_path, caplog):
    folder = cached_features(tmp_path / "cache", Pool(), views)
    whole = contents(folder)
    (folder / "00001.npy").unlink()
    (folder / "00002.npy").write_bytes(b"short")
    encoder = Pool()
    cached_features(tmp_path / "cache", encoder, views)
    assert contents(folder) == whole and encoder.calls == 2
    with open(folder / "00000.npy", "r+b") as file:
        file.seek(500)
        file.write(b"changed")
    assert cached_features(tmp_path / "cache", Pool(), views, verify=True) == folder
    assert contents(folder) == whole and "00000.npy: damaged" in caplog.text


def listed(change) -> object:
    """Makes a text of an index out of what `change` does to it."""

    def damage(index: dict) -> str:
        return json.dumps(change(index) or index)

    return damage


DAMAGES = {
    "text": lambda index: "{",
    "list": listed(lambda index: [index]),
    "number": listed(lambda index: 7),
    "nested": lambda index: "[" * 100_000,
    "no shards": listed(lambda index: index.pop("shards") and None),
    "no format": listed(lambda index: index.pop("format") and None),
    "shards of another type": listed(lambda index: index.update(shards={"a": 1})),
    "format of another type": listed(lambda index: index.update(format="1")),
    "a shard of another type": listed(lambda index: index["shards"].__setitem__(1, [])),
    "a name of another type": listed(lambda index: index["shards"][1].update(file=[])),
    "a name outside": listed(lambda index: index["shards"][1].update(file="../00001.npy")),
    "no checksum": listed(lambda index: index["shards"][1].pop("sha256") and None),
    "no complaints": listed(lambda index: index["shards"][1].update(unreadable=[])),
    "complaints of another type": listed(lambda index: index["shards"][1].update(unreadable={"a": {}})),
    "another shape": listed(lambda index: index["shards"][1].update(shape=[16, 196, 4])),
    "no size": listed(lambda index: index["shards"][1].update(bytes=None)),
    "twice": listed(lambda index: index["shards"].append(index["shards"][1])),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_computed_again(views, tmp_path, caplog, damage):
    folder = cached_features(tmp_path / "cache", Pool(), views)
    whole, index = contents(folder), json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(DAMAGES[damage](index))
    with pytest.raises(UserError, match=folder.name) as refused:
        Features([folder], "memmap", CPU)
    assert "\n" not in str(refused.value)
    encoder = Pool()
    assert cached_features(tmp_path / "cache", encoder, views) == folder
    assert contents(folder) == whole and "of 3 parts are unfinished or damaged" in caplog.text
    assert encoder.calls == (3 if "1 of 3" not in caplog.text else 1)


def lie(path: Path, array: np.ndarray) -> None:
    """Another array in place of that in `path`, in a file of the same size."""
    size = path.stat().st_size
    with open(path, "wb") as file:
        np.lib.format.write_array(file, array, allow_pickle=True)
    os.truncate(path, size)


LIES = {
    "objects": lambda path: lie(path, np.array([{"a": 1}] * 16, dtype=object)),
    "another type": lambda path: lie(path, np.zeros((16, 196, 3), np.int16)),
    "another shape": lambda path: lie(path, np.zeros((16, 3, 196), np.float16)),
    "another order": lambda path: lie(path, np.asfortranarray(np.zeros((16, 196, 3), np.float16))),
    "too many": lambda path: lie(path, np.zeros((17, 196, 3), np.float16)),
    "no header": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "an archive": lambda path: path.write_bytes(b"PK\x03\x04" + path.read_bytes()[4:]),
    "odd text": lambda path: path.write_bytes(path.read_bytes()[:10] + b"(" * 118 + path.read_bytes()[128:]),
}


@pytest.mark.parametrize("damage", LIES)
def test_a_shard_whose_header_lies_is_computed_again(views, tmp_path, damage):
    folder = cached_features(tmp_path / "cache", Pool(), views)
    whole = contents(folder)
    LIES[damage](folder / "00001.npy")
    with pytest.raises(UserError, match=f"{folder.name}: these features are damaged"):
        Features([folder], "memory", CPU)
    encoder = Pool()
    cached_features(tmp_path / "cache", encoder, views)
    assert contents(folder) == whole and encoder.calls == 1


def test_a_folder_that_promises_endless_features_is_refused(tmp_path):
    (tmp_path / "index.json").write_text(json.dumps({"shape": [10**18, 1, 1], "shards": []}))
    with pytest.raises(UserError, match="damaged or incomplete"):
        Features([tmp_path], "memmap", CPU)
    with pytest.raises(UserError, match="damaged or incomplete"):
        Features([tmp_path / "none"], "memmap", CPU)


def test_names_of_any_bytes(views, tmp_path):
    odd = [views[0]._replace(name=os.fsdecode(b"\xff.png")), views[1]._replace(name="half\ud800.png")]
    views[1].file.write_text("no image")
    cache = Features([cached_features(tmp_path / "cache", Pool(), odd)], "memmap", CPU)
    assert list(cache.unreadable) == ["half\ud800.png"]


def test_unreadable_images_are_named_and_the_rest_goes_on(views, tmp_path):
    views[7].file.write_bytes(views[7].file.read_bytes()[:100])
    views[30].file.write_text("no image")
    cache = Features([cached_features(tmp_path / "cache", Pool(), views)], "memmap", CPU)
    assert list(cache.unreadable) == ["07.png", "30.png"]
    assert str(tmp_path) not in json.dumps(cache.unreadable)  # so that a cache may be moved
    rows = np.array([7, 8])
    found = cache.gather(rows, cache.space(2))
    assert not found[0].any() and torch.equal(found[1], Pool().eval()(read_image(views[8].file, 28)[None])[0].half())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_too_large_for_float16_stays_finite(views, tmp_path, dtype):
    class Loud(Pool):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return (super().forward(images) * 1e6).to(dtype)

    cache = Features([cached_features(tmp_path / "cache", Loud(), views)], "memmap", CPU)
    assert cache.gather(np.arange(40), cache.space(40)).isfinite().all()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_full_disk_keeps_what_is_done(views, tmp_path, number):
    expected = contents(cached_features(tmp_path / "expected", Pool(), views))
    with pytest.raises(UserError, match="disk is full.*kept" if number == errno.ENOSPC else "Permission denied"):
        cached_features(tmp_path / "cache", Failing(1, OSError(number, os.strerror(number))), views)
    (folder,) = (tmp_path / "cache").iterdir()
    assert not list(folder.glob(".*.part"))
    encoder = Pool()
    cached_features(tmp_path / "cache", encoder, views)
    assert contents(folder) == expected and encoder.calls == 2  # one shard of three was there


def test_a_disk_too_small_is_said_beforehand(views, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(UserError, match="still need [1-9][0-9.]* (bytes|kB)"):
        cached_features(tmp_path / "cache", Pool(), views)


WRITER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
import tests.data.test_features
from tests.data.test_features import Pool
from vision_attn.data.photographs.annotation_vectors import features
from vision_attn.data.photographs.pixels import View

class Slow(Pool):
    def forward(self, images):
        print("batch", flush=True)
        time.sleep(0.3)
        return super().forward(images)

features.SHARD = 32
views = [View(path.name, path) for path in sorted(Path({images!r}).iterdir())]
print(features.cached_features(Path({cache!r}), Slow(), views))
"""


def start(views, cache: Path) -> subprocess.Popen:
    script = textwrap.dedent(WRITER).format(
        tests=str(Path(__file__).parents[1]), images=str(views[0].file.parent), cache=str(cache)
    )
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip


@pytest.mark.parametrize("batches", [1, 3])
def test_killed_at_any_moment_the_next_run_ends_with_the_same_bytes(views, tmp_path, batches, monkeypatch):
    pretend.shards(monkeypatch, 32)  # two batches of 16
    expected = contents(cached_features(tmp_path / "expected", Pool(), views))
    writer = start(views, tmp_path / "cache")
    for _ in range(batches):
        assert writer.stdout.readline() == "batch\n"
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    (folder,) = (tmp_path / "cache").iterdir()
    assert contents(folder) != expected and list(folder.glob(".*.part"))  # killed while a shard was being written
    encoder = Pool()
    cached_features(tmp_path / "cache", encoder, views)
    assert contents(folder) == expected
    assert encoder.calls == (1 if batches == 3 else 3)


def test_a_shard_that_another_process_computes_is_waited_for(views, tmp_path, caplog):
    folder = cached_features(tmp_path / "cache", Pool(), views)
    whole = contents(folder)
    (folder / "00001.npy").rename(tmp_path / "00001.npy")
    second = Pool()
    with ThreadPoolExecutor(1) as thread:
        with FileLock(folder / ".00001.lock"):  # as the other process would hold it
            result = thread.submit(cached_features, tmp_path / "cache", second, views)
            while "other processes compute what is left; waiting" not in caplog.text:
                assert not result.done()
                time.sleep(0.01)
            (tmp_path / "00001.npy").rename(folder / "00001.npy")
        assert result.result(timeout=60) == folder
    assert second.calls == 0 and contents(folder) == whole


def test_processes_divide_the_shards(views, tmp_path, monkeypatch):
    """Two threads stand in for two processes: each computes what the other has not begun, to the same bytes."""
    pretend.shards(monkeypatch, 4)
    expected = contents(cached_features(tmp_path / "expected", Pool(), views))
    together = threading.Barrier(2)

    class Meeting(Pool):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            if self.calls == 0:
                together.wait(timeout=60)  # neither is done before the other has begun
            return super().forward(images)

    encoders = [Meeting(), Meeting()]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda encoder: cached_features(tmp_path / "cache", encoder, views), encoders))
    assert found[0] == found[1] and contents(found[0]) == expected
    assert sum(encoder.calls for encoder in encoders) == 10 and min(encoder.calls for encoder in encoders) > 0


def test_what_another_process_left_when_it_was_killed_is_removed(views, tmp_path, monkeypatch):
    """Also if it was killed after this one began."""
    pretend.shards(monkeypatch, 32)
    cache = tmp_path / "cache"

    class Outliving(Pool):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            if self.calls == 0:
                other = start(views, cache)  # takes the second shard
                assert other.stdout.readline() == "batch\n"
                other.kill()
                other.communicate()
                (folder,) = cache.iterdir()
                assert len(list(folder.glob(".*.part"))) == 2
            return super().forward(images)

    folder = cached_features(cache, Outliving(), views)
    assert not list(folder.glob(".*.part"))


def test_half_a_line_of_a_killed_process_costs_one_shard(views, tmp_path):
    expected = contents(cached_features(tmp_path / "expected", Pool(), views))
    with pytest.raises(KeyboardInterrupt):
        cached_features(tmp_path / "cache", Failing(2, KeyboardInterrupt()), views)
    (folder,) = (tmp_path / "cache").iterdir()
    listed = folder / "shards.jsonl"
    os.truncate(listed, listed.stat().st_size - 10)  # killed while it listed the second shard
    encoder = Pool()
    cached_features(tmp_path / "cache", encoder, views)
    assert contents(folder) == expected and encoder.calls == 2


def test_a_cache_of_more_shards_than_a_process_may_open(views, tmp_path, monkeypatch):
    pretend.shards(monkeypatch, 1)
    folder = cached_features(tmp_path / "cache", Pool(), views)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))  # the default of macOS
    try:
        cache = Features([folder] * 8, "memmap", CPU)
        found = cache.gather(np.arange(320), cache.space(320))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found.isfinite().all() and found.std() > 0

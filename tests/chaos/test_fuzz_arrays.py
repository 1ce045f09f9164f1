"""Damaged files of MNIST and caches of features: read, computed again, or refused in one line."""

import gzip
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attempts import folder_in_memory
from children import attempt_all
from damage import JSON, damaged, drawn, perhaps, record
from hypothesis import strategies as st
from PIL import Image

from tests import pretend
from tests.data.test_features import Pool
from vision_attn.data.digits.mnist import read_mnist
from vision_attn.data.digits.mnist_files import FILES, read_idx
from vision_attn.data.photographs.annotation_vectors.features import Features, cached_features
from vision_attn.data.photographs.pixels import Pixels, View
from vision_attn.system.errors import UserError


def idx(array: np.ndarray) -> bytes:
    """The file of MNIST that holds `array`."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def test_mnist_files(tally: Any, share: Callable[[int], int]) -> None:
    number = share(2000)
    draws = np.random.default_rng(0)
    plain = [idx(draws.integers(0, 256, (3, 28, 28))), idx(np.arange(10)), idx(draws.integers(0, 9, (4, 5)))]
    inputs = damaged(plain, number // 2, seed=0, head=20)
    packed = [gzip.compress(content) for content in (*plain, *inputs[:20], bytes(10**7))]
    inputs += damaged(packed, number - len(inputs), seed=1, head=30)
    with folder_in_memory() as folder:

        def attempt(content: bytes) -> str:
            path = folder / f"{os.getpid()}{'.gz' if content[:2] == packed[0][:2] else ''}"
            path.write_bytes(content)
            return str(read_idx(path).shape)

        outcomes = attempt_all(attempt, inputs)
    for content, outcome in zip(inputs, outcomes, strict=True):
        tally.add(f"{outcome} {content[:60].hex()}" if outcome.failed else None, outcome.seconds)
    tally.check(at_least=number)


def test_mnist_folders(tally: Any, share: Callable[[int], int]) -> None:
    """Four files that do not fit together, and labels that are no digits."""
    number = share(200)
    digits = np.zeros((5010, 28, 28))
    labels = np.arange(5010) % 10
    whole = [idx(digits), idx(labels), idx(digits[:7]), idx(labels[:7])]
    names = [name.removesuffix(".gz") for pair in FILES.values() for name in pair]
    inputs = [(turn % 4, damaged([whole[turn % 4]], 1, seed=turn, head=6000)[0]) for turn in range(number)]
    with folder_in_memory() as folder:
        for name, content in zip(names, whole, strict=True):
            (folder / name).write_bytes(content)

        def attempt(item: tuple[int, bytes]) -> str:
            which, content = item
            here = folder / str(os.getpid())
            shutil.rmtree(here, ignore_errors=True)
            here.mkdir()
            for name in names:
                os.link(folder / name, here / name)
            os.unlink(here / names[which])
            (here / names[which]).write_bytes(content)
            return str({split: int(part.labels.max()) for split, part in read_mnist(str(here)).items()})

        outcomes = attempt_all(attempt, inputs)
    for item, outcome in zip(inputs, outcomes, strict=True):
        tally.add(f"{outcome} {item[0]}" if outcome.failed else None, outcome.seconds)
    tally.check(at_least=number)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[View]]:
    """A finished cache of five images in shards of two, and the images."""
    pretend.shards(monkeypatch, 2)
    (tmp_path / "images").mkdir()
    for number in range(5):
        Image.new("RGB", (28, 28), (40 * number, 7, 9)).save(tmp_path / "images" / f"{number}.png")
    views = [View(path.name, path) for path in sorted((tmp_path / "images").iterdir())]
    return cached_features(tmp_path / "cache", Pool(), views), views


def indexes(whole: dict, number: int) -> list[bytes]:
    """What index.json may say, close to `whole`."""
    sizes = st.sampled_from([0, 1, 2, 3, 5, 196, -1, 10**18])
    shard = record(
        file=st.sampled_from(["00000.npy", "00001.npy", "00002.npy", "../00000.npy", "index.json"]),
        shape=st.lists(sizes, max_size=4) | st.just([2, 196, 3]),
        bytes=st.just(whole["shards"][0]["bytes"]) | sizes,
        sha256=st.just(whole["shards"][0]["sha256"]),
        unreadable=st.just({}) | st.dictionaries(st.text(max_size=3), perhaps(st.text()), max_size=2),
    )
    fields = {key: perhaps(st.just(value)) for key, value in whole.items()}
    fields["shape"] = st.just(whole["shape"]) | st.lists(sizes, min_size=3, max_size=3)
    fields["shards"] = st.just(whole["shards"]) | st.lists(shard | JSON, max_size=4)
    return [json.dumps(content).encode() for content in drawn(record(**fields), number)]


def test_caches_of_features(cache: tuple[Path, list[View]], tally: Any, share: Callable[[int], int]) -> None:
    """Whatever became of a cache: refused as made for others, or used and then whole."""
    number = share(1200)
    whole, views = cache
    files = {path.name: path.read_bytes() for path in whole.iterdir() if path.name != ".lock"}
    index, shards = files["index.json"], [content for name, content in files.items() if name.endswith(".npy")]
    inputs = [("index.json", content) for content in indexes(json.loads(index), number // 3)]
    inputs += [("index.json", content) for content in damaged([index], number // 3, seed=2, head=3000, text=True)]
    inputs += [("00001.npy", content) for content in damaged(shards, number - len(inputs), seed=3, head=140)]
    pixels = Pixels(views, 28).gather(np.arange(len(views)))
    expected = torch.cat([Pool().eval()(one[None]) for one in pixels]).half()
    device = torch.device("cpu")
    with folder_in_memory() as folder:

        def attempt(item: tuple[str, bytes]) -> str:
            here = folder / str(os.getpid()) / whole.name
            shutil.rmtree(here, ignore_errors=True)
            here.mkdir(parents=True)
            for name, content in files.items():
                (here / name).write_bytes(content)
            (here / item[0]).write_bytes(item[1])
            try:
                said = str(Features([here], "memory", device).shape)
            except UserError as error:
                said = f"refused: {error}"
            encoder = Pool()
            found = Features([cached_features(here.parent, encoder, views)], "memmap", device)
            if encoder.calls or item[0] == "index.json":
                vectors = found.gather(np.arange(5), found.space(5))
                assert torch.equal(vectors, expected), "other vectors"
            return said

        outcomes = attempt_all(attempt, inputs)
    for item, outcome in zip(inputs, outcomes, strict=True):
        tally.add(f"{outcome} {item}" if outcome.failed else None, outcome.seconds)
    assert share(20) == 1 or sum(outcome.status == "answered" for outcome in outcomes) > number / 4
    tally.check(at_least=number)

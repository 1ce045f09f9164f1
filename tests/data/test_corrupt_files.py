"""Of a file of any kind that is damaged, the error is a UserError of one line that names the file."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import save

from vision_attn.configuration.config import load
from vision_attn.configuration.weights import read_shapes
from vision_attn.data.digits.mnist_files import read_idx
from vision_attn.data.films.decode import decoded_film
from vision_attn.data.images.lazy import open_pixels
from vision_attn.data.images.open import open_photograph
from vision_attn.data.labelled.coco_boxes import Boxes
from vision_attn.data.lines.characters import Characters
from vision_attn.data.photographs.annotation_files.caption_files import read_photographs
from vision_attn.data.photographs.annotation_files.references import read_results
from vision_attn.data.photographs.annotation_files.samples import LeftOut
from vision_attn.data.photographs.annotation_files.shard_files import read
from vision_attn.data.photographs.annotation_vectors.vector_databases import Hdf5
from vision_attn.data.photographs.annotation_vectors.vectors import read_vectors
from vision_attn.data.photographs.store import Photographs, locate
from vision_attn.data.record_files import hashed_split
from vision_attn.data.stories.babi import read_questions
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.data.word_vectors import read_word_vectors
from vision_attn.encoders.backbone import read_state
from vision_attn.engine.run_folder.checkpoint import load_trainer
from vision_attn.system.errors import UserError

ROWS = [{"image": f"{name}.jpg", "caption": f"a {name} that runs"} for name in ("dog", "cat", "bird")]


def written(write: Callable[[Any], object]) -> bytes:
    """What a function writes into a file that is open."""
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def picture(number: int = 0) -> Image.Image:
    return Image.effect_noise((24, 24), 40 + number).convert("RGB")


def tar() -> bytes:
    def write(file: Any) -> None:
        with tarfile.open(fileobj=file, mode="w") as opened:
            for name, content in {
                "a.jpg": written(lambda file: picture().save(file, "JPEG")),
                "a.txt": b"a dog",
            }.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                opened.addfile(member, io.BytesIO(content))

    return written(write)


def columns(kind: str) -> bytes:
    """A file with columns; a time after the year 9999, which Python does not have, is in one of them."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import ipc, parquet

    table = pyarrow.Table.from_pylist(ROWS)
    if kind == "late":
        table = table.append_column("added", pyarrow.array([2**62] * len(ROWS)).cast(pyarrow.timestamp("us")))
    if kind != "arrow":
        return written(lambda file: parquet.write_table(table, file))

    def write(file: Any) -> None:
        with ipc.new_file(file, table.schema) as opened:
            opened.write_table(table)

    return written(write)


def hdf5() -> bytes:
    h5py = pytest.importorskip("h5py")

    def write(file: Any) -> None:
        with h5py.File(file, "w") as opened:
            opened["names"] = [b"dog", b"cat"]
            opened["features"] = np.ones((2, 4, 3), np.float32)

    return written(write)


def from_hdf5(path: Path) -> None:
    database = Hdf5(path)
    for name in ("dog", "cat"):
        if (found := database.by_name(f"{name}.jpg")) is not None:
            read_vectors(found, (4, 3))


def shard(path: Path) -> list:
    return [*read(path, "image", "caption", LeftOut())]


COCO = {
    "images": [{"id": 1, "file_name": "dog.jpg", "width": 24, "height": 24}],
    "annotations": [{"id": 5, "image_id": 1, "category_id": 1, "bbox": [1, 2, 8, 9]}],
    "categories": [{"id": 1, "name": "dog"}],
}
IDX = b"\0\0\x08\x01\0\0\0\x10" + bytes(range(16))
STORY = b"1 Mary moved to the bathroom.\n2 Where is Mary?\tbathroom\t1\n"
CONFIG = {"task": {"class_path": "a.B", "init_args": {"size": 3}}, "run": {"epochs": 3}}

KINDS: dict[str, tuple[Callable[[], bytes], Callable[[Path], object]]] = {
    "a.jpg": (lambda: written(lambda file: picture().save(file, "JPEG")), open_photograph),
    "a.png": (lambda: written(lambda file: picture().save(file, "PNG")), open_photograph),
    "a.webp": (lambda: written(lambda file: picture().save(file, "WEBP")), open_photograph),
    "a.npy": (lambda: written(lambda file: np.save(file, np.ones((8, 8, 3), np.uint8))), open_pixels),
    "a.gif": (
        lambda: written(lambda file: picture().save(file, "GIF", save_all=True, append_images=[picture(30)])),
        lambda path: decoded_film(path, 2, 16),
    ),
    "a.json": (lambda: json.dumps(ROWS).encode(), read_photographs),
    "a.jsonl": (lambda: "\n".join(map(json.dumps, ROWS)).encode(), read_photographs),
    "a.csv": (lambda: b"image,caption\ndog.jpg,a dog\ncat.jpg,a cat\n", read_photographs),
    "a.parquet": (lambda: columns("parquet"), read_photographs),
    "late.parquet": (lambda: columns("late"), read_photographs),
    "a.arrow": (lambda: columns("arrow"), read_photographs),
    "results.json": (lambda: json.dumps([{"image_id": 1, "caption": "a dog"}]).encode(), read_results),
    "boxes.json": (lambda: json.dumps(COCO).encode(), Boxes),
    "a.tar": (tar, shard),
    "shard.parquet": (lambda: columns("parquet"), shard),
    "a.h5": (hdf5, from_hdf5),
    "vectors.npz": (
        lambda: written(lambda file: np.savez(file, features=np.ones((4, 3), np.float32))),
        lambda path: read_vectors(path, (4, 3)),
    ),
    "digits-idx1-ubyte": (lambda: IDX, read_idx),
    "digits-idx1-ubyte.gz": (lambda: gzip.compress(IDX), read_idx),
    "story.txt": (lambda: STORY, lambda path: read_questions(path, "1")),
    "glove.txt": (lambda: b"dog 1 2 3\ncat 4 5 6\n", lambda path: read_word_vectors(path, {"dog", "cat"}, 3)),
    "vocabulary.json": (lambda: Vocabulary(["dog", "cat"]).json().encode(), Vocabulary.load),
    "characters.json": (lambda: json.dumps({"characters": ["a", "b"]}).encode(), Characters.load),
    "config.yaml": (lambda: yaml.safe_dump(CONFIG).encode(), load),
    "model.safetensors": (lambda: save({"a": torch.ones(3, 2)}), read_shapes),
    "encoder.safetensors": (lambda: save({"a": torch.ones(3, 2)}), read_state),
    "encoder.pt": (lambda: written(lambda file: torch.save({"a": torch.ones(3, 2)}, file)), read_state),
    "trainer.pt": (
        lambda: written(lambda file: torch.save({"step": {}, "log": {}, "random": []}, file)),
        lambda path: load_trainer(path.parent),
    ),
}
"""For each name: what a whole file holds, and what reads it."""


def damaged(content: bytes) -> Iterator[bytes]:
    """A file with other bytes, cut, empty, or of something else."""
    draws = Random(0)
    for _ in range(25):
        other = bytearray(content)
        for _ in range(draws.choice([1, 3, 10])):
            other[draws.randrange(len(other))] = draws.choice([0, 1, 34, 127, 128, 255, draws.randrange(256)])
        yield bytes(other)
    yield from (content[: draws.randrange(1, len(content))] for _ in range(8))
    yield from (b"", b"\0" * 64, bytes(range(256)), content + content, b"[1, 2]", b"{}", b'{"a": ' + b"9" * 5000 + b"}")
    yield "\ufeffnull".encode()
    yield json.dumps([{"image": "\ud800.jpg", "caption": "\ud800"}, *ROWS]).encode()


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    whole, read_file = KINDS[name]
    refused, path = 0, tmp_path / name
    for content in damaged(whole()):
        path.write_bytes(content)
        try:
            read_file(path)
        except UserError as error:
            refused += 1
            assert path.name in str(error) and "\n" not in str(error).strip(), (str(error), content[:200])
    assert refused > 2


def test_a_time_that_python_does_not_have_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "late.parquet").write_bytes(columns("late"))
    with pytest.raises(UserError, match=r"late\.parquet holds a value that cannot be read: date value out of range"):
        read_photographs(tmp_path / "late.parquet")


def test_a_name_that_no_file_can_have_has_a_split_and_is_left_out(tmp_path: Path) -> None:
    records = [{"image": name, "caption": "a dog"} for name in ("\ud83d.jpg", "dog.jpg")]
    (tmp_path / "a.json").write_text(json.dumps(records))
    Image.new("RGB", (8, 8)).save(tmp_path / "dog.jpg")
    photographs = read_photographs(tmp_path / "a.json").photographs
    assert hashed_split("\ud83d.jpg") in ("train", "val", "test")
    found = locate({"train": Photographs.of(photographs)}, {"train": tmp_path})
    assert [photograph.name for photograph in found["train"]] == ["dog.jpg"]

"""Files of annotation vectors that try to do harm, or whose vectors are easily taken for those of others."""

import os
from io import BytesIO
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests import forked
from tests.data.test_hostile_tables import deadline  # noqa: F401, a fixture
from vision_attn.data.photographs.annotation_vectors.stored_arrays import LARGEST
from vision_attn.data.photographs.annotation_vectors.vectors import Vectors, read_boxes, read_vectors
from vision_attn.data.photographs.pixels import View
from vision_attn.system.errors import UserError

h5py = pytest.importorskip("h5py", reason="needs h5py, of the extra [features]")
pytestmark = pytest.mark.usefixtures("deadline")
L, D = 2, 3
ARRAY = np.arange(6, dtype=np.float32).reshape(L, D)


def vectors_of(path: Path, *names: str, ids: list | None = None, length: int | None = L) -> list:
    """The vectors of photographs; None where there are none."""
    views = [View(name, name, False, 1) for name in names]
    files = Vectors(views, path, (length, D), [*names] if ids is None else ids).files
    return [file and read_vectors(file, (length, D)).tolist() for file in files]


def write(path: Path, **arrays: object) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def npy(array: np.ndarray) -> bytes:
    np.save(file := BytesIO(), array)
    return file.getvalue()


def written(folder: Path, kind: str, keys: list[str]) -> Path:
    """Vectors under keys, in a place of a kind."""
    folder.mkdir(exist_ok=True)
    if kind == "folder":
        for key in keys:
            (folder / key).parent.mkdir(exist_ok=True)
            (folder / f"{key}.npy").write_bytes(npy(ARRAY))
        return folder
    if kind == "hdf5":
        return write(folder / "a.h5", **dict.fromkeys(keys, ARRAY))
    if kind == "list":
        return write(folder / "a.h5", names=keys, features=np.stack([ARRAY] * len(keys)))
    lmdb = pytest.importorskip("lmdb", reason="needs lmdb, of the extra [features]")
    with lmdb.open(str(folder / "lmdb"), map_size=2**20) as opened, opened.begin(write=True) as writing:
        for key in keys:
            writing.put(key.encode(), npy(ARRAY))
    return folder / "lmdb"


@pytest.mark.parametrize("kind", ["folder", "hdf5", "list", "lmdb"])
def test_two_photographs_do_not_share_vectors(tmp_path: Path, kind: str) -> None:
    place = written(tmp_path / "v", kind, ["beach"])
    pairs = [("beach.jpg", "beach.png")]
    pairs += [] if kind == "folder" else [("x/beach.jpg", "y/beach.jpg"), ("y/beach.png", "beach.jpg")]
    for one, other in pairs:
        with pytest.raises(UserError, match=f'"{one}" and "{other}" would both have the vectors of ') as caught:
            vectors_of(place, "c.jpg", one, other)
        assert str(place) in str(caught.value) and "\n" not in str(caught.value)
    assert vectors_of(place, "beach.jpg", "c.jpg") == [ARRAY.tolist(), None]


def test_two_ids_do_not_share_vectors(tmp_path: Path) -> None:
    place = written(tmp_path / "v", "lmdb", ["7.npy"])
    with pytest.raises(UserError, match='"a.jpg" and "b.jpg" would both have the vectors of 7.npy'):
        vectors_of(place, "a.jpg", "b.jpg", ids=[7, "7.npy"])
    assert vectors_of(place, "a.jpg", "b.jpg", ids=[7, 7]) == [None, None]


@pytest.mark.parametrize("kind", ["hdf5", "list", "lmdb"])
def test_photographs_of_one_name_have_vectors_by_their_paths(tmp_path: Path, kind: str) -> None:
    place = written(tmp_path / "v", kind, ["beach.jpg", "beach.png"])
    assert vectors_of(place, "x/beach.jpg", "x/beach.png") == [ARRAY.tolist()] * 2


def test_hdf5_lists_name_each_row_once(tmp_path: Path) -> None:
    three = np.stack([ARRAY] * 3)
    for arrays, message in (
        ({"names": ["a.jpg", "b.jpg", "a.jpg"], "features": three}, 'names names "a.jpg" 2 times'),
        ({"ids": [5, 6, 7, 8], "features": three}, "ids names 4 photographs, but of the arrays features has 3 rows"),
        ({"ids": [5, 6], "features": three}, "ids names 2 photographs, but of the arrays features has 3 rows"),
        ({"ids": [5, 6], "features": three, "boxes": np.zeros((2, L, 4))}, "ids names 2 photographs, but of .* 3 rows"),
        ({"ids": [5, 6]}, "ids names 2 photographs, but of the arrays there is none"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            vectors_of(write(tmp_path / "a.h5", **arrays), "a.jpg")
        assert "a.h5: " in str(caught.value) and "\n" not in str(caught.value)
    assert vectors_of(write(tmp_path / "b.h5", names=5, b=ARRAY), "b.jpg") == [ARRAY.tolist()]


def refused(path: Path, name: str, message: str) -> None:
    for length in (L, None):
        with pytest.raises(UserError, match=message) as caught:
            vectors_of(path, name, length=length)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.slow
def test_shapes_are_looked_at_before_numbers_are_read(tmp_path: Path) -> None:
    """What small files declare would take gigabytes."""
    number = LARGEST // 24 + 1
    bomb = "must hold 2 vectors of 3 numbers|declares .* at most 268,435,456 are read|268,435,456 bytes"
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a.jpg", (10**9, D), "f8", chunks=(1, D))
        file.create_dataset("b.jpg/feat", (number, D), "f8", chunks=(1, D))
        file.create_dataset("c.jpg", (L, D), "f8", maxshape=(None, D), chunks=(number, D), compression="gzip")
        file.create_dataset("d.jpg", (L, 10**9, D), "f8", chunks=(1, 1, D))
    for name in ("a.jpg", "b.jpg", "c.jpg", "d.jpg"):
        refused(tmp_path / "a.h5", name, bomb)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["ids"] = [1, 2]
        file.create_dataset("features", (2, number, D), "f8", chunks=(1, 1, D))
    refused(tmp_path / "b.h5", "1.jpg", bomb)
    for name, content in (("ids", "i8"), ("names", h5py.string_dtype())):
        with h5py.File(tmp_path / "c.h5", "w") as file:
            file.create_dataset(name, (10**9,), content, chunks=(1000,))
        with pytest.raises(UserError, match=f"c.h5 is not a readable .*/{name} declares 1,000,000,000 names"):
            vectors_of(tmp_path / "c.h5", "1.jpg")
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((number, D)))
    assert (tmp_path / "a.npz").stat().st_size < 10**6
    with (tmp_path / "b.npy").open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (number, D)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(24 * number + 128)
    for name in ("a", "b"):
        with pytest.raises(UserError, match=bomb):
            vectors_of(tmp_path, f"{name}.jpg", length=None)
    np.savez_compressed(tmp_path / "c.npz", x=ARRAY, boxes=np.zeros((number, 4)), image_w=np.zeros(number))
    assert vectors_of(tmp_path, "c.jpg") == [ARRAY.tolist()]
    with pytest.raises(UserError, match="c.npz: no array can be read .*boxes has .* bytes unpacked"):
        read_boxes(tmp_path / "c.npz", lambda: (1, 1))


def test_texts_that_a_list_repeats_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the limit is 256 MB
    monkeypatch.setattr("vision_attn.data.photographs.annotation_vectors.vector_databases.LARGEST", 100_000)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["names"] = [f"{number}{'x' * 2000}" for number in range(60)]
        file["features"] = np.stack([ARRAY] * 60)
    with pytest.raises(UserError, match="/names has more than 100,000 characters"):
        vectors_of(tmp_path / "a.h5", "a.jpg")


def test_nothing_outside_of_an_hdf5_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "raw").write_bytes(bytes(24))
    write(tmp_path / "other.h5", x=ARRAY)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["real"] = ARRAY
        file["soft.jpg"] = h5py.SoftLink("/real")
        file["deep/soft.jpg"] = h5py.SoftLink("../real")
        file["fifo.jpg"] = h5py.ExternalLink(str(tmp_path / "fifo"), "/x")
        file["other.jpg"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
        file["to_other.jpg"] = h5py.SoftLink("/other.jpg")
        file["loop.jpg"] = h5py.SoftLink("/loop.jpg")
        file["group.jpg/feat"] = ARRAY
        file["group.jpg/bbox"] = h5py.ExternalLink(str(tmp_path / "fifo"), "/x")
        file.create_dataset("raw.jpg", (L, D), "f4", external=[(str(tmp_path / "raw"), 0, 24)])
        layout = h5py.VirtualLayout((L, D), "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", shape=(L, D))
        file.create_virtual_dataset("virtual.jpg", layout)
    names = ["soft.jpg", "fifo.jpg", "other.jpg", "to_other.jpg", "loop.jpg", "deep/soft.jpg"]
    found = vectors_of(tmp_path / "a.h5", *names[:5])
    assert found == [ARRAY.tolist(), None, None, None, None]
    assert vectors_of(tmp_path / "a.h5", "group.jpg") == [ARRAY.tolist()]
    for name in ("raw.jpg", "virtual.jpg"):
        refused(tmp_path / "a.h5", name, f"no array can be read .*/{name} lies in other files")


def test_other_things_than_numbers_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a.jpg"] = np.array([["a", "b", "c"]] * L, dtype=h5py.string_dtype())
        file.create_dataset("b.jpg", (L, D), "S20000000")
        file["c.jpg"] = h5py.Empty("f4")
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        refused(tmp_path / "a.h5", name, "must hold .* vectors of 3 numbers, .*, but holds ")
    (tmp_path / "d.npy").write_bytes(b"\x80\x04.")
    refused(tmp_path, "d.jpg", "it is a pickle, which could run code")


@pytest.fixture
def database(tmp_path: Path) -> bytes:
    """An LMDB that was written to several times."""
    lmdb = pytest.importorskip("lmdb", reason="needs lmdb, of the extra [features]")
    with lmdb.open(str(tmp_path / "whole"), map_size=2**24) as opened:
        for number in range(40):
            with opened.begin(write=True) as writing:
                writing.put(str(number).encode(), npy(np.full((L, D), number, np.float32)))
                writing.put(f"{number} more".encode(), bytes(9000))
    return (tmp_path / "whole" / "data.mdb").read_bytes()


def read(path: Path) -> None:
    vectors_of(path, *(f"{number}.jpg" for number in range(40)))


def test_a_cut_lmdb_is_refused(tmp_path: Path, database: bytes) -> None:
    """Its library would read beyond the end of the file, which kills the process."""
    sizes = [len(database) * share // 1000 for share in (1, 10, 30, 100, 500, 900, 999, 1000)]
    sizes += [0, 19, 20, 44, 4096, 4200]
    sizes += [Random(0).randrange(len(database)) for _ in range(20)]
    files = [tmp_path / f"{size}.lmdb" for size in sizes]
    for size, file in zip(sizes, files, strict=True):
        file.write_bytes(database[:size])
    assert forked.refused(read, files, tmp_path) == [size < len(database) for size in sizes]
    (tmp_path / "a.lmdb").write_bytes(database[: len(database) // 2])
    with pytest.raises(UserError, match=r"a.lmdb is cut: it has [\d,]+ bytes of [\d,]+: copy it again"):
        vectors_of(tmp_path / "a.lmdb", "1.jpg")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "data.mdb").write_bytes(database[: len(database) // 2])
    with pytest.raises(UserError, match=r"data.mdb is cut"):
        vectors_of(tmp_path / "folder", "1.jpg")


def test_the_header_of_an_lmdb_may_be_damaged(tmp_path: Path, database: bytes) -> None:
    draws, files = Random(1), [tmp_path / f"{number}.lmdb" for number in range(40)]
    for file in files:
        damaged = bytearray(database)
        damaged[draws.randrange(16, 160) + 4096 * draws.randrange(2)] = draws.randrange(256)
        file.write_bytes(damaged)
    assert any(forked.refused(read, files, tmp_path))

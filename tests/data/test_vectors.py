"""Annotation vectors that another program computed: read from files, in the place of those of an encoder."""

import json
import re
import sys
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.optim import SGD

from tests.engine.test_start_from import BEFORE, MODELS, Quiet, captions
from vision_attn.commands import main
from vision_attn.configuration.run_settings import Run
from vision_attn.data.photographs.annotation_vectors.vectors import Vectors, read_boxes, read_vectors
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.photographs.pixels import View
from vision_attn.encoders.precomputed import Precomputed
from vision_attn.engine.fit import fit
from vision_attn.geometry.objects import CELLS, over_photograph
from vision_attn.system.errors import UserError
from vision_attn.tasks.caption import Captioning
from vision_attn.tasks.caption_pages import pictured
from vision_attn.tasks.ensemble import ensemble

L, D = 6, 5


def folder_of(place: Path, **options) -> tuple[Captions, dict[str, np.ndarray]]:
    """Six photographs with captions, and vectors of each, in several layouts and types."""
    source = captions(place / "images", BEFORE, features=str(place / "vectors"), **options)
    (place / "vectors").mkdir()
    rng, vectors = np.random.default_rng(0), {}
    for number in range(6):
        vectors[f"{number}.png"] = array = rng.standard_normal((L, D)).astype(np.float16)
        file = place / "vectors" / f"{number}"
        if number % 3 == 0:
            np.save(file.with_suffix(".npy"), array.reshape(2, 3, D))
        elif number % 3 == 1:
            np.savez_compressed(file.with_suffix(".npz"), feat=array.astype(np.float64), boxes=np.zeros((L, 4)))
        else:
            np.savez(file.with_suffix(".npz"), array.astype(np.float32))
    return source, vectors


def build(source: Captions) -> Quiet:
    return Quiet(source, encoder=Precomputed(region_size=D, grid=(2, 3)), model=MODELS["soft"])


def test_batches_hold_the_vectors_of_their_photographs(tmp_path) -> None:
    source, vectors = folder_of(tmp_path)
    task = build(source)
    source.prepare(task)
    seen = set()
    for split in ("train", "val", "test"):
        for batch in source.split(split):
            assert batch.images.dtype == torch.float32 and batch.images.shape[1:] == (L, D)
            for array, file in zip(batch.images, batch.files, strict=True):
                assert np.array_equal(array.numpy(), vectors[Path(file).name].astype(np.float32))
                seen.add(Path(file).name)
            assert torch.equal(task.regions(batch.images), batch.images)
            assert len(task.describe(batch.images)) == len(batch.ids)
    assert seen == set(vectors)
    with pytest.raises(UserError, match="it cannot encode a photograph"):
        task.describe(torch.zeros(1, 3, 224, 224, dtype=torch.uint8))


def test_a_run_trains_on_them(tmp_path) -> None:
    source, _ = folder_of(tmp_path)
    run = Run(folder=str(tmp_path / "run"), epochs=2, metric="nll", mode="min", device="cpu")
    metrics = fit(task=build, data=source, optimizer=partial(SGD, lr=0.1), run=run)
    assert metrics["nll"] > 0 and (tmp_path / "run" / "best" / "model.safetensors").is_file()


def renamed_to_ids(place: Path) -> dict[str, Path]:
    """Give the vectors of photographs of odd numbers the names of their ids, 100 + number."""
    notes = json.loads((place / "images" / "captions.json").read_text())
    for image in notes["images"]:
        image["id"] += 100
    for note in notes["annotations"]:
        note["image_id"] += 100
    (place / "images" / "captions.json").write_text(json.dumps(notes))
    files = {}
    for number in range(6):
        file = next((place / "vectors").glob(f"{number}.np*"))
        files[f"{number}.png"] = file.rename(file.with_stem(str(100 + number))) if number % 2 else file
    return files


def test_a_file_named_after_the_id_is_found_where_none_has_the_name(tmp_path) -> None:
    source, vectors = folder_of(tmp_path)
    files = renamed_to_ids(tmp_path)
    source.prepare(build(source))
    for split in ("train", "val", "test"):
        for batch in source.split(split):
            for array, file, read in zip(batch.images, batch.files, batch.vectors, strict=True):
                assert np.array_equal(array.numpy(), vectors[file.name].astype(np.float32)) and read == files[file.name]


def test_an_id_takes_no_file_of_another_photograph(tmp_path, caplog) -> None:
    """Photograph 3 has the id 4, and 4.npz holds the vectors of photograph 4."""
    source, _ = folder_of(tmp_path)
    notes = json.loads((tmp_path / "images" / "captions.json").read_text())
    number = {0: 10, 1: 11, 2: 12, 3: 4, 4: "../vectors/0", 5: 15}
    for image in notes["images"]:
        image["id"] = number[image["id"]]
    for note in notes["annotations"]:
        note["image_id"] = number[note["image_id"]]
    (tmp_path / "images" / "captions.json").write_text(json.dumps(notes))
    (tmp_path / "vectors" / "3.npy").unlink()
    source.prepare(build(source))
    assert "1 of 6 photographs cannot be read" in caplog.text
    assert "vectors/3.npy nor" in caplog.text and "vectors/4.npy, nor an .npz file of these names" in caplog.text
    views = [View("a.jpg", "a.jpg", False, 1), View("b.jpg", "b.jpg", False, 1)]
    assert Vectors(views, tmp_path / "vectors", (L, D), [5, 5]).files == [None, None]  # an id of both
    assert Vectors(views, tmp_path / "vectors", (L, D), [5, "../vectors/0"]).files[1] is None


def different(place: Path, **arrays) -> tuple[Captions, Captioning]:
    """Photographs of 64 x 48 pixels with 1, 3, 5, ... vectors, and a task whose captioner leaves out the padding."""
    source = captions(place / "images", BEFORE, features=str(place / "vectors"), evaluation_batch_size=6)
    (place / "vectors").mkdir()
    rng = np.random.default_rng(0)
    for number in range(6):
        Image.new("RGB", (64, 48)).save(place / "images" / f"{number}.png")
        vectors = rng.standard_normal((2 * number + 1, D)).astype(np.float32)
        more = {name: make(len(vectors)) for name, make in arrays.items()}
        np.savez(place / "vectors" / f"{number}.npz", x=np.concatenate([vectors, np.zeros((1, D))]), **more)
    torch.manual_seed(0)
    given, options = Precomputed(region_size=D, grid=(1, -1)), {"max_words": 5, "min_words": 3, "validate_with": []}
    task = Captioning(source, encoder=given, model=MODELS["soft"], **options).eval()
    source.prepare(task)
    return source, task


def test_photographs_with_different_numbers_of_vectors_are_padded(tmp_path) -> None:
    """In training, decoding and metrics. Vectors of zeros in a file are padding too."""
    source, task = different(tmp_path)
    (batch,) = source.split("train")
    sizes = [2 * int(file.stem) + 1 for file in batch.files]
    assert batch.images.shape == (4, 8, D) and sorted(sizes) == [1, 3, 5, 7]
    assert [int((image != 0).any(dim=1).sum()) for image in batch.images] == sizes
    described = task.describe(batch.images)
    assert [one.alpha.shape[1:] for one in described] == [(1, size) for size in sizes]
    for one in described:
        torch.testing.assert_close(one.alpha.sum(dim=(1, 2)), torch.ones(len(one.words)))
    assert task.train()(*batch)["loss"].isfinite()
    several = task.eval().describe(batch.images, captions=2)
    assert [one.alpha.shape[2] for one, _ in several] == sizes
    predicted = task.predict(batch, full=True)
    assert task.judge([predicted])["entropy"] < np.log(7)
    with pytest.raises(UserError, match="cannot leave out padding"):
        Captioning(source, encoder=Precomputed(region_size=D, grid=(1, -1)), model=MODELS["square"])
    both, _ = ensemble([task, task], source)
    assert [one.alpha.shape for one in both.describe(batch.images)] == [
        (len(one.words), 1, size) for one, size in zip(both.describe(batch.images), sizes, strict=True)
    ]


def test_pictures_show_maps_over_boxes_and_none_where_they_are_unknown(tmp_path) -> None:
    left = lambda number: np.array([[0, 0, 32, 48]] * (number + 1))  # noqa: E731
    for name, arrays in {
        "pixels": {"bbox": left},
        "sized": {"boxes": lambda number: 2 * left(number), "image_w": lambda _: 128, "image_h": lambda _: [96]},
        "shares": {"boxes": lambda number: left(number) / [64, 48, 64, 48]},
        "none": {},
    }.items():
        source, task = different(tmp_path / name, **arrays)
        (batch,) = source.split("train")
        for picture, described, _ in pictured(batch, task.describe(batch.images), task.encoder):
            if name == "none":
                assert picture.size == (64, 48) and described.alpha is None
                continue
            assert picture.size == (64, 48) and described.alpha.shape[1:] == (CELLS, CELLS)
            half = described.alpha[:, :, : CELLS // 2].sum(dim=(1, 2))
            torch.testing.assert_close(half, torch.ones(len(half)))
        paths = task.show(batch, tmp_path / name / "shown")
        assert len(paths) == 5 and all(path.is_file() for path in paths)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"boxes": np.zeros((2, 4))}, r"boxes must hold 4 numbers for each of 3 vectors, not \(2, 4\)"),
        ({"bbox": np.full((3, 4), np.nan)}, "bbox must hold 4 numbers"),
        ({"boxes": np.array(["a"])}, "no array can be read"),
    ],
)
def test_boxes_that_cannot_be_used_are_named(tmp_path, arrays, said) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((3, D)), **arrays)
    with pytest.raises(UserError, match=said) as caught:
        read_boxes(tmp_path / "a.npz", lambda: (1, 1))
    assert str(tmp_path / "a.npz") in str(caught.value)


def test_maps_over_boxes_add_up() -> None:
    boxes = torch.tensor([[-1.0, -1, 0, 1], [0, -1, 1, 0], [0.3, 0.3, 0.3, 0.3]])
    alpha = torch.tensor([[[1.0, 0, 0]], [[0, 1, 0]], [[0, 0, 1]], [[0.5, 0.5, 0]], [[0, 0, 0]]])
    maps = over_photograph(alpha, boxes, cells=4)
    assert torch.equal(maps[0], torch.tensor([[1.0, 1, 0, 0]] * 4) / 8)
    assert torch.equal(maps[1], torch.tensor([[0.0, 0, 1, 1]] * 2 + [[0, 0, 0, 0]] * 2) / 4)
    assert maps[2].argmax() == 10 and maps[2].sum() == 1  # a point lights the cell around it
    torch.testing.assert_close(maps[3], torch.tensor([[1.0, 1, 1, 1]] * 2 + [[1, 1, 0, 0]] * 2) / 12)
    assert not maps[4].any()


def test_missing_vectors_leave_their_photograph_out(tmp_path, caplog) -> None:
    source, _ = folder_of(tmp_path)
    (tmp_path / "vectors" / "0.npy").unlink()
    source.prepare(build(source))
    assert {file.name for batch in source.split("train") for file in batch.files} == {"1.png", "2.png", "3.png"}
    assert "0.png: there is neither" in caplog.text and "vectors/0.npy, nor an .npz file" in caplog.text
    assert "1 of 6 photographs cannot be read" in caplog.text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (np.zeros((L, D + 1)), r"must hold 6 vectors of 5 numbers, .*, but holds \(6, 6\) of float64"),
        (np.zeros((L + 1, D)), r"must hold 6 vectors of 5 numbers.* differs .*, set --task.encoder.grid=\[1,-1\]"),
        (np.full((L, D), np.nan), "not finite"),
        (np.zeros((L, D), dtype="<U3"), "of <U3"),
        (np.array([{}], dtype=object), r"must hold 6 vectors of 5 numbers, .*, but holds \(1,\) of object"),
        (b"no array", "no array can be read"),
        (b"", "no array can be read"),
        ({"a": np.zeros((L, D)), "b": np.zeros(3)}, "none of its arrays a, b is called features or feat or x"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path, content, said) -> None:
    path = tmp_path / ("a.npz" if isinstance(content, dict) else "a.npy")
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    else:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(UserError, match=said) as caught:
        read_vectors(path, (L, D))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["all", "ids", "each", "groups", "endings"])
def test_vectors_in_an_hdf5_file(tmp_path, form) -> None:
    """One array for all photographs and a list of their names or ids; or an array or arrays for each, with boxes."""
    h5py = pytest.importorskip("h5py", reason="needs h5py, of the extra [features]")
    source, vectors = folder_of(tmp_path)
    boxes = np.tile(np.array([0, 0, 1, 0.5], dtype=np.float32), (L, 1))
    numbers = [3, 0, 5, 1, 2, 4]
    with h5py.File(tmp_path / "vectors.data", "w") as file:
        if form in ("all", "ids"):
            file["conv5_4"] = np.stack([vectors[f"{number}.png"] for number in numbers])
            file["names" if form == "all" else "image_ids"] = (
                [f"{number}.png".encode() for number in numbers] if form == "all" else numbers
            )
        for number in numbers if form not in ("all", "ids") else ():
            array = vectors[f"{number}.png"].reshape(2, 3, D) if number == 2 else vectors[f"{number}.png"]
            place = {"each": f"{number}.png", "groups": f"{number}/feat", "endings": f"{number}_features"}[form]
            file[place] = array
            if form != "each":
                file[{"groups": f"{number}/bbox", "endings": f"{number}_boxes"}[form]] = boxes
    source.features = str(tmp_path / "vectors.data")
    source.prepare(build(source))
    for split in ("train", "val", "test"):
        for batch in source.split(split):
            for array, file, where in zip(batch.images, batch.files, batch.vectors, strict=True):
                assert np.array_equal(array.numpy(), vectors[Path(file).name].astype(np.float32))
                found = read_boxes(where, lambda: (1, 1))
                assert found is None if form in ("all", "ids", "each") else found.tolist() == [[-1, -1, 1, 0]] * L
    with pytest.raises(UserError, match="vectors.data: .* must hold 5 vectors of 4 numbers"):
        read_vectors(where, (5, 4))
    more = [View("new.png", "new.png", False, 1)]
    found = Vectors(more, tmp_path / "vectors.data", (L, D), [77])
    assert "vectors.data has no vectors of new.png or of id 77, but of " in found.unreadable["new.png"]
    (tmp_path / "damaged").write_bytes((tmp_path / "vectors.data").read_bytes()[:300])
    with pytest.raises(UserError, match="damaged is not a readable HDF5 file"):
        Vectors(more, tmp_path / "damaged", (L, D), [77])


@pytest.mark.parametrize("folder", [True, False])
def test_vectors_in_an_lmdb(tmp_path, folder) -> None:
    """As ImageCaptioning.pytorch writes them: bytes of .npz files by id, and boxes in an LMDB of their own."""
    lmdb = pytest.importorskip("lmdb", reason="needs lmdb, of the extra [features]")
    source, vectors = folder_of(tmp_path)
    boxes = np.tile(np.array([0, 0, 28, 56], dtype=np.float32), (L, 1))
    places = {kind: tmp_path / f"bu_{kind}{'' if folder else '.lmdb'}" for kind in ("att", "box")}
    opened = {kind: lmdb.open(str(place), subdir=folder, map_size=2**20) for kind, place in places.items()}
    with opened["att"].begin(write=True) as att, opened["box"].begin(write=True) as box:
        for number in range(6):
            array = vectors[f"{number}.png"]
            save = {0: partial(np.savez_compressed, feat=array), 1: partial(np.savez, z=array)}.get(number)
            (save or (lambda file, array=array: np.save(file, array)))(file := BytesIO())
            key = f"{number}.npz" if number == 3 else str(number)
            att.put(key.encode(), file.getvalue())
            np.save(file := BytesIO(), boxes)
            box.put(str(number).encode(), file.getvalue())
        command = f"touch {tmp_path / 'unpickled'}".encode()
        runs = b"\x80\x02cposix\nsystem\nX" + len(command).to_bytes(4, "little") + command + b"\x85R."
        att.put(b"pickle", runs)
    for each in opened.values():
        each.close()
    source.features = str(places["att"])
    task = Quiet(source, encoder=Precomputed(region_size=D, grid=(1, L)), model=MODELS["soft"])
    source.prepare(task)
    for split in ("train", "val", "test"):
        for batch in source.split(split):
            for array, file, where in zip(batch.images, batch.files, batch.vectors, strict=True):
                assert np.array_equal(array.numpy(), vectors[Path(file).name].astype(np.float32))
                assert read_boxes(where, lambda: (56, 56)).tolist() == [[-1, -1, 0, 1]] * L
            for picture, described, _ in pictured(batch, task.describe(batch.images), task.encoder):
                assert picture.size == (56, 56) and not described.alpha[:, :, CELLS // 2 :].any()
    found = Vectors([View("new.png", "new.png", False, 1)], places["att"], (L, D), [77])
    assert re.search(r"bu_att\S* has no vectors of new.png or of id 77, but of 0, 1, 2 \.", found.unreadable["new.png"])
    with pytest.raises(UserError, match=r"bu_att\S*: pickle: no array can be read \(it is a pickle, which cou"):
        read_vectors(found.place.by_id("pickle"), (L, D))
    assert not (tmp_path / "unpickled").exists()
    (tmp_path / "damaged").write_bytes(bytes(16) + b"\xde\xc0\xef\xbe" + bytes(100))
    with pytest.raises(UserError, match="damaged is not a readable LMDB"):
        Vectors([], tmp_path / "damaged", (L, D), [])


def test_lmdb_without_its_library_names_the_extra(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    (tmp_path / "a.lmdb").write_bytes(bytes(16) + b"\xde\xc0\xef\xbe")
    with pytest.raises(UserError, match=r"a.lmdb is an LMDB: it needs lmdb, pip install 'vision-attn\[features\]'"):
        Vectors([], tmp_path / "a.lmdb", (L, D), [])


def test_boxes_beside_a_folder_of_vectors(tmp_path) -> None:
    for kind in ("att", "box"):
        (tmp_path / f"cocobu_{kind}" / "beach").mkdir(parents=True)
    np.savez(tmp_path / "cocobu_att" / "beach" / "1.npz", feat=np.ones((2, D)))
    np.save(tmp_path / "cocobu_box" / "beach" / "1.npy", np.array([[0, 0, 0.5, 1], [0.5, 0, 1, 1]]))
    found = read_boxes(tmp_path / "cocobu_att" / "beach" / "1.npz", lambda: (1, 1))
    assert found.tolist() == [[-1, -1, 0, 1], [0, -1, 1, 1]]
    assert read_boxes(tmp_path / "cocobu_att" / "beach" / "1.npz", lambda: (1, 1)) is not None


def test_hdf5_without_h5py_names_the_extra(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(UserError, match=r"a.h5 is an HDF5 file: it needs h5py, pip install 'vision-attn\[features\]'"):
        Vectors([], tmp_path / "a.h5", (L, D), [])


def test_what_does_not_fit_is_said(tmp_path) -> None:
    with pytest.raises(UserError, match=r"data.crops needs an encoder"):
        Captions(images="", annotations="", features="vectors", crops=0.8)
    with pytest.raises(UserError, match=r"data.flips needs an encoder"):
        folder_of(tmp_path / "a", flips=True)
    source, _ = folder_of(tmp_path / "b")
    source.features = str(tmp_path / "b" / "vectors" / "0.npy")
    with pytest.raises(
        UserError, match=r"0.npy is neither a folder of annotation vectors nor an HDF5 file nor an LMDB"
    ):
        source.prepare(build(source))


def test_the_commands_of_the_docs(tmp_path, monkeypatch, capsys) -> None:
    """Train as docs/captioning_data.md says, and evaluate."""
    monkeypatch.chdir(tmp_path)
    folder_of(Path("mine"))
    notes = json.loads(Path("mine/images/captions.json").read_text())
    splits = {image["id"]: (image["file_name"], image["split"]) for image in notes["images"]}
    rows = [(*splits[note["image_id"]], note["caption"]) for note in notes["annotations"]]
    lines = ["image,split,caption", *(",".join(row) for row in rows)]
    Path("mine/captions.csv").write_text("\n".join(lines))
    config = Path(__file__).parents[2] / "configs" / "sat_soft_flickr8k.yaml"
    words = Path(__file__).parents[2].joinpath("docs", "captioning_data.md").read_text()
    command = words[words.rindex("vision-attn train", 0, words.index("--data.features")) :]
    _, _, _, *options = command[: command.index("```")].replace("\\\n", " ").split()
    small = [
        "--task.encoder.region_size=5",
        "--task.encoder.grid=[2,3]",
        "--task.model.hidden_size=8",
        "--data.min_count=1",
    ]
    small += ["--task.model.word_size=8", "--task.model.score.attention_size=8", "--run.epochs=1", "--run.warmup=0"]
    small += [
        "--run.metric=nll",
        "--run.mode=min",
        "--task.validate_with=[]",
        "--data.batch_size=2",
        "--run.device=cpu",
    ]
    assert main(["train", str(config), *options, *small]) == 0
    assert main(["prepare", str(config), *options, *small, "--run.folder=other"]) == 0
    assert "2 x 3 annotation vectors of 5 numbers per image, read from mine/vectors" in capsys.readouterr().out

"""Datasets of Hugging Face's library: photographs and captions in memory-mapped columns."""

import io
import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.test_captions import Looking
from tests.untrained import write_run
from vision_attn.commands import main
from vision_attn.data.images.squares import read_image
from vision_attn.data.photographs.annotation_files.hub_datasets import is_dataset, photographs_of
from vision_attn.data.photographs.annotation_files.references import read_references
from vision_attn.data.photographs.captions import Captions
from vision_attn.system.errors import UserError

pytest.importorskip("datasets", reason="needs datasets, of the extra [hub]")
import datasets  # noqa: E402
import pyarrow  # noqa: E402

NAMES = [f"{number:02}.png" for number in range(12)]
SAID = {name: [f"a dog {word} {number}" for word in ("runs", "sits")] for number, name in enumerate(NAMES)}
SPLITS = {"train": NAMES[:8], "val": NAMES[8:10], "test": NAMES[10:]}
SPLIT_OF = {name: split for split, names in SPLITS.items() for name in names}


def encoded(name: str) -> bytes:
    pixels = np.random.default_rng(int(name[:2])).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def table(rows: list[dict]) -> datasets.Dataset:
    """A dataset in memory with rows of photographs: their names are replaced by their bytes."""
    for row in rows:
        row["image"] = {"bytes": encoded(row["image"]), "path": row.pop("path", None)}
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    features = datasets.Dataset.from_dict({key: value for key, value in columns.items() if key != "image"}).features
    return datasets.Dataset.from_dict(columns, features=datasets.Features({**features, "image": datasets.Image()}))


def flickr30k() -> datasets.DatasetDict:
    """As on the hub: one split with all photographs, a list of captions, and a column that says the split."""
    rows = [
        {
            "image": name,
            "caption": texts,
            "sentids": ["0", "1"],
            "split": SPLIT_OF[name],
            "filename": name,
            "img_id": "7",
        }
        for name, texts in SAID.items()
    ]
    return datasets.DatasetDict(test=table(rows))


def one_by_one(**more: bool) -> datasets.DatasetDict:
    """A row for each caption, in splits of its own; photographs without names, or (path) with those of their files."""
    return datasets.DatasetDict(
        {
            {"val": "validation"}.get(split, split): table(
                [
                    {"image": name, "sentences": {"raw": text, "tokens": text.split()}}
                    | ({"path": f"/somewhere/{name}"} if more else {})
                    for number in range(2)
                    for name in names
                    for text in [SAID[name][number]]
                ]
            )
            for split, names in SPLITS.items()
        }
    )


def texts_of(source: Captions) -> dict[str, dict[str, list[str]]]:
    return {split: {one.name: one.captions for one in members} for split, members in source.photographs.items()}


def saved(folder: Path, form: str) -> tuple[str | dict[str, str], dict[str, list[str]]]:
    """Write a dataset. Returns what names it, and the names of its photographs by split."""
    if form == "list":
        flickr30k().save_to_disk(folder)
        return str(folder), SPLITS
    if form == "rows":
        one_by_one().save_to_disk(folder)
        return str(folder), {split: [f"{split}/{n:06}" for n in range(len(SPLITS[split]))] for split in SPLITS}
    (folder / "data").mkdir(parents=True)
    parts = one_by_one(path=True)
    files = {}
    for split, part in parts.items():
        files[split] = str(folder / "data" / f"{split}-00000-of-00001.parquet")
        part.to_parquet(files[split])
    if form == "files":
        return {split: files[{"val": "validation"}.get(split, split)] for split in SPLITS}, SPLITS
    return str(folder), {split: [f"{split}/{name}" for name in names] for split, names in SPLITS.items()}


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch) -> None:
    """The library's cache in the test's folder; no bars."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "library")
    datasets.disable_progress_bars()


@pytest.mark.parametrize("form", ["list", "rows", "parquet", "files"])
def test_a_dataset_is_read_where_it_lies(tmp_path: Path, caplog, form: str) -> None:
    place, names = saved(tmp_path / "mine", form)
    source = Captions(images=place, min_count=1, batch_size=4, evaluation_batch_size=2, cache=None)
    before = pyarrow.total_allocated_bytes()
    with caplog.at_level(logging.INFO):
        source.prepare(Looking())
    shown = {split: [one.replace("val/", "validation/") for one in each] for split, each in names.items()}
    assert {
        split: dict(zip(shown[split], (SAID[one] for one in SPLITS[split]), strict=True)) for split in SPLITS
    } == texts_of(source)
    if form != "files":
        splits = {"list": "as stated", "rows": "as stated", "parquet": "as stated"}[form]
        assert f"mine: dataset, 12 photographs, 24 captions, splits {splits}" in caplog.text
    for split in SPLITS:
        read = {}
        for batch in source.split(split):
            read |= dict(zip(batch.ids, batch.images, strict=True))
            assert [str(file) for file in batch.files] == [*batch.ids]
        for name, original in zip(shown[split], SPLITS[split], strict=True):
            (tmp_path / "one.png").write_bytes(encoded(original))
            assert torch.equal(read[name], read_image(tmp_path / "one.png", Looking().encoder.resolution))
    assert pyarrow.total_allocated_bytes() - before < 12 * len(encoded("00.png")) / 2  # photographs stay mapped


def test_batches_are_those_of_the_same_photographs_in_a_folder(tmp_path: Path) -> None:
    place, _ = saved(tmp_path / "mine", "list")
    (tmp_path / "files").mkdir()
    for name in NAMES:
        (tmp_path / "files" / name).write_bytes(encoded(name))
    rows = [json.dumps({"image": name, "captions": SAID[name], "split": SPLIT_OF[name]}) for name in NAMES]
    (tmp_path / "files" / "captions.jsonl").write_text("\n".join(rows))
    found = []
    for images in (place, str(tmp_path / "files")):
        source = Captions(images=images, min_count=1, batch_size=4, rows=2, cache=str(tmp_path / "cache"), flips=True)
        source.prepare(Looking())
        found.append([(batch.images, batch.words) for batch in source.train(0, seed=1)])
    for one, other in zip(*found, strict=True):
        assert all(map(torch.equal, one, other))
    assert len([*(tmp_path / "cache").glob("*/index.json")]) == 2  # photographs and mirrored ones: both share them


def test_captions_alone_are_of_photographs_in_a_folder(tmp_path: Path) -> None:
    flickr30k().remove_columns("image").save_to_disk(tmp_path / "words")
    (tmp_path / "files").mkdir()
    for name in NAMES[1:]:
        (tmp_path / "files" / name).write_bytes(encoded(name))
    source = Captions(images=str(tmp_path / "files"), annotations=str(tmp_path / "words"), min_count=1, cache=None)
    source.prepare(Looking())
    assert len(source._readable["train"]) == len(SPLITS["train"]) - 1
    assert texts_of(source)["val"] == {name: SAID[name] for name in SPLITS["val"]}


def test_columns_are_named_where_they_are_not_recognised(tmp_path: Path) -> None:
    rows = [{"image": name, "what": texts[0], "where": "x"} for name, texts in SAID.items()]
    table(rows).rename_column("image", "picture").save_to_disk(tmp_path / "mine")
    with pytest.raises(
        UserError, match="mine has no column of captions .*but picture, what, where: name one with --data"
    ):
        _ = Captions(images=str(tmp_path / "mine")).photographs
    found = Captions(images=str(tmp_path / "mine"), columns={"image": "picture", "caption": "what"}).photographs
    assert sum(map(len, found.values())) == 12 and all(map(len, found.values()))  # by hash
    assert len(photographs_of(tmp_path / "mine")) == 12
    (tmp_path / "mine" / "state.json").write_text("{")
    with pytest.raises(UserError, match="mine is not a dataset that can be read: "):
        _ = Captions(images=str(tmp_path / "mine")).photographs


def test_photographs_may_be_files_that_a_dataset_names(tmp_path: Path, caplog) -> None:
    (tmp_path / "a.png").write_bytes(encoded("00.png"))
    rows = {
        "image": [{"bytes": None, "path": str(tmp_path / name)} for name in ("a.png", "b.png")] * 2,
        "text": list("abcd"),
    }
    features = datasets.Features(image=datasets.Image(), text=datasets.Value("string"))
    with (tmp_path / "mine.arrow").open("wb") as file, pyarrow.ipc.new_stream(file, features.arrow_schema) as writer:
        writer.write_table(pyarrow.table(rows, schema=features.arrow_schema))
    (named,) = [one for one in read_references(tmp_path / "mine.arrow") if one.name == "a.png"]
    assert named.captions == ["a", "c"] and named.file.content() == encoded("00.png")


def test_a_dataset_of_the_hub_comes_from_the_cache_or_is_downloaded_when_asked(tmp_path: Path, monkeypatch) -> None:
    missing = (
        r"hf://datasets/nobody/nothing is not on this machine .*--data.download=true downloads it; or, where there "
    )
    with pytest.raises(
        UserError, match=missing + r"is a network, `python .*`: copy it here, and name it|makes a folder"
    ):
        _ = Captions(images="hf://datasets/nobody/nothing").photographs
    assert not datasets.config.HF_HUB_OFFLINE
    asked = []

    def load(name, subset, *, revision):
        asked.append((name, subset, revision, datasets.config.HF_HUB_OFFLINE))
        return flickr30k()

    monkeypatch.setattr(datasets, "load_dataset", load)
    for download in (False, True):
        source = Captions(images="hf://datasets/some/one@v2/small", download=download)
        assert {split: [*each] for split, each in texts_of(source).items()} == SPLITS
    assert asked == [("some/one", "small", "v2", True), ("some/one", "small", "v2", False)]
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(UserError, match=r"needs the package datasets: pip install 'vision-attn\[hub\]'"):
        _ = Captions(images="hf://datasets/some/one").photographs


@pytest.mark.slow
def test_commands_work_on_a_dataset(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    saved(Path("mine"), "parquet")
    write_run("sat_soft_scenes", Path("tiny"))
    small = [
        "--run.start_from=tiny",
        "--run.epochs=1",
        "--run.warmup=0",
        "--run.metric=nll",
        "--run.mode=min",
        "--run.device=cpu",
    ]
    small += ["--run.sanity_check=false", "--data.min_count=1", "--data.cache=null", "--task.validate_with=[]"]
    config = str(Path(__file__).parents[2] / "configs" / "finetune_photographs.yaml")
    assert main(["train", config, "--run.folder=run", "--data.images=mine", *small]) == 0
    assert main(["eval", "run", "--show", "2", "--device", "cpu"]) == 0
    assert len([*Path("run/pictures_test").glob("*.png")]) == 2
    capsys.readouterr()
    assert main(["caption", "run", "mine", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == [
        f"{split}/{n}"
        for split, n in [("test", n) for n in SPLITS["test"]]
        + [("train", n) for n in SPLITS["train"]]
        + [("validation", n) for n in SPLITS["val"]]
    ]


def test_other_files_are_no_datasets(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(
        pyarrow.table({"file_name": NAMES, "thumbnail": [b"\xff"] * 12}), tmp_path / "a.parquet"
    )
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and nothing")
    for path in (tmp_path, tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "none", Path("hf://user/name")):
        assert not is_dataset(path)


@pytest.mark.parametrize("form", ["saved", "parquet"])
def test_reports_with_several_photographs_inside(tmp_path: Path, caplog, form: str) -> None:
    """A list of photographs in each row: the text belongs to each, in one split. A row without any is left out."""
    rows = [NAMES[:1], [], *([one, other] for one, other in zip(NAMES[2::2], NAMES[3::2], strict=True))]
    images = [[{"bytes": encoded(name), "path": name} for name in names] for names in rows]
    features = datasets.Features({"images": datasets.Sequence(datasets.Image()), "report": datasets.Value("string")})
    content = {"images": images, "report": [f"report {number}" for number in range(len(rows))]}
    written = datasets.Dataset.from_dict(content, features=features)
    if form == "saved":
        written.save_to_disk(tmp_path / "mine")
    else:
        written.to_parquet(tmp_path / "mine")
    with caplog.at_level(logging.INFO):
        found = texts_of(Captions(images=str(tmp_path / "mine")))
    assert {name: texts for members in found.values() for name, texts in members.items()} == {
        name: [f"report {number}"] for number, names in enumerate(rows) for name in names
    }
    assert all(len({*names} & {*members}) in (0, len(names)) for names in rows for members in found.values())
    assert all(found.values()) and "rows without a photograph, which are left out: 1" in caplog.text
    assert "records of several images, whose text belongs to each of them: 5" in caplog.text
    held = {file.name: file.read() for file in photographs_of(tmp_path / "mine")}
    assert held == {name: encoded(name) for names in rows for name in names}


def test_rows_that_are_marked_are_left_out(tmp_path: Path, caplog) -> None:
    rows = [{"image": name, "caption": text, "filename": name, "is_rejected": number % 3 == 1}
        for number, (name, texts) in enumerate(SAID.items()) for text in texts]  # fmt: skip
    table(rows).save_to_disk(tmp_path / "mine")
    found = texts_of(Captions(images=str(tmp_path / "mine")))
    assert {name for members in found.values() for name in members} == {n for n in NAMES if int(n[:2]) % 3 != 1}
    assert "marked as not to be used (is_rejected) and left out: 8;" in caplog.text

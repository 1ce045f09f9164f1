"""Files of columns that try to do harm, or whose photographs are easily taken for others."""

import io
import json
import logging
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from tests.data.test_hostile_tables import deadline  # noqa: F401, a fixture
from tests.forked import refused
from vision_attn.data import record_files
from vision_attn.data.photographs.annotation_files.caption_files import read_photographs
from vision_attn.data.photographs.annotation_files.hub_datasets import is_dataset, photographs_of
from vision_attn.data.photographs.annotations import read_splits
from vision_attn.data.photographs.shards import Shards
from vision_attn.data.photographs.store import locate
from vision_attn.data.record_files import read_content
from vision_attn.system.errors import UserError
from vision_attn.task import Task

pytest.importorskip("datasets", reason="needs datasets, of the extra [hub]")
import datasets  # noqa: E402
import pyarrow  # noqa: E402
from pyarrow import ipc, parquet  # noqa: E402

pytestmark = pytest.mark.usefixtures("deadline", "library")
SCHEMA = pyarrow.schema(
    {
        "image": pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()}),
        "caption": pyarrow.string(),
    }
)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's cache in the test's folder; no bars."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "library")
    datasets.disable_progress_bars()


def png(number: int) -> bytes:
    Image.new("RGB", (8, 8), (number, 1, 2)).save(file := io.BytesIO(), "BMP")
    return file.getvalue()


def write(path: Path, rows: Sequence[tuple[bytes | None, str | None]]) -> Path:
    """A Parquet file of photographs, (bytes, path), with captions "0", "1" and so on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held = [{"image": {"bytes": some, "path": name}, "caption": str(n)} for n, (some, name) in enumerate(rows)]
    with path.open("wb") as file:
        parquet.write_table(pyarrow.Table.from_pylist(held, schema=SCHEMA), file)
    return path


NAMES = [
    "t[a].parquet", "ta.parquet", "a*.parquet", "a?.parquet", "ab.parquet", "{a,b}.parquet", "[!x].parquet",
    "**.parquet", "x::y.parquet", "zip::a.parquet", ".hidden.parquet", "__own__.parquet",
    "line\nbreak.parquet", "no ending", "100%.parquet", "a#b.parquet", "a.parquet.gz", "\udcff.parquet",
    "hf:a.parquet", "train-*.parquet", "~.parquet",
]  # fmt: skip
FOLDERS = ["data [1]", "d*", "**", "x::y", "__own__", ".hidden", "s3:", "file:", "{a,b}"]


def test_names_are_no_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = [Path(name) for name in NAMES] + [Path(folder, "train.parquet") for folder in FOLDERS]
    for number, file in enumerate(files):
        write(file, [(png(number), f"{number}.bmp")])
    for number, file in enumerate(files):
        places = [file, file.absolute()] + [file.parent] * (number >= len(NAMES))
        for place in places:
            assert is_dataset(place), place
            assert [one.read() for one in photographs_of(place)] == [png(number)], place


def test_folders_that_the_library_saved_are_no_patterns(tmp_path: Path) -> None:
    for number, name in enumerate(["s [1]", "s::t", "s*", "st"]):
        rows = {"image": [{"bytes": png(number), "path": None}], "caption": ["x"]}
        features = datasets.Features(image=datasets.Image(), caption=datasets.Value("string"))
        datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "plain")
        shutil.copytree(tmp_path / "plain", tmp_path / name)
    for number, name in enumerate(["s [1]", "s::t", "s*", "st"]):
        assert [one.read() for one in photographs_of(tmp_path / name)] == [png(number)]


def test_a_table_that_changes_is_read_again(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / "a.parquet", [(png(number), "a.bmp")])
        assert [one.read() for one in photographs_of(tmp_path / "a.parquet")] == [png(number)]


def test_files_of_a_table_lie_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.bmp").write_bytes(png(1))
    (folder / "sub" / "a.bmp").write_bytes(png(2))
    (folder / "link.bmp").symlink_to(folder / "a.bmp")
    names = ["a.bmp", str(folder / "a.bmp"), "./a.bmp", "sub/../a.bmp", "sub/a.bmp", "link.bmp"]
    found = read_photographs(write(folder / "t.parquet", [(None, name) for name in names])).photographs
    assert [(one.captions, one.file.read()) for one in found] == [
        (["0", "1", "2", "3"], png(1)),
        (["4"], png(2)),
        (["5"], png(1)),
    ]


@pytest.mark.parametrize(
    "name", ["fifo", "device", "sub", "/dev/zero", "/etc/passwd", "../out.bmp", "sub/../../out.bmp", "OUT", "."]
)
def test_other_files_are_not_opened(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "inside"
    (folder / "sub").mkdir(parents=True)
    os.mkfifo(folder / "fifo")
    (folder / "device").symlink_to("/dev/zero")
    (tmp_path / "out.bmp").write_bytes(png(1))
    (tmp_path / "inside2").mkdir()
    name = str(tmp_path / "inside2" / "out.bmp") if name == "OUT" else name
    path = write(folder / "t.parquet", [(png(0), "a.bmp"), (None, name)])
    message = "is not a regular file|is not in .*inside: only files there are opened"
    with pytest.raises(UserError, match=rf"t.parquet: row 2 .*({message})") as caught:
        photographs_of(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [None, "", "a\0b", "x" * 5000, "none.bmp"])
def test_a_row_without_a_photograph_is_left_out(tmp_path: Path, name: str | None, caplog) -> None:
    path = write(tmp_path / "t.parquet", [(None, name), (png(1), "b.bmp"), (None, name), (png(2), "c.bmp")])
    placed = locate(read_splits({"train": str(path)}), {})["train"]
    assert [(one.name, one.captions) for one in placed] == [("b.bmp", ["1"]), ("c.bmp", ["3"])]
    assert "photographs that do not exist and are left out: " in caplog.text
    with pytest.raises(UserError, match="t.parquet: row 1 has no photograph|none.bmp cannot be read: No such file"):
        photographs_of(path)[0].read()


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(1, "x/a.bmp"), (2, "y/a.bmp")], {"x/a.bmp": ["0"], "y/a.bmp": ["1"]}),
        ([(1, "x/a.bmp"), (1, "y/a.bmp")], {"x/a.bmp": ["0"], "y/a.bmp": ["1"]}),
        ([(1, "a.bmp"), (2, "a.bmp"), (1, "a.bmp")], {"000000": ["0", "2"], "000001": ["1"]}),
        ([(1, None), (2, None), (1, None)], {"000000": ["0", "2"], "000001": ["1"]}),
        ([(1, "./a.bmp"), (1, "a.bmp"), (1, "/a.bmp")], {"a.bmp": ["0", "1", "2"]}),
        ([(1, "../a.bmp"), (2, "a.bmp")], {"000000": ["0"], "000001": ["1"]}),
        ([(1, "000001"), (1, "b"), (2, "b")], {"000001": ["0"], "000001_": ["1"], "000002": ["2"]}),
        ([(1, "x/a.bmp"), (2, "x/a.bmp"), (3, "a.bmp")], {"000000": ["0"], "000001": ["1"], "a.bmp": ["2"]}),
        ([(1, "x/a.bmp"), (1, "x/a.bmp"), (2, "b.bmp")], {"a.bmp": ["0", "1"], "b.bmp": ["2"]}),
    ],
)
def test_photographs_are_told_apart_by_path_and_bytes(tmp_path: Path, rows: list, expected: dict) -> None:
    """All have the same number of bytes."""
    assert len(png(1)) == len(png(2))
    path = write(tmp_path / "t.parquet", [(png(number), name) for number, name in rows])
    found = read_photographs(path).photographs
    assert {one.name: one.captions for one in found} == expected
    for one in found:
        assert {one.file.read()} == {png(rows[int(caption)][0]) for caption in one.captions}


def test_a_column_of_names_does_not_merge_photographs(tmp_path: Path) -> None:
    columns = {"photo": [png(1), png(2), png(1)], "filename": ["a.bmp", "a.bmp", "./a.bmp"], "caption": ["p", "q", "r"]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    found = read_photographs(tmp_path / "t.parquet").photographs
    assert [(one.captions, one.file.read()) for one in found] == [(["p", "r"], png(1)), (["q"], png(2))]


def test_a_photograph_of_two_splits_is_kept_for_testing(tmp_path: Path, caplog) -> None:
    write(tmp_path / "train-0.parquet", [(png(1), "a.bmp"), (png(2), "b.bmp"), (png(3), "c.bmp"), (png(4), "d.bmp")])
    write(tmp_path / "validation-0.parquet", [(png(5), "a.bmp"), (png(2), "./b.bmp")])
    write(tmp_path / "test-0.parquet", [(png(2), "b.bmp"), (png(3), "c.bmp"), (png(9), "e.bmp")])
    found = read_splits(str(tmp_path))
    assert {split: [one.file.read()[54:55] for one in some] for split, some in found.items()} == {
        "train": [png(1)[54:55], png(4)[54:55]],
        "val": [png(5)[54:55]],
        "test": [png(2)[54:55], png(3)[54:55], png(9)[54:55]],
    }
    said = "photographs that are in two splits, and are kept for testing or validation alone: 3, such as "
    assert said in caplog.text


def test_photographs_of_two_tables_under_one_name_are_two(tmp_path: Path) -> None:
    """Those without a name are called by the number of their row."""
    files = {
        split: str(write(tmp_path / f"{split}.parquet", [(png(n), None), (png(n + 1), None)]))
        for n, split in ((0, "train"), (4, "val"))
    }
    found = read_splits(files)
    assert [one.file.read() for one in (*found["train"], *found["val"])] == [png(0), png(1), png(4), png(5)]
    names = [one.name for one in (*found["train"], *found["val"])]
    assert names == ["train/000000", "train/000001", "val/000000", "val/000001"]


@pytest.mark.parametrize("name", ["../fifo", "/etc/passwd", "/dev/zero", "link", "sub"])
def test_a_saved_folder_names_its_own_files(tmp_path: Path, name: str) -> None:
    features = datasets.Features(image=datasets.Image(), caption=datasets.Value("string"))
    rows = {"image": [{"bytes": png(1), "path": None}], "caption": ["x"]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "mine")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "mine" / "link").symlink_to(tmp_path / "fifo")
    (tmp_path / "mine" / "sub").mkdir()
    state = json.loads((tmp_path / "mine" / "state.json").read_text())
    (tmp_path / "mine" / "state.json").write_text(json.dumps(state | {"_data_files": [{"filename": name}]}))
    with pytest.raises(UserError, match="mine is not a dataset that can be read: it names .*not (in|a regular file)"):
        photographs_of(tmp_path / "mine")
    (tmp_path / "mine" / "dataset_dict.json").write_text('{"splits": ["../other"]}')
    with pytest.raises(UserError, match="mine is not a dataset that can be read: it names .* is not in "):
        photographs_of(tmp_path / "mine")


def test_a_pipe_in_a_folder_is_no_table(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.parquet")
    assert not is_dataset(tmp_path) and not is_dataset(tmp_path / "a.parquet")
    write(tmp_path / "b.parquet", [(png(1), "a.bmp")])
    (tmp_path / "._c.parquet").write_bytes(b"of a Mac")
    assert [one.read() for one in photographs_of(tmp_path)] == [png(1)]


def test_columns_of_datasets_are_used_or_refused(tmp_path: Path) -> None:
    table = pyarrow.table({"image": [png(1)], "caption": ["one"], "title": ["two"], "name": ["a.bmp"]})
    parquet.write_table(table, tmp_path / "t.parquet")
    (found,) = read_photographs(tmp_path / "t.parquet", columns={"caption": "title", "image": "name"}).photographs
    assert (found.name, found.captions, found.file.read()) == ("a.bmp", ["two"], png(1))
    for columns, message in (
        ({"caption": "foo"}, 'has no column "foo", as data.columns.caption says, but image, caption, title, name'),
        ({"split": "foo"}, 'has no column "foo", as data.columns.split says, but '),
        ({"image": "foo"}, 'has no column "foo", as data.columns.image says, but '),
        ({"caption": "image"}, 'has no column "image", as data.columns.caption says, but '),
        ({"image": "caption"}, 'data.columns.image names "caption", which is the column of the caption'),
        ({"text": "title"}, "columns can be named for image, caption, split, not text"),
    ):
        with pytest.raises(UserError, match=message):
            read_photographs(tmp_path / "t.parquet", columns=columns)


@pytest.mark.parametrize("form", ["stream", "file"])
def test_damaged_arrow_files_are_refused(tmp_path: Path, form: str) -> None:
    """Places beyond the end of a file would kill the process, which then fails to report."""
    names = [f"{number}.bmp" for number in range(20)]
    table = pyarrow.table({"image": names, "caption": names})
    if form == "stream":
        rows = [{"image": {"bytes": png(n), "path": name}, "caption": name} for n, name in enumerate(names)]
        table = pyarrow.Table.from_pylist(rows, schema=SCHEMA)
    with (ipc.new_stream if form == "stream" else ipc.new_file)(str(tmp_path / "a"), table.schema) as writer:
        writer.write_table(table)
    whole, draws, files = (tmp_path / "a").read_bytes(), random.Random(0), []
    for number in range(60):
        damaged = bytearray(whole)
        for _ in range(3):
            damaged[draws.randrange(len(damaged))] = draws.choice([0, 1, 127, 128, 255])
        files.append(tmp_path / f"b{number}")
        files[-1].write_bytes(damaged[: draws.choice([len(whole), len(whole), draws.randrange(8, len(whole))])])

    def read(file: Path) -> None:
        for one in read_photographs(file).photographs:
            one.file and one.file.read()

    assert sum(refused(read, files, tmp_path)) > 20


def test_small_files_of_many_rows_or_long_texts_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(record_files, "MOST_ROWS", 5000)  # of 20 million
    monkeypatch.setattr(record_files, "MOST_BYTES", 10**6)  # of 2 GB
    path = tmp_path / "a.parquet"
    for rows, text in ((5001, "a"), (1000, "a" * 2000)):
        parquet.write_table(pyarrow.table({"image": [text] * rows, "caption": [text] * rows}), path)
        assert path.stat().st_size < 20_000
        with pytest.raises(UserError, match="a.parquet has more than 5,000 rows, or more than 0 GB of text"):
            read_content(path)
    parquet.write_table(pyarrow.table({"image": ["a.jpg"] * 5000, "thumbnail": [b"x" * 2000] * 5000}), path)
    assert len(read_content(path).value) == 5000


class Small(Task):
    resolution = 24


def test_shards_are_named_or_matched_and_are_in_one_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("webdataset", reason="needs webdataset, of the extra [scale]")
    names = ("t[a].parquet", "ta.parquet", "a{0..2}.parquet", "a0.parquet", "b*.parquet", "bc.parquet")
    for number, name in enumerate((*names, "d [1]/e.parquet", "d [1]/f.parquet")):
        write(tmp_path / name, [(png(number), None)])
    for name, files in (
        ("t[a].parquet", ["t[a].parquet"]),
        ("t[ab].parquet", ["ta.parquet"]),
        ("a{0..2}.parquet", ["a{0..2}.parquet"]),
        ("b*.parquet", ["b*.parquet"]),
        ("d [1]/*.parquet", ["e.parquet", "f.parquet"]),
    ):
        source = Shards(shards={"train": str(tmp_path / name)}, batch_size=1, min_count=1)
        assert [path.name for path in source._paths("train")] == files
    (tmp_path / "link.parquet").symlink_to(tmp_path / "bc.parquet")
    both = Shards(shards={"train": str(tmp_path / "b?.parquet"), "val": str(tmp_path / "link.parquet")})
    with caplog.at_level(logging.INFO), pytest.raises(UserError, match="bc.parquet is in two splits, train and val"):
        both.prepare(Small())

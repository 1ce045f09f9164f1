"""Tables and JSON that try to do harm, or to be read wrongly without a word."""

import csv
import io
import json
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image

from vision_attn.configuration.annotations import single
from vision_attn.data.images.lazy import open_pixels
from vision_attn.data.labelled.coco_boxes import Boxes
from vision_attn.data.labelled.labels import find_labelled
from vision_attn.data.lines.text_lines import read_transcripts
from vision_attn.data.photographs.annotation_files.caption_files import Annotated, read_photographs
from vision_attn.data.photographs.annotation_files.references import matched, read_results
from vision_attn.data.photographs.annotations import read_annotations, read_splits
from vision_attn.data.photographs.mirrored_views import Views
from vision_attn.data.photographs.store import locate
from vision_attn.data.table_rows import rows_of
from vision_attn.system.errors import UserError
from vision_attn.system.files import read_json


@pytest.fixture
def deadline() -> Iterator[None]:
    """What waits forever, or takes minutes, fails."""

    def ended(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ended)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def found(path: Path, text: str, **columns: str | int) -> Annotated:
    path.write_text(text)
    return read_photographs(path, columns=columns)


def said(path: Path, text: str, **columns: str | int) -> dict[str, list[str]]:
    return {one.name: one.captions for one in found(path, text, **columns).photographs}


@pytest.mark.parametrize(
    "header",
    [
        "9" * 100_000,
        "x" + "_7" * 50_000,
        "- " * 50_000,
        "#1" * 50_000,
        ".jpg" * 30_000,
        "a.jpg." + "3" * 100_000,
        "a.jpg#" + "3" * 100_000 + "x",
        '"' * 100_001,
        '""' * 50_000 + "x",
    ],
)
def test_no_cell_takes_long(tmp_path: Path, deadline: None, header: str) -> None:
    """The time grows with the length of a cell, not with its square."""
    rows = "".join(f"{number}.jpg,a dog runs {number},x\n" for number in range(20))
    for text in (f"image,caption,{header}\n{rows}", rows + f"21.jpg,{header},y\n", f"{header},b,c\n{rows}"):
        try:
            assert "3.jpg" in said(tmp_path / "a.csv", text)
        except UserError as error:
            assert "\n" not in str(error)


@pytest.mark.slow
def test_rows_of_quotation_marks_take_little_time(deadline: None) -> None:
    """Each mark is looked at a few times, also where no field is closed."""
    for row in ('a,"b\n', 'a,"""b\n', 'a,""b""\n', 'a,"b""\n', '","\n'):
        assert sum(1 for _ in rows_of(row * 50_000, ","))
    assert single("1" * 100_000 + "x", float) != 1


CAPTIONS = [
    "look here\nsee b.jpg,then stops\nand sits",
    "see b.jpg,then stops\nsee c.jpg,too",
    "\n".join(f"line {number}" for number in range(500)),
    'he said "stop,\nb.jpg," and left',
    '"all of it"\n\n"twice"',
    "ends with a line break\n",
    '"',
    "a,b\n,\n,,\n",
]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_quoted_captions_hold_any_text(tmp_path: Path, separator: str) -> None:
    """What Python's csv module writes comes back, row by row."""
    file = io.StringIO()
    rows = [("image", "caption"), *((f"{number:02}.jpg", text) for number, text in enumerate(CAPTIONS * 3))]
    csv.writer(file, delimiter=separator).writerows(rows)
    read = said(tmp_path / "a.csv", file.getvalue())
    assert read == {name: [" ".join(text.split())] for name, text in rows[1:]}


def test_rows_are_those_of_the_csv_module() -> None:
    """Of any fields, in every dialect that it writes with quotation marks."""
    draws = Random(0)
    for _ in range(2000):
        separator, pieces = draws.choice(",;\t|"), ["a", '"', '""', "\n", " ", "b.jpg"]
        pieces.append(separator)
        cells = ("".join(draws.choices(pieces, k=draws.randrange(8))) for _ in range(20))
        rows = [row for row in zip(*[cells] * draws.randrange(2, 5), strict=False) if "".join(row).strip()]
        quoting = draws.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
        csv.writer(file := io.StringIO(), delimiter=separator, lineterminator="\n", quoting=quoting).writerows(rows)
        assert [fields for _, fields in rows_of(file.getvalue(), separator)] == [*map(list, rows)]


def test_a_missing_quotation_mark_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [f"{number}.jpg,it runs" for number in range(30)]
    rows[3], rows[20] = '3.jpg,"two dogs', '20.jpg,a pipe of 12"'
    read = said(tmp_path / "a.csv", "image,caption\n" + "\n".join(rows))
    assert len(read) == 13 and read["3.jpg"][0].startswith("two dogs 4.jpg,it runs")
    assert "a.csv: fields in quotation marks whose lines read like rows: 1, such as that of line 5" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        '{"a.jpg": ["one"], "b.jpg": ["two"], "a.jpg": ["three"]}',
        '[{"image": "a.jpg", "caption": "one", "caption": "two"}]',
        '{"image": "a.jpg", "caption": "one"}\n{"image": "b.jpg", "caption": "one", "image": "c.jpg"}',
        '{"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [], "annotations": []}',
    ],
)
def test_a_key_twice_is_an_error(tmp_path: Path, text: str) -> None:
    """One of its values would be lost."""
    with pytest.raises(UserError, match=r'a\.json.*the key "\S+" occurs 2 times in an object') as caught:
        found(tmp_path / "a.json", text)
    assert "\n" not in str(caught.value)
    (tmp_path / "b.json").write_text('{"a": {"b": 1, "b": 1}}')
    with pytest.raises(UserError, match='b.json: the key "b" occurs 2 times'):
        read_json(tmp_path / "b.json")


TABLE = "image,title,text\n" + "".join(f"{number}.jpg,title {number},a dog {number}\n" for number in range(5))
FOREIGN = TABLE.replace("image,title,text", "bild,titel,beschreibung")
BARE = TABLE.split("\n", 1)[1]
LINES = "\n".join(json.dumps({"image": f"{n}.jpg", "title": f"title {n}", "text": f"a dog {n}"}) for n in range(5))


@pytest.mark.parametrize(
    ("text", "columns", "caption"),
    [
        (TABLE, {}, "a dog 2"),
        (TABLE, {"caption": "title"}, "title 2"),
        (TABLE, {"caption": "TITLE", "image": "Image"}, "title 2"),
        (TABLE, {"caption": 2}, "title 2"),
        (TABLE, {"caption": "3"}, "a dog 2"),
        (FOREIGN, {"caption": "titel"}, "title 2"),
        (FOREIGN, {"caption": "beschreibung"}, "a dog 2"),
        (FOREIGN, {"caption": 3}, "a dog 2"),
        (FOREIGN, {"image": "bild", "caption": "titel"}, "title 2"),
        (FOREIGN.replace(",", "\t"), {"caption": "titel"}, "title 2"),
        (FOREIGN.replace(".jpg", ""), {"image": "bild", "caption": "titel"}, "title 2"),
        (BARE, {"caption": 3}, "a dog 2"),
        (BARE.replace(",", ";"), {"image": 1, "caption": 3}, "a dog 2"),
        (LINES, {"caption": "title"}, "title 2"),
        (LINES, {"caption": "text", "image": "image"}, "a dog 2"),
    ],
)
def test_a_column_that_is_named_is_used(tmp_path: Path, text: str, columns: dict, caption: str) -> None:
    read = said(tmp_path / "a", text, **columns)
    assert read.get("2.jpg", read.get("2")) == [caption]
    assert len(read) == 5


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (TABLE, {"caption": "foo"}, 'has no column "foo", as data.columns.caption says, but image, title, text'),
        (TABLE, {"image": "foo"}, 'has no column "foo", as data.columns.image says, but image, title, text'),
        (TABLE, {"split": "foo"}, 'has no column "foo", as data.columns.split says, but image, title, text'),
        (TABLE, {"caption": 4}, "has no column 4, as data.columns.caption says, but image, title, text"),
        (TABLE, {"caption": "image"}, 'caption names "image", which is the column of the image: name .* image, title'),
        (TABLE, {"caption": 1}, "caption names 1, which is the column of the image"),
        (TABLE, {"image": "text"}, 'image names "text", which is the column of the caption'),
        (FOREIGN, {"caption": "foo"}, 'has no column "foo", .* but bild, titel, beschreibung'),
        (BARE, {"caption": "foo"}, 'has no column "foo", .* but 0.jpg, title 0, a dog 0'),
        (BARE, {"caption": 9}, "has no column 9"),
        (LINES, {"caption": "foo"}, 'has no column "foo", as data.columns.caption says, but image, title, text'),
        (LINES, {"split": "foo"}, 'has no column "foo", as data.columns.split says, but image, title, text'),
        (LINES, {"caption": "image"}, 'caption names "image", which is the column of the image'),
        ('{"a.jpg": ["a dog"]}', {"caption": "foo"}, 'has no column "foo", .* but image, caption'),
        ('{"images": [{"id": 1}], "annotations": []}', {"caption": "foo"}, "leave out data.columns"),
    ],
)
def test_a_column_that_is_named_and_cannot_be_used_is_an_error(
    tmp_path: Path, text: str, columns: dict, message: str
) -> None:
    with pytest.raises(UserError, match=f"{tmp_path}/a.*{message}") as caught:
        found(tmp_path / "a", text, **columns)
    assert "\n" not in str(caught.value)


def test_a_record_without_the_named_key_is_not_read_by_another(tmp_path: Path) -> None:
    lines = LINES + '\n{"image": "9.jpg", "caption": "not this", "text": "nor this"}'
    with pytest.raises(UserError, match="record 6 has no caption"):
        found(tmp_path / "a.jsonl", lines, caption="title")


def test_one_photograph_has_one_path_and_one_split(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ways = ("q/{}.jpg", "./q/{}.jpg", "q//{}.jpg", "q/./{}.jpg", "q\\{}.jpg")
    rows = [(way.format(number), f"caption {turn}") for turn, way in enumerate(ways) for number in range(30)]
    (tmp_path / "a.csv").write_text("image,caption\n" + "".join(f"{name},{text}\n" for name, text in rows))
    splits = read_annotations(tmp_path / "a.csv")
    names = [one.name for members in splits.values() for one in members]
    assert sorted(names) == sorted(f"q/{number}.jpg" for number in range(30))
    assert all(len(one.captions) == 5 for members in splits.values() for one in members)
    assert "photographs that are named in several ways, each taken as one: 30, such as q/0.jpg and ./q/0.jpg" in (
        caplog.text
    )
    rows = "".join(f"{way.format(1)},a dog,{split}\n" for way, split in zip(ways, ("train", "test"), strict=False))
    (tmp_path / "b.csv").write_text("image,caption,split\n" + rows)
    with pytest.raises(UserError, match='line 3: "q/1.jpg" has two splits, "train" and "test"'):
        read_annotations(tmp_path / "b.csv")


def test_one_photograph_in_two_splits_is_found_in_every_shape(tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    images = []
    for number in range(4):
        Image.new("RGB", (8, 8)).save(tmp_path / "q" / f"{number}.jpg")
        name = f"{('q/', './q/', 'q//', 'q/')[number % 2 + 2 * (number > 1)]}{number // 2}.jpg"
        split = ("train", "val")[number % 2]
        images.append(
            {
                "id": number,
                "imgid": number,
                "file_name": name,
                "split": split,
                "sentences": [{"raw": "x"}],
                "filename": name,
            }
        )
    notes = [{"image_id": number, "caption": "a dog"} for number in range(4)]
    for content in ({"images": images, "annotations": notes}, {"images": images}):
        (tmp_path / "a.json").write_text(json.dumps(content))
        placed = locate(read_splits(str(tmp_path / "a.json")), dict.fromkeys(("train", "val", "test"), tmp_path))
        with pytest.raises(UserError, match=r"q/0.jpg is in two splits, train and val, and so are 1 others of val"):
            Views(placed, flips=False)
    (tmp_path / "a.csv").write_text("image,caption\n" + "".join(f"q/{number}.jpg,a dog\n" for number in range(4)))
    (tmp_path / "lists.json").write_text(json.dumps({"train": ["q/0.jpg", "./q/1.jpg"], "test": ["q//1.jpg"]}))
    with pytest.raises(UserError, match="q//1.jpg is in two splits, train and test"):
        read_annotations(tmp_path / "a.csv", split_files=tmp_path / "lists.json")
    (tmp_path / "lists.json").write_text(json.dumps({"train": ["./q/0.jpg", "q/1.jpg"], "test": ["q//2.jpg"]}))
    read = read_annotations(tmp_path / "a.csv", split_files=tmp_path / "lists.json")
    assert {split: [one.name for one in some] for split, some in read.items()} == {
        "train": ["q/0.jpg", "q/1.jpg"],
        "val": [],
        "test": ["q/2.jpg"],
    }
    (tmp_path / "labels.csv").write_text("image,label\nq/0.jpg,cat\n./q/0.jpg,dog\n")
    with pytest.raises(UserError, match="line 3 names q/0.jpg a second time"):
        find_labelled(str(tmp_path), str(tmp_path / "labels.csv"))
    (tmp_path / "lines.csv").write_text("image,text\nq/0.jpg,cat\nq//0.jpg,dog\nq/1.jpg,cow\nq/2.jpg,cow\n")
    with pytest.raises(UserError, match='image "q/0.jpg" has two transcripts'):
        read_transcripts(tmp_path / "lines.csv", tmp_path)


def test_results_name_photographs_in_any_spelling(tmp_path: Path) -> None:
    photographs = found(tmp_path / "a.csv", "image,caption\nx/a.jpg,a dog\ny/a.jpg,a cat\n").photographs
    (tmp_path / "r.csv").write_text("image,caption\n./x/a.jpg,one\ny//a.jpg,two\n")
    pairs = matched([*read_results(tmp_path / "r.csv")], photographs)
    assert {image: one.name for image, one in pairs.items()} == {"./x/a.jpg": "x/a.jpg", "y//a.jpg": "y/a.jpg"}


def stems(folder: Path) -> Path:
    (folder / "s").mkdir()
    for name in ("0.jpg", "1.png", "2.v2.jpg", "s/3.jpeg", ".4.jpg"):
        Image.new("RGB", (20, 16)).save(folder / name)
    (folder / "0.txt").write_text("no photograph")
    return folder


def test_names_without_an_ending_are_those_of_the_only_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = stems(tmp_path)
    texts = {"0": "a dog", "1": "a cat", "2.v2": "a cow", "s/3": "a hen", "4": "nothing", "9.gif": "nothing"}
    for text in (
        "image_id,caption\n" + "".join(f"{name},{text}\n" for name, text in texts.items()),
        "\n".join(json.dumps({"image_id": name, "caption": text}) for name, text in texts.items()),
        json.dumps({name: [text] for name, text in texts.items()}),
    ):
        caplog.clear()
        (tmp_path / "a").write_text(text)
        placed = locate(read_splits({"train": str(tmp_path / "a")}), {"train": folder})["train"]
        assert {one.name: (one.id, one.captions, one.file) for one in placed} == {
            "0.jpg": ("0", ["a dog"], folder / "0.jpg"),
            "1.png": ("1", ["a cat"], folder / "1.png"),
            "2.v2.jpg": ("2.v2", ["a cow"], folder / "2.v2.jpg"),
            "s/3.jpeg": ("s/3", ["a hen"], folder / "s" / "3.jpeg"),
        }
        assert "names of photographs without an ending, each taken as the only file of that name: 4, such as 0 as" in (
            caplog.text
        )
        assert "photographs that do not exist and are left out: 2" in caplog.text
    Image.new("RGB", (20, 16)).save(folder / "1.webp")
    with pytest.raises(UserError, match=f'"1" may be 1.png or 1.webp in {folder}: write its ending'):
        locate(read_splits({"train": str(tmp_path / "a")}), {"train": folder})


def test_names_of_films_without_an_ending(tmp_path: Path) -> None:
    for name in ("a.mp4", "b.webm", "b.jpg"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "c").mkdir()
    (tmp_path / "a.csv").write_text("image,caption\n" + "".join(f"{name},a dog\n" for name in "abcd"))
    placed = locate(read_splits({"train": str(tmp_path / "a.csv")}), {"train": tmp_path}, films=True)
    assert [one.name for one in placed["train"]] == ["a.mp4", "b.webm", "c"]


def test_labels_and_transcripts_may_leave_out_endings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = stems(tmp_path)
    (tmp_path / "labels.csv").write_text("image,label\n" + "".join(f"{name},{name}\n" for name in ("0", "1", "s/3")))
    read = find_labelled(str(folder), str(tmp_path / "labels.csv"))
    files = {item.label: item.file for items in read.values() for item in items}
    assert files == {"0": folder / "0.jpg", "1": folder / "1.png", "s/3": folder / "s" / "3.jpeg"}
    assert "names of images without an ending, each taken as the only file of that name: 3" in caplog.text
    (tmp_path / "labels.csv").write_text("image,label\n0,cat\n0.jpg,dog\n")
    with pytest.raises(UserError, match="names 0.jpg a second time"):
        find_labelled(str(folder), str(tmp_path / "labels.csv"))
    (tmp_path / "lines.csv").write_text("image,text\n" + "".join(f"{name},ab\n" for name in ("0", "1", "s/3")))
    lines = read_transcripts(tmp_path / "lines.csv", folder)
    assert sorted(line.file.name for some in lines.values() for line in some) == ["0.jpg", "1.png", "3.jpeg"]


def test_arrays_of_pixels_are_regular_files(tmp_path: Path, deadline: None) -> None:
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(UserError, match=r"a.npy: not a readable array of pixels \(it is not a regular file\)"):
        open_pixels(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", np.zeros((4, 5), np.uint8))
    assert open_pixels(tmp_path / "b.npy").shape == (4, 5)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([{"id": 1, "file_name": "a.jpg", "width": 10**7, "height": 10**7}], "a.jpg has 10000000 x 10000000 pixels"),
        ([{"id": 1, "file_name": "a.jpg", "width": -4, "height": -4}], "a.jpg has -4 x -4 pixels"),
        ([{"id": n, "file_name": f"{n}/a.jpg", "width": 4, "height": 4} for n in (1, 2)], "two images are called a"),
    ],
)
def test_masks_have_a_size_that_fits_and_a_photograph_of_their_own(
    tmp_path: Path, images: list[dict], message: str
) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"images": images, "annotations": []}))
    with pytest.raises(UserError, match=f"a.json holds no boxes in COCO's format: {message}"):
        Boxes(tmp_path / "a.json")


def test_tables_of_many_lines_are_read_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Line numbers in messages count the lines of quoted fields too."""
    text = 'image,caption\na.jpg,"one\ntwo\nthree"\n\nb.jpg\nc.jpg,"x"\nd.jpg,y\n'
    with caplog.at_level(logging.WARNING):
        read_annotations_of(tmp_path / "a.csv", text)
    assert "lines that lack a column and are left out: 1, such as line 6" in caplog.text


def read_annotations_of(path: Path, text: str) -> None:
    path.write_text(text)
    read_annotations(path)

"""Annotation files from anyone: names that leave the folder, odd types, half characters; one line for each."""

import csv
import json
import logging
from pathlib import Path

import pytest
from PIL import Image

from tests.data.test_captions import coco, karpathy, source, write
from vision_attn.data.photographs.annotations import read_annotations
from vision_attn.data.photographs.store import Photographs, locate
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.system.errors import UserError

OUTSIDE = [
    "/etc/passwd", "../00.png", "a/../../00.png", "..", "a\\..\\..\\00.png", "\\\\server\\00.png", "\\00.png",
    "C:\\00.png", "c:00.png", "", " ", "\n", "00.png\0.jpg",
]  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_file_names_that_leave_the_folder_are_refused(tmp_path, name):
    record = coco()
    record["images"][3]["file_name"] = name
    theirs = karpathy()
    theirs["images"][3]["filename"] = name
    records = {"coco": record, "karpathy": theirs}
    if name.strip():
        theirs = karpathy()
        theirs["images"][3]["filepath"] = name
        records["folders"] = theirs
    for kind, content in records.items():
        file = Path(write(tmp_path / f"{kind}.json", content))
        with pytest.raises(UserError, match=rf"{kind}.json: the file name of image 3 is .*below the image") as refused:
            read_annotations(file)
        assert "\n" not in str(refused.value)


def test_file_names_below_the_folder_are_kept(tmp_path):
    record = coco()
    names = ["a/b.png", "two  spaces.png", "..hidden.png", "a..b.png", "end\n", "é.png", "3:40.png", "./dot.png"]
    for image, name in zip(record["images"], names, strict=False):
        image["file_name"] = name
    read = read_annotations(Path(write(tmp_path / "a.json", record)))["train"]
    assert [photograph.name for photograph in read[:8]] == [*names[:4], "end", *names[5:7], "dot.png"]


def test_names_that_no_file_system_takes_do_not_exist(tmp_path, caplog):
    record = coco()
    record["images"][0]["file_name"] = "x" * 300
    record["images"][1]["file_name"] = "half\ud800.png"
    record["images"][2]["file_name"] = "\x1b[2Jforged.png"
    (tmp_path / "03.png").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "04.png")
    photographs = read_annotations(Path(write(tmp_path / "a.json", record)))
    with caplog.at_level(logging.WARNING):
        found = locate({"train": Photographs.of(photographs["train"])}, {"train": tmp_path})
    assert [photograph.name for photograph in found["train"]] == ["04.png"]
    assert "photographs that do not exist and are left out: 11, such as" in caplog.text
    with pytest.raises(UserError, match=r"such as .*x1b\[2Jforged.png"):
        locate({"train": Photographs.of(photographs["train"][2:3])}, {"train": tmp_path})


def changed(change, make=coco) -> str:
    record = make()
    change(record)
    return json.dumps(record)


ODD = {
    "the id of image 2 must be an integer or a string, not 1.5": lambda r: r["images"][2].update(id=1.5),
    "the id of image 3 must be an integer or a string, not null": lambda r: r["images"][3].update(id=None),
    "the id of image 4 must be .*not true": lambda r: r["images"][4].update(id=True),
    "the id of image 5 must be .*not a list": lambda r: r["images"][5].update(id=[1]),
    "the id of annotation 1 must be .*not an object": lambda r: r["annotations"][1].update(image_id={}),
    "the annotations must be a list, not 7": lambda r: r.update(annotations=7),
    "the annotations must be a list, not an object": lambda r: r.update(annotations={}),
    "; annotation 0 lacks 'image_id'": lambda r: r["annotations"].insert(0, [1]),
    "not a caption file": lambda r: r.update(images={"a": 1}),
    "not a caption file; expected": lambda r: r["images"].append(7),
    "the caption of annotation 2 must be a string, not null": lambda r: r["annotations"][2].update(caption=None),
    "the file name of image 1 must be a string, not 7": lambda r: r["images"][1].update(file_name=7),
    "unknown split a list": lambda r: r["images"][1].update(split=[["train"]]),
    "unknown split true": lambda r: r["images"][1].update(split=True),
}
ODD_KARPATHY = {
    "the sentences of image 1 must be a list, not null": lambda r: r["images"][1].update(sentences=None),
    "; image 1 lacks 'raw'": lambda r: r["images"][1].update(sentences=[7]),
    "the caption of image 1 must be a string, not 7": lambda r: r["images"][1].update(sentences=[{"raw": 7}]),
    "the file name of image 2 must be a string, not an object": lambda r: r["images"][2].update(filepath={}),
    "; image 3 lacks 'filename'": lambda r: r["images"][3].pop("filename"),
    "the id of image 4 must be .*not a list": lambda r: r["images"][4].update(cocoid=[]),
    "image id 101 occurs twice": lambda r: r["images"][0].update(cocoid=101),
}


@pytest.mark.parametrize("complaint", [*ODD, *ODD_KARPATHY])
def test_odd_types_are_named_with_file_and_record(tmp_path, complaint):
    text = changed(ODD[complaint]) if complaint in ODD else changed(ODD_KARPATHY[complaint], karpathy)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=f"a.json: .*{complaint}|a.json: {complaint}") as refused:
        read_annotations(tmp_path / "a.json")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500


def test_damaged_json_is_one_line(tmp_path):
    deep, digits = '{"images": ' + "[" * 100_000, '{"images": [{"id": ' + "9" * 5000 + "}]}"
    for content, complaint in ((deep, "is nested too deeply"), (digits, "is not JSON"), ("\0", "is not a text file")):
        (tmp_path / "a.json").write_text(content)
        with pytest.raises(UserError, match=f"a.json {complaint}") as refused:
            read_annotations(tmp_path / "a.json")
        assert "\n" not in str(refused.value)
        (tmp_path / "b.json").write_text(json.dumps(coco(split=False)))
        with pytest.raises(UserError, match=f"a.json {complaint}"):
            read_annotations(tmp_path / "b.json", split_files=tmp_path / "a.json")


def test_a_byte_order_mark_is_accepted(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(coco(split=False)), encoding="utf-8-sig")
    (tmp_path / "s.json").write_text(json.dumps({"train": [100, 101]}), encoding="utf-8-sig")
    assert len(read_annotations(tmp_path / "a.json", split_files=tmp_path / "s.json")["train"]) == 2


def test_entries_of_splits_are_names_or_ids(tmp_path):
    file = Path(write(tmp_path / "a.json", coco(split=False)))
    for entry, said in ((None, "null"), (1.5, "1.5"), ([[]], "a list"), (True, "true")):
        splits = Path(write(tmp_path / "s.json", {"train": [100, entry]}))
        with pytest.raises(UserError, match=f's.json: {said} in "train" is neither an image name nor an id'):
            read_annotations(file, split_files=splits)


def test_half_characters_in_captions_become_spaces_everywhere(tmp_path):
    """Python reads the escape of a lone surrogate from JSON, but can neither write it nor count it as a word."""
    (tmp_path / "images").mkdir()
    record = coco()
    for number, note in enumerate(record["annotations"]):
        note["caption"] += f" caf\u00e9\ud83d{number} \U0001f600"
    for image in record["images"]:
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / image["file_name"])
    write(tmp_path / "captions.json", record)
    captions = source(tmp_path)
    first = captions.photographs["train"][0].captions[0]
    assert first == "a 0-0 . caf\u00e9 0 \U0001f600"
    captions.export(tmp_path / "run")
    assert "caf\u00e9" in Vocabulary.load(tmp_path / "run" / "vocabulary.json").words
    for batch in captions.split("val"):
        assert all(caption.encode() for those in batch.references for caption in those)


def test_many_annotations_are_grouped_by_image(tmp_path):
    images = [{"id": f"image {number}", "file_name": f"{number}.jpg", "split": "train"} for number in range(4_000)]
    notes = [{"image_id": f"image {number % 4_000}", "caption": f"a {number}"} for number in range(20_000)]
    file = Path(write(tmp_path / "a.json", {"images": images, "annotations": notes}))
    read = read_annotations(file)["train"]
    assert [photograph.captions[4] for photograph in read[::1999]] == ["a 16000", "a 17999", "a 19998"]


ROWS = [
    {"image": f"{number:02}.png", "caption": text}
    for number in range(40)
    for text in (f"a dog, number {number}", "it runs")
]


def listed(path: Path, rows: list[dict[str, str]]) -> Path:
    """Write these rows as CSV or JSON lines."""
    if path.suffix == ".csv":
        with open(path, "w", encoding="utf-8-sig", newline="") as file:
            writer = csv.DictWriter(file, [*rows[0]])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_captions_in_rows(tmp_path, ending):
    """A row for each caption, in any order. Splits are those of the rows, or by a hash that keeps them when images are
    added."""
    found = read_annotations(listed(tmp_path / f"a.{ending}", ROWS[::2] + ROWS[1::2]))
    assert [one.captions for one in found["train"]][:1] == [["a dog, number 0", "it runs"]]
    sizes = {name: len(members) for name, members in found.items()}
    assert sum(sizes.values()) == 40 and min(sizes.values()) >= 1 and sizes["train"] > 25
    more = [*ROWS, {"image": "new.png", "caption": "a cat"}]
    after = read_annotations(listed(tmp_path / f"b.{ending}", more))
    for name in ("val", "test"):
        assert {one.name for one in found[name]} <= {one.name for one in after[name]}
    given = [row | {"split": ("Validation", "test", "train", "train")[n // 2 % 4]} for n, row in enumerate(ROWS)]
    found = read_annotations(listed(tmp_path / f"c.{ending}", given))
    assert {name: len(members) for name, members in found.items()} == {"train": 20, "val": 10, "test": 10}
    few = read_annotations(listed(tmp_path / f"d.{ending}", ROWS[:6]))
    assert {name: len(members) for name, members in few.items()} == {"train": 1, "val": 1, "test": 1}


def test_what_spreadsheets_write_is_read(tmp_path, caplog):
    text = 'Image ;Split; Caption\r\na.png;train;"a dog; it runs"\r\nb.png;VAL;a "small" cat\r\n;;\r\n'
    for mark in ("", "\ufeff"):
        (tmp_path / "a.csv").write_bytes((mark + text).encode())
        found = read_annotations(tmp_path / "a.csv")
        assert [one.captions for one in found["train"] + found["val"]] == [["a dog; it runs"], ['a "small" cat']]
    tabs = "image\tcaption\r\n" + "".join(f"{number}.png\tone, two\r\n" for number in range(3))
    (tmp_path / "d.csv").write_text(tabs)
    assert {one.captions[0] for split in read_annotations(tmp_path / "d.csv").values() for one in split} == {"one, two"}
    (tmp_path / "e.csv").write_bytes("image,caption\na.png,caf\u00e9\n".encode("latin-1"))
    assert read_annotations(tmp_path / "e.csv")["train"][0].captions == ["caf\u00e9"]
    assert "e.csv is not in UTF-8, and is read as cp1252; if letters are wrong" in caplog.text


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"image": "a.png", "caption": "x", "split": "train"}, {"image": "a.png", "caption": "y", "split": "val"}],
         "a.jsonl: record 2: \"a.png\" has two splits, \"train\" and \"val\""),
        ([{"image": "a.png", "caption": 3}], "a.jsonl: record 1: caption must be text, not 3"),
        ([{"image": "../a.png", "caption": "x"}], "a.jsonl: the file name of record 1 is"),
        ([{"image": "a.png", "regions": []}],
         "a.jsonl: record 1 has no caption; each must have image and caption, not only image, regions"),
        ([{"image": "a.png", "caption": "x", "split": "tset"}], 'unknown split "tset"'),
        ([{"image": "a.png", "caption": "!!!"}], "no image of split train has a caption"),
    ],
)  # fmt: skip
def test_mistakes_in_rows_are_named(tmp_path, monkeypatch, rows, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        read_annotations(listed(Path("a.jsonl"), rows))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_captions_without_a_word_are_counted_and_left_out(tmp_path, caplog):
    """In training they would teach the captioner to say nothing."""
    rows = [{"image": f"{n}.png", "caption": text} for n, text in enumerate(["!!!", "🐕", "狗", "...", "a dog", " "])]
    found = read_annotations(listed(tmp_path / "a.csv", [row | {"split": "train"} for row in rows]))
    assert [one.captions for one in found["train"]] == [["🐕"], ["狗"], ["a dog"]]
    assert "captions of split train without a word, which are left out: 3" in caplog.text
    assert "images of split train that have no caption and are left out: 3, such as 0.png" in caplog.text


@pytest.mark.parametrize(
    ("there", "named", "said"),
    [
        ("A.JPG", "a.jpg", "there is A.JPG, with other capitals"),
        ("K\u00f6ln.png", "Ko\u0308ln.png", "another form of an accent"),
        ("a.png", "images/a.png", "names are those below the folder of images"),
        ("a.png", "b.png", "b.png: check data.images"),
    ],
)
def test_a_message_says_which_file_a_name_may_mean(tmp_path, there, named, said):
    Image.new("RGB", (8, 8)).save(tmp_path / there)
    rows = [{"image": named, "caption": "a dog", "split": "train"}]
    photographs = read_annotations(listed(tmp_path / "a.csv", rows))
    with pytest.raises(UserError, match=r"none of the photographs exist") as caught:
        locate({"train": Photographs.of(photographs["train"])}, {"train": tmp_path})
    assert said in str(caught.value)


def test_names_from_windows_are_found(tmp_path):
    (tmp_path / "below").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "below" / "a.png")
    rows = [{"image": "below\\a.png", "caption": "a dog", "split": "train"}]
    photographs = read_annotations(listed(tmp_path / "a.csv", rows))
    found = locate({"train": Photographs.of(photographs["train"])}, {"train": tmp_path})
    assert [photograph.name for photograph in found["train"]] == ["below/a.png"]


def test_a_name_without_its_ending_is_told(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    rows = [{"image": "A", "caption": "a dog", "split": " Train "}]  # with the right capital, it would be taken
    photographs = read_annotations(listed(tmp_path / "a.csv", rows))
    with pytest.raises(UserError, match="there is a.png: names need their ending"):
        locate({"train": Photographs.of(photographs["train"])}, {"train": tmp_path})
    rows[0]["image"] = str(tmp_path / "a.png")
    with pytest.raises(UserError, match="not absolute, and without `..`: write a.png"):
        read_annotations(listed(tmp_path / "a.csv", rows))

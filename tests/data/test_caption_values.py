"""What fields of annotation files hold: lists that were written as text, several images, marks of captions that are not
to be used."""

import csv
import json
import logging
import random
from pathlib import Path

import numpy as np
import pytest

from vision_attn.data.photographs.annotation_files.caption_values import list_in
from vision_attn.data.photographs.annotation_files.references import read_references, read_results
from vision_attn.data.photographs.annotations import read_annotations, read_splits
from vision_attn.system.errors import UserError

NAMES = [f"{number}.png" for number in range(12)]
TEXTS = [
    "the dog's ball",
    'a "red" dog',
    'it\'s "both"',
    "back\\slash, and (more) [of it]",
    "caf\u00e9 \u72d7 \U0001f600",
]
SAID = {name: [f"{text} {number}" for text in TEXTS] for number, name in enumerate(NAMES)}
FORMS = {
    "Python": repr,
    "Python, a tuple": lambda texts: repr(tuple(texts)),
    "Python 2": lambda texts: f"[{', '.join('u' + repr(text) for text in texts)}]",
    "Python, bytes": lambda texts: repr([text.encode() for text in texts]),
    "Python, objects": lambda texts: repr([{"raw": text, "tokens": text.split(), "sentid": None} for text in texts]),
    "Python, a list in a list": lambda texts: repr([texts]),
    "Python, texts of NumPy": lambda texts: f"[{', '.join(f'np.str_({text!r})' for text in texts)}]",
    "Python, no value": lambda texts: repr([*texts, None, float("nan")]),
    "NumPy": lambda texts: str(np.array(texts)),
    "NumPy, objects": lambda texts: str(np.array(texts, dtype=object)),
    "NumPy, repr": lambda texts: repr(np.array(texts)),
    "NumPy, repr of objects": lambda texts: repr(np.array(texts, dtype=object)),
    "JSON": json.dumps,
    "JSON, objects": lambda texts: json.dumps([{"caption": text} for text in texts], indent=1),
}


def said_in(path: Path, **options) -> dict[str, list[str]]:
    return {one.name: one.captions for members in read_annotations(path, **options).values() for one in members}


def write_csv(path: Path, rows: list[tuple]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_a_list_that_was_written_as_text_is_several_captions(tmp_path: Path, form: str) -> None:
    """In a table, JSON, and COCO's and Karpathy's JSON; also as references and as results."""
    written = {name: FORMS[form](texts) for name, texts in SAID.items()}
    rows = [{"image": name, "caption": text, "split": "train"} for name, text in written.items()]
    coco = [{"image_id": number, "caption": text} for number, text in enumerate(written.values())]
    files = {
        "a.jsonl": "\n".join(map(json.dumps, rows)),
        "b.json": json.dumps(written),
        "c.json": json.dumps({"images": [{"id": number, "file_name": name, "split": "train"}
            for number, name in enumerate(NAMES)], "annotations": coco}),
        "d.json": json.dumps({"images": [{"filename": name, "split": "train", "sentences": [{"raw": text}]}
            for name, text in written.items()]}),
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        assert said_in(tmp_path / name) == SAID, name
    path = write_csv(tmp_path / "e.csv", [("", "image", "captions"), *((7, *pair) for pair in written.items())])
    assert said_in(path) == SAID
    assert [one.captions for one in read_references(path)] == list(SAID.values())
    assert read_results(path) == {name: texts[0] for name, texts in SAID.items()}


def test_random_texts_come_back_from_what_python_and_numpy_write() -> None:
    draw = random.Random(5)
    signs = ["'", '"', "\\", "\n", "\t", ",", "[", "]", "(", ")", "{", ":", "#", " ", "a", "n", "x41", "\x07", "\u00e9"]
    for _ in range(300):
        texts = ["".join(draw.choices(signs, k=draw.randint(0, 9))).rstrip("\0") for _ in range(draw.randint(1, 5))]
        for form in ("Python", "Python 2", "Python, bytes", "NumPy, objects", "NumPy, repr of objects", "JSON"):
            assert list_in(FORMS[form](texts)) == texts, (form, texts)


@pytest.mark.parametrize(
    "text",
    [
        "[laughs]", "[A dog] runs", "a dog [runs]", "['a dog' runs]", "['a dog', runs]", "('STOP')", "('a' 'b')",
        "(a dog)", "['a dog'", "['a'] ['b']", "['a')", "[1, 2]", "[True]", "[[1], 'a']", "[__import__('os')]",
        "['a' + 'b']", "['a' if 1 else 'b']", "['a': 'b']", "{'a': 'b'}", "[('a', 1)]", "[{'other': 'a'}]",
        "[" * 40_000 + "]" * 40_000, "['" + "\\" * 90_000 + "]", "[" + "'a' " * 1000 + "b]", "[\"\\u12']",
    ],
)  # fmt: skip
def test_other_texts_stay_as_they_are(tmp_path: Path, text: str) -> None:
    assert list_in(text) is None
    (tmp_path / "a.json").write_text(json.dumps(dict.fromkeys(NAMES, f"{text} a")))
    assert said_in(tmp_path / "a.json")["0.png"] == [f"{text} a"]


MARKED = {
    "VizWiz": {"is_rejected": True, "is_precanned": True},
    "VizWiz, rejected alone": {"is_rejected": True, "is_precanned": False},
    "VizWiz, precanned alone": {"is_rejected": False, "is_precanned": True},
    "VizWiz in a table": {"is_rejected": "True", "is_precanned": "1"},
    "numbers": {"is_rejected": 1},
    "FOIL-COCO": {"foil": True, "foil_word": "cat"},
    "COCO": {"ignore": 1},
    "Label Studio": {"was_cancelled": True},
    "Prodigy": {"answer": "reject"},
    "Prodigy, skipped": {"answer": "ignore"},
    "Mechanical Turk": {"AssignmentStatus": "Rejected"},
}
NOT_MARKED = {"is_rejected": False, "is_precanned": 0, "foil": "false", "ignore": None, "answer": "accept", "x": True}


@pytest.mark.parametrize("mark", MARKED)
def test_captions_that_are_marked_are_left_out_and_counted(tmp_path: Path, caplog, mark: str) -> None:
    """Of every shape of file, in training and as references. A photograph with no other caption is left out."""

    def notes(number: int) -> list[dict]:
        marked = {"caption": "this shows nothing"} | MARKED[mark]
        return [marked] * 2 if number == 3 else [{"caption": "a dog"} | NOT_MARKED, marked, {"caption": "it runs"}]

    rows = [{"image": name, **note} for number, name in enumerate(NAMES) for note in notes(number)]
    columns = [*dict.fromkeys(key for row in rows for key in row)]
    files = {
        "coco.json": {"images": [{"id": number, "file_name": name, "split": "train"}
            for number, name in enumerate(NAMES)],
            "annotations": [{"image_id": number, **note} for number in range(12) for note in notes(number)]},
        "karpathy.json": {"images": [{"filename": name, "split": "train", "sentences": [
            {"raw": note["caption"]} | note for note in notes(number)]} for number, name in enumerate(NAMES)]},
        "records.json": rows,
        "lists.json": [{"image": name, "captions": notes(number)} for number, name in enumerate(NAMES)],
        "a.csv": [columns, *([row.get(key, "") for key in columns] for row in rows)],
    }  # fmt: skip
    for name, content in files.items():
        path = tmp_path / name
        if name.endswith(".csv"):
            write_csv(path, content)
        else:
            path.write_text(json.dumps(content))
        caplog.clear()
        assert said_in(path) == {name: ["a dog", "it runs"] for name in NAMES if name != "3.png"}
        (line,) = [text for text in caplog.messages if "marked as" in text]
        names = [key.lower() for key, value in MARKED[mark].items() if value and key != "foil_word"]
        assert line.startswith(f"{path}: captions that are marked as not to be used ({', '.join(names)})")
        assert "left out: 13;" in line
        caplog.clear()
        assert [one.captions for one in read_references(path)] == [["a dog", "it runs"]] * 11
        assert "left out: 13;" in caplog.text


REPORTS = [
    {
        "id": f"S{number}",
        "image_path": [f"{number}/a.png", f"{number}/b.png"],
        "report": f"the lungs {number} are clear",
    }
    for number in range(30)
]
WRITTEN = {
    "a list": lambda images: images,
    "a list of Python": repr,
    "a list of NumPy": lambda images: str(np.array(images)),
    "a list in JSON": json.dumps,
}


@pytest.mark.parametrize("name", ["report", "findings", "Impression"])
@pytest.mark.parametrize("form", WRITTEN)
def test_a_report_of_several_images_belongs_to_each_in_one_split(tmp_path: Path, caplog, form: str, name: str) -> None:
    rows = [{"image_path": WRITTEN[form](one["image_path"]), name: one["report"]} for one in REPORTS]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with caplog.at_level(logging.INFO):
        found = read_annotations(tmp_path / "a.jsonl")
    assert "records of several images, whose text belongs to each of them: 30" in caplog.text
    assert {one.name: one.captions for members in found.values() for one in members} == {
        image: [one["report"]] for one in REPORTS for image in one["image_path"]
    }
    studies = {split: {one.name[:-6] for one in members} for split, members in found.items()}
    assert all(studies.values()) and sum(map(len, studies.values())) == 30  # no study is in two splits
    if form != "a list":
        path = write_csv(tmp_path / "a.csv", [tuple(rows[0]), *(tuple(row.values()) for row in rows)])
        assert read_annotations(path) == found


def test_images_of_reports_in_stated_splits(tmp_path: Path, caplog) -> None:
    """As R2Gen has them. A list of one is that image; an image in reports of two splits stays in the first."""
    content = {"train": REPORTS[:20], "val": REPORTS[20:25], "test": REPORTS[25:]}
    content["train"][3] = REPORTS[3] | {"image_path": ["3/a.png"]}
    content["test"].append({"image_path": ["29/a.png", "0/a.png", "0/a.png"], "report": "seen before"})
    (tmp_path / "a.json").write_text(json.dumps(content))
    with caplog.at_level(logging.INFO):
        found = read_annotations(tmp_path / "a.json")
    assert [len(members) for members in found.values()] == [39, 10, 10]
    assert {one.name: one.captions for one in found["train"]}["0/a.png"] == ["the lungs 0 are clear"]
    assert {one.name: one.captions for one in found["test"]}["29/a.png"] == ["the lungs 29 are clear", "seen before"]
    assert "whose text belongs to each of them: 30" in caplog.text
    assert (
        "in records of two splits, which keep the split and the texts of the first: 1, such as 0/a.png" in caplog.text
    )
    (tmp_path / "a.json").write_text(json.dumps([{"image": "a.png", "report": "b", "split": s} for s in content]))
    with pytest.raises(UserError, match='record 2: "a.png" has two splits, "train" and "val"'):
        read_annotations(tmp_path / "a.json")


def test_reports_that_share_images_are_of_one_split(tmp_path: Path) -> None:
    rows = [{"images": [f"{number}.png", f"{number - number % 5}.png"], "report": "clear"} for number in range(60)]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    found = read_annotations(tmp_path / "a.json")
    groups = [{int(Path(one.name).stem) // 5 for one in members} for members in found.values()]
    assert all(groups) and sorted(sum(map(sorted, groups), [])) == list(range(12))


def test_lists_of_splits_that_divide_a_report_are_told(tmp_path: Path, caplog) -> None:
    (tmp_path / "a.json").write_text(json.dumps(REPORTS[:9]))
    lists = {"train": ["0/a.png", "1/a.png", "1/b.png"], "val": ["0/b.png", "2/a.png"], "test": ["3/a.png"]}
    (tmp_path / "s.json").write_text(json.dumps(lists))
    found = read_splits(str(tmp_path / "a.json"), str(tmp_path / "s.json"))
    assert {split: [*members.all_names()] for split, members in found.items()} == lists
    assert "photographs that share a text with one of another split: 1, such as 0/b.png" in caplog.text


@pytest.mark.parametrize(("images", "said"), [([], "has no image"), ([1.5], "not 1.5"), ([["a"]], "not a list")])
def test_lists_that_name_no_images_are_refused(tmp_path: Path, images: list, said: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps([*REPORTS, {"image_path": images, "report": "a"}]))
    with pytest.raises(UserError, match=f"a.json: record 31.*{said}"):
        read_annotations(tmp_path / "a.json")

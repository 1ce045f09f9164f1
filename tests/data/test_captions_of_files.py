"""Folders in which each photograph has a file of captions with its own name."""

import json
import logging
import os
from pathlib import Path

import pytest
from PIL import Image

from tests.data.test_captions import Looking
from vision_attn.data.photographs.annotation_files.references import read_references
from vision_attn.data.photographs.annotations import read_annotations, read_splits
from vision_attn.data.photographs.captions import Captions
from vision_attn.system.errors import UserError

NAMES = [f"{number:02}.png" for number in range(20)]
SAID = {name: [f"a dog {number}", f"it runs {number}"] for number, name in enumerate(NAMES)}


def write_set(folder: Path, ending: str = ".txt", said: dict[str, list[str]] = SAID) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, captions in said.items():
        Image.new("RGB", (8, 8), (int(Path(name).stem[-2:]), 9, 9)).save(folder / name)
        (folder / name).with_suffix(ending).write_text("\n".join(captions) + "\n")
    return folder


def said_in(path: Path, **options) -> dict[str, list[str]]:
    return {one.name: one.captions for members in read_annotations(path, **options).values() for one in members}


@pytest.mark.parametrize("ending", [".txt", ".caption", ".TXT"])
def test_photographs_with_texts_of_their_names(tmp_path: Path, caplog, ending: str) -> None:
    folder = write_set(tmp_path / "set", ending)
    with caplog.at_level(logging.INFO):
        source = Captions(images=str(folder), min_count=1, cache=None)
        source.prepare(Looking())
    assert caplog.messages == [
        f"{folder}: a text file for each photograph, 20 photographs, 40 captions, splits by hash"
    ]
    assert {one.name: one.captions for members in source.photographs.values() for one in members} == SAID
    assert all(map(len, source.photographs.values())) and "40" not in source.vocabulary.words
    assert [one.captions for one in read_references(folder)] == list(SAID.values())


def test_photographs_without_a_text_are_counted(tmp_path: Path, caplog) -> None:
    folder = write_set(tmp_path / "set")
    (folder / "03.txt").unlink()
    (folder / "07.txt").write_text(" \n\n")
    (folder / "09.txt").write_bytes(b"")
    (folder / "other.txt").write_text("a dog without a photograph")
    assert said_in(folder) == {name: SAID[name] for name in NAMES if name[:2] not in ("03", "07", "09")}
    assert "without a text of their name, or with an empty one, that are left out: 3, such as 03.png" in caplog.text
    for name in NAMES:
        (folder / name).with_suffix(".txt").write_text("")
    with pytest.raises(UserError, match="set: no photograph has a caption in the file of its name, such as 00.png"):
        read_annotations(folder)


def test_folders_in_the_folder_say_the_split(tmp_path: Path) -> None:
    parts = {"train": NAMES[:12], "validation": NAMES[12:16], "test": NAMES[16:]}
    for place, names in parts.items():
        write_set(tmp_path / "set" / place / "deeper", said={name: SAID[name] for name in names})
    (tmp_path / "set" / "README.md").write_text("dogs")
    found = read_annotations(tmp_path / "set")
    assert [[one.name for one in members] for members in found.values()] == [
        [f"{place}/deeper/{name}" for name in names] for place, names in parts.items()
    ]
    os.symlink(tmp_path / "set", tmp_path / "set" / "train" / "loop")
    assert read_annotations(tmp_path / "set") == found
    (tmp_path / "set" / "train" / "loop").unlink()
    (tmp_path / "linked").mkdir()
    os.symlink(tmp_path / "set" / "test", tmp_path / "linked" / "some")
    assert sorted(said_in(tmp_path / "linked")) == [f"some/deeper/{name}" for name in parts["test"]]
    each = {split: str(tmp_path / "set" / place) for split, place in zip(found, parts, strict=True)}
    assert {split: [*members.all_names()] for split, members in read_splits(each, cache=str(tmp_path)).items()} == {
        split: [f"deeper/{name}" for name in names] for split, names in zip(found, parts.values(), strict=True)
    }


def test_photographs_that_share_a_text_are_of_one_split(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set")
    for name in NAMES:
        Image.new("RGB", (8, 8)).save((folder / name).with_suffix(".jpg"))
    found = read_annotations(folder)
    stems = [sorted(Path(one.name).stem for one in members) for members in found.values()]
    assert all(stems) and all(some == sorted([*{*some}] * 2) for some in stems)
    assert sum(map(len, stems)) == 40


def test_the_first_kind_of_text_is_taken(tmp_path: Path) -> None:
    """Tags in .txt, captions in .caption, metadata in .json; a name with dots; hidden files are none."""
    folder = write_set(tmp_path / "set", said={name: ["dog, run"] for name in NAMES})
    (folder / "05.caption").write_text("a dog runs")
    (folder / "06.txt").unlink()
    (folder / "06.json").write_text('{"caption": "a red dog", "width": 7}')
    (folder / "07.png").rename(folder / "07.part.1.png")
    (folder / "07.txt").rename(folder / "07.part.1.txt")
    (folder / "._08.txt").write_text("nothing")
    changed = {"05.png": ["a dog runs"], "06.png": ["a red dog"], "07.part.1.png": ["dog, run"]}
    expected = dict.fromkeys(NAMES, ["dog, run"]) | changed
    del expected["07.png"]
    assert said_in(folder) == dict(sorted(expected.items()))


def test_a_file_for_all_photographs_comes_first(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set")
    (folder / "captions.csv").write_text("image,caption\n" + "".join(f"{name},the table\n" for name in NAMES))
    assert said_in(folder) == dict.fromkeys(NAMES, ["the table"])
    (folder / "captions.csv").rename(tmp_path / "captions.csv")
    assert said_in(folder) == SAID  # the folder itself comes before the one above
    inner = write_set(tmp_path / "outer" / "images" / "deep").parent
    (inner.parent / "captions.csv").write_text("image,caption\ndeep/00.png,the table\n")
    assert said_in(inner) == {"deep/00.png": ["the table"]}
    (inner.parent / "captions.csv").unlink()
    assert said_in(inner) == {f"deep/{name}": texts for name, texts in SAID.items()}


def test_files_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set")
    (folder / "04.txt").write_bytes(b"\xff\xd8\x00\x00")
    with pytest.raises(UserError, match="04.txt is not a text file"):
        read_annotations(folder)
    (folder / "04.txt").unlink()
    os.mkfifo(folder / "04.txt")
    with pytest.raises(UserError, match="04.txt is not a file"):
        read_annotations(folder)


def test_names_that_are_not_utf8_are_read_or_left_out(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "set")
    strange = os.fsencode(folder) + b"/caf\xe9"
    os.link(folder / "00.png", strange + b".png")
    Path(os.fsdecode(strange + b".txt")).write_text("a cafe")
    source = Captions(images=str(folder), min_count=1, cache=None)
    source.prepare(Looking())
    names = [name for members in source._readable.values() for name in members.all_names()]
    assert {*NAMES} <= {*names}


def test_films_with_texts_of_their_names(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.mp4").write_bytes(b"a film")
        (tmp_path / f"{number}.txt").write_text("it moves")
    assert said_in(tmp_path) == {f"{number}.mp4": ["it moves"] for number in range(12)}


def test_textcaps_has_each_caption_once(tmp_path: Path) -> None:
    """A record for each caption, which lists all captions of its image, or one for each image."""
    write_set(tmp_path / "set", said=dict.fromkeys(NAMES, ["unused"]))
    for text in (tmp_path / "set").glob("*.txt"):
        text.unlink()
    several = [
        {"image_id": Path(name).stem, "image_path": f"train/{name}", "caption_str": text, "reference_strs": said}
        for name, said in SAID.items()
        for text in said
    ]
    for number, records in enumerate((several, several[::2])):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps({"dataset_name": "textcaps", "data": records}))
        source = Captions(images=str(tmp_path / "set"), annotations=str(path), min_count=1, cache=None)
        source.prepare(Looking())
        found = {f"{one.name}.png": one.captions for members in source.photographs.values() for one in members}
        assert found == SAID  # images are named without their ending

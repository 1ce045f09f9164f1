"""Captions of films, in the shapes in which MSR-VTT, MSVD, VATEX and ActivityNet publish them, and in tables."""

import json
import logging
from pathlib import Path

import pytest

from vision_attn.data.photographs.annotation_files.caption_files import Annotated, read_photographs
from vision_attn.data.photographs.annotations import read_annotations
from vision_attn.data.tables import ALIASES
from vision_attn.system.errors import UserError


def read(folder: Path, name: str, content) -> tuple[str, dict[str, list[str]]]:
    """The shape of a file with this content, and the captions of each film."""
    found = annotated(folder, name, content)
    return found.shape, {film.name: film.captions for film in found.photographs}


def annotated(folder: Path, name: str, content) -> Annotated:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return read_photographs(path)


def msr_vtt(*splits: str | None) -> dict:
    films = [
        {"video_id": f"video{n}", "category": 9, "url": "https://www.youtube.com/watch?v=x", "start time": 1.5,
         "end time": 9.0, "id": n} | ({"split": split} if split else {})
        for n, split in enumerate(splits)
    ]  # fmt: skip
    said = [
        {"caption": f"a man says {word}", "video_id": f"video{n}", "sen_id": n}
        for n in range(len(films))
        for word in ("one", "two")
    ]
    return {"info": {"year": "2016"}, "videos": films, "sentences": said[::-1]}


def test_msr_vtt(tmp_path: Path) -> None:
    """The sentences of a file lie anywhere in it; the splits are those of the films."""
    shape, films = read(tmp_path, "videodatainfo.json", msr_vtt("train", "validate", "test"))
    assert shape == "MSR-VTT's JSON"
    assert films == {f"video{n}": ["a man says two", "a man says one"] for n in (2, 1, 0)}
    found = read_annotations(tmp_path / "videodatainfo.json")
    assert {split: [film.name for film in films] for split, films in found.items()} == {
        "train": ["video0"], "val": ["video1"], "test": ["video2"],
    }  # fmt: skip


def test_msr_vtt_without_splits_is_divided(tmp_path: Path) -> None:
    annotated(tmp_path, "all.json", msr_vtt(*[None] * 30))
    found = read_annotations(tmp_path / "all.json")
    assert sum(map(len, found.values())) == 30 and all(found.values())


def test_a_sentence_without_a_film_is_named(tmp_path: Path) -> None:
    content = msr_vtt("train")
    del content["sentences"][1]["video_id"]
    with pytest.raises(UserError, match=r"all.json: record 2 has no image"):
        annotated(tmp_path, "all.json", content)


def test_vatex(tmp_path: Path) -> None:
    """With ten captions in English, or those in Chinese by the name of their column."""
    films = [
        {
            "videoID": f"abcdefghij{n}_000001_000011",
            "enCap": [f"a man runs {n}", "he"],
            "chCap": ["一个男人在跑步"],
        }
        for n in range(3)
    ]
    shape, found = read(tmp_path, "vatex.json", films)
    assert shape == "JSON"
    assert found == {film["videoID"]: film["enCap"] for film in films}
    other = read_photographs(tmp_path / "vatex.json", columns={"caption": "chCap"})
    assert [film.captions for film in other.photographs] == [["一个男人在跑步"]] * 3


def test_msvd_as_a_table(tmp_path: Path, caplog) -> None:
    """Parts of films are named as the files are in which they are published; other languages are left out."""
    head = "VideoID,Start,End,WorkerID,Source,AnnotationTime,Language,Description\n"
    rows = [
        "mv89psg6zh4,33,46,588702,unverified,55,Slovene,Papagaj se umiva.",
        'mv89psg6zh4,33,46,1,clean,76,English,"A bird, in a sink."',
        "mv89psg6zh4,50,61,2,clean,76,English,A bird flies.",
        "mv89psg6zh4,33,46,2,clean,76,English,A bird bathes.",
    ]
    with caplog.at_level(logging.INFO):
        _, found = read(tmp_path, "msvd.csv", head + "\n".join(rows))
    assert found == {
        "mv89psg6zh4_33_46": ["A bird, in a sink.", "A bird bathes."], "mv89psg6zh4_50_61": ["A bird flies."],
    }  # fmt: skip
    assert "other languages than English, which are left out: 1" in caplog.text


def test_msvd_as_text(tmp_path: Path) -> None:
    text = "# Video Descriptions\n\nmv89psg6zh4_33_46 a bird is in a sink\n-_wa0umYJVG_2_4 a cat plays\n"
    text += "mv89psg6zh4_33_46 a bird bathes\n"
    shape, found = read(tmp_path, "AllVideoDescriptions.txt", text)
    assert shape == "MSVD's text"
    assert found == {"mv89psg6zh4_33_46": ["a bird is in a sink", "a bird bathes"], "-_wa0umYJVG_2_4": ["a cat plays"]}


def test_activitynet(tmp_path: Path) -> None:
    """A sentence tells of a part of its film; all of them tell of the film."""
    films = {
        "v_QOlSCBRmfWY": {"duration": 82.73, "timestamps": [[0.83, 19.86], [17.37, 60.81]],
                          "sentences": ["A young woman is seen standing. ", " The girl dances."]},
        "v_other": {"duration": 9.0, "timestamps": [[0, 9]], "sentences": ["A dog runs."]},
    }  # fmt: skip
    shape, found = read(tmp_path, "train.json", films)
    assert shape.startswith("ActivityNet's JSON")
    assert found == {"v_QOlSCBRmfWY": ["A young woman is seen standing. The girl dances."], "v_other": ["A dog runs."]}


@pytest.mark.parametrize("name", ["video_id", "videoID", "video", "clip", "Video ID"])
def test_columns_of_films_have_these_names(name: str, tmp_path: Path) -> None:
    for file, content in (
        ("a.csv", f"{name},caption\na.mp4,one word\nb.mp4,two words\n"),
        ("a.jsonl", "\n".join(json.dumps({name: f"{film}.mp4", "caption": said}) for film, said in
                              (("a", "one word"), ("b", "two words")))),
    ):  # fmt: skip
        assert read(tmp_path, file, content)[1] == {"a.mp4": ["one word"], "b.mp4": ["two words"]}
    assert ALIASES["image"].index("image") < ALIASES["image"].index("video")


@pytest.mark.parametrize("ending", [".mp4", ".MKV", ".webm", ".avi", ".mov"])
@pytest.mark.parametrize("separator", ["\t", ",", ";", "|"])
def test_films_are_recognised_in_tables_without_a_header(ending: str, separator: str, tmp_path: Path) -> None:
    rows = [f"clips/film{n}{ending}{separator}a film of {n} dogs" for n in range(4)]
    shape, found = read(tmp_path, "films.txt", "\n".join(rows))
    assert shape.endswith("without a header")
    assert found == {f"clips/film{n}{ending}": [f"a film of {n} dogs"] for n in range(4)}


def test_a_table_that_is_not_recognised_says_that_columns_have_numbers_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="or name them: .*caption=NAME, or their numbers, as image=1; line 1"):
        read(tmp_path, "a.csv", "one,two words\nthree,four words\n")
    found = read_photographs(tmp_path / "a.csv", columns={"image": 1, "caption": 2})
    assert [film.name for film in found.photographs] == ["one", "three"]

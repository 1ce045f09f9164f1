"""What a data set of captions holds, before a training."""

import json

import pytest
from PIL import Image

from vision_attn.commands import main

SAID = {
    "train": ["a dog runs", "a dog", "a cat runs", "the cat"],
    "val": ["a dog sleeps"],
    "test": ["the horse runs", "a cat"],
}


@pytest.fixture
def checked(tmp_path, capsys):
    """Checks `SAID`, a caption of each photograph, with options; returns the exit status, and what was printed."""
    (tmp_path / "images").mkdir()
    rows = [(f"{split}{number}.png", text, split) for split, texts in SAID.items() for number, text in enumerate(texts)]
    for name, *_ in rows[:-1]:
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / name)
    (tmp_path / "captions.csv").write_text("\n".join(map(",".join, [("image", "caption", "split"), *rows])))
    data = [f"--data.images={tmp_path / 'images'}", f"--data.annotations={tmp_path / 'captions.csv'}"]

    def check(*options: str) -> tuple[int, str, str]:
        status = main(["check", "sat_soft_flickr8k", *data, "--data.cache=null", *options])
        return status, *capsys.readouterr()

    return check


def test_numbers_are_those_counted_by_hand(checked):
    status, out, complaints = checked("--json", "--data.max_length=2")
    assert status == 0, complaints
    told = json.loads(out)
    assert told["photographs"] == {"train": 4, "val": 1, "test": 1}  # the last has no file
    assert told["length"] == {"mean": 16 / 6, "least": 2, "most": 3} and told["cut"] == 4
    assert told["words"] == {"a": 3, "dog": 2, "runs": 2, "cat": 2, "the": 1}
    assert told["known"]["1"] == {"words": 8, "share": 4 / 6}  # and 3 special ones; not "sleeps" and "horse"
    assert told["known"]["3"] == {"words": 4, "share": 1 / 6}


def test_a_table_for_people_and_what_is_missing(checked, caplog):
    status, out, _ = checked("--data.max_length=2", "--data.min_count=3")
    lines = out.splitlines()
    assert status == 0 and lines[0] == "train 4 photographs, 4 captions"
    assert "captions of more than data.max_length=2 words, which are cut: 4" in lines
    assert "             3            4  16.7%  (this config)" in lines
    assert "photographs that do not exist and are left out: 1" in caplog.text


def test_words_of_the_run_that_it_starts_from_are_known(checked):
    status, out, _ = checked("--json", "--run.start_from=weights/photographs")
    known = json.loads(out)["known"]
    assert status == 0 and known["10"]["words"] > 1000 and known["10"]["share"] == 1


def test_other_data_are_refused(capsys):
    assert main(["check", "sat_soft_scenes"]) == 1
    assert "are no photographs with captions" in capsys.readouterr().err

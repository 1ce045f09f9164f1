"""`vision-attn score`: a results file from anyone, and each way in which it can be wrong."""

import argparse
import json
import os
from contextlib import redirect_stdout

import numpy as np
import pytest

from vision_attn.commands import score
from vision_attn.data.photographs.annotation_files.references import matched, read_references, read_results
from vision_attn.data.photographs.photograph import Photograph
from vision_attn.metrics import Report, write_results
from vision_attn.metrics.intervals import Jackknife
from vision_attn.system.errors import UserError

CAPTIONS = {1: "a dog runs", 2: "a cat sleeps on a café chair", 3: "two birds"}
FEW = "no intervals: they take at least 5 images"


@pytest.fixture
def files(tmp_path):
    """A results file of three captions, and annotations of four images that repeat them."""
    results, annotations = tmp_path / "captions.json", tmp_path / "annotations.json"
    write_results(results, CAPTIONS)
    records = [{"id": i, "image_id": i, "caption": caption} for i, caption in CAPTIONS.items()]
    records += [{"id": 9, "image_id": 1, "caption": "the dog is running"}, {"id": 4, "image_id": 4, "caption": "a bus"}]
    annotations.write_text(json.dumps({"images": [{"id": i} for i in (1, 2, 3, 4)], "annotations": records}))
    return results, annotations


def run(*arguments) -> int:
    parser = argparse.ArgumentParser()
    score.add_arguments(parser)
    return score.run(parser.parse_args([*map(str, arguments), "--metrics", "BLEU-1", "CIDEr"]))


def test_prints_a_table_and_writes_json_beside_the_results(files, capsys):
    assert run(*files) == 0
    printed = capsys.readouterr().out
    assert "3 of 4 annotated images have a caption; the others are skipped" in printed
    assert "BLEU-1    100.00" in printed
    written = json.loads((files[0].parent / "captions_metrics.json").read_text())
    assert written.pop("BLEU-1") == pytest.approx(1)
    assert written.pop("CIDEr") > 1
    assert written == {"images": 3, "annotated_images": 4, "failed": {}, "notes": [FEW], "intervals": {}}
    assert f"\n{FEW}\n" in printed and "95%" not in printed


def test_five_images_have_intervals(files, tmp_path, capsys):
    """Of metrics and of differences, printed and written; none below 0 but of a difference."""
    results, annotations = files
    references = {number: f"a dog sees {thing}" for number, thing in enumerate(["cat", "cow", "owl", "fox", "bee"])}
    records = [{"id": i, "image_id": i, "caption": caption} for i, caption in references.items()]
    annotations.write_text(json.dumps({"images": [{"id": i} for i in references], "annotations": records}))
    write_results(results, references | {0: "a dog sees cow", 1: "nothing"})
    write_results(tmp_path / "other.json", references | {0: "a dog", 1: "nothing"})
    assert run(results, annotations) == 0
    assert "95% interval" in (printed := capsys.readouterr().out) and FEW not in printed
    written = json.loads((tmp_path / "captions_metrics.json").read_text())
    assert not written["notes"] and written["intervals"].keys() >= {"BLEU-1", "CIDEr"}
    for name, (low, high) in written["intervals"].items():
        assert 0 <= low < written[name] < high
    assert run(results, tmp_path / "other.json", annotations) == 0
    (difference,) = json.loads((tmp_path / "captions_compared.json").read_text())["differences"]
    low, high = difference["BLEU-1"]["interval"]
    assert low < difference["BLEU-1"]["difference"] < 0 < high  # of one image of five alone
    assert f"{100 * low:.2f} to {100 * high:.2f}" in capsys.readouterr().out


def test_writes_where_it_is_told(files, tmp_path):
    assert run(*files, "--out", tmp_path / "new/scores.json") == 0
    assert "BLEU-1" in json.loads((tmp_path / "new/scores.json").read_text())
    assert not (tmp_path / "captions_metrics.json").exists()
    with pytest.raises(UserError, match="is a folder"):
        run(*files, "--out", tmp_path)


def test_a_failed_metric_is_the_exit_status_and_earlier_scores_stay(files, monkeypatch, capsys):
    written = files[0].parent / "captions_metrics.json"
    written.write_text("what an earlier call wrote")
    monkeypatch.setenv("VISION_ATTN_JAVA", "/no/such/java")
    assert run(*files) == 1
    printed = capsys.readouterr().out
    assert "BLEU-1 failed: the tokenizer failed" in printed and printed.endswith("nothing is written\n")
    assert run(*files, "--json") == 1
    assert set(json.loads(capsys.readouterr().out)["failed"]) == {"BLEU-1", "CIDEr"}
    assert written.read_text() == "what an earlier call wrote"


def test_several_files_are_compared_on_the_images_of_all(files, tmp_path, capsys):
    other = tmp_path / "other.jsonl"
    other.write_text(
        "".join(json.dumps({"image": i, "caption": c}) + "\n" for i, c in ((2, "a cat"), (1, "a dog runs")))
    )
    assert run(files[0], other, files[1]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[1:3] == [
        f"2  {other}",
        "2 of 4 annotated images have a caption in every file; the others are skipped",
    ]
    assert printed[5].split() == ["BLEU-1", "1", "100.00"]
    assert printed[6].split() == ["2", "36.79", "-63.21"]  # exp(1 - 10 / 5)
    written = json.loads((tmp_path / "captions_compared.json").read_text())
    assert [one["results"] for one in written["files"]] == [str(files[0]), str(other)]
    (difference,) = written["differences"]
    assert difference["BLEU-1"]["difference"] == pytest.approx(-0.63212, abs=1e-5)
    assert difference["BLEU-1"]["interval"] is None  # of two images
    assert run(files[0], other, files[1], "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == written
    with pytest.raises(UserError, match="score the files one by one"):
        run(files[0], other, files[1], "--each", tmp_path / "each.jsonl")
    write_results(other, {4: "a bus"})
    with pytest.raises(UserError, match="no image has a caption in every file"):
        run(files[0], other, files[1])


def test_the_table_shows_percent_failures_and_notes():
    report = Report({"BLEU-1": 0.6703, "BLEU-1-no-brevity": 0.7, "CIDEr": 1.2}, {"METEOR": "it hung"}, ("a remark",))
    images = np.array([-1.0, -0.5, 0, 0.5, 1])
    estimated = {"BLEU-1": Jackknife(0.6703, 0.6703 + 0.01 * images), "CIDEr": Jackknife(1.2, 1.2 + images)}
    assert list(score.table([report], [estimated])) == [
        "metric     x 100        95% interval   without brevity penalty",
        "BLEU-1     67.03      63.10 to 70.96   70.00",
        "CIDEr     120.00      0.00 to 512.65",
        "each interval is by itself, not adjusted for how many there are",
        "METEOR failed: it hung",
        "a remark",
    ]


def test_what_is_said_of_all_files_is_said_once() -> None:
    reports = [Report({"CIDEr": 0.5}, {"METEOR": "it is late"}, ("SPICE left out", note)) for note in ("a", "b")]
    told = [line for line in score.table(reports, [{}, {}]) if "CIDEr" not in line and "metric" not in line][1:]
    assert told == ["METEOR failed: it is late", "SPICE left out", "file 1: a", "file 2: b"]


def test_results_of_strange_images(files):
    results, annotations = files
    write_results(results, CAPTIONS | {77: "a plane"})
    with pytest.raises(UserError, match="1 of 4 captions belong to no image .* 77; its images have names such as .*1:"):
        run(results, annotations)


REFERENCES = {"kite.jpg": ["a red kite over a hill", "the kite is red"], "cats.jpg": ["two cats sleep on a sofa"]}
ROWS = [(name, caption) for name, captions in REFERENCES.items() for caption in captions]
ANNOTATIONS = {
    "refs.csv": "image,caption\n" + "".join(f"{name},{caption}\n" for name, caption in ROWS),
    "refs.tsv": "image\tcaption\tsplit\n" + "".join(f"{name}\t{caption}\ttest\n" for name, caption in ROWS),
    "refs.jsonl": "".join(json.dumps({"image": name, "caption": caption}) + "\n" for name, caption in ROWS),
    "karpathy.json": json.dumps({
        "images": [
            {"filename": name, "filepath": "val2014", "cocoid": number, "split": "test",
             "sentences": [{"raw": caption} for caption in captions]}
            for number, (name, captions) in enumerate(REFERENCES.items(), start=40)
        ]
    }),
    "coco.json": json.dumps({
        "images": [{"id": number, "file_name": f"val2014/{name}"} for number, name in enumerate(REFERENCES, start=40)],
        "annotations": [
            {"image_id": 40 + list(REFERENCES).index(name), "caption": caption} for name, caption in ROWS
        ],
    }),
}  # fmt: skip


@pytest.mark.parametrize("annotations", ANNOTATIONS)
@pytest.mark.parametrize("shape", ["{}", "photos/{}", "C:\\photos\\{}", "stem", "id", "text"])
def test_every_annotation_file_of_training_holds_references(tmp_path, annotations, shape):
    """Images are named by file with or without folder and ending, or by id as a number or as text."""
    (tmp_path / annotations).write_text(ANNOTATIONS[annotations])
    photographs = read_references(tmp_path / annotations)
    assert [photograph.captions for photograph in photographs] == list(REFERENCES.values())
    names = [shape.format(name) for name in REFERENCES]
    if shape == "stem":
        names = ["kite", "cats"]
    elif shape in ("id", "text"):
        ids = [photograph.id for photograph in photographs]
        assert ids == (list(REFERENCES) if annotations.startswith("refs") else [40, 41])
        names = ids if shape == "id" else [str(key) for key in ids]
    found = matched(names[::-1], photographs)
    assert {name: one.captions for name, one in found.items()} == dict(zip(names, REFERENCES.values(), strict=True))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("r.json", '[{"image_id": "kite.jpg", "caption": "a kite"}, {"image_id": "cats.jpg", "caption": "two, cats"}]'),
        ("r.csv", 'image,caption\nkite.jpg,a kite\ncats.jpg,"two, cats"\n'),
        ("r.csv", "file_name;caption\nkite.jpg;a kite\ncats.jpg;two, cats\n"),
        ("r.tsv", "Image_id\tCaption\nkite.jpg\ta kite\ncats.jpg\ttwo, cats\n"),
        (
            "r.jsonl",  # of `caption --json --captions 2`
            '{"file": "kite.jpg", "captions": [{"caption": "a kite", "score": -1.5}, {"caption": "a bird"}]}\n'
            '{"file": "cats.jpg", "captions": [{"caption": "two, cats", "score": -2.5, "words": []}]}\n',
        ),
    ],
)
def test_results_in_every_shape(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    assert read_results(tmp_path / name) == {"kite.jpg": "a kite", "cats.jpg": "two, cats"}


def test_a_csv_of_results_is_scored_against_a_csv_of_references(tmp_path):
    (tmp_path / "refs.csv").write_text(ANNOTATIONS["refs.csv"])
    (tmp_path / "mine.csv").write_text("image,caption\nout/kite.jpg,the kite is red\nout/cats.jpg,two cats sleep\n")
    assert run(tmp_path / "mine.csv", tmp_path / "refs.csv", "--each", tmp_path / "new" / "each.jsonl") == 0
    written = json.loads((tmp_path / "mine_metrics.json").read_text())
    each = [json.loads(line) for line in (tmp_path / "new" / "each.jsonl").read_text().splitlines()]
    assert [(one["image_id"], one["caption"]) for one in each] == [
        ("out/kite.jpg", "the kite is red"), ("out/cats.jpg", "two cats sleep")
    ]  # fmt: skip
    assert each[0]["BLEU-1"] == 1 and each[1]["BLEU-1"] == pytest.approx(0.36788, abs=1e-5)  # exp(1 - 6 / 3)
    assert sum(one["CIDEr"] for one in each) / 2 == pytest.approx(written["CIDEr"])


def test_images_that_may_be_two_or_are_the_same():
    photographs = [Photograph("a/1.jpg", "a/1.jpg", ["x"]), Photograph("b/1.jpg", "b/1.jpg", ["y"])]
    assert matched(["a/1.jpg", "b/1.jpg"], photographs)["b/1.jpg"].captions == ["y"]
    with pytest.raises(UserError, match=r'image "1.jpg" may be "a/1.jpg" or "b/1.jpg": name the folder too'):
        matched(["1.jpg"], photographs)
    with pytest.raises(UserError, match=r'"c/1.jpg" and "1.jpg" are the same image'):
        matched(["c/1.jpg", "1.jpg"], [photographs[0], Photograph(5, "", ["z"])])
    one, text = Photograph(1, "", ["number"]), Photograph("1", "", ["text"])
    assert matched([1], [one, text])[1].captions == ["number"]
    assert matched(["1"], [one])["1"].captions == ["number"]
    assert matched([7], [one]) == {}


def test_files_are_written_before_the_first_line_is_printed(files, tmp_path):
    """As with `vision-attn score ... | head -1`, whose reader is gone before the table ends."""
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError), os.fdopen(writer, "w") as pipe, redirect_stdout(pipe):
        run(*files, "--each", tmp_path / "each.jsonl")
    assert json.loads((tmp_path / "captions_metrics.json").read_text())["BLEU-1"] == pytest.approx(1)
    assert len((tmp_path / "each.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("[1, 2", "is not JSON"),
        ("{}", "is not a results file"),
        ("[]", "holds no captions"),
        ("[1]", "record 1 is 1, not an object with image and caption"),
        ('[{"image_id": 1}]', "record 1 has no caption; each must have image and caption"),
        ('[{"image_id": 1, "caption": null}]', "record 1 has no caption"),
        ('[{"image_id": 1.5, "caption": "a"}]', "record 1: image must be text or an integer, not 1.5"),
        (
            '[{"image_id": 1, "caption": "a"}, {"image_id": 1, "caption": "b"}]',
            "record 2 is the second caption of image 1",
        ),
    ],
)
def test_results_files_that_are_none(files, content, message):
    files[0].write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        run(*files)
    assert str(files[0]) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no", 'the first row must name the columns "image" and "caption"'),
        ("[]", "has no captions"),
        ('{"images": []}', "not a caption file; expected COCO's format"),
        ('{"annotations": []}', "holds no captions"),
        ('{"annotations": [{"caption": "a"}]}', "annotation 0 lacks 'image_id'"),
    ],
)
def test_annotation_files_that_are_none(files, content, message):
    files[1].write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        run(*files)
    assert str(files[1]) in str(caught.value)


def test_files_that_cannot_be_read(files, tmp_path):
    with pytest.raises(UserError, match=r"missing\.json was not found"):
        run(tmp_path / "missing.json", files[1])
    with pytest.raises(UserError, match="is a folder with several files"):
        run(files[0], tmp_path)
    files[0].write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="the first row must name"):
        run(*files)


@pytest.mark.parametrize(
    ("image", "said"),
    [("1.5", "1.5"), ("NaN", "NaN"), ("-Infinity", "-Infinity"), ("null", "null"), ("true", "true"), ("[[]]", "a list"),
     ("{}", "an object")],
)  # fmt: skip
def test_ids_of_odd_types_are_named(files, image, said):
    files[0].write_text(f'[{{"image_id": {image}, "caption": "a"}}]')
    with pytest.raises(UserError, match=f"record 1( has no image|: image must be text or an integer, not {said}$)"):
        read_results(files[0])
    files[1].write_text(f'{{"annotations": [{{"image_id": {image}, "caption": "a"}}]}}')
    with pytest.raises(UserError, match=rf"the id of annotation 0 must be an integer or a string, not {said}$"):
        read_references(files[1])


def test_what_is_nested_deeply_is_one_short_line(files):
    for content in ("[" * 100_000, '[{"image_id": ' + "[" * 900 + "]" * 900 + ', "caption": "a"}]'):
        files[0].write_text(content)
        with pytest.raises(UserError, match=files[0].name) as refused:
            read_results(files[0])
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


def test_half_characters_are_written_as_they_were_read(tmp_path):
    """Python reads the escape of a lone surrogate from JSON, but UTF-8 cannot write it."""
    captions = {"half \ud83d": "a \udcff dog", 7: "a caf\u00e9 \U0001f600"}
    write_results(tmp_path / "r.json", captions)
    assert read_results(tmp_path / "r.json") == captions
    assert "caf\u00e9 \U0001f600" in (tmp_path / "r.json").read_text(encoding="utf-8")


def test_results_survive_the_round_trip(tmp_path):
    captions = {1: "a café \u2028 \U0001f600", "COCO_2": ""}
    write_results(tmp_path / "r.json", captions)
    assert read_results(tmp_path / "r.json") == captions
    (tmp_path / "a.json").write_text('\ufeff{"annotations": [{"image_id": 1, "caption": "a"}]}', encoding="utf-8")
    assert read_references(tmp_path / "a.json") == [Photograph(1, "", ["a"])]

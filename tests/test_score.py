"""`vision-attn score`: a results file from anyone, and each way in which it can be wrong."""

import argparse
import json

import pytest

from vision_attn.commands import score
from vision_attn.metrics import read_references, read_results, write_results

CAPTIONS = {1: "a dog runs", 2: "a cat sleeps on a café chair", 3: "two birds"}


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
    assert written == {"images": 3, "annotated_images": 4, "failed": {}, "notes": []}


def test_writes_where_it_is_told(files, tmp_path):
    assert run(*files, "--out", tmp_path / "new/scores.json") == 0
    assert "BLEU-1" in json.loads((tmp_path / "new/scores.json").read_text())
    assert not (tmp_path / "captions_metrics.json").exists()
    with pytest.raises(ValueError, match="is a folder"):
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


def test_results_of_strange_images(files):
    results, annotations = files
    write_results(results, CAPTIONS | {77: "a plane"})
    with pytest.raises(
        ValueError, match="1 of 4 captions belong to no image .* such as image_id 77; is it another split"
    ):
        run(results, annotations)
    write_results(results, {str(image): caption for image, caption in CAPTIONS.items()})
    with pytest.raises(ValueError, match="such as image_id '1'; one file writes its ids as numbers, the other as text"):
        run(results, annotations)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not JSON"),
        ("[1, 2", "is not JSON"),
        ("{}", "is not a COCO results file"),
        ("[]", "holds no captions"),
        ("[1]", "record 0 is not of the form"),
        ('[{"image_id": 1}]', "record 0 is not of the form"),
        ('[{"image_id": 1, "caption": null}]', "record 0: the caption must be a string, not null"),
        ('[{"image_id": 1.5, "caption": "a"}]', "record 0: image_id must be an integer or a string, not 1.5"),
        (
            '[{"image_id": 1, "caption": "a"}, {"image_id": 1, "caption": "b"}]',
            "record 1 is the second caption of image 1",
        ),
    ],
)
def test_results_files_that_are_none(files, content, message):
    files[0].write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        run(*files)
    assert str(files[0]) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no", "is not JSON"),
        ("[]", "is not a COCO annotation file"),
        ('{"images": []}', "is not a COCO annotation file"),
        ('{"annotations": []}', "holds no captions"),
        ('{"annotations": [{"caption": "a"}]}', "annotation 0 is not of the form"),
    ],
)
def test_annotation_files_that_are_none(files, content, message):
    files[1].write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        run(*files)
    assert str(files[1]) in str(caught.value)


def test_files_that_cannot_be_read(files, tmp_path):
    with pytest.raises(ValueError, match=r"missing\.json was not found"):
        run(tmp_path / "missing.json", files[1])
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        run(files[0], tmp_path)
    files[0].write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="it is not UTF-8 text"):
        run(*files)


@pytest.mark.parametrize(
    ("image", "said"),
    [("1.5", "1.5"), ("NaN", "NaN"), ("-Infinity", "-Infinity"), ("null", "null"), ("true", "true"), ("[[]]", "a list"),
     ("{}", "an object")],
)  # fmt: skip
def test_ids_of_odd_types_are_named(files, image, said):
    files[0].write_text(f'[{{"image_id": {image}, "caption": "a"}}]')
    with pytest.raises(ValueError, match=rf"record 0: image_id must be an integer or a string, not {said}$"):
        read_results(files[0])
    files[1].write_text(f'{{"annotations": [{{"image_id": {image}, "caption": "a"}}]}}')
    with pytest.raises(ValueError, match=rf"annotation 0: image_id must be an integer or a string, not {said}$"):
        read_references(files[1])


def test_what_is_nested_deeply_is_one_short_line(files):
    for content in ("[" * 100_000, '[{"image_id": ' + "[" * 900 + "]" * 900 + ', "caption": "a"}]'):
        files[0].write_text(content)
        with pytest.raises(ValueError, match=files[0].name) as refused:
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
    assert read_references(tmp_path / "a.json") == {1: ["a"]}

"""Captions in every shape in which they are published, recognised by their content."""

import csv
import io
import json
import logging
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.data.test_captions import Looking
from tests.test_docs import ROOT, commands
from tests.untrained import write_run
from vision_attn.commands import main
from vision_attn.data.photographs.annotation_files.references import read_references, read_results
from vision_attn.data.photographs.annotations import read_annotations, read_splits
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.text_encoding import read_text
from vision_attn.system.errors import UserError

NAMES = [f"{number:02}_dog.jpg" for number in range(24)]
TEXTS = ["A dog, a cat and a ball .", 'one "red" dog', "it runs", "dogs | cats; and more"]
SAID = {name: [f"{text} {number}" for text in TEXTS] for number, name in enumerate(NAMES)}
PAIRS = [(name, text) for name, texts in SAID.items() for text in texts]
LISTS = {"train": NAMES[:16], "val": NAMES[16:20], "test": NAMES[20:]}
LONG = {"train": "training", "val": "Validation", "test": "testing"}


def table(rows: list[tuple], separator: str = ",") -> str:
    written = io.StringIO()
    csv.writer(written, delimiter=separator).writerows(rows)
    return written.getvalue()


def split_of(name: str) -> str:
    return next(split for split, names in LISTS.items() if name in names)


COCO = {
    "images": [{"id": number, "file_name": name, "split": split_of(name)} for number, name in enumerate(NAMES)],
    "annotations": [{"id": n, "image_id": NAMES.index(name), "caption": text} for n, (name, text) in enumerate(PAIRS)],
}
KARPATHY = {
    "dataset": "flickr8k",
    "images": [
        {"filename": name, "imgid": number, "split": split_of(name),
         "sentences": [{"raw": text, "tokens": text.split()} for text in SAID[name]]}
        for number, name in enumerate(NAMES)
    ],
}  # fmt: skip
NUMBERED = [(name, number, text) for name, texts in SAID.items() for number, text in enumerate(texts)]
SHAPES = {
    "CSV with a header": table([("image", "caption"), *PAIRS]),
    "CSV with a header, no quotation marks": "image,caption\n" + "\n".join(map(",".join, PAIRS)),
    "CSV with a header, of a spreadsheet": "\ufeff" + table([("Image Name ", "Split", "Text"),
        *((name, split_of(name).upper(), text) for name, text in PAIRS)]).replace("\r\n", "\r"),
    "CSV with a header, columns of captions": table([("file_name", "caption_1", "caption_2", "caption_3", "caption_4"),
        *((name, *texts) for name, texts in SAID.items())]),
    "CSV with a header, lists in JSON": table([("raw", "sentids", "split", "filename", "img_id"),
        *((json.dumps(texts), "[0, 1]", split_of(name), name, 7) for name, texts in SAID.items())]),
    "CSV without a header": table(PAIRS),
    "CSV without a header, with splits": table([(name, LONG[split_of(name)], text) for name, text in PAIRS]),
    "CSV without a header, no quotation marks": "\n".join(map(",".join, PAIRS)),
    "CSV with a header, unknown names": table([("bild", "beschreibung"), *PAIRS]),
    "semicolon-separated text with a header": table([("image", "caption"), *PAIRS], ";"),
    "|-separated text with a header": "image_name| comment_number| comment\n"
        + "".join(f"{name}| {number}| {text}\n" for name, number, text in NUMBERED),
    "TSV of NAME#NUMBER and caption without a header": "".join(f"{name}#{n}\t{text}\n" for name, n, text in NUMBERED),
    "TSV without a header": "".join(f"{text}\t{name}\n" for name, text in PAIRS),
    "TSV with a header": table([("caption", "split", "image"),
        *((text, split_of(name), name) for name, text in PAIRS)], "\t"),
    "COCO's JSON": json.dumps(COCO, indent=1),
    "Karpathy's JSON": json.dumps(KARPATHY, indent=1),
    "JSON": json.dumps([{"image": name, "caption": text} for name, text in PAIRS], indent=1),
    "JSON, objects": json.dumps([{"file": name, "captions": [{"caption": text} for text in texts]}
        for name, texts in SAID.items()], indent=1),
    "JSON of captions by image": json.dumps(SAID, indent=0),
    "JSON lists of each split": json.dumps({split: [{"image": name, "captions": SAID[name]} for name in names]
        for split, names in LISTS.items()}, indent=1),
    "JSON lines": "".join(json.dumps({"file_name": name, "text": text}) + "\n" for name, text in PAIRS),
    "JSON of conversations": json.dumps([{"id": n, "image": name, "conversations": [
        {"from": "human", "value": "<image>\nDescribe it."}, {"from": "gpt", "value": text}]}
        for n, (name, text) in enumerate(PAIRS)], indent=1),
    "JSON lines of conversations": "".join(json.dumps({"messages": [{"role": "user", "content": "<image>"},
        {"role": "assistant", "content": text}], "images": [name]}) + "\n" for name, text in PAIRS),
    "JSON lines of conversations, in parts": "".join(json.dumps({"messages": [
        {"role": "user", "content": [{"type": "image", "image": name}, {"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": text}]}]}) + "\n" for name, text in PAIRS),
    "JSON lines, lists": "".join(json.dumps({"image": name, "sentences": SAID[name]}) + "\n" for name in NAMES),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_recognised_by_its_content(tmp_path: Path, caplog, shape: str) -> None:
    """The ending says nothing. Also as references."""
    assert len(SHAPES[shape].splitlines()) >= 20
    (tmp_path / "captions.dat").write_bytes(SHAPES[shape].encode())
    with caplog.at_level(logging.INFO):
        found = read_annotations(tmp_path / "captions.dat")
    assert {one.name: one.captions for members in found.values() for one in members} == SAID
    (said,) = caplog.messages
    assert said.startswith(f"{tmp_path}/captions.dat: {shape.split(', ')[0]}, 24 photographs, 96 captions, splits ")
    if said.endswith("as stated"):
        assert {split: [one.name for one in members] for split, members in found.items()} == LISTS
    else:
        assert said.endswith("by hash")
    assert [one.captions for one in read_references(tmp_path / "captions.dat")] == list(SAID.values())


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if "JSON" not in shape.split(" lines")[0].split(", ")[0]])
def test_results_are_recognised_in_the_same_way(tmp_path: Path, shape: str) -> None:
    lines = SHAPES[shape].replace("\r\n", "\n").replace("\r", "\n").split("\n")
    first = 0 if "without" in shape or shape.startswith("JSON") else 1
    step = 1 if "columns" in shape or "lists" in shape else len(TEXTS)
    (tmp_path / "results").write_text("\n".join([*lines[:first], *lines[first::step]]))
    assert read_results(tmp_path / "results") == {name: texts[0] for name, texts in SAID.items()}


def conversation(*answers: str, **others: str) -> dict:
    turns = [({"from": "human", "value": "And?"}, {"from": "gpt", "value": answer}) for answer in answers]
    return {"conversations": [turn for pair in turns for turn in pair], **others}


def test_a_conversation_of_several_answers_is_no_caption(tmp_path: Path, caplog) -> None:
    """Nor is one without an image. A record with a caption keeps it, whatever its conversation says."""
    path = tmp_path / "talk.json"
    others = [conversation("yes", "two", image="a.jpg"), conversation("Paris")]
    path.write_text(json.dumps([conversation("a dog", image="a.jpg"), *others]))
    assert read_annotations(path, split="train")["train"][0].captions == ["a dog"]
    assert f"{path}: conversations of several answers, or without an image, that are left out: 2" in caplog.messages
    path.write_text(json.dumps([conversation("yes, a dog", image="a.jpg", caption="a dog")]))
    assert read_annotations(path, split="train")["train"][0].captions == ["a dog"]
    path.write_text(json.dumps(others))
    with pytest.raises(UserError, match="talk.json has no conversation of an image with a single answer"):
        read_annotations(path)


def test_an_imagefolder_has_a_file_for_each_split(tmp_path: Path, caplog) -> None:
    for folder, names in zip(("train", "validation", "test"), LISTS.values(), strict=True):
        (tmp_path / folder).mkdir()
        rows = [{"file_name": name, "text": text} for name in names for text in SAID[name]]
        (tmp_path / folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with caplog.at_level(logging.INFO):
        found = Captions(images=str(tmp_path)).photographs
    assert "imagefolder: train 16, val 4, test 4, 24 photographs, 96 captions, splits by folder" in caplog.text
    assert [one.name for one in found["val"]] == [f"validation/{name}" for name in LISTS["val"]]
    assert [one.captions for one in found["test"]] == [SAID[name] for name in LISTS["test"]]
    alone = read_annotations(tmp_path / "train" / "metadata.jsonl")
    assert sorted(one.name for members in alone.values() for one in members) == LISTS["train"]
    rows = [(f"{split}/{name}", text) for split in LISTS for name in LISTS[split] for text in SAID[name]]
    (tmp_path / "metadata.csv").write_text(table([("file_name", "text"), *rows]))
    for folder in ("train", "validation", "test"):
        (tmp_path / folder / "metadata.jsonl").unlink()
    found = read_annotations(tmp_path)
    assert {split: [Path(one.name).name for one in members] for split, members in found.items()} == LISTS


def test_a_folder_holds_one_file_of_captions(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder without a file of captions: name one"):
        read_annotations(tmp_path)
    (tmp_path / "mine.txt").write_text(SHAPES["CSV with a header"])
    (tmp_path / "README.md").write_text("Dogs")
    expected = read_annotations(tmp_path)
    (tmp_path / "other.csv").write_text("image,caption\na.png,b")
    with pytest.raises(UserError, match='several files that may hold captions, "mine.txt", "other.csv": name one'):
        read_annotations(tmp_path)
    (tmp_path / "mine.txt").rename(tmp_path / "captions.txt")
    assert read_annotations(tmp_path) == expected
    (tmp_path / "images").mkdir()
    found = Captions(images=str(tmp_path / "images")).photographs  # of Flickr8k on Kaggle
    assert {split: [*members.all_names()] for split, members in found.items()} == {
        split: [one.name for one in members] for split, members in expected.items()
    }


@pytest.mark.parametrize("form", ["parquet", "arrow", "stream"])
def test_files_with_columns_are_read(tmp_path: Path, form: str) -> None:
    """Without the bytes of photographs that may be in them."""
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow, of the extra [scale]")
    from pyarrow import ipc, parquet

    rows = {"file_name": NAMES, "captions": list(SAID.values()), "thumbnail": [b"\xff\xd8"] * len(NAMES)}
    found = pyarrow.table(rows | {"split": [split_of(name) for name in NAMES]})
    path = tmp_path / "captions"
    if form == "parquet":
        parquet.write_table(found, path)
    else:
        with (ipc.new_file if form == "arrow" else ipc.new_stream)(str(path), found.schema) as writer:
            writer.write_table(found)
    read = read_annotations(path)
    assert {split: {one.name: one.captions for one in members} for split, members in read.items()} == {
        split: {name: SAID[name] for name in names} for split, names in LISTS.items()
    }
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="captions is not a readable"):
        read_annotations(path)
    inside = {"image": [{"bytes": b"\xff\xd8", "path": name} for name in NAMES], "text": NAMES}
    with ipc.new_file(str(path), (found := pyarrow.table(inside)).schema) as writer:  # others: test_hub_datasets
        writer.write_table(found)
    with pytest.raises(
        UserError, match="holds the photographs themselves, .*Arrow files of that kind .* write Parquet"
    ):
        read_annotations(path)


def test_addresses_are_not_names_of_files(tmp_path: Path) -> None:
    """As in Conceptual Captions."""
    lines = [f"{text}\thttp://example.com/{name}?size=1" for name, text in PAIRS]
    (tmp_path / "train.tsv").write_text("\n".join(lines))
    with pytest.raises(UserError, match="train.tsv: the file name of line 1 is the address .*: download the photogr"):
        read_annotations(tmp_path / "train.tsv")


def test_lists_of_names_say_the_splits(tmp_path: Path) -> None:
    """Lines of names, as of Flickr8k, or JSON."""
    (tmp_path / "dogs.token.txt").write_text(SHAPES["TSV of NAME#NUMBER and caption without a header"])
    files = {}
    for split, names in LISTS.items():
        files[split] = str(tmp_path / f"dogs.{split}Images.txt")
        Path(files[split]).write_text("\r\n".join(names) + "\r\n")
    (tmp_path / "train.json").write_text(json.dumps(LISTS["train"]))
    for lists in (files, files | {"train": str(tmp_path / "train.json")}):
        found = read_splits(str(tmp_path / "dogs.token.txt"), split_files=lists)
        assert {split: list(members.all_names()) for split, members in found.items()} == LISTS
    with pytest.raises(UserError, match=r"or a list of names for each split: --data.split_files.train=dogs"):
        read_splits(str(tmp_path / "dogs.token.txt"), split_files=files["train"])


def test_columns_that_are_not_recognised_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(table([("photo id", "notes", "what one sees"), *((Path(n).stem, "none", t) for n, t in PAIRS)]))
    with pytest.raises(
        UserError, match='the first row must name .* name them: --data.columns.image=NAME .* line 1 is "photo'
    ):
        read_annotations(path)
    found = read_annotations(path, columns={"image": "Photo ID", "caption": "what one sees"})
    assert sum(len(one.captions) for members in found.values() for one in members) == len(PAIRS)
    path.write_text("\n".join(f"{Path(name).stem};none;{text}" for name, text in PAIRS))
    found = read_annotations(path, columns={"image": 1, "caption": 3})
    assert {Path(name).stem: texts for name, texts in SAID.items()} == {
        one.name: one.captions for members in found.values() for one in members
    }
    path.write_text("\n".join(f"{name}\ta title here\t{text}" for name, text in PAIRS))
    with pytest.raises(UserError, match="columns 2 and 3 may each be the caption.*--data.columns.caption=2"):
        read_annotations(path)
    found = read_annotations(path, columns={"caption": 3})
    assert {one.name: one.captions for members in found.values() for one in members} == SAID
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"a": name, "b": text}) for name, text in PAIRS))
    found = read_annotations(tmp_path / "a.jsonl", columns={"image": "a", "caption": "b"})
    assert {one.name: one.captions for members in found.values() for one in members} == SAID
    with pytest.raises(UserError, match="columns can be named for image, caption, split, not text"):
        read_annotations(path, columns={"text": "b"})


def test_a_line_that_lacks_a_column_is_left_out_and_counted(tmp_path: Path, caplog) -> None:
    lines = SHAPES["|-separated text with a header"].split("\n")
    assert lines[5].startswith(f"{NAMES[1]}| 0| ")
    lines[5] = lines[5].replace("| 0| ", "| 0   ")
    (tmp_path / "results.csv").write_text("\n".join(lines))
    found = read_annotations(tmp_path / "results.csv")
    captions = {one.name: one.captions for members in found.values() for one in members}
    assert captions == SAID | {NAMES[1]: SAID[NAMES[1]][1:]}
    assert "results.csv: lines that lack a column and are left out: 1, such as line 6" in caplog.text
    (tmp_path / "results.csv").write_text(
        "\n".join(line.replace("| ", "  ", 2) if n else line for n, line in enumerate(lines))
    )
    with pytest.raises(UserError, match="results.csv: line 2 has fewer columns"):
        read_annotations(tmp_path / "results.csv")


@pytest.mark.parametrize(
    ("rows", "captions"),
    [
        ('a.jpg,"two ""big"" dogs, asleep"', ['two "big" dogs, asleep']),
        ('a.jpg, "two dogs, asleep"', ["two dogs, asleep"]),
        ('a.jpg,"two" dogs, asleep', ['"two" dogs, asleep']),
        ('a.jpg,"two dogs\nasleep"', ["two dogs asleep"]),
        ('a.jpg,"two dogs\na.jpg,one "small" dog', ['"two dogs', 'one "small" dog']),
        ('a.jpg,"two dogs\na.jpg,"one dog"', ['"two dogs', "one dog"]),
        ("a.jpg,two dogs,,,", ["two dogs"]),
        ("a.jpg,two dogs, asleep\n,\n\na.jpg,", ["two dogs, asleep"]),
    ],
)
def test_quotation_marks_that_do_not_enclose_a_field_are_text(tmp_path: Path, rows: str, captions: list[str]) -> None:
    more = "".join(f"\n{name},it runs" for name in NAMES)
    (tmp_path / "a.csv").write_text(f"image,caption\n{rows}{more}\n")
    found = {one.name: one.captions for members in read_annotations(tmp_path / "a.csv").values() for one in members}
    assert found == {"a.jpg": captions} | {name: ["it runs"] for name in NAMES}


ENCODED = {
    "utf-8-sig": "ein Hund l\u00e4uft",
    "utf-16": "\u72d7\u5728\u8dd1",
    "cp1252": "un chien pr\u00e8s de la for\u00eat",
    "gb18030": "\u4e00\u53ea\u72d7\u5728\u6d77\u6ee9\u4e0a\u5954\u8dd1",
    "cp1251": "\u0441\u043e\u0431\u0430\u043a\u0430 \u0431\u0435\u0436\u0438\u0442",
}


@pytest.mark.parametrize("encoding", ENCODED)
def test_captions_in_every_encoding(tmp_path: Path, caplog, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes(("image,caption\n" + f"a.jpg,{ENCODED[encoding]}\n" * 20).encode(encoding))
    (photograph,) = read_references(tmp_path / "a.csv")
    assert set(photograph.captions) == {ENCODED[encoding]}
    assert ("is not in UTF-8, and is read as" in caplog.text) == (not encoding.startswith("utf"))


def test_single_bytes_that_are_damaged_do_not_change_the_encoding(tmp_path: Path, caplog) -> None:
    (tmp_path / "a").write_bytes(("\u00e9" * 100).encode() + b"\xff")
    assert read_text(tmp_path / "a") == "\u00e9" * 100 + "\ufffd"
    assert "are replaced: 1" in caplog.text
    (tmp_path / "a").write_bytes(b"\xff\xd8\xff\x00")
    with pytest.raises(UserError, match="a is not a text file"):
        read_text(tmp_path / "a")


SMALL = [
    "--run.start_from=tiny", "--run.epochs=1", "--run.warmup=0", "--run.metric=nll", "--run.mode=min",
    "--run.device=cpu", "--run.sanity_check=false", "--data.min_count=1", "--data.cache=null",
    "--task.validate_with=[]",
]  # fmt: skip
FILES = {
    "mine/captions.csv": ("mine/images", SHAPES["CSV with a header"]),
    "results.csv": ("mine/images", table([("photo", "comment_number", "what_one_sees"), *NUMBERED], "|")),
    "Flickr8k/Flickr8k.token.txt": (
        "Flickr8k/Images", SHAPES["TSV of NAME#NUMBER and caption without a header"]
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("annotations", FILES)
def test_the_commands_of_the_docs_train(tmp_path: Path, monkeypatch, caplog, annotations: str) -> None:
    """On each file that docs/captioning_data.md trains on, with a tiny captioner to start from."""
    page = ROOT / "docs" / "captioning_data.md"
    named = (words for words in commands(page) if f"--data.annotations={annotations}" in words)
    verb, _, *options = next(named)
    monkeypatch.chdir(tmp_path)
    folder, text = FILES[annotations]
    for name in NAMES:
        Path(folder).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), (9 * NAMES.index(name), 0, 99)).save(Path(folder) / name)
    Path(annotations).write_text(text)
    for split, official in (("train", "train"), ("val", "dev"), ("test", "test")):
        Path(folder).parent.joinpath(f"Flickr_8k.{official}Images.txt").write_text("\n".join(LISTS[split]))
    write_run("sat_soft_scenes", Path("tiny"))
    with caplog.at_level(logging.INFO):
        assert main([verb, str(ROOT / "configs" / "finetune_photographs.yaml"), *options, *SMALL]) == 0
    assert f"{annotations}: " in caplog.text and "24 photographs, 96 captions" in caplog.text
    if "token" in annotations:
        members = Path("runs/mine/best/config.yaml").read_text()
        assert "split_files:" in members and "Flickr_8k.devImages.txt" in members


def test_flickr8k_in_its_published_shapes_is_the_same_training_set(data_folder, tmp_path: Path) -> None:
    """captions.txt and *.token.txt with the official lists, as captions.json: vocabulary and batches too."""
    whole = json.loads((data_folder / "flickr8k" / "captions.json").read_text())
    whole["images"] = whole["images"][:500]  # all were compared once
    names = {image["id"]: image["file_name"] for image in whole["images"]}
    whole["annotations"] = [note for note in whole["annotations"] if note["image_id"] in names]
    (tmp_path / "captions.json").write_text(json.dumps(whole))
    rows = [(names[note["image_id"]], note["caption"]) for note in whole["annotations"]]
    (tmp_path / "captions.txt").write_text(table([("image", "caption"), *rows]))
    counts: dict[str, int] = {}
    with open(tmp_path / "Flickr8k.token.txt", "w") as file:
        for name, text in rows:
            counts[name] = counts.get(name, -1) + 1
            file.write(f"{name}#{counts[name]}\t{text}\n")
    lists = {"train": "train", "val": "dev", "test": "test"}
    lists = {split: f"flickr8k/Flickr_8k.{name}Images.txt" for split, name in lists.items()}
    for path, option in (
        (tmp_path / "captions.json", None),
        (tmp_path / "captions.txt", lists),
        (tmp_path / "Flickr8k.token.txt", lists),
    ):
        found = Captions(images="flickr8k/images", annotations=str(path), split_files=option, cache=None)
        found.prepare(Looking())
        found._pictures.gather = lambda rows, space=None: torch.from_numpy(rows)  # which photographs, undecoded
        texts = [
            (members.starts.tolist(), [*members.all_names()], [*members.captions.all_texts()])
            for members in found.photographs.values()
        ]
        first = [
            (batch.images.tolist(), batch.words.tolist(), batch.references, batch.files)
            for batch in found.train(0, seed=0)
        ]
        if option is None:
            expected = texts, found.vocabulary.words, first
        assert (texts, found.vocabulary.words, first) == expected
    assert len(first) > 4

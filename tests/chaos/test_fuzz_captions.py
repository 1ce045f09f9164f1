"""Annotation files, results and reference captions that may say anything: read, or refused in one line."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from attempts import folder_in_memory
from children import Outcome, attempt_all
from damage import TEXT, damaged, drawn, numbered, perhaps, record
from hypothesis import strategies as st
from PIL import Image

from tests.data.test_captions import Looking, coco, karpathy
from vision_attn.data.photographs.annotation_files.references import read_references, read_results
from vision_attn.data.photographs.annotations import read_annotations
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.photographs.store import Photographs, locate
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.metrics import caption_metrics, write_results

IDS = st.integers(0, 9) | st.integers(0, 5) | st.sampled_from(["a", "0", "00.png"])
NUMBERS = st.integers(0, 18)
NAMES = st.integers(0, 29).flatmap(
    lambda number: st.sampled_from(["../00.png", "/00.png", "x" * 300]) | TEXT if number == 29 else FILES
)
FILES = NUMBERS.map("{:02}.png".format)
FOLDERS = st.integers(0, 29).map(lambda number: {27: "..", 28: "/", 29: "images"}.get(number, ""))
CAPTIONS = st.one_of(
    st.sampled_from(["a dog runs", "", " ", "...", "\U0001f600", "a\u2028b", "e" + "\u0301" * 5000, "half \ud83d"]),
    TEXT,
    st.integers(1, 3).map(lambda number: "word " * 10**number),
)
SPLITS = st.sampled_from(["train", "train", "val", "test", "restval", "unused", ""])
COCO = record(
    images=numbered("id", record(id=NUMBERS, file_name=NAMES, split=SPLITS)),
    annotations=st.lists(record(id=IDS, image_id=IDS, caption=CAPTIONS), max_size=8),
)
SAID = st.lists(record(raw=CAPTIONS), max_size=3)
KARPATHY = record(
    images=numbered("cocoid", record(filename=NAMES, filepath=FOLDERS, cocoid=NUMBERS, split=SPLITS, sentences=SAID))
)
MEMBERS = st.dictionaries(SPLITS, perhaps(st.lists(IDS | FILES, max_size=4)), max_size=3)
RESULTS = numbered("image_id", record(image_id=NUMBERS, caption=CAPTIONS))


def texts(strategy: Any, number: int, *samples: Any) -> list[bytes]:
    """JSON that `strategy` draws, and as many damaged copies of it and of the `samples`."""
    structured = [json.dumps(content).encode() for content in drawn(strategy, (number + 2) // 3)]
    valid = [json.dumps(sample).encode() for sample in samples]
    return structured + damaged([*valid, *structured[:50]], number - len(structured), seed=number, head=4000, text=True)


def add(tally: Any, inputs: Iterable[Any], outcomes: Iterable[Outcome]) -> None:
    for content, outcome in zip(inputs, outcomes, strict=True):
        tally.add(f"{outcome} {str(content)[:300]}" if outcome.failed else None, outcome.seconds)


def photographs_in(folder: Path) -> Path:
    (folder / "images").mkdir()
    for number in range(19):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / "images" / f"{number:02}.png")
    return folder / "images"


def test_annotations(tally: Any, share: Callable[[int], int]) -> None:
    number = share(4000)
    inputs = texts(COCO, number // 2, coco()) + texts(KARPATHY, number - number // 2, karpathy())
    splits = texts(MEMBERS, number, {"train": [100, 101], "val": ["12.png"]})
    with folder_in_memory() as folder:
        images = photographs_in(folder)

        def attempt(pair: tuple[bytes, bytes]) -> str:
            file, named = folder / f"{os.getpid()}.json", folder / f"{os.getpid()}_splits.json"
            file.write_bytes(pair[0])
            named.write_bytes(pair[1])
            ways: list[dict] = [{}, {"split": "train"}, {"split_files": named}]
            found = read_annotations(file, **ways[len(pair[0]) % 3])
            Vocabulary.build(
                (caption for members in found.values() for p in members for caption in p.captions), min_count=1
            )
            placed = {split: Photographs.of(members) for split, members in found.items()}
            located = locate(placed, dict.fromkeys(found, images))
            names = {photograph.file.resolve().parent for members in located.values() for photograph in members}
            assert names <= {images.resolve()}, names
            return f"{len(names)} folders"

        pairs = list(zip(inputs, splits, strict=True))
        outcomes = attempt_all(attempt, pairs)
    add(tally, pairs, outcomes)
    tally.check(at_least=number)


def test_batches_of_annotations(tally: Any, share: Callable[[int], int]) -> None:
    """From the file to batches: only what can be read is trained on."""
    number = share(300)
    inputs = damaged([json.dumps(coco()).encode()], number // 2, seed=1, head=4000, text=True)
    for content in drawn(COCO, number - len(inputs)):
        whole = coco()
        if isinstance(content, dict) and isinstance(content.get("annotations"), list):
            whole["annotations"] += [note for note in content["annotations"] if isinstance(note, dict)]
        inputs.append(json.dumps(whole).encode())
    with folder_in_memory() as folder:
        images = photographs_in(folder)

        def attempt(content: bytes) -> str:
            file = folder / f"{os.getpid()}.json"
            file.write_bytes(content)
            captions = Captions(images=str(images), annotations=str(file), min_count=1, batch_size=4, cache=None)
            captions.prepare(Looking())
            return str([len(batch.ids) for batch in captions.train(0, seed=0)])

        outcomes = attempt_all(attempt, inputs)
    add(tally, inputs, outcomes)
    assert share(20) == 1 or "answered" in {outcome.status for outcome in outcomes}
    tally.check(at_least=number)


@pytest.mark.parametrize("kind", ["results", "references"])
def test_results(kind: str, tally: Any, share: Callable[[int], int]) -> None:
    number = share(2000)
    plain = [{"image_id": number, "caption": "a dog"} for number in range(5)]
    wrapped = record(annotations=RESULTS) if kind == "references" else RESULTS
    inputs = texts(wrapped, number, {"annotations": plain} if kind == "references" else plain)
    with folder_in_memory() as folder:

        def attempt(content: bytes) -> str:
            file = folder / f"{os.getpid()}.json"
            file.write_bytes(content)
            if kind == "references":
                return str(len(read_references(file)))
            captions = read_results(file)
            write_results(file, captions)
            assert read_results(file) == captions
            return str(len(captions))

        outcomes = attempt_all(attempt, inputs)
    add(tally, inputs, outcomes)
    tally.check(at_least=number)


def test_scores_of_any_captions(tally: Any, share: Callable[[int], int]) -> None:
    """Every second image is plain; whatever the others say, its score is that of a caption equal to its reference."""
    for turn in range(share(6)):
        odd = drawn(CAPTIONS, 40)[turn::6]
        candidates = {2 * number: caption for number, caption in enumerate(odd)}
        references = {image: [caption, "quite another one"] for image, caption in candidates.items()}
        for number in range(len(odd)):
            candidates[2 * number + 1] = f"plain{number} words{number} here{number}"
            references[2 * number + 1] = [candidates[2 * number + 1]]
        told = caption_metrics(candidates, references, names=["ROUGE-L", "BLEU-4", "CIDEr"], time_limit=120)
        without = {image: caption for image, caption in candidates.items() if image % 2 == 0}
        alone = caption_metrics(without, references, names=["ROUGE-L"], time_limit=120)
        expected = (alone.metrics["ROUGE-L"] + 1) / 2
        wrong = told.failed or abs(told.metrics["ROUGE-L"] - expected) > 1e-6
        tally.add(f"{turn}: {told} {alone}" if wrong else None)
    tally.check()

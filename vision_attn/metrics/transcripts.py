"""The evaluators of transcripts: edit distance, the path of attention along a strip, and the number of glimpses."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from vision_attn.contracts import DecodedCaption, Evaluator, Results
from vision_attn.geometry.extents import middles
from vision_attn.system.files import replacing


class TranscriptErrors(Evaluator):
    """Errors of decoded transcripts, in percent.

    error: the character error rate, insertions, deletions and substitutions (Levenshtein distance) per character of the
    references. It can exceed 100.
    error_sequence: the share of transcripts that are not exactly right.
    error_short, error_long: the character error rate of references up to the middle of the lengths, and above it.

    `write` saves transcripts.json, with the error for each length and every transcript next to its reference. Of
    several references, the first is used.
    """

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def update(self, batch: Any, results: Results) -> None:
        for image, caption, references in zip(batch.ids, results.described, batch.references, strict=True):
            edits = Levenshtein.distance(caption.text, references[0])
            self.records.append({"image_id": image, "text": caption.text, "reference": references[0], "edits": edits})

    def compute(self) -> dict[str, float]:
        wrong = sum(record["edits"] > 0 for record in self.records)
        metrics = {"error": character_error(self.records), "error_sequence": 100 * wrong / len(self.records)}
        lengths = sorted({len(record["reference"]) for record in self.records})
        middle = (lengths[0] + lengths[-1]) / 2
        for name, edits in {
            "error_short": [record for record in self.records if len(record["reference"]) <= middle],
            "error_long": [record for record in self.records if len(record["reference"]) > middle],
        }.items():
            metrics |= {name: character_error(edits)} if edits else {}
        return metrics

    def by_length(self) -> dict[int, float]:
        """Return the character error rate of the references of each length, in percent."""
        lengths = sorted({len(record["reference"]) for record in self.records})
        return {
            length: character_error([record for record in self.records if len(record["reference"]) == length])
            for length in lengths
        }

    def write(self, folder: Path) -> None:
        content = {"error_by_length": self.by_length(), "transcripts": self.records}
        with replacing(folder / "transcripts.json") as path:
            path.write_bytes(json.dumps(content, ensure_ascii=False, indent=0).encode(errors="backslashreplace"))


def character_error(records: Sequence[Mapping[str, Any]]) -> float:
    """Return the edits per character of the references, in percent."""
    return 100 * sum(line["edits"] for line in records) / max(1, sum(len(line["reference"]) for line in records))


class Alignment(Evaluator):
    """The path of attention along a strip, compared with the places of the characters.

    on_character: the share of characters whose map has its centre of mass inside the box of this very character, if
    boxes are known: the n-th box of "7" for the n-th "7". (`pointing` accepts any box of a "7".)
    forward: the share of steps from one character to the next in which the centre does not move back by more than half
        a column: 1 for a monotonic path.
    travelled: the distance that the centre moves, in widths of the strip.

    No metrics for a captioner without maps.
    """

    def __init__(self) -> None:
        self.hits: list[bool] = []
        self.forward: list[bool] = []
        self.travelled: list[float] = []

    def update(self, batch: Any, results: Results) -> None:
        for caption, boxes in zip(results.described, batch.boxes, strict=True):
            if caption.alpha is None or not caption.words:
                continue
            centre = centres(caption)
            steps = centre[~centre.isnan()].diff()
            self.forward += (steps >= -1 / caption.alpha.shape[-1]).tolist()
            self.travelled.append(steps.abs().sum().item() / 2)
            if boxes is not None:
                self.hits += on_characters(caption.words, centre.tolist(), boxes)

    def compute(self) -> dict[str, float]:
        shares: dict[str, Sequence[float]] = {
            "on_character": self.hits, "forward": self.forward, "travelled": self.travelled
        }  # fmt: skip
        return {name: sum(values) / len(values) for name, values in shares.items() if values}


class GlimpsesTaken(Evaluator):
    """glimpses: the mean number of glimpses of an image, up to END.

    per_word: the number of glimpses for each character.
    max_words: the length at which the model stops without END.
    """

    def __init__(self, per_word: int, max_words: int) -> None:
        self.per_word, self.max_words = per_word, max_words
        self.steps: list[int] = []

    def update(self, batch: Any, results: Results) -> None:
        self.steps += [min(len(caption.words) + 1, self.max_words) for caption in results.described]

    def compute(self) -> dict[str, float]:
        return {"glimpses": self.per_word * sum(self.steps) / len(self.steps)}


def centres(caption: DecodedCaption) -> Float[Tensor, "T"]:
    """Compute the centre of mass of each map along the strip, x in [-1, 1]; NaN for a map of zeros."""
    assert caption.alpha is not None
    columns = caption.alpha.sum(dim=1).double()  # (T, X)
    x = middles(columns.shape[1], caption.extent.x0, caption.extent.x1)
    return columns @ x / columns.sum(dim=1)


def on_characters(words: Sequence[str], centre: Sequence[float], boxes: Mapping[str, Sequence]) -> list[bool]:
    """Return whether each centre lies in the box of its character. A character that is not in the image has no box."""
    count: dict[str, int] = {}
    hits = []
    for word, x in zip(words, centre, strict=True):
        number = count.get(word, 0)
        count[word] = number + 1
        known = boxes.get(word, ())
        hits.append(number < len(known) and float(known[number][0]) <= x <= float(known[number][2]))
    return hits

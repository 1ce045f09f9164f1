"""`Named`: measure whether captions use given words, such as colours or animals, where the references do."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vision_attn.contracts import Evaluator, Results
from vision_attn.system.errors import UserError
from vision_attn.system.files import replacing

WORD = re.compile(r"\w+(?:[-'’]\w+)*")


class Named(Evaluator):
    """How well captions use `words`.

    - `NAME_said`: the share of captions with at least one of the words.
    - `NAME_wrong`: of the words in captions, the share that no reference of the image says. It is CHAIR_i of Rohrbach
      et al. 2018 (Object hallucination in image captioning) for any words, judged by references alone.
    - `NAME_missed`: of the words that at least half of an image's references say, the share that its caption lacks.

    A word counts once in a caption. A share of nothing is NaN. `write` saves NAME.json: for each image the caption, and
    the words that are wrong or missed.

    words: a word, or a list of those that count as one, such as ["grey", "gray"].
    name: NAME; of several such evaluators, each needs its own.
    """

    def __init__(self, *, words: Sequence[str | Sequence[str]], name: str = "named"):
        groups = [[group] if isinstance(group, str) else [*group] for group in words]
        if isinstance(words, str) or not groups or not all(groups):
            raise UserError(f"Named: words must be a list of words, or of lists of those that count as one: {words!r}")
        self.meant = {word.lower(): group[0] for group in groups for word in group}
        self.name, self.said = name, list[bool]()
        self.wrong, self.missed = list[bool](), list[bool]()
        self.each = list[dict[str, Any]]()

    def update(self, batch: Any, results: Results) -> None:
        for image, caption, references in zip(batch.ids, results.described, batch.references, strict=True):
            said, known = self._in(caption.text), [self._in(text) for text in references]
            agreed = {word for word in set().union(*known) if 2 * sum(word in one for one in known) >= len(known)}
            wrong = said.difference(*known)
            self.said.append(bool(said))
            self.wrong += [word in wrong for word in said]
            self.missed += [word not in said for word in agreed]
            if wrong or agreed - said:
                found = {"wrong": sorted(wrong), "missed": sorted(agreed - said)}
                self.each.append({"image_id": image, "caption": caption.text, **found})

    def compute(self) -> dict[str, float]:
        return {f"{self.name}_{kind}": share(getattr(self, kind)) for kind in ("said", "wrong", "missed")}

    def write(self, folder: Path) -> None:
        with replacing(folder / f"{self.name}.json") as path:
            path.write_bytes(json.dumps(self.each, ensure_ascii=False, indent=1).encode(errors="backslashreplace"))

    def _in(self, text: str) -> set[str]:
        return {self.meant[word] for word in WORD.findall(text.lower()) if word in self.meant}


def share(marks: Sequence[bool]) -> float:
    return sum(marks) / len(marks) if marks else float("nan")

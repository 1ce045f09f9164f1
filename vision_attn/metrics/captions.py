"""The caption metrics of the field, computed by COCO's own code behind closed doors.

    report = caption_metrics({7: "a dog runs"}, {7: ["a dog is running", "the dog runs"]})
    report.metrics["BLEU-4"]

Captions are tokenised once, all together; then each family of metrics runs in a process of its own (see `isolated`),
METEOR beside the quick ones. Whatever fails is named in `report.failed` and costs the others nothing.
"""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from vision_attn.files import scratch
from vision_attn.metrics.isolated import run
from vision_attn.metrics.java import spice_jars

ORDERS = (1, 2, 3, 4)
# What each job of `scorers` measures.
FAMILIES = {
    "bleu": (*(f"BLEU-{n}" for n in ORDERS), *(f"BLEU-{n}-no-brevity" for n in ORDERS)),
    "meteor": ("METEOR",),
    "rouge_l": ("ROUGE-L",),
    "cider": ("CIDEr",),
    "spice": ("SPICE",),
}
MOST_WORDS, MOST_CHARACTERS = 300, 100
"""Words of a caption, and characters of a word, that count. METEOR needs minutes for a few times as many."""
METRICS = tuple(name for names in FAMILIES.values() for name in names)
"""The names of all metrics, in the order of tables."""


class Report(NamedTuple):
    """What was measured, what failed, and what to know when reading it."""

    metrics: dict[str, float]
    """As fractions, so BLEU-4 of 19.5 in a paper's table is 0.195; CIDEr may pass 1."""
    failed: dict[str, str]
    """The metrics that could not be computed, each with the reason in one line."""
    notes: tuple[str, ...] = ()
    """Remarks of one line each, such as captions left out."""

    def table(self) -> str:
        """The metrics as papers print them, in percent, with failures and notes below."""
        lines = [f"{'metric':<8} {'x 100':>7}"]
        plain = [name for name in self.metrics if not name.endswith("-no-brevity")]
        unpenalised = {name: self.metrics.get(f"{name}-no-brevity") for name in plain}
        if any(value is not None for value in unpenalised.values()):
            lines[0] += "   without brevity penalty"
        for name in plain:
            lines.append(f"{name:<8} {100 * self.metrics[name]:7.2f}")
            if unpenalised[name] is not None:
                lines[-1] += f"   {100 * unpenalised[name]:.2f}"
        alone = [name for name in self.metrics if name not in plain and name.removesuffix("-no-brevity") not in plain]
        lines += [f"{name} {100 * self.metrics[name]:7.2f}" for name in alone]
        lines += [f"{name} failed: {reason}" for name, reason in self.failed.items()]
        return "\n".join([*lines, *self.notes])


def caption_metrics(
    candidates: Mapping[Hashable, str],
    references: Mapping[Hashable, Sequence[str]],
    *,
    names: Iterable[str] | None = None,
    time_limit: int | float = 1800,
) -> Report:
    """Score one candidate caption per image against the image's references.

    `names` picks from METRICS; None means all, SPICE only where its files are. METEOR takes by far the longest, so for
    validation ask for BLEU-4 and CIDEr. `time_limit`, in seconds, holds for the tokenizer and for each metric.
    References may hold more images; only those of the candidates count (CIDEr depends on which). References without a
    word in them are left out, and so are images that have no other: both are counted in the notes.

    Raises ValueError for an unknown name, no candidates, a candidate without references, or references in which no
    image has a word.
    """
    wanted, notes = choose(names)
    check(candidates, references)
    with scratch("vision_attn_metrics") as folder:
        captions = [*candidates.values(), *(caption for image in candidates for caption in references[image])]
        (folder / "captions.json").write_text(json.dumps(captions), encoding="utf-8")
        tokens = run(["tokenise"], folder, time_limit=time_limit)["tokenise"]
        if tokens.error is not None:
            return Report({}, dict.fromkeys(wanted, f"the tokenizer failed: {tokens.error}"), tuple(notes))
        notes += share_tokens(tokens.value, [len(references[image]) for image in candidates], folder)
        jobs = [job for job, names in FAMILIES.items() if not wanted.isdisjoint(names)]
        answers = run(jobs, folder, time_limit=time_limit)
    metrics: dict[str, float] = {}
    failed: dict[str, str] = {}
    for job, answer in answers.items():
        asked = [name for name in FAMILIES[job] if name in wanted]
        if answer.error is None:
            metrics |= {name: round(answer.value[name], 9) for name in asked}  # BLEU's smoothing leaves 1e-14
        else:
            failed |= dict.fromkeys(asked, answer.error)
    return Report(metrics, failed, tuple(notes))


def choose(names: Iterable[str] | None) -> tuple[Set[str], list[str]]:
    """The metrics to compute, and a remark where SPICE is left out."""
    if names is not None:
        wanted = dict.fromkeys(names).keys()
        for name in wanted:
            if name not in METRICS:
                raise ValueError(f"there is no metric {name!r}: choose from {', '.join(METRICS)}")
        return wanted, []
    try:
        spice_jars()
    except RuntimeError as error:
        return dict.fromkeys(name for name in METRICS if name != "SPICE").keys(), [f"SPICE left out: {error}"]
    return dict.fromkeys(METRICS).keys(), []


def check(candidates: Mapping[Hashable, str], references: Mapping[Hashable, Sequence[str]]) -> None:
    """Raise ValueError unless each candidate is a text with a list of texts to hold it against."""
    if not candidates:
        raise ValueError("there are no captions to score")
    for image, candidate in candidates.items():
        those = references.get(image, ())
        listed = isinstance(those, Sequence) and not isinstance(those, str)
        if not listed or not all(isinstance(caption, str) for caption in (candidate, *those)):
            raise ValueError(f"image {image!r}: the caption must be a text and its references a list of texts")
        if not those:
            raise ValueError(f"image {image!r} has a caption to score but no reference captions")


def share_tokens(tokens: Sequence[str], counts: Sequence[int], folder: Path) -> list[str]:
    """Write tokens.json for the scorers from the tokens of all candidates, then of all references.

    `counts` says how many references each image has. An empty reference is left out (it would credit an empty
    candidate, and METEOR reads its fields by position), and so is an image that has no other. Endless ones are cut.
    """
    cut = [first_words(caption) for caption in tokens]
    num_cut = sum(short != caption for short, caption in zip(cut, tokens, strict=True))
    tokens = cut
    rest = iter(tokens[len(counts) :])
    images = [(candidate, list(islice(rest, count))) for candidate, count in zip(tokens, counts, strict=False)]
    kept = [(candidate, spoken) for candidate, those in images if (spoken := [caption for caption in those if caption])]
    if not kept:
        raise ValueError("no image has a reference caption with a word in it")
    pair = {"candidates": [candidate for candidate, _ in kept], "references": [those for _, those in kept]}
    (folder / "tokens.json").write_text(json.dumps(pair), encoding="utf-8")

    lost = sum(not caption for _, those in images for caption in those)
    silent = sum(not candidate for candidate, _ in kept)
    remarks = {
        f"{num_cut} captions were cut to {MOST_WORDS} words of {MOST_CHARACTERS} characters": num_cut,
        f"{lost} reference captions without a word were left out": lost,
        f"{len(images) - len(kept)} images without any other reference were left out": len(images) - len(kept),
        f"{silent} candidate captions have no word in them and score 0": silent,
        "CIDEr of a single image is 0 by construction: a word in every image weighs nothing": len(kept) == 1,
    }
    return [remark for remark, holds in remarks.items() if holds]


def first_words(tokens: str) -> str:
    """The first words of a tokenised caption."""
    return " ".join(word[:MOST_CHARACTERS] for word in tokens.split(" ")[:MOST_WORDS])

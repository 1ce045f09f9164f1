"""`caption_metrics`: score captions by COCO's own code in isolated processes.

    report = caption_metrics({7: "a dog runs"}, {7: ["a dog is running", "the dog runs"]})
    report.metrics["BLEU-4"]

Captions are tokenised once, all together. Then each family of metrics runs in its own process (see `isolated`), all in
parallel. A metric that fails is listed in `report.failed` and does not affect the others.
"""

import json
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from vision_attn.metrics.coco.isolated import run
from vision_attn.metrics.coco.java import spice_jars
from vision_attn.metrics.coco.languages import unsegmented
from vision_attn.metrics.coco.scorers import one_line
from vision_attn.metrics.function_words import CaptionLanguage, language_of
from vision_attn.system.errors import UserError
from vision_attn.system.files import scratch

ORDERS = (1, 2, 3, 4)
# The metrics that each job of `scorers` computes.
FAMILIES = {
    "bleu": (*(f"BLEU-{n}" for n in ORDERS), *(f"BLEU-{n}-no-brevity" for n in ORDERS)),
    "meteor": ("METEOR",),
    "rouge_l": ("ROUGE-L",),
    "cider": ("CIDEr",),
    "spice": ("SPICE",),
}
MAX_WORDS, MAX_CHARACTERS = 300, 100
"""The largest number of words of a caption, and of characters of a word; longer ones are cut. METEOR needs minutes for
captions a few times as long."""
METRICS = tuple(name for names in FAMILIES.values() for name in names)
"""The names of all metrics, in the order of tables."""
ENGLISH = ("METEOR", "SPICE")
"""The metrics that only know English."""
SPLIT = "it compares English words, and these captions are split in another way"
CLIP = ("CLIPScore", "RefCLIPScore")
"""The metrics that also see the images: see `clip_score`."""


class Report(NamedTuple):
    """The metrics of a set of captions, with failures and notes."""

    metrics: dict[str, float]
    """The metrics as fractions: a BLEU-4 of 19.5 in a paper's table is 0.195 here. CIDEr can exceed 1."""
    failed: dict[str, str]
    """The metrics that could not be computed, each with the reason in one line."""
    notes: tuple[str, ...] = ()
    """Remarks of one line each, such as the number of captions left out."""
    by_image: Mapping[Hashable, Mapping[str, float | None]] = MappingProxyType({})
    """The metrics of each image's caption; None for failed metrics and for images left out. CIDEr, ROUGE-L and SPICE of
    the corpus are means of these; BLEU and METEOR are computed from sums over all images."""
    counts: Mapping[str, Sequence[Sequence[float]]] = MappingProxyType({})
    """The numbers of each scored image that "bleu" and "meteor" sum over; see `sums`."""


def caption_metrics(
    candidates: Mapping[Any, str],
    references: Mapping[Any, Sequence[str]],
    *,
    names: Iterable[str] | None = None,
    split: Callable[[str], Sequence[str]] | None = None,
    time_limit: int | float = 1800,
    language: CaptionLanguage | None = None,
) -> Report:
    """Score one candidate caption per image against the image's references.

    names: a selection from METRICS; None: all, but SPICE only if its files exist. METEOR is by far the slowest, so for
    validation select BLEU-4 and CIDEr.
    split: splits captions into words; None: COCO's tokenizer.
    time_limit: in seconds, for the tokenizer and for each metric.
    language: the language of the whole data set, from `metrics.function_words.language_of`; None: that of all
        `references`.

    References of images without a candidate are ignored (CIDEr depends on the set of images). References without words
    are left out, and so are images without other references; the notes count both. METEOR and SPICE only know English:
    without `names` they are left out, with a note, if references are in another language or `split` is given.

    Raises UserError for an unknown name, no candidates, a candidate without references, or references without a single
    word.
    """
    wanted, notes = choose(names)
    check(candidates, references)
    with scratch("vision_attn_metrics") as folder:
        captions = [*candidates.values(), *(caption for image in candidates for caption in references[image])]
        captions = [unicodedata.normalize("NFC", one_line(caption)) for caption in captions]
        if split is None:
            (folder / "captions.json").write_text(json.dumps(captions), encoding="utf-8")
            answer = run(["tokenise"], folder, time_limit=time_limit)["tokenise"]
            if answer.error is not None:
                return Report({}, dict.fromkeys(wanted, f"the tokenizer failed: {answer.error}"), tuple(notes))
            tokens = answer.value
            notes += unsegmented(tokens)
        else:
            tokens = [" ".join(split(caption)) for caption in captions]
        if english := [name for name in ENGLISH if name in wanted]:
            reason, terse = SPLIT, ""
            if split is None:
                language = language or language_of(caption for texts in references.values() for caption in texts)
                reason = language.not_english and f"it knows English, and {language.not_english}"
                terse = language.terse if "METEOR" in wanted else ""
            if reason and names is None:
                wanted -= {*english}
                notes.append(f"{' and '.join(english)} left out: {reason}")
            elif reason or terse:
                notes.append(f"{' and '.join(english) if reason else 'METEOR'}: {reason or terse}")
        kept, more = write_tokens(tokens, [len(references[image]) for image in candidates], folder)
        notes += more
        jobs = [job for job, names in FAMILIES.items() if not wanted.isdisjoint(names)]
        answers = run(jobs, folder, time_limit=time_limit)
    metrics: dict[str, float] = {}
    failed: dict[str, str] = {}
    images = [image for image, good in zip(candidates, kept, strict=True) if good]
    alone = [name for name in METRICS if name in wanted and not name.endswith("-no-brevity")]
    by_image: dict[Hashable, dict[str, float | None]] = {image: dict.fromkeys(alone) for image in candidates}
    counts: dict[str, Sequence[Sequence[float]]] = {}
    for job, answer in answers.items():
        asked = [name for name in FAMILIES[job] if name in wanted]
        if answer.error is not None:
            failed |= dict.fromkeys(asked, answer.error)
            continue
        corpus, of_images, sums = answer.value
        counts |= {job: sums} if sums else {}
        metrics |= {name: round(corpus[name], 9) for name in asked}  # BLEU's smoothing leaves 1e-14
        for name in set(asked) & of_images.keys():
            for image, score in zip(images, of_images[name], strict=True):
                by_image[image][name] = round(score, 9)
    return Report(metrics, failed, tuple(notes), by_image, counts)


def choose(names: Iterable[str] | None) -> tuple[Set[str], list[str]]:
    """Return the metrics to compute, and a note if SPICE is left out."""
    if names is not None:
        wanted = dict.fromkeys(names).keys()
        for name in wanted:
            if name not in METRICS:
                raise UserError(f"there is no metric {name!r}: choose from {', '.join(METRICS)}")
        return wanted, []
    try:
        spice_jars()
    except RuntimeError as error:
        return dict.fromkeys(name for name in METRICS if name != "SPICE").keys(), [f"SPICE left out: {error}"]
    return dict.fromkeys(METRICS).keys(), []


def check(candidates: Mapping[Any, str], references: Mapping[Any, Sequence[str]]) -> None:
    """Raise UserError unless each candidate is a string with a list of strings as references."""
    if not candidates:
        raise UserError("there are no captions to score")
    for image, candidate in candidates.items():
        texts = references.get(image, ())
        listed = isinstance(texts, Sequence) and not isinstance(texts, str)
        if not listed or not all(isinstance(caption, str) for caption in (candidate, *texts)):
            raise UserError(f"image {image!r}: the caption must be a string and its references a list of strings")
        if not texts:
            raise UserError(f"image {image!r} has a caption to score but no reference captions")


def write_tokens(tokens: Sequence[str], counts: Sequence[int], folder: Path) -> tuple[list[bool], list[str]]:
    """Write tokens.json for the scorers. Return for each image whether it is scored, and notes.

    Empty references are left out (they would credit an empty candidate, and METEOR reads fields by position), and so
    are images without other references. Long captions are cut.

    tokens: all candidates, then all references, tokenised.
    counts: the number of references of each image.
    """
    cut = [shortened(caption) for caption in tokens]
    num_cut = sum(short != caption for short, caption in zip(cut, tokens, strict=True))
    tokens = cut
    rest = iter(tokens[len(counts) :])
    images = [(candidate, list(islice(rest, count))) for candidate, count in zip(tokens, counts, strict=False)]
    scored = [any(texts) for _, texts in images]
    kept = [(candidate, [caption for caption in texts if caption]) for candidate, texts in images if any(texts)]
    if not kept:
        raise UserError("no image has a reference caption with a word")
    pair = {"candidates": [candidate for candidate, _ in kept], "references": [texts for _, texts in kept]}
    (folder / "tokens.json").write_text(json.dumps(pair), encoding="utf-8")

    dropped = sum(not caption for _, texts in images for caption in texts)
    empty = sum(not candidate for candidate, _ in kept)
    notes = {
        f"{num_cut} captions were cut to {MAX_WORDS} words of {MAX_CHARACTERS} characters": num_cut,
        f"{dropped} reference captions without a word were left out": dropped,
        f"{len(images) - len(kept)} images without any other reference were left out": len(images) - len(kept),
        f"{empty} candidate captions have no words and score 0": empty,
        "CIDEr of a single image is 0 by construction: words that occur in every image have weight 0": len(kept) == 1,
    }
    return scored, [note for note, holds in notes.items() if holds]


def shortened(tokens: str) -> str:
    """Cut a tokenised caption to MAX_WORDS words of MAX_CHARACTERS characters."""
    return " ".join(word[:MAX_CHARACTERS] for word in tokens.split(" ")[:MAX_WORDS])

"""The jobs that run in isolated processes. Each reads files in its folder and returns plain values.

`tokenise` reads captions.json, a list of captions. The others read tokens.json, `{"candidates": [caption],
"references": [[caption]]}`, tokenised, one entry per image, and return the scores of the corpus and of each image.
Scores are those of pycocoevalcap. The Java programs are run from here, because its own wrappers write into
site-packages, need Java on the PATH and can hang.
"""

import json
import math
import re
import subprocess
import unicodedata
from pathlib import Path
from typing import NamedTuple

from vision_attn.metrics.coco.java import jar, java, spice_jars


class Scores(NamedTuple):
    """The scores that a job returns."""

    corpus: dict[str, float]
    by_image: dict[str, list[float]]
    """The scores of each image, in the order of the file."""
    counts: list[list[float]] = []  # never changed
    """The numbers of each image whose sums determine the scores of the corpus, if these are not means; see `sums`."""


def one_line(caption: str) -> str:
    r"""Replace each control character, line or paragraph separator and lone surrogate by a space.

    Java also ends lines at \r, \x0b, \x0c, U+0085, U+2028 and U+2029, and all captions after such a line break would be
    scored for the wrong image.
    """
    return "".join(" " if unicodedata.category(character) in ("Cc", "Zl", "Zp", "Cs") else character
                   for character in caption)  # fmt: skip


def tokenise(folder: Path) -> list[str]:
    """Split each caption into Penn Treebank tokens, in lower case and without punctuation, joined by spaces."""
    from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS  # not brackets, which are tokens such as -lrb-

    captions = json.loads((folder / "captions.json").read_text(encoding="utf-8"))
    text = "".join(one_line(caption) + "\n" for caption in captions)
    (folder / "captions.txt").write_bytes(text.encode())
    tokenizer = jar("tokenizer/stanford-corenlp-3.4.1.jar")
    command = java("-cp", tokenizer, "edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase",
                   folder / "captions.txt", megabytes=512, folder=folder)  # fmt: skip
    printed = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout
    lines = printed.decode().removesuffix("\n").split("\n")
    if len(lines) != len(captions):
        raise RuntimeError(f"the tokenizer returned {len(lines)} lines for {len(captions)} captions")
    return [" ".join(word for word in line.rstrip().split(" ") if word not in PUNCTUATIONS) for line in lines]


def tokens(folder: Path) -> tuple[list[str], list[list[str]]]:
    """Read the tokenised candidate and the tokenised references of each image."""
    read = json.loads((folder / "tokens.json").read_text(encoding="utf-8"))
    return read["candidates"], read["references"]


def bleu(folder: Path) -> Scores:
    """Compute corpus BLEU-1 to 4 (Papineni et al. 2002), also without the brevity penalty, as in Xu et al. 2015. BLEU
    of the corpus comes from sums of n-grams and lengths; it is not a mean over images."""
    from pycocoevalcap.bleu.bleu_scorer import BleuScorer

    scorer = BleuScorer(n=4)
    for candidate, references in zip(*tokens(folder), strict=True):
        scorer += (candidate, references)
    counts = []
    for caption in scorer.ctest:
        length = caption["testlen"]
        closest = min((abs(other - length), other) for other in caption["reflen"])[1]
        counts.append([length, closest, *caption["correct"], *caption["guess"]])
    scores, by_caption = scorer.compute_score(option="closest", verbose=0)
    scorer.special_reflen = 0  # with references of length 0, no candidate is too short
    unpenalised, _ = scorer.recompute_score(option="closest")
    named = {f"BLEU-{n}": score for n, score in enumerate(scores, 1)}
    named |= {f"BLEU-{n}-no-brevity": score for n, score in enumerate(unpenalised, 1)}
    return Scores(named, {f"BLEU-{n}": scores for n, scores in enumerate(by_caption, 1)}, counts)


def rouge_l(folder: Path) -> Scores:
    """Compute ROUGE-L (Lin and Hovy 2004), averaged over images."""
    from pycocoevalcap.rouge.rouge import Rouge

    candidates, references = tokens(folder)
    scores = [Rouge().calc_score([c], r) for c, r in zip(candidates, references, strict=True)]
    return _mean("ROUGE-L", scores)


def cider(folder: Path) -> Scores:
    """Compute CIDEr (Vedantam et al. 2015), averaged over images: the paper's CIDEr-D, which COCO's code calls
    CIDEr."""
    from pycocoevalcap.cider.cider_scorer import CiderScorer

    scorer = CiderScorer(n=4, sigma=6.0)
    for candidate, references in zip(*tokens(folder), strict=True):
        scorer += (candidate, references)
    mean, by_caption = scorer.compute_score()
    return Scores({"CIDEr": float(mean)}, {"CIDEr": by_caption.tolist()})


def meteor(folder: Path) -> Scores:
    """Compute METEOR 1.5 (Denkowski and Lavie 2014) for English, as COCO's code runs it. METEOR of the corpus comes
    from sums over its images; it is not their mean."""
    process = start_meteor(folder)
    try:
        return ask_meteor(process, *tokens(folder))
    finally:
        process.kill()


def start_meteor(folder: Path) -> subprocess.Popen:
    """Start METEOR's Java program, which takes some seconds to load its tables."""
    command = java("-jar", jar("meteor/meteor-1.5.jar"), "-", "-", "-stdio", "-l", "en", "-norm", megabytes=1024,
                   folder=folder)  # fmt: skip
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def ask_meteor(process: subprocess.Popen, candidates: list[str], references: list[list[str]]) -> Scores:
    """Compute METEOR of a tokenised corpus. The program can be asked again."""
    asked, answered = process.stdin, process.stdout
    assert asked and answered

    def send(*fields: str) -> None:
        asked.write((" ||| ".join(fields) + "\n").encode())
        asked.flush()

    def receive() -> str:
        line = answered.readline().decode().strip()
        if not line:
            raise RuntimeError("Java ended without an answer")
        return line

    statistics = []
    for candidate, texts in zip(candidates, references, strict=True):
        send("SCORE", *map(without_separator, texts), without_separator(candidate))
        statistics.append(receive())
    send("EVAL", *statistics)
    *by_caption, corpus = [float(receive()) for _ in range(len(candidates) + 1)]
    counts = [list(map(float, line.split())) for line in statistics]
    for (
        counted
    ) in counts:  # sums over images leave out the one chunk of a caption that matches its reference throughout
        counted[20] *= not (counted[20] == 1 and counted[21:] == counted[:2])
    return Scores({"METEOR": corpus}, {"METEOR": by_caption}, counts)


def without_separator(caption: str) -> str:
    """Remove METEOR's field separator ||| from `caption`, and repeated spaces."""
    return " ".join(re.sub(r"\|{3,}", " ", caption).split())


def spice(folder: Path) -> Scores:
    """Compute SPICE (Anderson et al. 2016), averaged over images. Its jar needs Java 15 or older (see
    VISION_ATTN_JAVA)."""
    candidates, references = tokens(folder)
    items = [{"image_id": i, "test": c, "refs": r} for i, (c, r) in enumerate(zip(candidates, references, strict=True))]
    (folder / "spice_in.json").write_text(json.dumps(items), encoding="utf-8")
    (folder / "spice_cache").mkdir()
    command = java("-jar", spice_jars()[0], folder / "spice_in.json", "-cache", folder / "spice_cache",
                   "-out", folder / "spice_out.json", "-subset", "-silent", megabytes=4096, folder=folder)  # fmt: skip
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
    scores = [item["scores"]["All"]["f"] for item in json.loads((folder / "spice_out.json").read_text())]
    return _mean("SPICE", scores)


def _mean(name: str, scores: list[float]) -> Scores:
    """Return a corpus metric that is the mean over images."""
    return Scores({name: math.fsum(scores) / len(scores)}, {name: scores})

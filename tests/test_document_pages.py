"""Each page of docs/ begins with what it is for and an example that runs."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.test_docs import ROOT, symbols
from vision_attn.commands import main

PAGES = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
HERE = {
    "attention": [],
    "captioning": ["--device=cpu"],
    "equations": [],
    "glimpses": ["--device=cpu"],
    "install": ["--device=cpu"],
    "log": ["--run.folder=run"],
    "memory": ["--device=cpu"],
    "out_of_memory": ["--run.folder=run"],
    "results": [],
    "results_runs": ["--data.test_images=8", "--device=cpu", "--out=metrics"],
    "runs": [],
    "strings": [],
}
"""Pages whose first command runs here, with what is added to it to make it cheap."""
ELSEWHERE = {
    "captioning_data": "data/test_annotation_shapes.py::test_the_commands_of_the_docs_train",
    "captioning_training": "data/test_annotation_shapes.py::test_the_commands_of_the_docs_train",
    "faithfulness": "faithfulness/test_measure.py::test_the_command_writes_a_page_and_names_what_ignores_the_weights",
    "films": "test_weights.py::test_films_are_told_word_by_word",
    "gpu": "test_gpu_day.py::test_all_parts_run_on_a_cpu",
    "look": "explain/test_look.py::test_the_documents_commands_run",
    "reliability": "chaos/test_every_verb.py::test_the_disk_is_full",
    "results_speed": "test_benchmarks.py::test_every_table_is_made",
    "scale": "engine/test_distributed.py::test_torchrun_of_two_equals_one_with_the_joined_batch",
    "service": "results/test_service.py::test_the_services_of_the_document_answer_several_at_once",
}
"""Pages whose example runs in another test."""


def first_block(page: str) -> tuple[str, str]:
    """The text of a page before its first example, and the example."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    before, example = re.split(r"^```(?:bash|python)\n", text, maxsplit=1, flags=re.MULTILINE)[:2]
    return before, example.split("\n```")[0]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_its_purpose_and_an_example(page: str) -> None:
    before, _ = first_block(page)
    title, purpose, *_ = before.split("\n\n")
    assert re.fullmatch(r"# .+", title) and re.match(r"[A-Z`].*\.", purpose, re.DOTALL), purpose
    assert before.count("\n") < 35


def test_the_example_of_every_page_runs_in_a_test() -> None:
    assert sorted([*HERE, *ELSEWHERE]) == PAGES
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert name in symbols(ROOT / "tests" / file), place
    data, training = (shlex.split(first_block(f"captioning_{page}")[1])[:5] for page in ("data", "training"))
    assert data == training


@pytest.mark.slow
@pytest.mark.parametrize("page", HERE)
def test_the_first_command_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(first_block(page)[1].replace("\\\n", " ").splitlines()[0], comments=True)
    if words[0] != "vision-attn":
        assert subprocess.run(words, cwd=ROOT, capture_output=True).stdout
        return
    monkeypatch.chdir(tmp_path)
    for name in ("docs", "weights"):
        Path(name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "docs" / "photographs" / "dog.jpg", "photo.jpg")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 60), np.uint8)).save("digit.png")
    assert main([*words[1:], *HERE[page], *(shrunk(words) if words[1] == "train" else [])]) == 0


def shrunk(words: list[str]) -> list[str]:
    """The options with which a training of a page takes a second, on made-up digits where it needs some."""
    from vision_attn.commands._paper_rows import PaperTraining
    from vision_attn.commands._quick_rows import small, write_data

    write_data(Path("data"))
    options = [word for word in words[3:] if not word.startswith("--run.folder")]
    return [*small(PaperTraining(words[2], options), Path("data")), "--run.device=cpu"]


def test_the_places_that_the_log_names_exist() -> None:
    named = re.findall(r"`([a-z_]+/[\w/]+(?:\.py)?)`", (ROOT / "docs" / "log.md").read_text(encoding="utf-8"))
    missing = {name for name in named if not any((at / name).exists() for at in (ROOT, ROOT / "vision_attn"))}
    assert len(named) > 30 and not missing

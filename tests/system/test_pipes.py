"""Commands whose output has lost its reader, as before `| head -1`: what they write is complete all the same."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.commands.test_compare import write_run as write_log
from tests.untrained import write_run
from vision_attn.commands import main
from vision_attn.metrics import write_results
from vision_attn.results.classified import ClassificationResult
from vision_attn.system.console import complain, say, to_the_end


@pytest.fixture
def piped(monkeypatch, capfd) -> Callable[[list[str]], tuple[int, str]]:
    """Run a command whose standard output nobody reads. Returns its exit status and standard error."""

    def call(command: list[str]) -> tuple[int, str]:
        reader, writer = os.pipe()
        os.close(reader)
        with monkeypatch.context() as patch, open(writer, "w") as output:
            patch.setattr(sys, "stdout", output)
            status = main(list(map(str, command)))
        return status, capfd.readouterr().err

    return call


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    for name in "abc":
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)).save(folder / f"{name}.png")
    return folder


def test_scores_are_written(piped, tmp_path):
    captions = {1: "a dog runs", 2: "a cat sleeps"}
    write_results(tmp_path / "captions.json", captions)
    records = [{"id": i, "image_id": i, "caption": caption} for i, caption in captions.items()]
    content = {"images": [{"id": 1}, {"id": 2}], "annotations": records}
    (tmp_path / "annotations.json").write_text(json.dumps(content))
    command = ["score", tmp_path / "captions.json", tmp_path / "annotations.json", "--out", tmp_path / "m.json"]
    assert piped([*command, "--metrics", "BLEU-1"]) == (141, "")
    assert json.loads((tmp_path / "m.json").read_text())["BLEU-1"] == pytest.approx(1)


def test_a_comparison_is_drawn(piped, tmp_path):
    runs = [write_log(tmp_path / "a"), write_log(tmp_path / "b", seed=1)]
    assert piped(["compare", *runs, "--out", tmp_path / "page"])[0] == 141
    assert (tmp_path / "page" / "index.html").is_file()


@pytest.mark.parametrize("verb", ["caption", "look"])
def test_captions_are_drawn(verb, piped, photographs, tmp_path):
    run, out = write_run("sat_soft_scenes", tmp_path / "run"), tmp_path / "out"
    status, told = piped([verb, run, photographs, "--device=cpu", "--out", out])
    assert status == 141 and f"drawn: {out / 'index.html'}" in told and "Error" not in told
    assert len(list(out.glob("*.png"))) == 3


def test_classes_are_drawn_and_evaluated(piped, photographs, tmp_path):
    run, out = write_run("ram_mnist28", tmp_path / "run"), tmp_path / "out"
    status, told = piped(["classify", run, photographs, "--device=cpu", "--out", out])
    assert status == 141 and f"drawn: {out / 'index.html'}" in told
    assert len(list(out.glob("*.png"))) == 3
    status, told = piped(["eval", run, "--device=cpu", "--out", out, "--show=2"])
    assert status == 141 and "Error" not in told
    assert (out / "metrics_test.json").is_file() and (out / "pictures_test" / "index.html").is_file()


def test_without_files_a_command_stops_at_once(piped, photographs, tmp_path, monkeypatch):
    run, read = write_run("ram_mnist28", tmp_path / "run"), []
    # counts the results that are asked for: nobody reads what is printed of them
    monkeypatch.setattr(ClassificationResult, "record", lambda _: read.append(1) or {})
    assert piped(["classify", run, photographs, "--device=cpu", "--json"]) == (141, "")
    assert len(read) == 1


def test_each_stream_has_its_reader(capsys, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    output = open(writer, "w")  # noqa: SIM115, closed below
    monkeypatch.setattr(sys, "stdout", output)
    with pytest.raises(BrokenPipeError), to_the_end():
        say("lost")
        complain("read")
        say("lost too")
    output.close()
    assert capsys.readouterr().err == "vision-attn: read\n"

"""--quiet leaves out all but results and errors; --verbose also tells what is read, written and timed."""

import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.untrained import write_run
from vision_attn.commands import all_verbs, main, parser_of
from vision_attn.system.console import log_to_terminal


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    log_to_terminal()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a photograph, and a file that is none."""
    folder = tmp_path_factory.mktemp("loudness")
    write_run("sat_soft_scenes", folder / "run")
    pixels = np.random.default_rng(0).integers(0, 256, (44, 60, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
    (folder / "broken.png").write_bytes(b"no image")
    return folder


def caption(folder: Path, capsys: pytest.CaptureFixture, *options: str) -> tuple[str, list[str]]:
    """What is printed, and the lines of standard error."""
    files = [str(folder / name) for name in ("photo.png", "broken.png")]
    assert main(["caption", str(folder / "run"), *files, "--device=cpu", *options]) == 1
    out, told = capsys.readouterr()
    return out, told.splitlines()


def test_quiet_prints_results_and_errors_alone(folder, tmp_path, capsys) -> None:
    results, told = caption(folder, capsys, f"--out={tmp_path}")
    quietly, errors = caption(folder, capsys, f"--out={tmp_path}", "--quiet")
    assert quietly == results and results.startswith(f"{folder / 'photo.png'}\t")
    assert any("drawn: " in line for line in told) and len(errors) == 1 and "broken.png" in errors[0]
    assert caption(folder, capsys, f"--out={tmp_path}")[1] == told  # it is quiet for one call alone


def test_train_prints_its_best_metrics_alone(tmp_path, capsys) -> None:
    """Of a log with the loss of epochs, the data and remarks. The lines of Weights & Biases are off too."""
    small = [f"--run.{pair}" for pair in ("epochs=1", "device=cpu", "warmup=1")]
    small += [f"--data.{pair}" for pair in ("batch_size=8", "epoch_images=16", "val_images=8")]
    assert main(["train", "sat_soft_scenes", f"--run.folder={tmp_path / 'run'}", *small, "--quiet"]) == 0
    out, told = capsys.readouterr()
    assert out.startswith("best on validation: ") and out.count("\n") == 1 and not told


def test_a_mistake_is_told_quietly_too(folder, capsys) -> None:
    assert main(["caption", str(folder / "run"), "nothing.png", "--quiet", "--task.beems=2"]) == 1
    assert "did you mean beams" in capsys.readouterr().err


def test_verbose_tells_what_is_read_written_and_timed(folder, tmp_path, capsys, caplog) -> None:
    results, _ = caption(folder, capsys, f"--out={tmp_path}", "--verbose")
    told = caplog.messages  # pytest's handlers take what would be printed
    assert results.startswith(f"{folder / 'photo.png'}\t")
    for part in (f"reading {folder / 'photo.png'}", f"writing {tmp_path / 'index.html'}", "1 image answered in",
                 "captioner, ", "exit status 1"):  # fmt: skip
        assert sum(part in line for line in told) >= 1, part
    caption(folder, capsys)
    assert logging.getLogger("vision_attn").level == logging.INFO


@pytest.mark.parametrize("verb", all_verbs())
def test_every_verb_has_both_and_takes_one(verb: str, capsys) -> None:
    known = parser_of(verb)[1][verb].options
    assert {"--quiet", "--verbose"} <= set(known)
    with pytest.raises(SystemExit):
        main([verb, "--quiet", "--verbose"])
    assert "not allowed with" in capsys.readouterr().err

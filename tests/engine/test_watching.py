"""Where a run is watched: TensorBoard, and Weights & Biases without an account."""

import json
import os
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch.optim import SGD
from toy import Plane, Points, adam, cosine, toy_run

from vision_attn.engine import watching
from vision_attn.engine.distributed import World
from vision_attn.engine.fit import fit
from vision_attn.engine.log import Log
from vision_attn.system.console import log_to_terminal
from vision_attn.system.errors import UserError
from vision_attn.viz.attention import write_sheet

HERE = World(0, 1, torch.device("cpu"))


def train(folder, **settings):
    return fit(task=Plane, data=Points(), optimizer=adam, schedule=cosine, run=toy_run(folder, log_every=3, **settings))


class Writer:
    """Stands for torch's SummaryWriter."""

    made: list["Writer"] = []

    def __init__(self, folder, purge_step):
        self.folder, self.purge_step, self.numbers, self.texts, self.images, self.open = (
            folder,
            purge_step,
            [],
            {},
            {},
            True,
        )
        self.made.append(self)

    def add_scalar(self, name, value, step):
        self.numbers.append((name, value, step))

    def add_text(self, name, text, step):
        self.texts[name] = text

    def add_image(self, name, image, step, dataformats):
        self.images[name] = (image.shape, dataformats)

    def flush(self):
        pass

    def close(self):
        self.open = False


@pytest.fixture
def writers(monkeypatch):
    monkeypatch.setattr(Writer, "made", [])
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    return Writer.made


def numbers(folder, *, begin=0):
    """All numbers of metrics.jsonl, as (name, value, step)."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()[begin:])
    return [(name, value, line["step"]) for line in lines for name, value in line.items() if name != "step"]


def test_tensorboard_gets_every_number_and_the_config(tmp_path, writers):
    (tmp_path / "config.yaml").write_text("run: {seed: 7}\n")
    train(tmp_path, tensorboard=True)
    (writer,) = writers
    assert writer.folder == str(tmp_path / "tensorboard") and writer.purge_step == 0 and not writer.open
    assert writer.numbers == numbers(tmp_path) and len(writer.numbers) > 30
    assert writer.texts == {"config": "    run.seed: 7"}


def test_a_run_that_goes_on_replaces_what_follows_its_checkpoint(tmp_path, writers):
    train(tmp_path, epochs=2)
    begin = len((tmp_path / "metrics.jsonl").read_text().splitlines())
    train(tmp_path, epochs=3, tensorboard=True)
    assert writers[0].purge_step == 13 and writers[0].numbers == numbers(tmp_path, begin=begin)


def test_tensorboard_gets_pictures_with_their_captions(tmp_path, writers):
    sheet = write_sheet(tmp_path / "1.png", Image.new("RGB", (9, 9)), ["a", "dög"], torch.ones(2, 3, 3))
    Image.new("L", (8, 6)).save(tmp_path / "2.gif")
    log = Log(tmp_path, HERE, toy_run(tmp_path, tensorboard=True), 0)
    log.pictures([tmp_path / "index.html", sheet, tmp_path / "2.gif"], step=3)
    log.close()
    images, texts = writers[0].images, writers[0].texts
    assert images.keys() == {"1", "2"} and images["2"] == ((6, 8, 3), "HWC") and texts["1/caption"] == "a dög"


def test_tensorboard_itself_can_read_it(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra [tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, tensorboard=True)
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    written = {(name, step): value for name, value, step in numbers(tmp_path)}
    found = {(name, event.step): event.value for name in read.Tags()["scalars"] for event in read.Scalars(name)}
    assert found == pytest.approx(written)


def test_a_missing_package_is_told_before_anything_is_done(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    with pytest.raises(UserError, match=r"pip install 'vision-attn\[tensorboard\]'"):
        train(tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()


def test_a_writer_that_fails_does_not_stop_training(tmp_path, writers, monkeypatch, capsys):
    def full(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(Writer, "add_scalar", full)
    train(tmp_path, tensorboard=True, epochs=1)
    assert "tensorboard failed; continuing without it: the disk is full" in capsys.readouterr().out


def test_without_an_account_or_a_terminal_weights_and_biases_log_offline(tmp_path, monkeypatch, capfd):
    """There is no menu, and a line says how to send the run."""
    wandb = pytest.importorskip("wandb")
    wandb.teardown()  # it keeps the mode of the first run of a process
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr(sys, "stdin", open("/dev/null"))  # noqa: SIM115
    train(tmp_path / "run", wandb=True, epochs=1)
    wandb.teardown()
    said = capfd.readouterr().out
    assert f"wandb login` and then `wandb sync {tmp_path}/run/wandb/offline-run-*` send it" in said
    assert said.startswith("wandb logs offline (No API key") and list(tmp_path.glob("run/wandb/offline-run-*/*.wandb"))


@pytest.mark.parametrize("quiet", [True, False])
def test_weights_and_biases_are_silent_with_quiet(quiet, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: SimpleNamespace()))
    monkeypatch.setenv("WANDB_SILENT", "")  # so that it is as before after this test
    monkeypatch.delenv("WANDB_SILENT")
    log_to_terminal(quiet=quiet)
    try:
        watching.WandB(tmp_path)
    finally:
        log_to_terminal()
    assert os.environ.get("WANDB_SILENT") == ("true" if quiet else None)


def test_a_mode_that_was_asked_for_stays(tmp_path, monkeypatch, capsys):
    asked = []

    def init(**options):
        asked.append(options)
        raise OSError("no network")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    monkeypatch.setenv("WANDB_MODE", "online")
    train(tmp_path, wandb=True, epochs=1)
    assert len(asked) == 1 and "wandb failed to start; training without it: no network" in capsys.readouterr().out


def test_the_model_before_is_the_first_line_and_counts_for_patience(tmp_path, capsys):
    """Training that makes the start worse ends after `patience` validations."""
    train(tmp_path / "start", epochs=3)
    capsys.readouterr()
    fit(
        task=Plane, data=Points(), optimizer=partial(SGD, lr=10.0),
        run=toy_run(tmp_path / "run", start_from=str(tmp_path / "start"), epochs=9, patience=2, clip=1.0),
    )  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    before = json.loads((tmp_path / "start/best/metrics_val.json").read_text())
    assert lines[0]["step"] == lines[0]["epoch"] == 0 and lines[0]["val/error"] == pytest.approx(before["error"])
    assert [line["epoch"] for line in lines if "val/error" in line] == [0, 1, 2]
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"validation of the weights of {tmp_path}/start: error ")
    assert json.loads((tmp_path / "run/best/metrics_val.json").read_text())["step"] == 0

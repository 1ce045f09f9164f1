"""Damage to a run's folder costs one line and at most one checkpoint; what a run promised is written in the end."""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.lr_scheduler import LinearLR, OneCycleLR, StepLR
from toy import Plane, Points, adam, cosine, toy_run

from tests.engine.test_resume import assert_same, lines
from vision_attn.configuration.weights import save_weights
from vision_attn.engine import training
from vision_attn.engine.distributed import World
from vision_attn.engine.fit import fit
from vision_attn.engine.log import Log
from vision_attn.engine.run_folder import checkpoint
from vision_attn.engine.run_folder.checkpoint import Position
from vision_attn.engine.run_folder.folders import workplace
from vision_attn.engine.watching import _identity
from vision_attn.system.errors import UserError
from vision_attn.system.files import digest, sha256

EVERYTHING = {"average": 0.9, "accumulate": 2, "warmup": 2, "log_every": 1, "save_every": 0.0, "show": 2, "epochs": 3}


class Stopped(Exception):
    pass


class Stopping(Points):
    """Ends in the middle of its third epoch, as if killed."""

    last = 2

    def train(self, epoch, **order):
        for number, batch in enumerate(super().train(epoch, **order)):
            if epoch == self.last and number == 4:
                raise Stopped
            yield batch


class Nothing(Points):
    """Data that are no longer there."""

    def prepare(self, task):
        raise AssertionError("the data were asked for")

    __len__ = prepare


def train(folder: Path, *, data: Points | None = None, schedule: Callable = cosine, **settings) -> dict:
    run = toy_run(folder, **(EVERYTHING | settings))
    return fit(task=Plane, data=Points() if data is None else data, optimizer=adam, schedule=schedule, run=run)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(folder)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """A run that ended in its third epoch, with last/ one step after previous/."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Stopped):
        train(folder, data=Stopping())
    steps = [json.loads((folder / name / "position.json").read_text())["step"] for name in ("last", "previous")]
    assert steps == [8, 7]
    return folder


@pytest.fixture
def run(stopped, tmp_path) -> Path:
    """A copy of the stopped run."""
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def done(whole, tmp_path) -> Path:
    """A copy of the finished run."""
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def in_position(**values) -> Callable[[Path], None]:
    """Other values in a position.json, with their checksum."""

    def change(path: Path) -> None:
        content = json.loads(path.read_text()) | values
        del content["sha256"]
        path.write_text(json.dumps(content | {"sha256": digest(content)}))

    return change


def seal(last: Path) -> None:
    """Write the checksums of the files as they are."""
    files = [last / name for name in ("model.safetensors", "trainer.pt")]
    in_position(files={path.name: [path.stat().st_size, sha256(path)] for path in files})(last / "position.json")


class Malicious:
    def __reduce__(self):
        return print, ("this must not run",)


ANY_FILE = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "one bit": flip,
    "text": lambda path: path.write_text("<html>quota exceeded</html>"),
    "a folder": as_folder,
}
DAMAGE = {
    **{f"{name}: {what}": (name, change) for name in ("model.safetensors", "trainer.pt", "position.json")
       for what, change in ANY_FILE.items()},
    "another model": ("model.safetensors", lambda path: save_weights(Plane(Points(), hidden=8), path)),
    "no weights": ("model.safetensors", lambda path: save_file({}, path)),
    "a pickle that runs code": ("trainer.pt", lambda path: torch.save(Malicious(), path)),
    "no state of a run": ("trainer.pt", lambda path: torch.save([1, 2], path)),
    "nested": ("position.json", lambda path: path.write_text("[" * 100_000)),
    "a list": ("position.json", lambda path: path.write_text("[]")),
    "nothing in it": ("position.json", lambda path: path.write_text("{}")),
    "a step that is text": ("position.json", in_position(step="8")),
    "a step below 0": ("position.json", in_position(step=-8)),
    "an epoch that is true": ("position.json", in_position(epoch=True)),
    "a batch in parts": ("position.json", in_position(batch=1.5)),
    "no plan": ("position.json", in_position(plan=None)),
    "a best that is text": ("position.json", in_position(best="good")),
    "a log that is null": ("position.json", in_position(logged=None)),
    "files of elsewhere": ("position.json", in_position(files={"/etc/passwd": [1, "2"]})),
    "files without size": ("position.json", in_position(files={"trainer.pt": [], "model.safetensors": []})),
    "an unknown key": ("position.json", in_position(stranger=1)),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_last_is_one_line_and_the_checkpoint_before_is_used(run, whole, capsys, damage):
    name, change = DAMAGE[damage]
    change(run / "last" / name)
    train(run)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{run / 'last' / name} "), said[0]
    assert said[0].endswith(": resuming from the previous checkpoint, at epoch 3, step 7")
    assert "weights_only" not in said[0] and said[1] == f"resuming {run} at epoch 3, step 7"
    assert_same(run, whole)


def test_a_last_that_is_gone_is_the_checkpoint_before(run, whole, capsys):
    shutil.rmtree(run / "last")
    train(run)
    assert capsys.readouterr().out.startswith(f"{run / 'last'} is missing: resuming from the previous")
    assert_same(run, whole)


@pytest.mark.parametrize("damage", ["model.safetensors: missing", "trainer.pt: one bit", "position.json: text"])
def test_without_a_whole_checkpoint_nothing_is_touched(run, damage):
    name, change = DAMAGE[damage]
    change(run / "last" / name)
    flip(run / "previous" / "trainer.pt")
    before = contents(run)
    with pytest.raises(UserError) as error:
        train(run)
    said = str(error.value)
    assert said.startswith(f"{run / 'last' / name} ") and f"{run / 'previous' / 'trainer.pt'} is damaged" in said
    assert "restore one from a backup" in said and "new run.folder" in said and "\n" not in said
    assert contents(run) == before


READ = [damage for damage, (name, _) in DAMAGE.items() if name != "position.json" and not damage.endswith("one bit")]


@pytest.mark.parametrize("damage", [damage for damage in READ if not damage.endswith(("a folder", "missing"))])
def test_damage_with_checksums_to_match_is_named_too(run, damage):
    shutil.rmtree(run / "previous")
    name, change = DAMAGE[damage]
    change(run / "last" / name)
    seal(run / "last")
    with pytest.raises(UserError) as error:
        train(run)
    said = str(error.value)
    assert said.startswith(f"{run / 'last' / name} ") and "\n" not in said and "weights_only" not in said


def test_a_trainer_of_another_optimizer_is_named(run):
    state = torch.load(run / "last" / "trainer.pt", weights_only=True)
    state["step"]["optimizer"]["param_groups"] = []
    shutil.rmtree(run / "previous")
    torch.save(state, run / "last" / "trainer.pt")
    seal(run / "last")
    with pytest.raises(UserError, match=r"trainer\.pt does not fit this run: .*param"):
        train(run)


def test_weights_that_went_before_their_checkpoint_are_not_trained_over(done):
    shutil.rmtree(done / "last")
    shutil.rmtree(done / "previous")
    before = contents(done)
    with pytest.raises(UserError, match="training from scratch would replace .*best; choose a new run.folder"):
        train(done)
    assert contents(done) == before


def test_a_log_that_lost_lines_is_no_obstacle_but_said(run, whole, capsys):
    log = run / "metrics.jsonl"
    log.unlink()
    train(run)
    said = f"{log} has fewer lines than the checkpoint counts: the others are lost; training continues"
    assert said in capsys.readouterr().out.splitlines()
    assert lines(run) == lines(whole)[-len(lines(run)) :] and lines(run)[-1]["epoch"] == 3


def test_a_finished_run_stays_finished_whatever_became_of_its_log(done, capsys):
    (done / "metrics.jsonl").write_text("")
    flip(done / "last" / "trainer.pt")
    assert "error" in train(done, data=Nothing())
    assert capsys.readouterr().out == f"{done} is finished after epoch 3: nothing is left to train\n"


def test_the_log_is_on_the_disk_before_the_checkpoint_that_counts_it(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    train(tmp_path / "run", epochs=1, show=0, save_every=600.0)
    first = flushed.index(str(workplace(tmp_path / "run" / "last") / "part" / "model.safetensors"))
    assert str(tmp_path / "run" / "metrics.jsonl") in flushed[:first]


# What a run promised


@pytest.mark.parametrize("validate_every", [0, 1])
def test_best_is_written_by_the_next_process_when_it_was_not(tmp_path, monkeypatch, validate_every):
    """Killed between the last epoch and best/, a run used to say for ever that nothing was left to do."""
    settings = {"validate_every": validate_every, "show": 0}
    train(tmp_path / "whole", **settings)
    killed = tmp_path / "killed"
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        # no argument reaches between two writes, and a signal would come at another moment each time
        patch.setattr(training, "save_best" if validate_every == 0 else "best_metrics", stop)
        train(killed, **settings)
    assert (killed / "best").exists() == bool(validate_every)
    assert json.loads((killed / "last" / "position.json").read_text())["epoch"] == 3
    train(killed, **settings)
    assert_same(killed, tmp_path / "whole")
    train(killed, data=Nothing(), **settings)  # now it is finished


def stop(*_: object, **__: object) -> None:
    raise Stopped


def test_the_last_epoch_is_named_in_best_without_validation(tmp_path):
    train(tmp_path / "run", validate_every=0)
    assert json.loads((tmp_path / "run" / "best" / "metrics_val.json").read_text()) == {"step": 9, "epoch": 3}


@pytest.mark.parametrize("number", [0, 1])
def test_pictures_that_a_kill_interrupted_are_drawn_again(tmp_path, whole, monkeypatch, capsys, number):
    killed = tmp_path / "killed"
    real = Plane.show

    def show(task, batch, folder):
        for path in real(task, batch, folder)[number:]:
            path.write_text("half a pict")
        raise Stopped

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Plane, "show", show)
        train(killed)
    train(killed)
    assert f"resuming {killed} to write the final outputs" in capsys.readouterr().out
    assert_same(killed, whole)
    assert contents(killed / "pictures") == contents(whole / "pictures") and len(contents(killed / "pictures")) == 2
    train(killed, data=Nothing())


def test_pictures_that_are_missing_are_drawn_by_the_same_command(done, whole, capsys):
    shutil.rmtree(done / "pictures")
    train(done)
    assert "2 pictures in" in capsys.readouterr().out
    assert_same(done, whole)


def test_a_finished_run_takes_more_epochs(tmp_path):
    run = toy_run(tmp_path / "added", epochs=1)
    fit(task=Plane, data=Points(), optimizer=adam, run=run)
    fit(task=Plane, data=Points(), optimizer=adam, run=toy_run(tmp_path / "added", epochs=2))
    fit(task=Plane, data=Points(), optimizer=adam, run=toy_run(tmp_path / "whole", epochs=2))
    assert_same(tmp_path / "added", tmp_path / "whole")


def test_a_schedule_spans_the_epochs_that_a_run_has_in_the_end(tmp_path, capsys):
    """Of the steps that are done, and of those that follow, the second part is that of a run that began so."""
    added, whole = tmp_path / "added", tmp_path / "whole"
    train(whole, epochs=5)
    train(added, epochs=2)
    capsys.readouterr()
    train(added, epochs=5)
    said = "the schedule spans 5 epochs now, and 2 before: the learning rate changes from 0 to "
    assert said in capsys.readouterr().out

    def rates(folder: Path) -> list[float]:
        logged = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        return [line["learning_rate"] for line in logged if "learning_rate" in line]

    assert len(rates(added)) == len(rates(whole)) == 15
    assert rates(added)[6:] == pytest.approx(rates(whole)[6:], rel=1e-12)
    assert rates(added)[4] < 0.6 * rates(whole)[4]
    train(added, epochs=5)
    assert "is finished after epoch 5" in capsys.readouterr().out
    train(added, epochs=4)
    assert "is finished after epoch 5" in capsys.readouterr().out


def test_a_stopped_run_takes_more_epochs(run, tmp_path):
    """The schedule of a run that was lengthened is resumed like any other."""
    shutil.copytree(run, tmp_path / "again")
    train(run, epochs=5)
    stopping = Stopping()
    stopping.last = 3
    with pytest.raises(Stopped):
        train(tmp_path / "again", epochs=5, data=stopping)
    train(tmp_path / "again", epochs=5)
    assert_same(tmp_path / "again", run)
    assert json.loads((run / "last" / "position.json").read_text())["plan"]["epochs"] == 5


@pytest.mark.parametrize(
    "schedule",
    [partial(StepLR, step_size=3), partial(OneCycleLR, max_lr=0.02), partial(LinearLR, start_factor=1, end_factor=0.1)],
    ids=["step", "one cycle", "linear"],
)
def test_every_schedule_is_resumed_exactly(tmp_path, schedule):
    train(tmp_path / "whole", schedule=schedule, show=0)
    with pytest.raises(Stopped):
        train(tmp_path / "parts", schedule=schedule, show=0, data=Stopping())
    train(tmp_path / "parts", schedule=schedule, show=0)
    assert_same(tmp_path / "parts", tmp_path / "whole")
    rates = [line["learning_rate"] for line in lines(tmp_path / "whole") if "learning_rate" in line]
    assert len(set(rates)) > 2


def test_equal_weights_are_equal_files(tmp_path):
    """Also where tensors share memory, which the file says of each."""

    def saved(name: str) -> bytes:
        layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(9))
        for layer in layers:
            layer.weight = layers[0].weight
            nn.init.zeros_(layer.bias)
        nn.init.ones_(layers[0].weight)
        save_weights(layers, tmp_path / name)
        return (tmp_path / name).read_bytes()

    first = saved("a")
    assert all(saved("b") == first for _ in range(3))
    with safe_open(tmp_path / "a", "pt") as file:
        assert file.metadata() == {f"{number}.weight": "0.weight" for number in range(1, 9)}
    assert load_file(tmp_path / "a")["0.weight"].equal(torch.ones(3, 3))


@pytest.mark.parametrize("size, loss", [(1, 2.0), (2, 3.0)])
def test_sums_of_the_log_are_each_processs_own(tmp_path, size, loss):
    """The means where the number of processes has changed."""
    states = [{"sums": {"loss": torch.tensor(value)}, "counts": {"loss": 2}} for value in (1.0, 3.0)]
    log = Log(tmp_path, World(size - 1, size, torch.device("cpu")), toy_run(tmp_path), 0)
    log.load_state_dict(states)
    assert (log.sums["loss"], log.counts) == (loss, {"loss": 2})
    assert log.state_dict() == {"sums": log.sums, "counts": {"loss": 2}}


def test_the_log_means_over_the_steps_that_have_a_scalar(tmp_path):
    log = Log(tmp_path, World(0, 1, torch.device("cpu")), toy_run(tmp_path), 0)
    for step in range(4):
        log.add({"loss": torch.tensor(float(step))} | ({"extra": torch.tensor(8.0)} if step % 2 else {}), 1)
    line = log.train(step=4, epoch=0, learning_rate=0.1)
    assert (line["loss"], line["extra"]) == (1.5, 8.0)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"[1]", b'{"error": "low"}', b"[" * 100_000])
def test_lost_metrics_of_best_are_said_and_no_obstacle(done, capsys, content):
    path = done / "best" / "metrics_val.json"
    path.unlink() if content is None else path.write_bytes(content)
    assert train(done, data=Nothing()) == {}
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and said[1].startswith(f"{path} ") and said[1].endswith("best weights are unknown")


def test_best_weights_that_are_lost_are_replaced_by_the_next_validation(run, whole, capsys):
    (run / "best" / "model.safetensors").unlink()
    train(run)
    said = capsys.readouterr().out
    path = run / "best" / "model.safetensors"
    assert f"{path} is missing: {run / 'best'} holds no weights: the next validation sets the best weights\n" in said
    assert "(best so far)" in said and path.exists()
    assert json.loads((run / "best" / "metrics_val.json").read_text())["epoch"] == 3


def test_best_weights_that_are_lost_at_the_end_are_the_last_ones(done, whole, capsys):
    shutil.rmtree(done / "best")
    metrics = train(done)
    assert "using the weights of the last step as the best" in capsys.readouterr().out
    assert metrics == {name[4:]: value for name, value in lines(whole)[-1].items() if name.startswith("val/")}
    train(done, data=Nothing())


def test_what_a_kill_left_inside_a_checkpoint_goes_with_it(run, whole):
    """A position that was being replaced, by a process whose number is in use again."""
    for name in ("last", "best"):
        (run / name / f".{os.getpid()}-00000000.position.json.part").write_text("{")
    train(run)
    assert not list(run.rglob(".*"))
    assert_same(run, whole)


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nope", "/proc/self/cmdline"])
def test_a_folder_that_cannot_be_is_one_line(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(UserError, match=f"^{place} cannot be used as a run folder: .*; choose another --run.folder$"):
        train(Path(place))


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(UserError, match=r"metrics\.jsonl could not be written: Is a directory"):
        train(tmp_path)


def test_positions_are_read_as_they_were_written(tmp_path):
    (tmp_path / "last").mkdir()
    files = {"model.safetensors": [1, "a"], "trainer.pt": [2, "b"]}
    position = Position({"seed": 1, "epochs": None}, 1, 2, 3, float("inf"), 0.5, 4, 5, True, files)
    checkpoint.update_position(tmp_path, position)
    assert checkpoint.peek(tmp_path) == position
    path = tmp_path / "last" / "position.json"
    path.write_text(path.read_text().replace('"step": 3', '"step": 2'))
    assert checkpoint.peek(tmp_path) is None


def test_the_name_at_weights_and_biases_survives_damage(tmp_path, capsys):
    path = tmp_path / "wandb.txt"
    first = _identity(path)
    assert _identity(path) == first and len(first) == 8
    for damage in (b"", b"\xff\x00", b"a\nb/c", b"x" * 1000):
        path.write_bytes(damage)
        other = _identity(path)
        assert other == _identity(path) != first
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4 and all(line.startswith(f"{path} is damaged: ") for line in said)

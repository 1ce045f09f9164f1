"""Memory that is short: the batch that fits is found or named, and a run goes on with it."""

import gc
import json
from functools import partial

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from toy import Plane, Points, adam, cosine, toy_run

from vision_attn.commands import main
from vision_attn.data.photographs.captions import Captions
from vision_attn.data.stories.stories import Stories
from vision_attn.encoders.convnet import ConvNet
from vision_attn.engine import batch_size, short_of_memory
from vision_attn.engine.batch_size import DoesNotFit, Trial, largest, parts, powers
from vision_attn.engine.distributed import World
from vision_attn.engine.fit import fit
from vision_attn.engine.run_folder import checkpoint
from vision_attn.engine.training import Training
from vision_attn.system.errors import UserError
from vision_attn.task import Task


@pytest.fixture(scope="module", autouse=True)
def older_objects_are_left_out() -> None:
    """Each trial of a size collects garbage, among all objects that tests before these have left."""
    gc.collect()
    gc.freeze()


class Sized(Points):
    """Points in batches whose size can be chosen."""

    def __init__(self, *, items: int = 48, batch_size: int = 8) -> None:
        super().__init__(items=items)
        self.batch_size = batch_size

    @property
    def batch(self) -> int:
        return self.batch_size

    @batch.setter
    def batch(self, size: int) -> None:
        self.batch_size = size


TIMES = ("seconds", "items_per_second", "waits")
plain = partial(torch.autocast, "cpu", enabled=False)


def short() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.")


class Greedy(Plane):
    """Has memory for a number of points in a training batch, from some step on, and in a prediction."""

    def __init__(self, source, *, room: int = 10**6, room_to_predict: int = 10**6, steps: int = 0):
        super().__init__(source, dropout=0.0)
        self.room, self.room_to_predict, self.steps = room, room_to_predict, steps
        self.sizes = []

    def forward(self, points, answers, *more):
        self.steps -= 1
        self.sizes.append(len(points))
        if self.steps < 0 and len(points) > self.room:
            short()
        return super().forward(points, answers, *more)

    def predict(self, batch, *, full=False):
        if len(batch.points) > self.room_to_predict:
            short()
        return super().predict(batch, full=full)


def train(folder, *, size=8, automatic=False, task=Plane, items=48, schedule=cosine, **settings):
    data = Sized(items=items, batch_size=size)
    data.automatic_batch = automatic
    return fit(task=task, data=data, optimizer=adam, schedule=schedule, run=toy_run(folder, **settings))


def steps(folder):
    return [
        line["step"] for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if "loss" in line
    ]


def test_the_sizes_that_are_tried():
    assert powers(300) == [1, 2, 4, 8, 16, 32, 64, 128, 256] and powers(1) == [1]
    assert parts(64) == [1, 2, 4, 8, 16, 32] and parts(10) == [1, 2, 5] and parts(7) == [1] and parts(1) == []
    assert largest(lambda size: size <= 20, powers(512)) == 16 and largest(lambda size: False, [1, 2]) == 0


def test_the_size_is_found_once_written_into_the_config_and_kept(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("data: {class_path: mine.Sized, init_args: {batch_size: auto}}\n")
    train(tmp_path, automatic=True, items=400, epochs=1, task=partial(Greedy, room=20))
    assert "init_args:\n    batch_size: 16\n" in (tmp_path / "config.yaml").read_text()
    assert (tmp_path / "best/config.yaml").read_text() == (tmp_path / "config.yaml").read_text()
    told = capsys.readouterr().out
    assert "data.batch_size is 16: a step takes " in told and "free; a batch of 32 would take too much of it\n" in told
    assert steps(tmp_path)[-1] == 25
    train(tmp_path, automatic=True, items=400, epochs=2)
    assert steps(tmp_path)[-1] == 50 and "data.batch_size is" not in capsys.readouterr().out


def test_a_found_size_leaves_steps_and_is_at_least_one(tmp_path, capsys):
    train(tmp_path / "few", automatic=True, items=70, epochs=1)
    assert steps(tmp_path / "few")[-1] == 8  # of 8 points
    assert (
        "larger ones, which are yours to choose, would leave fewer than 8 batches in an epoch\n"
        in capsys.readouterr().out
    )
    with pytest.raises(UserError, match="not even a batch of one image fits"):
        train(tmp_path / "none", automatic=True, task=partial(Greedy, room=0))
    assert not (tmp_path / "none" / "last").exists()
    with pytest.raises(UserError, match="Points has none that can be chosen"):
        points = Points()
        points.automatic_batch = True
        fit(task=Plane, data=points, optimizer=adam, run=toy_run(tmp_path / "fixed"))


def test_a_trial_changes_nothing(tmp_path):
    """A run with the size that was found equals one that was given it."""
    train(tmp_path / "found", automatic=True, items=70, epochs=2)
    train(tmp_path / "given", size=8, items=70, epochs=2)
    found, given = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("found", "given")
    )
    for one, other in zip(found, given, strict=True):
        assert one | dict.fromkeys(TIMES) == other | dict.fromkeys(TIMES)


def memory(monkeypatch, *, free, before=0, at_most=lambda: 0) -> None:
    """A device with `free` bytes, of which `before` are taken before a step, and `at_most()` within it."""
    monkeypatch.setattr(batch_size, "free_bytes", lambda device: free)
    monkeypatch.setattr(batch_size, "taken", lambda device: before)
    monkeypatch.setattr(batch_size, "most_taken", lambda device: at_most())


def trial(monkeypatch, *, free, image, fixed=0):
    """A trial on a device with `free` bytes, of which a batch takes `fixed`, and `image` for each of its images."""
    task = Greedy(Sized())
    memory(monkeypatch, free=free, before=100, at_most=lambda: 100 + fixed + image * task.sizes[-1])
    return Trial(task, Sized(items=4096), torch.device("cpu"), plain, seed=0), task


def test_a_batch_that_would_kill_the_process_is_not_tried_on_a_cpu(monkeypatch):
    """What is free is 1,000 bytes, of which 800 may be taken: 16 images take 740 of them, and 32 would take 1,380."""
    found, task = trial(monkeypatch, free=1000, image=40, fixed=100)
    assert largest(found.fits, powers(512)) == 16 and task.sizes == [1, 2, 4, 8, 16]
    assert found.told == "a step takes 740 bytes of the 1.0 kB of memory that are free"


def test_states_of_the_optimizer_count(monkeypatch):
    task = Greedy(Sized())
    number = sum(weight.numel() for weight in task.parameters() if weight.requires_grad)
    memory(monkeypatch, free=10 * number)
    make = partial(Trial, task, Sized(), torch.device("cpu"), plain, seed=0)
    assert make(states=1).fits(1) and not make(states=3).fits(1)


def test_out_of_memory_in_training_names_the_batch_that_fits_and_the_keys(tmp_path):
    with pytest.raises(UserError) as raised:
        train(tmp_path, task=partial(Greedy, room=3, steps=8))
    assert str(raised.value) == (
        "out of memory in step 9, with 8 images in a batch (tried to allocate 2.00 GiB): 2 fit. "
        f"{tmp_path}/last holds step 6: resume it by the same command with --data.batch_size=2 --run.accumulate=4, "
        f"which make the same steps in smaller parts; {short_of_memory.PAGE}"
    )
    assert checkpoint.find(tmp_path).step == 6
    with pytest.raises(UserError, match="step 1, with 8 .*: 4 fit. No checkpoint was written yet: run the same"):
        train(tmp_path / "first", task=partial(Greedy, room=5))
    with pytest.raises(UserError, match="not even a batch of one image fits"):
        train(tmp_path / "none", task=partial(Greedy, room=0))


def test_a_run_goes_on_with_smaller_batches_to_the_same_weights(tmp_path):
    """The points come in the same order, so each step has the same ones."""
    with pytest.raises(UserError):
        train(tmp_path / "short", task=partial(Greedy, room=5, steps=9), save_every=0.0)
    train(tmp_path / "short", size=4, accumulate=2, task=partial(Greedy, room=5))
    train(tmp_path / "whole", task=Greedy)
    one, other = (load_file(tmp_path / name / "last/model.safetensors") for name in ("short", "whole"))
    for name in one:
        if name != "mean":
            torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5)
    position = checkpoint.find(tmp_path / "short")
    assert position.step == 18 and (position.plan["batches"], position.plan["batch_size"]) == (12, 4)
    train(tmp_path / "short", size=4, accumulate=2, epochs=4)  # and on
    assert steps(tmp_path / "short")[-1] == 24


def test_an_epoch_that_has_a_step_more_in_smaller_batches_is_a_part_of_the_schedule(tmp_path):
    """44 points: 5 batches of 8, but 11 of 4, which are 6 steps."""
    with pytest.raises(UserError):
        train(tmp_path, items=44, task=partial(Greedy, room=5, steps=7))
    train(tmp_path, items=44, size=4, accumulate=2, task=Plane, log_every=1)
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    rates = {line["step"]: line["learning_rate"] for line in lines if "loss" in line}
    assert max(rates) == 17 and 0 < rates[17] < rates[16] < rates[10]


def test_a_step_of_another_size_is_refused(tmp_path):
    train(tmp_path, epochs=1)
    with pytest.raises(UserError, match="other settings"):
        train(tmp_path, size=4, accumulate=4, epochs=2)
    with pytest.raises(UserError, match="had 6 training batches when this run began, and now 12"):
        train(tmp_path, size=4, epochs=2)


def test_out_of_memory_in_validation_names_the_batch_that_fits(tmp_path):
    task = partial(Greedy, room_to_predict=2)
    with pytest.raises(
        UserError, match=r"in validation, with 6 images .*: 1 fit. .*--data.batch_size=1 --run.accumulate=8"
    ):
        train(tmp_path / "a", task=task)
    Sized.evaluation_batch_size = 6
    try:
        with pytest.raises(
            UserError, match=r"in validation, with 6 images .*: 3 fit. .*--data.evaluation_batch_size=3;"
        ):
            train(tmp_path / "b", task=partial(Greedy, room_to_predict=4))
    finally:
        del Sized.evaluation_batch_size


def test_errors_of_other_kinds_stay_what_they_are(tmp_path):
    def wrong(self, *_):
        raise RuntimeError("shapes")

    task = type("Wrong", (Plane,), {"forward": wrong})
    with pytest.raises(RuntimeError, match="shapes"):
        train(tmp_path, task=task)
    with pytest.raises(RuntimeError, match="shapes"):
        train(tmp_path / "b", task=task, automatic=True)


def test_of_several_processes_each_guesses_half(tmp_path):
    """It cannot try what all would have to do together."""
    training = Training.__new__(Training)
    training.data, training.run, training.world = Sized(), toy_run(tmp_path), World(1, 2, torch.device("cpu"))
    training.position = checkpoint.Position({}, step=7)
    assert str(short_of_memory.in_training(training, "tried to allocate 2 GiB")) == (
        "out of memory in step 8, with 8 images in a batch (tried to allocate 2 GiB): 4 may fit. Run the same command "
        "with --data.batch_size=4 --run.accumulate=2, which make the same steps in smaller parts; "
        f"{short_of_memory.PAGE}"
    )


def test_an_evaluation_names_the_key():
    error = DoesNotFit(64, 16, "CUDA out of memory")
    said = str(short_of_memory.in_evaluation(error, Sized()))
    assert "with 64 images in a batch (CUDA out of memory): 16 fit. Add --data.batch_size=16;" in said


CONFIG = f"""
task: {{class_path: {__name__}.Greedy}}
data: {{class_path: {__name__}.Sized, init_args: {{items: 32, batch_size: auto}}}}
optimizer: {{class_path: torch.optim.AdamW, init_args: {{lr: 1.0e-2}}}}
run: {{epochs: 1, metric: error, mode: min, device: cpu, threads: 1}}
"""


def test_by_the_command_line_a_size_is_found_and_kept_and_smaller_batches_go_on(tmp_path, capsys):
    (tmp_path / "points.yaml").write_text(CONFIG)
    train = ["train", str(tmp_path / "points.yaml"), f"--run.folder={tmp_path}/run"]
    assert main(train) == 0
    assert "data.batch_size is 4: " in capsys.readouterr().out
    assert "batch_size: 4\n" in (tmp_path / "run/best/config.yaml").read_text()
    assert main([*train, "--run.epochs=2"]) == 0
    (tmp_path / "points.yaml").write_text(CONFIG.replace("Greedy}", "Greedy, init_args: {room: 2}}"))
    assert main(["train", str(tmp_path / "points.yaml"), f"--run.folder={tmp_path}/other", "--data.batch_size=4"]) == 1
    said, keys = capsys.readouterr().err, "--data.batch_size=2 --run.accumulate=2"
    assert said.startswith("vision-attn: error: out of memory in step 1, with 4 images") and "2 fit. No checkp" in said
    assert keys in said and not (tmp_path / "other").exists()
    (tmp_path / "points.yaml").write_text(CONFIG)
    assert main([*train, "--run.epochs=3", "--data.batch_size=2"]) == 1
    assert "data.batch_size was 4, is 2" in capsys.readouterr().err
    assert main([*train, "--run.epochs=3", *keys.split()]) == 0
    assert checkpoint.find(tmp_path / "run").step == 24


def test_an_evaluation_says_it_once(tmp_path, monkeypatch, capsys):
    (tmp_path / "points.yaml").write_text(CONFIG)
    assert main(["train", str(tmp_path / "points.yaml"), f"--run.folder={tmp_path}/run"]) == 0
    monkeypatch.setattr(Greedy, "predict", lambda task, batch, full: short() if len(batch.points) > 1 else None)
    assert main(["eval", f"{tmp_path}/run", "--trust", __name__]) == 1
    said = capsys.readouterr().err
    assert said.count("out of memory") == 1 and "with 6 images in a batch (tried to allocate 2.00 GiB): 1 fit." in said


def test_photographs_and_stories_come_in_batches_of_another_size(tmp_path):
    for number in range(6):
        Image.new("RGB", (40, 40), (number * 40, 0, 0)).save(tmp_path / f"{number}.png")
    lines = [f"{number}.png,a red thing,{'val' if number == 5 else 'train'}" for number in range(6)]
    (tmp_path / "captions.csv").write_text("\n".join(["image,caption,split", *lines]))
    captions = Captions(images=str(tmp_path), min_count=1, batch_size=1, cache=None)
    task = Task()
    task.encoder = ConvNet()
    captions.prepare(task)
    assert (len(captions), len(captions.resized(2)), len(captions.resized(4))) == (5, 2, 1)
    assert len(next(iter(captions.resized(2).train(0, seed=0))).images) == 2 and len(captions) == 5
    stories = Stories(tasks=(1,), stories=20, test_stories=2, batch_size=1)
    assert len(next(iter(stories.resized(3).train(0, seed=0))).ids) == 3

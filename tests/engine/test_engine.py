"""The training loop: what a run folder holds, which weights are best, and what a mistake says."""

import json
import math
import platform
import subprocess
import sys
import warnings
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import SGD, Adadelta, Adam, AdamW
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from toy import Plane, Points, adam, cosine, momentum, toy_run, train_toy

from tests import pretend
from vision_attn.commands.train import trial_folder
from vision_attn.configuration.run_settings import Run
from vision_attn.configuration.weights import check_weights, load_weights, save_weights
from vision_attn.engine.average import Average
from vision_attn.engine.device_settings import precision_for
from vision_attn.engine.distributed import World
from vision_attn.engine.fit import fit
from vision_attn.engine.log import Log
from vision_attn.engine.optimizers import changes_momentum, warm, with_fused_kernels, with_rates
from vision_attn.system.errors import UserError
from vision_attn.viz.attention import write_sheet


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def errors(folder):
    return [line["val/error"] for line in lines(folder) if "val/error" in line]


def train_plain(folder, *, task=Plane, data=None, optimizer=momentum, schedule=None, **settings):
    return fit(
        task=task,
        data=Points() if data is None else data,
        optimizer=optimizer,
        schedule=schedule,
        run=toy_run(folder, **settings),
    )


def test_run_folder_holds_all_that_is_promised(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    best = train_toy(tmp_path, show=3)
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")} == {
        "config.yaml", "metrics.jsonl", "start", "last", "previous", "best", "pictures",
    }  # fmt: skip
    assert {path.name for path in (tmp_path / "best").iterdir()} == {
        "model.safetensors", "config.yaml", "points.json", "metrics_val.json",
    }  # fmt: skip
    written = json.loads((tmp_path / "best" / "metrics_val.json").read_text())
    found = {line["val/error"]: line for line in lines(tmp_path) if "val/error" in line}
    assert best["error"] == min(found) and len(found) == 3
    assert written == {"step": found[min(found)]["step"], "epoch": found[min(found)]["epoch"], **best}
    assert len(list((tmp_path / "pictures").iterdir())) == 3
    assert "mean" in load_file(tmp_path / "best" / "model.safetensors")


def test_best_holds_the_weights_that_gave_its_metric(tmp_path):
    """With an average, these are the averaged weights, and the task goes on with its own."""
    best = train_toy(tmp_path)
    task = Plane(Points()).eval()
    load_weights(task, tmp_path / "best")
    assert task.evaluate(Points().split("val"))["error"] == best["error"]
    last = Plane(Points())
    load_weights(last, tmp_path / "last")
    assert not torch.equal(last.last.weight, task.last.weight)


@pytest.mark.parametrize("part", ["", "best"])
def test_a_run_may_begin_with_the_weights_of_another_and_nothing_else(tmp_path, part):
    train_plain(tmp_path / "first", epochs=3)
    train_plain(tmp_path / "second", epochs=1, start_from=str(tmp_path / "first" / part), validate_every=0)
    first, second = (lines(tmp_path / name) for name in ("first", "second"))
    fresh = next(line["loss"] for line in first if "loss" in line)
    begun = next(line["loss"] for line in second if "loss" in line)
    assert begun < fresh / 2 and min(line["step"] for line in second) <= len(Points())
    with pytest.raises(UserError, match="there is no folder .*nowhere: train the run"):
        train_plain(tmp_path / "third", start_from=str(tmp_path / "nowhere"))


def test_validation_leaves_no_trace(tmp_path):
    train_plain(tmp_path / "often", validate_every=1)
    train_plain(tmp_path / "once", validate_every=3, sanity_check=False)
    often, once = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("often", "once"))
    assert len(errors(tmp_path / "often")) == 3 and len(errors(tmp_path / "once")) == 1
    assert all(torch.equal(often[name], once[name]) for name in often)


def test_accumulated_batches_equal_one_joined_batch(tmp_path):
    def plain(source):
        return Plane(source, dropout=0.0)

    train_plain(tmp_path / "joined", task=plain, data=Points(batch=8), clip=1.0)
    train_plain(tmp_path / "parts", task=plain, data=Points(batch=4), clip=1.0, accumulate=2)
    joined, parts = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("joined", "parts"))
    for name, _ in Plane(Points()).named_parameters():
        if name in joined:  # not the tied weight's second name
            torch.testing.assert_close(parts[name], joined[name])


def test_an_epoch_that_accumulation_does_not_divide_is_used_to_its_end(tmp_path):
    train_plain(tmp_path, accumulate=4, epochs=2, log_every=1)
    assert [line["step"] for line in lines(tmp_path) if "loss" in line] == [1, 2, 3, 4]  # 6 batches: 4 and 2


def test_clipping_bounds_the_gradient(tmp_path):
    """Plain descent with one step: the weights move by the clipped gradient's length times the rate."""

    def descent(parameters):
        return SGD(parameters, lr=1.0)

    train_plain(tmp_path, data=Points(batch=48), optimizer=descent, epochs=1, clip=0.25)
    torch.manual_seed(0)
    before = Plane(Points())
    before.initialise()
    after = load_file(tmp_path / "last" / "model.safetensors")
    moved = [after[name] - weight.detach() for name, weight in before.named_parameters() if name in after]
    assert sum(part.square().sum() for part in moved).sqrt() == pytest.approx(0.25, rel=1e-4)
    assert lines(tmp_path)[0]["gradient"] > 0.25


def test_early_stopping_keeps_the_best(tmp_path):
    def diverging(parameters):
        return SGD(parameters, lr=0.0)

    best = train_plain(tmp_path, optimizer=diverging, epochs=20, patience=2)
    assert len(errors(tmp_path)) == 3  # one best, two no better
    assert best["error"] == errors(tmp_path)[0]
    assert json.loads((tmp_path / "best" / "metrics_val.json").read_text())["epoch"] == 1
    train_plain(tmp_path, optimizer=diverging, epochs=20, patience=2)
    assert len(errors(tmp_path)) == 3


def test_without_validation_the_last_weights_are_the_best(tmp_path):
    assert train_plain(tmp_path, validate_every=0, metric="none") == {}
    best, last = (load_file(tmp_path / name / "model.safetensors") for name in ("best", "last"))
    assert all(torch.equal(best[name], last[name]) for name in last)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(tmp_path, precision, monkeypatch):
    pretend.half_precision(monkeypatch, fast=True)
    train_plain(tmp_path, precision=precision, epochs=6, clip=10.0, optimizer=adam)
    found = errors(tmp_path)
    assert all(map(math.isfinite, found)) and found[-1] < found[0]
    assert load_file(tmp_path / "last" / "model.safetensors")["last.weight"].dtype == torch.float32


def test_only_weights_that_train_reach_the_optimizer(tmp_path):
    seen = []

    def watching(parameters):
        seen.extend(parameters)
        return SGD(seen, lr=0.01)

    train_plain(tmp_path, optimizer=watching, epochs=1)
    assert seen and all(weight.requires_grad for weight in seen)
    with pytest.raises(UserError, match="no weights to train"):
        train_plain(tmp_path / "frozen", task=lambda source: Plane(source).requires_grad_(False))


def test_parts_may_have_a_learning_rate_of_their_own():
    """A schedule keeps the ratio, and where all rates are the same there is one group, as in older checkpoints."""
    model = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(3))
    weights = list(model.parameters())
    build = partial(SGD, lr=0.1)
    optimizer = with_rates(build, weights, [(model[0], 0.1), (model[1], 1.0)])
    schedule = cosine(optimizer, 4)
    for _ in range(3):
        before = [weight.item() for weight in weights]
        sum(weights).sum().backward()
        optimizer.step()
        slow, *usual = (start - weight.item() for start, weight in zip(before, weights, strict=True))
        assert usual == pytest.approx([10 * slow] * 2, rel=1e-3) and slow > 0
        optimizer.zero_grad()
        schedule.step()

    def own_groups(parameters):
        return SGD([{"params": [weight]} for weight in parameters], lr=0.1)

    for rates in ([], [(model[0], 1.0)]):
        assert len(with_rates(build, weights, rates).param_groups) == 1
        assert len(with_rates(own_groups, weights, rates).param_groups) == 3
    assert with_rates(build, weights[:1], [(model[0], 0.5)]).param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("kind, options", [(Adam, {}), (AdamW, {"weight_decay": 0.1}), (SGD, {"momentum": 0.9})])
def test_fused_optimizers_do_the_same(kind, options):
    ends = []
    for fuse in (with_fused_kernels, lambda optimizer: optimizer):
        weights = torch.linspace(-1, 1, 50).requires_grad_()
        optimizer = fuse(kind([weights], lr=0.1, **options))
        for step in range(5):
            optimizer.zero_grad()
            ((weights - step) ** 2).sum().backward()
            optimizer.step()
        ends.append(weights.detach())
    torch.testing.assert_close(*ends)


def test_optimizers_are_fused_where_they_can_be_and_nobody_said_otherwise():
    weights = [torch.zeros(2, requires_grad=True)]
    assert with_fused_kernels(Adam(weights)).param_groups[0]["fused"]
    assert not with_fused_kernels(Adam(weights, fused=False)).param_groups[0]["fused"]
    assert not with_fused_kernels(Adam(weights, foreach=True)).param_groups[0]["fused"]
    assert "fused" not in with_fused_kernels(Adadelta(weights)).param_groups[0]


def test_warmup_rises_to_the_schedule():
    def rates(warmup, total):
        optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.8)
        schedule = warm(optimizer, cosine, warmup=warmup, total=total)
        found = []
        for _ in range(total):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert rates(3, 13)[:3] == pytest.approx([0.2, 0.4, 0.6])
    assert rates(3, 13)[3:] == pytest.approx(rates(0, 10))
    with pytest.raises(UserError, match="run.warmup is 10 steps, but the whole run has 10"):
        rates(10, 10)
    with pytest.raises(UserError, match=r"--run.epochs=1000 for 1,000 steps \(it is 24\)"):
        warm(SGD([nn.Parameter(torch.zeros(1))], lr=0.8), cosine, warmup=100, total=24, epochs=24)
    with pytest.raises(UserError, match=r"--run.epochs=13 for 260 steps \(it is 1\)"):
        warm(SGD([nn.Parameter(torch.zeros(1))], lr=0.8), cosine, warmup=25, total=20, epochs=1)


def test_average_is_the_moving_average():
    weight = nn.Parameter(torch.zeros(3))
    average = Average([weight], decay=0.2)
    expected = None
    for decay, value in ((0.0, 1.0), (2 / 11, 5.0), (0.2, -2.0), (0.2, 7.0), (0.2, -2.0)):  # it rises to what was given
        weight.data.fill_(value)
        average.update()
        expected = value if expected is None else decay * expected + (1 - decay) * value
    with average.in_place():
        torch.testing.assert_close(weight.detach(), torch.full((3,), expected))
    assert torch.equal(weight.detach(), torch.full((3,), -2.0))


def test_a_loss_that_is_not_finite_names_step_and_images(tmp_path):
    data = Points()
    whole, bad = Points(), Points(bad=20)
    data.train = lambda epoch, **order: (bad if epoch == 1 else whole).train(epoch, **order)
    with pytest.raises(UserError, match=r"step \d+: the loss is not finite; ids of its batch: point.*point20") as error:
        train_plain(tmp_path, data=data, save_every=0.0)
    step = int(str(error.value).split("step ")[1].split(":")[0])
    weights = load_file(tmp_path / "last" / "model.safetensors")
    assert all(weight.isfinite().all() for weight in weights.values())
    assert json.loads((tmp_path / "last" / "position.json").read_text())["step"] == step - 1


def test_a_gradient_that_is_not_finite_is_never_applied(tmp_path):
    class Steep(Plane):
        def forward(self, points, answers, *_):
            return {"loss": (self.last.bias * 0).sqrt().sum()}  # 0, with an infinite slope

    with pytest.raises(UserError, match="step 1: the gradient is not finite; ids of its batch: point"):
        train_plain(tmp_path, task=Steep)

    with pytest.raises(UserError, match="not finite in fp16, however small the loss is scaled"):
        train_plain(tmp_path / "half", task=Steep, precision="fp16", epochs=20)  # the scaler leaves out every step

    class Term(Plane):
        def forward(self, points, answers, *_):
            mine = self.last.bias.sum() * math.nan
            return {"loss": mine + 1, "mine": mine.detach(), "other": torch.ones(())}

    with pytest.raises(UserError, match="the loss is not finite; ids of .*; in the latest step also: mine. "):
        train_plain(tmp_path / "term", task=Term)
    assert not (tmp_path / "last").exists()


def test_unknown_metric_is_named_before_training(tmp_path):
    with pytest.raises(UserError, match=r"run.metric is 'BLEU-4', but validation computes: error, images"):
        train_toy(tmp_path, metric="BLEU-4")
    assert not (tmp_path / "last").exists()


@pytest.mark.parametrize(
    "setting, message",
    [
        ({"epochs": 0}, "run.epochs is 0, but must be at least 1"),
        ({"average": 1.5}, "run.average is 1.5"),
        ({"start_share": 1.0, "start_from": "x"}, "run.start_share is 1.0"),
        ({"start_share": 0.5}, "run.start_share is of the weights of run.start_from"),
        ({"clip": 0.0}, "run.clip is 0.0"),
        ({"patience": 0}, "run.patience is 0"),
    ],
)
def test_impossible_settings_are_refused(setting, message):
    with pytest.raises(UserError, match=message):
        Run(folder="runs/x", **setting)


def test_unknown_device_and_empty_data_are_refused(tmp_path):
    with pytest.raises(UserError, match="device 'gpu' is not available here"):
        train_plain(tmp_path, device="gpu")
    with pytest.raises(UserError, match="no training batch"):
        train_plain(tmp_path, data=Points(items=4))


def test_source_that_gives_too_few_batches_is_named(tmp_path):
    class Short(Points):
        def __len__(self):
            return 7

    with pytest.raises(UserError, match="fewer training batches than its length"):
        train_plain(tmp_path, data=Short())


def test_weights_of_another_model_are_refused_by_name(tmp_path):
    save_weights(Plane(Points()), tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"of another shape: first.bias is \(16,\) in the file, \(8,\) in the model"):
        load_weights(Plane(Points(), hidden=8), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["stranger"] = weights.pop("last.bias")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="missing: last.bias; unexpected: stranger"):
        load_weights(Plane(Points()), tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-8])
    with pytest.raises(UserError, match="not a complete safetensors file"):
        load_weights(Plane(Points()), tmp_path)
    with pytest.raises(UserError, match="model.safetensors is missing"):
        load_weights(Plane(Points()), tmp_path / "nowhere")


def test_tied_weights_stay_tied(tmp_path):
    task, other = Plane(Points()), Plane(Points())
    save_weights(task, tmp_path / "model.safetensors")
    assert ("second.weight" in load_file(tmp_path / "model.safetensors")) != (
        "third.weight" in load_file(tmp_path / "model.safetensors")
    )
    load_weights(other, tmp_path)
    assert other.second.weight is other.third.weight and torch.equal(other.second.weight, task.second.weight)


def test_weights_are_compared_before_a_model_takes_memory(tmp_path):
    """A task on the meta device holds no numbers, but the names, the shapes and which weights are tied."""
    save_weights(Plane(Points()), tmp_path / "model.safetensors")
    with torch.device("meta"):
        fitting, other = Plane(Points()), Plane(Points(), hidden=8)
        untied = Plane(Points())
        untied.third.weight = nn.Parameter(torch.empty(16, 16))
    check_weights(fitting, tmp_path)
    with pytest.raises(UserError, match=r"of another shape: first.bias is \(16,\) in the file, \(8,\) in the model"):
        check_weights(other, tmp_path)
    with pytest.raises(UserError, match=r"missing: (second|third).weight$"):
        check_weights(untied, tmp_path)


def test_console_has_a_line_per_epoch_and_validation(tmp_path, capsys):
    train_plain(tmp_path)
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 8 and output.err == ""
    assert output.out.splitlines()[0] == "training on cpu in fp32, eagerly, in 1 thread"
    assert output.out.splitlines()[1].startswith("first step after ")
    assert output.out.splitlines()[2].startswith("epoch 1/3: step 6, loss ")


def test_wandb_gets_every_line_and_may_fail(tmp_path, monkeypatch, capsys):
    logged = []

    def log(line, step):
        logged.append((step, line))
        if len(logged) == 4:
            raise OSError("no network")

    fake = SimpleNamespace(log=log, finish=lambda: None)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: fake))
    train_plain(tmp_path, wandb=True)
    assert [step for step, _ in logged] == [6, 6, 12, 12] and "val/error" in logged[1][1]
    assert "wandb failed; continuing without it" in capsys.readouterr().out
    assert len(errors(tmp_path)) == 3


def test_wandb_gets_config_and_pictures_and_the_environment_wins(tmp_path, monkeypatch):
    """A picture with a description is a row of a table; pages are sent whole."""
    started, logged = [], []
    fake = SimpleNamespace(log=lambda line, step: logged.append(line), finish=lambda: None)
    module = SimpleNamespace(
        init=lambda **options: started.append(options) or fake, Image=lambda path, caption="": ("image", path),
        Html=lambda path: ("page", path), Table=lambda columns, data: (columns, data),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "wandb", module)
    world = World(0, 1, torch.device("cpu"))
    (tmp_path / "config.yaml").write_text("run: {seed: 7}\n")
    sheet = write_sheet(tmp_path / "1.png", Image.new("RGB", (9, 9)), ["a", "dög"], torch.ones(2, 3, 3))
    Image.new("RGB", (9, 9)).save(tmp_path / "2.gif")
    paths = [tmp_path / "index.html", sheet, tmp_path / "2.gif"]
    log = Log(tmp_path, world, toy_run(tmp_path, wandb=True), 0)
    log.pictures(paths, step=3)
    log.close()
    assert started[0]["config"] == {"run": {"seed": 7}} and started[0]["project"] == "vision_attn"
    assert started[0]["id"] == (tmp_path / "wandb.txt").read_text()
    (content,) = logged
    assert content["pictures"] == [("image", str(path)) for path in paths[1:]]
    assert content["index"] == ("page", str(paths[0]))
    assert content["captions"] == (["image", "caption", "maps"], [["1", "a dög", ("image", str(sheet))]])
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("WANDB_RUN_ID", "abc")
    Log(tmp_path, world, toy_run(tmp_path, wandb=True), 0).close()
    assert "project" not in started[1] and "id" not in started[1] and started[1]["name"] == tmp_path.name
    assert trial_folder(tmp_path) == tmp_path
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep")
    assert trial_folder(tmp_path) == tmp_path / "abc"


def test_wandb_that_does_not_start_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    train_plain(tmp_path, wandb=True, epochs=1)
    assert "wandb failed to start" in capsys.readouterr().out


@pytest.mark.slow
def test_wandb_works_offline(tmp_path, monkeypatch, capfd):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    train_plain(tmp_path, wandb=True, epochs=1)
    assert "wandb" not in capfd.readouterr().out
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_a_metric_that_is_not_a_number_is_replaced_by_any(tmp_path, monkeypatch):
    values = iter([math.nan, 5.0, 9.0])
    monkeypatch.setattr(Plane, "judge", lambda task, predictions, folder=None: {"error": next(values)})
    assert train_plain(tmp_path, sanity_check=False) == {"error": 5.0}
    assert errors(tmp_path) == [None, 5.0, 9.0]


@pytest.mark.compile
def test_compiled_equals_eager(tmp_path):
    """Batches with other ids and texts must not be compiled again."""

    def plain(source):
        return Plane(source, dropout=0.0)

    torch._dynamo.utils.counters.clear()
    train_plain(tmp_path / "compiled", task=plain, compile=True)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    train_plain(tmp_path / "eager", task=plain)
    eager, compiled = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("eager", "compiled"))
    assert graphs == 1
    for name in eager:
        torch.testing.assert_close(compiled[name], eager[name], rtol=1e-4, atol=1e-5)


def test_schedule_is_called_with_the_number_of_steps(tmp_path):
    asked = []

    def schedule(optimizer, steps):
        asked.append(steps)
        return CosineAnnealingLR(optimizer, steps)

    train_plain(tmp_path, schedule=schedule, accumulate=4, epochs=2)
    assert asked == [4]


@pytest.mark.parametrize("warmup", [0, 4])
@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (partial(CosineAnnealingLR, eta_min=0.2), {0: 1.0, 8: 0.6, 16: 0.2}),
        (partial(CosineAnnealingLR, T_max=8), {0: 1.0, 8: 0.0, 16: 1.0}),
        (partial(LinearLR, start_factor=1.0, end_factor=0.5), {0: 1.0, 8: 0.75, 16: 0.5}),
        (partial(LinearLR, start_factor=0.5, total_iters=4), {0: 0.5, 2: 0.75, 4: 1.0, 16: 1.0}),
        (PolynomialLR, {0: 1.0, 8: 0.5, 16: 0.0}),
        (
            partial(OneCycleLR, max_lr=2.0, pct_start=0.5, div_factor=2.0, final_div_factor=1e9),
            {0: 1.0, 7: 2.0, 15: 0.0},
        ),
        (partial(StepLR, step_size=5, gamma=0.1), {4: 1.0, 5: 0.1, 15: 0.001}),
        (partial(MultiStepLR, milestones=[3], gamma=0.5), {2: 1.0, 3: 0.5, 16: 0.5}),
        (partial(ExponentialLR, gamma=0.5), {0: 1.0, 3: 0.125}),
        (partial(CosineAnnealingWarmRestarts, T_0=4), {0: 1.0, 2: 0.5, 4: 1.0, 8: 1.0}),
        (lambda some, steps: StepLR(some, steps // 4), {3: 1.0, 4: 0.1}),
    ],
)
def test_every_schedule_of_torch_gets_the_number_of_steps_under_its_name(warmup, schedule, rates):
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)
    made = warm(optimizer, schedule, warmup=warmup, total=16 + warmup)
    seen = []
    for _ in range(16 + warmup):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        made.step()
    seen.append(optimizer.param_groups[0]["lr"])
    assert {step: seen[warmup + step] for step in rates} == pytest.approx(rates, abs=1e-8)


def test_a_schedule_that_follows_a_metric_or_the_momentum_is_told():
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.8, momentum=0.9)
    for warmup in (0, 5):
        with pytest.raises(UserError, match="schedule: ReduceLROnPlateau follows a metric"):
            warm(optimizer, partial(ReduceLROnPlateau, factor=0.5), warmup=warmup, total=20)
        assert changes_momentum(warm(optimizer, partial(OneCycleLR, max_lr=1.0), warmup=warmup, total=20))
        kept = partial(OneCycleLR, max_lr=1.0, cycle_momentum=False)
        assert not changes_momentum(warm(optimizer, kept, warmup=warmup, total=20))


def test_schedules_of_ones_own_and_in_sequence():
    class Halving(LRScheduler):
        def __init__(self, optimizer):
            super().__init__(optimizer)

        def get_lr(self):
            return [group["lr"] / 2 for group in self.optimizer.param_groups]

    def sequence(some, steps):
        return SequentialLR(some, [StepLR(some, 3), StepLR(some, 5)], milestones=[steps // 2])

    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=0.8)
    assert isinstance(warm(optimizer, lambda some, steps: Halving(some), warmup=5, total=20), SequentialLR)
    with pytest.raises(UserError, match="run.warmup cannot be put before a SequentialLR: set it to 0"):
        warm(optimizer, sequence, warmup=5, total=20)
    assert isinstance(warm(optimizer, sequence, warmup=0, total=20), SequentialLR)


@pytest.mark.compile
def test_a_machine_without_compiler_is_told_so(tmp_path):
    without = {"cpp.cxx": (None, "no-such-compiler"), "force_disable_caches": True}
    with torch._inductor.config.patch(without), pytest.raises(UserError, match=r"run\.compile: .*No working C\+\+"):
        train_plain(tmp_path, compile=True)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that would hand memory back, or keep it")
def test_memory_of_a_step_is_there_for_the_next_and_can_be_returned():
    """64 MiB are used 40 times; from the system they come a few times, until their place is found again. Then every
    second of 256 blocks of 1 MiB is freed: the heap cannot shrink, but the pages can go."""
    code = """
import torch
from pathlib import Path
from resource import RUSAGE_SELF, getpagesize, getrusage
from vision_attn.system.memory import keep_freed_memory, return_freed_memory
def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon"))
keep_freed_memory()
before = getrusage(RUSAGE_SELF).ru_minflt
for _ in range(40):
    torch.ones(2**24)
assert (getrusage(RUSAGE_SELF).ru_minflt - before) * getpagesize() < 20 * 2**26
blocks = [torch.ones(2**18) for _ in range(256)]
del blocks[::2]
before = anonymous()
return_freed_memory()
assert before - anonymous() > 100, (before, anonymous())
assert all((block == 1).all() for block in blocks)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_each_checkpoint_returns_freed_memory(tmp_path, monkeypatch):
    returned = []
    # how much a small run frees depends on all that ran before
    monkeypatch.setattr("vision_attn.engine.training.return_freed_memory", lambda: returned.append(None))
    train_plain(tmp_path, epochs=3)
    assert len(returned) == 3


def test_bf16_becomes_fp32_on_a_processor_that_multiplies_it_slowly(tmp_path, monkeypatch, capsys):
    """Such as one without AVX-512: the run says so, and goes on in bf16 on another processor."""
    for fast, said in (
        (
            False,
            "training on cpu in fp32, eagerly, in 1 thread; not in bf16, which is many times slower on this processor",
        ),
        (True, "training on cpu in bf16, eagerly, in 1 thread\n"),
    ):
        pretend.half_precision(monkeypatch, fast)
        train_plain(tmp_path, precision="bf16", epochs=1 + fast)
        assert said in capsys.readouterr().out
        position = json.loads((tmp_path / "last" / "position.json").read_text())
        assert (position["plan"]["precision"], position["chosen"]["precision"]) == ("bf16", "bf16" if fast else "fp32")


def test_precision_is_chosen_once(tmp_path):
    """A run with `precision: auto` keeps what it began with, such as on a GPU bf16, which a CPU would not choose."""

    def planned(run) -> str:
        return json.loads((run / "last" / "position.json").read_text())["plan"]["precision"]

    train_plain(tmp_path / "run", epochs=1, precision="bf16")
    train_plain(tmp_path / "run", epochs=2)
    assert planned(tmp_path / "run") == "bf16"
    train_plain(tmp_path / "run", epochs=3, precision="bf16")
    with pytest.raises(UserError, match="precision was bf16, is fp32"):
        train_plain(tmp_path / "run", epochs=3, precision="fp32")
    train_plain(tmp_path / "new", epochs=1)
    assert planned(tmp_path / "new") == "fp32"
    train_plain(tmp_path / "new", epochs=2)
    assert planned(tmp_path / "new") == "fp32"


@pytest.mark.parametrize(
    "device, capability, precision",
    [("cpu", None, "fp32"), ("cuda", (7, 5), "fp32"), ("cuda", (8, 0), "bf16"), ("cuda", (9, 0), "bf16")],
)
def test_precision_of_a_device(monkeypatch, device, capability, precision):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert precision_for(torch.device(device)) == precision

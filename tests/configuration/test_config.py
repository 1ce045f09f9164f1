"""Configs: read, checked, claimed, and opened again without running anybody's code."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml

from vision_attn.commands import main
from vision_attn.configuration.config import build, dump, read
from vision_attn.configuration.run_folder import open_run
from vision_attn.configuration.schedules import scheduled
from vision_attn.engine.fit import fit
from vision_attn.engine.run_folder.claim import claim, training
from vision_attn.engine.run_folder.folders import lock_folder
from vision_attn.system.errors import UserError
from vision_attn.system.files import find_best

TOY = """
task:
  class_path: toy.Plane
  init_args: {hidden: 8}
data:
  class_path: toy.Points
optimizer:
  class_path: torch.optim.AdamW
  init_args: {lr: 0.01}
schedule: torch.optim.lr_scheduler.CosineAnnealingLR
run: {epochs: 2, metric: error, mode: min, device: cpu}
"""


@pytest.fixture
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config of the toy, in a folder to work in."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "plane.yaml"
    path.write_text(TOY)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("finished"))
        Path("plane.yaml").write_text(TOY)
        config = read("plane.yaml", ["--run.folder=trained"])
        folder = claim(config)
        fit(**build(config))
        return folder.absolute()


@pytest.fixture
def trained(finished: Path, config_file: Path) -> Path:
    """A copy of the finished run, by the name that its config gives it."""
    return Path(shutil.copytree(finished, "trained"))


def test_keys_reach_constructors_and_overrides_win(config_file: Path) -> None:
    config = read(config_file, ["--task.hidden=12", "--run.epochs=5", "--run.clip=2.5"])
    parts = build(config)
    assert parts["run"].folder == str(Path("runs/plane"))
    assert (parts["run"].epochs, parts["run"].clip, parts["run"].metric) == (5, 2.5, "error")
    task = parts["task"](parts["data"])
    assert task.first.out_features == 12
    optimizer = parts["optimizer"](task.parameters())
    assert parts["schedule"](optimizer, 77).T_max == 77


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["--schedule.T_max=9", "--schedule.eta_min=0.1"], {"T_max": 9, "eta_min": 0.1}),
        (["--schedule=torch.optim.lr_scheduler.StepLR", "--schedule.step_size=5"], {"step_size": 5, "gamma": 0.1}),
        (["--schedule=torch.optim.lr_scheduler.OneCycleLR", "--schedule.max_lr=0.5"], {"total_steps": 77}),
        (["--schedule=torch.optim.lr_scheduler.LinearLR", "--schedule.end_factor=0.5"], {"total_iters": 77}),
    ],
)
def test_a_schedule_takes_its_arguments_and_the_number_of_steps(config_file: Path, overrides: list, expected: dict):
    with pytest.raises(UserError, match=r"schedule.step_size: missing but required"):
        read(config_file, ["--schedule=torch.optim.lr_scheduler.StepLR", "--schedule.gamma=0.5"])
    config = read(config_file, overrides)
    config_file.write_text(dump(config))
    assert dump(read(config_file)) == dump(config)
    parts = build(read(config_file))
    made = scheduled(parts["schedule"], parts["optimizer"](parts["task"](parts["data"]).parameters()), 77)
    assert vars(made).items() >= expected.items()


def test_a_folder_in_the_file_is_kept(config_file: Path) -> None:
    config_file.write_text(TOY.replace("run: {", "run: {folder: elsewhere, "))
    assert read(config_file).run.folder == "elsewhere"
    assert read(config_file, ["--run.folder=x"]).run.folder == "x"


def test_building_is_seeded(config_file: Path) -> None:
    def weight(seed: int) -> torch.Tensor:
        parts = build(read(config_file, [f"--run.seed={seed}"]))
        return parts["task"](parts["data"]).first.weight

    assert torch.equal(weight(3), weight(3))
    assert not torch.equal(weight(3), weight(4))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("--task.hiden=3", "task.hiden: there is no such key; did you mean hidden?"),
        ("--task.hidden=q", "task.hidden: expected an int, got 'q'"),
        ("--run.epoks=3", "run.epoks: there is no such key; did you mean epochs?"),
        ("--task.source=3", "task.source: there is no such key; choose from: dropout, hidden"),
        ("--run.epochs=many", "run.epochs: expected an int, got 'many'"),
        ("--run.precision=fp8", "run.precision: expected one of 'auto', 'fp32', 'bf16', 'fp16', got 'fp8'"),
        ("--run.compile=maybe", "run.compile: expected true or false or one of 'auto', got 'maybe'"),
        ("--run.clip=no", "run.clip: expected a float or null, got 'no'"),
        ("--runs.epochs=3", "runs.epochs: there is no such key"),
        ("--optimizer.rate=1", "optimizer.rate: there is no such key; choose from: amsgrad, betas, capturable"),
        ("--task=toy.Plain", "task: there is no Plain in toy; did you mean Plane?"),
        ("--task=toy.Points", "task: toy.Points is not a subclass of Task"),
        ("--optimizer.lr=null", "optimizer.lr: null is no value for it; leave it out for the default"),
        ("--task=nowhere.Plane", "task: No module named 'nowhere'; if it is your own, name its folder"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(config_file: Path, override: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        read(config_file, [override])
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("hidden: 8", "hiden: 8", "task.hiden: there is no such key; did you mean hidden?"),
        ("epochs: 2", "epochs: two", "run.epochs: expected an int, got 'two'"),
        ("optimizer:", "optimiser:", "optimiser: there is no such key; did you mean optimizer?"),
        ("lr: 0.01", "lr: fast", "optimizer.lr: expected a float"),
        ("torch.optim.AdamW", "torch.optim.AdamV", "optimizer: there is no AdamV in torch.optim; did you mean Adam"),
        ("data:\n  class_path: toy.Points\n", "", "data: missing but required"),
        (
            "class_path: toy.Points\n",
            "class_path: toy.Points\n  init_args: {items: null}\n",
            "data.items: null is no value",
        ),
        ("{hidden: 8}", "{hidden: [8}", "line 4 is not valid YAML"),
    ],
)
def test_a_mistake_in_the_file_names_file_and_key(config_file: Path, old: str, new: str, said: str) -> None:
    assert old in TOY
    config_file.write_text(TOY.replace(old, new))
    with pytest.raises(UserError) as caught:
        read(config_file)
    assert str(config_file) in str(caught.value) and said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_null_where_an_annotation_takes_it_or_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "postponed.py").write_text(
        "from toy import Points\n\n\nclass Mine(Points):\n"
        "    def __init__(self, *, items: 'int | None' = 4, other=3):\n        super().__init__(items=items or 48)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = tmp_path / "mine.yaml"
    written = TOY.replace("toy.Points\n", "postponed.Mine\n  init_args: {items: null, other: null}\n")
    config.write_text(written)
    assert read(config).data.arguments == {"items": None, "other": None}
    config.write_text(TOY.replace("toy.Points\n", "toy.Points\n  init_args: {bad: null}\n"))
    assert read(config).data.arguments["bad"] is None


def test_an_error_in_the_users_own_class_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its key may be null: what the import raised, not that null was expected."""
    (tmp_path / "half_written.py").write_text("class Mine(torch.nn.Module:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    config, ours = tmp_path / "mine.yaml", "vision_attn.criteria.likelihood.Likelihood"
    config.write_text(Path("configs/sat_soft_scenes.yaml").read_text().replace(ours, "half_written.Mine"))
    with pytest.raises(UserError, match=r"half_written.py, line 1: invalid syntax"):
        read(config)


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing.yaml does not exist"):
        read(tmp_path / "nothing.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    with pytest.raises(UserError, match="is no config: it must hold keys such as task"):
        read(tmp_path / "list.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read as a config"):
        read(tmp_path / "bytes.yaml")


def test_the_resolved_config_builds_the_same(config_file: Path) -> None:
    config = read(config_file, ["--task.hidden=12", "--run.folder=here"])
    folder = claim(config)
    content = yaml.safe_load((folder / "config.yaml").read_text())
    assert content["task"]["init_args"] == {"dropout": 0.3, "hidden": 12}
    assert content["run"]["clip"] is None
    assert dump(read(folder / "config.yaml")) == dump(config)


def test_a_started_run_keeps_its_settings(config_file: Path, trained: Path) -> None:
    claim(read(config_file, [f"--run.folder={trained}"]))
    claim(read(config_file, [f"--run.folder={trained}", "--run.log_every=1", "--run.save_every=9", "--run.wandb=true"]))
    with pytest.raises(
        UserError, match=r"task.hidden was 8, is 9.*--run.start_from=trained begins with its weights\), or delete"
    ) as caught:
        claim(read(config_file, [f"--run.folder={trained}", "--task.hidden=9", "--optimizer.lr=0.5"]))
    assert "optimizer.lr was 0.01, is 0.5" in str(caught.value)
    assert yaml.safe_load((trained / "config.yaml").read_text())["task"]["init_args"]["hidden"] == 8


def test_a_run_that_is_older_than_a_key_goes_on_with_its_default(config_file: Path, trained: Path) -> None:
    written = yaml.safe_load((trained / "config.yaml").read_text())
    assert written["data"]["init_args"].pop("batch") == 8 and written["run"].pop("accumulate") == 1
    (trained / "config.yaml").write_text(yaml.safe_dump(written))
    with pytest.raises(UserError, match="data.batch was 8, is 4"):
        claim(read(config_file, [f"--run.folder={trained}", "--data.batch=4"]))
    claim(read(config_file, [f"--run.folder={trained}"]))


def test_a_run_keeps_the_precision_that_auto_stands_for(config_file: Path) -> None:
    old = read(config_file, ["--run.folder=old", "--run.precision=fp32", "--run.compile=false", "--schedule=null"])
    claim(old)
    fit(**build(old))
    more = ["--run.folder=old", "--schedule=null", "--run.epochs=3"]
    new = read(config_file, more)
    assert (new.run.precision, new.run.capture) == ("auto", "auto")
    claim(new)
    fit(**build(new))
    assert json.loads(Path("old/last/position.json").read_text())["epoch"] == 3
    claim(read(config_file, [*more, "--run.precision=fp32", "--run.capture=true"]))
    with pytest.raises(UserError, match="run.precision was fp32, is bf16"):
        claim(read(config_file, [*more, "--run.precision=bf16"]))


@pytest.mark.parametrize("schedule", [[], ["--schedule=null"]])
def test_epochs_may_grow(config_file: Path, schedule: list[str]) -> None:
    config = read(config_file, ["--run.folder=free", *schedule])
    claim(config)
    fit(**build(config))
    more = read(config_file, ["--run.folder=free", *schedule, "--run.epochs=3"])
    claim(more)
    fit(**build(more))
    assert json.loads(Path("free/last/position.json").read_text())["epoch"] == 3


def test_a_run_that_never_started_takes_any_config(config_file: Path) -> None:
    claim(read(config_file, ["--run.folder=new"]))
    claim(read(config_file, ["--run.folder=new", "--task.hidden=9"]))
    assert yaml.safe_load(Path("new/config.yaml").read_text())["task"]["init_args"]["hidden"] == 9


def test_a_run_under_way_is_left_alone(config_file: Path) -> None:
    claim(read(config_file, ["--run.folder=busy"]))
    with lock_folder(Path("busy")), pytest.raises(UserError, match="busy is being trained by process"):
        claim(read(config_file, ["--run.folder=busy", "--task.hidden=9"]))
    assert yaml.safe_load(Path("busy/config.yaml").read_text())["task"]["init_args"]["hidden"] == 8


def test_a_command_keeps_others_out_before_training_begins(config_file: Path) -> None:
    """Otherwise the folder could hold the weights of one and the config of the other."""
    one, other = (read(config_file, ["--run.folder=new", f"--task.hidden={size}"]) for size in (8, 9))
    with training(one) as folder:
        with pytest.raises(UserError, match="new is being trained by process"), training(other):
            pass
        fit(**build(one))
    assert yaml.safe_load((folder / "best/config.yaml").read_text())["task"]["init_args"]["hidden"] == 8
    assert not [path for path in folder.iterdir() if path.name in (".lock", ".command")]


@pytest.mark.parametrize("keys", [["--run.warmup=1000"], ["--data.batch=100"], ["--run.start_from=none"]])
def test_a_start_that_fails_leaves_nothing_that_it_made(
    config_file: Path, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the folder, nor those above it; a folder of the user keeps what was in it."""
    monkeypatch.setattr("toy.Points.export", lambda self, folder: (folder / "words.txt").touch())
    notes = Path("mine/notes.txt")
    notes.parent.mkdir()
    notes.write_text("mine")
    for folder in ("runs/deep/new", "mine"):
        assert main(["train", str(config_file), f"--run.folder={folder}", *keys]) == 1
    assert not Path("runs").exists() and list(notes.parent.iterdir()) == [notes]


def test_a_run_that_fails_later_keeps_its_folder(config_file: Path) -> None:
    config = read(config_file, ["--run.folder=new"])
    with pytest.raises(KeyError), training(config) as folder:
        (folder / "metrics.jsonl").write_text('{"step": 1}\n')
        raise KeyError
    with pytest.raises(KeyError), training(config):
        raise KeyError
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "metrics.jsonl"]


def test_a_run_is_opened_from_best_alone(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "best", tmp_path / "copy")
    for folder in (trained, tmp_path / "copy"):
        task, source, config = open_run(folder, trust=["toy"], overrides=["--data.items=24"])
        assert source.items == 24 and config["data"]["init_args"]["items"] == 24
        assert config["run"]["epochs"] == 2
        assert not task.training
        stored = json.loads((trained / "best" / "metrics_val.json").read_text())["error"]
        source.items = 48
        assert task.evaluate(source.split("val"))["error"] == pytest.approx(stored)


def test_a_run_folder_names_no_code_from_elsewhere(trained: Path) -> None:
    with pytest.raises(UserError, match=r"config.yaml names toy.Plane, which is third-party code.*--trust toy"):
        open_run(trained)


@pytest.mark.parametrize(
    "path",
    [
        "evil.Plane",
        "os.system",
        "vision_attn.system.files.os.system",
        "vision_attn.system.files.shutil.rmtree",
        "torch.hub.load",
        "torch.nn.functional.importlib.import_module",
        "torch.utils.cpp_extension.load",
        "yaml.unsafe_load",
    ],
)
@pytest.mark.parametrize("key", ["task", "data"])
def test_code_is_never_imported_nor_called(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, key: str
) -> None:
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    monkeypatch.chdir(tmp_path)
    written = trained / "best" / "config.yaml"
    content = yaml.safe_load(written.read_text())
    for value in (path, {"class_path": path, "init_args": {"command": "touch ran", "path": "trained"}}):
        written.write_text(yaml.safe_dump(content | {key: value}))
        with pytest.raises(UserError) as caught:
            open_run(trained, trust=["toy"])
        assert "\n" not in str(caught.value)
        assert not Path("ran").exists() and trained.exists()


def test_trust_ends_with_the_run_it_was_given_for(trained: Path) -> None:
    open_run(trained, trust=["toy"])
    with pytest.raises(UserError, match="--trust toy"):
        open_run(trained)


def test_what_is_wrong_with_a_run_folder_is_said(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing does not exist"):
        find_best(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty is no run"):
        find_best(tmp_path / "empty")
    (tmp_path / "young" / "last").mkdir(parents=True)
    with pytest.raises(UserError, match="has no best/ yet"):
        find_best(tmp_path / "young")
    written = trained / "best" / "config.yaml"
    text = written.read_text()
    written.write_text(text.replace("hidden: 8", "hidden: 9"))
    with pytest.raises(UserError, match="does not fit the model"):
        open_run(trained, trust=["toy"])
    written.write_text(text)
    (trained / "best" / "model.safetensors").write_bytes(b"cut off")
    with pytest.raises(UserError, match="not a complete safetensors file"):
        open_run(trained, trust=["toy"])


def test_an_opened_run_takes_overrides_of_task_and_data_alone(trained: Path) -> None:
    with pytest.raises(UserError, match="^run.epochs: only keys of task and data can be overridden"):
        open_run(trained, trust=["toy"], overrides=["--run.epochs=3"])

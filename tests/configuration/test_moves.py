"""Configs, run folders and command lines of before: what moved is found under today's names."""

from importlib import import_module
from pathlib import Path

import pytest
import torch
import yaml

from vision_attn.commands import main
from vision_attn.configuration import moves
from vision_attn.configuration.config import read
from vision_attn.configuration.moves import ARGUMENTS, CLASSES, MODULES, PATHS, moved, moved_option
from vision_attn.configuration.run_folder import open_run

TINY = {
    "task.model.hidden_size": 8, "task.model.word_size": 8, "data.batch_size": 4, "data.epoch_images": 8,
    "data.val_images": 4, "run.epochs": 1, "run.warmup": 0, "run.sanity_check": "false", "run.validate_every": 0,
    "run.device": "cpu",
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch) -> None:
    """Each move is told once in a process; every test is the first that meets it."""
    monkeypatch.setattr(moves, "_told", set())


@pytest.mark.parametrize("old", MODULES)
def test_every_module_of_the_table_has_moved(old: str) -> None:
    new = import_module(MODULES[old])
    classes = {
        name for name, value in vars(new).items() if isinstance(value, type) and value.__module__ == new.__name__
    }
    for name in classes:
        before = next((old for old, renamed in CLASSES.items() if renamed == name), name)
        assert moved(f"{old}.{before}") == f"{new.__name__}.{name}"
        assert moved(f"{new.__name__}.{name}") == f"{new.__name__}.{name}"


@pytest.mark.parametrize("old", PATHS)
def test_a_class_that_moved_by_itself_is_found(old: str) -> None:
    module, _, name = moved({"class_path": old})["class_path"].rpartition(".")
    assert getattr(import_module(module), name).__module__ == module
    assert old.rpartition(".") != (module, ".", moved(old).rpartition(".")[2])


def test_a_line_names_the_new_path_once(capsys) -> None:
    config = {"a": "vision_attn.encoders.given.Given", "b": {"class_path": "vision_attn.encoders.given.Given"}}
    assert moved(config, where="mine.yaml")["b"]["class_path"] == "vision_attn.encoders.precomputed.Precomputed"
    told = capsys.readouterr()
    line = "mine.yaml: vision_attn.encoders.given.Given is now vision_attn.encoders.precomputed.Precomputed"
    assert (told.out + told.err).count(line) == 1


def test_arguments_are_renamed_in_classes_of_this_package_alone() -> None:
    ours = {"class_path": "vision_attn.models.show_attend_tell.ShowAttendTell", "init_args": {"forget_looks": 0.5}}
    theirs = {"class_path": "mine.Model", "init_args": {"forget_looks": 0.5}}
    assert moved(ours)["init_args"] == {"context_dropout": 0.5} and moved(theirs) == theirs
    key = ("task", "model", "forget_looks")
    assert moved_option(key, "0.5") == (("task", "model", "context_dropout"), "0.5")
    assert moved({"run": {"rehearse": False, "seed": 1}}) == {"run": {"sanity_check": False, "seed": 1}}
    assert moved_option(("run", "rehearse"), "false") == (("run", "sanity_check"), "false")
    assert set(ARGUMENTS.values()) == {"context_dropout", "context_dropout_after", "split_files"}
    assert moved_option(("data", "splits"), "a.json") == (("data", "split_files"), "a.json")
    assert moved_option(("data",), "vision_attn.data.mnist.MNIST") == (("data",), "vision_attn.data.digits.mnist.MNIST")


def test_values_are_renamed_in_classes_of_this_package_alone() -> None:
    ours = {"class_path": "vision_attn.attention.hard.Hard", "init_args": {"at_test": "mode"}}
    theirs = {"class_path": "mine.Hard", "init_args": {"at_test": "mode"}}
    assert moved(ours)["init_args"] == {"at_test": "argmax"} and moved(theirs) == theirs
    key = ("task", "model", "attention", "at_test")
    assert moved_option(key, "mode") == (key, "argmax") and moved_option(key, "sample") == (key, "sample")
    assert moved_option(("run", "mode"), "mode") == (("run", "mode"), "mode")


def test_a_config_and_a_command_line_of_before_build_what_they_did(tmp_path: Path) -> None:
    content = Path("configs/sat_hard_scenes.yaml").read_text()
    before = content.replace("criteria.reinforce_attention.ReinforceAttention", "criteria.looks.ReinforceLooks")
    before = before.replace("data.scenes.scenes.Scenes", "data.scenes.Scenes")
    assert before.count("looks.ReinforceLooks") and before.count("data.scenes.Scenes")
    (tmp_path / "sat_hard_scenes.yaml").write_text(before)
    assert read(tmp_path / "sat_hard_scenes.yaml") == read("configs/sat_hard_scenes.yaml")
    old = ["--data=vision_attn.data.scenes.Scenes", "--task.model.forget_looks=0.25"]
    config = read("configs/sat_hard_scenes.yaml", old)
    assert config.task.arguments["model"].arguments["context_dropout"] == 0.25


def test_a_run_folder_of_before_opens_with_the_same_weights(tmp_path: Path, capsys) -> None:
    settings = [f"--{key}={value}" for key, value in TINY.items()]
    assert main(["train", "configs/sat_hard_scenes.yaml", *settings, f"--run.folder={tmp_path / 'run'}"]) == 0
    task, _, _ = open_run(tmp_path / "run")
    written = tmp_path / "run" / "best" / "config.yaml"
    text = written.read_text()
    for new, old in (
        ("vision_attn.data.scenes.scenes.", "vision_attn.data.scenes."),
        ("reinforce_attention.ReinforceAttention", "looks.ReinforceLooks"),
        ("context_dropout_after:", "forget_after:"),
        ("context_dropout:", "forget_looks:"),
    ):
        assert new in text
        text = text.replace(new, old)
    written.write_text("format: 3\n" + text)
    capsys.readouterr()
    old, _, config = open_run(tmp_path / "run")
    assert "is now vision_attn.data.scenes.scenes.Scenes" in "".join(capsys.readouterr())
    assert "forget_looks" not in yaml.safe_dump(config) and "format" not in config
    for name, weight in task.state_dict().items():
        assert torch.equal(weight, old.state_dict()[name]), name

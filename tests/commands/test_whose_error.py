"""Which errors are the user's, and get one line; and which are bugs of ours, or fail in the user's own code."""

from pathlib import Path

import pytest

from vision_attn.commands import main, serve

CONFIG = """
task: {class_path: tests.toy.Plane, init_args: {hidden: 8}}
data: mine.Mine
optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 0.01}}
run: {epochs: 1, metric: error, mode: min, device: cpu, sanity_check: false}
"""
MINE = """
from tests.toy import Points


class Mine(Points):
    def __init__(self, *, colours: int = 3, broken: bool = False) -> None:
        super().__init__()
        if colours > 3:
            raise ValueError(f"there are 3 colours, not {colours}")
        self.broken = broken

    def train(self, epoch, **others):
        if self.broken:
            int("three")
        return super().train(epoch, **others)
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A config of the toy, with a data set in a module of the user's own."""
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "mine.yaml").write_text(CONFIG)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)
    return "mine.yaml"


def test_a_bug_of_ours_is_no_mistake_of_the_user(monkeypatch, capsys) -> None:
    """Python's own ValueError, of a zip in the verb, has the class of a mistake in an argument, but is none."""
    # no arguments are known that would make the verb fail so
    monkeypatch.setattr(serve, "short_names", lambda names: [])
    assert main(["serve", "weights/photographs", "--port", "0"]) == 70
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("vision-attn: error: this is a bug in vision-attn: ValueError at serve.py:"), said
    assert "zip() argument 2 is shorter than argument 1; --debug shows where it came from" in said
    with pytest.raises(ValueError, match="zip"):
        main(["serve", "weights/photographs", "--port", "0", "--debug"])


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--data.colours=4", "data: there are 3 colours, not 4"),
        ("--task.dropout=2", "task: dropout probability has to be between 0 and 1, but got 2"),
        ("--optimizer.lr=-1", "optimizer: Invalid learning rate: -1.0"),
    ],
)
def test_a_class_that_refuses_its_arguments_names_the_key(config, option: str, said: str, capsys) -> None:
    assert main(["train", config, option]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"vision-attn: error: {said}") and "a bug" not in line


def test_a_failure_in_code_of_the_user_says_where(config, capsys) -> None:
    assert main(["train", config, "--data.broken=true"]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("vision-attn: error: your own code failed: ValueError at mine.py:14: invalid literal"), line

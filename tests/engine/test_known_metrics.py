"""A run that starts from weights whose metrics are stored does not validate them again."""

import json
from pathlib import Path

import pytest
from toy import Plane, Points, adam, toy_run

from vision_attn.engine.fit import fit
from vision_attn.engine.run_folder.best import KEY


class Known(Points):
    """A source that says what its splits are."""

    def identity(self, split: str) -> str:
        return f"{split} {self.named}"

    named = "points"


@pytest.fixture
def first(tmp_path: Path) -> Path:
    train(tmp_path / "first", epochs=2)
    return tmp_path / "first"


def train(folder: Path, *, named: str = "points", hidden: int = 1, **settings: object) -> list[int]:
    """Train, and return how many items each validation predicted."""
    data, predicted = Known(), []
    data.named = named

    class Counted(Plane):
        def judge(self, predictions, folder=None):
            found = [*predictions]
            predicted.append(len(found))
            return super().judge(iter(found), folder)

    folder.mkdir()
    criteria = {"a": 1} if "start_from" in settings else {"b": 2}
    task = {"class_path": "Plane", "init_args": {"hidden": hidden, "criteria": criteria}}
    (folder / "config.yaml").write_text(json.dumps({"task": task}))
    fit(task=Counted, data=data, optimizer=adam, run=toy_run(folder, threads=1, **settings))
    return predicted


@pytest.mark.parametrize("part", ["", "best"])
def test_metrics_that_are_stored_with_the_weights_are_used(first, tmp_path, part, capfd):
    whole = train(tmp_path / "plain", epochs=1)[-1]
    told = capfd.readouterr().out
    assert "first step after" in told and "sanity check" in told
    counts = train(tmp_path / "second", epochs=1, start_from=str(first / part))
    assert counts == [1, whole] and whole > 1  # one batch, so that an error in validation shows, and after the epoch
    stored, again = (
        json.loads((tmp_path / name / "best/metrics_val.json").read_text()) for name in ("first", "second")
    )
    begun = json.loads((tmp_path / "second" / "metrics.jsonl").read_text().splitlines()[0])
    assert begun["val/error"] == stored["error"] and begun["step"] == 0 and again["error"] <= stored["error"]
    assert "which is stored there" in capfd.readouterr().out


@pytest.mark.parametrize("change", ["data", "settings", "weights", "damage"])
def test_other_weights_data_or_settings_are_validated(first, tmp_path, change):
    if change == "weights":
        train(tmp_path / "other", epochs=1, seed=1)
        (tmp_path / "other" / "best" / "model.safetensors").replace(first / "best" / "model.safetensors")
    if change == "damage":
        (first / "best" / KEY).write_text("[")
    other = {"data": {"named": "others"}, "settings": {"hidden": 2}}.get(change, {})
    counts = train(tmp_path / "second", epochs=1, start_from=str(first), **other)
    assert counts[0] == counts[1] > 1


def test_a_source_that_does_not_say_what_its_splits_are_is_validated(tmp_path):
    (tmp_path / "config.yaml").write_text("{}")
    fit(task=Plane, data=Points(), optimizer=adam, run=toy_run(tmp_path, epochs=1, threads=1))
    assert not (tmp_path / "best" / KEY).exists()

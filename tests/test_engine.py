"""The training loop: what a run folder holds, which weights are best, and what a mistake says."""

import json

import pytest
from safetensors.torch import load_file
from toy import train_toy


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_run_folder_holds_all_that_is_promised(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    best = train_toy(tmp_path, show=3)
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")} == {
        "config.yaml", "metrics.jsonl", "last", "best", "pictures",
    }  # fmt: skip
    assert {path.name for path in (tmp_path / "best").iterdir()} == {
        "model.safetensors", "config.yaml", "points.json", "metrics_val.json",
    }  # fmt: skip
    written = json.loads((tmp_path / "best" / "metrics_val.json").read_text())
    errors = {line["val/error"]: line for line in lines(tmp_path) if "val/error" in line}
    assert best["error"] == min(errors) and len(errors) == 3
    assert written == {"step": errors[min(errors)]["step"], "epoch": errors[min(errors)]["epoch"], **best}
    assert len(list((tmp_path / "pictures").iterdir())) == 3
    assert "mean" in load_file(tmp_path / "best" / "model.safetensors")


def test_unknown_metric_is_named_before_training(tmp_path):
    with pytest.raises(ValueError, match=r"run.metric is 'BLEU-4', but validation gives: error, images"):
        train_toy(tmp_path, metric="BLEU-4")
    assert not (tmp_path / "last").exists()

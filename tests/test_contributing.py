"""The examples of CONTRIBUTING.md are complete, and they are what the tests of the contracts run."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from tests import pretend, test_contracts
from vision_attn import commands
from vision_attn.commands import main

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
*PARTS, VERB = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
EXAMPLES = {
    example.group(1): example.group(0)
    for block in PARTS
    for example in [re.search(r"^class (\w+)\((?!NamedTuple).*", block, re.MULTILINE | re.DOTALL)]
}
BLOCKS = dict(zip(EXAMPLES, PARTS, strict=True))
CONTRACTS = ("Captioner", "Steerable", "Encoder", "Classifier", "Evaluator", "Criterion")


@pytest.fixture
def package(tmp_path: Path, monkeypatch) -> str:
    """A module of somebody's own with all examples, importable; returns its name."""
    (tmp_path / "contributed.py").write_text("\n\n".join(BLOCKS.values()))
    monkeypatch.syspath_prepend(tmp_path)
    return "contributed"


def test_there_is_an_example_of_every_part() -> None:
    assert set(EXAMPLES) == {"Distance", "Bars", *(f"Smallest{name}" for name in CONTRACTS)}


@pytest.mark.parametrize("name", [f"Smallest{name}" for name in CONTRACTS])
def test_the_example_is_the_class_that_fulfils_the_contract(name: str) -> None:
    text = Path(test_contracts.__file__).read_text()
    parts = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    assert EXAMPLES[name].strip() == ast.get_source_segment(text, parts[name])


@pytest.mark.parametrize("name", BLOCKS)
def test_the_imports_of_an_example_suffice(name: str) -> None:
    names: dict = {}
    exec(BLOCKS[name], names)
    assert isinstance(names[name], type)


def test_the_score_trains_a_captioner(tmp_path: Path, package: str) -> None:
    model = {
        "class_path": "vision_attn.models.show_attend_tell.ShowAttendTell",
        "init_args": {"hidden_size": 8, "word_size": 8, "score": f"{package}.Distance"},
    }
    run = test_contracts.trained(tmp_path, "scenes.Scenes", encoder=test_contracts.CONVNET, model=model)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]


def test_the_subcommand_runs(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "words.py").write_text(VERB)
    pretend.verbs_of(monkeypatch, *commands.__path__, tmp_path)
    monkeypatch.setitem(sys.modules, "vision_attn.commands.words", None)  # is taken away afterwards
    del sys.modules["vision_attn.commands.words"]
    assert main(["words", "weights/drawn_scenes", "--number=3"]) == 0
    assert len(capsys.readouterr().out.split()) == 3
    assert main(["words", str(tmp_path)]) == 1


def test_the_data_set_trains_a_classifier(tmp_path: Path, package: str) -> None:
    config = {
        "task": {
            "class_path": "vision_attn.tasks.classify.Classification",
            "init_args": {"model": "vision_attn.models.whole_image.FullyConnected"},
        },
        "data": f"{package}.Bars",
        "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.01}},
        "run": {"epochs": 4, "metric": "error", "mode": "min", "device": "cpu"},
    }
    path, out = tmp_path / "bars.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(config))
    assert main(["train", str(path), f"--run.folder={tmp_path / 'run'}"]) == 0
    assert main(["eval", str(tmp_path / "run"), f"--out={out}", f"--trust={package}", "--device=cpu"]) == 0
    assert json.loads((out / "metrics_test.json").read_text())["error"] < 20

"""Run folders of earlier versions: their configs in today's words, their weights under today's names."""

import json
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file, save_file

from vision_attn.commands import main
from vision_attn.config import open_run, read
from vision_attn.migrate import migrated

OLD = {
    "class_path": "vision_attn.tasks.caption.Captioning",
    "init_args": {
        "encoder": {"class_path": "vision_attn.models.convnet.ConvNet", "init_args": {"region_size": 8, "width": 16}},
        "model": {
            "class_path": "vision_attn.models.show_attend_tell.ShowAttendTell",
            "init_args": {"attention": {"class_path": "vision_attn.attention.hard.Hard"}},
        },
        "reinforce": {
            "class_path": "vision_attn.attention.reinforce.Reinforce",
            "init_args": {"baseline": {"class_path": "vision_attn.attention.reinforce.MovingAverage"}, "credit": "all"},
        },
        "penalty": 0.5,
        "beams": 3,
    },
}


def test_a_captioner_of_the_first_format_gets_criteria_and_new_paths() -> None:
    new = migrated({"format": 1, "task": OLD})["task"]["init_args"]
    assert new["encoder"]["class_path"] == "vision_attn.encoders.convnet.ConvNet"
    assert "penalty" not in new and "reinforce" not in new and new["beams"] == 3
    assert new["criteria"]["penalty"]["init_args"] == {"weight": 0.5}
    assert new["criteria"]["looks"]["init_args"]["credit"] == "all"
    assert set(new["criteria"]) == {"likelihood", "penalty", "looks"}


def test_what_is_new_stays_as_it_is() -> None:
    new = migrated({"task": OLD})
    assert migrated(new) == new
    other = {"task": {"class_path": "vision_attn.tasks.classify.Classification", "init_args": {"reinforce": {}}}}
    assert migrated(other) == other


def test_arguments_of_the_second_format_get_their_new_names() -> None:
    hard = {"class_path": "vision_attn.attention.hard.Hard", "init_args": {"expected": 0.3, "at_test": "draw"}}
    assert migrated({"attention": hard})["attention"]["init_args"] == {
        "expectation_probability": 0.3,
        "at_test": "sample",
    }
    config = yaml.safe_load(Path("weights/draw_mnist/config.yaml").read_text())
    assert config["format"] < 3 and "num_turns" in str(config)
    task, _, opened = open_run("weights/draw_mnist")
    assert task.model.num_steps == 10 and "num_turns" not in str(opened)


def test_a_run_of_the_first_format_opens_with_its_weights(tmp_path: Path) -> None:
    """A run of hard attention with a baseline in its weights, rewritten as version 1 wrote it."""
    sizes = {"region_size": 8, "width": 16}, {"hidden_size": 8, "word_size": 8}
    settings = {
        **{f"task.encoder.{name}": value for name, value in sizes[0].items()},
        **{f"task.model.{name}": value for name, value in sizes[1].items()},
        "task.criteria.looks.baseline": "vision_attn.attention.reinforce.MovingAverage",
        "task.model.attention.soft_start": 0, "data.batch_size": 4, "data.epoch_images": 8, "data.val_images": 4,
        "run.epochs": 1, "run.warmup": 0, "run.rehearse": "false", "run.validate_every": 0, "run.device": "cpu",
        "run.folder": tmp_path / "run",
    }  # fmt: skip
    assert (
        main(["train", "configs/sat_hard_scenes.yaml", *(f"--{key}={value}" for key, value in settings.items())]) == 0
    )
    task, _, _ = open_run(tmp_path / "run")
    best = tmp_path / "run/best"
    weights = load_file(best / "model.safetensors")
    old = {name.replace("criteria.looks.reinforce.", "reinforce."): weight for name, weight in weights.items()}
    assert "reinforce.baseline.total" in old
    save_file(old, best / "model.safetensors")
    config = yaml.safe_load((best / "config.yaml").read_text())
    options = config["task"]["init_args"]
    looks = options.pop("criteria")["looks"]["init_args"]
    options["encoder"]["class_path"] = "vision_attn.models.convnet.ConvNet"
    options |= {"penalty": 0.0, "reinforce": {"class_path": "vision_attn.attention.reinforce.Reinforce"}}
    options["reinforce"]["init_args"] = looks
    (best / "config.yaml").write_text(yaml.safe_dump(config | {"format": 1}))
    again, _, opened = open_run(tmp_path / "run")
    assert json.dumps(opened["task"]["init_args"]["criteria"]["penalty"]["init_args"]) == '{"weight": 0.0}'
    for (name, one), (other, two) in zip(task.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other and torch.equal(one, two)


def test_a_config_of_an_earlier_version_trains(tmp_path: Path) -> None:
    new = Path("configs/sat_hard_scenes.yaml").read_text()
    content = yaml.safe_load(new)
    options = content["task"]["init_args"]
    options |= {"penalty": 0.0, "reinforce": options.pop("criteria")["looks"]}
    options["encoder"] = "vision_attn.models.convnet.ConvNet"
    (tmp_path / "sat_hard_scenes.yaml").write_text(yaml.safe_dump(content))
    old = read(tmp_path / "sat_hard_scenes.yaml", ["--task.criteria.looks.credit=all"])
    assert old.task.init_args.encoder.class_path == "vision_attn.encoders.convnet.ConvNet"
    assert old.task.init_args.criteria["looks"].init_args.credit == "all"
    assert old.run.folder == "runs/sat_hard_scenes"


def test_a_run_from_before_a_setting_goes_on_with_its_default(tmp_path: Path, monkeypatch, capsys) -> None:
    argv = ["train", str(Path("configs/sat_soft_scenes.yaml").absolute()), "--run.folder=run", "--run.device=cpu",
            "--data.batch_size=2", "--data.epoch_images=2", "--data.val_images=2", "--run.epochs=1", "--run.warmup=0",
            "--task.encoder.width=16", "--task.encoder.region_size=8", "--task.model.hidden_size=8",
            "--task.model.word_size=8", "--run.validate_every=0", "--run.rehearse=false"]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 0
    written = tmp_path / "run" / "config.yaml"
    config = yaml.safe_load(written.read_text())
    for node, key in ((config["task"], "no_repeat"), (config["task"], "diversity"), (config["data"], "mixture")):
        del node["init_args"][key]
    text = yaml.safe_dump(config)
    written.write_text(text)
    assert main([*argv, "--task.no_repeat=3"]) == 1
    assert "other settings (task.no_repeat was None, is 3)" in capsys.readouterr().err
    assert main(argv) == 0
    assert "finished" in capsys.readouterr().out

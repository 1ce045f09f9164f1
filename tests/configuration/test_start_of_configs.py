"""A config that takes its task from the run that it starts from: what it may not change."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.toy import Plane, Points
from vision_attn.configuration.config import read
from vision_attn.configuration.weights import check_weights
from vision_attn.system.errors import UserError

FINETUNE = Path(__file__).parents[2] / "configs/finetune_photographs.yaml"


def test_another_network_is_refused_and_its_own_is_not() -> None:
    for name in ("squeezenet1_0", "efficientnet_lite0"):
        with pytest.raises(
            UserError, match="keeps its encoder: leave out .*name, or train a config from scratch, such as "
        ):
            read(FINETUNE, [f"--task.encoder.name={name}", "--task.encoder.weights=mine.safetensors"])
    own = read(FINETUNE).task.arguments["encoder"].arguments
    assert read(FINETUNE, [f"--task.encoder.name={own['name']}"]).task.arguments["encoder"].arguments == own


def test_weights_of_an_encoder_that_the_start_replaces_are_told(capsys) -> None:
    weights = "--task.encoder.weights=mine.safetensors"
    for config in (FINETUNE, FINETUNE.with_name("sat_photographs_cider.yaml")):
        read(config, ["--run.start_from=weights/photographs", weights])
        told = "here weights/photographs, keeps its encoder: --task.encoder.weights has no effect"
        assert told in capsys.readouterr().out
    for start in ("null", "runs/later"):
        read(config, [f"--run.start_from={start}", weights])
    assert not capsys.readouterr().out


@pytest.mark.parametrize("null", ["null", "~"])
def test_no_start_is_an_error_where_the_task_is_that_of_the_start(null: str) -> None:
    with pytest.raises(UserError, match="can therefore not be null: give a run, or train .*sat_soft_small.yaml"):
        read(FINETUNE, [f"--run.start_from={null}"])
    config = read(FINETUNE.with_name("sat_soft_small.yaml"), [f"--run.start_from={null}"])
    assert config.run.start_from is None


def test_a_wrong_size_of_batches_names_the_automatic_one() -> None:
    with pytest.raises(
        UserError, match="data.batch_size: expected an int, got 'automatic'; auto finds a size that fits"
    ):
        read(FINETUNE, ["--data.batch_size=automatic"])


def test_weights_of_another_encoder_are_told_in_one_sentence(tmp_path: Path) -> None:
    save_file({"encoder.body.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    task = Plane(Points())
    with pytest.raises(UserError, match="model.safetensors holds the weights of another encoder, and a run that"):
        check_weights(task, tmp_path, another=True)
    with pytest.raises(UserError, match="does not fit the model .* unexpected: encoder.body.weight"):
        check_weights(task, tmp_path)

"""Answering by the command: training, evaluation, pictures, and runs that are resumed during the linear start."""

import json
import re
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import pad

from tests.engine.test_resume import lines
from tests.whole_runs import train
from vision_attn.commands import main
from vision_attn.data.stories.stories import Stories
from vision_attn.engine.batches import examples
from vision_attn.layers.padding import real_regions
from vision_attn.models.memory_network import MemoryNetwork
from vision_attn.task import Task
from vision_attn.tasks.answer import Answering, on_largest

STORIES = {
    "data.stories": 10, "data.questions": 4, "data.test_stories": 3, "data.batch_size": 12, "data.tasks": "[1,17]",
    "task.model.num_hops": 2, "optimizer.lr": 2.0, "run.epochs": 5, "run.device": "cpu", "run.log_every": 1,
    "run.show": 2,
}  # fmt: skip
SCENES = {
    "data.batch_size": 4, "data.epoch_images": 8, "data.val_images": 4, "data.test_images": 4, "run.epochs": 1,
    "run.warmup": 0, "run.device": "cpu", "run.show": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def stories(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("stories")
    assert main(train("memory_stories", **STORIES, **{"task.model.linear_start": 1, "run.folder": folder / "run"})) == 0
    with open(folder / "printed.txt", "w") as file, redirect_stdout(file):
        assert main(["eval", str(folder / "run"), "--device=cpu", f"--out={folder}", "--show=6"]) == 0
    return folder


def test_answers_are_judged_by_kind_and_by_what_hops_read(stories: Path) -> None:
    metrics = json.loads((stories / "metrics_test.json").read_text())
    assert metrics["images"] == 24 and metrics["error"] == pytest.approx((metrics["error_1"] + metrics["error_17"]) / 2)
    assert metrics["step"] == json.loads((stories / "run" / "best" / "metrics_val.json").read_text())["step"] > 0
    printed = (stories / "printed.txt").read_text()
    assert printed.startswith("test: 24 questions\n") and f"{metrics['error_17']:8.4f}%\n" in printed
    hops = [metrics[f"hop_{number}_on_support"] for number in (1, 2)]
    assert metrics["hops_on_support"] == pytest.approx(sum(hops) / 2)
    share = torch.tensor(json.loads((stories / "hops_test.json").read_text())["share"])
    assert share.shape == (2, 2) and share.amax(dim=1).le(torch.tensor(hops) + 1e-6).all()


def test_what_hops_read_does_not_depend_on_the_padding_of_the_batch() -> None:
    """In the linear start all scores may be negative, and that of padding is 0."""
    torch.manual_seed(0)
    source = Stories(tasks=(1, 2, 17), stories=10, test_stories=4, batch_size=100)
    task = Answering(source, model=lambda words, size: MemoryNetwork(words, size, linear_start=1)).eval()
    (together,) = source.split("test")
    longer = together._replace(facts=pad(together.facts, (0, 0, 0, 9)), support=pad(together.support, (0, 9)))
    judged = task.predict(together)
    with torch.no_grad():
        scores = task.answered(together.facts, together.words).alpha
    padding = ~real_regions(together.facts)
    assert ((scores == scores.amax(dim=-1, keepdim=True)) & padding[:, None]).any()
    for name in ("hits", "on_support"):
        assert getattr(task.predict(longer), name).equal(getattr(judged, name))
    for row, (facts, support) in enumerate(zip(together.facts, together.support, strict=True)):
        number = int(real_regions(facts[None]).sum())
        alone = together._replace(
            facts=facts[None, :number], words=together.words[row, None], answers=together.answers[row, None],
            support=support[None, :, :number], questions=together.questions[row : row + 1], ids=("",),
        )  # fmt: skip
        assert task.predict(alone).hits[0].equal(judged.hits[row])


def test_the_largest_weight_is_a_share_where_several_are_equal() -> None:
    """An even map scores as chance does, and not in each question."""
    real = torch.tensor([True, True, True, True, False])[None]
    facts = torch.tensor([[1, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()[None]
    alpha = torch.tensor([[0.2, 0.2, 0.2, 0.2, 0], [0.5, 0.5, 0, 0, 0], [-3, -1, -2, -2, 0], [0, 0, 0, 1, 0]])[None]
    expected = [[0.25, 0.5, 0], [0.5, 0.5, 0], [0, 1, 0], [0, 0, 0]]
    assert on_largest(alpha, real, facts)[0].tolist() == expected
    nan = alpha.where(alpha != 1, torch.nan)
    assert on_largest(nan, real, facts)[0, 3].tolist() == [0, 0, 0]  # a run that diverged has no largest weight


def test_the_page_of_a_story_shows_sentences_weights_and_the_answer(stories: Path) -> None:
    page = (stories / "pictures_test" / "index.html").read_text()
    assert page.count("<figure>") == 6 and page.count("<th>hop 2</th>") == 6
    assert "Where is " in page and page.count('<tr class="support">') >= 6 and page.count('class="weight"') >= 24
    assert page.count("correct: ") >= 3 and "The second half of the page are wrong answers" in page


def test_a_run_that_is_still_linear_says_so_and_shows_scores(tmp_path: Path, capsys) -> None:
    """Clipped to percents, they said that the whole weight is on each of several sentences."""
    settings = {**STORIES, "task.model.linear_start": 1000, "run.epochs": 1, "run.show": 0}
    assert main(train("memory_stories", **settings, **{"run.folder": tmp_path / "run"})) == 0
    assert main(["eval", str(tmp_path / "run"), "--device=cpu", "--show=6"]) == 0
    assert capsys.readouterr().out.count("without the softmax of its hops: facts have scores of any sign") == 2
    assert json.loads((tmp_path / "run" / "metrics_test.json").read_text())["linear"] == 1
    page = (tmp_path / "run" / "pictures_test" / "index.html").read_text()
    assert "This model is still in its linear start" in page and re.search(r">[+-]\d+\.\d\d</td>", page)


def test_a_run_without_a_linear_start_shows_weights_in_percent(tmp_path: Path, capsys) -> None:
    settings = {**STORIES, "task.model.linear_start": 0, "run.epochs": 1}
    assert main(train("memory_stories", **settings, **{"run.folder": tmp_path / "run"})) == 0
    page = (tmp_path / "run" / "pictures" / "index.html").read_text()
    assert "softmax" not in capsys.readouterr().out + page
    assert "its weight in percent" in page and re.search(r">\d+</td>", page) and "(probability 0." in page


class Items(NamedTuple):
    numbers: torch.Tensor
    nothing: None
    ids: tuple[str, ...]


@pytest.mark.parametrize(
    ("wrong", "number", "shown"),
    [
        ({1, 5, 9}, 4, [0, 1, 5, 9]),  # the later batches are searched
        ({3, 5, 9}, 4, [0, 1, 3, 5]),
        ({9}, 4, [0, 1, 2, 9]),  # fewer than there is room for
        (set(), 3, [0, 1, 2]),
        ({1}, 1, [0]),
        (None, 3, [0, 1, 2]),  # a task that does not say
    ],
)
def test_half_of_what_is_drawn_are_wrong_answers_however_rare(wrong: set | None, number: int, shown: list) -> None:
    def told(batch: Items) -> torch.Tensor | None:
        return None if wrong is None else torch.tensor([int(each) in wrong for each in batch.numbers])

    task = Task()
    task.wrong = told
    batches = [Items(part, None, tuple(map(str, part.tolist()))) for part in torch.arange(12).split(4)]
    found = examples(task, batches, number, torch.device("cpu"))
    assert found.numbers.tolist() == shown and found.ids == tuple(map(str, shown)) and found.nothing is None


def test_a_run_that_is_interrupted_in_its_linear_start_is_resumed_exactly(stories: Path, tmp_path: Path) -> None:
    settings = {**STORIES, "task.model.linear_start": 1, "schedule": "null", "run.folder": tmp_path / "whole"}
    assert main(train("memory_stories", **settings)) == 0
    for epochs in (1, 2, 3, 5):  # the start ends in one of these
        assert main(train("memory_stories", **settings | {"run.epochs": epochs, "run.folder": tmp_path / "parts"})) == 0
    whole, parts = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys() and all(whole[name].equal(parts[name]) for name in whole)
    assert not whole["model.linear"] and whole["model.since_lowest"] == 1
    losses = [[line["loss"] for line in lines(tmp_path / name) if "loss" in line] for name in ("whole", "parts")]
    assert losses[0] == losses[1]


def test_a_run_that_starts_from_another_has_a_linear_start_of_its_own(stories: Path, tmp_path: Path) -> None:
    assert not load_file(stories / "run" / "last" / "model.safetensors")["model.linear"]
    settings = {**STORIES, "task.model.linear_start": 3, "run.epochs": 1, "run.show": 0, "run.validate_every": 0}
    start = {"run.start_from": stories / "run" / "last", "run.folder": tmp_path / "run"}
    assert main(train("memory_stories", **settings, **start)) == 0
    assert load_file(tmp_path / "run" / "last" / "model.safetensors")["model.linear"]


def test_a_run_killed_right_after_validation_ends_the_linear_start_once(tmp_path: Path, monkeypatch) -> None:
    settings = {**STORIES, "task.model.linear_start": 1, "run.show": 0}
    assert main(train("memory_stories", **settings, **{"run.folder": tmp_path / "whole"})) == 0
    ended = MemoryNetwork.validated

    def killed(model: MemoryNetwork, nll: float) -> bool:
        if model.linear and nll >= model.lowest:
            raise KeyboardInterrupt
        return ended(model, nll)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(MemoryNetwork, "validated", killed)  # a signal would come at another moment each time
        main(train("memory_stories", **settings, **{"run.folder": tmp_path / "killed"}))
    assert main(train("memory_stories", **settings, **{"run.folder": tmp_path / "killed"})) == 0
    whole, again = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "killed"))
    assert all(whole[name].equal(again[name]) for name in whole) and not whole["model.linear"]


def test_scenes_are_answered_and_their_maps_drawn(tmp_path: Path) -> None:
    assert main(train("memory_scenes", **SCENES, **{"run.folder": tmp_path / "run"})) == 0
    assert main(["eval", str(tmp_path / "run"), "--device=cpu"]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics_test.json").read_text())
    assert 0 <= metrics["hop_2_on_support"] <= 1
    pictures = tmp_path / "run" / "pictures"
    page = (pictures / "index.html").read_text()
    assert "hop 2" in page and (pictures / "02-hops.png").exists()
    assert "This model is still in its linear start" in page  # on purpose, and to its end

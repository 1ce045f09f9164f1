"""Commands choose the number of torch's threads by their first images; calls of the library leave it as it is."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vision_attn
from tests import pretend
from tests.untrained import write_run
from vision_attn.commands import main
from vision_attn.system.files import read_json
from vision_attn.system.thread_trial import threads_kept


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that nobody trained, and a few images."""
    root = tmp_path_factory.mktemp("threads")
    write_run("sat_soft_scenes", root / "captioner")
    write_run("ram_mnist28", root / "classifier")
    (root / "images").mkdir()
    for number in range(10):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"{number}.png")
    return root


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of threads of the pieces of work that were timed. Two threads always take five times as long."""
    found = pretend.seconds_of_work(monkeypatch, {1: 0.1, 2: 0.5})
    pretend.threads_to_try(monkeypatch, 1, 2)
    with threads_kept():
        torch.set_num_threads(3)
        yield found


CHOSEN = [1, 2, 2, 1, 1, 2, 2, 1]
"""The order in which both are tried until their times say enough; then one thread is kept."""


@pytest.mark.parametrize(
    "verb, pieces",
    [
        (["classify", "classifier", "images"], 10),
        (["caption", "captioner", "images"], 1),  # photographs are captioned 16 at a time
        (["look", "timm:test_vit", "images/0.png", "images/1.png", "--weights=none"], 2),
        (["measure", "classifier", "--number=3", "--method=glimpses", "--best=0", "--sanity=0", "--steps=2"], 5),
        (["eval", "captioner"], 1),
        (["eval", "captioner", "--data.test_images=10", "--data.batch_size=1"], 10),
    ],
)
def test_commands_try_one_thread_and_all(
    verb: list[str], pieces: int, folder: Path, tried: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(folder / word) if (folder / word).exists() else word for word in verb]
    assert main(words) == 0
    assert len(tried) >= pieces
    assert tried[:8] == CHOSEN[: len(tried)] and set(tried[8:]) <= {1}
    assert torch.get_num_threads() == 3
    if verb[0] == "eval":
        hardware = read_json(folder / "captioner" / "metrics_test.json")["hardware"]
        assert hardware.endswith(", 2 threads" if pieces == 1 else ", 1 thread")  # of the next image


def test_the_page_has_a_trial_for_each_model(
    folder: Path, tried: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served = []
    pretend.a_server_that(monkeypatch, lambda server: served.extend(model for _, model in server.models))
    assert main(["serve", str(folder / "captioner"), str(folder / "classifier"), "--port", "0"]) == 0
    assert [model.turn.threads for model in served] == [1, 1] and not tried
    for number in range(10):
        served[1].classify(folder / "images" / f"{number}.png")
        assert torch.get_num_threads() == 3
    assert tried == [*CHOSEN, 1, 1] and [model.turn.threads for model in served] == [1, 1]


def test_the_library_leaves_the_threads_of_its_process_alone(folder: Path, tried: list[int]) -> None:
    """Others may compute in it. A program of one's own may ask for a trial."""
    model = vision_attn.load(folder / "classifier", device="cpu")
    images = [*map(str, (folder / "images").iterdir())]
    model.classify(images)
    assert not tried and model.turn.threads == torch.get_num_threads() == 3
    model.choose_threads()
    model.classify(images)
    assert tried == [*CHOSEN, 1, 1] and torch.get_num_threads() == 3

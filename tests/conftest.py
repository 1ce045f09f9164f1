"""For all tests: shape checks on the whole package, one thread, and the folder of real data where there is one."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are small: a second thread on a busy machine is mostly waited for. And they compare bits: no trial of threads
# (`system.thread_trial`), whose result depends on what else the machine does, takes place here or in a child.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"  # where a test asks for more, those that wait leave the cores to other tests

if os.environ.get("VISION_ATTN_SHAPES", "1") != "0":  # before the package is imported anywhere
    from tests import shapes

    shapes.install()

from tests.ways import WAYS, go

pytest_plugins = ["tests.workers"]

gc.disable()  # until all tests are imported, which make millions of objects that stay
os.fsync = lambda _: None  # tests kill processes, never the machine


SLOW = (
    "test_types", "test_reproduce", "test_look", "test_self_critical", "test_transcribe", "test_gpu_day",
    "test_places_of_maps", "test_threads", "test_capture_configs", "test_package", "test_benchmarks", "test_metrics",
    "test_backbone", "test_pretrained", "test_experiments", "test_accelerate", "test_figures", "test_capture",
    "test_startup", "test_api", "test_captions", "test_shipped", "test_serve", "test_house", "test_measure",
    "test_features", "test_commands", "test_weights", "test_plain_runs", "test_distributed", "test_kernels",
)  # fmt: skip
"""Files that take half of the time of all, the slowest first."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files of which no test is selected by `-m compile`, `slow`, `gpu` or `chaos`, or by the default
    marks. Importing all takes 15 seconds."""
    if collection_path.suffix != ".py":
        return None
    selected, chaos = config.option.markexpr, collection_path.parent.name == "chaos"
    if selected in ("compile", "slow", "gpu"):
        text = collection_path.read_text()
        ignored = f"mark.{selected}" not in text and f"{selected}.after(" not in text
    else:
        ignored = chaos if "not chaos" in selected else selected == "chaos" and not chaos
    return ignored or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the slow files first, so that the processes that share the tests end together."""
    order = {stem: number for number, stem in enumerate(SLOW)}
    items.sort(key=lambda item: order.get(item.path.stem, len(SLOW)))


def pytest_collection_finish() -> None:
    import torch

    torch.set_num_threads(1)  # also where torch was imported before this file
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # triton complains of each of its objects that is left


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data sets; the test is skipped where there is none."""
    folder = os.environ.get("VISION_ATTN_DATA")
    if not folder:
        pytest.skip("real data is needed: VISION_ATTN_DATA names no folder")
    if not Path(folder).is_dir():
        pytest.skip(f"real data is needed: {folder} (VISION_ATTN_DATA) does not exist")
    return Path(folder)


@pytest.fixture
def onednn_for_small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests import pretend

    pretend.small_products(monkeypatch)


@pytest.fixture(params=WAYS)
def both_ways(request: pytest.FixtureRequest) -> Iterator[str]:
    """The test runs twice: `ways.prepared` leaves modules as they are, and accelerates them."""
    go(request.param)
    yield request.param
    go("plain")


@pytest.fixture(autouse=True)
def metrics_without_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captions are scored in this process: starting others takes seconds. Not in tests marked `processes`."""
    if request.node.get_closest_marker("processes") is None and request.node.get_closest_marker("chaos") is None:
        from tests import scoring

        scoring.in_this_process(monkeypatch)

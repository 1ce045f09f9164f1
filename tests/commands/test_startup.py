"""Start-up: a command imports what it uses. Each test starts a process, as the modules of this one are imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.untrained import write_run

COMPILER = ("torch._dynamo", "torch._inductor", "sympy")
EVALUATION = ("pandas", "scipy", "matplotlib", "pycocoevalcap", "pycocotools", "wandb")
CONFIGS = Path(__file__).parents[2] / "configs"


def imported(code: str, *arguments: str | Path) -> set[str]:
    """All modules that are imported after `code` was run in a new process, with arguments in `sys.argv`."""
    script = f"import sys\n{code}\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split("\n"))


def test_help_needs_no_torch() -> None:
    code = "from vision_attn.commands import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    assert not {"torch", "numpy", "yaml"} & imported(code)


@pytest.mark.slow
def test_photographs_are_captioned_without_torchvision_compiler_numba_and_pages(tmp_path: Path) -> None:
    """Also by the network of the included captioner, which is of this package: torchvision takes as long to import as a
    caption takes."""
    code = """
from vision_attn.commands import main
from vision_attn.configuration.config import build, read
parts = build(read(sys.argv[1]))
task = parts["task"](parts["data"])
assert type(task).__name__ == "Captioning" and next(iter(task.parameters())).device.type == "cpu"
assert main(sys.argv[2:-1]) == 0
from vision_attn.encoders.backbone import Backbone
from vision_attn.layers.meta import on_meta
with on_meta():
    Backbone(name="efficientnet_lite2", node="blocks.6", resolution=448)
assert "matplotlib" not in sys.modules
assert main([*sys.argv[2:4], sys.argv[4] + "/dog.jpg", sys.argv[-1]]) == 0
"""
    run = write_run("sat_soft_scenes", tmp_path / "run")
    photographs = Path(__file__).parents[2] / "docs" / "photographs"
    unused = {
        "numba", "torchvision", "triton", "torch.utils.flop_counter", "PIL.PalmImagePlugin",
        "vision_attn.engine.training",
        "jinja2",
    }  # fmt: skip
    figure = f"--figure={tmp_path / 'figure.png'}"
    modules = imported(code, CONFIGS / "sat_soft_scenes.yaml", "caption", run, photographs, figure)
    assert not {*unused, *COMPILER, *EVALUATION} - {"matplotlib"} & modules
    assert "matplotlib" in modules and "matplotlib.pyplot" not in modules  # pyplot may want a window


@pytest.mark.slow
def test_a_score_and_backbones_need_no_compiler_and_torchvision_finds_it_when_it_needs_it() -> None:
    """On a CPU not even triton, which would be there. Backbones with memory, and without, as in `open_run`."""
    code = f"""
import torch
from vision_attn.attention.scores import Additive
score = Additive(2, 3)
score(torch.ones(1, 1, 3), score.project(torch.ones(1, 1, 2)))[0].sum().backward()
assert not [name for name in sys.modules if name.split('.')[0] == 'triton' or name.endswith(('_gpu', '.gpu'))]
from vision_attn.encoders.backbone import Backbone
from vision_attn.layers.meta import on_meta
for name, node in (("mobilenet_v2", "features.17"), ("vgg16", "features.29")):
    with on_meta():
        hollow = Backbone(name=name, node=node, resolution=64)
    whole = Backbone(name=name, node=node, resolution=64)
    assert all(weight.is_meta for weight in hollow.state_dict().values())
    shapes = [{{name: weight.shape for name, weight in each.state_dict().items()}} for each in (hollow, whole)]
    assert shapes[0] == shapes[1] and hollow.grid == whole.grid
assert not {{*{COMPILER + EVALUATION}}} & sys.modules.keys()
from torchvision.ops import roi_align
assert roi_align.__globals__["is_compile_supported"]("cpu") in (True, False)
import torch._dynamo.utils
assert "counters" in vars(sys.modules["torch._dynamo.utils"])
"""
    assert {"torchvision", "torch._dynamo.utils"} <= imported(code)


@pytest.mark.slow
def test_scipy_is_imported_where_an_interval_is_made() -> None:
    code = """
import numpy as np
import vision_attn.commands.score, vision_attn.metrics.coco.sums, vision_attn.results.faithfulness
from vision_attn.metrics.intervals import ratio
few, enough = (ratio(np.arange(number) / 2, np.ones(number)) for number in (4, 5))
assert few.interval() is None and 'scipy' not in sys.modules
enough.interval()
"""
    assert "scipy.special" in (modules := imported(code)) and "scipy.stats" not in modules


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torch", "triton"])
def test_nothing_is_said_at_exit(library: str) -> None:
    """Libraries that count their objects complain of those that are left when the process ends."""
    pytest.importorskip(library)
    code = f"import {library}\nfrom vision_attn.system.memory import left_at_exit\nleft_at_exit()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout and not done.stderr

"""What must hold on a GPU: tasks, steps, resuming and decoding, compared with the CPU.

`VISION_ATTN_GPU=cpu pytest -m gpu` runs these tests on a CPU, which tests the tests: nothing is compiled or captured.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from benchmarks.gpu.cases import capture
from benchmarks.measure import accelerated
from benchmarks.show_attend_tell import Side, training_step
from tests import pretend
from tests.fake_mnist import write_mnist
from tests.whole_runs import CONFIGS, steps, train
from vision_attn.attention.hard import sample
from vision_attn.commands import main
from vision_attn.configuration.config import build, read
from vision_attn.contracts import END
from vision_attn.decode import Decoded, beam_search, greedy, replay
from vision_attn.decode import sample as sample_words
from vision_attn.engine.batches import on_device
from vision_attn.fast import accelerate
from vision_attn.fast.graphs import without_graphs
from vision_attn.models.draw import DRAWReader
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.top_down import TopDown
from vision_attn.models.transformer import Transformer
from vision_attn.system.machine import multiplies_bf16
from vision_attn.task import Batch, Task

DEVICE = os.environ.get("VISION_ATTN_GPU", "cuda")
CUDA = DEVICE == "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        CUDA and not torch.cuda.is_available(), reason="needs a GPU; VISION_ATTN_GPU=cpu runs it on a CPU"
    ),
    pytest.mark.skipif(
        CUDA and os.environ.get("VISION_ATTN_SHAPES", "1") != "0", reason="set VISION_ATTN_SHAPES=0: some are compiled"
    ),
]
MODEL, DATA = "task.model.", "data."
SCENES = {DATA + "batch_size": 8, DATA + "epoch_images": 48, DATA + "val_images": 8, DATA + "test_images": 8,
          "task.encoder.region_size": 16, "task.encoder.width": 16, "task.validate_with": "[]"}  # fmt: skip
SAT = SCENES | {MODEL + "hidden_size": 16, MODEL + "word_size": 16, MODEL + "dropout": 0}
CLUTTER = {DATA + "batch_size": 100, DATA + "epoch_images": 600, DATA + "val_images": 100}
SIZES: dict[str, dict[str, Any]] = {
    "sat_soft_scenes": SAT | {MODEL + "context_dropout": 0},
    "sat_hard_scenes": SAT | {MODEL + "context_dropout": 0, MODEL + "attention.soft_start": 0},
    "show_and_tell_scenes": SAT,
    "top_down_scenes": SAT,
    "transformer_scenes": SCENES | {MODEL + "hidden_size": 32, MODEL + "feedforward_size": 32, MODEL + "dropout": 0},
    "ram_cluttered60": CLUTTER,
    "ram_cluttered100": CLUTTER,
    "draw_reader_cluttered100": CLUTTER,
    "conv_cluttered60": CLUTTER,
    "draw_mnist": {DATA + "batch_size": 50, MODEL + "num_steps": 3, MODEL + "hidden_size": 32},
    "draw_mnist_no_attention": {DATA + "batch_size": 50, MODEL + "num_steps": 3, MODEL + "hidden_size": 32},
}
"""Small models and batches of these configs."""
DETERMINISTIC = ("sat_soft_scenes", "show_and_tell_scenes", "top_down_scenes", "transformer_scenes",
                 "draw_reader_cluttered100", "conv_cluttered60")  # fmt: skip
"""Those that sample nothing in training."""
TRAINED = ("sat_soft_scenes", "ram_cluttered100", "draw_reader_cluttered100", "draw_mnist")


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> str:
    return write_mnist(tmp_path_factory.mktemp("mnist"))


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """Convolutions in float32 proper, not in the GPU's shorter format."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield
    torch.compiler.reset()


def settings(config: str, digits: str) -> dict[str, Any]:
    return SIZES[config] | ({} if "scenes" in config else {"data.folder": digits})


def made(config: str, digits: str) -> tuple[Task, Batch]:
    """A task with random weights and a batch of training, on the CPU."""
    overrides = [f"--{name}={value}" for name, value in settings(config, digits).items()]
    parts = build(read(CONFIGS / f"{config}.yaml", overrides))
    torch.manual_seed(0)
    task, source = parts["task"](parts["data"]), parts["data"]
    accelerate(task)
    source.prepare(task)
    return task, next(iter(source.train(0, seed=0)))


class SameSamples(TorchDispatchMode):
    """Within this context random numbers come from the CPU's generator, on every device. Operators that a CPU does not
    have, such as cuDNN's attention, run where they are: they sample nothing here, since dropout is 0."""

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: tuple = (), options: dict | None = None) -> Any:
        options = options or {}
        on_cpu = torch._C._dispatch_has_computed_kernel_for_dispatch_key(operation.name(), "CPU")
        if torch.Tag.nondeterministic_seeded not in operation.tags or not on_cpu:
            return operation(*arguments, **options)
        device = torch.device(options.get("device") or next(part.device for part in arguments if torch.is_tensor(part)))
        given, named = tree_map(partial(_to, torch.device("cpu")), (arguments, options))
        results = operation(*given, **named)
        if operation._schema.is_mutable:
            return arguments[0].copy_(results)
        return tree_map(partial(_to, device), results)


def _to(device: torch.device, part: Any) -> Any:
    return part.to(device) if isinstance(part, Tensor) else device if isinstance(part, torch.device) else part


def test_operators_that_a_cpu_lacks_stay_on_their_device() -> None:
    with torch.library._scoped_library("vision_attn_test", "FRAGMENT") as library:
        library.define("elsewhere(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
        library.impl("elsewhere", torch.empty_like, "Meta")
        with SameSamples():
            found = torch.ops.vision_attn_test.elsewhere(torch.empty(3, device="meta"))
            assert found.device.type == "meta" and torch.rand(3, device="meta").device.type == "meta"


class SameRegions:
    """In place of `hard.sample`: the samples of the first pass, the CPU's, are those of the second as well.

    Random numbers are the same on both devices, but where the two best regions nearly tie, rounding decides. One sample
    of hundreds that falls the other way changes the loss by 6e-4 (seen on an H200). The second pass still samples, and
    counts how often it would have taken another region.
    """

    def __init__(self) -> None:
        self.taken: list[Tensor] = []
        self.number = self.total = self.other = 0

    def again(self) -> None:
        self.number, self.total, self.other = len(self.taken), 0, 0

    def __call__(self, alpha: Tensor) -> Tensor:
        found = sample(alpha)
        if not self.number:
            self.taken.append(found)
            return found
        taken = self.taken.pop(0).to(found.device)
        self.total, self.other = self.total + found.numel(), self.other + int((found != taken).sum())
        return taken


def gradients(task: Task, batch: Batch, device: str, dtype: torch.dtype = torch.float32) -> tuple[float, Tensor]:
    """The loss of a batch and its gradient with respect to all weights, computed on `device`."""
    before = {name: value.clone() for name, value in task.state_dict().items()}
    task.to(device).zero_grad()
    torch.manual_seed(1)
    with SameSamples(), torch.autocast(device, dtype, enabled=dtype != torch.float32):
        loss = task(*on_device(batch, torch.device(device)))["loss"]
        loss.backward()
    task.cpu().load_state_dict(before)
    parts = [weights.grad.flatten() for weights in task.parameters() if weights.grad is not None]
    return loss.item(), torch.cat(parts).clone()


def apart(found: Tensor, expected: Tensor) -> float:
    """The distance in proportion to the length."""
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("config", SIZES)
def test_loss_and_gradient_equal_those_of_the_cpu(config: str, digits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    same = SameRegions()
    monkeypatch.setattr("vision_attn.attention.hard.sample", same)  # devices draw different random numbers
    pretend.unread_words(monkeypatch)  # the same rows are sampled for
    task, batch = made(config, digits)
    expected, slope = gradients(task, batch, "cpu")
    same.again()
    found, found_slope = gradients(task, batch, DEVICE)
    assert not same.taken and same.other <= 0.01 * same.total and (same.total > 0) == (config == "sat_hard_scenes")
    assert found == pytest.approx(expected, rel=1e-4)
    assert slope.norm() > 0 and apart(found_slope, slope) < 2e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("config", SIZES)
def test_half_precision_is_near(config: str, dtype: torch.dtype, digits: str) -> None:
    if not CUDA and dtype == torch.float16:
        pytest.skip("convolutions of a CPU have no gradient in fp16")
    if not CUDA and not multiplies_bf16():
        pytest.skip("this processor has no bfloat16; runs compute in fp32 instead")
    task, batch = made(config, digits)
    expected, slope = gradients(task, batch, "cpu")
    found, found_slope = gradients(task, batch, DEVICE, dtype)
    assert found_slope.isfinite().all()
    if config in DETERMINISTIC:  # elsewhere rounding changes what is sampled
        assert found == pytest.approx(expected, rel=0.03)
        assert torch.cosine_similarity(found_slope, slope, dim=0) > 0.97


@pytest.mark.skipif(not CUDA, reason="compiling for a CPU takes minutes, and is tested elsewhere")
@pytest.mark.parametrize("config", [config for config in DETERMINISTIC if config != "conv_cluttered60"])
def test_compiled_equals_eager(config: str, digits: str) -> None:
    task, batch = made(config, digits)
    expected, slope = gradients(task, batch, DEVICE)
    task.to(DEVICE)
    task.compile()
    loss = task(*on_device(batch, torch.device(DEVICE)))["loss"]
    task.zero_grad()
    loss.backward()
    found = torch.cat([weights.grad.flatten() for weights in task.parameters() if weights.grad is not None]).cpu()
    assert loss.item() == pytest.approx(expected, rel=1e-4) and apart(found, slope) < 2e-3


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("config", TRAINED)
def test_steps_of_training_in_every_precision(config: str, precision: str, digits: str, tmp_path: Path) -> None:
    if not CUDA and precision == "fp16":
        pytest.skip("convolutions of a CPU have no gradient in fp16")
    run = trained(config, digits, tmp_path, **{"run.precision": precision, "run.compile": False, "run.capture": False})
    losses = [step["loss"] for step in steps(run)]
    assert len(losses) == 6 and losses[-1] < losses[0]


@pytest.mark.skipif(not CUDA, reason="nothing is captured on a CPU")
@pytest.mark.parametrize("fast", [("capture",), ("compile",), ("compile", "capture")], ids=" and ".join)
@pytest.mark.parametrize("config", TRAINED)
def test_fast_steps_train_as_eager_ones(config: str, fast: tuple, digits: str, tmp_path: Path, capsys) -> None:
    switched = {f"run.{name}": name in fast for name in ("compile", "capture")}
    run = trained(config, digits, tmp_path / "fast", **{"run.precision": "fp32"}, **switched)
    assert "cannot be captured" not in capsys.readouterr().out
    plain = trained(config, digits, tmp_path / "plain", **{"run.precision": "fp32"}, **dict.fromkeys(switched, False))
    losses = [[step["loss"] for step in steps(folder)] for folder in (run, plain)]
    # Compiled code draws other random numbers from the same seed.
    tolerance = 1e-3 if config in DETERMINISTIC or "compile" not in fast else 0.2
    assert losses[0] == pytest.approx(losses[1], rel=tolerance)


@pytest.mark.parametrize("config", TRAINED)
def test_a_resumed_run_equals_one_in_a_piece(config: str, digits: str, tmp_path: Path, record_property) -> None:
    options = {"schedule": "null", "run.precision": "fp32", "run.compile": False}
    whole = trained(config, digits, tmp_path / "whole", **options, **{"run.epochs": 2})
    trained(config, digits, tmp_path / "parts", **options)
    parts = trained(config, digits, tmp_path / "parts", **options, **{"run.epochs": 2})
    one, other = (load_file(folder / "last" / "model.safetensors") for folder in (whole, parts))
    difference = max((one[name].double() - other[name].double()).abs().max().item() for name in one)
    if difference:
        record_property("largest difference of a weight after resuming", f"{difference:.1e}")
    assert difference < 1e-4


def trained(config: str, digits: str, folder: Path, **options: Any) -> Path:
    """A run of an epoch, which is six steps, or of more."""
    run = folder / "run"
    common = {"run.folder": run, "run.epochs": 1, "run.warmup": 0, "run.device": DEVICE, "run.log_every": 1,
              "run.validate_every": 0, "run.sanity_check": "false", "run.show": 0}  # fmt: skip
    assert main(train(config, **settings(config, digits) | common | options)) == 0
    return run


SMALL_SAT = partial(ShowAttendTell, hidden_size=16, word_size=16)
SMALL_TOP_DOWN = partial(TopDown, hidden_size=16, word_size=16)
SMALL_TRANSFORMER = partial(Transformer, hidden_size=16, num_layers=2, num_heads=2, feedforward_size=16)


RULES = {"min_words": 2, "no_repeat": 2}
SEARCHES = [greedy, beam_search, partial(greedy, **RULES), partial(beam_search, beams=6, groups=2, **RULES)]


@pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam", "greedy with rules", "diverse with rules"])
@pytest.mark.parametrize("make", [SMALL_SAT, SMALL_TOP_DOWN, SMALL_TRANSFORMER], ids=["SAT", "top-down", "Transformer"])
def test_decoding_equals_that_of_the_cpu(make: Callable[[int, int], nn.Module], search: Callable[..., Decoded]) -> None:
    torch.manual_seed(0)
    model, regions = accelerated(make(11, 8)).eval(), 3 * torch.randn(16, 9, 8)
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(3)  # words are clearly preferred
        model.output.bias[END] += 2
    expected = search(model, regions, max_words=12)
    model, regions = model.to(DEVICE), regions.to(DEVICE)
    assert len({(row > 0).sum().item() for row in expected.words.flatten(0, 1)}) > 1  # captions of several lengths
    length = expected.words.shape[-1]
    for _ in range(4):  # eagerly, captured, replayed
        found = search(model, regions, max_words=12)
        search(model, regions.flip(0), max_words=12)
        assert torch.equal(found.words.cpu()[..., :length], expected.words) and not found.words[..., length:].any()
        torch.testing.assert_close(found.log_prob.cpu()[..., :length], expected.log_prob, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(found.alpha.cpu()[..., :length, :], expected.alpha, rtol=1e-3, atol=1e-4)
    assert not CUDA or [one.ready for one in replay._graphs[model].recorded.values()] == [True]


def test_samples_are_the_same_captured_or_not() -> None:
    """Also under autocast, after its casts of weights have been kept outside of a search."""
    torch.manual_seed(0)
    model, regions, found = accelerated(SMALL_SAT(11, 8)).eval().to(DEVICE), torch.randn(16, 9, 8, device=DEVICE), []
    for eager in (True, False):
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16), without_graphs(eager):
            for seed in range(4):
                torch.manual_seed(seed)
                words = sample_words(model, regions, rows=5, max_words=12).words
                model(regions, words)
                found.append(words)
    for one, other in zip(found[:4], found[4:], strict=True):
        assert (one == other).float().mean() > 0.9  # rounding may change a word, and with it those that follow


@pytest.mark.parametrize("config", DETERMINISTIC)
def test_validation_equals_that_of_the_cpu(config: str, digits: str) -> None:
    task, batch = made(config, digits)
    metrics = [task.to(device).eval().evaluate([on_device(batch, torch.device(device))]) for device in ("cpu", DEVICE)]
    # Weights of maps are sums of float32: maps that hardly move do so by 3e-6, of which 4e-9 is rounding (on an H200).
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-3, abs=1e-7, nan_ok=True)


def test_captured_steps_of_the_benchmark_train() -> None:
    """Four steps one by one, and the same as three before the capture and a replay."""
    images, labels = torch.rand(20, 1, 28, 28, device=DEVICE), torch.randint(10, (20,), device=DEVICE)

    def start() -> tuple[nn.Module, Callable[[], Tensor]]:
        torch.manual_seed(0)
        model = accelerated(DRAWReader((1, 28, 28), 10, num_glimpses=2, size=4, hidden_size=16)).to(DEVICE)
        side = Side(model, lambda: nn.functional.nll_loss(model(images).log_prob[:, 0, -1], labels))
        return model, training_step(side, fused=True, capturable=CUDA)

    plain, step = start()
    for _ in range(4):
        step()
    captured, step = start()
    replay = capture(step) if CUDA else after_three(step)
    assert replay().isfinite()
    for one, other in zip(plain.parameters(), captured.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def after_three(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """What `capture` does without a GPU."""
    for _ in range(3):
        step()
    return step

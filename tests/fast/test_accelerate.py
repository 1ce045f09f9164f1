"""`accelerate`: a task computes the same, has the same weights, and can be copied, saved, watched and restored."""

import ast
import importlib
import pkgutil
import re
import warnings
from copy import deepcopy
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import vision_attn
from tests import pretend, tiny
from tests.decode.test_replay import MODELS, T
from vision_attn.attention.scores import Additive
from vision_attn.attention.soft import AttentionOutput, Soft
from vision_attn.contracts import Captioner
from vision_attn.decode import beam_search, greedy, sample
from vision_attn.fast import FAST, accelerate, restore
from vision_attn.fast.additive import FastAdditive
from vision_attn.fast.linear import FastLinear
from vision_attn.models.ensemble import Ensemble, Share
from vision_attn.models.ram import RAM
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.task import Batch, Task

ROOT = Path(__file__).parents[2]
FAST_LINE = re.compile(r"^Fast version: `fast\.([\w.]+)`\.$", re.MULTILINE)
OFF = ("dropout", "context_dropout", "own_words", "noise", "p")
"""What samples in another order when accelerated, and is left out: masks of dropout, scheduled sampling, noise."""
COPIED = ("sat_soft_scenes", "transformer_scenes", "ram_cluttered60", "draw_mnist_small", "strings_read_coverage")


def without_samples(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dropped, and of each map the region is seen that has the largest weight."""
    for part in task.modules():
        for name in OFF:
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    pretend.likeliest_samples(monkeypatch)


def gradients(task: Task, batch: Batch) -> dict[str, Tensor | None]:
    """The loss and the gradient of every parameter. Leaves the buffers of the task as they were."""
    before = {name: buffer.clone() for name, buffer in task.named_buffers()}
    task.zero_grad()
    torch.manual_seed(3)
    loss = task(*batch)["loss"]
    loss.backward()
    with torch.no_grad():
        for name, buffer in task.named_buffers():
            buffer.copy_(before[name])
    found = {name: weight.grad for name, weight in task.named_parameters()}
    return {"the loss": loss.detach()} | {name: grad if grad is None else grad.clone() for name, grad in found.items()}


def assert_equal(found: dict[str, Tensor | None], expected: dict[str, Tensor | None]) -> None:
    """To rounding: in proportion to the gradient itself, or where that is nearly 0, to the whole one."""
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found["the loss"], expected["the loss"], rtol=1e-5, atol=1e-5)
    whole = sum(grad.norm() ** 2 for name, grad in expected.items() if grad is not None and name != "the loss") ** 0.5
    for name, grad in expected.items():
        assert (grad is None) == (found[name] is None), name
        if grad is not None:
            assert (found[name] - grad).norm() <= 1e-4 * (grad.norm() + 1e-2 * whole), name


def classes(module: nn.Module) -> list[type]:
    return [type(part) for part in module.modules()]


def exchanged(module: nn.Module) -> list[type]:
    return [kind for kind in classes(module) if kind.__module__.startswith("vision_attn.fast.")]


@pytest.mark.parametrize("case", tiny.CASES)
def test_losses_and_gradients_of_every_config_are_the_same(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its weights, their names and their order; a second time changes nothing, and `restore` undoes it."""
    task, batch = tiny.made(case)
    without_samples(task, monkeypatch)
    before, keys, parameters = classes(task), list(task.state_dict()), list(task.parameters())
    expected = gradients(task, batch)
    accelerate(task)
    fast = classes(task)
    assert bool(exchanged(task)) == any(f"{kind.__module__}.{kind.__qualname__}"[12:] in FAST for kind in before)
    assert list(task.state_dict()) == keys
    assert all(one is other for one, other in zip(task.parameters(), parameters, strict=True))
    assert_equal(gradients(task, batch), expected)
    accelerate(task)
    assert classes(task) == fast
    restore(task)
    assert classes(task) == before
    assert_equal(gradients(task, batch), expected)


def test_every_class_that_derives_from_an_exchanged_one_is_exchanged_too() -> None:
    """One that is not would lose what it inherits, without a word. And each fast class derives from the one that it
    stands for, and adds no weights."""
    for module in pkgutil.walk_packages(vision_attn.__path__, "vision_attn."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for plain, fast in FAST.items():
        (module, name), (fast_module, fast_name) = plain.rsplit(".", 1), fast.rsplit(".", 1)
        kind = getattr(importlib.import_module(f"vision_attn.{module}"), name)
        new = getattr(importlib.import_module(f"vision_attn.fast.{fast_module}"), fast_name)
        assert issubclass(new, kind) and "__init__" not in vars(new)
        below = [one for one in kind.__subclasses__() if one.__module__.startswith("vision_attn.")]
        left = {f"{one.__module__}.{one.__qualname__}".removeprefix("vision_attn.") for one in below}
        assert {one for one in left if not one.startswith("fast.")} <= FAST.keys()


@pytest.mark.parametrize("case", COPIED)
def test_copies_and_pickles_are_accelerated_and_compute_the_same(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, batch = tiny.made(case)
    without_samples(task, monkeypatch)
    accelerate(task)
    copy = deepcopy(task)
    assert classes(copy) == classes(task) and not set(copy.parameters()) & set(task.parameters())
    expected = gradients(task, batch)
    assert_equal(gradients(copy, batch), expected)
    with BytesIO() as file:  # as whole modules are pickled
        torch.save(task.model, file)
        file.seek(0)
        model = torch.load(file, weights_only=False)
    assert classes(model) == classes(task.model)
    copy.model = model
    assert_equal(gradients(copy, batch), expected)


@pytest.mark.parametrize("case", COPIED)
def test_an_accelerated_task_moves_to_another_type_and_device(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To float64 and back, and to the device that `accelerate` names."""
    task, batch = tiny.made(case)
    without_samples(task, monkeypatch)
    accelerate(task, "cpu")
    expected = gradients(task, batch)
    task.double()
    assert all(weight.dtype == torch.float64 for weight in task.parameters()) and exchanged(task)
    assert_equal(gradients(task.float(), batch), expected)
    accelerate(task, "meta")
    assert all(weight.is_meta for weight in task.parameters())


@pytest.mark.parametrize("case", COPIED)
def test_hooks_see_every_call_and_change_nothing(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever debugs a gradient runs the code with the fault: the same classes, and the same numbers bit for bit. Where
    a layer is not called, a warning says so."""
    task, batch = tiny.made(case)
    without_samples(task, monkeypatch)
    plain, _ = tiny.made(case)
    without_samples(plain, monkeypatch)
    accelerate(task)
    expected, called, planned = gradients(task, batch), set(), set()

    def hooked(module: nn.Module, names: set[str]) -> None:
        for name, part in module.named_modules():
            part.register_forward_hook(lambda *_, name=name: names.add(name))

    before = classes(task)
    hooked(task, called)
    hooked(plain, planned)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = gradients(task, batch)
    assert classes(task) == before and all("use run.fast=false" in str(each.message) for each in said)
    for name, grad in expected.items():
        assert grad is found[name] is None or torch.equal(found[name], grad), name
    gradients(plain, batch)
    vocabulary = {"model.output"} if hasattr(task.model, "word_log_prob") else set()
    assert planned - called == vocabulary and len(said) == len(vocabulary)  # no logits of all words are computed


def test_a_hook_can_change_what_an_accelerated_layer_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a loop over time steps too, where the gradient of its weights waits."""
    found = []
    for fast in (False, True):
        task, batch = tiny.made("sat_soft_scenes")
        without_samples(task, monkeypatch)
        if fast:
            accelerate(task)
        task.model.context_to_lstm.register_forward_hook(lambda layer, inputs, output: output.tanh())
        found.append(gradients(task, batch))
    assert_equal(*found)


def test_a_weight_whose_hook_changes_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    task, batch = tiny.made("sat_soft_scenes")
    without_samples(task, monkeypatch)
    accelerate(task)
    expected = gradients(task, batch)
    weight, seen = task.model.hidden_to_lstm.weight, []
    weight.register_hook(lambda grad: seen.append(grad) or 2 * grad)
    found = gradients(task, batch)
    assert len(seen) == 1
    torch.testing.assert_close(found["model.hidden_to_lstm.weight"], 2 * expected["model.hidden_to_lstm.weight"])


class Own(ShowAttendTell):
    """A user's captioner, with another way to begin."""

    def start(self, regions: Tensor, rows: int):
        memory, state = super().start(regions, rows)
        return memory, state._replace(hidden=state.hidden * 0)


class OwnAttention(Soft):
    """A user's attention."""

    def forward(self, scores: Tensor, regions: Tensor, *_: object) -> AttentionOutput:
        return AttentionOutput(*self.attended(scores.tanh(), regions))


def test_a_users_subclass_stays_and_its_layers_are_exchanged() -> None:
    torch.manual_seed(0)
    model = Own(9, 4, hidden_size=6, word_size=8, score=partial(Additive, attention_size=5), attention=OwnAttention)
    regions, words = torch.randn(2, 5, 4), torch.tensor([[[3, 4, 1], [5, 1, 0]], [[4, 1, 0], [3, 5, 1]]])
    model.eval()
    expected = model(regions, words)
    grads = torch.autograd.grad(expected.log_prob.sum(), list(model.parameters()))
    accelerate(model)
    assert type(model) is Own and type(model.attention) is OwnAttention
    assert type(model.score) is FastAdditive and type(model.output) is FastLinear
    found = model(regions, words)
    torch.testing.assert_close((found.log_prob, found.alpha), (expected.log_prob, expected.alpha))
    torch.testing.assert_close(torch.autograd.grad(found.log_prob.sum(), list(model.parameters())), grads)
    torch.testing.assert_close(greedy(model, regions).words, greedy(restored(model), regions).words)


def restored(model: Captioner) -> Captioner:
    copy = deepcopy(model)
    restore(copy)
    assert not exchanged(copy) and not copy.accelerated
    return copy


SEARCHES = {
    "greedy": partial(greedy, max_words=T),
    "beam": partial(beam_search, beams=3, max_words=T, length_power=0.7),
    "diverse": partial(beam_search, beams=4, max_words=T, groups=2, diversity=0.3, min_words=2, no_repeat=2),
    "sampled": lambda *given: sample(*given, rows=4, max_words=T, generator=torch.Generator().manual_seed(0)),
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", [*MODELS, "ensemble"])
def test_decoding_is_the_same(name: str, search: str) -> None:
    torch.manual_seed(0)
    if name == "ensemble":
        members = [MODELS["soft"](), MODELS["transformer"]()]
        model: Captioner = Ensemble(members, [Share(None, slice(0, 4))] * 2, same_regions=True)
    else:
        model = MODELS[name]()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2)
    regions = torch.randn(3, 6, 4)
    plain, expected = model.eval(), SEARCHES[search](model, regions)
    accelerate(model)
    assert plain is model and model.accelerated and exchanged(model)
    found = SEARCHES[search](model, regions)
    assert torch.equal(found.words, expected.words)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_an_ensemble_is_accelerated_where_all_of_its_members_are() -> None:
    members = [MODELS["soft"](), MODELS["transformer"]()]
    shares = [Share(None, slice(0, 4))] * 2
    for number, member in enumerate(members):
        assert not Ensemble(members, shares, same_regions=True).accelerated, number
        accelerate(member)
    assert Ensemble(members, shares, same_regions=True).accelerated


def test_weights_of_an_accelerated_model_load_into_a_plain_one_and_the_other_way_round() -> None:
    one, other = RAM((1, 8, 8), 3, num_glimpses=2), RAM((1, 8, 8), 3, num_glimpses=2)
    accelerate(other)
    one.load_state_dict(other.state_dict())
    other.load_state_dict(one.state_dict())
    assert exchanged(other) and not exchanged(one)


def test_a_loop_leaves_nothing_on_its_layers() -> None:
    """Also where it fails: `loop` would keep a step's tensors, and make later calls collect."""
    task, batch = tiny.made("sat_soft_scenes")
    accelerate(task)
    task(*batch)
    with pytest.raises(IndexError):
        task.model(torch.randn(3, 4, 16), torch.full((3, 2, 4), 99))
    assert not any("loop" in vars(part) or "lengths" in vars(part) for part in task.modules())


def test_a_class_names_its_fast_version_and_no_other_does() -> None:
    """A reader of a paper's file learns there whether other code may run."""
    said = {}
    for folder in ("layers", "attention", "models", "encoders", "criteria"):
        for path in (ROOT / "vision_attn" / folder).glob("*.py"):
            for part in ast.parse(path.read_text()).body:
                if isinstance(part, ast.ClassDef) and (names := FAST_LINE.findall(ast.get_docstring(part) or "")):
                    said[f"{folder}.{path.stem}.{part.name}"] = names
    assert said == {name: [fast] for name, fast in FAST.items()}


def test_the_example_of_the_docs_trains_and_is_plain_afterwards() -> None:
    section = (ROOT / "docs" / "scale.md").read_text().split("## Speed in a training loop of your own")[1]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1].replace("range(3)", "range(30)")
    seen: list[tuple[float, int]] = []
    made: dict = {"note": lambda model, loss: seen.append((float(loss), len(exchanged(model))))}
    torch.manual_seed(0)
    exec(code.replace("    loss.backward()", "    note(model, loss.detach())\n    loss.backward()"), made)
    losses, numbers = zip(*seen, strict=True)
    assert len(losses) == 30 and losses[-1] < losses[0] - 1 and min(numbers) > 10  # dropout alone changes them by 0.5
    assert not exchanged(made["model"])

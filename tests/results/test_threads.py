"""Models that threads share, as in a web service: every answer is that of one thread, from the first call on."""

import copy
import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from whole_runs import train

import vision_attn
from tests.explain.test_look import MODULE
from tests.pretrained import pretrained  # noqa: F401
from tests.tiny import made
from tests.untrained import SIZES, write_run
from vision_attn.commands import main
from vision_attn.encoders.backbone import Backbone
from vision_attn.encoders.folding import Folded
from vision_attn.explain.record import record_attention
from vision_attn.results.classified import DrawnImages
from vision_attn.results.explained import ExplanationResult
from vision_attn.system.locks import DRAWING, RandomStream, Turn, forked

THREADS, ROUNDS = 4, 1
"""Of a round, each model is a new one. Those of other libraries take one, since opening them takes long."""
SAMPLED = {"captions": 3, "strategy": "sampled"}
BACKBONE = [
    "--task.encoder=vision_attn.encoders.backbone.Backbone", "--task.encoder.name=efficientnet_lite0",
    "--task.encoder.node=blocks.2", "--task.encoder.resolution=32",
]  # fmt: skip
OTHERS = [option for option in SIZES["sat_soft_scenes"] if "encoder" not in option]


@pytest.fixture(autouse=True)
def often_another_thread() -> Iterator[None]:
    """Python changes threads every 0.1 milliseconds instead of 5."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(usual)


def picture(seed: int = 0, size: tuple[int, int] = (60, 44)) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8))


def together(*works: Callable[[], Any]) -> list[Any]:
    """What each function returns, or the error that it raises, all called at the same time."""
    start, found = threading.Barrier(len(works)), [None] * len(works)

    def work(number: int) -> None:
        start.wait()
        try:
            found[number] = works[number]()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def plain(result: Any) -> Any:
    """A result as values that can be compared: all of it, without times."""
    if isinstance(result, list):
        return [plain(one) for one in result]
    if isinstance(result, ExplanationResult):
        return result.words, result.log_prob, result.alpha.tolist(), result.extent
    if isinstance(result, DrawnImages):
        return result.canvases.tolist()
    found = result.record(maps=True)
    for numbers in found.get("methods", {}).values():
        numbers.pop("seconds", None)
    return found


class Case(NamedTuple):
    """A model, by its name or from a config, and what it is asked."""

    name: str
    ask: Callable[[Any], Any]
    options: tuple[str, ...] = ()
    """Of a config."""
    settings: dict[str, Any] = {}
    """Of `load`."""


def caption(model: Any) -> Any:
    return model.caption(picture())


def captions(model: Any) -> Any:
    return model.caption([picture(), picture(1), picture(2)], captions=2)


def sampled(model: Any) -> Any:
    return model.caption(picture(), seed=5, **SAMPLED)


def film(model: Any) -> Any:
    """Captions the bytes of an animation."""
    file = io.BytesIO()
    picture().save(file, "GIF", save_all=True, append_images=[picture(seed) for seed in range(1, 9)])
    return model.caption(file.getvalue())


def transcribe(model: Any) -> Any:
    return model.transcribe(picture(size=(70, 20)))


def classify(model: Any) -> Any:
    return model.classify([picture(), picture(1)])


def look(**options: Any) -> Callable[[Any], Any]:
    return lambda model: model.look(picture(), **options)


def measure(model: Any) -> Any:
    return model.measure([picture()], methods="occlusion", steps=2, best=0, sanity=1)


TINY = tuple(SIZES["sat_soft_scenes"])
FOLDED = (*BACKBONE, *OTHERS)
VIT = ("--task.model.patch=14", "--task.model.overlap=0", "--task.model.num_layers=2", "--task.model.hidden_size=8",
       "--task.model.num_heads=2", "--task.model.feedforward_size=8")  # fmt: skip
CASES = {
    "soft": Case("sat_soft_scenes", caption, TINY),
    "hard": Case("sat_hard_scenes", caption, TINY),
    "no attention": Case("show_and_tell_scenes", caption, tuple(one for one in TINY if "score" not in one)),
    "top-down": Case("top_down_scenes", caption, tuple(SIZES["top_down_scenes"])),
    "a Transformer": Case("transformer_scenes", caption, tuple(SIZES["transformer_scenes"])),
    "a folded encoder": Case("sat_soft_scenes", caption, FOLDED),
    "a list of captions of each": Case("sat_soft_scenes", captions, FOLDED),
    "sampled captions": Case("sat_hard_scenes", sampled, TINY),
    "films": Case("weights/drawn_films", film),
    "lines": Case("strings_read_search", transcribe, ("--task.model.hidden_size=8",)),
    "lines by CTC": Case("strings_read_ctc", transcribe, ("--task.model.hidden_size=8",)),
    "lines by DRAM": Case("strings_read_dram", transcribe),
    "RAM": Case("ram_mnist28", classify, tuple(SIZES["ram_mnist28"])),
    "RAM on photographs": Case("weights/ram_photographs", classify),
    "a reader of windows": Case("weights/draw_reader_cluttered100", classify),
    "a ViT": Case("vit_scenes", look(), VIT),
    "DRAW": Case("draw_mnist", lambda model: model.draw(3), tuple(SIZES["draw_mnist"])),
    "a captioner that is looked into": Case("sat_soft_scenes", look(), FOLDED),
    "a classifier of glimpses that is measured": Case("ram_mnist28", measure, tuple(SIZES["ram_mnist28"])),
    "torchvision": Case("squeezenet1_1", look(), settings={"weights": "none"}),
    "timm": Case("timm:test_vit", look(), settings={"weights": "none"}),
    "a function": Case("tiny_model:make", look(method="rollout"), settings={"trust": "tiny_model"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Case], Any]]:
    """What opens the model of a case: its name, or the folder of a run, which is written when it is first asked for."""
    root, written = tmp_path_factory.mktemp("runs"), dict[Any, Path]()
    (root / "tiny_model.py").write_text(MODULE)
    sys.path.insert(0, str(root))

    def name_of(case: Case) -> Any:
        if case.options or not any(sign in case.name for sign in "/:1"):
            if case[::2] not in written:
                folder = root / str(len(written))
                folder.mkdir()
                sizes = [*case.options, "--run.device=cpu"]
                written[case[::2]] = write_run(case.name, folder / "run", sizes=list(dict.fromkeys(sizes)))
            return written[case[::2]]
        return case.name

    yield name_of
    sys.path.remove(str(root))


@pytest.fixture
def opened(named: Callable[[Case], Any]) -> Callable[[Case], Any]:
    """Opens the model of a case, each time a new one."""
    return lambda case: vision_attn.load(named(case), device="cpu", **case.settings)


class DrawnOnlyInTurn(TorchDispatchMode):
    """Fails where a thread that does not hold `DRAWING` draws from torch's default generator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        own = any(isinstance(one, torch.Generator) for one in (*args, *(kwargs or {}).values()))
        fused = "attention" in func.name()  # tagged for its dropout, of which an evaluated model has none
        if torch.Tag.nondeterministic_seeded in func.tags and not own and not fused:
            assert DRAWING._lock._is_owned(), f"{func} draws while another thread may"
        return func(*args, **(kwargs or {}))


@contextmanager
def random_numbers_in_turn() -> Iterator[None]:
    """What draws random numbers, or sets where they go on, must hold `DRAWING`: an unlucky thread would change the
    samples of another, too rarely to be seen where threads run together."""

    def in_turn(call: Callable[..., Any], *arguments: Any) -> Any:
        assert DRAWING._lock._is_owned(), f"{call.__name__} while another thread may draw"
        return call(*arguments)

    with pytest.MonkeyPatch.context() as patch, DrawnOnlyInTurn():
        for name in ("set_rng_state", "manual_seed"):
            patch.setattr(torch, name, partial(in_turn, getattr(torch, name)))
        yield


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_threads_find_what_one_thread_finds(
    kind: str, named: Callable[[Case], Any], opened: Callable[[Case], Any]
) -> None:
    case = CASES[kind]
    named(case)  # whose run has random weights
    with random_numbers_in_turn():
        expected = plain(case.ask(opened(case)))
    for _ in range(1 if case.settings else ROUNDS):
        model = opened(case)
        state = torch.get_rng_state()
        found = together(*[lambda model=model: plain(case.ask(model))] * THREADS)
        assert found == [expected] * THREADS
        assert plain(case.ask(model)) == expected
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BLIP", "ViT and GPT-2", "LLaVA"])
def test_threads_share_a_captioner_of_transformers(kind: str, pretrained: Callable[[str], str]) -> None:  # noqa: F811
    name = pretrained(kind)
    asked = [caption, lambda model: model.caption(picture(), seed=3, max_words=4, **SAMPLED), look()]
    expected = [plain(ask(vision_attn.load(name, device="cpu"))) for ask in asked]
    for _ in range(ROUNDS):
        model = vision_attn.load(name, device="cpu")
        assert together(*[lambda ask=ask, model=model: plain(ask(model)) for ask in asked]) == expected
        assert plain(asked[0](model)) == expected[0]


@pytest.mark.parametrize("case", ["memory_stories", "memory_scenes"])
def test_threads_share_an_answerer(case: str) -> None:
    def fresh() -> Callable[[], list[Any]]:
        task, batch = made(case)
        task.eval()
        return lambda: [part.tolist() for part in task.answered(batch.facts, batch.words)]

    expected = fresh()()
    for _ in range(ROUNDS):
        assert together(*[fresh()] * THREADS) == [expected] * THREADS


@pytest.mark.slow
def test_different_questions_to_one_model_do_not_meet(opened: Callable[[Case], Any]) -> None:
    """Measuring makes all weights random for a while, and sampling seeds the generator of all threads."""
    case, alone = CASES["a folded encoder"], opened(CASES["a folded encoder"])
    asked = [caption, measure, look(), sampled,
             lambda model: [one for one in model.caption(iter([picture(1)] * 3))]]  # fmt: skip
    expected = [plain(ask(alone)) for ask in asked]
    for _ in range(ROUNDS):
        run = opened(case)
        assert together(*[lambda ask=ask, run=run: plain(ask(run)) for ask in asked]) == expected


@pytest.mark.slow
def test_models_are_opened_and_asked_by_threads_at_the_same_time(opened: Callable[[Case], Any]) -> None:
    """torch.fx, which cuts networks for encoders, replaces what calls a module, in all threads. Random weights and
    seeded samples come from one generator."""
    kinds = ["a folded encoder", "torchvision", "sampled captions", "RAM", "timm"]
    cases = [CASES[kind] for kind in kinds]
    expected = [plain(case.ask(opened(case))) for case in cases]
    layers, done = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)), threading.Event()
    x = torch.ones(2, 3)
    before = layers(x)

    def someone_else() -> int:
        calls = 0
        while not done.wait(0.001) or not calls:
            assert torch.equal(layers(x), before)
            calls += 1
        return calls

    def open_and_ask() -> list[Any]:
        try:
            return together(*[lambda case=case: plain(case.ask(opened(case))) for case in cases])
        finally:
            done.set()

    for _ in range(2):
        done.clear()
        calls, found = together(someone_else, open_and_ask)
        assert isinstance(calls, int) and calls and found == expected


def test_one_encoder_is_folded_once_by_threads_that_call_it_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    encoder, times, fold = Backbone(name="efficientnet_lite0", node="blocks.2", resolution=64), [], Folded._fold
    images = torch.randint(256, (1, 3, 64, 64), dtype=torch.uint8)
    # counts how often it is folded, which no result shows
    monkeypatch.setattr(Folded, "_fold", lambda self: times.append(1) or fold(self))

    def ask() -> Tensor:
        with torch.no_grad():
            return encoder(images)

    for number in (1, 2):
        found, body = together(*[ask] * 6), encoder.body
        with torch.no_grad():
            unfolded = body((images.float() / 255 - encoder.mean) / encoder.std)["map"].flatten(2).mT
            assert len(times) == number and all(torch.equal(one, found[0]) for one in found)
            torch.testing.assert_close(found[0], unfolded)
            next(body.parameters()).mul_(2)  # after which it is folded again


def test_samples_of_a_seed_go_on_from_batch_to_batch_whatever_else_draws(opened: Callable[[Case], Any]) -> None:
    """An iterator of results is left in the middle: what is asked meanwhile changes nothing, and is not changed."""
    model, images = opened(CASES["hard"]), [picture()] * 20  # more than a batch
    whole = [plain(one) for one in model.caption(images, seed=7, **SAMPLED)]
    expected = plain(model.caption(picture(), seed=8, **SAMPLED))
    torch.manual_seed(3)
    free = torch.rand(2)
    torch.manual_seed(3)
    results, found = model.caption(iter(images), seed=7, **SAMPLED), []
    for one in results:
        found.append(plain(one))
        if len(found) in (5, 17):
            assert plain(model.caption(picture(), seed=8, **SAMPLED)) == expected
            assert torch.rand(1) == free[int(len(found) > 5)]
    assert found == whole and whole[15] != whole[16] != whole[0]


@pytest.mark.slow
def test_a_thread_may_train_while_another_captions(tmp_path: Path, opened: Callable[[Case], Any]) -> None:
    sizes = dict(option.removeprefix("--").split("=") for option in TINY)

    def trained(name: str) -> dict[str, Tensor]:
        assert main(train("sat_soft_scenes", **sizes | {"run.folder": tmp_path / name, "run.epochs": 2})) == 0
        return load_file(tmp_path / name / "best" / "model.safetensors")

    alone, case, done = trained("alone"), CASES["a folded encoder"], threading.Event()
    model = opened(case)  # now: weights that are drawn would take random numbers away from training
    expected = plain(case.ask(opened(case)))

    def trained_with_company() -> dict[str, Tensor]:
        try:
            return trained("together")
        finally:
            done.set()

    def captioned() -> list[Any]:
        found = []
        while not done.is_set() or not found:
            found.append(plain(case.ask(model)))
        return found

    weights, texts = together(trained_with_company, captioned)
    assert all(torch.equal(weights[name], alone[name]) for name in alone)
    assert texts == [expected] * len(texts)


def test_results_are_drawn_by_threads(tmp_path: Path, opened: Callable[[Case], Any]) -> None:
    """Type faces are opened at the first picture."""
    result = opened(CASES["soft"]).caption(picture())
    expected = result.page(), result._repr_png_()
    assert together(*[lambda: (result.page(), result._repr_png_())] * THREADS) == [expected] * THREADS


def test_attention_is_recorded_of_the_thread_that_records() -> None:
    """Calls of the same module in other threads are none of the record."""
    torch.manual_seed(0)
    layer, x, other = nn.MultiheadAttention(8, 2, batch_first=True), torch.rand(1, 5, 8), torch.rand(1, 3, 8)
    inside, called = threading.Event(), threading.Event()

    def record() -> list[tuple[int, ...]]:
        with record_attention(layer, queries="all") as found:
            inside.set()
            assert called.wait(60)
            layer(x, x, x)
        return [tuple(one.maps.shape) for one in found]

    def call() -> Tensor:
        assert inside.wait(60)
        output = layer(other, other, other)[0]
        called.set()
        return output

    expected = layer(other, other, other)[0]
    recorded, output = together(record, call)
    assert recorded == [(1, 2, 5, 5)] and torch.equal(output, expected)


def test_a_copy_of_a_model_has_a_turn_of_its_own(opened: Callable[[Case], Any]) -> None:
    model = opened(CASES["a folded encoder"])
    expected = plain(caption(model))
    other = copy.deepcopy(model)
    with model.turn:
        assert together(lambda: plain(caption(other))) == [expected]


def test_a_stream_of_random_numbers_goes_on() -> None:
    with forked(4):
        expected = torch.rand(4)
    stream, parts = RandomStream(4, torch.device("cpu")), []
    for _ in range(4):
        with stream.going_on():
            parts.append(torch.rand(1))
        torch.rand(1)
    assert torch.equal(torch.cat(parts), expected)


def test_a_turn_is_of_one_thread_which_may_take_it_again() -> None:
    turn, order, inside = Turn(), [], threading.Event()

    def first() -> None:
        with turn, turn:
            inside.set()
            waiting.start()
            order.append("first")

    def second() -> None:
        with turn:
            order.append("second")

    waiting = threading.Thread(target=second)
    first()
    waiting.join()
    assert order == ["first", "second"] and inside.is_set()


COLD = """
import json, sys, threading
import vision_attn
from PIL import Image

image = Image.linear_gradient("L").convert("RGB").resize((60, 44))
model, start, found = vision_attn.load("weights/photographs", device="cpu"), threading.Barrier(4), []

def ask():
    start.wait()
    try:
        found.append(json.dumps(model.caption(image, placed=False).record(maps=True)))
    except BaseException as error:
        found.append(repr(error))

threads = [threading.Thread(target=ask) for _ in range(4)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
found.append(json.dumps(model.caption(image, placed=False).record(maps=True)))
print(len(found), len(set(found)), found[0][:40])
"""


@pytest.mark.slow
def test_the_first_calls_of_a_process_may_come_from_several_threads() -> None:
    """They import numba, whose loops are compiled or read from its cache, and fold the encoder."""
    done = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith('5 1 {"caption": "'), done.stdout + done.stderr

"""Control: whether what is said follows the map that a captioner is made to have."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import vision_attn
from vision_attn.attention.steered import Steered
from vision_attn.contracts import END, WHOLE, AttentionMap, Captioner, DecodedCaption, Results
from vision_attn.decode import beam_search
from vision_attn.geometry.places import RegionGrid
from vision_attn.metrics.control import Case, Control, _map, cases_of, objects_of
from vision_attn.tasks.word_control import Controlled, WordControl, shares

COLORS = ("red", "green", "blue", "white")
WORDS = ("", "END", *COLORS, "and")
BOXES = [(-1, -1, 0, 0), (0, -1, 1, 0), (-1, 0, 0, 1), (0, 0, 1, 1)]
"""A colour in each quarter of an image, whose four regions say which."""


class Painter(Captioner):
    """Says "COLOUR and COLOUR": the colour that it sees where it looks, first in the first region, then in the second;
    or, blind, those of these regions whatever its map is."""

    steerable = True

    def __init__(self, *, blind: bool) -> None:
        super().__init__()
        self.blind = blind

    def start(self, regions: Tensor, rows: int) -> tuple:
        return (regions, None), torch.zeros(len(regions), rows, dtype=torch.long)

    def steer(self, memory: tuple, forced) -> tuple:
        return memory[0], forced

    def step(self, word: Tensor, state: Tensor, memory: tuple) -> tuple:
        regions, forced = memory
        own = F.one_hot((state >= 2).long(), 4).float()
        alpha = own if forced is None else forced.mixed(own[:, None])[:, 0]
        color = (own if self.blind else alpha) @ regions  # (B, R, 4)
        logits = torch.full((*word.shape, len(WORDS)), -20.0)
        logits[..., 2:6] = 8 * color
        logits[(state == 1)] = 20.0 * F.one_hot(torch.tensor(6), len(WORDS))
        logits[(state == 3)] = 20.0 * F.one_hot(torch.tensor(END), len(WORDS))
        return logits, state + 1, AttentionMap(alpha)


class Decoding(SimpleNamespace):
    def changed(self, *, beams: int) -> "Decoding":
        return Decoding(beams=beams)


def task_of(model: Captioner) -> SimpleNamespace:
    def described_from(regions: Tensor, decoding: Decoding, steering=None) -> list[DecodedCaption]:
        captioner = model if steering is None else Steered(model, steering)
        found = beam_search(captioner, regions, beams=decoding.beams, max_words=5).words[:, 0].tolist()
        words = [[WORDS[index] for index in row if index > END] for row in found]
        return [DecodedCaption(" ".join(some), some, [0.0] * len(some)) for some in words]

    encoder = SimpleNamespace(layout=(1, 2, 2), grid=(2, 2), frames=1, extent=lambda: WHOLE)
    return SimpleNamespace(model=model, encoder=encoder, decoding=Decoding(), described_from=described_from)


@pytest.fixture
def batch() -> tuple[SimpleNamespace, Tensor]:
    order = torch.stack([torch.randperm(4, generator=torch.Generator().manual_seed(n)) for n in range(6)])
    boxes = [{COLORS[color]: [BOXES[cell]] for cell, color in enumerate(row)} for row in order.tolist()]
    return SimpleNamespace(boxes=boxes), F.one_hot(order, 4).float()


def measured(evaluator: Control, batch: SimpleNamespace, regions: Tensor, model: Captioner) -> dict[str, float]:
    probed = evaluator.examine(task_of(model), batch, regions, torch.zeros(len(regions), 1, 1, dtype=torch.long), ())
    evaluator.update(batch, Results(None, [], {}, frozenset(), probed))
    return evaluator.compute()


def test_a_captioner_that_says_what_it_sees_is_controlled_and_a_blind_one_is_not(batch, tmp_path: Path) -> None:
    made, regions = batch
    evaluator = Control(beams=(1, 2), strengths=(0, 0.4, 0.6))
    seeing = measured(evaluator, made, regions, Painter(blind=False))
    assert seeing["control"] == seeing["control_beams_2"] == seeing["control_own"] == 1
    assert (seeing["control_at_0"], seeing["control_at_0.4"], seeing["control_at_0.6"]) == (0, 0, 1)
    assert seeing["control_first_other"] == 1 and 0.1 < seeing["control_random"] < 0.4  # one of four regions is its
    assert seeing["control_low"] == seeing["control_high"] == 1
    evaluator.write(tmp_path)
    written = json.loads((tmp_path / "control.json").read_text())
    assert written["control"]["share"] == 1 and written["control"]["scenes"] == 6
    blind = measured(Control(beams=[1]), made, regions, Painter(blind=True))
    assert blind["control"] == blind["control_random"] == 0 and blind["control_own"] == 1


def test_others_have_none(batch) -> None:
    made, regions = batch
    model = Painter(blind=False)
    assert measured(Control(), SimpleNamespace(boxes=[None] * 6), regions, model) == {}
    model.steerable = False
    assert measured(Control(), made, regions, model) == {}


def test_cases_are_the_first_two_words_of_each_object_with_each_other_one() -> None:
    first, second, third = ((((n, 0, n + 1, 1)),) for n in range(3))
    boxes = {"red": first, "star": first, "blue": second, "cross": second, "pink": third}
    caption = DecodedCaption("", ["a", "red", "star", "and", "a", "blue", "red", "cross"], [])
    objects = objects_of({word: list(places) for word, places in boxes.items()})
    found = cases_of(5, caption, objects)
    assert [(case.place, case.turn, case.opens) for case in found] == [
        (1, 0, True), (1, 0, True), (2, 1, False), (2, 1, False), (5, 0, False), (5, 0, False), (7, 1, False),
        (7, 1, False),
    ]  # fmt: skip
    assert {case.other for case in found if case.place == 2} == {objects["blue"], objects["pink"]}


def test_maps_of_films_lie_in_the_frames_of_the_boxes() -> None:
    here, there = (((-1.0, -1.0, 0.0, 0.0, 0.0), (0.0, 0.0, 1.0, 1.0, 2.0)), ((1.0, 1.0, 1.0, 1.0, 0.0),))
    case = Case(0, 0, 0, here, there)
    assert _map(case, "own", RegionGrid(2, 2), 3).tolist() == [0.5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.5]
    assert _map(case, "other", RegionGrid(2, 2), 3) is None  # it has left


def test_the_included_captioner_of_scenes_names_what_it_is_made_to_look_at() -> None:
    task = vision_attn.load_model("weights/drawn_scenes", device="cpu")
    source, task = task.source, task.task
    batch = next(iter(source.split("test")))
    batch = type(batch)(*(None if part is None else part[:10] for part in batch))
    evaluator = Control(beams=[1], strengths=[1])
    task.evaluators = {"control": lambda: evaluator}
    predicted = task.predict(batch, full=True)
    evaluator.update(predicted.batch, predicted.results._replace(probed=predicted.probed["control"]))
    found = evaluator.compute()
    assert found["control"] > 0.85 and found["control_own"] > 0.85 and found["control_random"] < 0.3
    assert found["control_next_own"] > 0.7  # the shape still comes from its own object


def test_a_word_is_likelier_where_its_place_is_looked_at_than_elsewhere(batch) -> None:
    """Places are found by occlusion: without its quarter a colour cannot be said. Of a blind captioner none is."""
    _, regions = batch
    image = torch.zeros(3, 8, 8)

    def encoded(images: Tensor) -> Tensor:  # a quarter that has changed shows nothing
        quarters = images[:, 0].unfold(1, 4, 4).unfold(2, 4, 4).flatten(3).mean(dim=3).flatten(1)
        return regions[:1] * (quarters[..., None] == 0)

    def gray(image: Tensor, gone: Tensor) -> Tensor:
        return torch.where(gone[:, None], 1.0, image)

    words = torch.tensor([*(2 + regions[0, :1].argmax(dim=1)), 6, *(2 + regions[0, 1:2].argmax(dim=1)), END])
    for blind in (False, True):
        model = Painter(blind=blind)
        model.forward = partial(by_steps, model)
        torch.manual_seed(0)  # the places it is compared with are drawn
        found = WordControl(model, RegionGrid(2, 2), encoded).of(image, words, [0, 2], [(), ()], gray)
        if blind:
            assert all(one is None or one == Controlled(0, 0) for one in found)
        else:
            assert all(one.placed > 0.4 and one.random == 0 for one in found)
    assert WordControl(model, RegionGrid(2, 2), encoded).of(image, words, [0], [()], gray) == [None]


def by_steps(model: Captioner, regions: Tensor, words: Tensor) -> SimpleNamespace:
    memory, state = model.start(regions, words.shape[1])
    steps = []
    for word in words.unbind(dim=2):
        logits, state, _ = model.step(word, state, memory)
        steps.append(logits.log_softmax(dim=-1).gather(-1, word[..., None]).squeeze(-1))
    return SimpleNamespace(log_prob=torch.stack(steps, dim=2))


def test_only_words_that_could_be_said_are_compared() -> None:
    log_p = torch.tensor([[0.5, 1e-5, 0.1], [0.1, 1e-4, 0.06], [0.5, 1e-5, 0.9]]).log()
    assert shares(log_p) == Controlled(0.25, 0.25)  # of four comparisons: 5 times, the same, 1.7 times, a ninth
    assert shares(log_p[:, 1:2]) is None


@pytest.mark.slow
def test_measure_has_a_column() -> None:
    model = vision_attn.load_model("weights/drawn_scenes", device="cpu")
    result = model.measure(None, number=2, methods=["attention", "grad-cam"], steps=1, best=0, sanity=0)
    control = result.numbers["control"]
    assert (
        control["share"] > 0.5 > 0.3 > control["random"] and result.methods["attention"]["control"] == control["share"]
    )
    assert "control" not in result.methods["grad-cam"] and control["interval"] is None
    assert "Control: how often" in result.page()

"""Every score: against its equation, written out region by region; and in the captioner, by one key of the config."""

import inspect
import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.ways import prepared
from vision_attn.attention.location import ContentLocation, EmbeddedLocation, Location
from vision_attn.attention.scores import Additive, Cosine, Dot, Even, General, Kernel, KeyQuery, ScaledDot
from vision_attn.commands import main
from vision_attn.configuration.config import read
from vision_attn.configuration.run_folder import open_run
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.system.errors import UserError

B, R, GRID, D, H = 2, 3, (2, 3), 4, 5
L = GRID[0] * GRID[1]
SCENES = "configs/sat_soft_scenes.yaml"


# Each equation for one image a (L, D), one state h (H) and the previous map: one number per region.


def dot(score: Dot, a: Tensor, h: Tensor, previous: Tensor) -> list[Tensor]:
    return [sum(a_id * h_d for a_id, h_d in zip(a_i, h, strict=True)) for a_i in a]


def even(score: Even, a: Tensor, h: Tensor, previous: Tensor) -> list[Tensor]:
    return [h.new_zeros(()) for _ in a]


def scaled_dot(score: ScaledDot, a: Tensor, h: Tensor, previous: Tensor) -> list[Tensor]:
    return [e_i / math.sqrt(len(h)) for e_i in dot(score, a, h, previous)]


def cosine(score: Cosine, a: Tensor, h: Tensor, previous: Tensor) -> list[Tensor]:
    def length(x: Tensor) -> Tensor:
        return torch.sqrt(sum(x_d * x_d for x_d in x))

    products = dot(score, a, h, previous)
    return [
        torch.exp(score.log_sharpness) * e_i / (length(a_i) * length(h)) for e_i, a_i in zip(products, a, strict=True)
    ]


def general(score: General, a: Tensor, h: Tensor, previous: Tensor) -> list[Tensor]:
    return [h @ score.key.weight @ a_i for a_i in a]


def key_query(score: KeyQuery, a: Tensor, h: Tensor, previous: Tensor) -> list[Tensor]:
    return [(score.key.weight @ a_i) @ (score.query.weight @ h) / math.sqrt(len(score.key.weight)) for a_i in a]


def location(score: Location, a: Tensor, h: Tensor, previous: Tensor) -> list[Tensor]:
    return [score.query.weight[i] @ h + score.query.bias[i] for i in range(len(a))]


def kernel(score: Kernel, a: Tensor, h: Tensor, previous: Tensor) -> list[Tensor]:
    bandwidth = torch.exp(score.log_bandwidth)
    return [-sum((h_d - a_id) ** 2 for a_id, h_d in zip(a_i, h, strict=True)) / (2 * bandwidth**2) for a_i in a]


def embedded_location(score: EmbeddedLocation, a: Tensor, h: Tensor, previous: Tensor) -> list[Tensor]:
    place = score.query.weight @ h + score.query.bias
    return [score.positions[i] @ place / math.sqrt(len(place)) for i in range(len(a))]


def content_location(score: ContentLocation, a: Tensor, h: Tensor, previous: Tensor) -> list[Tensor]:
    rows, columns = score.grid
    middle = score.filters.kernel_size[0] // 2
    e = []
    for i in range(len(a)):
        f_i = torch.zeros_like(score.filters.weight[:, 0, 0, 0])
        for k in range(len(previous)):
            down, right = k // columns - i // columns + middle, k % columns - i % columns + middle
            if 0 <= down <= 2 * middle and 0 <= right <= 2 * middle:
                f_i = f_i + score.filters.weight[:, 0, down, right] * previous[k]
        inner = score.key.weight @ a[i] + score.key.bias + score.query.weight @ h + score.feature.weight @ f_i
        e.append(score.weight @ torch.tanh(inner))
    return e


SLOW = {
    dot: partial(Dot, H, H),
    even: partial(Even, D, H),
    scaled_dot: partial(ScaledDot, H, H),
    cosine: partial(Cosine, H, H, sharpness=3.0),
    general: partial(General, D, H),
    key_query: partial(KeyQuery, D, H, attention_size=7),
    location: partial(Location, D, H, num_regions=L),
    kernel: partial(Kernel, H, H, bandwidth=1.5, learned=True),
    embedded_location: partial(EmbeddedLocation, D, H, place_size=3, num_regions=L + 1),
    content_location: partial(ContentLocation, D, H, attention_size=7, num_filters=2, filter_size=3, grid=GRID),
}
EVERY = pytest.mark.parametrize("slow", SLOW, ids=lambda slow: slow.__name__)


def random_inputs(slow) -> tuple[torch.nn.Module, Tensor, Tensor, Tensor]:
    """The score, random regions and queries, and previous maps, in double precision."""
    torch.manual_seed(0)
    score = prepared(SLOW[slow]().double())
    regions = torch.randn(B, L, SLOW[slow].args[0]).double()
    return score, regions, torch.randn(B, R, H).double(), torch.rand(B, R, L).double().softmax(-1)


@EVERY
def test_a_score_is_its_equation(slow, both_ways):
    score, regions, query, previous = random_inputs(slow)
    fast, _ = score(query, score.project(regions), previous)
    assert fast.shape == (B, R, L)
    for b in range(B):
        for r in range(R):
            expected = torch.stack(slow(score, regions[b], query[b, r], previous[b, r]))
            torch.testing.assert_close(fast[b, r], expected, rtol=1e-12, atol=1e-12)


@EVERY
def test_gradients_are_those_of_finite_differences(slow, both_ways):
    score, regions, query, previous = random_inputs(slow)
    inputs = [part.requires_grad_() for part in (regions, query, previous)]
    torch.autograd.gradcheck(
        lambda *_: score(query, score.project(regions), previous)[0], [*inputs, *score.parameters()]
    )


def test_of_vectors_of_one_length_a_kernel_makes_the_map_of_the_scaled_dot_product():
    regions, query = torch.nn.functional.normalize(torch.randn(B, L, H).double(), dim=-1), torch.randn(B, R, H).double()
    maps = [score(query, score.project(regions))[0].softmax(-1) for score in (Kernel(H, H).double(), ScaledDot(H, H))]
    torch.testing.assert_close(*maps)


def test_a_first_map_that_is_missing_counts_as_zero():
    score, regions, query, _ = random_inputs(content_location)
    keys = score.project(regions)
    assert torch.equal(score(query, keys)[0], score(query, keys, torch.zeros(B, R, L).double())[0])


def test_the_captioner_carries_the_previous_map(both_ways):
    torch.manual_seed(0)
    score = partial(ContentLocation, attention_size=7, filter_size=3, grid=GRID)
    model = ShowAttendTell(9, D, hidden_size=H, word_size=6, score=score).eval()
    model = prepared(model)
    memory, state = model.start(torch.randn(B, L, D), R)
    for word in (0, 4, 7):
        before = state
        _, state, look = model.step(torch.full((B, R), word), before, memory)
        expected = model.score(before.hidden, memory.keys, before.carry)[0].softmax(-1)
        torch.testing.assert_close(look.alpha, expected)
        torch.testing.assert_close(state.carry, look.alpha)  # the map, for the next word
    blind = model.score(before.hidden, memory.keys, torch.zeros(B, R, L))[0].softmax(-1)
    assert not torch.allclose(look.alpha, blind, atol=1e-5)


# What does not fit is refused.


@pytest.mark.parametrize("kind", [Dot, ScaledDot, Cosine, Kernel])
def test_sizes_that_cannot_be_compared_are_refused_at_construction(kind):
    complaint = (
        f"^{kind.__name__} compares annotation vectors of size 4 with states of size 5: "
        r"make them equal \(hidden_size=4\), or choose the score General or Additive$"
    )
    with pytest.raises(UserError, match=complaint):
        kind(4, 5)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Cosine(H, H, sharpness=0.0), "Cosine: sharpness is 0.0, but must be from"),
        (lambda: ContentLocation(D, H, filter_size=4), "ContentLocation: filter_size=4 must be odd"),
        (lambda: Kernel(H, H, bandwidth=0.0), "Kernel: bandwidth is 0.0, but must be from"),
        (
            lambda: EmbeddedLocation(D, H, num_regions=5).project(torch.zeros(B, L, D)),
            "EmbeddedLocation was built for num_regions=5, .* have 6",
        ),
        (lambda: Location(D, H).project(torch.zeros(B, L, D)), "Location was built for num_regions=196, .* have 6"),
        (
            lambda: ContentLocation(D, H, grid=(3, 3)).project(torch.zeros(B, L, D)),
            r"ContentLocation was built for grid=\(3, 3\), .* have 6",
        ),
    ],
)
def test_other_mistakes_are_named(make, complaint):
    with pytest.raises(UserError, match=complaint):
        make()


# In the captioner by one key.


def train(config: str | Path, folder: Path, *overrides: str) -> int:
    """Two steps of four small scenes each, without validation."""
    settings = {
        "task.encoder.region_size": 8,
        "task.encoder.width": 16,
        "task.model.hidden_size": 8,
        "task.model.word_size": 8,
        "data.batch_size": 4,
        "data.epoch_images": 8,
        "data.val_images": 4,
        "run.epochs": 1,
        "run.warmup": 0,
        "run.log_every": 1,
        "run.validate_every": 0,
        "run.device": "cpu",
        "run.folder": folder,
    }
    return main(["train", str(config), *(f"--{key}={value}" for key, value in settings.items()), *overrides])


@pytest.mark.parametrize("score", [Additive, Dot, ScaledDot, Cosine, General, KeyQuery, Location, ContentLocation])
def test_any_score_by_one_key_of_the_command_line(score, tmp_path):
    """The config has Additive and its attention_size: another score keeps arguments that it has, and drops the rest."""
    key = f"--task.model.score={score.__module__}.{score.__name__}"
    assert train(SCENES, tmp_path / "run", key) == 0
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2] and all(math.isfinite(line["loss"]) for line in lines)
    task, _, _ = open_run(tmp_path / "run")
    assert type(task.model.score) is score


def test_any_score_by_one_line_of_yaml(tmp_path):
    lines = Path(SCENES).read_text().splitlines()
    here = lines.index("        score:")
    after = lines.index("        dropout: 0.1")
    lines[here:after] = ["        score: vision_attn.attention.scores.General"]
    (tmp_path / "sat_soft_scenes.yaml").write_text("\n".join(lines))
    by_line = read(tmp_path / "sat_soft_scenes.yaml")
    by_key = read(SCENES, ["--task.model.score=vision_attn.attention.scores.General"])
    assert by_line.task == by_key.task
    assert by_line.task.arguments["model"].arguments["score"].class_path.endswith("General")


def test_a_score_that_does_not_fit_the_config_says_so_in_one_line(tmp_path, capsys):
    key = "--task.model.score=vision_attn.attention.scores.Dot"
    assert train(SCENES, tmp_path / "run", key, "--task.model.hidden_size=12") == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "vision-attn: error: Dot compares annotation vectors of size 8 with states of size 12: "
        "make them equal (hidden_size=8), or choose the score General or Additive"
    )


def test_keys_of_other_images_are_refused():
    score = Additive(D, H, attention_size=3)
    unchecked = inspect.unwrap(Additive.forward)  # as it is where shapes are not checked
    with pytest.raises(UserError, match=r"keys must be a tensor \(3, L, 3\)"):
        unchecked(score, torch.zeros(3, R, H), score.project(torch.zeros(2, L, D)))

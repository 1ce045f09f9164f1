"""The classification task: its loss, REINFORCE against the exact gradient, its metrics by hand, and every config."""

import json
import math
from functools import partial

import pytest
import torch
from PIL import Image
from torch import nn

from tests.whole_runs import two_steps
from vision_attn.attention.glimpse import Retina
from vision_attn.attention.reinforce import Learned, LeaveOneOut, MovingAverage, Reinforce
from vision_attn.contracts import Choice, Classifier, ClassifierOutput
from vision_attn.data.digits.mnist import DigitBatch
from vision_attn.metrics.errors import predictions, wilson, within
from vision_attn.models.draw import DRAWReader
from vision_attn.models.policies import Anywhere, Gaussian
from vision_attn.models.ram import LSTM, RAM, GlimpseNetwork
from vision_attn.models.whole_image import FullyConnected
from vision_attn.system.errors import UserError
from vision_attn.task import Source
from vision_attn.tasks.classify import Classification
from vision_attn.tasks.cost import multiply_adds

CONFIGS = ["ram_mnist28", "ram_translated60", "ram_cluttered60", "ram_cluttered100", "ram_random_cluttered60",
           "fc_cluttered60", "conv_cluttered60"]  # fmt: skip


class Nothing(Source):
    image_shape, num_classes = (1, 12, 12), 4


SOURCE = Nothing()


class Fixed(Classifier):
    """A classifier that returns a given glance."""

    reinforced, stochastic, pixels, state_size = True, True, 7, 5

    def __init__(self, *glances: ClassifierOutput):
        super().__init__()
        self.weight, self.glances, self.calls = nn.Parameter(torch.zeros(1)), list(glances), []

    def forward(self, images, rows: int = 1, mode: str = "sample") -> ClassifierOutput:
        self.calls.append((len(images), rows, mode))
        return self.glances[min(len(self.calls), len(self.glances)) - 1]


def fixed(*glances: ClassifierOutput, **options) -> Classification:
    return Classification(SOURCE, model=lambda *_: Fixed(*glances), **options)


def small(num_glimpses: int = 3, **options) -> Classification:
    torch.manual_seed(0)
    model = partial(
        RAM,
        num_glimpses=num_glimpses,
        retina=partial(Retina, size=4),
        glimpse=partial(GlimpseNetwork, what_size=8, where_size=8, glimpse_size=8),
        core=partial(LSTM, hidden_size=6),
        policy=partial(Gaussian, hidden_size=5, sigma=0.3),
        first="centre",
    )
    return Classification(SOURCE, model=model, **options)


def batch(number: int = 6) -> DigitBatch:
    generator = torch.Generator().manual_seed(5)
    images = torch.rand(number, 1, 12, 12, generator=generator)
    return DigitBatch(images, torch.arange(number) % 4, torch.tensor([[-1.0, -1, 0, 1]]).repeat(number, 1))


def drawn(log_prob: torch.Tensor) -> Choice:
    return Choice(
        log_prob, torch.zeros_like(log_prob), torch.ones_like(log_prob).bool(), torch.zeros(*log_prob.shape, 5)
    )


@pytest.mark.parametrize(
    "reward, by", [("last", "answer"), ("each", "answer"), ("last", "probability"), ("each", "probability")]
)
def test_the_loss_by_hand(reward, by):
    """Two images, one copy, three glimpses, two samples; the baseline is that of the first call of a moving average."""
    p = torch.tensor([[0.1, 0.6, 0.7], [0.3, 0.8, 0.4]])  # of the label, after each glimpse
    glance = ClassifierOutput(
        torch.stack([p, *[(1 - p) / 3] * 3], dim=-1)[:, None].log(),
        torch.zeros(2, 1, 3, 2),
        drawn(torch.tensor([[[-1.0, 2.0]], [[0.5, -0.3]]])),
    )
    averaged = partial(Reinforce, baseline=MovingAverage, entropy_weight=0.0)
    task = fixed(glance, early_weight=0.3, reward=reward, reward_by=by, reinforce=averaged)
    found = task(torch.zeros(2, 1, 12, 12), torch.zeros(2, dtype=torch.long))
    nll = -(math.log(0.7) + math.log(0.4)) / 2
    early = -(math.log(0.1) + math.log(0.6) + math.log(0.3) + math.log(0.8)) / 4
    # correct after each glimpse: no, yes, yes; yes, yes, yes
    answer = {"last": [[1, 1], [1, 1]], "each": [[2, 1], [2, 1]]}
    probability = {"last": [[0.7, 0.7], [0.4, 0.4]], "each": [[1.3, 0.7], [1.2, 0.4]]}
    returns = {"answer": answer, "probability": probability}[by][reward]
    terms = {"last": [1, 1], "each": [2, 1]}[reward]
    mean = sum(returns[image][draw] / terms[draw] for image in (0, 1) for draw in (0, 1)) / 4
    baseline = [mean * number for number in terms]
    scores = [[-1.0, 2.0], [0.5, -0.3]]
    reinforce = -sum(
        (returns[image][draw] - baseline[draw]) * scores[image][draw] for image in (0, 1) for draw in (0, 1)
    )
    torch.testing.assert_close(found["nll"].item(), nll)
    torch.testing.assert_close(found["loss"].item(), nll + 0.3 * early + reinforce / 2)
    assert found["error"] == 0


def test_a_tie_is_an_answer_like_any_other():
    """The answer is the first of equal classes, in training as in evaluation."""
    glance = ClassifierOutput(torch.zeros(4, 1, 1, 4), torch.zeros(4, 1, 1, 2), drawn(torch.zeros(4, 1, 1)))
    labels = torch.arange(4)
    averaged = partial(Reinforce, baseline=MovingAverage)
    assert fixed(glance, reinforce=averaged)(torch.zeros(4, 1, 12, 12), labels)["error"] == 75
    batches = [DigitBatch(torch.zeros(4, 1, 12, 12), labels, torch.zeros(4, 4))]
    assert fixed(glance, reinforce=averaged).evaluate(batches)["error"] == 75


def test_the_distance_from_the_box_by_hand():
    """Two images with one chosen location each: one outside the box in both axes, one inside."""
    boxes = torch.tensor([[-1.0, -1, 0, 0], [0, 0, 1, 1]])
    choice = drawn(torch.zeros(2, 1, 1))._replace(mean=torch.tensor([[[[0.3, 0.4]]], [[[0.5, 0.5]]]]))
    glance = ClassifierOutput(torch.zeros(2, 1, 2, 4), torch.zeros(2, 1, 2, 2), choice)
    averaged = partial(Reinforce, baseline=MovingAverage)
    tasks = [fixed(glance, box_weight=weight, reinforce=averaged) for weight in (0.0, 3.0)]
    found = [task(torch.zeros(2, 1, 12, 12), torch.zeros(2, dtype=torch.long), boxes) for task in tasks]
    assert "outside" not in found[0]
    torch.testing.assert_close(found[1]["outside"].item(), (0.09 + 0.16) / 2)
    torch.testing.assert_close((found[1]["loss"] - found[0]["loss"]).item(), 3 * (0.09 + 0.16) / 2)


def reader() -> Classification:
    torch.manual_seed(0)
    return Classification(SOURCE, model=partial(DRAWReader, num_glimpses=3, size=3, hidden_size=6), box_weight=1.0)


@pytest.mark.parametrize("task", [partial(small, box_weight=1.0), reader], ids=["RAM", "DRAWReader"])
def test_locations_are_drawn_into_the_box(task):
    """Trained on the distance alone, every location that the model chooses ends in the box."""
    task, data = task(), batch()._replace(boxes=torch.tensor([[0.3, 0.4, 0.9, 0.8]]).repeat(6, 1))
    optimizer = torch.optim.Adam(task.parameters(), lr=0.02)
    distances = []
    for _ in range(60):
        loss = task._outside(task.model(data.images), data.boxes)
        distances.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert distances[0] > 0.2 and distances[-1] < 1e-3
    locations = task.model(data.images, mode="mean").locations
    assert ((locations[:, :, 1:] > 0.25) & (locations[:, :, 1:] < 0.95)).all()


def test_what_cannot_be_drawn_into_a_box_is_an_error():
    data = batch()
    with pytest.raises(UserError, match="box_weight must be 0, because the data set knows no boxes"):
        small(box_weight=1.0)(data.images, data.labels)
    whole = Classification(SOURCE, model=partial(FullyConnected, hidden_size=5), box_weight=1.0)
    with pytest.raises(UserError, match="this FullyConnected chooses no locations"):
        whole(*data)
    with pytest.raises(UserError, match="box_weight is -1.0, but must not be negative"):
        small(box_weight=-1.0)


@pytest.mark.parametrize("reward", ["last", "each"])
def test_a_reward_counts_for_the_glimpse_before_it(reward):
    right = torch.tensor([[[1.0, 0.0, 1.0, 0.0]]])
    task = fixed(reward=reward)
    glance = ClassifierOutput(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 2), drawn(torch.zeros(1, 1, 3)))
    wanted = {"last": [[0.0]], "each": [[[0.0, 1.0, 0.0]]]}[reward]
    torch.testing.assert_close(task._rewards(right, glance), torch.tensor(wanted))
    first_too = glance._replace(choice=drawn(torch.zeros(1, 1, 4)))
    wanted = {"last": [[0.0]], "each": [[[1.0, 0.0, 1.0, 0.0]]]}[reward]
    torch.testing.assert_close(task._rewards(right, first_too), torch.tensor(wanted))


@pytest.mark.parametrize("baseline", [MovingAverage, Learned, partial(LeaveOneOut, num_runs=4)])
def test_the_location_network_climbs_the_expected_reward(baseline):
    """One image and one sample: the share of correct answers is an integral over the plane with a known gradient."""
    task = small(2, reinforce=partial(Reinforce, baseline=baseline, entropy_weight=0.0)).double()
    model, policy = task.model, task.model.policy
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    image = torch.zeros(1, 1, 12, 12).double()
    image[..., 7:] = 1
    axis = torch.linspace(-3, 3, 181).double()
    plane = torch.cartesian_prod(axis, axis)
    state = []
    policy.locate = lambda shown, noise: state.append(shown[:, :1]) or plane[None]
    said = model(image, len(plane)).log_prob[0, :, -1].argmax(-1)
    del policy.locate
    label = said.mode().values
    right = (said == label).double()
    assert 0.1 < right.mean() < 0.9
    density = torch.distributions.Normal(policy.mean(state[0])[0].tanh(), 0.3).log_prob(plane).sum(-1).exp()
    (-(density * right).sum() * (axis[1] - axis[0]) ** 2).backward()
    truth = torch.cat([weight.grad.flatten() for weight in policy.parameters()])

    repeats, found = 30, []
    task.rows = 2000
    for _ in range(repeats):
        task.zero_grad()
        task(image, label[None])["loss"].backward()
        found.append(torch.cat([weight.grad.flatten() for weight in policy.parameters()]))
    found = torch.stack(found)
    print(f"variance of one sample's gradient: {found.var(0).sum() * task.rows:.3f}, exact norm {truth.norm():.3f}")
    away, error = found.mean(0) - truth, found.std(0) / repeats**0.5
    kept = error > 1e-9
    assert kept.sum() > 10 and (away / error)[kept].abs().max() < 5
    assert away.norm() < 0.1 * truth.norm() and truth.norm() > 0.01


def test_everything_learns():
    task = small(reinforce=partial(Reinforce, baseline=Learned), early_weight=0.3, reward="each", copies=2)
    task(*batch())["loss"].backward()
    assert not [name for name, weight in task.named_parameters() if weight.grad is None or not weight.grad.any()]


def test_copies_are_as_many_as_reinforce_compares():
    task = small(copies=3, reinforce=partial(Reinforce, baseline=partial(LeaveOneOut, num_runs=2)))
    assert task.rows == 6 and task(*batch())["loss"].isfinite()
    assert Classification(SOURCE, model=FullyConnected, copies=3).reinforce is None


def said(*classes: int, locations=None) -> ClassifierOutput:
    """Copies (rows) of one image, each of which predicts one class with near certainty."""
    log_prob = torch.full((1, len(classes), 1, 4), 0.01)
    for row, kind in enumerate(classes):
        log_prob[0, row, 0, kind] = 0.97
    return ClassifierOutput(log_prob.log(), locations)


def test_an_answer_is_the_mean_of_copies():
    assert predictions(said(1, 2, 2)).tolist() == [[2]]
    sure = torch.tensor([[0.05, 0.9, 0.03, 0.02], [0.4, 0.1, 0.3, 0.2], [0.4, 0.1, 0.3, 0.2]])
    assert predictions(ClassifierOutput(sure.log()[None, :, None], None)).tolist() == [[1]]  # not the majority vote


def test_metrics_by_hand():
    """Two images of class 0, predicted 0 and 1; of the two copies of the first, one looks at the digit last."""
    locations = torch.zeros(2, 2, 3, 2)
    locations[0, :, -1] = torch.tensor([[-0.5, 0.9], [0.5, 0.9]])
    log_prob = torch.stack([said(0, 0).log_prob[0], said(1, 1).log_prob[0]]).expand(-1, -1, 3, -1)
    glance = ClassifierOutput(log_prob, locations)
    boxes = torch.tensor([[-1.0, -1, 0, 1], [-1.0, -1, 1, 1]])
    task = fixed(glance, at_test="copies", test_copies=2)
    batches = [DigitBatch(torch.zeros(2, 1, 12, 12), torch.zeros(2, dtype=torch.long), boxes)] * 3
    metrics = task.evaluate(batches)
    assert metrics["error"] == 50 and metrics["last_glimpse_on_digit"] == 0.5
    assert metrics["error_low"] == pytest.approx(18.76, abs=0.01) and metrics["error_high"] == pytest.approx(
        81.24, abs=0.01
    )
    assert metrics["pixels"] == 14 and metrics["multiply_adds"] == 0
    assert task.model.calls == [(1, 2, "sample"), *[(2, 2, "sample")] * 3]  # the first one to measure the cost


def test_which_classes_are_taken_for_which_is_counted(tmp_path, capsys):
    """A row for each class, a column for each answer. A model that always says the same is told of."""
    log_prob = torch.stack([said(kind).log_prob[0] for kind in (0, 1, 1, 2)])
    task = fixed(ClassifierOutput(log_prob, None))
    labels = torch.tensor([0, 1, 0, 2])
    task.evaluate([DigitBatch(torch.zeros(4, 1, 12, 12), labels, None)] * 2, tmp_path)
    found = json.loads((tmp_path / "confusion.json").read_text())
    assert found["classes"] == ["0", "1", "2", "3"]
    assert [*found["answers"].values()] == [[2, 2, 0, 0], [0, 2, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0]]
    assert capsys.readouterr().err == ""
    same = fixed(ClassifierOutput(torch.stack([said(1).log_prob[0]] * 4), None))
    same.evaluate([DigitBatch(torch.zeros(4, 1, 12, 12), labels, None)], tmp_path)
    assert "all 4 answers are 1: train it for longer" in capsys.readouterr().err


def test_a_folder_gives_the_error_of_every_way_of_testing(tmp_path):
    task = small(test_copies=5).eval()
    whole = task.evaluate([batch(40)], tmp_path)
    assert {"error_mean", "error_sample", "error_copies"} <= whole.keys()
    assert whole["error"] == whole["error_mean"] == task.evaluate([batch(40)])["error"]
    assert "error_mean" not in task.evaluate([batch(40)])
    after = json.loads((tmp_path / "glimpses.json").read_text())["error"]
    assert len(after) == task.model.num_glimpses and after[-1] == whole["error"]
    told = json.loads((tmp_path / "glimpses.json").read_text())
    assert told["entropy"][-1] == whole["answer_entropy"] > 0
    assert sum(told["lowered"]) == pytest.approx(math.log(task.num_classes) - whole["answer_entropy"])
    ways, options = [], task.options
    task.options = lambda way: ways.append(way) or options(way)
    task.evaluate([batch(1)], tmp_path)
    assert ways[1:] == ["mean", "sample", "copies"]  # always in this order, so that samples depend on the seed alone
    reader = Classification(SOURCE, model=partial(DRAWReader, num_glimpses=3, size=4, hidden_size=8)).eval()
    assert not {"error_mean", "error_sample", "error_copies"} & reader.evaluate([batch(9)], tmp_path).keys()
    told = json.loads((tmp_path / "glimpses.json").read_text())
    assert len(told["error"]) == len(told["share"]) == 3 and sum(told["share"]) == pytest.approx(1)
    connected = Classification(SOURCE, model=FullyConnected).evaluate([batch()], tmp_path)
    assert connected.keys() == {"error", "error_low", "error_high", "pixels", "multiply_adds"}


def test_an_empty_split_is_refused():
    with pytest.raises(UserError, match="split is empty"):
        small().evaluate([])


def test_wilsons_interval():
    """Known values, and a set without mistakes, where the normal approximation would give a point."""
    assert wilson(10, 100) == pytest.approx((0.0552, 0.1744), abs=1e-4)
    assert wilson(0, 100) == pytest.approx((0, 0.0370), abs=1e-4)


def test_within_is_inside_both_ways():
    places = torch.tensor([[[-0.5, 0.0], [0.1, 0.0], [-0.5, 0.6], [0.0, 0.5]]])
    assert within(places, torch.tensor([[-1.0, -0.5, 0.0, 0.5]])).tolist() == [[True, False, False, True]]


def test_pictures(tmp_path):
    paths = small().eval().show(batch(2), tmp_path)
    assert [path.name for path in paths] == ["index.html", "gallery.png", "01.png", "01.gif", "02.png", "02.gif"]
    assert Image.open(paths[3]).n_frames == 3
    assert Classification(SOURCE, model=FullyConnected).show(batch(2), tmp_path) == []


def test_pictures_of_reads(tmp_path):
    task = Classification(SOURCE, model=partial(DRAWReader, num_glimpses=3, size=4, hidden_size=8)).eval()
    with torch.no_grad():
        task.model.filterbank.numbers.bias[4] = 5.0  # reads are 150 times as bright; pictures are not
    paths = task.show(batch(2), tmp_path)
    assert [path.name for path in paths] == ["index.html", "reads.png", "reads.gif"]
    assert Image.open(paths[2]).n_frames == 4


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_takes_two_steps(name, tmp_path):
    if name == "ram_mnist28":
        settings = {"data.batch_size": 150, "run.validate_every": 0}  # its validation set has 5,000 digits
    else:
        settings = {"data.batch_size": 16, "data.epoch_images": 32, "data.val_images": 16, "data.test_images": 16}
    metrics = two_steps(name, tmp_path, **settings)
    assert 0 <= metrics["error_low"] <= metrics["error"] <= metrics["error_high"] <= 100
    assert metrics["pixels"] > 0 and metrics["multiply_adds"] > 1e5


@pytest.mark.parametrize("policy", [Gaussian, Anywhere])
def test_ten_copies_read_ten_times_as_many_pixels(policy):
    """Also where glimpses are random and nothing is learned by REINFORCE."""
    cost = {
        way: Classification(SOURCE, model=partial(RAM, policy=policy), at_test=way).eval().predict(batch(2)).cost
        for way in ("sample", "copies")
    }
    for name in ("pixels", "multiply_adds"):
        assert cost["copies"][name] == 10 * cost["sample"][name] > 0


def test_sampled_glimpses_cost_what_mean_ones_cost():
    """An answer runs the policy once per glimpse, whether locations are sampled or means."""
    model = small().model.eval()
    images = batch(1).images
    assert multiply_adds(model, images, mode="sample") == multiply_adds(model, images, mode="mean")

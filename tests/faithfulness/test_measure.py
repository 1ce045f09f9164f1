"""`vision-attn measure`: faithfulness of maps, on models whose truth is known by construction, and on models of every
kind."""

import json
import re
import sys
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coco
from torch import Tensor, nn
from torch.nn import functional as F

import vision_attn
from tests.explain.test_look import MODULE, blip, clip, llava, saved
from tests.untrained import write_run
from vision_attn.commands import main
from vision_attn.data.labelled.coco_boxes import Boxes
from vision_attn.explain import attributions
from vision_attn.explain.attributions import integrated_gradients, occlusion, score_cam, smoothgrad
from vision_attn.explain.explained_models import AnswerSubject, Map
from vision_attn.explain.libraries.opening import ImageReader, OpenedModel
from vision_attn.explain.relevance import layer_cam
from vision_attn.faithfulness.examples import EXAMPLES, Example, Examples
from vision_attn.faithfulness.measurement import Measurement, MeasureSettings, resampled
from vision_attn.faithfulness.own_images import OwnImages
from vision_attn.faithfulness.random_weights import from_the_output, randomised
from vision_attn.faithfulness.report import all_numbers, compare, estimate, verdict
from vision_attn.geometry.extents import Extent
from vision_attn.metrics.attention import AttentionCorrectness, rank_correlation
from vision_attn.metrics.perturbations import mean
from vision_attn.results.faithfulness import measure
from vision_attn.system.errors import UserError
from vision_attn.task import Source
from vision_attn.tasks.subjects import subject_of_run

SIDE, ROW, COLUMN = 28, 1, 2
BOX = (0.0, -0.5, 0.5, 0.0)
"""Of the region of row 1 and column 2 in a grid of 4 x 4, on which alone the answer depends."""
EDGES = '''
import torch

def edges(image, text):
    """The size of the gradient of brightness: no model is asked."""
    gray = image.mean(dim=0)
    return (gray[1:, 1:] - gray[:-1, 1:]).abs() + (gray[1:, 1:] - gray[1:, :-1]).abs()
'''


class OneRegion(nn.Module):
    """Answers by the brightness of one region."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([12.0, 0.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        bright = x[:, :, 7 * ROW : 7 * ROW + 7, 7 * COLUMN : 7 * COLUMN + 7].mean(dim=(1, 2, 3))
        return bright[:, None] * self.scale[[0, 1]] - self.scale[[2, 1]]


def photographs(number: int) -> list[Image.Image]:
    """Dark noise, bright where the answer comes from."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 80, (number, SIDE, SIDE, 3), dtype=np.uint8)
    pixels[:, 7 * ROW : 7 * ROW + 7, 7 * COLUMN : 7 * COLUMN + 7] += 150
    return [Image.fromarray(one) for one in pixels]


def subject(module: nn.Module, side: int = SIDE) -> AnswerSubject:
    return AnswerSubject(
        OpenedModel(module.eval(), "classifier", ImageReader((side, side), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), "x"))
    )


def test_a_true_map_is_perfect_and_a_random_one_is_at_chance(tmp_path: Path) -> None:
    """Its curves are those of the best order, and it points; a random map is neither better nor worse than random."""
    true = torch.zeros(4, 4)
    true[ROW, COLUMN] = 1
    file = tmp_path / "boxes.json"
    names = [f"image {number}" for number in range(1, 13)]
    edges = [(edge + 1) * SIDE / 2 for edge in BOX]
    annotations = [{"image_id": name, "bbox": [edges[0], edges[1], 7, 7]} for name in names]
    images = [{"id": name, "file_name": name, "width": SIDE, "height": SIDE} for name in names]
    file.write_text(json.dumps({"images": images, "annotations": annotations}))
    methods = {"true": lambda image, text: true, "random": lambda image, text: torch.rand(4, 4), "occlusion": None}
    found = measure(
        subject(OneRegion()),
        "one region",
        photographs(12),
        methods,
        fill="mean",
        steps=16,
        best=12,
        sanity=0,
        boxes=file,
    )
    one, other = found.methods["true"], found.methods["random"]
    best = found.numbers["best"]
    assert one["deletion"] == pytest.approx(best["deletion"]) and one["insertion"] == pytest.approx(best["insertion"])
    assert one["share"] == pytest.approx(1) and one["gain"] > 0.1 and one["is_better"] and one["gain_interval"][0] > 0
    assert one["pointing"] == 1 and one["mass"] == 1 and found.methods["occlusion"]["pointing"] == 1
    assert found.numbers["uniform"] == {"pointing": 1 / 16, "mass": 1 / 16}
    assert other["gain_interval"][0] < 0 < other["gain_interval"][1] and other["pointing"] < 0.4
    assert found.text.startswith("On 12 images, the order of true gains most")
    assert "random: no sure gain of 0.005 or more over a random order" in found.text
    assert found.numbers["agreement"]["true"]["occlusion"] > 0.3 > abs(found.numbers["agreement"]["true"]["random"])


class Small(nn.Module):
    """Convolutions without a kink, so that integrals are smooth."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(3, size, 5, 2), nn.Conv2d(size, size, 3)
        self.output = nn.Linear(size, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(F.silu(self.last(F.silu(self.first(4 * x)))).mean(dim=(2, 3)))


def test_integrated_gradients_are_those_of_the_definition() -> None:
    """The integral of the gradient from zeros to the image, times the image (Sundararajan et al. 2017, eq. 1)."""
    model, image = Small(), torch.rand(1, 3, 14, 14)
    found = integrated_gradients(lambda images: model(images)[:, 1], image)
    points = (torch.arange(400) + 0.5) / 400
    lines = (points[:, None, None, None] * image).requires_grad_()
    (slopes,) = torch.autograd.grad(model(lines)[:, 1].sum(), lines)
    torch.testing.assert_close(found, slopes.mean(dim=0, keepdim=True) * image, atol=1e-4, rtol=0)
    whole, none = model(torch.cat([image, 0 * image]))[:, 1]
    assert found.sum().item() == pytest.approx((whole - none).item(), abs=1e-4)  # completeness
    one = subject(Small(), 14)
    pooled = one.map("integrated-gradients", image[0], 1).weights
    torch.testing.assert_close(pooled, F.adaptive_avg_pool2d(found.sum(dim=1), (2, 2))[0])


def test_smoothgrad_is_the_size_of_a_mean_of_signed_gradients() -> None:
    """Smilkov et al. 2017, section 3, with the same noise; the mean of sizes is another map."""
    model, image = Small(), torch.rand(1, 3, 14, 14)
    torch.manual_seed(0)
    found = smoothgrad(lambda images: model(images)[:, 1], image)
    torch.manual_seed(0)
    spread, gradients = attributions.SPREAD * float(image.max() - image.min()), []
    for _ in range(attributions.SAMPLES // 8):
        copies = torch.normal(0, spread, (8, *image.shape[1:])).add(image).requires_grad_()
        gradients.append(torch.autograd.grad(model(copies)[:, 1].sum(), copies)[0])
    gradients = torch.cat(gradients)
    torch.testing.assert_close(found, gradients.mean(dim=0, keepdim=True).abs(), atol=1e-6, rtol=1e-4)
    assert (found < 0.9 * gradients.abs().mean(dim=0)).any()
    one = subject(Small(), 14)
    torch.manual_seed(0)
    pooled = one.map("smoothgrad", image[0], 1).weights
    torch.testing.assert_close(pooled, F.adaptive_avg_pool2d(found.sum(dim=1), (2, 2))[0])


def test_cams_and_occlusion_are_those_of_the_definition() -> None:
    """In loops over channels and regions; Grad-CAM is that of Selvaraju et al. 2017, eq. 1 and 2."""
    model, image = Small(), torch.rand(3, 14, 14)
    one = subject(model, 14)
    hidden = F.silu(model.first(4 * image[None])).detach()
    features = model.last(hidden).detach().requires_grad_()
    score = model.output(F.silu(features).mean(dim=(2, 3)))[0, 2]
    (gradient,) = torch.autograd.grad(score, features)
    expected = {"grad-cam": torch.zeros(3, 3), "layer-cam": torch.zeros(3, 3)}
    for channel in range(8):
        slope, values = gradient[0, channel], features[0, channel].detach()
        expected["grad-cam"] += slope.mean() * values
        expected["layer-cam"] += slope.clamp(min=0) * values
    for name, value in expected.items():
        torch.testing.assert_close(one.map(name, image, 2).weights, value.clamp(min=0), atol=1e-5, rtol=1e-4)
    assert torch.equal(layer_cam(features, gradient)[0], one.map("layer-cam", image, 2).weights)

    def probability(images: Tensor) -> Tensor:
        return one.score(images, 2)

    total = torch.zeros(3, 3)
    for values in features.detach()[0]:
        lit = (values - values.min()) / (values.max() - values.min())
        lit = F.interpolate(lit[None, None], (14, 14), mode="bilinear")[0]
        total += (probability((image * lit)[None]) - probability(0 * image[None])) * values
    torch.testing.assert_close(score_cam(probability, image, features.detach()), total.clamp(min=0))
    without = occlusion(probability, image, (2, 2), mean)
    gone = image.clone()
    gone[:, :7, 7:] = image.mean(dim=(1, 2), keepdim=True)
    assert float(without[0, 1]) == pytest.approx(float(probability(image[None]) - probability(gone[None])), abs=1e-6)


def test_weights_are_random_from_the_output_down_and_restored() -> None:
    model = Small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    layers = model.output, model.last, model.first
    parts = from_the_output(model, lambda: model(torch.rand(1, 3, 14, 14)))
    assert [part[0] is layer.weight for part, layer in zip(parts, layers, strict=True)] == [True] * 3
    changed = []
    with randomised(parts, stages=3) as stages:
        for share in stages:
            now = model.state_dict()
            changed.append((share, {name for name, value in now.items() if not value.equal(before[name])}))
    assert [round(share, 2) for share, _ in changed] == [0.33, 0.67, 1.0]
    assert changed[0][1] == {"output.weight", "output.bias"} and len(changed[2][1]) == 6
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())


def test_rank_correlation_shares_ranks_of_equal_weights() -> None:
    """As Pearson's correlation of mean ranks; a flat map is like a flat one alone."""
    maps = torch.tensor([[1.0, 2, 2, 5], [10.0, 20, 20, 50], [5.0, 2, 2, 1], [0.0, 0, 0, 0]])
    ranks = [0, 1.5, 1.5, 3]
    found = rank_correlation(torch.cat([maps, torch.tensor([[1.0, 4, 3, 2]])]))
    assert found[0, :4].tolist() == pytest.approx([1, 1, -1, 0]) and found[3, 3] == 1
    expected = np.corrcoef(ranks, [0, 3, 2, 1])[0, 1]
    assert float(found[0, 4]) == pytest.approx(expected)


def test_a_map_on_another_grid_keeps_its_place() -> None:
    fine = torch.arange(16.0).view(4, 4)
    torch.testing.assert_close(resampled(Map(fine), (4, 4)), fine)
    torch.testing.assert_close(resampled(Map(torch.ones(3, 5)), (4, 4)), torch.ones(4, 4))
    moved = resampled(Map(torch.eye(2), Extent(0.0, -1.0, 1.0, 0.0)), (4, 4))
    torch.testing.assert_close(moved[:2, 2:], torch.eye(2), atol=0.3, rtol=0)  # linear between centres
    assert moved[0, 0] == moved[0, 1] > moved[0, 3] and moved[3, 3] > 0.8


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package with a Transformer and a method of maps that ignores it."""
    (tmp_path / "tiny_measured.py").write_text(MODULE + EDGES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tiny_measured", raising=False)
    return "tiny_measured"


def test_the_command_writes_a_page_and_names_what_ignores_the_weights(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An edge detector as a method: its maps stay the same when the weights are random; those of the model change."""
    folder, out = tmp_path / "photographs", tmp_path / "out"
    folder.mkdir()
    for number, image in enumerate(photographs(3)):
        image.save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"no image")
    given = ["measure", f"{tiny}:make", str(folder), "--out", str(out), "--steps", "3", "--best", "1", "--fill", "mean"]
    assert main([*given, "--method", f"{tiny}:edges"]) == 1
    assert f"{tiny}:edges runs the code of {tiny}" in capsys.readouterr().err
    methods = [f"{tiny}:edges", "relevance", "attention:0", "grad-cam"]
    assert main([*given, "--trust", tiny, *(word for name in methods for word in ("--method", name))]) == 1
    printed = capsys.readouterr()
    assert [line.partition("\t")[0] for line in printed.out.splitlines()] == methods
    assert "on 4 images takes about" in printed.err and "broken.png" in printed.err
    assert f"{tiny}:edges ignores the weights" in printed.err
    numbers = json.loads((out / "measure.json").read_text())
    assert numbers["images"] == 3 and numbers["methods"][f"{tiny}:edges"]["sanity"] == pytest.approx([1, 1, 1])
    assert not numbers["methods"]["relevance"]["ignores_weights"]
    better = [name for name, one in numbers["methods"].items() if one["is_better"]]
    assert (out / "index.html").read_text().count('<td data-name="gain" class="yes">') == len(better)
    assert len(numbers["curves"]["random"]["deletion"]) == 4
    page = (out / "index.html").read_text()
    assert page.count('<svg class="chart"') == 3 and page.count('class="example"') == 3 and "Agreement" in page
    assert "The best order was searched on the first answer to 1 image" in page and numbers["searched"] == 1
    assert main([*given, "--trust", tiny, "--method", "rollouts"]) == 1
    assert "this model has no method rollouts; it has attention, rollout, attention-gradient" in capsys.readouterr().err


def test_memory_stays_flat() -> None:
    """Of many images, numbers and a few examples are kept; the seed alone decides the numbers."""
    runs = []
    for _ in range(2):
        measurement = Measurement(subject(OneRegion()), ["occlusion"], MeasureSettings(steps=2, best=0, sanity=2))
        for number, image in enumerate(photographs(12)):
            measurement.add(str(number), image)
        measurement.finish()
        assert len(measurement.examples.shown()) == 2 * EXAMPLES and len(measurement.first) == 2
        gains = [one.gain for one in measurement.examples.shown()]
        assert gains == sorted(gains, reverse=True)
        runs.append(all_numbers(measurement))
    for run in runs:
        run["methods"]["occlusion"].pop("seconds")
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("sat_soft_scenes", {"attention", "integrated-gradients", "grad-cam", "score-cam", "occlusion"}),
        ("transformer_scenes", {"attention", "smoothgrad", "layer-cam", "occlusion"}),
        ("ram_mnist28", {"glimpses", "occlusion"}),
    ],
)
def test_runs_are_measured_with_the_methods_that_suit_them(config: str, expected: set[str], tmp_path: Path) -> None:
    more = ["--task.min_words=4", "--task.max_words=4", "--task.no_repeat=1"] if config.endswith("scenes") else []
    model: Any = vision_attn.load(write_run(config, tmp_path / "run", *more), device="cpu")
    found = model.measure(photographs(2), best=0, sanity=1, steps=2)
    assert expected <= set(found.methods)
    for name, one in found.methods.items():
        numbers = [one["gain"], one["deletion"], one["insertion"], *one["sanity"], one["seconds"]]
        assert np.isfinite(numbers).all(), name
    assert found.save(tmp_path / "page.html").read_text().count("<table") == 2
    assert found.save(tmp_path / "page.png").stat().st_size > 1000
    with pytest.raises(UserError, match="text"):
        model.measure(photographs(1), "red")
    own = model.measure(number=2, methods="occlusion", best=0, sanity=0, steps=1, fill="mean")
    assert own.numbers["images"] == 2 and (config != "ram_mnist28" or 0 < own.numbers["uniform"]["mass"] <= 1)
    with pytest.raises(UserError, match="is not of drawn images: name photographs"):
        OwnImages(model.task, Source(), "runs/mine", 2)


def test_boxes_are_of_answers_that_share_a_word_with_the_category(tmp_path: Path) -> None:
    """In the centre square of a photograph; a file with one category is of every answer."""
    content: dict[str, Any] = {
        "images": [{"id": 7, "file_name": "train/a.jpg", "width": 200, "height": 100}],
        "annotations": [
            {"image_id": 7, "bbox": [50, 0, 50, 50], "category_id": 1},
            {"image_id": 7, "bbox": [0, 0, 40, 100], "category_id": 1},
            {"image_id": 7, "bbox": [100, 50, 25, 50], "category_id": 2},
        ],
        "categories": [{"id": 1, "name": "dining table"}, {"id": 2, "name": "cat"}],
    }
    file = tmp_path / "boxes.json"
    file.write_text(json.dumps(content))
    boxes = Boxes(file).of("somewhere/a.jpg", "centre")
    assert boxes("table") == [(-1, -1, 0, 0)] and boxes("tabby cat") == [(0, 0, 0.5, 1)] and boxes("dog") == []
    assert Boxes(file).of("b.jpg", "centre")("table") == []
    assert Boxes(file).of("a.jpg", "whole")("cat") == [(0, 0, 0.25, 1)]
    content["categories"].pop()
    file.write_text(json.dumps(content))
    assert len(Boxes(file).of("a.jpg", "centre")("anything")) == 2
    file.write_text("[]")
    with pytest.raises(UserError, match="boxes.json holds no boxes in COCO's format"):
        Boxes(file)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"bbox": [1, 2, 3]}, "bbox is [1, 2, 3], but must be 4 numbers: left, top, width and height"),
        ({"bbox": [1, 2, 3, float("nan")]}, "bbox is [1, 2, 3, nan], but must be 4 numbers"),
        ({"bbox": None}, "bbox is None, but must be 4 numbers"),
        ({"bbox": [1, 2, 3, "x"]}, "could not convert string to float: 'x'"),
        ({}, "there is no 'bbox'"),
    ],
)
def test_a_wrong_box_is_an_error_that_names_the_file_and_the_annotation(
    wrong: dict[str, Any], said: str, tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    image, file = tmp_path / "a.png", tmp_path / "bad.json"
    photographs(1)[0].save(image)
    images, annotation = [{"id": 7, "file_name": "a.png", "width": SIDE, "height": SIDE}], {"id": 31, "image_id": 7}
    file.write_text(json.dumps({"images": images, "annotations": [annotation | wrong]}))
    options = [f"--trust={tiny}", "--method=grad-cam", f"--boxes={file}", f"--out={tmp_path / 'out'}"]
    assert main(["measure", f"{tiny}:make", str(image), *options]) == 1
    told = f"bad.json holds no boxes in COCO's format: annotation 31 of image 7: {said}"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["polygons", "run lengths", "compressed"])
def test_masks_are_used_in_place_of_boxes(kind: str, tmp_path: Path) -> None:
    """An object of two parts, whose box covers the whole photograph, pointed at in the centre square."""
    pixels = np.zeros((40, 80), dtype=np.uint8, order="F")
    pixels[:10, :30] = pixels[20:30, 30:80] = 1
    segmentation: Any = [[0, 0, 30, 0, 30, 10, 0, 10], [30, 20, 80, 20, 80, 30, 30, 30]]
    if kind == "run lengths":
        runs = [[value, len(list(some))] for value, some in groupby(pixels.flatten(order="F").tolist())]
        segmentation = {"size": [40, 80], "counts": [length for _, length in ([[0, 0]] * (runs[0][0] == 1)) + runs]}
    elif kind == "compressed":
        segmentation = coco.encode(pixels) | {"counts": coco.encode(pixels)["counts"].decode()}
    content = {
        "images": [{"id": 1, "file_name": "a.png", "width": 80, "height": 40}],
        "annotations": [{"image_id": 1, "bbox": [0, 0, 80, 40], "segmentation": segmentation}],
    }
    file = tmp_path / "masks.json"
    file.write_text(json.dumps(content))
    (mask,) = Boxes(file).of("a.png", "centre")("anything")
    inside = AttentionCorrectness((4, 4)).inside([mask]).view(4, 4)
    expected = torch.tensor(pixels[5::10, 25:65:10] == 1)
    assert torch.equal(inside, expected) and expected.sum() == 4
    seen = AttentionCorrectness((2, 2)).inside([mask.seen_from(Extent(0.0, 0.0, 1.0, 1.0)), (-1, -1, 0, 0)])
    assert seen.tolist() == [True, True, False, False]
    (whole,) = Boxes(file).of("a.png", "whole")("anything")
    assert AttentionCorrectness((4, 8)).inside([whole]).view(4, 8).tolist() == (pixels[5::10, 5::10] == 1).tolist()
    content["annotations"][0]["segmentation"] = {"size": [80, 40], "counts": [0, 3200]}
    file.write_text(json.dumps(content | {"annotations": [content["annotations"][0]]}))
    with pytest.raises(UserError, match="masks.json .*a mask has the size .80, 40., its photograph .40, 80."):
        Boxes(file)


def test_what_is_found_of_a_method_does_not_depend_on_the_others() -> None:
    """Also of one that draws random numbers, of a constant map, whose order is random, and of the random order."""
    even = lambda image, text: torch.ones(4, 4)  # noqa: E731
    methods = {"even": even, "smoothgrad": None, "occlusion": None}
    together = measure(subject(OneRegion()), "one", photographs(3), methods, steps=4, best=0, sanity=0)
    for name, given in methods.items():
        alone = measure(subject(OneRegion()), "one", photographs(3), {name: given}, steps=4, best=0, sanity=0)
        for kind in ("deletion", "insertion"):
            if name != "smoothgrad":  # which drew other numbers
                assert alone.methods[name][kind] == pytest.approx(together.methods[name][kind], abs=1e-6)
            assert alone.numbers["random"][kind] == pytest.approx(together.numbers["random"][kind], abs=1e-6)
    assert together.methods["even"]["deletion"] != pytest.approx(together.numbers["random"]["insertion"], abs=1e-6)


def test_a_verdict_says_when_no_method_is_worth_trust() -> None:
    few = "That is few to choose a method by: measure at least 20 images."
    one = {"gain": 0.1, "gain_interval": [-0.1, 0.3], "is_better": False}
    assert verdict({"images": 20, "methods": {"a": one}}) == [
        "No method surely gains 0.005 or more over a random order: trust none of these maps."
    ]
    sure = {"gain": 0.3, "gain_interval": [0.2, 0.4], "is_better": True}
    lines = verdict({"images": 20, "methods": {"a": one, "b": sure, "c": sure | {"ignores_weights": True}}})
    assert lines[0].startswith("Trust b most") and lines[1].startswith("c ignores the weights: on 3 images")
    (line,) = (line for line in verdict({"images": 5, "checked": 1, "methods": {"c": sure | {"ignores_weights": True}}})
               if "weights" in line)  # fmt: skip
    assert line.startswith("On 1 image, the map of c stayed the same") and "may ignore" in line and "--sanity 3" in line
    assert lines[2] == "a: no sure gain of 0.005 or more over a random order here."
    lines = verdict({"images": 19, "methods": {"a": sure, "b": one | {"is_constant": True}}, "is_whole": False})
    assert lines[:2] == [
        "Interrupted: this is of the first 19 images.",
        "On 19 images, the order of a gains most: 0.300 over a random one (unadjusted 95% interval 0.200 to 0.400).",
    ]
    assert lines[2:] == [few, "b has the same weight everywhere: that tells nothing of these answers."]
    assert verdict({"images": 9, "methods": {"b": sure}, "random_weights": True})[0].startswith("The model has random")


def test_a_verdict_of_few_images_says_that_they_are_too_few_for_an_interval() -> None:
    """A method is named only if it gains; the images are those with an answer."""
    none = {"gain_interval": None, "is_better": False}
    methods = {"a": none | {"gain": 0.2}, "b": none | {"gain": 0.4}, "c": none | {"gain": 0.9, "is_constant": True}}
    assert verdict({"images": 4, "methods": methods})[:2] == [
        "On 4 images, the order of b gains most: 0.400 over a random one.",
        "No interval and no test: these take at least 5 images with an answer, and here are 4. Measure at least 20 "
        "images to choose a method.",
    ]
    lines = verdict({"images": 30, "answered": 1, "methods": {"a": none | {"gain": -0.2}, "b": none | {"gain": -0.1}}})
    assert lines[0] == "On 30 images, the order of no map gains anything over a random one."
    assert len(lines) == 2 and "and here is 1." in lines[1]
    lines = verdict(
        {"images": 30, "answered": 6, "methods": {"a": {"gain": 0.0, "gain_interval": [-1, 1], "is_better": False}}}
    )
    assert "That is few to choose a method by: measure at least 20 images." in lines


def test_only_what_counts_is_better() -> None:
    """By an adjusted test of the methods that vary, a gain that is not tiny, and at least five images."""
    random = np.random.default_rng(0)

    def compared(number: int, gains: list[float], *constant: int) -> list[dict[str, Any]]:
        values = [[[gain + 0.01 * random.normal() for gain in gains]] for _ in range(number)]
        methods = {str(n): {"gain": gain, "is_constant": n in constant} for n, gain in enumerate(gains)}
        compare(methods, estimate(values))
        return [*methods.values()]

    small, clear, constant = compared(30, [0.004, 0.05, 0.05], 2)
    assert clear["is_better"] and clear["behind"] is None and clear["p_better"] < 1e-6
    assert not small["is_better"] and small["p_better"] > clear["p_better"] and small["p_behind"] < 1e-6
    assert small["behind"][0] > 0.03
    assert not constant["is_better"] and constant["p_better"] is None and constant["p_behind"] is None
    few = compared(4, [0.5, 0.1])
    assert not any(one["is_better"] or one["p_better"] for one in few) and "behind" not in few[1]


def test_methods_are_compared_on_the_same_images() -> None:
    """Of two methods with wide intervals, one is always a little better; a third is as often better as worse."""
    gained = [[[0.1 * size + 0.02, 0.1 * size, 0.1 * size + 0.02 + (0.05, -0.052)[size % 2]]] for size in range(1, 9)]
    found: dict[str, Any] = {
        name: {"gain": gain, "gain_interval": [0.3, 0.6], "is_constant": False}
        for name, gain in {"a": 0.47, "b": 0.45, "c": 0.469}.items()
    }
    compare(found, estimate(gained))
    assert found["a"]["behind"] is None and found["b"]["behind"] == pytest.approx([0.02, 0.02])
    assert found["c"]["behind"][0] < 0 < found["c"]["behind"][1] and found["c"]["p_behind"] > 0.2
    assert found["b"]["p_behind"] < 1e-6
    said = "c may be as good: on these images the difference is not sure."
    assert verdict({"images": 20, "methods": found})[1] == said


def test_the_best_order_is_no_worse_than_any_that_was_tried(tmp_path: Path) -> None:
    """A greedy search finds nothing where two regions count together alone; the map that knows them does."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            bright = self.scale * x.mean(dim=1)
            both = bright[:, 7:14, 7:14].mean(dim=(1, 2)) * bright[:, 14:21, 21:].mean(dim=(1, 2))
            return torch.stack([both, torch.zeros_like(both)], dim=1)

    true = torch.zeros(4, 4)
    true[1, 1] = true[2, 3] = 1
    found = measure(
        subject(Both()), "both", photographs(3), {"true": lambda *_: true, "even": lambda *_: torch.ones(4, 4)},
        fill="mean", steps=16, best=3, sanity=1,
    )  # fmt: skip
    best, random = found.numbers["best"], found.numbers["random"]
    for one in (*found.methods.values(), random):
        assert best["deletion"] <= one["deletion"] + 1e-9 and best["insertion"] >= one["insertion"] - 1e-9
    assert max(one["share"] for one in found.methods.values()) <= 1 + 1e-9
    even = found.methods["even"]
    assert even["is_constant"] and not even["ignores_weights"] and not found.methods["true"]["is_constant"]
    assert "even has the same weight everywhere" in found.text
    assert "best order found, of 3 images" in found.save(tmp_path / "page.html").read_text()


def test_an_interrupted_measurement_is_of_the_images_before(tmp_path: Path) -> None:
    """In the middle of the third image: its answers leave nothing behind. Before the first answer, nothing is left."""
    images = photographs(4)
    settings = {"fill": "mean", "steps": 2}
    alone = measure(subject(OneRegion()), "it", images[:2], ["occlusion"], best=0, sanity=0, **settings)
    for after in (2, 0):
        calls = []

        def stop(image: Tensor, text: str, after: int = after, calls: list = calls) -> Tensor:
            calls.append(text)
            if len(calls) > after:
                raise KeyboardInterrupt
            return torch.ones(4, 4)

        methods = {"occlusion": None, "stop": stop}
        if not after:
            with pytest.raises(KeyboardInterrupt):
                measure(subject(OneRegion()), "it", images, methods, best=1, sanity=1, **settings)
            return
        found = measure(subject(OneRegion()), "it", images, methods, best=1, sanity=1, **settings)
        assert found.numbers["images"] == 2 and not found.numbers["is_whole"] and found.numbers["best"] is None
        assert found.text.startswith("Interrupted: this is of the first 2 images.")
        assert found.numbers["curves"]["occlusion"] == alone.numbers["curves"]["occlusion"]
        assert found.methods["occlusion"]["gain"] == alone.methods["occlusion"]["gain"]
        found.write_folder(tmp_path)


def test_examples_are_of_different_images() -> None:
    """The best answer of the most faithful images, and the worst of the least faithful ones."""
    examples = Examples()
    for number in range(20):
        examples.add([
            Example(gain, str(number), Image.new("RGB", (900, 600)), "", {})
            for gain in (number / 20, number / 20 + 0.01, number / 20 - 0.01)
        ])  # fmt: skip
    examples.add([])
    shown = examples.shown()
    assert [one.file for one in shown] == ["19", "18", "17", "16", "3", "2", "1", "0"]
    assert [round(one.gain - int(one.file) / 20, 6) for one in shown] == 4 * [0.01] + 4 * [-0.01]
    assert shown[0].picture.size == (448, 299)


def test_the_time_is_told_from_an_image_that_is_not_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a clock on which each scored image takes a second, and the first one a quarter of an hour more."""
    clock = [0.0]

    class Slow(OneRegion):
        def forward(self, x: Tensor) -> Tensor:
            clock[0] += len(x) + 900 * (clock[0] == 0)
            return super().forward(x)

    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    measure(subject(Slow()), "slow", photographs(6), ["occlusion"], best=2, sanity=1, steps=4, fill="mean")
    told = capsys.readouterr().err
    low, high = map(float, re.search(r"takes about (\d+) to (\d+) min", told).groups())
    assert low < (clock[0] - 900) / 60 < high <= 2 * low + 1
    measure(subject(OneRegion()), "it", photographs(2), ["occlusion"], best=0, sanity=0, steps=1)
    assert capsys.readouterr().err == ""


def test_one_answer_of_each_image_is_looked_at_again() -> None:
    """Of a caption with several words, its first one; the share is of the same answers."""
    one = subject(OneRegion())
    questions = one.questions
    one.questions = lambda image: 3 * questions(image)  # type: ignore[method-assign]
    measurement = Measurement(one, ["occlusion"], MeasureSettings(steps=4, best=2, sanity=2, fill="mean"))
    for number, image in enumerate(photographs(3)):
        measurement.add(str(number), image)
    assert [answer.number for answer in measurement.first] == [0, 3]
    measurement.finish()
    numbers = all_numbers(measurement)
    assert numbers["searched"] == numbers["checked"] == 2 and numbers["methods"]["occlusion"]["share"] == 1


def test_a_single_score_is_no_probability(tmp_path: Path) -> None:
    """A softmax over one score is 1, whatever is deleted. Without best orders, the page has no column for them."""

    class One(OneRegion):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, :1]

    found = measure(subject(One()), "one", photographs(3), ["occlusion"], best=0, sanity=0, steps=4)
    assert found.numbers["score"] == "score" and found.methods["occlusion"]["gain"] > 0.5
    page = found.save(tmp_path / "page.html").read_text()
    assert 'data-name="of the best"' not in page and "No best order was searched (--best 0)" in page
    assert "(--sanity 0)" in page


@pytest.mark.slow
def test_networks_of_torchvision_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions without attention, and with random weights, of which the verdict says so."""
    monkeypatch.setattr(AnswerSubject, "extent", lambda *_: Extent())  # which takes seconds, and is tested with `look`
    model: Any = vision_attn.load("resnet18", weights="none", device="cpu")
    found = model.measure(photographs(1), methods=["grad-cam", "layer-cam"], best=0, sanity=0, steps=1, fill="mean")
    assert all(np.isfinite([one["gain"], one["deletion"], one["seconds"]]).all() for one in found.methods.values())
    assert found.numbers["random_weights"] and found.text.startswith("The model has random weights")
    found = model.measure(photographs(1), methods="grad-cam", best=0, sanity=0, steps=1, fill="mean")
    assert list(found.methods) == ["grad-cam"]


@pytest.mark.slow
@pytest.mark.parametrize("make", [blip, llava, clip], ids=lambda make: make.__name__)
def test_models_of_transformers_are_measured(make: Any, tmp_path: Path) -> None:
    """Captioners on the content words that they generate; matchers on texts. The score of a word is that of
    `generate`, and its attention that of `look`."""
    model: Any = vision_attn.load(saved(tmp_path / "model", make), device="cpu")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8))
    texts = ["a photo", "the dog"] if make is clip else None
    methods = ["attention", "relevance", "integrated-gradients"]
    found = model.measure([image, image], texts, methods=methods, best=0, sanity=1, steps=2)
    assert list(found.methods) == methods and found.numbers["answers"] >= 2
    assert all(np.isfinite([one["gain"], *one["sanity"]]).all() for one in found.methods.values())
    if make is clip:
        return
    asked = subject_of_run(model.task, "it", torch.device("cpu"), 0)
    pixels = asked.read(image)
    first = asked.questions(pixels)[0]
    (caption,) = first.target.generation.captions
    expected = torch.tensor(caption.log_prob[0]).exp()
    torch.testing.assert_close(asked.score(pixels[None], first.target)[0], expected, atol=1e-5, rtol=1e-4)
    alpha = caption.maps[0].mean(dim=(0, 1))
    torch.testing.assert_close(asked.map("attention", pixels, first.target).weights, alpha, atol=1e-5, rtol=1e-3)

"""Where regions lie on images: the fields of encoders are measured, and whatever shows or measures a map uses it."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import benchmarks.places
import vision_attn
from vision_attn.contracts import DecodedCaption, Encoder, Results
from vision_attn.data.scenes.scenes import Scenes
from vision_attn.encoders.backbone import Backbone
from vision_attn.encoders.concatenated import Concatenated
from vision_attn.encoders.convnet import ConvNet
from vision_attn.encoders.patches import Patches
from vision_attn.encoders.strips import Columns
from vision_attn.explain.libraries.opening import ImageReader, OpenedModel
from vision_attn.explain.look import look
from vision_attn.explain.map_extents import extent_of_tokens, reach_of
from vision_attn.faithfulness.curves import perturbation_curves
from vision_attn.geometry.extents import WHOLE, Extent, cell, centres, middles, nearest
from vision_attn.geometry.receptive_fields import Fields, measured_extent, stride
from vision_attn.metrics.attention import AttentionCorrectness
from vision_attn.metrics.evaluators import Pointing
from vision_attn.metrics.perturbations import constant
from vision_attn.viz.alignment import Transcribed, alignment_sheet
from vision_attn.viz.attention import attention_sheet
from vision_attn.viz.overlay.scale import light
from vision_attn.viz.page import PageItem, write_page

MOVED = Extent(-1.25, -1.0, 0.75, 1.0)
"""A grid of four columns whose fields lie half a column left of their places."""


class Moved(Encoder):
    """Colours of cells, each seen `right` and `down` of its place by a number of pixels; of any shape."""

    convolutional = True
    region_size = 3

    def __init__(self, size=(64, 64), step=8, right=0, down=0):
        super().__init__()
        self.size, self.step, self.right, self.down = size, step, right, down
        self.resolution, self.grid = size[0], (size[0] // step, size[1] // step)
        self.weight = nn.Parameter(torch.ones(()))
        self.calls = 0

    def map(self, images):
        self.calls += 1
        moved = images.float().roll((-self.down, -self.right), (2, 3))
        return F.avg_pool2d(moved, self.step) * self.weight

    def forward(self, images):
        return self.map(images).flatten(2).mT


@pytest.mark.parametrize("size", [(64, 64), (128, 96), (48, 160)])
@pytest.mark.parametrize("right, down", [(0, 0), (-5, 3), (4, -9)])
def test_the_offset_of_fields_is_found_in_squares_and_oblongs(size, right, down):
    found, grid = measured_extent(Moved(size, 8, right, down).map, size)
    assert grid == (size[0] // 8, size[1] // 8)
    exact = Extent(2 * right / size[1] - 1, 2 * down / size[0] - 1, 2 * right / size[1] + 1, 2 * down / size[0] + 1)
    assert found == pytest.approx(exact, abs=0.02)


def test_cells_that_do_not_divide_the_image_keep_their_stride():
    assert [stride(*sizes) for sizes in ((227, 13), (260, 9), (299, 8), (224, 6), (448, 14), (336, 14), (518, 37))] == [
        16, 32, 32, 32, 32, 24, 14,
    ]  # fmt: skip
    layers = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.Conv2d(8, 8, 3, stride=4))  # no padding: 8 of 150 pixels' 9
    with torch.no_grad():
        layers[0].weight.fill_(0.1), layers[1].weight.fill_(0.1)
        found, grid = measured_extent(lambda images: layers(images.float()), (150, 150))
    first = 2 * (2 + 4) / 149 - 1  # the middle of the first field
    assert grid == (9, 9) and middles(9, found.x0, found.x1)[0] == pytest.approx(first, abs=0.03)


def test_what_depends_on_no_place_lies_everywhere():
    everywhere = lambda images: images.float().mean(dim=(2, 3), keepdim=True).expand(-1, -1, 8, 8)  # noqa: E731
    assert measured_extent(everywhere, (64, 64)) == (WHOLE, (8, 8))
    assert measured_extent(lambda images: torch.zeros(len(images), 2, 8, 8), (64, 64))[0] == WHOLE
    assert measured_extent(lambda images: torch.full((len(images), 2, 8, 8), torch.nan), (64, 64))[0] == WHOLE
    assert measured_extent(lambda images: images[:, :, :1, :1].float(), (64, 64)) == (WHOLE, (1, 1))


def test_maps_of_drawn_scenes_lie_on_objects_across_and_a_third_of_a_cell_above_them():
    """What of an offset is the network's geometry: where annotation vectors change when an object is erased. `extent`
    must say it within a fifth of a cell. The rest is learned: attention goes to the upper half of objects."""
    task = vision_attn.load("weights/drawn_scenes").task
    batch = next(iter(Scenes(size=40, batch_size=200, test_images=200).split("test")))
    places, erased, boxes, maps = centres(10, 10).float(), [], [], []
    for image, named, caption in zip(batch.images, batch.boxes, task.describe(batch.images), strict=True):
        for word, alpha in zip(caption.words, caption.alpha.flatten(1), strict=True):
            if len(named.get(word, ())) == 1:
                box = torch.tensor(named[word][0])
                without, (x0, y0, x1, y1) = image.clone(), ((box + 1) * 20).round().int().tolist()
                without[:, y0:y1, x0:x1] = image.flatten(1).median(dim=1).values[:, None, None]
                erased.append(without), boxes.append((box[:2] + box[2:]) / 2), maps.append((image, alpha @ places))
    boxes = torch.stack(boxes)
    images, maps = (torch.stack(part) for part in zip(*maps, strict=True))
    with torch.no_grad():
        change = (task.encoder(images) - task.encoder(torch.stack(erased))).square().sum(dim=2)
    seen = boxes - change / change.sum(dim=1, keepdim=True) @ places  # how far left and above its place a cell looks
    across, down = (seen.mean(dim=0) / 0.2).tolist()
    extent = task.encoder.extent()
    assert [(extent.x0 + 1) / 0.2, (extent.y0 + 1) / 0.2] == pytest.approx([across, down], abs=0.2)
    off = (maps + torch.tensor([extent.x0 + 1, extent.y0 + 1]) - boxes) / 0.2
    assert off.median(dim=0).values.tolist() == pytest.approx([0.1, -0.35], abs=0.15)


def test_an_encoder_is_measured_once_until_its_weights_change():
    encoder, state = Moved(right=-4), torch.random.get_rng_state()
    first, calls = encoder.extent(), encoder.calls
    with torch.inference_mode():
        assert encoder.extent() == first == pytest.approx((-1.125, -1, 0.875, 1), abs=0.02) and encoder.calls == calls
    assert torch.equal(torch.random.get_rng_state(), state)
    encoder.right = 4
    assert encoder.extent() == first
    with torch.no_grad():
        encoder.weight.mul_(2)
    assert encoder.extent().x0 > -1 and list(encoder.state_dict()) == ["weight"]
    encoder.convolutional = False
    assert encoder.extent() == WHOLE


def gradient_centre(maps, size, grid):
    """Where the middle cells look, from the squared gradient of random sums of their channels, in [-1, 1]."""
    torch.manual_seed(0)
    rows, columns = grid
    images = torch.rand(16, 3, *size).mul(255).requires_grad_()
    out = maps(images)
    cells = out[:, :, (rows - 1) // 2 : rows // 2 + 1, (columns - 1) // 2 : columns // 2 + 1]
    (cells.sum(dim=(2, 3)) * torch.randn(cells.shape[:2])).sum().backward()
    energy = images.grad.square().sum(dim=(0, 1))
    energy = energy / energy.sum()
    return float(energy.sum(0) @ middles(size[1]).float()), float(energy.sum(1) @ middles(size[0]).float())


NETWORKS = {"resnet50": "layer1", "mobilenet_v2": "features.6", "vgg19": "features.8", "efficientnet_lite0": "blocks.2"}


@pytest.mark.slow
@pytest.mark.parametrize("name, node", NETWORKS.items())
def test_networks_look_where_their_gradient_is(name, node):
    torch.manual_seed(0)
    encoder = Backbone(name=name, node=node, resolution=64)
    maps = lambda images: encoder.body((images / 255 - encoder.mean) / encoder.std)["map"]  # noqa: E731
    found = encoder.extent()
    centre = gradient_centre(maps, (64, 64), encoder.grid)
    placed = ((found.x0 + found.x1) / 2, (found.y0 + found.y1) / 2)
    assert placed == pytest.approx(centre, abs=0.04)  # 0.02 of the side: coordinates have a range of 2
    if name in ("resnet50", "mobilenet_v2"):
        assert max(placed) < -0.04  # 3x3 convolutions of stride 2, padded on both sides
    oblong, _ = measured_extent(lambda images: maps(images.float()), (64, 96))
    assert (oblong.x0 + oblong.x1) / 2 == pytest.approx(placed[0] * 64 / 96, abs=0.04)


def test_the_benchmark_of_places_runs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["places", "--quick"])
    benchmarks.places.main()
    assert "| squeezenet1_1:features.5:64 | 7x7 |" in capsys.readouterr().out


def test_small_encoders_and_those_of_patches():
    torch.manual_seed(0)
    extent = ConvNet().extent()  # 1.5 pixels of 56 by arithmetic
    assert extent == pytest.approx((-1.054, -1.054, 0.946, 0.946), abs=0.03)
    assert Patches(name="vit_b_32", resolution=96, weights=None).extent() == WHOLE
    strips = Columns()
    wide, narrow = strips.extent(100), strips.extent(10)
    assert (wide.y0, wide.y1) == (-1, 1) and narrow.x1 - narrow.x0 == pytest.approx(2)
    assert narrow.x0 + 1 == pytest.approx(10 * (wide.x0 + 1), abs=0.01) and narrow.x0 <= -1  # the same in pixels
    joined = Concatenated([Moved(right=-4), Moved(right=0), Moved(step=16)])
    assert joined.extent() == pytest.approx((-1.0625, -1, 0.9375, 1), abs=0.02)


def test_regions_of_a_moved_grid():
    assert centres(2, 4, MOVED)[0].tolist() == [-1, -0.5] and centres(2, 4, MOVED)[3].tolist() == [0.5, -0.5]
    assert centres(1, 4, Extent(-2.0, -1.0, 0.0, 1.0))[0, 0] == -1  # beyond the border: on it
    assert cell(0, 2, 4, MOVED) == (-1, -1, -0.75, 0) and cell(3, 2, 4, MOVED) == (0.25, -1, 1, 0)
    assert cell(1, 2, 4) == (-0.5, -1, 0, 0)
    assert nearest(8, 4, MOVED.x0, MOVED.x1).tolist() == [0, 1, 1, 2, 2, 3, 3, 3]
    assert Extent(-1, -1, 0, 1).within(Extent(0, 0, 1, 1)) == (0, 0, 0.5, 1)
    assert Extent().within(MOVED) == MOVED


def hot(region=1):
    """One map of 1 x 4 regions."""
    return F.one_hot(torch.tensor([region]), 4).float().view(1, 1, 4)


def brightest(row):
    """Where a line of pixels is brightest, in [-1, 1]."""
    row = np.asarray(row, dtype=float)
    return float(middles(len(row))[np.flatnonzero(row == row.max())].mean())


def test_maps_are_drawn_where_regions_look(tmp_path):
    where = centres(1, 4, MOVED)[1, 0].item()
    picture = Image.new("RGB", (160, 160), (90, 90, 90))
    assert brightest(light(hot(), 40, 160, MOVED)[0, 20]) == pytest.approx(where, abs=0.05)
    assert light(hot(3), 40, 160, MOVED)[0, 20, -1] > 0.9  # right of all regions: as at the last
    drawn = np.asarray(attention_sheet(picture, ["a"], hot(), extent=MOVED, panel=160).convert("L"))[-112]
    panel = drawn[-32 - 160 : -32]  # the last panel, without the margin of the sheet
    assert brightest(panel) == pytest.approx(where, abs=0.05)
    regions = torch.tensor([1])
    item = PageItem("a", picture, ["a"], hot(), regions=regions, extent=MOVED, layers=hot()[:, None, None])
    page = write_page(tmp_path / "page.html", [item]).read_text()
    assert 'data-rows="1" data-columns="4" data-extent="-0.1250 0.0000 0.8750 1.0000"' in page
    assert 'data-extent="0.0000 0.0000 1.0000 1.0000"' in page  # of layers
    assert 'data-boxes="12.50 0.00 25.00 100.00"' in page and "looks at the left" not in page
    left = PageItem("a", picture, ["a"], hot(2), extent=Extent(-1.9, -1.0, 0.1, 1.0))
    assert "looks middle left" in write_page(tmp_path / "left.html", [left]).read_text()


def test_alignments_are_drawn_where_columns_look():
    strip = Image.new("RGB", (80, 8))
    read = [Transcribed("a", "7", ["7"], hot(), [0.0], torch.eye(4), extent=extent) for extent in (WHOLE, MOVED)]
    sheets = [np.asarray(alignment_sheet(strip, [item]).convert("L"), dtype=int) for item in read]
    changed = [np.flatnonzero(row) for row in (sheets[0] != sheets[1])]
    assert sum(map(len, changed)) > 0  # the matrix, and the plot of labels
    assert sum(len(row) > 0 for row in changed) > 20


def test_metrics_take_the_places_of_regions():
    inside = {"dog": [(-0.6, -1, -0.4, 1)]}  # where the second of four regions looks, and none lies
    for extent, expected in ((MOVED, 1.0), (WHOLE, 0.0)):
        measured = AttentionCorrectness((1, 4), extent)
        measured.update(["dog"], hot()[0], inside)
        assert measured.compute()["pointing"] == measured.compute()["mass"] == expected
        described = DecodedCaption("dog", ["dog"], [0.0], hot(), extent=extent)
        pointing = Pointing()
        batch = type("Batch", (), {"boxes": (inside,)})
        pointing.update(batch, Results(None, [described], {}, frozenset()))
        assert pointing.compute()["pointing"] == expected


def test_deleted_pixels_are_those_that_a_region_sees():
    image, seen = torch.ones(1, 1, 8), []
    empty = torch.zeros(1, 1, 8)

    def score(images):
        seen.append(images)
        return images.sum(dim=(1, 2, 3))

    perturbation_curves(score, image, hot()[0], steps=4, fill=constant(empty), extent=MOVED)
    assert seen[0][2].flatten().tolist() == [1, 0, 0, 1, 1, 1, 1, 1]


def small_network(*, stem=False):
    """Four padded convolutions of stride 2 in a classifier: the centre of a cell's field lies 7.5 pixels off."""
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(size, 8, 3, stride=2, padding=1, bias=False) for size in (3, 8, 8, 8)]
    for layer in convolutions:
        nn.init.uniform_(layer.weight, 0.5, 1.5)  # nothing that is lopsided
    return nn.Sequential(*convolutions, *(() if stem else (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))))


@pytest.mark.parametrize("part", [1.0, 0.875])
def test_grad_cam_lies_where_a_network_of_another_library_looks(part):
    size = 128

    def inputs(picture):
        side = round(size / part)  # resized, and cropped to the middle, as many processors do
        low = (side - size) // 2
        resized = picture.resize((side, side), Image.Resampling.BICUBIC).crop((low, low, low + size, low + size))
        return {"input": (torch.from_numpy(np.array(resized)).permute(2, 0, 1).float()[None] / 255 - 0.45) / 0.22}

    model = OpenedModel(small_network().eval(), "classifier", inputs)
    assert reach_of(model).extent == pytest.approx((-part, -part, part, part), abs=0.011)
    seen = look(model, Image.effect_noise((size, size), 50).convert("RGB"))
    middle = -2 * 7.5 / size * part
    assert seen.method == "grad-cam" and seen.alpha.shape == (1, 8, 8)
    assert seen.extent == pytest.approx((middle - part, middle - part, middle + part, middle + part), abs=0.03)


def test_patches_of_a_convolutional_stem_lie_where_it_looks():
    stem = small_network(stem=True)
    cut = nn.Conv2d(3, 8, 16, stride=16)
    reader = ImageReader((128, 128), key="input")
    for layers, layer, middle in ((stem, stem[3], -2 * 7.5 / 128), (nn.Sequential(cut), cut, 0)):
        model = OpenedModel(layers, "encoder", reader)
        found = extent_of_tokens(model, layer, lambda inputs, layers=layers: layers(**inputs))
        assert found == pytest.approx((middle - 1, middle - 1, middle + 1, middle + 1), abs=0.03)
        assert middle or found == WHOLE


def test_the_field_of_another_library_is_measured_once():
    maps, module, calls = Moved(right=-4).map, nn.Linear(1, 1), []

    def counted(images):
        calls.append(len(images))
        return maps(images)

    fields = Fields()
    first = fields.of("a", module, counted, (64, 64))
    assert fields.of("a", module, counted, (64, 64)) == first
    number = len(calls)
    fields.of("b", module, counted, (64, 64))
    assert len(calls) == 2 * number


@pytest.mark.slow
def test_python_code_of_version_1_0_finds_what_moved() -> None:
    code = "from vision_attn.contracts.places import centres; from vision_attn.contracts.fields import measured_extent"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=600).returncode == 0

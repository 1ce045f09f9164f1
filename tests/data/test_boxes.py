"""Boxes of objects in files of labels, and where they lie in the images that a model sees."""

import json
from functools import partial

import pytest
import torch
from PIL import Image

from tests.data.test_labelled import TINY
from tests.whole_runs import steps, train
from vision_attn.commands import main
from vision_attn.data.labelled.boxes import box_of, mirrored, placed
from vision_attn.data.labelled.labelled_images import LabelledImages
from vision_attn.data.labelled.labels import find_labelled
from vision_attn.metrics.errors import areal
from vision_attn.models.ram import RAM
from vision_attn.system.errors import UserError
from vision_attn.tasks.classify import Classification


def write(folder, name: str, box: tuple[int, int, int, int], size: tuple[int, int] = (60, 40), orientation: int = 1):
    """A black photograph with a white box; `size` and `box` are those of the upright photograph."""
    upright, exif = Image.new("RGB", size), Image.Exif()
    upright.paste((255, 255, 255), box)
    exif[0x0112] = orientation
    turns = {1: None, 3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    stored = upright if turns[orientation] is None else upright.transpose(turns[orientation])
    (folder / name).parent.mkdir(exist_ok=True)
    stored.save(folder / name, exif=exif)


BOXES = {"a.png": (6, 4, 20, 14), "b.png": (40, 20, 58, 38), "c.png": (22, 10, 30, 30), "d.png": (30, 5, 40, 20)}
TURNED = {"a.png": 1, "b.png": 6, "c.png": 3, "d.png": 8}


@pytest.fixture
def labels(tmp_path):
    """Photographs with boxes, of which some lie on their side in the file; a CSV file."""
    lines = ["image,label,split,x0,y0,x1,y1"]
    for name, box in BOXES.items():
        write(tmp_path, name, box, orientation=TURNED[name])
        lines.append(f"{name},{'one' if name < 'c' else 'two'},train,{','.join(map(str, box))}")
    write(tmp_path, "e.png", (0, 0, 5, 5))
    (tmp_path / "labels.csv").write_text("\n".join([*lines, "e.png,two,val,,,,", ""]))
    return tmp_path / "labels.csv"


def white(image: torch.Tensor) -> list[float]:
    """The box of what is white in an image (C, Y, X), in [-1, 1]."""
    found = []
    for lengths in (image[0].amax(dim=0), image[0].amax(dim=1)):
        inside = (lengths > 128).nonzero().flatten()
        found.append((2 * inside[0] / len(lengths) - 1, 2 * (inside[-1] + 1) / len(lengths) - 1))
    (x0, x1), (y0, y1) = found
    return [float(edge) for edge in (x0, y0, x1, y1)]


@pytest.mark.parametrize("side, square", [(None, False), (30, False), (120, False), (90, True)])
@pytest.mark.parametrize("flips", [False, True])
def test_boxes_follow_the_object(side, square, flips, labels):
    """Through EXIF orientation, resizing, the centre square, and mirroring."""
    source = LabelledImages(
        images=str(labels.parent), labels=str(labels), side=side, square=square, flips=flips, batch_size=4
    )
    if square:  # what is cut off shows no white there
        kept = {name: box for name, box in BOXES.items() if box[0] >= 10 and box[2] <= 50}
        lines = [line for line in labels.read_text().splitlines() if line[:5] in {*kept, "image", "e.png"}]
        labels.write_text("\n".join(lines))
        source.batch_size = len(kept)
    seen = set()
    for epoch in range(3):
        (batch,) = source.train(epoch, seed=1)
        images = (255 * batch.images) if square else batch.images.sampled(1000)
        for image, box in zip(images, batch.boxes, strict=True):
            assert box.tolist() == pytest.approx(white(image), abs=0.07)
            seen.add(round(float(box[0]), 3))
    number = len(batch.boxes)
    assert len(seen) > number if flips else len(seen) == number


def test_an_image_without_a_box_has_none_and_a_file_without_boxes_neither(labels):
    source = LabelledImages(images=str(labels.parent), labels=str(labels))
    (batch,) = source.split("val")
    assert batch.boxes.isnan().all() and areal(batch.boxes) is None
    labels.write_text("image,label\n" + "".join(f"{name},{name[0]}\n" for name in BOXES))
    plain = LabelledImages(images=str(labels.parent), labels=str(labels))
    assert not plain.has_boxes and all(batch.boxes is None for batch in plain.train(0, seed=0))


def test_ways_to_write_a_box(labels):
    (labels.parent / "a.jsonl").write_text(
        json.dumps({"image": "a.png", "label": 1, "xmin": 1, "ymin": 2.5, "xmax": 30, "ymax": 4})
        + "\n"
        + json.dumps({"image": "b.png", "label": 2, "x": 30, "y": 20})
    )
    found = find_labelled(str(labels.parent), str(labels.parent / "a.jsonl"))
    assert {item.box for items in found.values() for item in items} == {(1, 2.5, 30, 4), (30, 20, 30, 20)}


@pytest.mark.parametrize(
    "record, message",
    [
        ({"x0": 1, "y0": 2, "x1": 3}, "line 2 has no y1: a box needs x0, y0, x1, y1, or none of them"),
        ({"x0": "9", "y0": "2", "x1": "3", "y1": "4"}, "ends before it begins"),
        ({"x0": "a", "y0": "2", "x1": "3", "y1": "4"}, 'line 2: x0 is "a", but must be a number of pixels'),
        ({"x": 1, "y": "nan"}, "y is .nan., but must be a number"),
        ({"x": 1, "y": 2, "w": 3, "h": 4}, "x and y may be a corner or the centre; give x0, y0, x1, y1 instead"),
    ],
)
def test_a_wrong_box_is_named(record, message):
    with pytest.raises(UserError, match=message):
        box_of("labels.csv: line 2", record)


def test_shares_of_the_image_are_no_pixels(labels):
    labels.write_text("image,label,x0,y0,x1,y1\na.png,1,0.1,0.2,0.5,0.9\nb.png,2,0,0,1,1\n")
    with pytest.raises(UserError, match="all boxes lie between 0 and 1, but they must be in pixels"):
        find_labelled(str(labels.parent), str(labels))


def test_placed_boxes():
    assert placed((0, 0, 60, 40), (60, 40)) == (-1, -1, 1, 1) == placed((10, 0, 50, 40), (60, 40), square=True)
    assert placed((0, 0, 5, 40), (60, 40), square=True) is None
    assert placed((70, 0, 80, 40), (60, 40)) is None
    assert placed((30, 20, 30, 20), (60, 40)) == (0, 0, 0, 0)
    assert mirrored((-1.0, -1.0, 0.5, 0.0)) == (-0.5, -1.0, 1.0, 0.0)


def test_a_run_learns_and_measures_with_boxes(labels, tmp_path):
    settings = TINY | {
        "data.images": labels.parent, "data.labels": labels, "task.box_weight": 1, "data.batch_size": 4,
        "run.folder": tmp_path / "run",
    }  # fmt: skip
    labels.write_text(labels.read_text().replace("e.png,two,val,,,,", "e.png,two,val,1,1,8,8"))
    assert main(train("ram_photographs", **settings)) == 0
    assert steps(tmp_path / "run")[-1]["outside"] > 0
    assert "last_glimpse_on_digit" in json.loads((tmp_path / "run/best/metrics_val.json").read_text())


def test_only_boxes_that_are_seen_count_and_points_are_not_looked_into(labels, caplog):
    lines = ["image,label,split,x,y", "a.png,one,train,13,9", "b.png,one,train,,", "c.png,two,train,900,900"]
    labels.write_text("\n".join([*lines, "d.png,two,train,59,39", ""]))
    source = LabelledImages(images=str(labels.parent), labels=str(labels), batch_size=4)
    torch.manual_seed(0)
    task = Classification(source, model=partial(RAM, num_glimpses=2), box_weight=1.0)
    (batch,) = source.train(0, seed=0)
    assert "boxes that lie outside of what is seen are left out, such as that of" in caplog.text
    assert batch.boxes.isnan().any(dim=1).sum() == 2
    metrics = task(*batch)
    metrics["loss"].backward()
    assert metrics["outside"] > 0 and all(
        weights.grad.isfinite().all() for weights in task.parameters() if weights.grad is not None
    )
    unknown = torch.full_like(batch.boxes, torch.nan)
    assert task(*batch[:2], unknown)["outside"] == 0
    assert "last_glimpse_on_digit" not in task.evaluate([batch])
    partly = batch._replace(boxes=torch.where(batch.boxes.isnan(), torch.tensor([-1.0, -1, 1, 1]), batch.boxes))
    counts = task.predict(partly)
    assert counts.correct_rows == counts.on_digit <= 2
    with pytest.raises(UserError, match="give columns x0,y0,x1,y1, in pixels"):
        task(*batch[:2], None)

"""DRAW on images of one's own: in grey, of one size, with labels or without."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.whole_runs import train
from vision_attn.api import load
from vision_attn.attention.images import converted, luma
from vision_attn.commands import main
from vision_attn.data.labelled.labelled_images import LabelledImages, read_size
from vision_attn.system.errors import UserError
from vision_attn.tasks.generate import shape_drawn

SMALL = {
    "task.model.num_steps": 2, "task.model.hidden_size": 8, "task.model.latent_size": 4, "task.importance_samples": 2,
    "data": "vision_attn.data.labelled.labelled_images.LabelledImages", "data.batch_size": 8, "run.epochs": 1,
    "run.device": "cpu",
    "run.precision": "fp32", "run.log_every": 1, "run.show": 2, "run.sanity_check": "false",
}  # fmt: skip


def write(folder, sizes, mode: str = "RGB") -> None:
    """A noisy image of each size (width, height), with its number as its name."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (width, height) in enumerate(sizes):
        pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).convert(mode).save(folder / f"{number}.png")


@pytest.mark.parametrize("mode, labelled", [("RGB", True), ("L", False), ("I;16", False)])
def test_draw_trains_on_photographs_and_draws_without_them(mode, labelled, tmp_path, monkeypatch, caplog, capsys):
    """In their shape, which is no square; from a flat folder too."""
    caplog.set_level("INFO")
    write(tmp_path / "photos", [(12, 8)] * 30, mode)
    settings = SMALL | {"data.images": tmp_path / "photos", "run.folder": tmp_path / "run"}
    if labelled:
        lines = ["image,label", *(f"{number}.png,{number % 2}" for number in range(30))]
        (tmp_path / "labels.csv").write_text("\n".join(lines))
        settings["data.labels"] = tmp_path / "labels.csv"
    assert main(train("draw_mnist_small", **settings)) == 0
    assert "photographs are drawn in grey, 12 x 8 pixels: each pixel is 1 with a probability" in caplog.text
    assert main(["eval", str(tmp_path / "run"), "--device=cpu", "--show=2"]) == 0
    assert (tmp_path / "run" / "pictures_test" / "reconstructions.png").is_file()
    assert main(["pack", str(tmp_path / "run"), str(tmp_path / "packed")]) == 0
    (tmp_path / "photos").rename(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    assert load("packed/", device="cpu").draw(3).images.shape == (3, 1, 8, 12)


def test_photographs_that_differ_in_size_are_named_and_resized(tmp_path, capsys):
    write(tmp_path / "photos", [(12, 8)] * 12 + [(9, 9)])
    settings = SMALL | {"data.images": tmp_path / "photos", "run.folder": tmp_path / "run"}
    assert main(train("draw_mnist_small", **settings)) == 1
    told = capsys.readouterr().err
    assert "photographs must have one size here, but" in told and "--data.side=32 --data.square=true" in told
    assert main(train("draw_mnist_small", **settings | {"data.side": 10, "data.square": "true"})) == 0


def test_what_cannot_be_drawn_or_classified_is_said(tmp_path, capsys):
    def said(config: str, **settings) -> str:
        assert main(train(config, **settings | {"run.folder": tmp_path / "run", "run.device": "cpu"})) == 1
        return capsys.readouterr().err

    scenes = "vision_attn.data.scenes.scenes.Scenes"
    assert "Scenes gives no images of one size, which a generator draws" in said("draw_mnist_small", data=scenes)
    assert "Scenes gives no images with labels" in said("ram_mnist28", data=scenes)
    write(tmp_path / "photos", [(12, 8)] * 12)
    flat = {"data.images": tmp_path / "photos", "data.labels": "null", "run.warmup": 0}
    assert "has no classes: expected" in said("ram_photographs", **flat)


def test_the_size_goes_with_the_run(tmp_path):
    write(tmp_path / "photos", [(24, 16)] * 12)
    source = LabelledImages(images=str(tmp_path / "photos"), side=12)
    assert source.image_shape == (3, 0, 0) and shape_drawn(source) == (1, 8, 12)
    batch = next(source.train(0, seed=0))
    assert isinstance(batch.images, torch.Tensor) and batch.images.shape[1:] == (3, 8, 12)
    source.export(tmp_path)
    later = LabelledImages(images="nowhere", side=12)
    later.restore(tmp_path)
    assert shape_drawn(later) == (1, 8, 12)
    for wrong in ("[]", '{"height": 1}', '{"height": 0, "width": 2}', '{"height": "1", "width": 2}'):
        (tmp_path / "image_size.json").write_text(wrong)
        with pytest.raises(UserError, match="image_size.json does not hold"):
            read_size(tmp_path / "image_size.json")
    write(tmp_path / "other", [(20, 20)] * 12)
    moved = LabelledImages(images=str(tmp_path / "other"))
    moved.image_shape = (3, 8, 12)
    with pytest.raises(UserError, match="this run takes images of 12 x 8 pixels, and one has 20 x 20"):
        next(moved.train(0, seed=0))


def test_grey_is_that_of_other_images():
    colours = np.random.default_rng(0).integers(0, 256, (8, 9, 3), np.uint8)
    grey = luma(torch.from_numpy(colours).permute(2, 0, 1)[None] / 255)
    assert (255 * grey[0, 0] - torch.from_numpy(converted(colours, 1)[..., 0].astype(np.float32))).abs().max() <= 0.51
    assert luma(torch.ones(1, 3, 2, 2)).max() <= 1

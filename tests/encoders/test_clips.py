"""Encoders of films: each frame as an image, its time, its motion; and films from the config to pictures."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.untrained import write_run
from vision_attn.api import load
from vision_attn.commands import main
from vision_attn.configuration.run_folder import open_run
from vision_attn.data.images.open import Encoded
from vision_attn.encoders.clips import FrameRegions, FrameVectors, MotionFeatures
from vision_attn.encoders.convnet import ConvNet
from vision_attn.encoders.precomputed import Precomputed
from vision_attn.engine.batches import few
from vision_attn.geometry.extents import WHOLE
from vision_attn.metrics.attention import AttentionCorrectness
from vision_attn.metrics.evaluators import Pointing
from vision_attn.system.errors import UserError
from vision_attn.viz.films import on_strip, over_time
from vision_attn.viz.overlay.views import film_overlaid
from vision_attn.viz.page import PageItem, write_page

B, F, S, D = 2, 6, 32, 16
SIZES = [
    "--task.encoder.encoder.region_size=8", "--task.encoder.encoder.width=16", "--task.encoder.encoder.weights=null",
    "--task.encoder.size=8", "--task.encoder.motion.size=4", "--task.model.hidden_size=8", "--task.model.word_size=8",
    "--task.model.score.attention_size=8", "--task.max_words=6", "--data.batch_size=4",
    "--data.epoch_images=8", "--data.val_images=4", "--data.test_images=4", "--run.warmup=0", "--run.device=cpu",
]  # fmt: skip


def convnet() -> ConvNet:
    return ConvNet(resolution=S, region_size=D, width=16)


def films() -> torch.Tensor:
    return torch.randint(256, (B, F, 3, S, S), dtype=torch.uint8)


@torch.no_grad()
def test_regions_are_those_of_each_frame_with_its_time_and_motion() -> None:
    torch.manual_seed(0)
    encoder = FrameRegions(encoder=convnet(), frames=F, motion=MotionFeatures(size=5, width=4, cells=2)).eval()
    some = films()
    regions = encoder(some)
    assert encoder.layout == (F, 8, 8) and regions.shape == (B, F * 64, D + 5) and encoder.region_size == D + 5
    regions = regions.view(B, F, 64, D + 5)
    for frame in range(F):
        expected = encoder.encoder(some[:, frame]) + encoder.times[frame, :, :D]
        torch.testing.assert_close(regions[:, frame, :, :D], expected)
    moved = encoder.motion(some).unflatten(2, (2, 2)).repeat_interleave(4, 2).repeat_interleave(4, 3)
    torch.testing.assert_close(regions[..., D:], moved.flatten(2, 3) + encoder.times[:, :, D:])
    assert encoder.frozen_part() is None and encoder.extent() == encoder.encoder.extent()


@torch.no_grad()
def test_motion_is_that_of_the_next_difference_and_four_before() -> None:
    torch.manual_seed(0)
    motion = MotionFeatures(size=8, width=4, cells=2).eval()
    still = films()[:, :1].expand(-1, F, -1, -1, -1).contiguous()
    changed = still.clone()
    changed[:, 3] = films()[:, 0]  # the differences after frames 2 and 3
    features, nothing = motion(changed), motion(still)
    torch.testing.assert_close(nothing, nothing[:, :1].expand_as(nothing))
    assert [torch.allclose(features[:, frame], nothing[:, frame]) for frame in range(F)] == [True] * 2 + [False] * 4


@torch.no_grad()
def test_motion_is_that_of_the_part_of_the_frame_where_a_region_lies() -> None:
    torch.manual_seed(0)
    encoder = FrameRegions(encoder=convnet(), frames=F, motion=MotionFeatures(size=5, width=4, cells=4)).eval()
    still = films()[:, :1].expand(-1, F, -1, -1, -1).contiguous()
    moved = still.clone()
    moved[:, 3:, :, :4, 24:28] = 255  # in the uppermost row of cells, and the last column
    times = encoder.times[..., D:]
    grids = [(encoder(each)[..., D:].unflatten(1, (F, 64)) - times).unflatten(2, (8, 8)) for each in (still, moved)]
    changed = (grids[0] != grids[1]).any(dim=-1)[:, 3].any(dim=0)
    assert changed[:2, 6:].all() and not changed[4:].any() and not changed[:, :4].any()
    assert (grids[1][:, :, ::2, ::2] == grids[1][:, :, 1::2, 1::2]).all()  # two by two regions lie in a cell


@torch.no_grad()
def test_one_vector_a_frame_and_what_a_cache_keeps() -> None:
    torch.manual_seed(0)
    encoder = FrameVectors(encoder=convnet(), frames=F, motion=MotionFeatures(size=5, width=4), size=24).eval()
    assert encoder.layout == (F, 1, 1) and encoder.extent() == WHOLE and encoder.region_size == 24
    assert encoder(films()).shape == (B, F, 24) and encoder.frozen_part() is None
    frozen = ConvNet(resolution=S, region_size=D, width=16, trainable=False)
    encoder = FrameVectors(encoder=frozen, frames=F, size=24).eval()
    part, some = encoder.frozen_part(), films()
    assert part.layout == (F, 8, 8) and part.identity() != frozen.identity()
    torch.testing.assert_close(encoder.finish(part(some)), encoder(some))
    with pytest.raises(UserError, match=r"films must be a tensor \(B, 6, 3, Y, X\)"):
        encoder(some[:, :3])
    with pytest.raises(UserError, match="same number of regions"):
        FrameRegions(encoder=Precomputed(region_size=D, grid=(1, -1)))


def test_pointing_in_time_and_place() -> None:
    """A region is inside a box of its own frame alone; one of a whole frame wherever the box is."""
    alpha = torch.tensor([0.1, 0.0, 0.7, 0.2, 0.0, 0.0])[None]
    boxes = {"stops": [(-1.0, -1.0, -0.1, 1.0, 1.0), (0.5, -1.0, 1.0, 1.0, 2.0)]}
    frames, places = AttentionCorrectness((6, 1, 1)), AttentionCorrectness((3, 1, 2))
    for metric, pointing, mass, uniform in ((frames, 0, 0.7, 2 / 6), (places, 1, 0.7, 2 / 6)):
        metric.update(["stops"], alpha, boxes)
        found = metric.compute()
        assert found["mass_uniform"] == pytest.approx(uniform)
        if metric is places:  # frame 1, left; frame 2, right
            assert found["pointing"] == pointing and found["mass"] == pytest.approx(mass)
        else:  # frames 1 and 2
            assert found["pointing"] == 1 and found["mass"] == pytest.approx(0.7)


def test_the_light_of_a_film() -> None:
    alpha = torch.tensor([[0.1, 0.6, 0.3], [1.0, 0.0, 0.0]])[..., None, None]
    torch.testing.assert_close(over_time(alpha), alpha[..., 0, 0])
    frames = film_overlaid([Image.new("RGB", (5, 4), "white")] * 3, alpha[0], "light")
    dark, full, half = (frame.getpixel((2, 2))[0] for frame in (frames[0], frames[1], frames[2]))
    assert full == 255 and half - 153 == pytest.approx(0.5 * 102, abs=1) and dark - 153 == pytest.approx(17, abs=1)
    assert on_strip((-1.0, -0.5, 1.0, 0.5, 1.0), 2) == (0.0, -0.5, 1.0, 0.5)


def test_the_page_says_when_each_word_looked(tmp_path: Path) -> None:
    alpha = torch.zeros(2, 3, 2, 2)
    alpha[0, 1, 0, 1], alpha[1, 2, 1, 0] = 1, 1
    item = PageItem("film", Image.new("RGB", (24, 8)), ["a", "stops"], alpha, frames=3, regions=torch.tensor([5, 10]))
    page = write_page(tmp_path / "page.html", [item]).read_text()
    assert "looks at frame 2 of 3, top right · saw at frame 2 of 3, top right" in page
    assert "looks at frame 3 of 3, bottom left" in page and 'data-boxes="66.67 50.00 16.67 50.00"' in page
    with pytest.raises(UserError, match="region 12 is outside the 3x2x2 grid"):
        write_page(tmp_path / "page.html", [item._replace(regions=torch.tensor([5, 12]))])


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run("films", tmp_path_factory.mktemp("films") / "run", sizes=SIZES)


def test_a_captioner_of_films_is_evaluated_and_drawn(run: Path, tmp_path: Path) -> None:
    task, source, _ = open_run(run)
    source.prepare(task)
    (batch,) = source.split("val")
    with torch.no_grad():
        task.model.output.bias[task.vocabulary.encode(next(iter(batch.boxes[0])))] += 10
    predicted, measured = task.predict(batch), Pointing()
    measured.update(predicted.batch, predicted.results)
    assert 0 < measured.compute()["pointing_uniform"] < 0.8
    drawn = tmp_path / "drawn"
    drawn.mkdir()
    task.show(few(batch, 2), drawn)
    assert sorted(path.suffix for path in drawn.iterdir()) == [".gif", ".gif", ".html", ".png", ".png"]
    page = (drawn / "index.html").read_text()
    assert page.count('data-frames="9"') == 2 and page.count('class="time"') == 2
    with Image.open(next(drawn.glob("*.gif"))) as animation:
        assert animation.n_frames >= 2


def test_films_of_ones_own_are_captioned(run: Path, tmp_path: Path, capsys) -> None:
    """A folder of frames and a GIF are one film each; a folder of films is searched."""
    (tmp_path / "some" / "frames").mkdir(parents=True)
    frames = [Image.fromarray(np.full((40, 60, 3), 20 * number, np.uint8)) for number in range(12)]
    for number, frame in enumerate(frames):
        frame.save(tmp_path / "some/frames" / f"{number:02}.jpg", quality=100)
    places = [tmp_path / "some/frames"]
    try:
        import av  # noqa: F401
    except ImportError:
        pass
    else:
        frames[0].save(tmp_path / "some/film.gif", save_all=True, append_images=frames[1:])
        places.insert(0, tmp_path / "some/film.gif")
    out = tmp_path / "drawn"
    assert main(["caption", str(run), str(tmp_path / "some"), "--out", str(out), "--device=cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == [str(place) for place in places]
    assert (out / "index.html").read_text().count("<figure") == len(places)
    (tmp_path / "empty").mkdir()
    assert main(["caption", str(run), str(tmp_path / "no.mp4"), "--device=cpu"]) == 1
    assert "no.mp4" in capsys.readouterr().err
    assert main(["caption", str(run), str(tmp_path / "some/frames/00.jpg"), "--device=cpu"]) == 1
    assert "00.jpg: a single picture, and this model takes films" in capsys.readouterr().err
    for verb in ("look", "measure"):
        assert main([verb, str(run), str(places[0]), "--device=cpu"]) == 1
        assert "takes films, not photographs: vision-attn caption" in capsys.readouterr().err
        assert main([verb, str(run)]) == 1 and "takes films" in capsys.readouterr().err
        assert main([verb, "resnet18"]) == 1 and "no images were named" in capsys.readouterr().err


def test_the_web_page_takes_films(run: Path) -> None:
    web = pytest.importorskip("vision_attn.web.answers", reason="the page needs the extra [web]")
    model = load(run, device="cpu")
    assert web.verbs(model) == ["caption"] and web.described(model) == {"kind": "caption", "takes": "film"}
    first, *others = (Image.new("RGB", (64, 48), (20 * number,) * 3) for number in range(9))
    film, still = io.BytesIO(), io.BytesIO()
    first.save(film, "GIF", save_all=True, append_images=others)
    first.save(still, "PNG")
    with pytest.raises(UserError, match="photo.png: a single picture"):
        web.answers(model, "caption", {}, [Encoded("photo.png", still.getvalue())])
    pytest.importorskip("av", reason="films need the extra [video]")
    (answer,) = web.answers(model, "caption", {}, [Encoded("film.gif", film.getvalue())])
    assert 'data-frames="9"' in answer.page()


def test_films_are_trained_on_with_a_caption_file(tmp_path: Path) -> None:
    """Photographs' caption files name films: here folders of frames."""
    rows = []
    for number in range(6):
        (tmp_path / "films" / f"f{number}").mkdir(parents=True)
        for frame in range(4):
            picture = Image.fromarray(np.full((40, 40, 3), 30 * number + 10 * frame, np.uint8))
            picture.save(tmp_path / "films" / f"f{number}" / f"{frame}.png")
        rows += [f"f{number},a film of kind {number % 3},{'val' if number == 5 else 'train'}"]
    (tmp_path / "captions.csv").write_text("\n".join(["image,caption,split", *rows]))
    data = "vision_attn.data.photographs.captions.Captions"
    own = [f"--data={data}", f"--data.images={tmp_path / 'films'}", f"--data.annotations={tmp_path / 'captions.csv'}",
           "--data.min_count=1", "--data.rows=1", "--data.cache=null", f"--run.folder={tmp_path / 'run'}",
           "--run.metric=nll", "--run.mode=min", "--run.show=1", "--run.epochs=1"]  # fmt: skip
    sizes = [size for size in SIZES if not size.startswith(("--data.epoch", "--data.val", "--data.test"))]
    assert main(["train", "configs/films.yaml", *sizes, *own]) == 0
    assert len([*(tmp_path / "run/pictures").glob("*.gif")]) == 1

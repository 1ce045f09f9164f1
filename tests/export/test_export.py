"""Export to ONNX and torch.export: the same numbers, for any number of images.

Tracing does not mix with shape checks, and most of this takes a minute: run it with VISION_ATTN_SHAPES=0 -m compile.
"""

import io
import subprocess
import sys
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.tiny import made
from tests.untrained import write_run
from vision_attn.commands import main
from vision_attn.configuration.run_folder import open_run
from vision_attn.data.images.open import open_photograph
from vision_attn.data.images.squares import read_image
from vision_attn.decode import beam_search
from vision_attn.encoders.backbone import Backbone
from vision_attn.export.onnx import export
from vision_attn.models.ram import RAM
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.top_down import TopDown
from vision_attn.system.errors import UserError
from vision_attn.task import Source
from vision_attn.tasks.classify import Classification

ROOT = Path(__file__).parents[2]
PHOTOGRAPHS = sorted((ROOT / "docs" / "photographs").glob("*.jpg"))
RUNS = "sat_soft_scenes", "ram_mnist28", "draw_mnist"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with runs, and below out/ what they were exported to; ONNX is left out where it is not installed."""
    folder = tmp_path_factory.mktemp("export")
    options = ["--no-onnx"] * (find_spec("onnxruntime") is None or find_spec("onnxscript") is None)
    said = io.StringIO()
    for name in RUNS:
        (folder / name).mkdir()
        run = write_run(name, folder / name / name)
        with redirect_stdout(said):
            assert main(["export", str(run), "--out", str(folder / "out" / name), "--device=cpu", *options]) == 0
    assert said.getvalue().count("differs from PyTorch by") in (5, 10)
    return folder


def opened(folder: Path, name: str) -> torch.nn.Module:
    return open_run(folder / name / name)[0]


@pytest.mark.compile
def test_an_encoder_in_bfloat16_is_exported_in_float32(tmp_path) -> None:
    write_run("sat_soft_scenes", tmp_path / "run")
    task = open_run(tmp_path / "run")[0]
    task.encoder = Backbone(name="resnet18", node="layer2", resolution=56, precision="bf16").eval()
    task.model = TopDown(len(task.vocabulary), 128, hidden_size=8, word_size=8, tied=True)  # exported as well
    (tmp_path / "out").mkdir()
    export(task, tmp_path / "out", onnx=False)
    images = torch.randint(256, (3, 3, 56, 56), dtype=torch.uint8)
    encode = torch.export.load(tmp_path / "out" / "encoder.pt2").module()
    with torch.no_grad():
        whole = Backbone(name="resnet18", node="layer2", resolution=56).eval()
        whole.load_state_dict(task.encoder.state_dict())
        torch.testing.assert_close(encode(images)[0], whole(images), rtol=1e-4, atol=1e-4)


@pytest.mark.compile
@pytest.mark.parametrize("config", ["memory_stories", "memory_scenes"])
def test_an_answerer_is_exported_for_any_number_of_questions(tmp_path, config: str) -> None:
    write_run(config, tmp_path / "run", sizes=["--run.device=cpu"])
    task = open_run(tmp_path / "run")[0]
    if config == "memory_stories":
        task.model.linear.fill_(False)
    (tmp_path / "out").mkdir()
    found = export(task, tmp_path / "out", onnx=find_spec("onnxscript") is not None)
    assert "answerer.pt2" in found and max(found.values()) < 1e-4


@pytest.mark.compile
@pytest.mark.parametrize(
    "case",
    ["an embedding of each place, a GRU", "a score by distance, scheduled sampling", "a Transformer of one projection"],
)
def test_variants_of_captioners_are_exported(tmp_path, case: str) -> None:
    task, _ = made(case)
    found = export(task, tmp_path, onnx=False)
    assert {*found} == {"encoder.pt2", "start.pt2", "step.pt2"} and max(found.values()) < 1e-4


@pytest.mark.compile
def test_a_captioner_writes_the_same_captions_with_onnxruntime_alone(folder) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX needs the extra [onnx]")
    pytest.importorskip("onnxscript", reason="ONNX needs the extra [onnx]")
    task, out = opened(folder, "sat_soft_scenes"), folder / "out" / "sat_soft_scenes"
    images = torch.stack([read_image(path, task.resolution) for path in PHOTOGRAPHS])
    session = onnxruntime.InferenceSession(str(out / "encoder.onnx"), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        regions = task.encoder(images)
        found = session.run(None, {"images": images.numpy()})[0]
        torch.testing.assert_close(torch.from_numpy(found), regions, atol=1e-4, rtol=0)
    expected = [caption.text for caption in task.describe(images)]
    program = (out / "caption.py").read_text()
    script = f"import sys\nsys.modules['torch'] = sys.modules['vision_attn'] = None\n{program}"
    script = script.replace("Path(__file__).parent", f"Path({str(out)!r})")
    done = subprocess.run([sys.executable, "-c", script, *map(str, PHOTOGRAPHS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split("\t")[1] for line in done.stdout.splitlines()] == expected
    some = [str(PHOTOGRAPHS[0]), str(out / "nothing.jpg")]
    done = subprocess.run([sys.executable, "-c", script, *reversed(some)], capture_output=True, text=True)
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 1 and "Traceback" not in done.stderr
    assert "nothing.jpg cannot be read" in done.stderr


@pytest.mark.compile
def test_programs_of_torch_take_any_number_of_images(folder) -> None:
    task, out = opened(folder, "ram_mnist28"), folder / "out"
    images = torch.rand(7, 1, 28, 28)
    with torch.no_grad():
        probabilities, locations = torch.export.load(out / "ram_mnist28" / "classifier.pt2").module()(images)
        glance = task.model(images, mode="mean")
        torch.testing.assert_close(probabilities, glance.log_prob[:, 0].exp(), atol=1e-4, rtol=0)
        torch.testing.assert_close(locations, glance.locations[:, 0], atol=1e-4, rtol=0)
        task = opened(folder, "draw_mnist")
        noise = torch.randn(5, task.model.num_steps, task.model.latent_size)
        (found,) = torch.export.load(out / "draw_mnist" / "generator.pt2").module()(noise)
        drawing = task.model.decode(noise.transpose(0, 1)[:, :, None])
        torch.testing.assert_close(found, drawing.canvases[-1].sigmoid(), atol=1e-4, rtol=0)


@pytest.mark.compile
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_ram_finds_the_same_digits(dtype, data_folder, tmp_path) -> None:
    """Differences by rounding may grow with each glimpse: that nothing else differs shows in float64."""
    task, source, _ = open_run(ROOT / "weights" / "ram_cluttered60")
    source.prepare(task)
    images = next(source.split("test")).images[:100].to(dtype)
    assert len(images) == 100
    found = export(task.to(dtype), tmp_path, onnx=dtype == torch.float32 and find_spec("onnxscript") is not None)
    with torch.no_grad():
        glance = task.model(images, mode="mean")
        expected = glance.log_prob[:, 0, -1].exp()
        results = [torch.export.load(tmp_path / "classifier.pt2").module()(images)[0]]
    if len(found) == 2:
        import onnxruntime

        session = onnxruntime.InferenceSession(str(tmp_path / "classifier.onnx"), providers=["CPUExecutionProvider"])
        results.append(torch.from_numpy(session.run(["probabilities"], {"images": images.numpy()})[0]))
    for probabilities in results:
        last = probabilities[:, -1]
        difference = (last - expected).abs().amax(dim=1)
        assert difference.max() < (1e-4 if dtype == torch.float32 else 1e-12)
        assert torch.equal(last.argmax(1), expected.argmax(1))


def test_what_cannot_be_exported_is_told(tmp_path, monkeypatch, capsys) -> None:
    run = write_run("ram_mnist28", tmp_path / "run")
    call = ["export", str(run), "--out", str(tmp_path / "out")]
    assert main([*call, "--no-onnx", "--task.model.first=random"]) == 1
    assert "the first glimpse of this model is at a random place" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "onnx", None)  # as if it were not installed
    assert main(call) == 1
    assert "pip install 'vision-attn[onnx]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_exported_captioners_read_photographs_as_the_package_does(tmp_path) -> None:
    """White where they are transparent, deep greys scaled, upright."""
    pytest.importorskip("onnxruntime", reason="ONNX needs the extra [onnx]")
    from vision_attn.export.caption_onnx import opened as read

    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (20, 30, 4), dtype=np.uint8)
    grey, turned = Image.fromarray(colours[..., 0]), Image.Exif()
    turned[0x0112] = 6
    for name, image, options in (
        ("colour.png", Image.fromarray(colours[..., :3]), {}), ("clear.png", Image.fromarray(colours), {}),
        ("grey.png", grey, {}), ("palette.gif", grey.quantize(8), {"transparency": 0}),
        ("clear_grey.png", Image.merge("LA", [grey, grey.rotate(180)]), {}),
        ("deep.png", Image.fromarray(rng.integers(0, 2**16, (20, 30), dtype=np.uint16)), {}),
        ("twelve.png", Image.fromarray(rng.integers(0, 2**12, (20, 30), dtype=np.uint16)), {}),
        ("float.tiff", Image.fromarray(rng.random((20, 30)).astype(np.float32)), {}),
        ("turned.jpg", Image.fromarray(colours[..., :3]), {"exif": turned}),
    ):  # fmt: skip
        image.save(tmp_path / name, **options)
        assert np.array_equal(np.array(read(str(tmp_path / name))), np.array(open_photograph(tmp_path / name))), name


@pytest.mark.parametrize(
    "rules", [{}, {"once": [4, 5, 6, 7, 8]}, {"no_repeat": 2, "min_words": 5}, {"length_power": 1.0, "beams": 5}]
)
def test_exported_captioners_decode_as_the_package_does(rules) -> None:
    """With the same beam and rules, on a captioner that repeats itself."""
    pytest.importorskip("onnxruntime", reason="ONNX needs the extra [onnx]")
    from vision_attn.export.caption_onnx import search

    torch.manual_seed(2)
    model = ShowAttendTell(9, 4, hidden_size=8, word_size=8).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    regions, facts = torch.randn(6, 3, 4), {"beams": 3, "max_words": 9, "min_words": 0, "no_repeat": 0, "once": []}
    facts |= rules
    expected = beam_search(model, regions, never=(2,), **facts).words[:, 0]
    facts = {"length_power": 0.0, "never": [2]} | facts
    for image, words in zip(regions, expected.tolist(), strict=True):
        memory, state = model.start(image[None], 1)

        @torch.no_grad()
        def step(held: dict, memory=memory) -> dict:
            logits, state, _ = model.step(torch.from_numpy(held["word"]), held["state"], memory)
            return {"logits": logits[:, 0].numpy(), "next_state": state}

        assert search(step, {"state": state}, facts) == [word for word in words if word > 1]
    contents = [[word for word in words if word > 3] for words in expected.tolist()]
    assert any(len(words) > len({*words}) for words in contents) == (not rules.get("once"))


def test_what_cannot_be_exported_says_why(tmp_path) -> None:
    source = Source()
    source.image_shape, source.num_classes = (1, 0, 0), 4
    task = Classification(source, model=partial(RAM, num_glimpses=2, first="centre")).eval()
    with pytest.raises(UserError, match="takes images of any size, which cannot be exported"):
        export(task, tmp_path)

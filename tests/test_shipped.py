"""The included captioner: packing a run into such a folder, and captions without naming a run."""

import os
import re
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import vision_attn
from tests import pretend
from tests.untrained import SIZES, write_run
from vision_attn.commands import caption as _caption
from vision_attn.commands import main
from vision_attn.configuration.config import build, read
from vision_attn.configuration.run_folder import open_run
from vision_attn.configuration.weights import in_half, save_weights
from vision_attn.data.images.squares import read_image
from vision_attn.engine.run_folder.claim import claim
from vision_attn.engine.run_folder.folders import lock_folder, workplace
from vision_attn.system.console import bytes_of

ROOT = Path(__file__).parents[1]
PHOTOGRAPHS = sorted((ROOT / "docs" / "photographs").glob("*.jpg"))
SHIPPED = ROOT / "weights" / "photographs"
TINY = SIZES["sat_soft_scenes"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    """A tiny untrained captioner of 56x56 pixels, packed."""
    folder = tmp_path_factory.mktemp("packed")
    write_run("sat_soft_scenes", folder / "run")
    assert main(["pack", str(folder / "run"), str(folder / "weights")]) == 0
    return folder / "weights"


@pytest.fixture
def shipped(packed, monkeypatch) -> Path:
    """Makes it the included captioner."""
    monkeypatch.setattr(_caption, "SHIPPED", packed)
    return packed


def test_the_photographs_are_small_and_their_source_is_named():
    told = (ROOT / "docs" / "photographs" / "README.md").read_text()
    assert len(PHOTOGRAPHS) == 5
    for path in PHOTOGRAPHS:
        row = next(line for line in told.splitlines() if f"`{path.name}`" in line)
        assert "public domain" in row or "CC0" in row
        assert path.stat().st_size < 100_000
        assert read_image(path, 64).float().std() > 20


def test_a_packed_encoder_is_frozen(tmp_path):
    cut = {"name": "mobilenet_v2", "node": "features.4", "resolution": 56, "trainable": "features.2", "weights": "null"}
    encoder = "vision_attn.encoders.backbone.Backbone"
    options = [f"--task.encoder={encoder}", *(f"--task.encoder.{key}={value}" for key, value in cut.items())]
    sizes = TINY[2:]
    run = write_run("sat_soft_scenes", tmp_path / "run", *options, sizes=sizes)
    assert main(["pack", str(run), str(tmp_path / "weights")]) == 0
    trained, packed = (open_run(folder)[0].encoder for folder in (run, tmp_path / "weights"))
    assert trained.trainable and not packed.trainable
    assert not any(weight.requires_grad for weight in packed.parameters())
    images = torch.randint(256, (2, 3, 56, 56), dtype=torch.uint8)
    with torch.no_grad():
        torch.testing.assert_close(packed(images), trained(images), rtol=0, atol=5e-3)


def test_a_packed_captioner_is_half_as_large_and_writes_the_same_captions(tmp_path, capsys):
    """Complete, with the weights of a frozen encoder, and without the file that these came from."""
    run = write_run("sat_soft_scenes", tmp_path / "run")
    assert main(["pack", str(run), str(tmp_path / "weights")]) == 0
    sizes = [sum(path.stat().st_size for path in folder.iterdir()) for folder in (run / "best", tmp_path / "weights")]
    assert f"{bytes_of(sizes[1])}, of {bytes_of(sizes[0])}" in capsys.readouterr().out
    files = [load_file(folder / "model.safetensors") for folder in (run / "best", tmp_path / "weights")]
    assert files[0].keys() == files[1].keys() and {tensor.dtype for tensor in files[1].values()} == {torch.float16}
    whole, half = (open_run(folder)[0] for folder in (run, tmp_path / "weights"))
    assert next(half.parameters()).dtype == torch.float32
    images, words = torch.randint(256, (4, 3, 56, 56), dtype=torch.uint8), torch.randint(3, 20, (4, 2, 5))
    with torch.no_grad():
        one, other = (task.model(task.regions(images), words).log_prob for task in (whole, half))
    torch.testing.assert_close(other, one, atol=5e-3, rtol=0)
    (tmp_path / "weights" / "README.md").write_text("how it was trained")
    assert main(["pack", str(tmp_path / "weights"), str(tmp_path / "again")]) == 0
    assert main(["pack", str(run), str(tmp_path / "weights")]) == 0
    assert (tmp_path / "weights" / "README.md").read_text() == "how it was trained"
    assert not (tmp_path / "again" / "README.md").exists()


def test_a_packed_folder_holds_a_frozen_encoder(tmp_path):
    """The file of its weights is not looked for: the folder is complete."""
    encoder = {"name": "mobilenet_v2", "node": "features.2", "resolution": 56, "weights": "nowhere.safetensors"}
    options = [f"--task.encoder.{name}={value}" for name, value in encoder.items()]
    sizes = [option for option in TINY if "task.encoder" not in option]
    config = read(
        ROOT / "configs" / "sat_soft_scenes.yaml",
        ["--task.encoder=vision_attn.encoders.backbone.Backbone", *options, *sizes, f"--run.folder={tmp_path / 'run'}"],
    )
    claim(config)
    parts = build(config)
    task = parts["task"](parts["data"]).eval()
    save_weights(task, tmp_path / "run/model.safetensors")
    parts["data"].export(tmp_path / "run")
    assert main(["pack", str(tmp_path / "run"), str(tmp_path / "weights")]) == 0
    opened, _, _ = open_run(tmp_path / "weights")
    images = torch.randint(256, (1, 3, 56, 56), dtype=torch.uint8)
    with torch.no_grad():
        torch.testing.assert_close(opened.encoder(images), task.encoder(images), atol=0.02, rtol=0.02)


def test_numbers_beyond_half_precision_are_kept(tmp_path):
    large, count = torch.tensor([1.0, 1e5]), torch.tensor(7)
    save_file({"large": large, "small": large / 1e4, "count": count}, tmp_path / "a")
    in_half(tmp_path / "a", tmp_path / "b")
    found = load_file(tmp_path / "b")
    assert torch.equal(found["large"], large) and torch.equal(found["count"], count)
    assert found["small"].dtype == torch.float16


def test_without_a_run_the_captioner_that_comes_along_is_used(shipped, tmp_path, capsys):
    names = [str(path) for path in PHOTOGRAPHS]
    assert main(["caption", str(shipped), *names]) == 0
    named = capsys.readouterr().out
    assert main(["caption", *names]) == 0
    assert capsys.readouterr().out == named and len(named.splitlines()) == len(PHOTOGRAPHS)
    assert main(["caption", str(PHOTOGRAPHS[0].parent)]) == 0
    assert capsys.readouterr().out == named
    assert main(["caption", "--beams", "2", names[0], "--out", str(tmp_path / "look"), names[1]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == names[:2]
    assert (tmp_path / "look" / "index.html").is_file()
    assert main(["caption", str(shipped), "--beams", "2", names[0]]) == 0
    assert capsys.readouterr().out.splitlines() == lines[:1]


@pytest.mark.slow
def test_the_python_of_the_readme_runs(shipped, tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(import vision_attn\n.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    shutil.copy(PHOTOGRAPHS[0], tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert capsys.readouterr().out.strip() and "<html" in (tmp_path / "look.html").read_text()


def test_the_python_of_the_docs_runs(shipped, tmp_path, monkeypatch):
    """Also the words that are given: their log p is that of the captioner's own caption where they are the same."""
    shutil.copy(PHOTOGRAPHS[0], tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    *_, first, second = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "captioning.md").read_text(), re.DOTALL)
    made: dict = {}
    for code in (first, second):
        exec(code.replace("runs/mine", str(shipped)), made)
        made["best"] = made.get("best") or vision_attn.load(shipped).caption("photo.jpg").text
    assert (tmp_path / "photo.html").is_file()
    given, words = made["given"], made["words"]
    assert given.log_prob.shape == words.shape == (1, 1, 7) and given.alpha.shape == (1, 1, 7, 196)
    exec(second.replace("runs/mine", str(shipped)).replace("a dog runs on the grass", made["best"]), made)
    torch.testing.assert_close(made["given"].log_prob[0, 0, :-1].tolist(), made["caption"].log_prob, atol=1e-3, rtol=0)


def test_what_is_neither_a_run_nor_a_photograph_is_named(shipped, tmp_path, monkeypatch, capsys):
    assert main(["caption", str(shipped)]) == 1
    assert "name a photograph" in capsys.readouterr().err
    assert main(["caption", "missing.jpg"]) == 1
    assert "missing.jpg" in capsys.readouterr().err
    assert main(["caption", "runs/missing", str(PHOTOGRAPHS[0])]) == 1
    assert "runs/missing does not exist: give the folder of a run" in capsys.readouterr().err


@pytest.mark.slow
def test_photographs_of_all_sizes_and_colour_modes_are_captioned(shipped, tmp_path, capsys):
    coffee = Image.open(ROOT / "docs/photographs/coffee.jpg")
    deep = np.linspace(0, 65535, 300 * 200, dtype=np.uint16).reshape(200, 300)
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held upright
    images = {
        "1x1.png": coffee.resize((1, 1)), "wide.jpg": coffee.resize((3000, 20)), "high.png": coffee.resize((20, 3000)),
        "grey.jpg": coffee.convert("L"), "grey_alpha.png": coffee.convert("LA"), "bits.png": coffee.convert("1"),
        "palette.png": coffee.quantize(32), "alpha.png": coffee.convert("RGBA"), "cmyk.jpg": coffee.convert("CMYK"),
        "cmyk.tif": coffee.convert("CMYK"), "deep.png": Image.fromarray(deep), "lab.tif": coffee.convert("LAB"),
        "turned.jpg": coffee.rotate(90, expand=True), "coffee.webp": coffee, "coffee.gif": coffee,
        "float.tif": Image.fromarray(deep.astype(np.float32) / 65535),
    }  # fmt: skip
    for name, image in images.items():
        image.save(tmp_path / name, **({"exif": turned} if name == "turned.jpg" else {}))
    assert main(["caption", str(tmp_path), "--out", str(tmp_path / "look")]) == 0
    said = capsys.readouterr()
    assert [line.split("\t")[0] for line in said.out.splitlines()] == sorted(str(tmp_path / name) for name in images)
    assert len(list((tmp_path / "look").glob("*.png"))) == len(images)
    upright = read_image(ROOT / "docs/photographs/coffee.jpg", 56).float()
    for name in ("turned.jpg", "cmyk.jpg", "cmyk.tif", "alpha.png", "palette.png", "coffee.webp", "lab.tif"):
        assert (read_image(tmp_path / name, 56).float() - upright).abs().mean() < 12, name
    grey = coffee.convert("L").convert("RGB")
    grey.save(tmp_path / "expected.png")
    for name in ("grey.jpg", "grey_alpha.png"):
        difference = read_image(tmp_path / name, 56).float() - read_image(tmp_path / "expected.png", 56).float()
        assert difference.abs().mean() < 5, name
    column = read_image(tmp_path / "deep.png", 56)[0].float().mean(dim=1)
    assert column[0] < 10 < 245 < column[-1], "16 bits are scaled, not cut off"


def test_the_demo_begins_with_captions_of_the_photographs(shipped, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trained = []
    pretend.a_verb_does(monkeypatch, "train", lambda arguments: trained.append(arguments) or 1)
    assert main(["demo"]) == 1 and len(trained) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines[1 : 1 + len(PHOTOGRAPHS)]] == [str(path) for path in PHOTOGRAPHS]
    drawn = {path.name for path in Path("runs/demo/photographs").iterdir()}
    assert "index.html" in drawn and len(drawn) == 1 + len(PHOTOGRAPHS)


@pytest.mark.skipif(not SHIPPED.is_dir(), reason="weights/photographs is not here")
def test_the_captioner_that_comes_along_tells_the_photographs_apart(tmp_path, monkeypatch, capsys):
    """From any folder, and with its terms beside it."""
    monkeypatch.chdir(tmp_path)
    assert main(["caption", *map(str, PHOTOGRAPHS), "--out", "look"]) == 0
    captions = [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()]
    assert len(set(captions)) == len(PHOTOGRAPHS) and all(len(caption.split()) > 3 for caption in captions)
    told = (SHIPPED / "README.md").read_text()
    assert "Flickr8k" in told and "research" in told and "CIDEr" in told


def test_packing_replaces_packed_weights_only(packed, tmp_path, capsys):
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("model.safetensors", "notes.txt"):
        (mine / name).write_text("mine")
    (tmp_path / "run" / "best").mkdir(parents=True)
    for out in (mine, tmp_path / "run" / "best", tmp_path / "run", packed, mine / "notes.txt"):
        assert main(["pack", str(packed), str(out)]) == 1
        assert f"{out} holds something else than packed weights" in capsys.readouterr().err
    assert (mine / "notes.txt").read_text() == "mine" and (packed / "model.safetensors").is_file()
    (mine / "notes.txt").unlink()
    for name in ("model.safetensors", "captions_test.json", "config.yaml", "README.md"):  # each alone, and no weights
        for path in mine.iterdir():
            path.unlink()
        (mine / name).write_text("mine")
        kept = name == "README.md"
        assert main(["pack", str(packed), str(mine)]) == (0 if kept else 1)
        assert (mine / name).read_text() == "mine"
    for name in ("metrics_test.json", "captions_val.json"):  # of `eval`, about the weights that were there
        (mine / name).write_text("{}")
    assert main(["pack", str(packed), str(mine)]) == 0
    assert {path.name for path in mine.iterdir()} == {path.name for path in packed.iterdir()} | {"README.md"}
    (mine / "captions_mine.json").write_text("mine")
    assert main(["pack", str(packed), str(mine)]) == 1 and (mine / "captions_mine.json").read_text() == "mine"


def test_packing_leaves_trained_weights_and_neighbours_of_similar_names(packed, tmp_path, capsys):
    run = write_run("sat_soft_scenes", tmp_path / "run")
    copy = shutil.copytree(run / "best", tmp_path / "copy")  # of float32, and perhaps the only ones
    assert main(["pack", str(run), str(copy)]) == 1 and main(["pack", str(packed), str(run / "best" / "in")]) == 0
    assert main(["pack", str(run), str(run / "best" / "in")]) == 1
    assert "holds something else" in capsys.readouterr().err
    assert (copy / "model.safetensors").read_bytes() == (run / "best" / "model.safetensors").read_bytes()
    for name in ("rel.old", "rel.new", "rel.part", ".rel"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("mine")
    (tmp_path / "rel.tmp").write_text("mine")
    before = {path.name for path in tmp_path.iterdir()}
    for _ in range(2):
        assert main(["pack", str(run), str(tmp_path / "rel")]) == 0
    assert {path.name for path in tmp_path.iterdir()} == before | {"rel"}
    assert all((tmp_path / name / "file").read_text() == "mine" for name in ("rel.old", "rel.new", "rel.part", ".rel"))
    for name in (".", ".."):
        assert main(["pack", str(run), name]) == 1
        assert "name the folder itself" in capsys.readouterr().err
    (tmp_path / "link").symlink_to(tmp_path / "rel")
    assert main(["pack", str(run), str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "rel" / "model.safetensors").is_file()


def test_two_processes_do_not_pack_into_one_folder(packed, tmp_path, capsys):
    with lock_folder(tmp_path, f"{workplace(tmp_path / 'rel').name}.lock"):
        assert main(["pack", str(packed), str(tmp_path / "rel")]) == 1
        assert f"{tmp_path / 'rel'} is being written by process {os.getpid()}" in capsys.readouterr().err
    assert main(["pack", str(packed), str(tmp_path / "rel")]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["rel"]


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o600), (0o002, 0o664), (0o022, 0o644)])
def test_weights_have_the_permissions_that_the_user_chose(packed, tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        run = write_run("sat_soft_scenes", tmp_path / "run")
        assert main(["pack", str(run), str(tmp_path / "rel")]) == 0
    finally:
        os.umask(before)
    for file in (run / "best" / "model.safetensors", *(tmp_path / "rel").iterdir()):
        assert stat.S_IMODE(file.stat().st_mode) == mode, file
    assert stat.S_IMODE((tmp_path / "rel").stat().st_mode) == mode | mode >> 2 & 0o111


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "start/a.txt"])
def test_training_does_not_replace_what_is_no_run(tmp_path, name, capsys):
    mine = tmp_path / "project" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine: 1\n")
    argv = ["train", str(ROOT / "configs" / "sat_soft_scenes.yaml"), *TINY, f"--run.folder={tmp_path / 'project'}"]
    assert main(argv) == 1
    assert f"{tmp_path / 'project' / name.split('/')[0]} is no run's" in capsys.readouterr().err
    assert mine.read_text() == "mine: 1\n" and {path for path in mine.parent.rglob("*")} == {mine}

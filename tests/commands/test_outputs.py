"""No output of a command replaces what the command reads, or another output: by whatever name, in every verb."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.commands.test_compare import write_run as write_log
from tests.untrained import SIZES, write_run
from vision_attn.commands import main
from vision_attn.system.errors import UserError
from vision_attn.system.inputs import check_replaced, inputs_kept, reads, reads_all, writes

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with a captioner and a classifier."""
    folder = tmp_path_factory.mktemp("runs")
    write_run("sat_soft_scenes", folder / "captioner")
    write_run("ram_mnist28", folder / "classifier")
    return folder


@pytest.fixture
def place(runs, tmp_path, monkeypatch) -> Path:
    """The current folder, with the runs, photographs and captions."""
    for run in ("captioner", "classifier"):
        shutil.copytree(runs / run, tmp_path / run)
    (tmp_path / "photos").mkdir()
    for name in ("a.png", "01-a.png", "02-a.png", "b.jpg"):
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)).save(
            tmp_path / "photos" / name
        )
    (tmp_path / "x.csv").write_text("image,caption\n1,a dog runs\n2,a cat sits\n")
    (tmp_path / "refs.csv").write_text("image,caption\n1,a dog runs\n2,a cat sleeps\n")
    shutil.copy(tmp_path / "refs.csv", tmp_path / "x_metrics.json")
    write_log(tmp_path / "log")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def as_it_is(path: str) -> str:
    return path


def absolute(path: str) -> str:
    return str(Path(path).absolute())


def roundabout(path: str) -> str:
    return f"photos/.././{path}"


def by_symlink(path: str) -> str:
    Path("symlink").symlink_to(path)
    return "symlink"


def by_hard_link(path: str) -> str:
    os.link(path, "hardlink")
    return "hardlink"


NAMES = [as_it_is, absolute, roundabout, by_symlink, by_hard_link]


def refuse(argv: list[str], said: str, capsys: pytest.CaptureFixture) -> None:
    """The command fails with one line, and every file is as it was before."""

    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}

    before = contents()
    assert main(argv) == 1
    told = capsys.readouterr().err.splitlines()
    assert len([line for line in told if "error:" in line]) == 1 and said in told[-1], told
    after = contents()
    assert {path: after.get(path) for path in before} == before


READ = "but this command reads it: name another place with "
TWICE = "would be written twice: name another place with "


@pytest.mark.parametrize("named", NAMES)
@pytest.mark.parametrize(
    ("argv", "file", "option"),
    [
        (["score", "x.csv", "refs.csv", "--out"], "x.csv", "--out"),
        (["score", "x.csv", "refs.csv", "--out"], "refs.csv", "--out"),
        (["score", "x.csv", "refs.csv", "--each"], "x.csv", "--each"),
        (["score", "x.csv", "refs.csv", "--each"], "refs.csv", "--each"),
        (["caption", "captioner", "photos/b.jpg", "--csv"], "photos/b.jpg", "--csv"),
        (["caption", "captioner", "photos", "--csv"], "photos/a.png", "--csv"),
        (["caption", "captioner", "photos/b.jpg", "--csv"], "captioner/best/model.safetensors", "--csv"),
        (["eval", "captioner", "--each"], "captioner/best/config.yaml", "--each"),
    ],
)
def test_a_file_that_is_read_is_not_written(place, named: Callable[[str], str], argv, file, option, capsys):
    refuse([*argv, named(file)], READ + option, capsys)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["score", "x.csv", "x_metrics.json"], READ + "--out"),
        (["score", "x.csv", "refs.csv", "--out", "q.json", "--each", "q.json"], TWICE + "--each"),
        (["score", "x.csv", "refs.csv", "--out", "q.json", "--each", "./photos/../q.json"], TWICE + "--each"),
        (["caption", "captioner", "photos/b.jpg", "--out=o", "--csv=o/index.html"], TWICE + "--out"),
        (["caption", "captioner", "photos/b.jpg", "--out=o", "--csv=o/01-b.png"], TWICE + "--out"),
        (["caption", "captioner", "photos/a.png", "photos/01-a.png", "--out=photos"], READ + "--out"),
        (["caption", "captioner", "photos/b.jpg", "photos/a.png", "photos/02-a.png", "--out=./photos"], READ + "--out"),
        (["classify", "classifier", "photos/a.png", "photos/01-a.png", "--out=photos"], READ + "--out"),
        (["look", "captioner", "photos/a.png", "photos/01-a.png", "--out=photos"], READ + "--out"),
        (["eval", "captioner", "--out=o", "--each=o/metrics_test.json"], TWICE + "--out"),
        (["eval", "captioner", "--out=o", "--each=o/captions_test.json"], TWICE + "--out"),
        (["measure", "captioner", "photos/b.jpg", "--out=o", "--boxes=o/measure.json"], READ + "--out"),
        (["pack", "captioner", "captioner/best/inside"], "holds something else"),
    ],
)
def test_outputs_and_inputs_stay_apart(place, argv, said, capsys):
    (place / "o").mkdir()
    (place / "o" / "measure.json").write_text("{}")
    refuse(argv, said, capsys)


@pytest.mark.parametrize("name", ["captions_test.json", "metrics_test.json"])
def test_an_evaluation_does_not_replace_its_references(place, name, capsys):
    records = [{"image": f"{stem}.png", "caption": "a red circle", "split": "test"} for stem in ("a", "01-a")]
    (place / "captioner" / name).write_text(json.dumps(records))
    data = "--data=vision_attn.data.photographs.captions.Captions"
    argv = ["eval", "captioner", data, "--data.images=photos", f"--data.annotations=captioner/{name}", "--device=cpu"]
    refuse(argv, "but this command reads it", capsys)


def test_training_does_not_replace_what_it_reads(place, capsys):
    """Folders that training replaces as a whole, or draws into."""
    records = [
        {"image": f"{stem}.png", "caption": "a red circle", "split": split}
        for stem, split in (("a", "train"), ("01-a", "val"), ("02-a", "test"))
    ]
    for inside in ("new/pictures", "new/best"):
        shutil.rmtree(place / "new", ignore_errors=True)
        shutil.copytree(place / "photos", place / inside)
        (place / "captions.json").write_text(json.dumps(records))
        sizes = [option for option in SIZES["sat_soft_scenes"] if "_images" not in option]
        argv = ["train", str(CONFIGS / "sat_soft_scenes.yaml"), *sizes, "--run.folder=new", "--run.epochs=1"]
        argv += ["--data=vision_attn.data.photographs.captions.Captions", f"--data.images={inside}"]
        refuse([*argv, "--data.annotations=captions.json"], "new/", capsys)


def test_what_is_not_read_may_be_replaced(place, capsys):
    """As before: the same command twice, a link to a place elsewhere, and the metrics of each image where they go."""
    for _ in range(2):
        assert main(["score", "x.csv", "refs.csv", "--out=q.json", "--each=e.jsonl", "--metrics=BLEU-1"]) == 0
        assert main(["caption", "captioner", "photos", "--out=o", "--csv=o/table.csv", "--device=cpu"]) == 0
        assert main(["compare", "log", "--out=o2"]) == 0
        each = Path("captioner", "scores_test.jsonl").absolute()
        assert main(["eval", "captioner", "--device=cpu", f"--each={each}"]) == 0
        assert main(["pack", "captioner", "rel"]) == 0
    assert len(list((place / "o").iterdir())) == 6 and each.is_file()


def test_the_same_content_may_be_written_again(tmp_path):
    """A vocabulary that a config names is written where it lies."""
    from vision_attn.system.files import replacing

    file = tmp_path / "vocabulary.json"
    file.write_text("[]")
    with inputs_kept():
        reads(file)
        with replacing(file) as temporary:
            temporary.write_text("[]")
        with pytest.raises(UserError, match="reads it"), replacing(file) as temporary:
            temporary.write_text("[1]")
    assert file.read_text() == "[]" and [path.name for path in tmp_path.iterdir()] == ["vocabulary.json"]


def test_each_command_knows_its_own_files_and_a_notebook_none(tmp_path):
    (tmp_path / "a").touch()
    reads(tmp_path / "a")
    check_replaced(tmp_path / "a", "--out")
    with inputs_kept():
        reads_all(tmp_path)
        with inputs_kept():  # as `demo` calls others
            writes(tmp_path / "a", "--out")
        with pytest.raises(UserError, match="a would be replaced"):
            writes(tmp_path / "a", "--out")
        with pytest.raises(UserError, match="holds"):
            check_replaced(tmp_path)
        writes(tmp_path / "b", "--out")
        with pytest.raises(UserError, match="b would be replaced"):
            reads(tmp_path / "b")


EMPTY = [
    ["caption", "", "a.jpg"], ["caption", "r", ""], ["caption", "r", "a", "--out="], ["caption", "r", "a", "--csv="],
    ["classify", "r", "a", "--out="], ["compare", ""], ["compare", "r", "--out="], ["demo", "--out="],
    ["eval", "r", "--out="], ["eval", ""], ["eval", "r", "--each="], ["export", "r", "--out="], ["look", "", "a"],
    ["look", "r", "a", "--out="], ["measure", "r", "a", "--out="], ["measure", "r", "a", "--boxes="], ["pack", "", "o"],
    ["pack", "r", ""], ["push", "", "u/n"], ["score", "", "b"], ["score", "a", ""], ["score", "a", "b", "--out="],
    ["score", "a", "b", "--each="], ["serve", ""], ["transcribe", "r", "a", "--out="],
]  # fmt: skip


@pytest.mark.parametrize("argv", EMPTY, ids=" ".join)
def test_an_empty_name_is_not_the_current_folder(argv, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2 and "the name is empty" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--run.folder=", "--data.images="])
def test_an_empty_name_in_a_config_is_not_the_current_folder(option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("captions.csv").write_text("image,caption,split\na.jpg,a dog,train\nb.jpg,a cat,val\nc.jpg,a cow,test\n")
    Path("photos").mkdir()
    for verb in ("train", "prepare"):
        argv = [verb, str(CONFIGS / "sat_soft_scenes.yaml"), "--data=vision_attn.data.photographs.captions.Captions"]
        assert main([*argv, "--data.images=photos", "--data.annotations=captions.csv", option]) == 1
        assert re.search("(is empty|is missing): name a f", capsys.readouterr().err)
    assert main(["train", ""]) == 1 and "the config is empty" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} <= {"captions.csv", "photos", "runs", "cache"}

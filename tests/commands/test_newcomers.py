"""What newcomers meet at the command line: odd names, mistakes, few photographs, and what killed commands left."""

import argparse
import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file
from torchvision.models import get_model

from tests import pretend
from vision_attn.commands import _hints, caption, demo, main, train
from vision_attn.commands import eval as evaluation
from vision_attn.commands._files import photographs
from vision_attn.configuration import config
from vision_attn.configuration.reader import UnknownKey
from vision_attn.contracts import DecodedCaption
from vision_attn.data.photographs.annotation_files.references import read_results
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.metrics import caption_metrics, write_results
from vision_attn.metrics.coco import isolated
from vision_attn.metrics.coco.java import java
from vision_attn.metrics.variety import few_images, same_caption, sameness
from vision_attn.results.model import Model
from vision_attn.system import console, files
from vision_attn.system.errors import UserError
from vision_attn.task import Source
from vision_attn.tasks.caption import Captioning

ROOT = Path(__file__).parents[2]
SCENES = str(ROOT / "configs" / "sat_soft_scenes.yaml")
FORGERY = "a\nfake.jpg\tA cat.jpg"


class Talker(Captioning):
    """A captioner that says what it is told, one text after the other."""

    resolution, frames, settings, fit, way = 16, 1, {}, "centre", "attention"

    def __init__(self, texts: Iterable[str]) -> None:
        torch.nn.Module.__init__(self)
        self.texts = iter(texts)

    def describe(self, images: torch.Tensor, *_: object, placed: bool = True) -> list[list[DecodedCaption]]:
        texts = [next(self.texts) for _ in images]
        return [
            [DecodedCaption(t, t.split(), [-1.0] * len(t.split()), torch.ones(len(t.split()), 2, 2), None)]
            for t in texts
        ]

    def judge(self, predictions, folder: Path) -> dict[str, float]:
        assert list(predictions) == []
        texts = {number: text for number, text in enumerate(self.texts)}
        metrics = caption_metrics(texts, {number: ["a dog"] for number in texts}, names=["BLEU-1"]).metrics
        write_results(folder / "captions.json", texts)
        return metrics


class Empty(Source):
    def split(self, name: str, *, rank: int = 0, world: int = 1) -> list:
        return []


pytestmark = pytest.mark.processes


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterable[str]], None]:
    """Makes `caption` and `eval` open a run that says these texts."""

    def opened(texts: Iterable[str]) -> None:
        run = Model(Talker(texts), {}, torch.device("cpu"), Empty())
        for module in (caption, evaluation):
            monkeypatch.setattr(module, "open_with", lambda arguments: run)

    return opened


def paint(*paths: Path | str) -> list[Path]:
    for path in paths:
        Image.new("RGB", (20, 20), "red").save(path, "PNG")
    return [Path(path) for path in paths]


# What is printed


def test_a_name_cannot_forge_a_line_of_captions(tmp_path: Path, say, capsysbinary) -> None:
    names = [FORGERY, "\x1b[2J.png", os.fsdecode(b"\x9b2J\xff.png"), "\u202egnp.png", "-rf.png"]
    paint(*(tmp_path / name for name in names))
    (tmp_path / "\x1b]0;title\x07.jpg").write_bytes(b"no image")
    say(["a dog\x1b[2J\nforged"] * 5)
    out = tmp_path / "out"
    assert main(["caption", "run", str(tmp_path), "--out", str(out)]) == 1
    captured = capsysbinary.readouterr()
    lines = captured.out.split(b"\n")
    assert len(lines) == 6 and not lines[-1]
    assert all(line.endswith(b".png\ta dog\\x1b[2J\\nforged") or b"A cat.jpg\t" in line for line in lines[:-1])
    shown = captured.out + captured.err
    assert not any(byte in shown for byte in (b"\x1b", b"\x07", b"\x9b", "\u202e".encode()))
    assert b"\xff" in captured.out  # the name stays what it is as far as it harms nobody
    assert b"\\x1b]0;title\\x07.jpg" in captured.err
    assert len(list(out.glob("*.png"))) == 5 and (out / "index.html").is_file()


def test_messages_of_errors_logging_and_arguments_are_escaped(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def fail(_: argparse.Namespace) -> int:
        raise UserError("\x1b[2Jone\nline" + "x" * 100_000)

    pretend.a_verb_does(monkeypatch, "demo", fail)
    assert main(["demo"]) == 1
    assert main(["train", "\x1b[2J.yaml"]) == 1
    with pytest.raises(SystemExit):
        main(["score", "a", "b", "--\x1b[2J\nforged"])
    root = logging.getLogger("a root")
    monkeypatch.setattr(logging, "root", root)
    console.log_to_terminal()
    for name in ("vision_attn.data", "wandb.sdk"):
        root.handle(
            logging.makeLogRecord({"name": name, "levelno": logging.WARNING, "msg": f"{FORGERY}: cannot be read"})
        )
    said = capsys.readouterr().err
    assert "\x1b" not in said and "vision-attn: error: \\x1b[2Jone line" in said and len(said) < 4000
    told = "a\\nfake.jpg\\tA cat.jpg: cannot be read"
    assert said.splitlines()[-2:] == [f"vision-attn: {told}", f"wandb: {told}"]


class PanicException(BaseException):
    """What libraries in Rust raise."""


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("two\nlines"), 1, "error: two lines"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(13, "Permission denied", "x"), 1, "error: x: Permission denied"),
        (MemoryError(), 1, "error: out of memory (MemoryError): close other programs"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory\n:"), 1, "error: out of memory ("),
        (RecursionError("maximum recursion depth exceeded"), 1, "error: an input is nested too deeply"),
        (PanicException("index out of bounds"), 1, "error: a library failed on an input: index out"),
        (OSError(28, "No space left on device", "runs/a.json"), 1, "error: runs/a.json: No space left on device; free"),
        (KeyError("x"), 70, "error: this is a bug in vision-attn: KeyError at demo.py:1:"),
        (RuntimeError("shapes"), 70, "error: this is a bug in vision-attn: RuntimeError at "),
        (
            ValueError("zip() argument 2 is shorter than argument 1"),
            70,
            "error: this is a bug in vision-attn: ValueError",
        ),
    ],
)
def test_whatever_fails_is_one_line(error, status: int, said: str, monkeypatch, capsys) -> None:
    functions = {"error": error}
    exec(compile("def fail(_): raise error", demo.__file__, "exec"), functions)
    pretend.a_verb_does(monkeypatch, "demo", functions["fail"])
    assert main(["demo"]) == status
    captured = capsys.readouterr().err
    assert captured.startswith(f"vision-attn: {said}") and len(captured.splitlines()) == 1
    assert status != 70 or captured.endswith("; --debug shows where it came from\n")
    with pytest.raises(type(error)):
        main(["demo", "--debug"])
    monkeypatch.setenv("VISION_ATTN_DEBUG", "1")
    with pytest.raises(type(error)):
        main(["demo"])


def test_an_error_in_code_of_ones_own_is_not_called_a_bug_of_ours(monkeypatch, capsys) -> None:
    def fail(_: argparse.Namespace) -> int:
        return sum([torch.zeros(2)], torch.zeros(3))  # fails in a library that this file has called

    pretend.a_verb_does(monkeypatch, "demo", fail)
    assert main(["demo"]) == 1
    assert "error: your own code failed: RuntimeError at test_newcomers.py:" in capsys.readouterr().err


def test_progress_of_captions_pictures_and_metrics_is_seen_in_a_pipe(tmp_path, say, monkeypatch, capsys) -> None:
    pretend.progress_at_once(monkeypatch)
    paint(*(tmp_path / f"{number}.png" for number in range(3)))
    say(["a dog", "a cat", "a bird"])
    assert main(["caption", "run", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert "captions: " in said and "pictures: " in said and "3/3" in said
    say(["a dog", "a cat"])
    assert main(["eval", "run", "--out", str(tmp_path)]) == 0
    assert "metrics: " in capsys.readouterr().err


def test_a_long_metric_is_waited_for_aloud() -> None:
    class Slow(subprocess.Popen):
        def __init__(self) -> None:
            self.left = 3

        def wait(self, seconds: float) -> None:
            self.left -= 1
            if self.left >= 0:
                raise subprocess.TimeoutExpired("java", seconds)

    told = []
    isolated.wait(Slow(), time.monotonic() + 1000, lambda: told.append(1))
    assert len(told) == 3
    with pytest.raises(subprocess.TimeoutExpired):
        isolated.wait(Slow(), time.monotonic() - 1, lambda: told.append(1))


# Which photographs are meant


def test_captions_are_written_into_a_table_that_score_reads(tmp_path: Path, say, capsys) -> None:
    names = ["a, b.png", 'half "quoted".png', "plain.png"]
    paint(*(tmp_path / name for name in names))
    say(["a dog", "two, dogs", ""])
    table = tmp_path / "new" / "captions.csv"
    assert main(["caption", "run", str(tmp_path), "--csv", str(table)]) == 0
    written = read_results(table)
    assert [(Path(name).name, text) for name, text in written.items()] == list(
        zip(names, ["a dog", "two, dogs", ""], strict=True)
    )
    assert main(["caption", "run", str(tmp_path), f"--csv={tmp_path}"]) == 1
    assert "is a folder: --csv must name a file" in capsys.readouterr().err


def test_a_folder_tells_what_it_skips_and_recursive_descends(tmp_path: Path, say, capsys) -> None:
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "a").mkdir()
    (tmp_path / ".hidden").mkdir()
    paint(*(tmp_path / name for name in ("z.png", "a/2.png", "a/10.png", "b/c/1.PNG", ".hidden/x.png", ".y.png")))
    for name in ("notes.txt", "b/list.csv"):
        (tmp_path / name).touch()
    (tmp_path / "b" / "round").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "pipe.jpg")

    say("abcdef")
    assert main(["caption", "run", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path}/z.png\ta\n"
    assert f"{tmp_path}/pipe.jpg is not a regular file and was skipped" in captured.err
    skipped = "skipped 1 file without an image extension (notes.txt); --recursive includes 2 subfolders"
    assert f"vision-attn: {tmp_path}: {skipped}\n" in captured.err

    say("abcdef")
    assert main(["caption", "run", str(tmp_path), "--recursive"]) == 0
    captured = capsys.readouterr()
    names = [line.split("\t")[0].removeprefix(f"{tmp_path}/") for line in captured.out.splitlines()]
    assert names == ["z.png", "a/10.png", "a/2.png", "b/c/1.PNG"]
    assert (
        "skipped 2 files without an image extension (notes.txt, list.csv); 1 link to folders not followed"
        in captured.err
    )


def test_a_folder_of_films_holds_files_of_films_and_folders_of_frames(tmp_path: Path) -> None:
    for name in ("b", "a", "more/c", "cache", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    pictures = ("b/1.png", "b/2.png", "a/1.png", "more/c/1.png", ".hidden/1.png", "cover.png")
    paint(*(tmp_path / name for name in pictures))
    for name in ("b/notes.txt", "film.mp4"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "a", target_is_directory=True)
    found = photographs([tmp_path], films=True)
    assert found.files == [tmp_path / name for name in ("film.mp4", "a", "b")] and not found.complaints
    skipped = "skipped 1 file without a film extension (cover.png); --recursive includes 2 subfolders"
    assert found.notes == [f"{tmp_path}: {skipped}"]
    found = photographs([tmp_path], films=True, recursive=True)
    assert found.files == [tmp_path / name for name in ("film.mp4", "a", "b", "more/c")]
    assert "1 link to folders not followed" in found.notes[0]
    assert photographs([tmp_path / "a"], films=True).files == [tmp_path / "a"]
    found = photographs([tmp_path / "cache"], films=True)
    assert found.complaints == [f"{tmp_path}/cache: no films in this folder"]
    found = photographs([tmp_path / "film.mp4", tmp_path / "cover.png"])
    assert (
        found.files == [tmp_path / "cover.png"]
        and "film.mp4 is a film: name a captioner of films" in found.complaints[0]
    )


def test_a_folder_without_images_hints_at_its_subfolders(tmp_path: Path) -> None:
    (tmp_path / "album").mkdir()
    paint(tmp_path / "album" / "1.png")
    found = photographs([tmp_path])
    assert not found.files and not found.notes
    assert found.complaints == [f"{tmp_path}: no images in this folder; --recursive includes 1 subfolder"]
    assert photographs([tmp_path], recursive=True).files == [tmp_path / "album" / "1.png"]
    assert photographs([Path("x" * 300)]).files == [Path("x" * 300)]  # it is told when it is read


def test_long_names_and_two_of_one_name_are_drawn(tmp_path: Path, say) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    long = "é" * 125 + ".png"
    given = paint(tmp_path / "a" / long, tmp_path / "b" / long, tmp_path / "a" / "1.png", tmp_path / "b" / "1.png")
    say(["a dog"] * 4)
    assert main(["caption", "run", *map(str, given), "--out", str(tmp_path / "out")]) == 0
    assert len(list((tmp_path / "out").glob("*.png"))) == 4


def test_an_empty_caption_is_said_to_be_empty(tmp_path: Path, say, capsys) -> None:
    paths = paint(*(tmp_path / f"{number}.png" for number in range(3)))
    say(["", "a dog", ""])
    assert main(["caption", "run", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0] == f"{paths[0]}\t"
    assert f"captions without a word: 2 of 3 ({paths[0]}, {paths[2]}); the captioner ended at once" in captured.err
    assert (tmp_path / "out" / "index.html").read_text().count(">no words<") == 2


def test_a_photograph_that_is_gone_before_it_is_drawn_costs_the_others_nothing(tmp_path, say, capsys):
    one, two = paint(tmp_path / "1.png", tmp_path / "2.png")

    def texts() -> Iterator[str]:
        yield "a dog"
        one.unlink()
        yield "a cat"

    say(texts())
    assert main(["caption", "run", str(one), str(two), "--out", str(tmp_path / "out")]) == 1
    assert f"{one}: no such file" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").glob("*.png")] == ["01-2.png"]


# Where things are written


@pytest.mark.parametrize(
    "argv",
    [
        ["caption", "run", "{image}", "--out={place}"],
        ["eval", "run", "--out={place}"],
        ["train", SCENES, "--run.folder={place}"],
        ["prepare", SCENES, "--run.folder={place}"],
        ["score", "{results}", "{references}", "--out={place}/a.json"],
    ],
    ids=lambda argv: argv[0],
)
@pytest.mark.parametrize("place", ["/proc/nope", "{folder}/file", "{folder}/file/below"])
def test_a_place_that_cannot_be_written_is_one_line(argv, place: str, tmp_path: Path, say, capsys) -> None:
    say(["a dog"])
    (tmp_path / "file").touch()
    names = {"image": paint(tmp_path / "1.png")[0], "place": place.format(folder=tmp_path)}
    names |= {"results": tmp_path / "results.json", "references": tmp_path / "references.json"}
    write_results(names["results"], {1: "a dog"})
    names["references"].write_text(json.dumps({"annotations": [{"image_id": 1, "caption": "a dog"}]}))
    assert main([word.format(**names) for word in argv]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("vision-attn: error: ") and place.format(folder=tmp_path) in lines[0]
    assert "--out" in lines[0] or "--run.folder" in lines[0]


def killed(work: Callable[[], object]) -> None:
    """Do `work` in a forked process that ends by SIGKILL, and forget which folders this process has swept."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    files._swept.clear()


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hidden(*folders: Path) -> list[Path]:
    return [path for folder in folders if folder.is_dir() for path in folder.rglob(".*")]


@pytest.mark.parametrize("verb", ["caption", "eval", "score"])
def test_what_a_killed_command_left_is_removed_by_the_next(verb: str, tmp_path: Path, say, monkeypatch) -> None:
    out, temporary = tmp_path / "out", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    results, references = tmp_path / "results.json", tmp_path / "references.json"
    write_results(results, {1: "a dog"})
    references.write_text(json.dumps({"annotations": [{"image_id": 1, "caption": "a dog"}]}))
    argv = {
        "caption": ["caption", "run", str(paint(tmp_path / "1.png")[0]), f"--out={out}"],
        "eval": ["eval", "run", f"--out={out}"],
        "score": ["score", str(results), str(references), f"--out={out / 'scores.json'}", "--metrics", "BLEU-1"],
    }[verb]

    def work() -> None:
        say(["a dog"])
        main(argv)

    for place in ("os.replace", "vision_attn.metrics.coco.isolated.wait"):
        with monkeypatch.context() as deadly:
            deadly.setattr(place, die)  # a signal from outside would come at another moment each time
            if verb == "caption" and place != "os.replace":
                continue  # it measures nothing
            killed(work)
        assert hidden(out, temporary), place
    while running(temporary):  # orphans of the metrics, which end by themselves
        time.sleep(0.05)
    say(["a dog"])
    assert main(argv) == 0
    assert not hidden(out, temporary) and not list(temporary.iterdir()) and list(out.iterdir())


def running(folder: Path) -> bool:
    """Whether a process works on `folder`."""
    return subprocess.run(["pgrep", "-f", str(folder)], stdout=subprocess.DEVNULL).returncode == 0


def test_java_keeps_its_temporary_files_in_the_scratch_folder(tmp_path: Path) -> None:
    command = java("-XshowSettings:properties", "-version", megabytes=64, folder=tmp_path)
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert f"java.io.tmpdir = {tmp_path}" in told
    assert "-XX:-UsePerfData" in command and f"-XX:ErrorFile={tmp_path}/java_error.log" in command


# What was meant


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("epochs", "--epochs: there is no such key; did you mean --run.epochs?"),
        ("epoch", "--epoch: there is no such key; did you mean --run.epochs?"),
        ("beem", "--beem: there is no such key; did you mean --task.beams?"),
        ("lr", "--lr: there is no such key; did you mean --optimizer.lr?"),
        ("model.hidden_size", "--model.hidden_size: there is no such key; did you mean --task.model.hidden_size?"),
        ("beams", "--beams: there is no such key; did you mean --task.beams?"),
        ("no-repeat", "--no-repeat: there is no such key; did you mean --task.no_repeat?"),
        ("nonsense", "nonsense: there is no such key"),
        ("run.epoch", "run.epoch: there is no such key; did you mean epochs?"),
    ],
)
def test_a_key_is_found_wherever_it_lies(given: str, meant: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", SCENES, f"--{given}=3"]) == 1
    assert f"error: {meant}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_key_below_a_named_part_is_told_with_its_whole_path(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    content = yaml.safe_load(Path(SCENES).read_text())
    penalty = "vision_attn.criteria.doubly_stochastic.DoublyStochastic"
    for part, options, said in (
        (
            {"class_path": penalty, "init_args": {"wieght": 1}},
            [],
            "task.criteria.sharp.wieght: there is no such key; did ",
        ),
        (
            {"class_path": penalty, "weight": 1},
            [],
            "task.criteria.sharp.weight: there is no such key here: write it under init_args",
        ),
        (penalty, ["--task.criteria.flat.weight=1"], "has none: give its class first, --task.criteria.flat=..."),
    ):
        content["task"]["init_args"]["criteria"]["sharp"] = part
        Path("mine.yaml").write_text(yaml.safe_dump(content))
        assert main(["train", "mine.yaml", *options]) == 1
        assert said in capsys.readouterr().err
    Path("mine.yaml").write_text("run: {epochs: 1}\nrun: {epochs: 2}\n")
    assert main(["train", "mine.yaml"]) == 1
    assert "mine.yaml, line 2: the key run occurs twice" in capsys.readouterr().err


def test_a_run_knows_its_keys_too() -> None:
    content = {"task": {"class_path": "a.B", "init_args": {"model": {"init_args": {"hidden_size": 3}}}}, "data": 1}
    assert _hints.meant(UnknownKey("hidden_size", "there is no such key; choose from: task"), content).endswith(
        "did you mean --task.model.hidden_size?"
    )
    unknown = UnknownKey("beams", "there is no such key")
    assert _hints.meant(unknown, {"data": 1}, ["beams"]) == "--beams is no option of this command"


def test_options_of_the_verb_and_words_without_dashes_are_told(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"beams": None, "time_limit": 1}
    assert _hints.meant(UnknownKey("beans", "there is no such key"), {"optimizer": {"betas": 1}}, options).endswith(
        "or --beams?"
    )
    assert _hints.meant(UnknownKey("timelimit", "there is no such key"), {}, options).endswith(
        "did you mean --time-limit?"
    )
    _hints.options_only(["--run.epochs=3", "--data.images=a=b", "--task.penalty=-1"])
    assert main(["train", SCENES, "run.epochs=3"]) == 1
    assert capsys.readouterr().err.endswith("run.epochs=3 is not an option: did you mean --run.epochs=3?\n")
    paint("-rf.png", "1.png")
    assert main(["caption", str(ROOT / "weights" / "ram_cluttered60"), "1.png", "-rf.png"]) == 1
    assert capsys.readouterr().err.endswith("-rf.png is not an option: for the file of this name, write ./-rf.png\n")
    for path in ("-rf.png", "1.png"):
        Path(path).unlink()
    assert main(["train", SCENES, "--run.epochs=3", "4"]) == 1
    assert capsys.readouterr().err == "vision-attn: error: 4 is not an option\n"
    assert main(["train", SCENES, "--run.epochs=0"]) == 1
    assert not list(tmp_path.iterdir())


def test_a_config_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    for name in ("configs/sat_soft_scenes.yaml", "configs/ram_small.yaml", "runs/mine/config.yaml"):
        (tmp_path / name).write_text("")
    for given, said in {
        "sat_soft_scene": "sat_soft_scene does not exist; did you mean configs/sat_soft_scenes.yaml or",
        "configs/sat_sof_scenes.yaml": "does not exist; did you mean configs/sat_soft_scenes.yaml",
        "ram": "ram does not exist; did you mean configs/ram_small.yaml",
        "runs/mine": "runs/mine is a folder, not a config: its config is runs/mine/config.yaml",
        "configs": "configs is a folder, not a config: give a file such as configs/",
        "nothing-like-it": "nothing-like-it does not exist; the included configs are in ",
        "x" * 300: "x does not exist",
    }.items():
        assert main(["train", given]) == main(["prepare", given]) == 1
        assert said in capsys.readouterr().err.splitlines(keepends=True)[0]


def test_json_lines_are_read_as_results(tmp_path: Path) -> None:
    path = tmp_path / "captions.jsonl"
    path.write_text('{"image_id": 1, "caption": "a dog"}\n\n{"image_id": 2, "caption": "a cat"}\n')
    assert read_results(path) == {1: "a dog", 2: "a cat"}
    path.write_text('{"image_id": 1, "caption": "a dog"}\n')
    assert read_results(path) == {1: "a dog"}
    path.write_text('{"image_id": 1, "caption": "a dog"}\n{"image_id": 2}\n')
    with pytest.raises(UserError, match="record 2 has no caption"):
        read_results(path)
    path.write_text('{"images": 1}\n{"images": 2}\n')
    with pytest.raises(UserError, match="captions.jsonl is JSON lines"):
        files.read_json(path)


# Few photographs


def test_the_same_caption_everywhere_is_counted_and_told() -> None:
    assert same_caption(["a dog"] * 4) == {} == same_caption([])
    assert same_caption(["a dog"] * 3 + ["a cat", "", "a bird"]) == {"same_caption": 0.5}
    same = same_caption(["a dog"] * 3 + ["a cat", "", "a bird"])
    (line,), (of_photographs,) = sameness(same), sameness(same, photographs=True)
    assert line.startswith("50% of the images have the same caption") and "finetune_photographs.yaml" not in line
    assert of_photographs.startswith(line + "; ") and of_photographs.endswith("configs/finetune_photographs.yaml")
    (of_films,) = sameness(same, "film")
    assert of_films == line.replace("image", "film")
    (of_others,) = sameness(same, pretrained=True)
    assert of_others.startswith("50% of the images have the same caption") and "Train" not in of_others
    assert few_images(3, "film")[0].startswith("scores of 3 films say little")
    assert not sameness({"same_caption": 0.49}) and not sameness({"same_caption": float("nan")}) and not sameness({})


def test_captions_that_are_all_the_same_are_said_to_be(tmp_path: Path, say, capsys) -> None:
    paint(*(tmp_path / f"{number}.png" for number in range(6)))
    say(["a dog"] * 5 + ["a cat"])
    assert main(["caption", "run", str(tmp_path)]) == 0
    assert "83% of the images have the same caption" in capsys.readouterr().err
    say(["a dog", "a cat", "a bird", "a bus", "a man", "a tree"])
    assert main(["caption", "run", str(tmp_path)]) == 0
    assert not capsys.readouterr().err


def test_training_ends_with_what_to_do_where_all_captions_are_the_same(tmp_path: Path, monkeypatch, capsys) -> None:
    films = str(ROOT / "configs" / "films.yaml")
    for path, share, said in ((SCENES, 0.9, "image"), (films, 0.9, "film"), (SCENES, 0.2, "")):
        pretend.trained(monkeypatch, nll=3.0, same_caption=share)
        assert main(["train", path, f"--run.folder={tmp_path / 'run'}"]) == 0
        assert (f"90% of the {said}s have the same caption" in capsys.readouterr().out) == bool(said)


def test_the_config_for_few_photographs_takes_its_first_steps(tmp_path: Path, monkeypatch, capsys) -> None:
    """The README's command on painted photographs, with random weights in the encoder: train, then caption."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "mine" / "images"
    folder.mkdir(parents=True)
    paint(*(folder / f"{number}.jpg" for number in range(26)))
    splits = ["train"] * 12 + ["val"] * 7 + ["test"] * 7
    images = [{"id": n, "file_name": f"{n}.jpg", "split": split} for n, split in enumerate(splits)]
    notes = [{"id": n, "image_id": n, "caption": f"a red {'square' if n % 2 else 'thing'}"} for n in range(26)]
    (folder.parent / "captions.json").write_text(json.dumps({"images": images, "annotations": notes}))
    save_file(get_model("mobilenet_v2").state_dict(), tmp_path / "weights.safetensors")
    few = ["--task.encoder.weights=weights.safetensors", "--task.encoder.resolution=64", "--run.device=cpu"]
    few += ["--run.epochs=1", "--run.warmup=0", "--run.sanity_check=false"]
    assert main(["train", str(ROOT / "configs" / "sat_soft_small.yaml"), "--run.folder=runs/mine", *few]) == 0
    told = capsys.readouterr().out
    assert "same_caption 1" in told and "100% of the images have the same caption" in told  # they are all red
    assert main(["caption", "runs/mine", str(folder), "--device=cpu"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 26 and "100% of the images have the same caption" in captured.err


# What is said next


def test_the_next_command_has_what_the_run_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (tmp_path / "captioner_of_mine.py").write_text(
        "from vision_attn.models.show_and_tell import ShowAndTell\n\n\nclass Mine(ShowAndTell):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ours, mine = (config.read(SCENES, overrides) for overrides in ([], ["--task.model=captioner_of_mine.Mine"]))
    assert train.trusting(ours) == ""
    several = ["--data=vision_attn.data.photographs.captions.Captions", "--data.sources=[{name: a, images: b}]"]
    assert train.trusting(config.read(SCENES, several)) == ""
    config.build(mine)
    assert train.trusting(mine) == " --trust captioner_of_mine"

    monkeypatch.chdir(tmp_path)
    overrides = ["--run.folder=my run", "--data.rows=1"]
    assert main(["prepare", SCENES, *overrides]) == 0
    assert f"train with: vision-attn train {SCENES} '--run.folder=my run' --data.rows=1\n" in capsys.readouterr().out


def test_a_vocabulary_is_not_replaced_in_silence(tmp_path: Path, capsys) -> None:
    run = ["prepare", SCENES, f"--run.folder={tmp_path}"]
    other = Vocabulary.build(["one dog"], min_count=1)
    other.save(tmp_path / "vocabulary.json")
    assert main(run) == 0
    assert f"the vocabulary of {tmp_path} has {len(other)} words, and that of this config" in capsys.readouterr().err
    assert main(run) == 0
    assert "the vocabulary of" not in capsys.readouterr().err
    (tmp_path / "best").mkdir()
    (tmp_path / "start").mkdir()
    other.save(tmp_path / "start" / "vocabulary.json")
    before = (tmp_path / "vocabulary.json").read_bytes()
    assert main(run) == 1
    assert "a run there has begun with it: name another --run.folder" in capsys.readouterr().err
    assert (tmp_path / "vocabulary.json").read_bytes() == before


def test_an_interruption_that_a_library_reports_as_its_own_error_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def fail(_: argparse.Namespace) -> int:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise ImportError("cannot load module more than once per process") from None

    pretend.a_verb_does(monkeypatch, "demo", fail)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "vision-attn: interrupted\n"

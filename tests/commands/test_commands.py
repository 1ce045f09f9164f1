"""The command line: what the README promises, and one clear line for every mistake."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from whole_runs import in_two_processes

from tests import pretend
from tests.configuration.test_config import TOY
from vision_attn import __version__, commands
from vision_attn.commands import main

ROOT = Path(__file__).parents[2]
SCENES = str(ROOT / "configs" / "sat_soft_scenes.yaml")
VERBS = sorted(path.stem for path in Path(commands.__file__).parent.glob("[a-z]*.py"))
TINY = [
    "--task.encoder.region_size=8", "--task.encoder.width=16", "--task.model.hidden_size=8", "--task.model.word_size=8",
    "--task.model.score.attention_size=8", "--task.max_words=6", "--data.batch_size=4", "--data.epoch_images=8",
    "--data.val_images=4", "--data.test_images=4", "--run.epochs=1", "--run.warmup=0", "--run.device=cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny captioner, trained for two steps by the command."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert main(["train", SCENES, f"--run.folder={folder}", *TINY]) == 0
    return folder


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """A folder with two images, a file that is none, and a damaged image."""
    folder = tmp_path / "photographs"
    folder.mkdir()
    Image.new("RGB", (90, 60), "red").save(folder / "wide.jpg")
    Image.new("L", (20, 30), 200).save(folder / "grey é.png")
    (folder / "notes.txt").write_text("no image")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8 cut off")
    return folder


def complaint(capsys: pytest.CaptureFixture, argv: list[str], status: int = 1) -> str:
    """The one line on standard error with which `argv` fails."""
    capsys.readouterr()
    assert main(argv) == status
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("vision-attn: error: ")
    return lines[0].removeprefix("vision-attn: error: ")


def shell(*argv: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    """Run a command as a user would, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, *argv], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as left:
        main([verb, "--help"])
    assert left.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: vision-attn {verb}") and "--debug" in said


def test_version_and_unknown_verbs(capsys: pytest.CaptureFixture) -> None:
    for argv, code in ((["--version"], 0), (["--help"], 0), (["trian"], 2)):
        with pytest.raises(SystemExit) as left:
            main(argv)
        assert left.value.code == code
    captured = capsys.readouterr()
    assert captured.out.startswith(f"vision-attn {__version__}\n")
    assert all(f"\n    {verb}" in captured.out for verb in VERBS)
    assert "trian" in captured.err


def test_without_a_verb_all_are_listed(capsys: pytest.CaptureFixture) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    assert not shown.out and all(f"\n    {verb}" in shown.err for verb in VERBS)


def test_a_new_file_is_a_new_verb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "greet.py").write_text(
        '"""Say hello.\n\nAnd nothing else."""\n\n\ndef add_arguments(parser):\n    parser.add_argument("name")\n\n\n'
        'def run(arguments):\n    print("hello", arguments.name)\n    return 5\n'
    )
    (tmp_path / "_shared.py").write_text("no verb\n")
    pretend.verbs_of(monkeypatch, tmp_path)
    assert main(["greet", "you"]) == 5
    with pytest.raises(SystemExit):
        main(["greet", "you", "--loud"])


@pytest.mark.parametrize(
    "argv",
    [
        ["look", "m:f", "--trust", "m", "--head", "-1", "a.jpg", "b", "--out", "o"],
        ["measure", "m:f", "a.jpg", "--trust", "m", "--method", "occlusion", "b"],
        ["serve", "--port", "0", "a.jpg", "--host", "here", "b"],
        ["score", "a.jpg", "--json", "b", "references.json"],
        ["compare", "a.jpg", "--out", "o", "b"],
    ],
    ids=lambda argv: argv[0],
)
def test_names_may_follow_options(argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    given = []
    monkeypatch.setattr(import_module(f"vision_attn.commands.{argv[0]}"), "run", lambda found: given.append(found) or 0)
    assert main(argv) == 0
    field = {"serve": "models", "score": "results", "compare": "runs"}.get(argv[0], "images")
    assert [str(name) for name in getattr(given[0], field)] == ["a.jpg", "b"]
    with pytest.raises(SystemExit):
        main([*argv, "--loud"])
    assert "unrecognized arguments: --loud" in capsys.readouterr().err


def test_train_eval_and_caption_go_together(
    captioner: Path, photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "measured"
    assert main(["eval", str(captioner), "--out", str(out), "--beams", "2", "--show", "2", "--device=cpu"]) == 0
    record = json.loads((out / "metrics_test.json").read_text())
    assert {"BLEU-4", "BLEU-4-no-brevity", "METEOR", "ROUGE-L", "CIDEr", "pointing", "pointing_uniform"} <= set(record)
    assert (record["split"], record["images"], record["beams"], record["seed"]) == ("test", 4, 2, 0)
    assert {"hardware", "versions", "seconds", "time", "run"} <= set(record)
    results = json.loads((out / "captions_test.json").read_text())
    assert len(results) == 4 and set(results[0]) == {"image_id", "caption"}
    each = [json.loads(line) for line in (out / "scores_test.jsonl").read_text().splitlines()]
    assert [{name: one[name] for name in ("image_id", "caption")} for one in each] == results
    assert sum(one["ROUGE-L"] for one in each) / 4 == pytest.approx(record["ROUGE-L"]) and "BLEU-4" in each[0]
    assert (out / "pictures_test" / "index.html").is_file() and len(list((out / "pictures_test").glob("*.png"))) == 2
    assert not list(out.glob(".*"))
    table = capsys.readouterr().out
    assert (
        table.startswith("test: 4 images\n")
        and record["intervals"] == {}  # of four images
        and "BLEU-4" in table
        and "pointing_uniform" in table
        and str(out / "metrics_test.json") in table
    )

    best = tmp_path / "best"  # what a user would send to a friend
    (captioner / "best").rename(best)
    try:
        drawn = tmp_path / "drawn"
        missing = photographs / "missing.jpg"
        assert main(["caption", str(best), str(photographs), str(missing), "--out", str(drawn)]) == 1
    finally:
        best.rename(captioner / "best")
    captured = capsys.readouterr()
    lines = [line.split("\t") for line in captured.out.splitlines()]
    assert [name for name, _ in lines] == [str(photographs / "grey é.png"), str(photographs / "wide.jpg")]
    assert "broken.jpg" in captured.err and "missing.jpg" in captured.err and "notes.txt:" not in captured.err
    assert (drawn / "index.html").is_file() and len(list(drawn.glob("*.png"))) == 2


@pytest.mark.slow
def test_readable_photographs_alone_succeed(captioner: Path, photographs: Path, tmp_path: Path) -> None:
    call = "import sys; from vision_attn.commands import main; sys.exit(main())"
    done = shell("-c", call, "caption", str(captioner), str(photographs / "wide.jpg"), cwd=tmp_path, LC_ALL="C")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{photographs / 'wide.jpg'}\t")
    assert "decoded texts were cut" in done.stderr  # untrained, it finds no end in six words
    assert done.stderr.count("\n") == 1


def test_eval_overrides_reach_the_data_and_the_same_caption_is_counted(
    captioner: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    each = tmp_path / "elsewhere" / "each.jsonl"
    options = [f"--out={tmp_path}", f"--each={each}", "--data.test_images=6", "--split=test"]
    assert main(["eval", str(captioner), *options]) == 0
    assert len(each.read_text().splitlines()) == 6 and not (tmp_path / "scores_test.jsonl").exists()
    captions = [record["caption"] for record in json.loads((tmp_path / "captions_test.json").read_text())]
    share = max(map(captions.count, captions)) / len(captions)
    assert len(captions) == 6 and share > 0.7, "after two steps it cannot tell scenes apart"
    assert json.loads((tmp_path / "metrics_test.json").read_text())["same_caption"] == share
    assert f"{share:.0%} of the images have the same caption" in capsys.readouterr().err


def test_the_same_command_goes_on(captioner: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["train", SCENES, f"--run.folder={captioner}", *TINY]) == 0
    assert "finished" in capsys.readouterr().out


def test_prepare_says_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["prepare", SCENES, f"--run.folder={tmp_path / 'run'}", *TINY]) == 0
    said = capsys.readouterr().out
    assert "vocabulary:" in said and "14 x 14 annotation vectors of 8 numbers" in said
    assert (tmp_path / "run" / "vocabulary.json").is_file()


def test_processes_prepare_on_a_gpu_each_and_the_first_one_exports(tmp_path: Path, monkeypatch) -> None:
    """With a pretended CUDA, which records what is moved there."""
    moved, current, empty = [], [], torch.empty

    def pretended(*shape, device=None, **more):
        found = torch.device(device or "cpu")
        return SimpleNamespace(device=found) if found.type == "cuda" else empty(*shape, **more)

    def move(self, device=None, **how):
        moved.extend([device] if device else [])
        return self

    monkeypatch.setattr(torch, "empty", pretended)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.nn.Module, "to", move)
    for rank in ("1", "0"):
        for name, value in {"WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank}.items():
            monkeypatch.setenv(name, value)
        assert main(["prepare", SCENES, f"--run.folder={tmp_path}", *TINY, "--run.device=cuda"]) == 0
        assert moved.pop() == current.pop() == torch.device("cuda", int(rank))
        assert (tmp_path / "vocabulary.json").is_file() == (rank == "0")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["train", "nothing.yaml"], "nothing.yaml does not exist"),
        (["train", SCENES, "--task.model.hiden_size=3"], "task.model.hiden_size: there is no such key"),
        (["train", SCENES, "--task.model.hidden_size=q"], "task.model.hidden_size: expected an int, got 'q'"),
        (["train", SCENES, "--run.epochs=0"], "run.epochs is 0"),
        (["train", SCENES, "--run.device=tpu"], "device"),
        (["train", SCENES, "--run.metric=METEOR", *TINY], "mass_uniform; task.validate_with names others"),
        (["eval", "nothing"], "nothing does not exist"),
        (["eval", "{run}", "--split=tset"], "tset"),
        (["eval", "{run}", "--beams=0"], "beams is 0"),
        (["eval", "{run}", "--data.batchsize=2"], "data.batchsize: there is no such key; did you mean batch_size"),
        (["eval", "{run}", "--device=cuda:99"], "device 'cuda:99' is not available here"),
        (["eval", "{run}", "--out={file}"], "{file}"),
        (["caption", "{run}", "nothing.jpg", "--beams=-1"], "beams is -1"),
    ],
)
def test_a_mistake_is_one_line(
    argv: list[str], said: str, captioner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    names = {"run": captioner, "file": tmp_path / "file"}
    assert said.format(**names) in complaint(capsys, [word.format(**names) for word in argv])


def test_a_run_that_is_no_captioner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plane.yaml").write_text(TOY)
    assert main(["train", "plane.yaml"]) == 0
    assert "--trust toy" in complaint(capsys, ["eval", "runs/plane"])
    assert "--beams is for captioners" in complaint(capsys, ["eval", "runs/plane", "--trust=toy", "--beams=3"])
    assert "--each is for captioners" in complaint(capsys, ["eval", "runs/plane", "--trust=toy", "--each=x.jsonl"])
    assert "writes no captions" in complaint(capsys, ["caption", "runs/plane", "x.jpg", "--trust=toy"])
    assert main(["eval", "runs/plane", "--trust=toy", "--split=val"]) == 0
    assert json.loads(Path("runs/plane/metrics_val.json").read_text())["images"] == 16


def test_a_reader_who_leaves_is_no_disaster() -> None:
    code = (
        "import sys; from vision_attn import commands; from vision_attn.commands import demo, main\n"
        "def run(arguments):\n    for _ in range(100000): print('line', flush=True)\n"
        "demo.run = run\nsys.exit(main(['demo']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141


@pytest.mark.slow
def test_the_doors_are_the_verbs(tmp_path: Path) -> None:
    assert shell(str(ROOT / "eval.py"), "--help").stdout.startswith("usage: vision-attn eval")
    done = shell(str(ROOT / "train.py"), "nothing.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "vision-attn: error: nothing.yaml does not exist\n")


def test_two_processes_evaluate_as_one_does(captioner: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    options = ["--data.batch_size=2", "--data.test_images=5"]
    assert main(["eval", str(captioner), *options, f"--out={one}"]) == 0
    in_two_processes(["eval", str(captioner), *options, f"--out={two}"], print)
    records = [json.loads((folder / "metrics_test.json").read_text()) for folder in (one, two)]
    assert records[1].pop("processes") == 2 and "processes" not in records[0]
    for record in records:
        del record["seconds"], record["time"]
    assert records[0] == records[1] and records[0]["images"] == 5
    assert (one / "captions_test.json").read_bytes() == (two / "captions_test.json").read_bytes()
    assert len(json.loads((two / "captions_test.json").read_text())) == 5


@pytest.mark.parametrize(
    "command",
    [["caption"], ["classify", "weights/ram_cluttered60"], ["look", "weights/photographs"]],
    ids=lambda c: c[0],
)
def test_a_command_that_fails_leaves_no_empty_folder(command, tmp_path, capsys):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no photograph")
    assert main([*command, str(broken), f"--out={tmp_path / 'a' / 'out'}"]) == 1
    assert "broken.jpg" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()

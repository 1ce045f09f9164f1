"""Little memory, a full disk, Ctrl-C while libraries are imported, and odd names: one line each, that helps."""

import errno
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests import pretend
from tests.untrained import write_run
from vision_attn.commands import main
from vision_attn.engine.log import _writing
from vision_attn.engine.run_folder.folders import replacing_folder
from vision_attn.system import memory
from vision_attn.system.console import bytes_of, log_to_terminal
from vision_attn.system.errors import UserError
from vision_attn.system.files import is_full, is_utf8, way_on

CONFIGS = Path(__file__).parents[2] / "configs"
ODD = os.fsdecode(b"r\xe9n")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run("sat_soft_scenes", tmp_path_factory.mktemp("runs") / "run")


# Memory


@pytest.mark.parametrize("verb", [["keys", "sat_soft_scenes"], ["caption", "a.jpg"], ["compare", "runs/a"]])
def test_a_process_that_cannot_load_torch_says_so(verb, tmp_path):
    """`ulimit -v`: torch itself would be killed by an exception of C++, or called a bug of ours."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (600_000_000,) * 2)

    done = subprocess.run(
        [sys.executable, "-m", "vision_attn", *verb], cwd=tmp_path, capture_output=True, text=True, preexec_fn=limit,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    said = "out of memory (PyTorch cannot be loaded): this process may have 0.6 GB: raise the limit (ulimit -v)"
    assert done.returncode == 1 and done.stderr == f"vision-attn: error: {said}\n"


@pytest.mark.parametrize(
    ("error", "limited", "short"),
    [
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), False, True),
        (ImportError("libx.so: failed to map segment from shared object: Operation not permitted"), False, False),
        (RuntimeError("std::bad_alloc"), False, True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), False, True),
        (RuntimeError("could not create a primitive"), True, True),
        (RuntimeError("could not create a primitive"), False, False),
        (RuntimeError("can't start new thread"), True, True),
        (ValueError("out of memory"), False, False),
        (ImportError("No module named 'x'"), True, False),
    ],
)
def test_what_libraries_say_where_memory_is_short(error, limited, short, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10**9 if limited else resource.RLIM_INFINITY,) * 2)
    assert memory.is_short_of_memory(error) == short
    try:
        raise ValueError("it cannot be built") from error
    except ValueError as outer:
        assert memory.is_short_of_memory(outer) == short
    assert ("ulimit" in memory.way_out()) == limited


def of_an_import() -> BaseException:
    """A MemoryError while a module is imported, as of llvmlite where memory is short."""
    with pytest.raises(MemoryError) as raised, pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "importlib.machinery.SourceFileLoader.exec_module", lambda *_: (_ for _ in ()).throw(MemoryError())
        )
        patched.delitem(sys.modules, "this", raising=False)
        import this  # noqa: F401
    return raised.value


def test_bytes_can_be_read_and_an_import_is_not_the_reason():
    """What is in brackets where memory is short."""
    asked = RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 bytes. Error code 12"
    )
    assert memory.shortage(asked) == "tried to allocate 4.3 GB"
    assert (
        memory.shortage(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")) == "tried to allocate 2.00 GiB"
    )
    loading = OSError("/lib/libllvmlite.so: failed to map segment from shared object")
    for error in (loading, ImportError("libllvmlite"), of_an_import()):
        assert memory.shortage(error) == "a library could not be loaded"
    assert memory.shortage(MemoryError("std::bad_alloc")) == "std::bad_alloc"


# A full disk


@pytest.mark.slow
@pytest.mark.parametrize("name", ["encoder.pt2", "encoder.onnx"])
def test_an_export_to_a_full_disk_is_one_line(run, name, tmp_path, monkeypatch, capsys):
    """A device that is always full stands where the file would be written."""
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    from vision_attn.system import files

    temporary = files._temporary  # the full device has a name of its own, which no file of a folder can have
    monkeypatch.setattr(files, "_temporary", lambda file: "/dev/full" if file == name else temporary(file))
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
    assert main(["export", str(run), f"--out={tmp_path / 'out'}"]) == 1
    said = f"{tmp_path / 'out' / name}: No space left on device; free some space, then run the same command again"
    assert f"vision-attn: error: {said}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "full"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EACCES, False), (errno.EROFS, False)]
)
def test_space_is_asked_for_only_where_it_helps(number, full, tmp_path):
    error = OSError(number, os.strerror(number))
    assert is_full(error) == full and ("free some space" in way_on(error)) == full
    with pytest.raises(UserError, match=os.strerror(number)) as told, _writing(tmp_path / "metrics.jsonl"):
        raise error
    assert ("run the same command again" in str(told.value)) == full
    with pytest.raises(UserError, match=os.strerror(number)) as told, replacing_folder(tmp_path / "best"):
        raise error
    assert ("is the disk full?" in str(told.value)) == full


def test_sizes_are_never_0_by_rounding():
    assert [bytes_of(number) for number in (0, 7, 12_345, 1_000_000, 2.5e9, 4e12)] == [
        "0 bytes", "7 bytes", "12.3 kB", "1.0 MB", "2.5 GB", "4,000.0 GB",
    ]  # fmt: skip


# Ctrl-C


def test_ctrl_c_that_a_library_loses_is_no_bug(run, tmp_path, monkeypatch, capsys):
    """While a library is imported, it may catch the exception and fail later in another way."""

    def interrupted(*_: object) -> None:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        raise AttributeError("module 'numpy' has no attribute 'multiply'")

    pretend.a_verb_does(monkeypatch, "pack", interrupted)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    assert main(["pack", str(run), str(tmp_path / "rel")]) == 130
    assert capsys.readouterr().err == "vision-attn: interrupted\n" and not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_libraries_print_warnings_alone(monkeypatch):
    """torch logs at its exit what it has compiled, at the level INFO."""
    root, ours = logging.root, logging.getLogger("vision_attn")
    monkeypatch.setattr(logging.root, "handlers", [])
    before = root.level, ours.level
    try:
        log_to_terminal()
        assert not logging.getLogger("torch._dynamo.utils").isEnabledFor(logging.INFO)
        assert logging.getLogger("vision_attn.data").isEnabledFor(logging.INFO)
        assert logging.getLogger("torch").isEnabledFor(logging.WARNING)
    finally:
        root.setLevel(before[0])
        ours.setLevel(before[1])


# Names


@pytest.mark.parametrize("option", [f"--run.folder={ODD}", f"--data.images={ODD}", f"--run.start_from={ODD}"])
def test_training_refuses_names_that_its_config_cannot_hold(option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ODD).mkdir()
    for verb in ("train", "prepare"):
        assert main([verb, str(CONFIGS / "sat_soft_flickr8k.yaml"), option]) == 1
        told = capsys.readouterr().err
        assert "is not UTF-8 text: give what it names another name" in told and told.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [ODD]


def test_weights_in_a_folder_that_is_not_utf_8(run, tmp_path, capsys):
    assert is_utf8("été") and not is_utf8(ODD)
    odd = tmp_path / ODD
    for argv in (["pack", str(run), str(odd)], ["export", str(run), f"--out={odd}"]):
        assert main(argv) == 1 and "is not UTF-8 text" in capsys.readouterr().err and not odd.exists()
    odd.symlink_to(run)
    assert main(["caption", str(odd), "a.jpg"]) == 1
    assert "rename it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["compare", "--", "-run"], "-run is no run"),
        (["compare", "--json", "--", "-run"], "-run is no run"),
        (["pack", "--", "-run", "-out"], "-run does not exist"),
        (["score", "--", "-a", "-b"], "-a was not found"),
        (["score", "--json", "a", "--", "-b"], "a was not found"),
        (["look", "--", "-model", "-a.jpg"], "-model is neither a run"),
        (["measure", "--", "-model", "-a.jpg"], "-model is neither a run"),
        (["serve", "--port=0", "--", "-model"], "-model is neither a run"),
        (["caption", "--", "-a.jpg"], "-a.jpg: no such file"),
        (["classify", "--", "-run", "a.png"], "-run does not exist"),
        (["transcribe", "--", "-run", "a.png"], "-run does not exist"),
        (["eval", "--", "-run"], "-run does not exist"),
        (["export", "--out=o", "--", "-run"], "-run does not exist"),
        (["push", "--", "-run", "user/name"], "-run does not exist"),
        (["train", "--", "-a.yaml"], "-a.yaml does not exist"),
        (["prepare", "--", "-a.yaml"], "-a.yaml does not exist"),
        (["keys", "--", "-a.yaml"], "-a.yaml does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_names_that_begin_with_a_hyphen_follow_two_hyphens(argv, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a\nb.png", "a\r\nb.png", "c\u2028d.png", "e\x0bf.png", 'g"h,i.png', "j\tk.png"])
def test_a_table_of_captions_matches_itself(run, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for file in (name, "plain.png"):
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)).save(file)
    assert main(["caption", str(run), name, "plain.png", "--csv=t.csv", "--device=cpu"]) == 0
    assert main(["score", "t.csv", "t.csv", "--out=m.json", "--metrics", "BLEU-1"]) == 0
    assert json.loads(Path("m.json").read_text())["BLEU-1"] == pytest.approx(1)
    capsys.readouterr()

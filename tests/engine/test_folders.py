"""Folders are swapped so that a kill at any moment leaves a whole one; the lock on a run is held by one process."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vision_attn.engine.run_folder.folders import MARK, lock_folder, replacing_folder, settle, unsettled, workplace
from vision_attn.system.errors import UserError


def test_a_killed_swap_is_finished_from_every_state(tmp_path):
    """Whatever stands there, the newest whole folder ends up as last/, and the one before it as previous/."""
    states = {
        ("last:2",): "2",
        ("last:2", "part:3"): "2",
        ("last:2", "previous:1", "part:3"): "21",
        ("new:3",): "3",
        ("last:2", "new:3"): "32",
        ("last:2", "new:3", "previous:1"): "32",
        ("old:2", "new:3", "previous:1"): "32",
        ("last:3", "old:2", "previous:1"): "32",
        ("last:3", "old:2"): "32",
        ("old:2", "previous:1"): "21",
    }
    for number, (state, expected) in enumerate(states.items()):
        folder = tmp_path / str(number)
        place = workplace(folder / "last")
        place.mkdir(parents=True)
        (place / MARK).touch()
        for name, content in (one.split(":") for one in state):
            where = place if name in ("part", "new", "old") else folder
            (where / name).mkdir()
            (where / name / "content").write_text(content)
        assert unsettled(folder / "last") == any(one.startswith(("new", "old")) for one in state)
        settle(folder / "last", before=folder / "previous")
        settle(folder / "last", before=folder / "previous")
        assert {path.name for path in folder.iterdir()} == {"last", "previous"} if len(expected) == 2 else {"last"}
        found = [(folder / name / "content").read_text() for name in ("last", "previous") if (folder / name).exists()]
        assert "".join(found) == expected, state


def test_what_a_killed_process_left_before_its_mark_is_removed(tmp_path):
    (tmp_path / "last").mkdir()
    workplace(tmp_path / "last").mkdir()
    with replacing_folder(tmp_path / "last") as part:
        (part / "content").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["last"] and (tmp_path / "last" / "content").exists()


def test_folders_and_files_of_a_user_with_similar_names_stay(tmp_path):
    """Whatever they are called: only folders with our mark are removed, and others of our names are refused."""
    names = [f"{stem}{end}" for stem in ("last", ".last") for end in (".part", ".new", ".old", ".tmp", "~", ".bak")]
    for number, name in enumerate(names):
        if number % 2:
            (tmp_path / name).write_text("mine")
        else:
            (tmp_path / name / "below").mkdir(parents=True)
            (tmp_path / name / "below" / "file").write_text("mine")
    (tmp_path / "last").mkdir()
    (tmp_path / "last" / ".weights.part").write_text("mine")

    def mine() -> set[Path]:
        return {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}

    before = mine()
    settle(tmp_path / "last")
    assert mine() == before
    for _ in range(2):
        with replacing_folder(tmp_path / "last", before=tmp_path / "previous") as part:
            (part / "content").write_text("new")
    assert {path for path in before if path.parts[0] != "last"} == {
        path for path in mine() if path.parts[0] not in ("last", "previous")
    }


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_foreign_folder_of_our_temporary_name_is_refused(tmp_path, kind):
    place, elsewhere = workplace(tmp_path / "last"), tmp_path / "elsewhere"
    for folder in (place, elsewhere) if kind == "folder" else (elsewhere,):
        for name in ("part", "new", "old"):
            (folder / name).mkdir(parents=True)
            (folder / name / "file").write_text("mine")
    if kind == "file":
        place.write_text("mine")
    if kind == "link":
        place.symlink_to(elsewhere)
    before = {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")}
    with pytest.raises(UserError, match=f"^{place} is not of vision-attn.*give it another name$"):
        settle(tmp_path / "last")
    with pytest.raises(UserError, match="is not of vision-attn"), replacing_folder(tmp_path / "last"):
        raise AssertionError("nothing is to be written")
    assert {path: path.is_file() and path.read_text() for path in tmp_path.rglob("*")} == before


def test_a_file_of_the_name_of_the_lock_that_is_no_lock_is_refused(tmp_path):
    (tmp_path / ".lock").write_text("my passwords")
    with pytest.raises(UserError, match=r"\.lock is no lock of vision-attn"), lock_folder(tmp_path):
        raise AssertionError("it is not locked")
    assert (tmp_path / ".lock").read_text() == "my passwords"


def test_a_folder_that_cannot_be_written_leaves_both_before_it(tmp_path):
    for number in (1, 2):
        with replacing_folder(tmp_path / "last", before=tmp_path / "previous") as part:
            (part / "content").write_text(str(number))
    full = OSError(errno.ENOSPC, "No space left on device")
    said = f"^{tmp_path}/last could not be written .*No space.*what was saved before is still intact"
    for error, expected in ((full, pytest.raises(UserError, match=said)), (KeyError(), pytest.raises(KeyError))):
        with expected, replacing_folder(tmp_path / "last", before=tmp_path / "previous") as part:
            (part / "content").write_text("3")
            raise error
    assert {path.name for path in tmp_path.iterdir()} == {"last", "previous"}
    assert [(tmp_path / name / "content").read_text() for name in ("last", "previous")] == ["2", "1"]


def test_the_lock_goes_with_the_run_and_no_two_hold_it(tmp_path):
    with lock_folder(tmp_path / "run"):
        with pytest.raises(UserError, match=f"being trained by process {os.getpid()}"), lock_folder(tmp_path / "run"):
            pass
        assert (tmp_path / "run" / ".lock").exists()
    assert not list((tmp_path / "run").iterdir())
    (tmp_path / "run" / ".lock").write_text("process 1")  # of a run that was killed
    with lock_folder(tmp_path / "run"):
        pass
    assert not list((tmp_path / "run").iterdir())


def test_a_lock_that_its_holder_removed_in_between_is_taken_again(tmp_path, monkeypatch):
    """Locked, but no longer the file at its path: another process would lock the new one."""
    real, seen = fcntl.flock, []

    def flock(file, how):
        if not seen:
            os.unlink(tmp_path / ".lock")
        seen.append(file)
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_folder(tmp_path):
        assert len(seen) >= 2 and (tmp_path / ".lock").exists()


@pytest.mark.slow
def test_a_run_is_trained_where_the_system_is_not_unix(tmp_path):
    """Without the modules and functions that Windows lacks."""
    code = """
import os, signal, sys
sys.modules["fcntl"] = sys.modules["resource"] = sys.modules["grp"] = sys.modules["pwd"] = None
for name in ("sysconf", "killpg", "setsid", "sched_getaffinity", "O_NOFOLLOW"):
    if hasattr(os, name): delattr(os, name)
del signal.SIGKILL
from pathlib import Path
import vision_attn.system.files
vision_attn.system.files.WINDOWS = True
os.kill = None
from vision_attn.engine.run_folder.folders import lock_folder
from vision_attn.system.machine import torch_device
import vision_attn.data.images.open, vision_attn.metrics.coco.isolated, vision_attn.commands.train
import types
sys.modules["resource"] = types.ModuleType("resource")  # for tests.toy alone
from tests.toy import train_toy
folder = Path(sys.argv[1]) / "run"
with lock_folder(folder):
    try:
        with lock_folder(folder): pass
    except ValueError as error:
        assert "is being trained" in str(error)
    else:
        raise AssertionError("two processes in one folder")
print(train_toy(folder, epochs=1)["error"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "best" / "model.safetensors").is_file()

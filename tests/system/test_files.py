"""Temporary names, what killed processes leave behind, and JSON that is no JSON."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vision_attn.system import files
from vision_attn.system.errors import UserError
from vision_attn.system.files import find, read_json, replacing, scratch, shortened, sweep

KILLED = """
import os, signal, sys
from pathlib import Path
from vision_attn.system.files import replacing, scratch
folder = Path(sys.argv[1])
with replacing(folder / "metrics.json") as path, scratch("eval", folder) as place:
    path.write_text("half")
    (place / "captions.json").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL and len(list(tmp_path.iterdir())) == 2
    with replacing(tmp_path / "other.json") as path:
        path.write_text("whole")
    assert [entry.name for entry in tmp_path.iterdir()] == ["other.json"]


def test_what_living_processes_and_other_machines_write_is_left_alone(tmp_path: Path) -> None:
    ours, theirs = f".{os.getppid()}-{files._HOST}.a.part", ".999999-00000000.a.part"
    for name in (ours, theirs, ".hidden.part"):
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert {entry.name for entry in tmp_path.iterdir()} == {ours, theirs, ".hidden.part"}


def test_names_as_long_as_a_file_system_allows(tmp_path: Path) -> None:
    name = "é" * 125 + ".json"  # 255 bytes
    with replacing(tmp_path / name) as path:
        path.write_text("{}")
    assert read_json(tmp_path / name) == {}
    assert len(os.fsencode(shortened(name, 100))) == 100 and name.startswith(shortened(name, 101))
    with pytest.raises(UserError, match="was not found"):
        find("x" * 300)
    with pytest.raises(UserError, match="was not found"):
        find("zero\0byte")


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left.*metrics.json"), replacing(tmp_path / "metrics.json"):
        raise OSError(28, "No space left on device")
    with scratch("eval", tmp_path) as folder:
        assert folder.is_dir()
    assert not list(tmp_path.iterdir())


def test_errors_name_the_file_and_not_its_temporary_name(tmp_path: Path) -> None:
    """Also where the library says nothing but that its encoder failed, and where the place is taken by a folder."""
    with pytest.raises(OSError) as told, replacing(tmp_path / "a.gif"):
        raise OSError("encoder error -2 when writing image file")
    assert str(told.value).endswith(f"encoder error -2 when writing image file: '{tmp_path / 'a.gif'}'")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(OSError) as told, replacing(tmp_path / "taken") as path:
        path.write_text("x")
    assert str(told.value) == f"[Errno 21] Is a directory: '{tmp_path / 'taken'}'"
    with pytest.raises(FileNotFoundError) as told, replacing(tmp_path / "a.json") as path:
        path.read_text()
    assert str(told.value) == f"[Errno 2] No such file or directory: '{tmp_path / 'a.json'}'"
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def test_what_cannot_be_removed_does_not_keep_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that users share, a left-over of another user stays, and ours still goes."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    for number in range(4):
        (tmp_path / f".{ended.pid}-{files._HOST}.{number}.part").touch()
    refused = next(os.scandir(tmp_path)).path
    remove = os.unlink

    def unlink(path: str) -> None:
        if path == refused:
            raise PermissionError(1, "Operation not permitted", path)
        remove(path)

    monkeypatch.setattr(os, "unlink", unlink)
    sweep(tmp_path)
    assert [str(entry) for entry in tmp_path.iterdir()] == [refused]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is not JSON"),
        (b'{"a": 1}\n{"a": \n{"a": 3}\n', "a.json, line 2, is not JSON"),
        (b'{\n"a": \n}', "is not JSON: Expecting value: line 3"),
        (b"\xff\xfe{}", "not UTF-8 text"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 10_000, "is not JSON"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_json_is_one_line(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=said) as caught:
        read_json(path)
    assert "a.json" in str(caught.value) and "\n" not in str(caught.value)
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps([1]).encode())
    assert read_json(path) == [1]


def test_a_full_disk_under_a_scratch_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}'"), scratch("work", tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")  # what `write` says
    assert not list(tmp_path.iterdir())

"""Temporary names, what killed processes leave behind, and JSON that is no JSON."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vision_attn import files
from vision_attn.files import find, read_json, replacing, scratch, shortened, sweep

KILLED = """
import os, signal, sys
from pathlib import Path
from vision_attn.files import replacing, scratch
folder = Path(sys.argv[1])
with replacing(folder / "metrics.json") as path, scratch("eval", folder) as place:
    path.write_text("half")
    (place / "captions.json").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=Path(__file__).parents[1])
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
    with pytest.raises(ValueError, match="was not found"):
        find("x" * 300)
    with pytest.raises(ValueError, match="was not found"):
        find("zero\0byte")


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left.*metrics.json"), replacing(tmp_path / "metrics.json"):
        raise OSError(28, "No space left on device")
    with scratch("eval", tmp_path) as folder:
        assert folder.is_dir()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is not JSON"),
        (b"\xff\xfe{}", "not even text"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 10_000, "is not JSON"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_json_is_one_line(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=said) as caught:
        read_json(path)
    assert "a.json" in str(caught.value) and "\n" not in str(caught.value)
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps([1]).encode())
    assert read_json(path) == [1]

"""The prepared day of a GPU, on a CPU: its parts run, stop in time, and are packed for a machine without network."""

import subprocess
import sys
import tarfile

import pytest

from benchmarks import __main__ as program
from benchmarks.gpu import pack as packs
from benchmarks.gpu.day import Part, all_carried_out, carried_out, parts
from benchmarks.gpu.pack import pack
from tests.fake_mnist import write_mnist
from vision_attn.commands import _hints, _paper_rows, parser_of
from vision_attn.configuration.config import read
from vision_attn.system.errors import UserError

WAITS = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # as training sets one; a shell's background ignores Ctrl-C
print("training on cpu", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("saved")
    sys.exit(130)
"""


@pytest.mark.slow
def test_all_parts_run_on_a_cpu(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "gpu", "--day", "9", "--quick", f"--out={tmp_path}"])
    with pytest.raises(SystemExit) as left:
        program.main()
    said = capsys.readouterr().out
    assert left.value.code == 0, (tmp_path / "day.md").read_text()
    assert [line.split(":")[0] for line in said.splitlines()[:4]] == ["tests", "vit_scenes", "speeds", "rows"]
    summary = (tmp_path / "day.md").read_text()
    assert "training on cpu" in summary and "epoch 1/1" in summary and "## rows" in summary
    assert (tmp_path / "rows" / "quick" / "table.md").is_file()


def test_a_part_is_stopped_after_its_time_and_may_save(tmp_path):
    """By Ctrl-C; one that does not heed it is killed, with what it has started."""
    result = carried_out(Part("waits", ["-c", WAITS], 1), tmp_path / "log", 6.0, patience=50)
    assert result.status == "stopped after its time, exit status 130"
    first, last = (tmp_path / "log").read_text().splitlines()
    assert first.endswith("training on cpu") and last.endswith("saved") and float(last.split()[0]) >= 6.0
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    assert "-9" in carried_out(Part("deaf", ["-c", deaf], 1), tmp_path / "log", 2.0, patience=0.5).status


def test_results_are_written_at_once_and_nothing_begins_without_time(tmp_path):
    read_by_second = f"print(open({str(tmp_path / 'day.md')!r}).read())"
    made = [Part("first", ["-c", "print('one'); exit(3)"], 1), Part("second", ["-c", read_by_second], 1)]
    assert [one.status for one in all_carried_out(made, tmp_path, 1, patience=0)] == ["exit status 3", "exit status 0"]
    assert "| first |" in (tmp_path / "2_second.log").read_text()
    assert [one.status for one in all_carried_out(made, tmp_path, 0, patience=0)] == ["no time was left"] * 2


def test_commands_of_the_day_exist(tmp_path):
    """Verbs, configs with their options, rows, and tests; what starts a training is there."""
    found = list(parts(tmp_path, 10, quick=False))
    assert [part.name for part in found][0] == "tests" and found[-1].name == "rows"
    for part in found:
        words = list(part.words)
        if words[:2] == ["-m", "vision_attn"]:
            verb = words[2]
            assert verb in parser_of(verb)[1]
            if verb == "train":
                assert read(_hints.config_file(words[3]), words[4:]).run.epochs == 3
            else:
                assert _paper_rows.chosen([word for word in words[3:] if not word.startswith("--")]) is not None
    assert sum(part.minutes for part in found[:-2]) <= 10


def test_what_is_packed_fits_into_parts_and_runs(tmp_path, monkeypatch, capsys):
    """In parts of 3 MB, without the larger weights; unpacked in any order, the package starts."""
    write_mnist(tmp_path / "data" / "mnist")
    monkeypatch.setenv("VISION_ATTN_DATA", str(tmp_path / "data"))
    whole = list(packs.project())
    small = [file for file in whole if file.size < 1_000_000 and not file.name.startswith("project/tests")]
    monkeypatch.setattr(packs, "project", lambda: iter(small))
    written = pack(tmp_path / "packed", 3_000_000)
    assert len(written) > 1 and all(path.stat().st_size < 3_000_000 for path in written)
    assert "left out: flickr8k/images" in capsys.readouterr().err
    for path in reversed(written):
        with tarfile.open(path) as archive:
            archive.extractall(tmp_path / "there")  # written here: Python before 3.11.4 knows no filter
    there = tmp_path / "there"
    assert (there / "data" / "mnist" / "train-images-idx3-ubyte").is_file()
    done = subprocess.run(
        [sys.executable, "-m", "vision_attn", "reproduce"], cwd=there / "project", capture_output=True, text=True,
        env={"PATH": "", "VISION_ATTN_DATA": str(there / "data")},
    )  # fmt: skip
    assert done.returncode == 0 and "  ram_mnist28: " in done.stdout
    assert (tmp_path / "packed" / "README").read_text().count("--day") == 1
    with pytest.raises(UserError, match="more than an archive may have"):
        pack(tmp_path / "packed", 40_000)

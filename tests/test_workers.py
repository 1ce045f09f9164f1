"""Processes that share tests: all are reported once, and none is lost when a process dies."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="one process runs all tests")
ROOT = Path(__file__).parents[1]
FILES = {
    "test_first.py": """
        import os, warnings, pytest
        def test_passes(tmp_path, capfd): print(os.getpid()); assert capfd.readouterr().out
        def test_fails(): print("what it printed"); assert [1, 2] == [1, 3]
        @pytest.mark.skip(reason="no need")
        def test_is_skipped(): pass
        def test_warns(): warnings.warn("take care")
        """,
    "test_second.py": """
        import os
        def test_passes(): pass
        def test_kills_its_process(): os._exit(9)
        def test_comes_after(): pass
        """,
    "test_third.py": """
        import time, pytest
        @pytest.mark.parametrize("number", range(20))
        def test_passes(number): time.sleep(0.02)
        """,
}  # fmt: skip


def run(folder: Path, *options: str) -> tuple[int, str]:
    for name, text in FILES.items():
        (folder / name).write_text(re.sub("^ {8}", "", text, flags=re.MULTILINE))
    words = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", folder, "-p", "tests.workers", "-ra"]
    words += ["-p", "no:cacheprovider", *options, folder]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_all_tests_are_reported_and_those_of_a_process_that_died_are_failures(tmp_path: Path) -> None:
    status, printed = run(tmp_path, "--workers=2")
    assert status == 1 and "3 failed, 23 passed, 1 skipped, 1 warning in" in printed
    for said in (
        "assert [1, 2] == [1, 3]", "what it printed", "UserWarning: take care", "no need",
        "its process ended while it ran", "the process of its file had ended",
    ):  # fmt: skip
        assert said in printed, printed


def test_they_stop_at_a_failure_where_that_is_asked_for(tmp_path: Path) -> None:
    status, printed = run(tmp_path, "--workers=1", "-x")
    assert status == 1 and "stopping after 1 failures" in printed and "1 failed, 1 passed in" in printed

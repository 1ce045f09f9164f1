"""Tests of Triton's kernels on its interpreter, in a process of its own: triton reads TRITON_INTERPRET when it is first
imported, and another test may have imported it before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def check_on_the_interpreter(mark: str, *names: str) -> None:
    """Fail if a test of these files of this folder fails there, of those that `-m mark` selects without a GPU."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    files = [str(FOLDER / name) for name in names]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", f"({mark}) and not gpu", *files],
        env=environment | {"TRITON_INTERPRET": "1"},
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
    )
    if "only 0-dimensional arrays can be converted to Python scalars" in run.stdout:
        pytest.skip("this Triton's interpreter does not know this NumPy: Triton 3.6 fails with NumPy 2.4, 3.9 does not")
    assert run.returncode == 0 and " passed" in run.stdout, run.stdout + run.stderr

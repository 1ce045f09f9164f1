"""For all tests: shape checks on the whole package, one thread, and the folder of real data where there is one."""

import os
from pathlib import Path

import pytest

if os.environ.get("VISION_ATTN_SHAPES", "1") != "0":  # before the package is imported anywhere
    from jaxtyping import install_import_hook

    install_import_hook("vision_attn", "beartype.beartype")

import torch

torch.set_num_threads(1)  # tests are small: a second thread on a busy machine is mostly waited for


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data sets; the test is skipped where there is none."""
    folder = os.environ.get("VISION_ATTN_DATA")
    if not folder:
        pytest.skip("real data is needed: VISION_ATTN_DATA names no folder")
    if not Path(folder).is_dir():
        pytest.skip(f"real data is needed: {folder} (VISION_ATTN_DATA) does not exist")
    return Path(folder)

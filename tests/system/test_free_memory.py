"""The memory that a process may still take: by the machine, and by its control groups, as of a container."""

import pytest
import torch

from vision_attn.system import free_memory
from vision_attn.system.memory import return_freed_memory

UNLIMITED = 9223372036854771712  # what version 1 says


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 8,000 kB of free memory, in whose files a test writes groups."""
    for name in ("PROCESS", "MEMINFO", "GROUPS"):
        monkeypatch.setattr(free_memory, name, tmp_path / name)
    (tmp_path / "PROCESS").mkdir()
    (tmp_path / "MEMINFO").write_text("MemTotal:  9000 kB\nMemAvailable:    8000 kB\n")
    return tmp_path


def group(folder, version, most, used, cached):
    folder.mkdir(parents=True, exist_ok=True)
    limit, now, inactive = free_memory.FILES[version]
    for name, text in {limit: most, now: used, "memory.stat": f"anon 7\n{inactive} {cached}"}.items():
        (folder / name).write_text(f"{text}\n")


def test_without_a_group_the_machine_counts(machine):
    assert free_memory.available() == 8000 * 1024


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_and_those_around_it_count_less_what_can_be_reclaimed(machine, version):
    """The limit of a container lies in a group above that of the process."""
    line, root = ("4:cpu,memory:/", "GROUPS/memory") if version == 1 else ("0::/", "GROUPS")
    (machine / "PROCESS/cgroup").write_text(f"1:cpuset:/else\n{line}pod/own\n")
    group(machine / root / "pod/own", version, UNLIMITED if version == 1 else "max", 500_000, 0)
    group(machine / root / "pod", version, 3_000_000, 1_000_000, 200_000)
    assert free_memory.available() == 2_200_000
    group(machine / root, version, 2_000_000, 1_900_000, 0)
    assert free_memory.available() == 100_000
    group(machine / root, version, 2_000_000, 2_100_000, 0)
    assert free_memory.available() == 0


def test_a_group_that_the_container_does_not_see_leaves_its_root(machine):
    (machine / "PROCESS/cgroup").write_text("0::/pod/outside\n")
    group(machine / "GROUPS", 2, 3_000_000, 1_000_000, 0)
    assert free_memory.available() == 2_000_000


def test_the_peak_counts_from_where_it_is_restarted():
    if not free_memory.peak():
        pytest.skip("this system has no /proc/self/status")
    torch.ones(2**24)
    return_freed_memory()
    free_memory.restart_peak()
    before = free_memory.resident()
    large = torch.ones(2**23)
    assert 2**25 * 0.9 < free_memory.peak() - before < 2**25 * 1.5
    del large

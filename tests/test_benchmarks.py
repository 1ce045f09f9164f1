"""Every benchmark runs, on shapes so small that nothing is measured."""

import json
import sys

import pytest
import torch

from benchmarks import measure
from benchmarks.__main__ import TABLES, main
from benchmarks.shapes import QUICK

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="the table needs a CUDA device")
MARKS = {"gpu": GPU}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in TABLES])
def test_every_table_is_made(name: str, monkeypatch) -> None:
    if name == "compiled":  # takes minutes; that compiled steps equal eager ones is tested with the engine
        monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **_: None)
        monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    lines = TABLES[name](QUICK, 1).splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    assert len(rows) >= 2 and any(line.startswith("**") for line in lines)
    assert len({line.count("|") for line in rows}) <= 2  # of two tables at most


def test_the_command_says_how_long_each_table_took(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "--threads=1", "scores"])
    main()
    assert "(scores: " in capsys.readouterr().out.splitlines()[-1]
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--quick", "sores"])
    with pytest.raises(SystemExit):
        main()
    assert "there is no table 'sores'" in capsys.readouterr().err


def test_a_peak_of_memory_is_measured_in_bytes(monkeypatch, capsys) -> None:
    """What `peak_memory` starts in a process of its own, here in this one."""
    shapes = QUICK._replace(images=4)
    monkeypatch.setattr(sys, "argv", ["measure", "benchmarks.attention:train_words", json.dumps([shapes, "ours", 2])])
    measure.main()
    assert abs(int(capsys.readouterr().out)) < 10 * 1024**3

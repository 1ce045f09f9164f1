"""`eval --number`: a sample of a split, whichever its order, and with several processes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from vision_attn.commands import main
from vision_attn.data.counted_batches import Counted, slices
from vision_attn.engine.batches import items_of, sampled
from vision_attn.task import Static


class Numbers(NamedTuple):
    images: torch.Tensor
    ids: tuple[int, ...]
    lengths: Static


class Split:
    """A hundred numbers in batches of eight, of which the last has four. Notes which batches are read."""

    def __init__(self, number: int = 100) -> None:
        self.number, self.read = number, set[int]()

    def __call__(self, *, rank: int = 0, world: int = 1) -> Counted[Numbers]:
        def batch(part: slice) -> Numbers:
            ids = range(self.number)[part]
            self.read.add(ids[0] // 8)
            return Numbers(torch.tensor(ids), tuple(ids), Static((1, 2)))

        return slices(batch, self.number, 8, rank=rank, world=world)


def ids(batches: Any) -> list[int]:
    return [one for batch in batches for one in batch.ids]


@pytest.mark.parametrize("number", [1, 5, 13, 40, 99, 100, 1000])
def test_a_sample_has_its_number_of_different_items(number: int) -> None:
    found = ids(sampled(Split(), number, seed=0))
    assert len(found) == len(set(found)) == min(number, 100)
    assert found == ids(sampled(Split(), number, seed=0))


def test_a_sample_is_from_all_of_the_split_and_reads_no_more() -> None:
    split = Split()
    found = ids(sampled(split, 5, seed=0))
    assert len(split.read) == 5 and {one // 8 for one in found} == split.read
    assert found != ids(sampled(Split(), 5, seed=1))
    counts = torch.zeros(100)
    for seed in range(400):
        counts[ids(sampled(Split(), 13, seed=seed))] += 1
    assert counts.min() > 0 and float(counts[50:].sum()) == pytest.approx(float(counts.sum()) / 2, rel=0.1)


def test_parts_of_processes_are_a_sample_of_the_same_size() -> None:
    parts = [ids(sampled(Split(96), 20, seed=0, rank=rank, world=2)) for rank in range(2)]
    assert len({*parts[0], *parts[1]}) == 20 and min(map(len, parts)) >= 9


def test_fields_that_are_of_no_item_stay_and_a_split_may_not_know_its_length() -> None:
    def unknown(**options: int) -> Iterator[Numbers]:
        yield from Split()(**options)

    (first, *_) = sampled(unknown, 3, seed=0)
    assert first.lengths == (1, 2) and len(first.images) == len(first.ids) == 1


@pytest.mark.parametrize("number", [0, 1, 8, 12, 100])
def test_the_items_of_a_split_are_counted_by_its_first_and_last_batch(number: int) -> None:
    split = Split(number)
    assert items_of(split) == number and len(split.read) <= 2


def test_a_sample_of_more_than_all_is_all_and_lies_where_that_does(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--data.stories=20", "--data.test_stories=2", "--device=cpu"]
    assert main(["eval", "weights/stories", *small]) == 0
    whole, said = Path("runs/stories/metrics_test.json"), capsys.readouterr().out
    record = json.loads(whole.read_text())
    whole.unlink()
    assert main(["eval", "weights/stories", "--number", "20000", *small]) == 0
    again = json.loads(whole.read_text())
    assert [again[key] for key in ("images", "error")] == [record[key] for key in ("images", "error")]
    assert "number" not in again and not [*Path("runs/stories").glob("sample_*")]
    counted, _, rest = capsys.readouterr().out.partition(", all that there are: --number 20000 leaves none out\n")
    assert f"{counted}\n{rest}" == said


def test_eval_says_that_it_is_a_sample_and_leaves_the_metrics_of_all(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--data.stories=20", "--data.test_stories=10", "--device=cpu"]
    assert main(["eval", "weights/stories", "--number", "30", *small]) == 0
    assert capsys.readouterr().out.startswith("test: 30 questions, chosen from all by the seed 0 (--number)\nerror ")
    record = json.loads(Path("runs/stories/sample_30/metrics_test.json").read_text())
    assert record["images"] == record["number"] == 30 and not Path("runs/stories/metrics_test.json").exists()
    assert main(["eval", "weights/stories", "--number", "0"]) == 1
    assert "number" in capsys.readouterr().err

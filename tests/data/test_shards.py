"""Photographs streamed from tar and Parquet files: the same in every run, divided among processes, resumed exactly."""

import io
import json
import os
import tarfile
from copy import copy
from itertools import islice, product
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from vision_attn.commands import main
from vision_attn.data.photographs.annotation_files.samples import LeftOut, named, tar_samples
from vision_attn.data.photographs.annotation_files.shard_files import count, expanded, read
from vision_attn.data.photographs.shards import Shards, shuffled
from vision_attn.system.errors import UserError
from vision_attn.task import Task

pytest.importorskip("webdataset", reason="the extra [scale] is not installed")
SHARDS, EACH = 4, 5


class Small(Task):
    resolution = 24


def photograph(number: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (30, 34, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def captions(number: int) -> list[str]:
    return [f"a dog number {number % 3} runs", f"the dog number {number % 3}"]


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as file:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))


def counted(path: Path) -> int:
    """The samples of a shard, which are counted as they are read, and those left out too."""
    columns, read_ones, counted_ones = ("image", "caption"), LeftOut(), LeftOut()
    samples = list(read(path, *columns, read_ones))
    assert count(path, *columns, counted_ones) == len(samples) == read_ones.read == counted_ones.read
    assert str(read_ones) == str(counted_ones) and read_ones.counts == counted_ones.counts
    return len(samples)


@pytest.fixture(scope="module")
def tars(tmp_path_factory) -> Path:
    """Four shards of five photographs; captions as lines of text or in JSON."""
    folder = tmp_path_factory.mktemp("tars")
    for shard in range(SHARDS):
        members = []
        for number in range(EACH * shard, EACH * (shard + 1)):
            said = captions(number)
            text = ("txt", "\n".join(said)) if number % 2 else ("json", json.dumps({"caption": said}))
            members += [(f"{number:03}.png", photograph(number)), (f"{number:03}.{text[0]}", text[1].encode())]
        write_tar(folder / f"train-{shard}.tar", members)
    write_tar(folder / "val-0.tar", members)
    return folder


@pytest.fixture(scope="module")
def parquets(tmp_path_factory) -> Path:
    arrow = pytest.importorskip("pyarrow", reason="the extra [scale] is not installed")
    from pyarrow.parquet import write_table

    folder = tmp_path_factory.mktemp("parquets")
    for shard in range(SHARDS):
        numbers = range(EACH * shard, EACH * (shard + 1))
        images = [{"bytes": photograph(number), "path": f"{number}.png"} for number in numbers]
        table = arrow.table({"image": images, "text": [captions(number) for number in numbers]})
        write_table(table, folder / f"train-{shard}.parquet")
    return folder


def opened(folder: Path, *, ending: str = "tar", kind: type[Shards] = Shards, **settings) -> Shards:
    patterns = {"train": f"{folder}/train-{{0..{SHARDS - 1}}}.{ending}"}
    settings = {"shards": patterns, "batch_size": 4, "min_count": 1, "shuffle": 6, "rows": 2} | settings
    source = kind(**settings)
    source.prepare(Small())
    return source


def names(batches) -> list[str]:
    return [name for batch in batches for name in batch.ids]


def test_an_epoch_is_the_same_again_and_another_epoch_another(tars: Path) -> None:
    source = opened(tars, shuffle=20)
    assert len(source) == 5
    first, again, other = (list(source.train(epoch, seed=3)) for epoch in (0, 0, 1))
    for batch, same in zip(first, again, strict=True):
        assert torch.equal(batch.images, same.images) and torch.equal(batch.words, same.words)
    assert sorted(names(first)) == sorted(names(other)) == sorted(set(names(first)))  # every photograph, once
    assert names(first) != names(other) and names(first) != names(opened(tars, shuffle=20).train(0, seed=4))


def test_pixels_and_words_belong_together(tars: Path) -> None:
    source = opened(tars)
    for batch in source.train(0, seed=0):
        for image, words, name in zip(batch.images, batch.words, batch.ids, strict=True):
            number = int(name.split("/")[1])
            whole = Image.open(io.BytesIO(photograph(number)))
            square = whole.crop((2, 0, 32, 30)).resize((24, 24), Image.Resampling.BICUBIC)
            assert (image.int() - torch.from_numpy(np.array(square)).permute(2, 0, 1)).abs().max() <= 1
            assert {source.vocabulary.decode(row.tolist()) for row in words} == set(captions(number))


@pytest.mark.parametrize("skip", [1, 4])
def test_a_resumed_epoch_goes_on_with_the_next_photograph(tars: Path, skip: int) -> None:
    source = opened(tars)
    whole, rest = list(source.train(2, seed=1)), list(source.train(2, seed=1, skip=skip))
    assert len(rest) == 5 - skip
    for batch, same in zip(whole[skip:], rest, strict=True):
        assert batch.ids == same.ids and torch.equal(batch.words, same.words) and torch.equal(batch.images, same.images)


def test_training_photographs_are_cropped_and_mirrored(tars: Path) -> None:
    """In other ways in each epoch and process, and in a resumed epoch as in the whole one. An evaluation sees all."""
    source = opened(tars, crops=0.6, flips=True, shards={split: f"{tars}/{split}-*.tar" for split in ("train", "val")})
    whole, rest = list(source.train(0, seed=1)), list(source.train(0, seed=1, skip=2))
    crops = torch.cat([batch.crops for batch in whole])
    assert torch.equal(crops[8:], torch.cat([batch.crops for batch in rest]))
    width, height = crops[:, 2] - crops[:, 0], crops[:, 3] - crops[:, 1]
    torch.testing.assert_close(width.abs(), height)
    assert 1.2 <= height.min() < height.max() <= 2 and crops.abs().max() <= 1 and 0 < (width < 0).sum() < 20
    plain = list(opened(tars).train(0, seed=1))
    assert [batch.ids for batch in plain] == [batch.ids for batch in whole] and plain[0].crops is None
    others = [next(source.train(epoch, seed=1, rank=rank, world=2)).crops for epoch, rank in ((0, 0), (0, 1), (1, 0))]
    assert not any(torch.equal(others[0], other) for other in others[1:])
    assert all(batch.crops is None for batch in source.split("val"))
    with pytest.raises(UserError, match="crops"):
        opened(tars, crops=1.5)


def test_processes_read_shards_of_their_own(tars: Path) -> None:
    source = opened(tars, shuffle=1)
    parts = [names(source.train(0, seed=0, rank=rank, world=2)) for rank in range(2)]
    shards = [{name.split("/")[0] for name in part} for part in parts]
    assert len(parts[0]) == len(parts[1]) == 10 and len(shards[0]) == len(shards[1]) == 2
    assert not shards[0] & shards[1]
    with pytest.raises(UserError, match="4 shards cannot be divided among 5 processes"):
        next(opened(tars, batch_size=5).train(0, seed=0, rank=0, world=5))


def test_an_uneven_division_of_shards_is_said_once(tars: Path, caplog) -> None:
    source = opened(tars, batch_size=3)
    for epoch, rank in product(range(2), range(3)):
        names(source.train(epoch, seed=0, rank=rank, world=3))
    (said,) = (record.getMessage() for record in caplog.records)
    assert "4 shards are not a multiple of 3 processes" in said and "about 17% of them" in said
    caplog.clear()
    assert len(names(opened(tars).train(0, seed=0, rank=0, world=2))) == 10 and not caplog.records


def test_what_an_uneven_division_leaves_out(tars: Path, caplog) -> None:
    """Shards of 5 photographs, of which three processes read 2, 1 and 1: 20 / 3 photographs of each."""
    source = opened(tars, batch_size=3, epoch_images=20, shuffle=1)
    seen = [name for rank in range(3) for name in names(source.train(0, seed=0, rank=rank, world=3))]
    assert len(seen) == 18 and len(set(seen)) == 16


def test_parquet_files_give_what_tar_files_give(tars: Path, parquets: Path) -> None:
    both = [opened(tars, shuffle=1), opened(parquets, ending="parquet", shuffle=1, caption="text")]
    ours, theirs = (list(islice(source.train(0, seed=0), 5)) for source in both)
    for batch, same in zip(ours, theirs, strict=True):
        assert torch.equal(batch.images, same.images) and batch.references == same.references
    with pytest.raises(UserError, match="no column 'caption', but image, text"):
        next(opened(parquets, ending="parquet").train(0, seed=0))


def test_what_is_left_out_is_not_counted(tmp_path: Path) -> None:
    """A second image of a photograph, and photographs without a caption; a caption cut within a character is read."""
    members = []
    for number in range(6):
        members += [(f"a/{number}.png", photograph(number)), (f"a/{number}.mask.png", photograph(number))]
        members += [(f"a/{number}.json", rb'{"caption": "a dog \ud83d"}')] * (number < 4)
    write_tar(tmp_path / "train.tar", members)
    assert counted(tmp_path / "train.tar") == 4
    source = opened(tmp_path, shards={"train": str(tmp_path / "train.tar")}, batch_size=2)
    assert len(source) == 2 and source.vocabulary.words[3:] == ["a", "dog"]
    assert len(list(islice(source.train(0, seed=-1), 2))) == 2


def test_evaluation_takes_each_photograph_once(tars: Path) -> None:
    split = opened(tars, shards={"train": f"{tars}/train-*.tar", "val": f"{tars}/val-0.tar"}).split("val")
    assert len(split) == 2 and len(list(split)) == 2
    assert sorted(names(split)) == [f"val-0.tar/{number:03}" for number in range(15, 20)]


def test_processes_that_evaluate_decode_batches_of_their_own(tars: Path) -> None:
    decoded = []

    class Noting(Shards):
        def _decode_sample(self, numbered):
            decoded.append(numbered)
            return super()._decode_sample(numbered)

    source = opened(tars, kind=Noting, batch_size=3)
    whole = list(source.split("train"))
    for rank in range(2):
        decoded.clear()
        part = source.split("train", rank=rank, world=2)
        assert [batch.ids for batch in part] == [batch.ids for batch in whole[rank::2]]
        assert len(part) == len(whole[rank::2]) and len(decoded) == len(names(whole[rank::2]))


def test_an_unreadable_photograph_is_replaced_and_the_rest_of_the_order_stays(tars: Path, tmp_path, caplog) -> None:
    for path in tars.glob("train-*.tar"):
        with tarfile.open(path) as file:
            members = [(member.name, file.extractfile(member).read()) for member in file]
        write_tar(tmp_path / path.name, [(name, b"no image" if name == "007.png" else part) for name, part in members])
    whole, damaged = (list(opened(folder).train(0, seed=0)) for folder in (tars, tmp_path))
    for batch, other in zip(whole, damaged, strict=True):
        assert len(other.ids) == 4 and set(other.ids) == {name for name in batch.ids if not name.endswith("007")}
    assert "train-1.tar/007: not a readable image" in caplog.text


def test_a_damaged_shard_is_named(tars: Path, parquets: Path, tmp_path: Path) -> None:
    """Wherever the damage is: where a tar file is cut between two files, or a header is broken, `tarfile` just ends."""
    whole = (tars / "train-0.tar").read_bytes()
    with tarfile.open(tars / "train-0.tar") as file:
        (third,) = [member for number, member in enumerate(file) if number == 4]
    header = third.offset
    broken = bytearray(whole)
    broken[header + 150] ^= 1  # in the checksum
    large = bytearray(whole)
    large[header : header + 512] = replaced_size(third, 2**30)
    files = {
        "cut.tar": whole[:header], "broken.tar": broken, "empty.tar": b"", "short.tar": whole[: header + 700],
        "large.tar": large,
    }  # fmt: skip
    pages = bytearray((parquets / "train-0.parquet").read_bytes())
    pages[4:40] = bytes(36)  # the first page
    for name, content in (files | {"broken.parquet": pages}).items():
        (tmp_path / name).write_bytes(content)
        kind = "tar" if name.endswith("tar") else "Parquet"
        with pytest.raises(UserError, match=f"{name} is not a readable {kind} file"):
            list(read(tmp_path / name, "image", "text", LeftOut()))
        if kind == "tar":
            with pytest.raises(UserError, match=f"{name} is not a readable"):
                count(tmp_path / name, "image", "text", LeftOut())


def replaced_size(member: tarfile.TarInfo, size: int) -> bytes:
    larger = copy(member)
    larger.size = size
    return larger.tobuf(tarfile.USTAR_FORMAT)


def test_an_evaluation_leaves_out_what_cannot_be_read_in_batches_of_any_size(tmp_path: Path) -> None:
    members = []
    for number in range(5):
        content = b"no image" if number == 4 else photograph(number)
        members += [(f"{number}.png", content), (f"{number}.txt", b"a dog runs")]
    write_tar(tmp_path / "train-0.tar", members)
    for size in (1, 2, 4, 5):
        source = Shards(shards={"train": f"{tmp_path}/train-0.tar"}, batch_size=size, min_count=1)
        source.prepare(Small())
        assert len(names(source.split("train"))) == 4


def test_patterns_and_files_of_an_untrusted_config_cannot_exhaust_memory_or_wait(tars: Path, tmp_path: Path) -> None:
    for pattern, size in (("x-{000..331}.tar", 332), ("{a,b}-{7..9}.tar", 6), ("x.tar", 1)):
        assert len(expanded(pattern)) == size
    for pattern in ("{0..9000000000}.tar", "{1..3}{0..999999}.tar", "{" + "9" * 5000 + "..1}.tar", "{a,b}" * 30):
        with pytest.raises(UserError, match="stands for more than 1,000,000 shards"):
            expanded(pattern)
    os.mkfifo(tmp_path / "pipe.tar")
    for name in ("pipe", "p*e"):
        with pytest.raises(UserError, match="pipe.tar: not a regular file"):
            Shards(shards={"train": f"{tmp_path}/{name}.tar"}).prepare(Small())


def test_what_cannot_be_streamed_is_said(tars: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "half.tar").write_bytes((tars / "train-0.tar").read_bytes()[:3000])
    write_tar(tmp_path / "bare.tar", [("1.png", photograph(1)), ("2.txt", b"a caption without an image")])
    for pattern, said in {
        f"{tmp_path}/half.tar": "half.tar is not a readable tar file",
        f"{tmp_path}/bare.tar": "no photograph with a caption",
        f"{tmp_path}/none-*.tar": "no such shards",
        f"{tmp_path}/*/x.tar": "only the name of the file",
        "pipe:touch run": "was not found",
        f"{tars}/train-0.tar*": None,
    }.items():
        source = Shards(shards={"train": pattern}, batch_size=2, min_count=1, epoch_images=4)
        if said is None:
            source.prepare(Small())
            continue
        with pytest.raises(UserError, match=said):
            source.prepare(Small())
            list(source.train(0, seed=0))
    with pytest.raises(UserError, match="unknown split 'training'"):
        Shards(shards={"training": "x.tar"})


def test_the_shuffle_buffer_keeps_every_sample() -> None:
    mixed = list(shuffled(range(100), 10, Random(0)))
    assert sorted(mixed) == list(range(100)) and mixed != list(range(100))
    assert all(number <= place + 10 for place, number in enumerate(mixed))  # none comes before it was read


def test_a_captioner_trains_from_shards_and_is_evaluated(tars: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = yaml.safe_load((Path(__file__).parents[2] / "configs" / "sat_soft_scenes.yaml").read_text())
    config["data"] = {
        "class_path": "vision_attn.data.photographs.shards.Shards",
        "init_args": {
            "shards": {"train": f"{tars}/train-*.tar", "val": f"{tars}/val-0.tar", "test": f"{tars}/val-0.tar"},
            "batch_size": 4, "min_count": 1, "shuffle": 4,
        },
    }  # fmt: skip
    config["task"]["init_args"]["encoder"]["init_args"] = {"resolution": 24}
    config["run"] |= {"epochs": 1, "device": "cpu", "warmup": 1}
    Path("stream.yaml").write_text(yaml.safe_dump(config))
    assert main(["train", "stream.yaml", "--task.model.hidden_size=8"]) == 0
    lines = [json.loads(line) for line in Path("runs/stream/metrics.jsonl").read_text().splitlines()]
    assert any("nll" in line for line in lines) and Path("runs/stream/best/vocabulary.json").is_file()


def said_of(path: Path) -> str:
    """What is said of the samples that are left out of a shard."""
    left_out = LeftOut()
    list(read(path, "image", "caption", left_out))
    return str(left_out)


def pair(name: str, number: int, ending: str = "txt", text: str = "a dog") -> list[tuple[str, bytes]]:
    return [(f"{name}.png", photograph(number)), (f"{name}.{ending}", text.encode())]


def test_names_end_at_their_first_dot_as_in_webdataset() -> None:
    from webdataset.tariterators import base_plus_ext

    draw = Random(0)
    for _ in range(2000):
        name = "".join(draw.choices("ab.A/_", k=draw.randint(1, 9)))
        key, ending = base_plus_ext(name)
        if key is not None and not key.endswith("/"):
            assert named(name) == (key, ending.lower()), name
    assert named(f"{'/' * 10**6}a.B") == (f"{'/' * 10**6}a", "b")  # in a time that is linear


def test_samples_that_are_left_out_are_counted_with_the_reason(tmp_path: Path) -> None:
    photographs = [(f"apart{number}.png", photograph(number)) for number in range(3)]
    members = [
        *pair("read", 0), *pair("dot.1", 1), *pair("read2", 2), *pair("dot.2", 3), *pair("dot.3", 4), *photographs,
        *pair("sub.folder/read3", 5), ("bare.png", photograph(6)), ("bare.cls", b"7"), ("unseen.txt", b"a dog"),
        *pair("blank", 7, text=" \n"), *pair("blank2", 8, "json", '{"url": "x"}'), *pair("marked", 9, "json",
        '{"caption": "a dog", "is_rejected": true}'), *[(f"apart{number}.txt", b"a dog") for number in range(3)],
        *pair("twice", 1), *pair("twice.of", 1),
    ]  # fmt: skip
    write_tar(tmp_path / "a.tar", members)
    assert counted(tmp_path / "a.tar") == 4
    said = said_of(tmp_path / "a.tar")
    assert said.startswith("12 of 16 samples are left out: ")
    reasons = [
        "4 with a dot in the name, which ends at its first dot by WebDataset's rule (write img_1.jpg for img.1.jpg), "
        "such as dot.1",
        "2 with no text in the caption, such as blank",
        "1 with a mark not to be used, such as marked",
        "3 with files that do not follow each other (write the photograph and its captions one after the other), such "
        "as apart0",
        "1 with no caption (.caption, .txt, .json), such as bare",
        "1 with no photograph, such as unseen",
    ]
    assert all(reason in said for reason in reasons) and said.count(" with ") == 6, said


def test_links_in_a_tar_file_are_counted(tmp_path: Path) -> None:
    """As of folders whose photographs are links, and of the second of two hard links."""
    write_tar(tmp_path / "a.tar", pair("0", 0))
    with tarfile.open(tmp_path / "a.tar", "a") as file:
        for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE), start=1):
            info = tarfile.TarInfo(f"{number}.png")
            info.type, info.linkname = kind, "0.png"
            file.addfile(info)
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = 5
            file.addfile(info, io.BytesIO(b"a dog"))
    assert counted(tmp_path / "a.tar") == 1
    assert "2 with a link in the place of a file, such as 1" in said_of(tmp_path / "a.tar")


SAMPLES = {
    "capitals": ([("a.PNG", photograph(0)), ("a.TXT", b"a dog")], ["a dog"]),
    "lines": ([*pair("a", 0, text="a dog\r\nit runs\n\n")], ["a dog", "it runs"]),
    "a byte order mark": ([*pair("a", 0, text="\ufeffa dog")], ["a dog"]),
    ".caption": ([*pair("a", 0, "caption")], ["a dog"]),
    ".caption and tags": ([*pair("a", 0, text="dog, run"), ("a.caption", b"a dog")], ["a dog"]),
    "text and metadata": ([*pair("a", 0), ("a.json", b'{"caption": "other", "width": 3}'), ("a.cls", b"3")], ["a dog"]),
    "empty text, and JSON": ([*pair("a", 0, text=""), ("a.json", b'{"caption": "a dog"}')], ["a dog"]),
    "JSON under another name": ([*pair("a", 0, "json", '{"id": 7, "text": "a dog"}')], ["a dog"]),
    "JSON, several": ([*pair("a", 0, "json", '{"captions": ["a dog", {"raw": "it runs"}, null, 7]}')],
        ["a dog", "it runs"]),
    "JSON, a list": ([*pair("a", 0, "json", '["a dog", "it runs"]')], ["a dog", "it runs"]),
    "JSON, a text": ([*pair("a", 0, "json", '"a dog"')], ["a dog"]),
    "a list as text": ([*pair("a", 0, "json", json.dumps({"caption": "['a dog' 'it runs']"}))], ["a dog", "it runs"]),
    "a list over lines": ([*pair("a", 0, text="['a dog'\n 'it runs']")], ["a dog", "it runs"]),
    "the caption first": ([*pair("a", 0)[::-1]], ["a dog"]),
    "a mask": ([("a.png", photograph(0)), ("a.mask.png", photograph(1)), ("a.txt", b"a dog")], ["a dog"]),
    "files of a Mac": ([("._a.png", b"x"), ("a.png", photograph(0)), ("._a.txt", b"x"), ("a.txt", b"a dog")],
        ["a dog"]),
    "no samples": ([*pair("a", 0), ("README", b"dogs"), ("__meta__/x.json", b"{}"), (".hidden", b"x")], ["a dog"]),
    "a marked one of several": ([*pair("a", 0, "json",
        '[{"caption": "a dog"}, {"caption": "nothing", "is_precanned": true}]')], ["a dog"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", SAMPLES)
def test_no_sample_is_lost_for_how_its_files_are_called(tmp_path: Path, kind: str) -> None:
    members, expected = SAMPLES[kind]
    write_tar(tmp_path / "a.tar", members)
    (sample,) = tar_samples(tmp_path / "a.tar", left_out := LeftOut())
    assert list(sample.captions) == expected and sample.photograph.read() == photograph(0)
    assert not left_out.counts and counted(tmp_path / "a.tar") == 1


def test_a_name_that_occurs_twice_is_two_samples(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [*pair("a", 0), *pair("a", 1, text="it runs")])
    assert [sample.captions for sample in tar_samples(tmp_path / "a.tar", LeftOut())] == [("a dog",), ("it runs",)]


def test_a_sample_that_two_shards_share_is_told(tmp_path: Path, caplog) -> None:
    write_tar(tmp_path / "0.tar", [*pair("a", 0), *pair("b", 1)[:1]])
    write_tar(tmp_path / "1.tar", [*pair("b", 1)[1:], *pair("c", 2)])
    source = opened(tmp_path, shards={"train": f"{tmp_path}/*.tar"}, batch_size=2)
    assert len(source) == 1
    (said,) = caplog.messages
    assert said.startswith(f"{tmp_path}/*.tar: 2 of 4 samples are left out: 1 with no caption")
    assert "such as b; 1 with no photograph, such as b" in said
    caplog.clear()
    list(source.train(0, seed=0))
    assert not caplog.messages  # nothing is said twice


def test_shards_that_are_not_counted_say_what_they_leave_out(tmp_path: Path, caplog) -> None:
    for shard in range(8):
        write_tar(tmp_path / f"{shard}.tar", [*pair("a", 0), *pair("b", 1)[: 1 + (shard == 3)]])
    source = opened(tmp_path, shards={"train": f"{tmp_path}/*.tar"}, batch_size=2, epoch_images=16, shuffle=1)
    for epoch in range(2):
        list(source.train(epoch, seed=0))
    assert len(caplog.messages) == 5 and all(": 1 of 2 samples are left out: " in said for said in caplog.messages)
    assert [said.endswith("; further shards are not named") for said in caplog.messages] == [False] * 4 + [True]


def test_rows_of_parquet_files_that_are_left_out_are_counted(tmp_path: Path, monkeypatch) -> None:
    arrow = pytest.importorskip("pyarrow", reason="the extra [scale] is not installed")
    from pyarrow import parquet

    whole, path = photograph(0), tmp_path / "a.parquet"
    rows = [
        ("a dog", whole, False), ("['a dog', 'it runs']", whole, False), ("", whole, False), (None, whole, False),
        ("a dog", whole, True), (" \n", whole, None),
    ]  # fmt: skip
    images = [{"bytes": image, "path": "a.png"} for _, image, _ in rows]
    columns = {"caption": [row[0] for row in rows], "is_rejected": [row[2] for row in rows]}
    taken, batches = [], parquet.ParquetFile.iter_batches

    def watched(self, *, columns, **more):
        taken.append(columns)
        return batches(self, columns=columns, **more)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", watched)
    for held in (images, [row[1] for row in rows]):
        parquet.write_table(arrow.table({"image": held, **columns}), path)
        taken.clear()
        assert counted(path) == 2
        assert ["image" in columns for columns in taken] == [True, False]  # they are counted without photographs
        assert said_of(path) == (
            "4 of 6 samples are left out: 2 with no caption (.caption, .txt, .json), such as a.parquet/2; "
            "1 with a mark not to be used, such as a.parquet/4; 1 with no text in the caption, such as a.parquet/5"
        )
    for held in ([whole, None, whole, None, None, whole], [*images[:5], {"bytes": None, "path": "a.png"}],
            [*images[:5], None], ["a.png"] * 6):  # fmt: skip
        parquet.write_table(arrow.table({"image": held, "caption": ["a dog"] * 6}), path)
        there = sum(isinstance(one["bytes"] if isinstance(one, dict) else one, bytes) for one in held)
        assert counted(path) == there and f"{6 - there} with no photograph" in said_of(path)

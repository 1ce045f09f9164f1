"""Transcription: every config takes its first steps; criteria resume and split exactly; metrics against formulas."""

import csv
import json
import os
import re
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from whole_runs import CONFIGS, assert_close, elsewhere, in_two_processes, steps, train, two_steps

from tests.engine.test_resume import assert_same
from tests.fake_mnist import write_mnist
from vision_attn.api import load
from vision_attn.attention import monotonic
from vision_attn.attention.glimpse import Retina
from vision_attn.commands import main
from vision_attn.configuration.run_folder import open_run
from vision_attn.contracts import Caption, DecodedCaption, Results
from vision_attn.data.digits.digit_pairs import DigitPairs
from vision_attn.data.lines.mnist_strings import Strings
from vision_attn.data.lines.text_lines import Lines, TextLine, ink, read_line, read_transcripts
from vision_attn.data.random_streams import FRESH
from vision_attn.encoders.pixels import PixelColumns
from vision_attn.encoders.strips import Columns
from vision_attn.metrics.evaluators import Pointing
from vision_attn.metrics.transcripts import Alignment, TranscriptErrors
from vision_attn.models.ctc import CTC
from vision_attn.models.dram import DRAM
from vision_attn.models.encoder_decoder import EncoderDecoder, RNNsearch
from vision_attn.system.errors import UserError
from vision_attn.tasks.transcribe import Transcription, compare
from vision_attn.viz.alignment import LABEL, ROW, Strip, Transcribed, alignment_sheet, write_transcripts
from vision_attn.viz.panel_sheets import MARGIN

TINY = {
    "data__batch_size": 4, "data__epoch_images": 8, "data__val_images": 4, "data__test_images": 6, "run__epochs": 1,
    "data__lengths": "[1,3]", "data__test_lengths": "[1,5]", "task__encoder__width": 2, "task__encoder__region_size": 4,
    "run__warmup": 0, "run__device": "cpu", "run__log_every": 1, "run__sanity_check": "false",
}  # fmt: skip


@pytest.mark.parametrize("config", sorted(path.stem for path in CONFIGS.glob("strings_read_*.yaml")))
def test_every_config_takes_its_first_steps(config, tmp_path) -> None:
    sizes = {name: value for name, value in TINY.items() if "encoder" not in name or "dram" not in config}
    settings = {name.replace("__", "."): value for name, value in sizes.items()}
    metrics = two_steps(config, tmp_path, **settings)
    assert {"error", "error_sequence", "error_short", "error_long", "nll"} <= metrics.keys()
    assert "_fixed" not in config or "on_character" not in metrics
    written = json.loads((tmp_path / "transcripts_test.json").read_text())
    assert len(written["transcripts"]) == 6 and written["error_by_length"]


@pytest.mark.parametrize("config", sorted(path.stem for path in CONFIGS.glob("pairs_*.yaml")))
def test_every_config_of_pairs_takes_its_first_steps(config, tmp_path) -> None:
    sizes = {name.replace("__", "."): value for name, value in TINY.items() if "lengths" not in name}
    metrics = two_steps(config, tmp_path, **{name: value for name, value in sizes.items() if "encoder" not in name})
    assert {"error_sequence", "nll"} <= metrics.keys()


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run that labels columns, after two steps."""
    folder = tmp_path_factory.mktemp("run")
    settings = {**TINY, "data__folder": write_mnist(folder / "mnist"), "run__folder": folder / "run"}
    assert main(train("strings_read_ctc", **settings)) == 0
    return folder / "run"


def test_lines_of_ones_own_are_transcribed(run, tmp_path, capsys) -> None:
    """A drawn strip, saved as a file, is read as the tensor is; so is one of twice the size, on white paper."""
    task, source, _ = open_run(run)
    batch = next(source.split("test"))
    expected = [strip.text for strip in task.transcribed(batch.images[:1], "")]
    picture = Image.fromarray(batch.images[0].permute(1, 2, 0).numpy())
    picture.save(tmp_path / "a.png")
    Image.eval(picture.resize((2 * picture.width, 64), Image.Resampling.NEAREST), lambda value: 255 - value).save(
        tmp_path / "b.png"
    )
    (tmp_path / "c.png").write_bytes(b"no image")
    capsys.readouterr()
    out = tmp_path / "out"
    assert main(["transcribe", str(run), *(str(tmp_path / f"{name}.png") for name in "abc"), "--out", str(out)]) == 1
    said = capsys.readouterr()
    lines = [line.split("\t") for line in said.out.splitlines()]
    assert [Path(path).name for path, _ in lines] == ["a.png", "b.png"] and lines[0][1] == expected[0]
    assert "c.png" in said.err and sorted(path.name for path in out.iterdir()) == ["01-a.png", "02-b.png", "index.html"]
    assert main(["transcribe", str(run), str(tmp_path / "a.png"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert {each["log_prob"] for each in record["characters"]} <= {None}, "CTC knows that of transcripts alone"
    assert record["text"] == expected[0] == "".join(each["character"] for each in record["characters"])
    read = load(run, device="cpu").transcribe([str(tmp_path / "a.png"), picture])
    assert read[1].text == expected[0]
    read[1].save(tmp_path / "read.html")
    assert (tmp_path / "read.html").stat().st_size > 1000


def test_large_lines_are_resized_and_paper_becomes_black(tmp_path) -> None:
    drawn = np.zeros((40, 100), np.uint8)
    drawn[10:30, 20:24] = 200
    for name, paper in (("dark", drawn), ("light", 255 - drawn)):
        Image.fromarray(paper).save(tmp_path / f"{name}.png")
    dark, light = (read_line(tmp_path / f"{name}.png", 20) for name in ("dark", "light"))
    assert dark.shape == (20, 50) and torch.equal(dark, light) and dark.max() >= 190 and not dark[:, 30:].any()
    assert read_line(tmp_path / "dark.png", 20, max_width=10).shape == (20, 10)


@pytest.mark.parametrize("paper", [250, 5])
def test_letters_may_fill_more_than_half_of_a_line(paper) -> None:
    grey = np.full((32, 64), paper, dtype=np.uint8)
    grey[2:-2, 3:-3] = 255 - paper
    seen = ink(Image.fromarray(grey), 32)
    assert (seen[2:-2, 3:-3] == abs(255 - 2 * paper)).all() and (seen[[0, -1]] == 0).all()


def test_runs_that_read_lines_are_not_given_squares(run, tmp_path, capsys) -> None:
    Image.new("RGB", (90, 30)).save(tmp_path / "a.png")
    for verb, *others in (["caption"], ["caption", "--with", str(run)], ["look"]):
        assert main([verb, str(run), str(tmp_path / "a.png"), *others]) == 1
        assert "vision-attn transcribe" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"use transcribe\(\)"):
        load(run, device="cpu").caption(str(tmp_path / "a.png"))
    assert main(["transcribe", "weights/photographs", str(tmp_path / "a.png")]) == 1
    assert "transcribes no lines" in capsys.readouterr().err


def die_before(epoch: int, batch: int) -> None:
    """Kill this process when it lays out the training strips of this batch."""
    sample = Strings.sample

    def sample_or_die(source: Strings, split: str, numbers: tuple[int, ...], *sizes: int):
        if numbers[0] == FRESH and numbers[2:] == (epoch, batch):
            os.kill(os.getpid(), signal.SIGKILL)
        return sample(source, split, numbers, *sizes)

    Strings.sample = sample_or_die


def test_a_killed_run_resumes_exactly(tmp_path) -> None:
    """With the samples of hard attention."""
    config = "strings_read_hard_monotonic"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    settings = {**TINY, "data__folder": write_mnist(tmp_path / "mnist"), "run__epochs": 2, "run__save_every": 0}
    assert main(train(config, run__folder=whole, **settings)) == 0
    process = elsewhere(train(config, run__folder=killed, **settings), partial(die_before, 1, 1))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert main(train(config, run__folder=killed, **settings)) == 0
    assert_same(killed, whole)


def sample_alike() -> None:
    """Make the sampled column depend on the strip alone: the first possible one, in every other run the likeliest."""

    def fixed(alpha: torch.Tensor) -> torch.Tensor:
        odd = torch.arange(alpha.shape[1]) % 2 == 1
        return torch.where(odd, alpha.argmax(dim=-1), (alpha > 0).int().argmax(dim=-1))

    monotonic.sample = fixed


@pytest.mark.parametrize("config", ["strings_read_ctc", "strings_read_hard_monotonic"])
def test_two_processes_train_as_one_does(config, tmp_path, monkeypatch) -> None:
    """Given the samples of one process for the whole batch."""
    settings = {**TINY, "data__folder": write_mnist(tmp_path / "mnist"), "run__epochs": 2}
    settings |= {"optimizer": "torch.optim.SGD", "optimizer__lr": 0.001}
    if "hard" in config:
        settings |= {"task__model__attention__expectation_probability": 0, "task__model__attention__soft_start": 0}
    one, two = tmp_path / "one", tmp_path / "two"
    monkeypatch.setattr(monotonic, "sample", monotonic.sample)  # restored after the test
    sample_alike()
    assert main(train(config, run__folder=one, **settings)) == 0
    in_two_processes(train(config, run__folder=two, **settings), sample_alike)
    assert_close(one, two, number=4)
    if "hard" in config:  # or REINFORCE would not have been tested
        assert all(step["gradient_variance"] > 0 for step in steps(one))


def described(text: str, centres: list[float], columns: int = 40) -> DecodedCaption:
    """A transcript whose maps are single columns."""
    alpha = torch.zeros(len(text), 1, columns)
    for row, centre in zip(alpha, centres, strict=True):
        row[0, int((centre + 1) / 2 * columns)] = 1
    return DecodedCaption(text, list(text), [0.0] * len(text), alpha)


def results(*captions: DecodedCaption) -> Results:
    return Results(Caption(torch.zeros(1, 1, 1)), list(captions), {}, frozenset("0123456789"))


def test_errors_are_edit_distances_per_character() -> None:
    errors = TranscriptErrors()
    texts = {"123": "123", "7777777": "777777", "45": "6", "8": "889"}
    captions = [DecodedCaption(text, list(text), []) for text in texts.values()]
    errors.update(SimpleNamespace(ids=range(4), references=[[text] for text in texts]), results(*captions))
    found = errors.compute()
    assert found["error"] == pytest.approx(100 * (0 + 1 + 2 + 2) / 13) and found["error_sequence"] == 75
    assert found["error_short"] == pytest.approx(100 * 4 / 6) and found["error_long"] == pytest.approx(100 / 7)
    assert errors.by_length() == pytest.approx({1: 200, 2: 100, 3: 0, 7: 100 / 7})


def test_alignment_knows_which_of_equal_digits_is_said() -> None:
    boxes = {"7": [(-0.9, -1, -0.5, 1), (0.5, -1, 0.9, 1)], "3": [(-0.2, -1, 0.2, 1)]}
    right, swapped = described("737", [-0.7, 0.0, 0.7]), described("737", [0.7, 0.0, -0.7])
    for caption, share, forward in ((right, 1, 1), (swapped, 1 / 3, 0)):
        alignment, pointing = Alignment(), Pointing()
        for evaluator in (alignment, pointing):
            evaluator.update(SimpleNamespace(boxes=[boxes]), results(caption))
        found = alignment.compute()
        assert found["on_character"] == pytest.approx(share) and found["forward"] == forward
        assert found["travelled"] == pytest.approx(0.7, abs=0.03)
        assert pointing.compute()["pointing"] == 1  # any of the boxes will do


def test_pointing_averages_over_strips_of_different_widths() -> None:
    boxes = {"3": [(-0.2, -1, 0.2, 1)]}
    pointing = Pointing()
    captions = [described("3", [0.0]), described("3", [0.9], columns=20), described("33", [0.0, 0.0], columns=10)]
    pointing.update(SimpleNamespace(boxes=[boxes] * 3), results(*captions))
    found = pointing.compute()
    assert found["pointing"] == pytest.approx(3 / 4) and found["pointing_uniform"] == pytest.approx(0.2)


LINES = {"straße": "white", "12:30 é": "black", "ab": "white", "日": "white"}


@pytest.fixture
def lines(tmp_path):
    """Ten images of dark ink on white paper, or light ink on black, of different widths."""
    records = []
    for number, (text, paper) in enumerate([*LINES.items()] * 3):
        image = Image.new("RGB", (20 + 30 * number, 40), paper)
        ImageDraw.Draw(image).rectangle((4, 10, 10, 30), fill="black" if paper == "white" else "white")
        image.save(tmp_path / f"{number:02d}.png")
        records.append({"image": f"{number:02d}.png", "text": text})
    return tmp_path, records


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_lines_are_read_from_a_folder_and_a_file(lines, kind) -> None:
    folder, records = lines
    file = folder / f"transcripts.{kind}"
    if kind == "csv":
        with open(file, "w", encoding="utf-8", newline="") as content:
            writer = csv.DictWriter(content, ["image", "text"])
            writer.writeheader()
            writer.writerows(records)
    else:
        file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    source = Lines(images=str(folder), transcripts=str(file), batch_size=4, height=16)
    assert {name: len(several) for name, several in source.lines.items()} == {"train": 10, "val": 1, "test": 1}
    assert "ß" in source.vocabulary.words and " " in source.vocabulary.words
    epoch = list(source.train(0, seed=0))
    assert len(epoch) == len(source) == 2
    seen = {key for batch in epoch for key in batch.ids}
    assert len(seen) == 8
    for batch in epoch:
        assert batch.images.shape[2] == 16 and batch.images.shape[3] % 8 == 0
        for image, words, (text,), key in zip(batch.images, batch.words, batch.references, batch.ids, strict=True):
            assert source.vocabulary.decode(words[0].tolist()) == text == records[int(key[:2])]["text"]
            width = round((20 + 30 * int(key[:2])) * 16 / 40)
            assert image[0, 6, 2] > 200 and image[0, 0, :width].max() < 60 and not image[..., width:].any()
    assert next(source.train(0, seed=0, skip=1)).ids == epoch[1].ids
    parts = [next(source.train(0, seed=0, rank=rank, world=2)) for rank in range(2)]
    assert sorted(parts[0].ids + parts[1].ids) == sorted(epoch[0].ids)
    assert {part.images.shape for part in parts} == {(2, *epoch[0].images.shape[1:])}


def test_lines_of_half_of_the_batches_have_similar_lengths() -> None:
    source = Lines(images="none", transcripts="none", batch_size=8)
    source.lines = {"train": [TextLine(str(number), Path(), "x" * (1 + number * 7 % 100)) for number in range(800)]}
    source.batch = lambda lines, rank, world: lines
    batches = list(source.train(0, seed=0))
    spans = [max(lengths) - min(lengths) for lengths in ([len(line.text) for line in batch] for batch in batches)]
    assert len(spans) == 100 and 45 <= sum(span <= 20 for span in spans) <= 50 <= sum(span > 40 for span in spans)
    assert len({line.id for batch in batches for line in batch}) == 800


@pytest.mark.parametrize(
    "content, message",
    [
        ("word,other\nx,b\n", 'must name the columns "image" and "text"'),
        ("image,text,split\na.png,b,train\nb.png,c,\n", "some lines have a split and some have none"),
        ("image,text,split\na.png,b,tset\n", "line 2: split .tset. is not one of train, val, test"),
        ("image,text\n../a.png,b\n", "line 2: image .*must be the name of a file in"),
        ("image,text\na.png,b\na.png,c\n", 'image "a.png" has two transcripts'),
        ("image,text\na.png,b\n", "has no line for"),
        ("", "t.csv is empty"),
    ],
)
def test_mistakes_in_transcripts_are_named(tmp_path, content, message) -> None:
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(UserError, match=message):
        read_transcripts(tmp_path / "t.csv", tmp_path)


def test_all_mechanisms_are_drawn_under_each_other(tmp_path) -> None:
    """A model of columns, one of maps and one of neither: the same picture, the same page."""
    source = Strings(folder=write_mnist(tmp_path / "mnist"), test_images=3, test_lengths=(2, 4), batch_size=3)
    torch.manual_seed(0)
    models = {"ctc": CTC, "search": RNNsearch, "fixed": EncoderDecoder}
    tasks = {
        name: Transcription(source, encoder=Columns(width=2, region_size=4), model=model, max_words=6).eval()
        for name, model in models.items()
    }
    batch = next(source.split("test"))
    page, *pictures = compare(tasks, batch, tmp_path)
    assert len(pictures) == 3
    text = page.read_text()
    assert all(f"{batch.ids[0]}: {name}" in text for name in models)
    assert "Point at a character" in text and "What is written (1)" in text and "word 1 of" not in text
    one = tasks["search"].show(batch, tmp_path / "alone")
    assert Image.open(pictures[0]).height > Image.open(one[1]).height


def test_glimpses_over_several_digits_are_drawn_and_counted(tmp_path) -> None:
    source = DigitPairs(folder=write_mnist(tmp_path / "mnist"), test_images=3, batch_size=3)
    torch.manual_seed(0)
    model = partial(DRAM, num_glimpses=2, retina=partial(Retina, size=12, num_scales=2))
    task = Transcription(source, encoder=PixelColumns(resolution=100), model=model, max_words=3, beams=1).eval()
    batch = next(source.split("test"))
    paths = task.show(batch, tmp_path / "shown")
    assert [path.name for path in paths[-2:]] == [f"03-{batch.ids[2]}_glimpses.{kind}" for kind in ("png", "gif")]
    metrics = task.evaluate([batch])
    steps = [min(len(caption.words) + 1, 3) for caption in task.describe(batch.images)]
    assert metrics["glimpses"] == pytest.approx(2 * sum(steps) / 3)
    frames = Image.open(paths[-1]).n_frames
    assert frames == 2 * steps[-1]


def test_a_reader_of_glimpses_is_made_to_look_elsewhere(tmp_path, capsys) -> None:
    """From Python and on the command line: the answer after each glimpse, and what it tells of one that cannot be."""
    sizes = {name: value for name, value in TINY.items() if "encoder" not in name}
    folder = str(tmp_path / "run")
    settings = {**sizes, "data__folder": write_mnist(tmp_path / "mnist"), "run__folder": folder, "task__max_words": 2}
    assert main(train("strings_read_dram", **settings)) == 0
    model, line = load(folder, device="cpu"), str(tmp_path / "line.png")
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (28, 60), np.uint8)).save(line)
    own = model.transcribe(line)
    asked = model.transcribe(line, placed=False, locations=[None, (0.9, 0.5), None, (-0.9, 0.0)])
    K = model.task.model.num_glimpses
    assert own.glimpses.locations.shape == (len(own.answers), 2) and len(own.answers) % K == 0
    taken = asked.glimpses.locations
    assert torch.equal(taken[0], own.glimpses.locations[0]) and taken[1].tolist() == pytest.approx([0.9, 0.5])
    assert taken[3].tolist() == pytest.approx([-0.9, 0]) or len(taken) == K  # where it ended after its first character
    assert asked.entropy.shape == (len(taken),) and (asked.entropy > 0).all()
    assert asked.answers[K - 1] == (asked.words[0] if asked.words else "END")
    capsys.readouterr()
    assert main(["transcribe", folder, line, "--json", "--device", "cpu", "--locations", "- 0.9,0.5 - -0.9,0"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [each["answer"] for each in record["glimpses"]] == asked.answers
    assert [each["entropy"] for each in record["glimpses"]] == pytest.approx(asked.entropy.tolist())
    assert "glimpses" not in model.transcribe(line, placed=False).record()
    with pytest.raises(UserError, match=rf"takes {2 * K} glimpses, and 20 locations are given"):
        model.transcribe(line, locations=[(0, 0)] * 20)
    with pytest.raises(UserError, match=r"takes a location \(x, y\) for each glimpse"):
        model.transcribe(line, locations=[(0, 0, 1, 1)])


def test_a_reader_that_takes_no_glimpses_cannot_be_told_where(run, tmp_path) -> None:
    Image.new("RGB", (90, 30)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match="sees the whole image at once"):
        load(run, device="cpu").transcribe(str(tmp_path / "a.png"), locations=[(0, 0)])


def test_the_matrix_lights_the_column_that_was_read() -> None:
    strip = Image.new("RGB", (80, 16))
    alpha = torch.zeros(2, 1, 20)
    alpha[0, 0, 3] = alpha[1, 0, 15] = 1
    item = Transcribed("a", "77", ["7", "7"], alpha, [0.0, 0.0])
    drawn = alignment_sheet(strip, [item], boxes={"7": [(-0.7, -1, -0.6, 1), (0.5, -1, 0.6, 1)]})
    top = drawn.height - MARGIN - 2 * ROW
    left, scale = MARGIN + LABEL, (drawn.width - 2 * MARGIN - LABEL) / 20
    for row, column in ((0, 3), (1, 15)):
        lights = [drawn.getpixel((int(left + (x + 0.5) * scale), top + row * ROW + 5))[0] for x in range(20)]
        assert lights.index(max(lights)) == column and sorted(lights)[-2] < 60


def test_each_of_two_equal_characters_has_its_own_box(tmp_path) -> None:
    boxes = {"7": [(-1.0, -1, 0, 1), (0, -1, 1, 1)]}
    item = Transcribed("model", "77", ["7", "7"], torch.full((2, 1, 4), 0.25), None)
    page, _ = write_transcripts([Strip("line", Image.new("RGB", (40, 10)), [item], ["77"], boxes)], tmp_path)
    assert re.findall('data-boxes="([^"]*)"', page.read_text()) == ["0.00 0.00 50.00 100.00", "50.00 0.00 50.00 100.00"]

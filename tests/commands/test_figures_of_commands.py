"""`--figure`: each command that draws also writes a figure for a paper."""

import re
from pathlib import Path

import pytest
from PIL import Image

import vision_attn
from tests.commands.test_compare import write_run as write_compared
from tests.explain.test_look import MODULE
from tests.untrained import write_run
from vision_attn.commands import main
from vision_attn.system.errors import UserError
from vision_attn.task import Task
from vision_attn.viz.figures.paper import Paper

PHOTOGRAPHS = Path(__file__).parents[2] / "docs" / "photographs"
DOG, HORSE = str(PHOTOGRAPHS / "dog.jpg"), str(PHOTOGRAPHS / "horse.jpg")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    names = ("sat_soft_scenes", "ram_mnist28", "draw_mnist")
    return {name: str(write_run(name, folder / name)) for name in names}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments that name a function which makes a classifier."""
    (tmp_path / "tiny_model.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return ["tiny_model:make", "--trust=tiny_model"]


def words(path: Path) -> list[str]:
    """The texts of an SVG, in their order, without the numbers of a colour bar, which come first."""
    found = re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())
    return [text for text in found if not re.fullmatch(r"[01]\.\d", text)]


def test_caption_draws_every_word_of_one_photograph_and_a_row_for_each_of_several(
    runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    figure = tmp_path / "new" / "figure.svg"
    assert main(["caption", runs["sat_soft_scenes"], DOG, "--device=cpu", f"--figure={figure}", "--width=3.25"]) == 0
    said = capsys.readouterr()
    caption = said.out.split("\t")[1].strip()
    assert f"drawn: {figure}\n" in said.err and 'width="234pt"' in figure.read_text()
    assert caption in words(figure) and {*caption.split()} <= {*words(figure)}
    word = caption.split()[0]
    command = ["caption", runs["sat_soft_scenes"], DOG, HORSE, "--device=cpu", "--figure", str(figure)]
    assert main([*command, "--words", word, "nonsense"]) == 0
    assert words(figure)[:3] == ["photograph", f"{word}: map", word]
    assert 'no caption has the word "nonsense"' in capsys.readouterr().err
    assert main([*command[:-1], str(tmp_path / "a.png"), "--dpi=50", "--dark"]) == 0
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width == 325 and max(picture.convert("RGB").getpixel((0, 0))) < 40


def test_look_draws_a_column_for_each_method_and_model(
    tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["look", *tiny, DOG, HORSE, "--figure=a.svg", "--methods", "rollout", "relevance", "attention"]) == 0
    told = words(tmp_path / "a.svg")
    assert told[:4] == ["photograph", "rollout", "relevance", "attention"] and {"dog.jpg", "horse.jpg"} <= {*told}
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2
    (tmp_path / "other_model.py").write_text(MODULE)
    command = ["look", *tiny, "--trust=other_model", DOG, "--figure=b.svg"]
    assert main([*command, "--models", "other_model:make"]) == 0
    first, second = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    assert first[:2] == second[:2] == printed[0].split("\t")
    assert (first[2], second[2]) == ("tiny_model:make", "other_model:make")
    assert any("tiny_model:make: relevance; other_model:make: relevance" in text for text in words(tmp_path / "b.svg"))


def test_classify_and_eval_draw_glimpses_and_drawings(
    runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    Image.new("L", (28, 28)).save(tmp_path / "black.png")
    figure = tmp_path / "a.svg"
    assert main(["classify", runs["ram_mnist28"], str(tmp_path / "black.png"), f"--figure={figure}"]) == 0
    name = capsys.readouterr().out.split("\t")[1]
    assert any(f"black.png: said {name}, p" in text for text in words(figure))
    for run, told in (("ram_mnist28", "said"), ("draw_mnist", "step 2")):
        assert main(["eval", runs[run], "--show=2", f"--figure={figure}", f"--out={tmp_path / run}"]) == 0
        assert any(told in text for text in words(figure)), run
        assert f"figure: {figure}" in capsys.readouterr().out


def test_a_captioning_task_draws_its_test_images_and_the_objects_in_them(runs: dict[str, str]) -> None:
    model = vision_attn.load(runs["sat_soft_scenes"], device="cpu")
    batch = next(iter(model.source.split("test")))
    figure = model.task.figure(batch, Paper())
    told = [text.get_text() for text in figure.texts]
    assert told[:3] == ["photograph", "map", "overlay"] and len(figure.axes) == 3 * len(batch.ids) + 1
    with pytest.raises(UserError, match="no figure of a model yet"):
        Task().figure(batch, Paper())


def test_measure_and_compare_draw_charts(tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    options = ["--method=rollout", "--method=attention", "--best=0", "--sanity=0", "--steps=4"]
    assert main(["measure", *tiny, DOG, *options, f"--out={tmp_path}", f"--figure={tmp_path / 'a.svg'}"]) == 0
    told = words(tmp_path / "a.svg")
    assert {"rollout", "attention", "random", "gain over a random order", "tiny_model:make, 1 image"} <= {*told}
    run = str(write_compared(tmp_path / "run"))
    assert main(["compare", run, f"--figure={tmp_path / 'b.svg'}"]) == 0
    told = words(tmp_path / "b.svg")
    assert {"loss", "val/BLEU-4"} <= {*told} and any(text.endswith(run) for text in told)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["caption", DOG, "--words", "dog"], "--words applies to a figure: add --figure"),
        (["caption", DOG, "--width=3"], "--width applies to a figure: add --figure"),
        (["caption", DOG, "--figure=a.jpg"], "a figure is a .pdf, .svg or .png"),
        (["caption", DOG, "--figure=a.pdf", "--width=0.1"], "width of a figure is 0.1"),
        (["caption", DOG, "--figure=a.pdf", "--words", "dog", HORSE], "name photographs before it"),
        (["look", "vit_b_16", DOG, "--methods", "rollout"], "--methods applies to a figure"),
        (["look", "vit_b_16", DOG, "--models", "vit_b_32"], "--models applies to a figure"),
        (["look", "vit_b_16", DOG, "--figure=a.pdf", "--models", HORSE], "name photographs before it"),
        (["eval", "weights/drawn_scenes", "--figure=a.pdf"], "add --show N"),
    ],
)
def test_mistakes_are_told_before_anything_is_computed(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_figure_replaces_none_but_an_earlier_one(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run = str(write_compared(tmp_path / "run"))
    for ending in ("pdf", "svg", "png"):
        command = ["compare", run, f"--figure={(figure := tmp_path / f'a.{ending}')}"]
        assert main(command) == main(command) == 0
        figure.write_bytes(b"%" + figure.read_bytes())
        assert main(command) == 1 and figure.read_bytes()[:1] == b"%"
        assert f"{figure} would be replaced, but vision-attn did not write it" in capsys.readouterr().err


def test_words_say_that_they_took_the_photograph(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["caption", "--figure=a.pdf", "--words", "dog", DOG])
    assert "--words takes all that follows: name them before it" in capsys.readouterr().err

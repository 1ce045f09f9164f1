"""Figures for papers: each opens, at its size in inches, with its words as text, and is small; and arrays of maps."""

import base64
import io
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image

from vision_attn.contracts import DecodedCaption, Glimpses, Reads
from vision_attn.explain.explanation import Explanation
from vision_attn.geometry.extents import WHOLE, Extent, cell
from vision_attn.results.classified import ClassificationResult, DrawnImages
from vision_attn.results.decoded import CaptionResult
from vision_attn.results.explained import ExplanationResult
from vision_attn.results.result_list import ResultList
from vision_attn.system.errors import UserError
from vision_attn.viz.canvases import Rectangles
from vision_attn.viz.figures.cells import cells
from vision_attn.viz.figures.charts import curves_figure
from vision_attn.viz.figures.drawing import Letters, PaperFigure, save
from vision_attn.viz.figures.maps import Options, caption_figure, rows_figure
from vision_attn.viz.figures.paper import Paper

PHOTOGRAPHS = Path(__file__).parents[2] / "docs" / "photographs"
SIZE = 2_000_000
"""Bytes of a file, at most."""
POPPLER = shutil.which("pdfinfo") and shutil.which("pdftotext")
SVG = "{http://www.w3.org/2000/svg}"
JAPANESE = "雪の上の犬"


def maps(words: int, rows: int = 7, columns: int = 7) -> torch.Tensor:
    return (
        torch.rand(words, rows, columns, generator=torch.Generator().manual_seed(0))
        .flatten(1)
        .softmax(1)
        .view(words, rows, columns)
    )


def captioned(text: str, photograph: str = "dog.jpg", **options: Any) -> CaptionResult:
    words = text.split(" ")
    options = {"alpha": maps(len(words), 14, 14), "extent": Extent(-1.1, -1.1, 0.9, 0.9)} | options
    options.setdefault("content", [True] * len(words))
    described = DecodedCaption(text, words, [-0.5] * len(words), **options)
    return CaptionResult(str(PHOTOGRAPHS / photograph), PHOTOGRAPHS / photograph, described, "whole")


def looked(method: str, model: str = "vit", photograph: str = "dog.jpg") -> ExplanationResult:
    explanation = Explanation(["great dane"], maps(1), [-0.25], method=method)
    with Image.open(PHOTOGRAPHS / photograph) as picture:
        whole = picture.convert("RGB")
    return ExplanationResult(photograph, whole, whole, WHOLE, "classifier", explanation, model=model)


def classified(view: Any) -> ClassificationResult:
    seen, probabilities = torch.zeros(1, 1, 20, 20), torch.tensor([[0.2, 0.8], [0.1, 0.9]])
    locations = torch.tensor([[0.0, 0.0], [0.5, -0.5]]) if isinstance(view, Glimpses) else None
    return ClassificationResult("seven.png", seen, probabilities, locations, view, ("cat", "dog"))


WINDOWS = Rectangles(torch.tensor([-0.5, -0.5, 0.5, 0.5]).expand(1, 2, 4), torch.ones(1, 2))
CURVES = {"loss": {"runs/a": [(10, 1.0), (20, 0.5)], "runs/b": [(10, 2.0)]}, "val/BLEU-4": {"runs/a": [(20, 0.25)]}}
FIGURES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "caption": (lambda: captioned("a dog on the grass"), ["a dog on the grass", "grass", "p 0.61", "0.6", "0.0051"]),
    "rows": (
        lambda: ResultList([captioned("a dog runs"), captioned("a horse jumps", "horse.jpg")]),
        ["a horse jumps", "a dog runs", "map", "overlay", "photograph"],
    ),
    "methods": (
        lambda: ResultList([looked("relevance"), looked("rollout"), looked("occlusion")]),
        ["relevance", "rollout", "occlusion", "dog.jpg", "great dane"],
    ),
    "glimpses": (lambda: classified(Glimpses(torch.rand(1, 2, 2, 1, 4, 4)[0])), ["said dog, p 0.90", "dog 0.80"]),
    "reads": (
        lambda: classified(Reads(torch.rand(2, 1, 4, 4), WINDOWS.boxes[0], WINDOWS.sigma[0])),
        ["read 2", "said dog, p 0.90", "dog 0.80"],
    ),
    "whole": (lambda: classified(None), ["seven.png", "dog, p 0.90"]),
    "drawn": (
        lambda: DrawnImages(torch.rand(3, 2, 1, 8, 8), Rectangles(WINDOWS.boxes.expand(3, 2, 4), torch.ones(3, 2))),
        ["step 1", "step 2", "drawn"],
    ),
}
"""A result of each kind, and words of its figure."""


def text_of_pdf(path: Path) -> str:
    if not POPPLER:
        pytest.skip("the text of PDFs is read by poppler, which is not installed (apt-get install poppler-utils)")
    done = subprocess.run(["pdftotext", "-layout", path, "-"], capture_output=True, text=True, check=True)
    return done.stdout


def check_pdf(path: Path, width: float, words: list[str]) -> None:
    content = path.read_bytes()
    left, bottom, right, top = map(float, re.search(rb"/MediaBox \[([\d. ]+)\]", content)[1].split())
    assert (left, bottom, right) == (0, 0, pytest.approx(72 * width)) and top > 50
    assert len(content) < SIZE and b"/Type3" not in content and b"/FontFile2" in content
    read = text_of_pdf(path)
    assert [word for word in words if word not in read] == []
    told = subprocess.run(["pdfinfo", path], capture_output=True, text=True, check=True).stdout
    assert float(re.search(r"Page size: +([\d.]+) x", told)[1]) == pytest.approx(72 * width, abs=0.01)
    assert re.search(r"Pages: +1\n", told) and "CreationDate" not in told


def check_svg(path: Path, width: float, words: list[str], *, pictures: bool) -> None:
    assert path.stat().st_size < SIZE
    page = ElementTree.parse(path).getroot()
    assert float(page.get("width").removesuffix("pt")) == pytest.approx(72 * width)
    read = [text.text for text in page.iter(f"{SVG}text")]
    assert [word for word in words if not any(word in line for line in read)] == []
    sources = [image.get("{http://www.w3.org/1999/xlink}href") for image in page.iter(f"{SVG}image")]
    assert all(source.startswith("data:image/png;base64,") for source in sources) and bool(sources) == pictures
    for source in sources:
        Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))).verify()


@pytest.mark.parametrize("kind", FIGURES)
def test_a_pdf_of_each_kind_opens_at_its_size_has_its_words_and_is_small(kind: str, tmp_path: Path) -> None:
    make, words = FIGURES[kind]
    width = 5.25
    check_pdf(make().save(tmp_path / "new" / "figure.pdf", width=width), width, words)


@pytest.mark.parametrize("kind", FIGURES)
def test_the_same_in_svg(kind: str, tmp_path: Path) -> None:
    make, words = FIGURES[kind]
    check_svg(make().save(tmp_path / "figure.svg"), 6.5, words, pictures=True)


def test_charts_have_a_title_each_and_one_legend(tmp_path: Path) -> None:
    figure = curves_figure(CURVES, Paper(width=6.0))
    check_pdf(save(figure, tmp_path / "a.pdf"), 6.0, ["loss", "val/BLEU-4", "runs/a", "runs/b", "step"])
    check_svg(save(figure, tmp_path / "a.svg"), 6.0, ["loss", "runs/b"], pictures=False)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["loss", "val/BLEU-4"] and len(figure.legends) == 1
    first, second = figure.axes[0].lines
    assert first.get_linestyle() != second.get_linestyle(), "colour alone tells nothing"
    assert all(len(axes.get_xticks()) > 2 for axes in figure.axes)
    with pytest.raises(UserError, match="no curves"):
        curves_figure({}, Paper())


def test_a_png_has_its_width_in_dots_and_stays_the_sheet_without_options(tmp_path: Path) -> None:
    result = captioned("a dog")
    with (
        Image.open(result.save(tmp_path / "sheet.png")) as sheet,
        Image.open(result.save(tmp_path / "figure.png", width=3, dpi=100)) as light,
        Image.open(result.save(tmp_path / "dark.png", dark=True)) as dark,
    ):
        assert sheet.info["Description"] == "a dog" and light.width == 300 and dark.width == 1950
        assert light.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
        result.model = "weights/photographs"
        assert sheet.tobytes() != Image.open(result.save(tmp_path / "named.png")).tobytes(), "the model is named"
        assert max(dark.convert("RGB").getpixel((0, 0))) < 40


def test_a_figure_can_be_changed_and_keeps_its_text_whoever_saves_it(tmp_path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 40, "pdf.fonttype": 3, "svg.fonttype": "path", "axes.facecolor": "red"}):
        figure = captioned("a dog costs $5 and $6").figure(width=4)
        assert isinstance(figure, Figure) and figure.get_figwidth() == 4
        figure.text(0.5, 0.5, "changed by hand")
        figure.savefig(tmp_path / "own.pdf")
        figure.savefig(tmp_path / "own.svg")
        assert matplotlib.rcParams["font.size"] == 40
    check_svg(tmp_path / "own.svg", 4, ["changed by hand", "a dog costs $5 and $6"], pictures=True)
    content = (tmp_path / "own.pdf").read_bytes()
    assert b"/Type3" not in content and b"/FontFile2" in content
    assert "a dog costs $5 and $6" in text_of_pdf(tmp_path / "own.pdf")


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    for ending in ("pdf", "svg"):
        one, other = (captioned("a dog").save(tmp_path / f"{number}.{ending}", width=2) for number in range(2))
        assert one.read_bytes() == other.read_bytes()


def test_letters_that_matplotlib_lacks_are_written_in_an_installed_typeface(tmp_path: Path) -> None:
    if Letters(JAPANESE).missing:
        pytest.skip("no Japanese typeface is installed (apt-get install fonts-noto-cjk)")
    result = captioned(" ".join(JAPANESE))
    check_svg(result.save(tmp_path / "a.svg"), 6.5, [JAPANESE, "犬"], pictures=True)
    result.save(tmp_path / "a.pdf")
    assert JAPANESE in text_of_pdf(tmp_path / "a.pdf").replace(" ", "")


def test_many_photographs_stay_small_and_dots_that_are_asked_for_are_kept(tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(15))
    assert captioned(words).save(tmp_path / "many.pdf").stat().st_size < SIZE
    figure = captioned("a dog").figure(dpi=100, width=3)
    picture = figure.axes[0].images[0].get_array()
    assert picture.shape[1] == pytest.approx(100 * 3 * figure.axes[0].get_position().width, abs=1)


def test_cells_lie_where_their_regions_look() -> None:
    extent, share = Extent(-1.2, -1.2, 0.8, 0.8), torch.zeros(7, 7)
    share[4, 5] = 1
    yellow = np.asarray(cells(share, (210, 140), extent)).astype(int).sum(axis=2).argmax()
    y, x = divmod(int(yellow), 210)
    x0, y0, x1, y1 = cell(4 * 7 + 5, 7, 7, extent)
    assert x0 <= 2 * (x + 0.5) / 210 - 1 <= x1 and y0 <= 2 * (y + 0.5) / 140 - 1 <= y1


def test_the_part_that_the_model_saw_is_marked_on_all_panels() -> None:
    seen = Extent(-0.5, -1.0, 0.5, 1.0)
    item = captioned("a dog runs").page_item._replace(seen=seen, extent=seen)
    photograph, map_, overlay, _ = rows_figure([[item]], [""], Paper(), Options()).axes
    plain = np.asarray(item.picture.resize((8, 8))).astype(int)
    for axes in (photograph, overlay):
        picture = np.asarray(Image.fromarray(axes.images[0].get_array()).resize((8, 8))).astype(int)
        assert (picture[:, 0] < 0.7 * plain[:, 0] + 2).all(), "it is darker around"
    assert (map_.images[0].get_array()[:, 0] == 0x7F).all()


def test_the_colours_of_a_bar_are_those_of_what_is_drawn() -> None:
    """Over a photograph, as on a page, a weight of 0 has no colour; a map by itself has one for it."""
    for options, colour in (({"maps": False}, "#808080"), ({"maps": True}, "#0d0887")):
        bar = captioned("a dog").figure(words="dog", **options).axes[-1]
        assert to_hex(bar.collections[-1].cmap(0.0)) == colour


def test_any_figure_has_a_title_that_is_asked_for() -> None:
    for result in (captioned("a dog"), ResultList([captioned("a dog")] * 2), classified(None)):
        assert result.figure(title="Ours").texts[0].get_text() == "Ours"
    figure = curves_figure(CURVES, Paper(title="Ours"))
    assert figure.get_suptitle() == "Ours"


@pytest.mark.parametrize("overlay, bars", [("color", 1), ("light", 1), ("cells", 1), ("contours", 0)])
def test_any_view_can_be_drawn(overlay: str, bars: int) -> None:
    assert len(captioned("a dog").figure(overlay=overlay, width=3).axes) == 3 + bars


def test_chosen_words_are_columns_and_what_has_none_is_left_out(capsys: pytest.CaptureFixture) -> None:
    results = ResultList([captioned("a dog runs"), captioned("a horse jumps", "horse.jpg"), captioned("no word")])
    figure = results.figure(words=["Dog", "horse", "cat"])
    told = [text.get_text() for text in figure.texts]
    assert "no word" not in told and {"a dog runs", "a horse jumps"} <= {*told}
    assert {"Dog: map", "Dog", "horse: map", "horse"} <= {*told}, "above each panel"
    lefts = [round(axes.get_position().x0, 3) for axes in figure.axes[:6]]
    assert lefts[:3] == lefts[3:], "there are no gaps"
    assert len(figure.axes) == 2 * 3 + 1  # and the colour bar
    said = capsys.readouterr().err
    assert 'no caption has the word "cat"' in said and "left out of the figure, without a map to show: dog.jpg" in said
    with pytest.raises(UserError, match='no caption has the word "cat"; the words are "a", "dog", "horse", '):
        results.figure(words=["cat"])
    for options, panels in (({}, 3), ({"maps": False}, 2), ({"width": 2}, 2), ({"width": 2, "maps": True}, 3)):
        assert len(captioned("a dog runs").figure(words="dog", **options).axes) == panels + 1  # without room, no map
        told = "maps by themselves are left out: panels would be 0.58 inches wide" in capsys.readouterr().err
        assert told == (options == {"width": 2})
    told = [text.get_text() for text in ResultList([captioned("a dog"), captioned("a dog")]).figure(words="dog").texts]
    assert told[:3] == ["photograph", "dog: map", "dog"], "columns, where each row has the word"


def test_one_scale_for_all_words_has_their_weights_on_its_bar() -> None:
    alpha = torch.zeros(2, 7, 7)
    alpha[0, 3, 3:5], alpha[1] = 0.2, 0.2 / 49  # of any sum: a figure shows shares, as a page does
    result = captioned("sharp even", alpha=alpha)
    for scale, most, label in (
        ("own", 1.0, "share of each map's largest weight"),
        ("one", 0.5, "share of the weight in a region"),
    ):
        figure = result.figure(scale=scale)
        *_, bar = figure.axes
        assert bar.get_xlim() == pytest.approx((0, most))
        assert label in [text.get_text() for text in figure.texts]
    notes = [text.get_text() for text in figure.texts if text.get_text().startswith("p ")]
    assert notes == ["p 0.61 · max 0.5", "p 0.61 · max 0.02 (even)"]
    assert "max: the largest share of the weight in a region; of an even map: 0.02" in figure.texts[-2].get_text()


@pytest.mark.slow
def test_a_figure_is_no_roll_of_paper(capsys: pytest.CaptureFixture) -> None:
    figure = ResultList([captioned("a dog")] * 12).figure(width=50, dpi=10)
    kept = len(figure.axes) // 3
    assert 4 <= kept < 12 and 80 < figure.get_figheight() <= 100
    assert f"the figure shows the first {kept} of 12 images" in capsys.readouterr().err
    with pytest.raises(UserError, match="inches high: draw fewer images"):
        captioned("a dog " * 60 + "runs").figure(width=1, dpi=10)


def test_a_content_word_is_drawn_even_if_its_map_is_even(capsys: pytest.CaptureFixture) -> None:
    flat = torch.ones(3, 7, 7) / 49
    flat[0, 3, 3] = 1.0  # of an article, which pages do not show at rest
    options = {"alpha": flat, "content": [False, True, True]}
    figure = ResultList([captioned("Ein Hund rennt", **options)] * 2).figure()
    notes = [text.get_text() for text in figure.texts]
    assert any(note.startswith("Hund") for note in notes) and not any(note.startswith("Ein · ") for note in notes)
    several = [captioned("Ein Hund"), *[captioned(f"Ein {number}", alpha=None) for number in range(9)]]
    ResultList(several).figure()
    said = capsys.readouterr().err
    assert "without a map to show: " in said and "and 6 more" in said and "Ein 3" not in said


def test_each_image_needs_the_same_methods() -> None:
    with pytest.raises(UserError, match="once for each of them"):
        ResultList([looked("relevance"), looked("rollout"), looked("rollout", photograph="horse.jpg")]).figure()
    figure = ResultList([looked("relevance", "timm:a"), looked("relevance", "timm:b")]).figure()
    assert {"a: map", "b"} <= {text.get_text() for text in figure.texts}


def test_regions_of_hard_attention_boxes_and_films_are_drawn() -> None:
    hard = captioned("a dog", region=torch.tensor([0, 100]))
    assert len(hard.figure().axes[1].patches) == 2  # a dark line and a white one
    item = captioned("a dog").page_item._replace(boxes={"dog": [(-0.5, -0.5, 0.5, 0.5)]})
    assert [len(axes.patches) for axes in caption_figure(item, Paper(), Options()).axes[:3]] == [0, 0, 2]
    film = captioned("a dog", "surfer.jpg", alpha=torch.rand(2, 4, 3, 3))
    film.frames, film.__dict__["picture"] = 4, Image.new("RGB", (400, 100))
    assert [axes.images[0].get_array().shape[:2] for axes in film.figure().axes[:2]] == [(100, 400)] * 2
    photograph, map_, overlay, _ = ResultList([film]).figure(width=4).axes  # one below the other
    assert photograph.get_position().y0 > map_.get_position().y1 > overlay.get_position().y1


def test_a_caption_without_maps_or_words_is_a_picture(tmp_path: Path) -> None:
    assert len(captioned("a dog", alpha=None).figure().axes) == 1
    empty = CaptionResult("a.png", Image.new("RGB", (8, 8)), DecodedCaption("", [], []), "whole")
    empty.save(tmp_path / "empty.pdf")
    with pytest.raises(UserError, match="no maps"):
        ResultList([captioned("a dog", alpha=None)]).figure()


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("a.jpg", {}, "ends in .html"), ("a.html", {"width": 3}, "width applies to figures"),
        ("a.npz", {"dark": True}, "dark applies to figures"), ("a.pdf", {"width": 0}, "width of a figure is 0"),
        ("a.pdf", {"width": float("nan")}, "from 1 to 50"), ("a.svg", {"dpi": 9000}, "dpi of a figure is 9000"),
        ("a.pdf", {"words": "cat"}, 'no caption has the word "cat"'), ("a.pdf", {"scale": "two"}, "scale is two"),
        ("a.pdf", {"head": 1}, "has no option head: it has width, dpi"),
        ("a.pdf", {"overlay": "glow"}, "overlay is glow"),
    ],
)  # fmt: skip
def test_mistakes_are_named_and_nothing_is_written(tmp_path: Path, name: str, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        captioned("a dog").save(tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


def test_maps_are_saved_as_arrays_that_need_no_pickle(tmp_path: Path) -> None:
    result = captioned("a dog")
    with np.load(result.save(tmp_path / "maps.npz"), allow_pickle=False) as found:
        assert {*found} == {"maps", "extent", "words", "probabilities", "text", "image"}
        np.testing.assert_array_equal(found["maps"], result.alpha)
        np.testing.assert_allclose(found["extent"], result.extent)
        assert [*found["words"]] == ["a", "dog"] and str(found["text"]) == "a dog"
        np.testing.assert_allclose(found["probabilities"], np.exp([-0.5, -0.5]))
        assert Path(str(found["image"])).name == "dog.jpg"
    with np.load(classified(Glimpses(torch.rand(2, 2, 1, 4, 4))).save(tmp_path / "a.npz"), allow_pickle=False) as found:
        assert found["locations"].shape == (2, 2) and [*found["names"]] == ["cat", "dog"]
    with pytest.raises(UserError, match="no maps to save"):
        captioned("a dog", alpha=None).save(tmp_path / "b.npz")
    with pytest.raises(UserError, match="each result as an .npz file of its own"):
        ResultList([result]).save(tmp_path / "c.npz")


def test_a_paper_figure_says_what_it_is_on() -> None:
    figure = PaperFigure(Paper(width=3, dpi=50))
    assert figure.get_figwidth() == 3 and figure.dpi == 50

"""Pictures of attention: the light falls where the weight is, and every caption can be drawn."""

import base64
import io
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

from tests import pretend
from vision_attn.system.errors import UserError
from vision_attn.viz import attention
from vision_attn.viz import panel_sheets as drawing
from vision_attn.viz.attention import RIM, attention_sheet, cell, squared, write_sheet
from vision_attn.viz.overlay.scale import light
from vision_attn.viz.page import PageItem, write_page
from vision_attn.viz.panel_sheets import (
    DARK,
    GAP,
    MARGIN,
    PANEL,
    SEAM,
    TITLE,
    VEIL,
    Panel,
    boxed,
    darkened,
    fitted,
    glowing,
    sheet,
)  # fmt: skip
from vision_attn.viz.typeface import Typeface, right_to_left

GRIDS = [(14, 14), (7, 7), (13, 13), (10, 20), (1, 1)]


def grey(width: int = 56, height: int = 56) -> Image.Image:
    return Image.new("RGB", (width, height), (120, 120, 120))


def even(words: int, rows: int = 14, columns: int = 14) -> torch.Tensor:
    return torch.full((words, rows, columns), 1 / (rows * columns))


def panels(page: Image.Image, columns: int, head: int) -> list[Image.Image]:
    """The square panels of a sheet, in reading order; `head` is what stands above them, without the margin."""
    rows = (page.height - 2 * MARGIN - head + GAP) // (TITLE + PANEL + GAP)
    places = [
        (MARGIN + column * (PANEL + GAP), MARGIN + head + row * (TITLE + PANEL + GAP) + TITLE)
        for row in range(rows)
        for column in range(columns)
    ]
    return [page.crop((x, y, x + PANEL, y + PANEL)) for x, y in places]


class Page(HTMLParser):
    """Checks that tags close in order, and keeps what a test asks about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.words, self.sources, self.scripts = [], [], [], 0
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag not in ("meta", "img", "input"):
            self.open.append((tag, attributes.get("class")))
        self.scripts += tag == "script"
        self.sources += [attributes[name] for name in ("src", "href") if name in attributes]
        if attributes.get("class") == "word":
            self.words.append((attributes, []))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == ("span", "word"):
            self.words[-1][1].append(data)

    def spoken(self) -> list[str]:
        return ["".join(text) for _, text in self.words]


@pytest.mark.parametrize("rows, columns", GRIDS)
def test_light_falls_on_the_region_that_has_the_weight(rows, columns):
    """Exhaustively over regions: brightest inside the region, dark four regions away."""
    alpha = torch.eye(rows * columns).reshape(-1, rows, columns)
    lit = light(alpha, 56, 80)
    assert lit.shape == (rows * columns, 56, 80)
    assert torch.allclose(lit.amax((1, 2)), torch.ones(len(lit)))
    down = ((torch.arange(56) + 0.5) * rows / 56).long()
    across = ((torch.arange(80) + 0.5) * columns / 80).long()
    for region, map_ in enumerate(lit):
        row, column = divmod(region, columns)
        y, x = divmod(int(map_.argmax()), 80)
        assert (down[y], across[x]) == (row, column)
        far = ((down - row).abs() >= 4)[:, None] | ((across - column).abs() >= 4)[None, :]
        assert not far.any() or map_[far].max() < 0.01


def test_even_attention_is_even_light_and_light_follows_weight():
    assert torch.allclose(light(even(1), 224, 224), torch.ones(1, 224, 224))
    halves = torch.zeros(1, 14, 14)
    halves[0, 2, 2], halves[0, 11, 11] = 0.75, 0.25
    lit = light(halves, 140, 140)[0]
    assert lit[115, 115] / lit[25, 25] == pytest.approx(1 / 3, abs=0.01)
    assert torch.allclose(light(halves, 140, 140), light(halves * 7, 140, 140))  # only shares count


def test_light_has_no_bumps_between_regions():
    """A row of equal weights is lit evenly along its length: the Gaussians are wide enough to melt into one."""
    row = torch.zeros(1, 14, 14)
    row[0, 7] = 1 / 14
    along = light(row, 224, 224)[0, 120]
    assert along.max() - along.min() < 1e-4


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_what_is_no_weight_counts_as_none(bad, tmp_path):
    alpha = even(2)
    alpha[0, :7], alpha[1] = bad, bad
    lit = light(alpha, 56, 56)
    assert lit.isfinite().all()
    assert lit[0, :20].max() < 0.05 and lit[0, 40:].min() > 0.95
    assert lit[1].max() == 0
    page = attention_sheet(grey(), ["half", "none"], alpha, overlay="light")
    dark = panels(page, 3, head=84)[2]
    assert dark.getextrema() == darkened(fitted(grey())).getextrema()
    write_page(tmp_path / "page.html", [PageItem("grey", grey(), ["half", "none"], alpha)])
    assert "looks nowhere" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("rows, columns", [(14, 14), (7, 7), (10, 20)])
def test_a_map_that_is_nearly_uniform_has_no_place(rows, columns, tmp_path, monkeypatch):
    """Within 5% of the largest entropy, log L, its brightest region is noise; half a picture is a place."""
    shares = torch.linspace(0, 0.4, 21)
    spot = torch.zeros(rows, columns)
    spot[0, 0] = 1
    alpha = (1 - shares)[:, None, None] * even(1, rows, columns) + shares[:, None, None] * spot
    part = -torch.special.xlogy(alpha, alpha).sum((1, 2)) / math.log(rows * columns)
    assert 3 < (part >= 0.95).sum() < 18
    half = torch.zeros(1, rows, columns)
    half[:, : rows // 2] = 1
    words, alpha = ["word"] * 22, torch.cat([3 * alpha, half])  # only shares count
    write_page(tmp_path / "page.html", [PageItem("grey", grey(), words, alpha)])
    told = [attributes["data-told"] for attributes, _ in Page((tmp_path / "page.html").read_text()).words]
    places = ["looks nearly everywhere" if nearly else "looks top left" for nearly in part >= 0.95] + ["looks top left"]
    assert [line.split(" · ")[1] for line in told] == places

    sheets = pretend.sheets(monkeypatch)
    attention_sheet(grey(), words, alpha)
    attention_sheet(grey(), ["word"], half)
    attention_sheet(grey(), ["dog"], half, boxes={"dog": [(0, 0, 1, 1)], "cat": []})
    attention_sheet(grey(), ["cat"], half, boxes={"dog": [(0, 0, 1, 1)], "cat": []})
    attention_sheet(grey(), ["dog"], half, boxes={"dog": [(0, 0, 1, 1)]}, truth="the object of this hop")
    attention_sheet(grey(), ["a", "b", "c"], torch.cat([0 * half, half, even(1, rows, columns)]))
    attention_sheet(grey(), ["dog"], half, log_prob=[-1.0])
    assert [remark for _, remark in sheets] == [
        f"even (no region stands out): {(part >= 0.95).sum()} of 22 maps",
        "",
        "boxes: objects of which a word is true",
        "",
        "boxes: the object of this hop",
        "zero (no weight anywhere): 1 of 3 maps · even (no region stands out): 1 of 3 maps",
        "p: probability",
    ]


def test_a_remark_stands_after_a_title_that_is_cut_where_need_be():
    """Long names give way to it; the sheet does not grow."""
    panel = [drawing.Panel(grey(224, 224)), drawing.Panel(grey(224, 224))]
    bare = drawing.sheet(panel, caption="dog", title="a.jpg")
    told = drawing.sheet(panel, caption="dog", title="a.jpg", remark="even (no region stands out): 1 of 1 maps")
    long = [
        drawing.sheet(panel, caption="dog", title="a" * length, remark="even (no region stands out): 1 of 1 maps")
        for length in (300, 400)
    ]
    assert bare.size == told.size == long[0].size and bare.tobytes() != told.tobytes()
    assert long[0].tobytes() == long[1].tobytes() != drawing.sheet(panel, caption="dog", title="a" * 300).tobytes()


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("a dog.jpg", "07-a-dog.png"),
        ("-rf.jpg", "07--rf.png"),
        ("a\nb\x1b[2J\t.jpg", "07-a-b-[2J-.png"),
        ("\udcff.jpg", "07--.png"),
        ("image ../../etc/passwd", "07-passwd.png"),
        ("éé 猫.jpg", "07-éé-猫.png"),
        ("..", "07-...png"),
        ("é" * 125 + ".jpg", "07-" + "é" * 75 + ".png"),
    ],
)
def test_pictures_have_names_that_any_file_system_takes(title, name):
    assert drawing.picture_name(7, title) == name


def test_sheet_lights_the_hot_region_of_each_word_and_leaves_the_rest_dark():
    alpha = torch.zeros(3, 14, 14)
    hot = [(2, 2), (2, 11), (11, 6)]
    for turn, (row, column) in enumerate(hot):
        alpha[turn, row, column] = 1
    page = attention_sheet(grey(), ["one", "two", "three"], alpha, overlay="light")
    plain, *lit = panels(page, 4, head=56)
    assert plain.getextrema() == ((120, 120),) * 3
    dark = darkened(grey()).getpixel((0, 0))[0]
    for (row, column), panel in zip(hot, lit, strict=True):
        for y, x in hot:
            value = panel.getpixel((x * 16 + 8, y * 16 + 8))[0]
            assert value > 120 if (y, x) == (row, column) else value == dark


@pytest.mark.parametrize("number", [1, 2, 5, 6, 26])
@pytest.mark.parametrize("size", [(224, 224), (224, 112)])
def test_a_sheet_shows_every_picture_whole_and_in_reading_order(number, size):
    colours = [(40 + 8 * place, 90, 240 - 8 * place) for place in range(number)]
    pictures = [drawing.Panel(Image.new("RGB", size, colour), "dog") for colour in colours]
    page = np.asarray(drawing.sheet(pictures, caption="dog", title="a.jpg"))
    places = []
    for colour in colours:
        rows, columns = np.nonzero((page == colour).all(axis=2))
        places.append((rows.min(), columns.min()))
        assert (columns.max() - columns.min() + 1, rows.max() - rows.min() + 1) == size
        assert len(rows) == size[0] * size[1]  # nothing lies on it
    assert places == sorted(places)
    down, across = (len(set(starts)) for starts in zip(*places, strict=True))
    assert across <= 10 and 0 <= down * across - number < across  # no empty row
    assert number < 2 or page.shape[1] > page.shape[0]


@pytest.mark.parametrize("words", [0, 1, 25])
@pytest.mark.parametrize("rows, columns", [(14, 14), (10, 20)])
def test_a_sheet_has_a_picture_for_each_word_and_one_without_light(rows, columns, words):
    page = attention_sheet(grey(), ["dog"] * words, even(words, rows, columns), caption="dog", title="a.jpg")
    pictures = [drawing.Panel(fitted(grey()), "dog")] * (words + 1)
    bar = attention.scale_bar(even(words, rows, columns), "color", "own") if words else None
    assert page.size == drawing.sheet(pictures, caption="dog", title="a.jpg", bar=bar).size


def test_title_words_and_probabilities_are_drawn():
    plain = attention_sheet(grey(), ["dog"], even(1), caption="dog")
    assert plain.tobytes() != attention_sheet(grey(), ["cat"], even(1), caption="dog").tobytes()
    assert plain.tobytes() != attention_sheet(grey(), ["dog"], even(1), caption="cat").tobytes()
    as_list = attention_sheet(grey(), ["dog"], even(1), caption="dog", log_prob=[-0.5])
    as_tensor = attention_sheet(grey(), ["dog"], even(1), caption="dog", log_prob=torch.tensor([-0.5]))
    assert plain.tobytes() != as_list.tobytes() == as_tensor.tobytes()
    spot = torch.zeros(1, 14, 14)
    spot[0, 3, 3] = 1
    titled = attention_sheet(grey(), ["dog"], spot, title="a.jpg")
    assert titled.height > attention_sheet(grey(), ["dog"], spot).height


def test_pictures_of_any_shape_size_and_mode():
    assert fitted(grey(56, 56)).size == (224, 224)
    assert fitted(grey(417, 417)).size == (224, 224)
    assert fitted(grey(300, 150)).size == (224, 112)
    assert fitted(grey(1, 400)).size == (1, 224)
    two = Image.new("RGB", (56, 56), "red")
    two.paste("blue", (28, 0, 56, 56))
    assert len(fitted(two).getcolors()) == 2  # drawn edges stay sharp
    for mode in ("L", "RGBA", "P", "CMYK", "1"):
        assert attention_sheet(Image.new(mode, (30, 60)), ["dog"], even(1)).mode == "RGB"


def test_boxes_are_drawn_on_the_word_that_names_the_thing():
    boxes = {"dog": [(-0.5, -0.5, 0.5, 0.5), torch.tensor([0.6, 0.6, 2.0, 1.0])]}
    alpha = torch.zeros(2, 14, 14)
    _, a, dog = panels(attention_sheet(grey(), ["a", "dog"], alpha, boxes=boxes), 3, head=84)
    accent = tuple(bytes.fromhex(DARK.accent[1:]))
    assert accent not in [colour for _, colour in a.getcolors()]
    assert dog.getpixel((56, 112)) == dog.getpixel((167, 112)) == dog.getpixel((112, 56)) == accent
    assert dog.getpixel((223, 200)) == accent  # what reaches over the edge is drawn at the edge
    assert dog.getpixel((112, 112)) != accent
    assert boxed(grey(), []).tobytes() == grey().tobytes()


def test_glow_keeps_the_picture_under_a_veil():
    picture = Image.new("RGB", (8, 8), (200, 40, 0))
    lit = glowing(picture, torch.eye(8))
    red, green, blue = lit.getpixel((3, 3))
    assert red > 200 and green > 40 and blue > 0 and red > green > blue
    assert lit.getpixel((3, 4)) == darkened(picture).getpixel((3, 4))


@pytest.mark.parametrize(
    "words",
    [
        ["кошка", "на", "ковре"],
        ["茶色", "の", "犬"],
        ["सफ़ेद", "कुत्ता"],
        ["😀", "👩‍👩‍👧", "e\u0301", "\u200f"],
        ["\ud800", "\x00", "a\nb", "\u2028", "", " "],
        ["Donaudampfschifffahrtsgesellschaftskapitänswitwe" * 4],
        ["<script>alert(1)</script>", "{{figures}}", '"&amp;"', "\\1 $title"],
    ],
)
def test_every_word_is_drawn_and_written(words, tmp_path):
    alpha = even(len(words))
    page = attention_sheet(grey(), words, alpha, title=" ".join(words))
    assert page.width <= 2 * MARGIN + 10 * (PANEL + GAP)
    path = write_page(tmp_path / "page.html", [PageItem(" ".join(words), grey(), words, alpha, references=words)])
    read = Page(path.read_bytes().decode())
    assert read.scripts == 1  # the page's own
    assert read.spoken() == [word.encode("utf-8", "replace").decode() for word in words]


def test_captions_from_right_to_left_run_from_right_to_left():
    alpha = torch.zeros(2, 14, 14)
    alpha[0] = 1
    seen = panels(attention_sheet(grey(), ["سگ", "dog"], alpha, overlay="light"), 3, head=84)
    assert [panel.getpixel((9, 9))[0] for panel in seen] == [72, 174, 120]  # dark, lit, plain
    assert right_to_left("12 שלום") and not right_to_left("dog سگ") and not right_to_left("12")


def test_accents_go_before_letters_do(monkeypatch, capsys):
    """Without a typeface that has the letter, é is set as e; a letter without a base becomes a box; a line says so."""
    monkeypatch.setattr(Typeface, "FILES", ("no-such-typeface.ttf",))  # a machine without one that has the letter
    accented = attention_sheet(grey(), ["café"], even(1))
    assert accented.tobytes() == attention_sheet(grey(), ["cafe"], even(1)).tobytes()
    assert not capsys.readouterr().err
    attention_sheet(grey(), ["ሀ"], even(1))  # of a script that no other test draws: each is told once in a process
    attention_sheet(grey(), ["ለ"], even(1))
    assert capsys.readouterr().err.count("boxes in place of letters such as ሀ") == 1


def test_long_captions_are_broken_between_words_and_lose_none():
    type_ = Typeface("a")
    words = [f"word{number}" for number in range(40)]
    lines = type_.wrapped(" ".join(words), 30, 600)
    assert " ".join(lines).split() == words
    widths = [type_.width(line, 30) for line in lines]
    assert max(widths) <= 600 and min(widths) > 0.5 * max(widths)
    assert type_.wrapped("", 30, 600) == []
    lines = type_.wrapped("一个绿色圆形。" * 20 + " abc", 30, 300)
    assert "".join(lines).replace(" ", "") == "一个绿色圆形。" * 20 + "abc" and len(lines) > 3
    assert not any(line.startswith("。") or "…" in line for line in lines)
    assert type_.width(type_.shortened("w" * 500, 30, 100), 30) <= 100


def test_same_input_same_bytes(tmp_path):
    for folder in ("a", "b"):
        write_sheet(tmp_path / folder / "sheet.png", grey(300, 300), ["dog"], even(1))
        write_page(tmp_path / folder / "page.html", [PageItem("a", grey(300, 300), ["dog"], even(1))])
    for name in ("sheet.png", "page.html"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"sheet.png", "page.html"}
    assert Image.open(tmp_path / "a" / "sheet.png").format == "PNG"


def test_page_holds_everything_and_loads_nothing(tmp_path):
    photograph = Image.effect_noise((600, 600), 60).convert("RGB")
    hot = torch.zeros(2, 10, 20)
    hot[0, 0, 19], hot[1] = 1, 1 / 200
    boxes = {"dog": [(-1.0, -0.5, 0.0, 0.5)]}
    items = [
        PageItem("a.jpg", photograph, ["dog", "runs"], hot, ["A dog & a cat."], boxes, torch.tensor([-0.1, -2.0])),
        PageItem("b.png", grey(), [], torch.zeros(0, 14, 14)),
    ]
    text = write_page(tmp_path / "page.html", items, title="Dogs <3").read_text()
    assert not re.search('https?:|@import|url\\((?!"data:)', text)
    assert "A box is an object of which the word is true." in text
    assert "<summary>Reference captions (1)</summary>" in text
    assert "Dogs &lt;3" in text and "A dog &amp; a cat." in text and "no words" in text
    read = Page(text)
    kinds = [source.split(",")[0] for source in read.sources]
    assert kinds == ["data:image/jpeg;base64", "data:image/png;base64"]
    stored = Image.open(io.BytesIO(base64.b64decode(read.sources[0].split(",")[1])))
    assert stored.size == (448, 448)
    (dog, _), (runs, _) = read.words
    assert dog["id"] == "image-1-word-1" and runs["id"] == "image-1-word-2"
    map_ = base64.b64decode(dog["data-map"])
    assert len(map_) == 200 and [place for place, value in enumerate(map_) if value] == [19] and map_[19] == 255
    assert set(base64.b64decode(runs["data-map"])) == {255}
    assert "top right" in dog["data-told"] and "p 0.90" in dog["data-told"] and "everywhere" in runs["data-told"]
    assert dog["data-boxes"] == "0.00 25.00 50.00 50.00" and runs["data-boxes"] == ""
    assert [word["tabindex"] for word, _ in read.words] == ["0", "-1"]


def peaked(*entropies: float) -> torch.Tensor:
    """A map for each number: of 8 x 8 regions, one that has the weight that an even map would not give it."""
    maps = torch.stack([torch.full((8, 8), share / 64) for share in entropies])
    maps[:, 3, 5] += 1 - torch.tensor(entropies)
    return maps


@pytest.mark.parametrize(
    ("words", "alpha", "rest"),
    [
        (["a", "dog", "runs"], peaked(0.1, 0.6, 0.4), 3),
        (["A", "Dog", "The", "."], peaked(0.1, 0.6, 0, 0), 2),
        (["the", "dog", "runs"], peaked(0.1, 0.99, 1), None),  # both nearly even
        (["with", "a"], peaked(0.1, 0.1), None),
        (["dog", "runs"], torch.stack([torch.zeros(8, 8), peaked(0.7)[0]]), 2),  # a map of zeros shows nothing
        (["dog", "runs"], peaked(0.5, 0.5) * torch.tensor([1.0, 9.0])[:, None, None], 1),  # whatever its sum
        (["dog"], torch.ones(1, 1, 1), None),
        ([], torch.zeros(0, 8, 8), None),
        (["dog"], None, None),
    ],
)
def test_page_at_rest_shows_the_sharpest_map_of_a_content_word(tmp_path, words, alpha, rest):
    text = write_page(tmp_path / "page.html", [PageItem("a", grey(), words, alpha)]).read_text()
    assert re.findall(r'<figure id="image-1"[^>]* data-rest="(\d+)"', text) == [str(rest)] * (rest is not None)


def test_page_at_rest_leaves_out_the_function_words_of_other_languages(tmp_path):
    words, alpha = ["ein", "hund", "auf", "gras"], peaked(0.1, 0.6, 0.1, 0.4)
    for content, rest in ((None, "1"), ([False, True, False, True], "4")):
        item = PageItem("a", grey(), words, alpha, content=content)
        text = write_page(tmp_path / "page.html", [item]).read_text()
        assert re.findall(r'<figure id="image-1"[^>]* data-rest="(\d+)"', text) == [rest]


def test_lines_at_rest_are_plain(tmp_path):
    """A transcript is read with its line, which light on one character would hide."""
    item = PageItem("a", grey(), ["4", "2"], peaked(0.1, 0.2))
    assert "data-rest=" not in write_page(tmp_path / "page.html", [item], unit="character").read_text()


def test_lines_are_put_under_each_other(tmp_path):
    """And photographs next to each other."""
    for width, layout in ((300, "many"), (900, "strips")):
        items = [PageItem("a", grey(width, 300), ["dog"], even(1))] * 3
        assert f'<main class="{layout}"' in write_page(tmp_path / "page.html", items).read_text()


def test_page_of_sixty_stays_small(tmp_path):
    items = [PageItem(f"{number}.jpg", grey(224, 224), ["dog"] * 12, even(12)) for number in range(60)]
    path = write_page(tmp_path / "page.html", items)
    read = Page(path.read_text())
    assert len(read.words) == 720 and len({word["id"] for word, _ in read.words}) == 720
    assert path.stat().st_size < 1_000_000


def test_mistakes_are_named(tmp_path):
    with pytest.raises(UserError, match="a.jpg: 2 words but 3 maps"):
        attention_sheet(grey(), ["a", "dog"], even(3), title="a.jpg")
    with pytest.raises(UserError, match="a.jpg: 1 words but 2 log-probabilities"):
        attention_sheet(grey(), ["dog"], even(1), title="a.jpg", log_prob=[0.0, 0.0])
    with pytest.raises(UserError, match="no region"):
        attention_sheet(grey(), ["dog"], torch.zeros(1, 0, 14))
    with pytest.raises(UserError, match="b.jpg: 1 words but 2 maps"):
        write_page(tmp_path / "page.html", [PageItem("b.jpg", grey(), ["dog"], even(2))])
    with pytest.raises(UserError, match="b.jpg: 1 words but 2 regions"):
        write_page(tmp_path / "page.html", [PageItem("b.jpg", grey(), ["dog"], even(1), regions=torch.tensor([0, 0]))])
    for outside in (-1, 200):
        with pytest.raises(UserError, match=f"a.jpg: region {outside} is outside the 10x20 grid; .* 0 to 199"):
            attention_sheet(grey(), ["dog"], even(1, 10, 20), title="a.jpg", regions=torch.tensor([outside]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rows, columns", GRIDS)
def test_square_lights_the_cell_of_its_region_alone(rows, columns):
    """Lit inside, a white line around, nothing elsewhere: in corners, where the line is cut, and in the middle."""
    for region in {0, columns - 1, (rows // 2) * columns + columns // 2, rows * columns - 1}:
        row, column = divmod(region, columns)
        left, right = round(240 * column / columns), round(240 * (column + 1) / columns)
        top, bottom = round(168 * row / rows), round(168 * (row + 1) / rows)
        seen = squared(Image.new("RGB", (240, 168)), cell(region, rows, columns))
        line = (max(left - RIM, 0), max(top - RIM, 0), min(right + RIM, 240), min(bottom + RIM, 168))
        assert seen.getbbox() == line
        assert seen.getpixel(line[:2]) == seen.getpixel((line[2] - 1, line[3] - 1)) == (255,) * 3
        assert seen.getpixel(((left + right) // 2, (top + bottom) // 2))[0] == pytest.approx(255 * VEIL, abs=1)


def test_sheet_of_hard_attention_shows_square_and_map_of_each_word_as_a_pair():
    alpha, regions = torch.zeros(2, 14, 14), torch.tensor([2 * 14 + 3, 195])
    alpha[0, 10, 10], alpha[1, 5, 5] = 1, 1
    boxes = {"dog": [(-0.5, -0.5, 0.5, 0.5)]}
    plain, *soft = panels(attention_sheet(grey(), ["a", "dog"], alpha, boxes=boxes), 3, head=84)
    page = attention_sheet(grey(), ["a", "dog"], alpha, boxes=boxes, regions=regions)
    foot = page.height - (2 * MARGIN + 84 + TITLE + 2 * PANEL + SEAM)
    assert 0 < foot < PANEL  # the scale
    above = panels(page, 3, head=84)
    below = panels(page.crop((0, PANEL + SEAM, page.width, page.height)), 3, head=84)
    assert above[0].tobytes() == plain.tobytes()
    assert [map_.tobytes() for map_ in below[1:]] == [map_.tobytes() for map_ in soft]
    for region, word, square in zip(regions, ("a", "dog"), above[1:], strict=True):
        expected = boxed(squared(plain, cell(int(region), 14, 14)), boxes.get(word, ()))
        assert square.tobytes() == expected.tobytes()


def test_page_of_hard_attention_outlines_the_drawn_region_and_tells_where(tmp_path):
    boxes = {"dog": [(-1.0, -0.5, 0.0, 0.5)]}
    soft = PageItem("a", grey(), ["a", "dog"], even(2, 10, 20), boxes=boxes)
    drawn = soft._replace(regions=torch.tensor([0, 199]))
    text = write_page(tmp_path / "hard.html", [soft, drawn]).read_text()
    words = [attributes for attributes, _ in Page(text).words]
    assert [word["data-boxes"] for word in words[2:]] == [
        "0.00 0.00 5.00 10.00",
        "0.00 25.00 50.00 50.00;95.00 90.00 5.00 10.00",
    ]
    assert "saw top left" in words[2]["data-told"] and "saw bottom right" in words[3]["data-told"]
    assert words[1]["data-boxes"] == "0.00 25.00 50.00 50.00" and "drawn" not in words[1]["data-told"]
    assert text.count('class="drawn hard"') == 1 and ".hard .boxes" in text
    assert ".hard" not in write_page(tmp_path / "soft.html", [soft]).read_text()


def test_half_precision_and_gradients_are_welcome():
    alpha = even(1).bfloat16().requires_grad_()
    assert attention_sheet(grey(), ["dog"], alpha).tobytes() == attention_sheet(grey(), ["dog"], even(1)).tobytes()


def test_real_photograph(data_folder, tmp_path):
    photographs = sorted((data_folder / "flickr8k" / "images").glob("*.jpg"))[:1]
    if not photographs:
        pytest.skip(f"{data_folder} has no flickr8k/images")
    photograph = Image.open(photographs[0])
    alpha = torch.zeros(1, 14, 14)
    alpha[0, 7, 7] = 1
    plain, lit = panels(attention_sheet(photograph, ["dog"], alpha), 2, head=56)
    assert plain.tobytes() == fitted(photograph).tobytes() == photograph.convert("RGB").tobytes()
    path = write_page(tmp_path / "page.html", [PageItem(photographs[0].name, photograph, ["dog"], alpha)])
    assert path.stat().st_size < 100_000


def test_the_words_whose_map_is_nearly_even_are_marked():
    alpha = torch.full((2, 2, 2), 0.25)
    alpha[1] = torch.tensor([[0.9, 0.1], [0, 0]])
    assert attention._notes(["a", "dog"], alpha, [0.0, math.log(0.5)]) == [
        "even, max 0.25 · p 1.00",
        "max 0.9 · p 0.50",
    ]
    assert attention._notes(["a", "dog"], alpha, None) == ["even, max 0.25", "max 0.9"]
    assert attention._notes(["a"], None, None) == [""]


def test_a_word_has_room_before_its_numbers() -> None:
    narrow = Image.new("RGB", (149, 224))
    whole, short = ([Panel(narrow), Panel(narrow, "woman", note)] for note in ("max 0.087 · p 0.76", "max 0.087"))
    assert sheet(whole, caption="").tobytes() == sheet(short, caption="").tobytes()

"""Pictures of an earlier call do not stay among new ones; nothing else is removed."""

import hashlib
import json
from pathlib import Path

import pytest
from PIL import Image

from vision_attn.commands._old_pictures import old_pictures_removed, others_kept
from vision_attn.system.errors import UserError
from vision_attn.system.files import replacing
from vision_attn.system.inputs import inputs_kept, reads, writes
from vision_attn.viz.html import write_html
from vision_attn.viz.panel_sheets import save_animation, save_picture


def call(folder: Path, *names: str, page: str = "<p>a</p>", level: int = 0) -> None:
    """What a command writes: a page, and pictures."""
    with old_pictures_removed(folder):
        folder.mkdir(exist_ok=True)
        (folder / "index.html").write_text(page)
        for name in names:
            Image.new("L", (2, 2), level).save(folder / name)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"index.html"}


def test_old_pictures_go_and_other_files_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(tmp_path / "out", "01-a.png", "02-b.png", "02-b.gif")
    mine = tmp_path / "out" / "mine.png"
    Image.new("L", (2, 2)).save(mine)
    (tmp_path / "out" / "notes.txt").write_text("a")
    call(tmp_path / "out", "01-c.png", "02-b.png")
    assert names(tmp_path / "out") == {"01-c.png", "02-b.png", "mine.png", "notes.txt"}
    assert capsys.readouterr().err == f"vision-attn: removed 2 pictures of an earlier call from {tmp_path / 'out'}\n"
    call(tmp_path / "out")
    assert names(tmp_path / "out") == {"mine.png", "notes.txt"}
    digest = hashlib.sha256(b"<p>a</p>").hexdigest()
    assert (tmp_path / "out" / "index.html").read_text() == f'<p>a</p><!-- pictures: {{"index.html": "{digest}"}} -->\n'


def test_what_has_changed_since_is_kept(tmp_path: Path) -> None:
    """A picture that somebody put in the place of ours, a link, and an input of this call."""
    call(tmp_path, "01-a.png", "02-b.png", "03-c.png", "04-d.png")
    Image.new("L", (2, 2), 9).save(tmp_path / "01-a.png")
    (tmp_path / "02-b.png").rename(tmp_path / "elsewhere.png")
    (tmp_path / "02-b.png").symlink_to(tmp_path / "elsewhere.png")
    with inputs_kept():
        reads(tmp_path / "03-c.png")
        call(tmp_path, "01-e.png")
    assert names(tmp_path) == {"01-a.png", "02-b.png", "03-c.png", "01-e.png", "elsewhere.png"}


def test_a_list_of_anyone_removes_nothing_elsewhere(tmp_path: Path) -> None:
    """Nor does one that is none; and a name that ends a comment ends none."""
    Image.new("L", (2, 2)).save(outside := tmp_path / "outside.png")
    folder = tmp_path / "out"
    call(folder, odd := "01---><b>.png")
    digest = json.loads((folder / "index.html").read_text().split("<!-- pictures: ")[1].split(" -->")[0])[odd]
    for told in ({"../outside.png": digest}, {str(outside): digest}, {"notes.txt": digest}, [odd], {odd: 1}):
        (folder / "notes.txt").write_bytes(outside.read_bytes())
        (folder / "index.html").write_text(f"<!-- pictures: {json.dumps(told).replace('>', chr(92) + 'u003e')} -->")
        call(folder, "01-b.png")
    assert outside.is_file() and names(folder) == {odd, "01-b.png", "notes.txt"}


def test_a_call_that_fails_or_draws_nothing_removes_nothing(tmp_path: Path) -> None:
    call(tmp_path, "01-a.png")
    with pytest.raises(ValueError), old_pictures_removed(tmp_path):
        (tmp_path / "index.html").write_text("half")
        raise ValueError
    assert names(tmp_path) == {"01-a.png"}
    call(tmp_path, "01-a.png")
    with old_pictures_removed(tmp_path):
        pass
    assert names(tmp_path) == {"01-a.png"}


def test_nothing_is_replaced_but_what_an_earlier_call_wrote(tmp_path: Path) -> None:
    """Neither a page or a picture of anyone, nor one that has changed since; the call says so before it begins."""

    def refused(name: str) -> None:
        before = (tmp_path / name).read_bytes()
        with inputs_kept():
            others_kept(tmp_path)
            with pytest.raises(UserError, match=f"{name} would be replaced, but vision-attn did not write it"):
                writes(tmp_path / name, "--out")
            with pytest.raises(UserError), replacing(tmp_path / name) as temporary:
                temporary.write_bytes(b"new")
        assert (tmp_path / name).read_bytes() == before

    (tmp_path / "index.html").write_text("my notes")
    Image.new("L", (2, 2)).save(tmp_path / "01-a.png")
    refused("index.html")
    refused("01-a.png")
    for _ in range(2):  # the same command again
        call(tmp_path, "01-a.png")
        with inputs_kept():
            others_kept(tmp_path)
            writes(tmp_path / "index.html", "--out")
            writes(tmp_path / "01-a.png", "--out")
    page = (tmp_path / "index.html").read_text()
    (tmp_path / "index.html").write_text(page.replace("<p>a</p>", "<p>my notes</p>"))
    refused("index.html")
    Image.new("L", (2, 2), 9).save(tmp_path / "01-a.png")
    refused("01-a.png")


@pytest.mark.parametrize("page_first", [True, False])
def test_a_call_after_one_that_was_interrupted_replaces_what_it_drew(tmp_path: Path, page_first: bool) -> None:
    with pytest.raises(KeyboardInterrupt), old_pictures_removed(tmp_path):
        if page_first:
            (tmp_path / "index.html").write_text("a")
        Image.new("L", (2, 2)).save(tmp_path / "01-a.png")
        raise KeyboardInterrupt
    with inputs_kept():
        others_kept(tmp_path)
        writes(tmp_path / "index.html", "--out")
        writes(tmp_path / "01-a.png", "--out")
    call(tmp_path, "01-b.png")
    assert names(tmp_path) == {"01-b.png"}


def test_a_call_after_one_that_was_killed_replaces_what_it_drew(tmp_path: Path) -> None:
    """It left pictures and a page without a list, which say what wrote them."""
    drawn = Image.new("RGB", (8, 8))
    save_picture(tmp_path / "01-a.png", drawn)
    save_animation(tmp_path / "01-a.gif", [drawn, Image.new("RGB", (8, 8), "red")], None, [100, 100])
    write_html(tmp_path / "index.html", "figures.html", title="x", guide="", rows=[])
    with inputs_kept():
        others_kept(tmp_path)
        for name in ("01-a.png", "01-a.gif", "index.html"):
            writes(tmp_path / name, "--out")

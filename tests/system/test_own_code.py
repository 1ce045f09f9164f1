"""Functions of the user's own, named as `module:function`."""

import sys
from pathlib import Path

import pytest
from PIL import Image

from vision_attn.commands import main
from vision_attn.system.errors import UserError
from vision_attn.system.own_code import own_function


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the current folder, as for the installed command: the folder is not on Python's path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    assert not {"", str(tmp_path)} & set(sys.path)
    file = tmp_path / "mine.py"
    file.write_text("def edges(image, text):\n    return image.mean(dim=0)\n")
    return file


def test_a_module_lies_in_the_current_folder_for_one_import(mine: Path) -> None:
    before = list(sys.path)
    assert own_function("mine:edges").__name__ == "edges" and sys.path == before
    with pytest.raises(UserError, match=r"mine:egdes: there is no egdes in .*mine.py; did you mean edges\?$"):
        own_function("mine:egdes")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none_such:f", "there is no module none_such in the current folder, on PYTHONPATH, or among the installed"),
        ("mine.below:f", "there is no module mine.below in the current folder"),
        ("needs:f", "needs:f cannot be imported: No module named 'none_such'"),
        ("wrong:f", r"wrong.py, line 1: "),
    ],
)
def test_what_cannot_be_imported_is_said(name: str, said: str, mine: Path) -> None:
    Path("needs.py").write_text("import none_such\n")
    Path("wrong.py").write_text("def f(:\n")
    with pytest.raises(UserError, match=said):
        own_function(name)


def test_a_method_of_measure_lies_there_too(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.effect_noise((64, 64), 50).save("a.png")
    options = ["--weights=none", "--best=0", "--sanity=0", "--steps=2"]
    assert main(["measure", "squeezenet1_1", "a.png", "--method=mine:edges", "--trust=mine", *options]) == 0
    assert capsys.readouterr().out.startswith("mine:edges\t")

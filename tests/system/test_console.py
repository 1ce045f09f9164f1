"""What is printed cannot disturb a terminal, and long work shows how far it is."""

import io
import sys

import pytest
from tqdm import tqdm

from tests import pretend
from vision_attn import commands
from vision_attn.system.console import complain, printable, progress, say
from vision_attn.system.errors import UserError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a cat.jpg", "a cat.jpg"),
        ("a\nfake.jpg\tA cat.jpg", "a\\nfake.jpg\\tA cat.jpg"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("\udc9b2J \udcff", "\\x9b2J \udcff"),
        ("half \ud83d, \udd00", "half \\ud83d, \\udd00"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("line\u2028separator", "line\\u2028separator"),
        ("été 猫 كلب 👩‍🚀", "été 猫 كلب 👩‍🚀"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_of_columns_and_complaints_are_escaped(capsys: pytest.CaptureFixture) -> None:
    say("a\tb\n.jpg", "a dog\x1b")
    complain("a\nb")
    captured = capsys.readouterr()
    assert captured.out == "a\\tb\\n.jpg\ta dog\\x1b\n" and captured.err == "vision-attn: a\\nb\n"


def test_progress_in_a_pipe_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    list(progress(range(5), what="short", unit="image"))
    assert sys.stderr.getvalue() == ""
    pretend.progress_at_once(monkeypatch)
    bar = progress(what="annotation vectors", unit="image", total=8, initial=2)
    bar.update(2)
    bar.update(4)
    bar.close()
    lines = sys.stderr.getvalue().splitlines()
    assert lines and all(line.startswith("annotation vectors: ") for line in lines)
    assert "8/8" in lines[-1] and "image/s" in lines[-1] and "\r" not in sys.stderr.getvalue()


def test_nothing_of_a_bar_is_left_below_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    tqdm._instances.clear()  # bars of tests before this one, below which it would be drawn
    items = iter(progress(range(3), what="look", unit="image"))  # held by the error's traceback
    next(items)
    assert commands._tell(UserError("no such method")) == 1
    shown = sys.stderr.getvalue()
    assert "look:   0%" in shown and shown.endswith("\rvision-attn: error: no such method\n")


def test_closed_outputs_cost_nothing_but_what_they_would_have_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is started with 2>&- has no sys.stderr at all."""
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(sys, "stdout", None)
    say("a")
    complain("b")
    with progress(what="c", unit="image", total=2) as bar:
        bar.update(2)
    assert list(progress(range(3), what="c", unit="image")) == [0, 1, 2]

"""The advice at the end of a training: no config that would refuse its words."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import pretend
from vision_attn.commands import main
from vision_attn.commands.caption import remarks
from vision_attn.data.vocabulary import Vocabulary


@pytest.mark.parametrize(("words", "advised"), [([], True), (["--data.words=cased"], False)])
def test_the_config_for_few_photographs_is_left_out_where_it_refuses(
    words: list[str], advised: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend.trained(monkeypatch, same_caption=1.0)
    assert main(["train", "sat_soft_small", f"--run.folder={tmp_path / 'run'}", *words]) == 0
    said = capsys.readouterr().out
    assert "100% of the images have the same caption" in said and ("finetune_photographs" in said) == advised


@pytest.mark.parametrize("words", ["spaces", "cased"])
def test_caption_leaves_it_out_too(words: str) -> None:
    same = [SimpleNamespace(text="a dog", file="a.jpg", cut=False)] * 6
    vocabulary = Vocabulary.build(["a dog"], words=words, min_count=1)
    (line,) = remarks(same, "image", pretrained=False, words=vocabulary)
    assert ("finetune_photographs" in line) == (words == "spaces")

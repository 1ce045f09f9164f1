"""What users are told of captions that are cut and of symbols that are left out."""

from pathlib import Path

import pytest
import torch

from tests.engine.test_start_from import captions, train
from tests.test_contracts import SmallestCaptioner, SmallestEncoder
from vision_attn.contracts import END, Caption, Results
from vision_attn.data.photographs.remarks import remarks
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.metrics.evaluators import CutShort
from vision_attn.metrics.variety import cut_short
from vision_attn.tasks.caption import Captioning

LONG = "one red dog and one blue cat sit here"


@pytest.mark.parametrize(
    ("caption", "symbols"),
    [
        ("O || E | O", ["||", "|"]),
        (r"\frac { a } { b } + x ^ 2 = 0", ["\\", "{", "}", "{", "}", "+", "^", "="]),
        ("InChI=1S/C2H6O/c1-2-3", ["=", "/", "/"]),
        ("C++ at 50%, #dogs_and_cats", ["++", "%", "#", "_", "_"]),
        ("A dog (black), running: it's a \u201cfast\u201d one \u2013 really!", []),
        ("two dogs \U0001f415\u200d\U0001f9ba play \u72d7\u3002", []),
        ("3.5 kg, \u0939\u093f\u0928\u094d\u0926\u0940", []),
        ("", []),
    ],
)
def test_symbols_outside_of_words_are_found(caption: str, symbols: list[str]) -> None:
    assert Vocabulary.build([]).left_out(caption) == symbols


def test_a_caption_that_is_cut_has_no_end() -> None:
    vocabulary = Vocabulary.build([LONG], min_count=1)
    ids = vocabulary.encode(LONG)
    assert vocabulary.targets(LONG, len(ids)) == vocabulary.targets(LONG, 30) == [*ids, END]
    assert vocabulary.targets(LONG, len(ids) - 1) == ids[:-1]


def test_remarks_count_what_is_cut_and_what_is_left_out() -> None:
    vocabulary = Vocabulary.build([LONG], min_count=1)
    few = [*["a dog ."] * 37, "a dog + a cat", LONG]
    assert list(remarks(few, [], vocabulary, 5)) == []  # one in 39 has a symbol
    cut, symbols = remarks([*few, "a | dog || a | cat"], [LONG, "a b c d e f"], vocabulary, 5)
    assert cut.startswith("2 of 40 training captions have more than 5 words, and are cut; to keep them whole")
    assert cut.endswith("add --data.max_length=9 --task.max_words=10")
    assert symbols.startswith("left out as punctuation, in 2 of 40 training captions: | (2 times), ")
    (many,) = remarks(["".join(map(chr, range(0x2200, 0x2214)))[number] for number in range(20)], [], vocabulary, 5)
    assert "in 20 of 20 training captions" in many and "and 12 others" in many


def test_a_run_says_what_it_cuts_and_leaves_out(tmp_path: Path, capsys) -> None:
    data = captions(tmp_path / "photographs", [LONG, "a dog | a cat"], max_length=4)
    train(data, tmp_path / "run")
    told = capsys.readouterr().err
    assert told.count("4 of 8 training captions have more than 4 words, and are cut") == 1  # "a dog a cat" has four
    assert told.count("left out as punctuation, in 4 of 8 training captions: | (4 times)") == 1


class Endless(SmallestCaptioner):
    """Says the same word again and again, or ends at once where the image is dark."""

    def step(self, word, state, memory):
        logits = torch.zeros(*word.shape, self.words.num_embeddings)
        logits[..., -1] = 9
        logits[..., END] = torch.where(state.flatten(2)[..., 0] < 0, 99.0, 0.0)
        return logits, state, None


@pytest.mark.parametrize("beams", [1, 3])
def test_decoded_captions_that_were_cut_are_counted(tmp_path: Path, beams: int) -> None:
    source = captions(tmp_path, [LONG], evaluation_batch_size=6)
    task = Captioning(source, encoder=SmallestEncoder(), model=Endless, criteria={}, beams=beams, max_words=4)
    source.prepare(task)
    memory = torch.tensor([-1.0, 1.0, 1.0, -1.0])
    task.model.start = lambda regions, rows: (None, memory[:, None, None].expand(-1, rows, 1))
    described = task.describe(torch.zeros(4, 4, 3))
    assert [one.cut for one in described] == [False, True, True, False]
    assert [len(one.words) for one in described] == [0, 4, 4, 0]
    results = Results(Caption(torch.zeros(4, 1, 1)), described, {}, frozenset())
    (evaluator,) = (each for each in task.standard_evaluators(True) if isinstance(each, CutShort))
    evaluator.update(None, results)
    assert evaluator.compute() == {"cut": 0.5}
    assert [line.split(", ")[0] for line in evaluator.notes] == [
        "50% of the decoded texts were cut at --task.max_words"
    ]
    (quiet,) = (each for each in task.standard_evaluators(False) if isinstance(each, CutShort))
    quiet.update(None, results)
    assert quiet.compute() == {"cut": 0.5} and not quiet.notes  # a validation of an early epoch
    assert not cut_short({"cut": 0.0}) and not cut_short({}) and not cut_short({"cut": float("nan")})

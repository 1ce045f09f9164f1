"""Pretrained word vectors as the start of the embedding."""

import pytest
import torch
from torch import nn

from tests.tasks.test_captioning import build
from vision_attn.data.scenes.scenes import Scenes
from vision_attn.data.vocabulary import Vocabulary
from vision_attn.data.word_vectors import start_embedding
from vision_attn.system.errors import UserError


@pytest.fixture
def vocabulary():
    return Vocabulary.build(["a dog runs", "a café"], min_count=1)


def test_rows_of_known_words_are_replaced_and_counted(vocabulary, tmp_path, capsys):
    path = tmp_path / "glove.txt"
    path.write_text("4 2\nDog 9 9\ndog 3 -4\ncafé 0 5\n. . . 7 7\ndog 8 8\n", encoding="utf-8")
    embedding = nn.Embedding(len(vocabulary), 2, padding_idx=0)
    before = embedding.weight.detach().clone()
    start_embedding(embedding, vocabulary, path)
    dog, cafe = (vocabulary.index[word] for word in ("dog", "café"))
    changed = (embedding.weight != before).any(dim=1).nonzero().flatten().tolist()
    assert changed == sorted([dog, cafe])
    after = embedding.weight.detach()
    assert torch.allclose(after[dog] / after[dog].norm(), torch.tensor([0.6, -0.8]))
    assert torch.allclose(after[dog].norm(), after[cafe].norm())  # of equal length in the file
    assert torch.allclose(after[changed].square().mean(), before[changed].square().mean())
    assert "vectors for 2 of 5 words; the others start at random" in capsys.readouterr().out  # a, runs, unknown words


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("dog 1 2 3\n", "line 1: dog has 3 numbers, and the embedding 2: set --task.model.word_size=3"),
        ("cat 1 2\ndog 1 x\n", "line 2: dog has a value that is no number"),
        ("hund 1 2\n", "has none of the 5 words of the captions"),
        ("", "has none of the 5 words of the captions"),
    ],
)
def test_files_that_do_not_fit(vocabulary, tmp_path, content, message):
    (tmp_path / "v.txt").write_text(content)
    with pytest.raises(UserError, match=message):
        start_embedding(nn.Embedding(len(vocabulary), 2), vocabulary, tmp_path / "v.txt")
    with pytest.raises(UserError, match="missing.txt was not found"):
        start_embedding(nn.Embedding(len(vocabulary), 2), vocabulary, tmp_path / "missing.txt")


def test_a_captioner_starts_from_them(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text("red " + " ".join("2" * 8) + "\n")
    task = build(Scenes(batch_size=2, epoch_images=2), word_vectors=str(path))
    row = task.vocabulary.index["red"]
    assert task.model.embedding.weight[row].std() > 0.1
    task.initialise()
    assert task.model.embedding.weight[row].std() < 1e-5

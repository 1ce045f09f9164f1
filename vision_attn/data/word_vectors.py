"""Initialise an embedding with pretrained word vectors, from files in the format of GloVe (Pennington et al. 2014): a
line `dog 0.1 -0.2` for each word."""

from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor, nn

from vision_attn.data.vocabulary import UNKNOWN, Vocabulary
from vision_attn.system.console import say
from vision_attn.system.errors import UserError
from vision_attn.system.files import find


@torch.no_grad()
def start_embedding(embedding: nn.Embedding, vocabulary: Vocabulary, path: str | Path) -> None:
    """Replace the rows of an embedding by the vectors of their words in the file `path`. Logs how many words the file
    has.

    The vectors are scaled by a common factor, to the root mean square of the rows that they replace: embeddings that
    are also output weights start much smaller than the vectors of GloVe. Raises UserError naming the file if it does
    not fit.
    """
    path = find(path)
    ids = {word: index for word, index in vocabulary.index.items() if index >= UNKNOWN}
    vectors = read_word_vectors(path, ids, embedding.embedding_dim)
    if not vectors:
        raise UserError(f"{path} has none of the {len(ids):,} words of the captions: is it of another language?")
    indices, replacements = torch.tensor([ids[word] for word in vectors]), torch.stack(list(vectors.values()))
    scale = (embedding.weight[indices].square().mean() / replacements.square().mean().clamp(min=1e-12)).sqrt()
    embedding.weight[indices] = replacements * scale
    say(f"{path}: vectors for {len(vectors):,} of {len(ids):,} words; the others start at random")


def read_word_vectors(path: Path, words: Collection[str], size: int) -> dict[str, Tensor]:
    """Read the vectors of `words`, as far as the file has them; a repeated word gets its first vector. A first line of
    two numbers, as word2vec and fastText write it, is skipped. Raises UserError naming the line that does not fit."""
    vectors: dict[str, Tensor] = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            word, _, rest = line.rstrip().partition(" ")  # words of several parts, such as ". . .", are in no caption
            if word not in words or word in vectors or (number == 1 and rest.isdigit()):
                continue
            values = rest.split()
            try:
                vector = torch.tensor([float(value) for value in values])
            except ValueError as error:
                raise UserError(f"{path}, line {number}: {word} has a value that is no number") from error
            if len(vector) != size:
                raise UserError(
                    f"{path}, line {number}: {word} has {len(vector)} numbers, and the embedding {size}: set"
                    f" --task.model.word_size={len(vector)} (of a Transformer hidden_size), or take a file of {size}"
                )
            vectors[word] = vector
    return vectors

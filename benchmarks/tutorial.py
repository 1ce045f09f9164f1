"""The design of the most used tutorial on Show, Attend and Tell, written from scratch, to compare its training speed.

One caption per feature row, so that the regions of an image are repeated for each of its captions; the projection of
the regions and the vocabulary layer inside the loop over words; captions sorted by length, with a batch that shrinks as
captions end; scores of all words in one padded tensor, packed for the loss; ReLU where the paper's attention has tanh;
a gate per channel; a single layer each for h_0, c_0 and the output.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from benchmarks.shapes import START, Batch, Shapes


class TutorialAttention(nn.Module):
    """Additive attention with ReLU."""

    def __init__(self, region_size: int, hidden_size: int, attention_size: int):
        super().__init__()
        self.region_to_key = nn.Linear(region_size, attention_size)
        self.hidden_to_query = nn.Linear(hidden_size, attention_size)
        self.score = nn.Linear(attention_size, 1)

    def forward(self, regions: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(N, L, D), (N, H) -> context (N, D), alpha (N, L)."""
        joined = functional.relu(self.region_to_key(regions) + self.hidden_to_query(hidden).unsqueeze(1))
        alpha = functional.softmax(self.score(joined).squeeze(2), dim=1)
        return (regions * alpha.unsqueeze(2)).sum(dim=1), alpha


class TutorialCaptioner(nn.Module):
    """(N, L, D) regions, (N, T + 1) captions with their start word, (N,) lengths -> scores and alphas, padded."""

    def __init__(self, shapes: Shapes, dropout: float = 0.5):
        super().__init__()
        self.attention = TutorialAttention(shapes.region_size, shapes.hidden, shapes.attention)
        self.embedding = nn.Embedding(shapes.vocabulary, shapes.word)
        self.dropout = nn.Dropout(dropout)
        self.cell = nn.LSTMCell(shapes.word + shapes.region_size, shapes.hidden)
        self.first_hidden = nn.Linear(shapes.region_size, shapes.hidden)
        self.first_cell = nn.Linear(shapes.region_size, shapes.hidden)
        self.gate = nn.Linear(shapes.hidden, shapes.region_size)
        self.vocabulary = nn.Linear(shapes.hidden, shapes.vocabulary)

    def first_state(self, regions: Tensor) -> tuple[Tensor, Tensor]:
        mean = regions.mean(dim=1)
        return self.first_hidden(mean), self.first_cell(mean)

    def step(self, embedded: Tensor, regions: Tensor, hidden: Tensor, cell: Tensor):
        """One time step of every row: the next hidden state and cell, and alpha."""
        context, alpha = self.attention(regions, hidden)
        context = torch.sigmoid(self.gate(hidden)) * context
        hidden, cell = self.cell(torch.cat([embedded, context], dim=1), (hidden, cell))
        return hidden, cell, alpha

    def forward(self, regions: Tensor, captions: Tensor, lengths: Tensor):
        lengths, order = lengths.sort(descending=True)
        regions, captions, lengths = regions[order], captions[order], lengths.tolist()
        embedded = self.embedding(captions)
        hidden, cell = self.first_state(regions)
        scores = regions.new_zeros(len(lengths), max(lengths), self.vocabulary.out_features)
        alphas = regions.new_zeros(len(lengths), max(lengths), regions.shape[1])
        for t in range(max(lengths)):
            n = sum(length > t for length in lengths)
            hidden, cell, alpha = self.step(embedded[:n, t], regions[:n], hidden[:n], cell[:n])
            scores[:n, t] = self.vocabulary(self.dropout(hidden)).to(scores.dtype)
            alphas[:n, t] = alpha.to(alphas.dtype)
        return scores, captions, lengths, alphas


def tutorial_batch(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """One caption per feature row: repeated regions, captions with their start word, and their lengths."""
    regions = batch.regions.repeat_interleave(batch.words.shape[1], dim=0)
    captions = functional.pad(batch.words.flatten(0, 1), (1, 0), value=START)
    return regions, captions, (batch.words.flatten(0, 1) > 0).sum(dim=1)


def tutorial_loss(model: TutorialCaptioner, regions: Tensor, captions: Tensor, lengths: Tensor) -> Tensor:
    """Cross-entropy per word plus the doubly stochastic penalty."""
    scores, captions, lengths, alphas = model(regions, captions, lengths)
    scores = pack_padded_sequence(scores, lengths, batch_first=True).data
    targets = pack_padded_sequence(captions[:, 1:], lengths, batch_first=True).data
    return functional.cross_entropy(scores, targets) + ((1 - alphas.sum(dim=1)) ** 2).mean()

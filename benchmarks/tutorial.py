"""The plain reference: Show, Attend and Tell, written from scratch in the style of popular replications.

It follows their choices: one caption per feature row, so that the regions of an image are repeated for each of its
captions; the projection of the regions and the vocabulary layer inside the loop over words; captions sorted by length,
with a batch that shrinks as captions end; scores of all words in one padded tensor, packed for the loss; a gate per
channel; a single layer each for h_0, c_0 and the output; beam search of one image at a time, with a beam that shrinks
as captions end.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

from benchmarks.shapes import END, START, Batch, Shapes


class PlainAttention(nn.Module):
    """Additive attention. The most popular replication has ReLU where the paper has tanh, which is faster on a CPU."""

    def __init__(self, region_size: int, hidden_size: int, attention_size: int, activation: nn.Module):
        super().__init__()
        self.region_to_key = nn.Linear(region_size, attention_size)
        self.hidden_to_query = nn.Linear(hidden_size, attention_size)
        self.score = nn.Linear(attention_size, 1)
        self.activation = activation

    def forward(self, regions: Tensor, hidden: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(N, L, D), (N, H) -> context (N, D), alpha (N, L)."""
        keys = self.region_to_key(regions) if keys is None else keys
        joined = self.activation(keys + self.hidden_to_query(hidden).unsqueeze(1))
        alpha = functional.softmax(self.score(joined).squeeze(2), dim=1)
        return (regions * alpha.unsqueeze(2)).sum(dim=1), alpha


class PlainCaptioner(nn.Module):
    """(N, L, D) regions, (N, T + 1) captions with their start word, (N,) lengths -> scores and alphas, padded."""

    def __init__(self, shapes: Shapes, activation: nn.Module | None = None, dropout: float = 0.5):
        super().__init__()
        self.attention = PlainAttention(
            shapes.region_size, shapes.hidden, shapes.attention, nn.ReLU() if activation is None else activation
        )
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

    def step(self, embedded: Tensor, regions: Tensor, hidden: Tensor, cell: Tensor, keys: Tensor | None = None):
        """One time step of every row: the next hidden state and cell, and alpha."""
        context, alpha = self.attention(regions, hidden, keys)
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


def plain_batch(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """One caption per feature row: repeated regions, captions with their start word, and their lengths."""
    regions = batch.regions.repeat_interleave(batch.words.shape[1], dim=0)
    captions = functional.pad(batch.words.flatten(0, 1), (1, 0), value=START)
    return regions, captions, (batch.words.flatten(0, 1) > 0).sum(dim=1)


def plain_loss(model: PlainCaptioner, regions: Tensor, captions: Tensor, lengths: Tensor) -> Tensor:
    """Cross-entropy per word plus the doubly stochastic penalty."""
    scores, captions, lengths, alphas = model(regions, captions, lengths)
    scores = pack_padded_sequence(scores, lengths, batch_first=True).data
    targets = pack_padded_sequence(captions[:, 1:], lengths, batch_first=True).data
    return functional.cross_entropy(scores, targets) + ((1 - alphas.sum(dim=1)) ** 2).mean()


@torch.no_grad()
def plain_greedy(model: PlainCaptioner, regions: Tensor, max_words: int, ends: Tensor) -> Tensor:
    """Greedy decoding of all images together, their regions projected once, as the best replications do. `ends`: see
    `benchmarks.decoding`."""
    keys = model.attention.region_to_key(regions)
    hidden, cell = model.first_state(regions)
    word = torch.full((len(regions),), START, device=regions.device)
    words, ended = [], torch.zeros(len(regions), dtype=torch.bool, device=regions.device)
    for t in range(max_words):
        hidden, cell, _ = model.step(model.embedding(word), regions, hidden, cell, keys)
        scores = model.vocabulary(hidden)
        scores[:, END] = ends[:, t]
        word = scores.argmax(dim=1)
        words.append(word)
        ended |= word == END
        if ended.all():
            break
    return torch.stack(words, dim=1)


@torch.no_grad()
def plain_beam_search(model: PlainCaptioner, regions: Tensor, beams: int, max_words: int, ends: Tensor) -> list[int]:
    """Beam search of one image, (L, D) regions. Each caption that ends leaves the beam, which shrinks by one."""
    regions = regions.expand(beams, *regions.shape)
    hidden, cell = model.first_state(regions)
    words = torch.full((beams, 1), START, device=regions.device)
    total = torch.zeros(beams, 1, device=regions.device)
    finished: list[tuple[float, list[int]]] = []
    for t in range(max_words):
        hidden, cell, _ = model.step(model.embedding(words[:, -1]), regions, hidden, cell)
        scores = model.vocabulary(hidden)
        scores[:, END] = ends[t]
        scores = total + functional.log_softmax(scores, dim=1)
        best, flat = (scores[0] if t == 0 else scores.view(-1)).topk(beams)
        row, word = flat // scores.shape[1], flat % scores.shape[1]
        words = torch.cat([words[row], word.unsqueeze(1)], dim=1)
        active = [i for i, one in enumerate(word) if one != END]
        finished += [(best[i].item(), words[i].tolist()) for i in range(len(word)) if i not in active]
        beams = len(active)
        if beams == 0:
            break
        words, total, row = words[active], best[active].unsqueeze(1), row[active]
        hidden, cell, regions = hidden[row], cell[row], regions[row]
    finished += [(score.item(), caption) for score, caption in zip(total, words.tolist(), strict=False) if beams]
    return max(finished)[1]

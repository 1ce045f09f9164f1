"""Attention into the input of an LSTM, in the style of the most used captioning library, to compare training and
decoding.

It follows that library's choices: annotation vectors and their keys, projected once per image, are repeated for each
caption; tanh of every (row, region) pair at each time step; the context is concatenated to the word's embedding as the
input of an LSTMCell; dropout, vocabulary layer and log-softmax inside the loop over words, which computes all rows up
to the end of the longest caption; cross-entropy with a mask. Decoding repeats annotation vectors for each beam and runs
the whole batch until all beams have ended.

Missing, compared with ours: the gate beta_t, the deep output (eq. 7), an initial state computed from the image, and the
doubly stochastic penalty. Differs from that library: `nn.LSTMCell` instead of its own LSTM, whose context enters the
candidate only. Left out, which makes the reference faster: a linear layer between annotation vectors and attention,
and in decoding the log-probabilities of the whole vocabulary, which the library keeps for each word.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.shapes import END, START, Batch, Shapes

PAD = 0
"""The same word as START; it follows the end of a caption."""

State = tuple[Tensor, Tensor]
"""h_t and c_t, (N, H) each."""


class InputAttention(nn.Module):
    """(B, L, D) regions, (B, R, T) words -> log-probabilities (B * R, T, V)."""

    def __init__(self, shapes: Shapes, dropout: float = 0.5):
        super().__init__()
        embedding = nn.Embedding(shapes.vocabulary, shapes.word)
        self.embedding = nn.Sequential(embedding, nn.ReLU(), nn.Dropout(dropout))
        self.key = nn.Linear(shapes.region_size, shapes.attention)
        self.query = nn.Linear(shapes.hidden, shapes.attention)
        self.score = nn.Linear(shapes.attention, 1)
        self.cell = nn.LSTMCell(shapes.word + shapes.region_size, shapes.hidden)
        self.output = nn.Sequential(nn.Dropout(dropout), nn.Linear(shapes.hidden, shapes.vocabulary))

    def first_state(self, rows: int) -> State:
        zeros = self.key.weight.new_zeros(rows, self.cell.hidden_size)
        return zeros, zeros

    def step(self, word: Tensor, regions: Tensor, keys: Tensor, state: State) -> tuple[Tensor, State]:
        """One time step of N rows, words (N), regions (N, L, D), keys (N, L, A) -> logits (N, V), the next state."""
        tanh = torch.tanh(keys + self.query(state[0]).unsqueeze(1))
        alpha = functional.softmax(self.score(tanh).squeeze(2), dim=1)
        context = torch.bmm(alpha.unsqueeze(1), regions).squeeze(1)
        state = self.cell(torch.cat([self.embedding(word), context], dim=1), state)
        return self.output(state[0]), state

    def forward(self, regions: Tensor, words: Tensor) -> Tensor:
        (images, rows, longest), vocabulary = words.shape, self.output[1].out_features
        inputs = functional.pad(words.flatten(0, 1), (1, -1), value=START)
        keys = self.key(regions).repeat_interleave(rows, dim=0)
        regions = regions.repeat_interleave(rows, dim=0)
        state = self.first_state(images * rows)
        log_prob = regions.new_zeros(images * rows, longest, vocabulary)
        for t in range(longest):
            logits, state = self.step(inputs[:, t], regions, keys, state)
            log_prob[:, t] = functional.log_softmax(logits, dim=1)
        return log_prob


def input_attention_loss(model: InputAttention, batch: Batch) -> Tensor:
    """Cross-entropy per word: a masked mean."""
    targets = batch.words.flatten(0, 1)
    mask = (targets != PAD).float()
    log_prob = model(batch.regions, batch.words).gather(2, targets.unsqueeze(2)).squeeze(2)
    return -(log_prob * mask).sum() / mask.sum()


def best_of_sorted(candidates: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """The largest `number` of each row, found by sorting all, as that library does. `torch.topk` is faster."""
    ordered, index = candidates.sort(dim=1, descending=True)
    return ordered[:, :number], index[:, :number]


@torch.no_grad()
def repeated_beam_search(
    model: InputAttention,
    regions: Tensor,
    beams: int,
    max_words: int,
    ends: Tensor | None = None,
    best_of: Callable[[Tensor, int], tuple[Tensor, Tensor]] = torch.topk,
) -> Tensor:
    """The best caption of each image, (B, T) words with zeros after END; with one beam, greedy decoding.

    A caption that ends keeps its place in the beam, as in our search, so that both find the same captions. (In that
    library it leaves, and others fill the beam up to a fixed number of words.) `ends`: see `benchmarks.decoding`.
    """
    images, device = len(regions), regions.device
    keys, state, rows = model.key(regions), model.first_state(images), 1
    word = torch.full((images, 1), START, device=device)
    words, total = word.new_empty(images, 1, 0), torch.zeros(images, 1, device=device)
    ended = torch.zeros(images, 1, dtype=torch.bool, device=device)
    for t in range(max_words):
        logits, state = model.step(word.flatten(), regions, keys, state)
        if ends is not None:
            logits[:, END] = ends[:, t].repeat_interleave(rows).to(logits.dtype)
        log_prob = functional.log_softmax(logits, dim=1).view(images, rows, -1)
        log_prob.masked_fill_(ended.unsqueeze(2), -torch.inf)
        log_prob[..., PAD] = torch.where(ended, torch.inf, -torch.inf).to(log_prob.dtype)
        best, index = best_of((total.unsqueeze(2) + log_prob).flatten(1), beams)
        parent, word = index // log_prob.shape[2], index % log_prob.shape[2]
        total = torch.where(ended.gather(1, parent), total.gather(1, parent), best)
        ended = ended.gather(1, parent) | (word == END)
        words = torch.cat([words.gather(1, parent.unsqueeze(2).expand(-1, -1, t)), word.unsqueeze(2)], dim=2)
        if ended.all():
            break
        row = (parent + rows * torch.arange(images, device=device).unsqueeze(1)).flatten()
        state = tuple(tensor.index_select(0, row) for tensor in state)
        if rows < beams:
            regions, keys, rows = *(tensor.repeat_interleave(beams, dim=0) for tensor in (regions, keys)), beams
    return words[torch.arange(images, device=device), total.argmax(dim=1)]

"""The end-to-end memory network (Sukhbaatar et al., NIPS 2015): a question is answered by soft attention over facts, in
several hops. Facts are the sentences of a story, or the annotation vectors of an image.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.contracts import PAD, Answerer, Answers
from vision_attn.layers.padding import mask_padding, real_regions
from vision_attn.system.checks import check_range

INITIAL = 0.1
"""The standard deviation of all initial weights in the paper (section 4.2)."""


def weighted_words(words: Int[Tensor, "... J"], num_words: int) -> Float[Tensor, "... 2 V"]:
    """Return the weights of each word of the vocabulary in a sentence: the sums of 1 - j / J and of 1 - 2 j / J over
    the positions j of the word among the J words of the sentence. See `WordEmbedding.sentence`.

    words: word ids, padded with 0.
    """
    real = words != PAD
    place = torch.arange(1, words.shape[-1] + 1, device=words.device) / real.sum(dim=-1, keepdim=True).clamp(min=1)
    weights = torch.stack([1 - place, 1 - 2 * place], dim=-2) * real[..., None, :]
    sums = weights.new_zeros(*weights.shape[:-1], num_words)
    return sums.scatter_add(-1, words[..., None, :].expand_as(weights), weights)


class WordEmbedding(nn.Embedding):
    """An embedding of words, which also encodes sentences and scores words."""

    def __init__(self, num_words: int, size: int):
        super().__init__(num_words, size)
        nn.init.normal_(self.weight, std=INITIAL)

    def sentence(self, words: Float[Tensor, "... 2 V"]) -> Float[Tensor, "... d"]:
        """Return m = sum_j l_j * A x_j with the position encoding l_kj = (1 - j / J) - (k / d) (1 - 2 j / J) of word j
        of J and feature k of d, so that m depends on the order of words (section 4.1).

        words: a sentence as `weighted_words` returns it.
        """
        first, second = (words @ self.weight).unbind(dim=-2)
        features = torch.arange(1, self.embedding_dim + 1, device=words.device) / self.embedding_dim
        return first - features * second

    def scores(self, state: Float[Tensor, "B d"]) -> Float[Tensor, "B V"]:
        return F.linear(state, self.weight)


class Sentences(nn.Module):
    """Facts that are sentences, the latest first: m_i = sum_j l_j * A x_ij + T_A(i) (section 4.1).

    max_facts: the largest number of sentences with a temporal vector T_A(i) of their own; earlier ones share the last.
    """

    def __init__(self, fact_size: int, size: int, *, max_facts: int = 50):
        super().__init__()
        check_range("Sentences", 1, 10_000, max_facts=max_facts)
        self.words = WordEmbedding(fact_size, size)
        self.times = WordEmbedding(max_facts, size)

    def prepared(self, facts: Int[Tensor, "B L W"]) -> Float[Tensor, "B L 2 V"]:
        """Return the facts as `weighted_words`, which all embeddings share."""
        return weighted_words(facts, self.words.num_embeddings)

    def forward(self, facts: Float[Tensor, "B L 2 V"], times: Int[Tensor, "B L"]) -> Float[Tensor, "B L d"]:
        return self.words.sentence(facts) + self.times(times.clamp(max=self.times.num_embeddings - 1))


class Regions(nn.Module):
    """Facts that are annotation vectors: m_i = A a_i. A vector must tell itself where its region is."""

    words = None

    def __init__(self, fact_size: int, size: int):
        super().__init__()
        self.linear = nn.Linear(fact_size, size, bias=False)
        nn.init.normal_(self.linear.weight, std=INITIAL)

    def prepared(self, facts: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        return facts

    def forward(self, facts: Float[Tensor, "B L D"], times: Int[Tensor, "B L"]) -> Float[Tensor, "B L d"]:
        return self.linear(facts)


class MemoryNetwork(Answerer):
    """Answers a question in `num_hops` hops over facts (Sukhbaatar et al. 2015, section 2).

    facts: turns a fact into a vector; constructed with the size of a fact and d: `Sentences` or `Regions`.
    num_hops: K, the number of hops.
    size: d, the size of all embeddings.
    tying: which embeddings are the same (section 2.2). "adjacent": the output embedding of a hop is the input embedding
        of the next, A^{k+1} = C^k; where facts are sentences also B = A^1 and W^T = C^K. "layerwise": all hops share A
        and C, and a matrix H maps the state from hop to hop.
    linear_start: training begins without the softmax of the hops, until nll on validation questions has not fallen for
        this number of validations (section 4.2). Until then maps are scores, which may be negative. 0: with the softmax
        from the start.
    noise: the probability of an empty memory after a fact in training, against overfitting of the temporal vectors
        (section 4.1, "random noise": the paper adds 10% of empty memories).
    std: the standard deviation of all initial weights (section 4.2). Annotation vectors need a larger one: if scores
        are small, maps become uniform when the linear start ends, and all that was learned is lost.

    Differs from the paper: an empty memory moves the temporal vectors of earlier facts, but has no weight of its own.
    The learning rate is not lower during the linear start. The config decides how rates fall: the paper halves its rate
    every 25 epochs until 100, where `configs/memory_stories.yaml` has a cosine over 25 epochs.
    """

    facts: Any
    """An `nn.ModuleList` of `Sentences`, `Regions`, or modules like these."""
    linear: Tensor
    lowest: Tensor
    since_lowest: Tensor

    def __init__(
        self,
        num_words: int,
        fact_size: int,
        *,
        facts: Callable[[int, int], nn.Module] = Sentences,
        num_hops: int = 3,
        size: int = 20,
        tying: Literal["adjacent", "layerwise"] = "adjacent",
        linear_start: int = 0,
        noise: float = 0.1,
        std: float = INITIAL,
    ):
        super().__init__()
        check_range("MemoryNetwork", 1, 100, num_hops=num_hops)
        check_range("MemoryNetwork", 1, 10_000, size=size)
        check_range("MemoryNetwork", 0, 1, noise=noise)
        check_range("MemoryNetwork", 0, 1000, linear_start=linear_start)
        check_range("MemoryNetwork", 0, 10, std=std)
        self.num_hops, self.noise, self.patience, adjacent = num_hops, noise, linear_start, tying == "adjacent"
        self.facts = nn.ModuleList(facts(fact_size, size) for _ in range(num_hops + 1 if adjacent else 2))
        self.steps = [(k, k + 1) if adjacent else (0, 1) for k in range(num_hops)]
        """The indices in `facts` of A^k and C^k of each hop."""
        self.between = None if adjacent else nn.Linear(size, size, bias=False)
        if self.between is not None:
            nn.init.normal_(self.between.weight, std=INITIAL)
        first, last = self.facts[0].words, self.facts[-1].words
        tied = adjacent and first is not None
        self.question = first if tied else WordEmbedding(num_words, size)
        self.answer = last if tied else WordEmbedding(num_words, size)
        with torch.no_grad():
            for weights in self.parameters():
                weights.mul_(std / INITIAL)
        self.register_buffer("linear", torch.tensor(linear_start > 0))
        self.register_buffer("lowest", torch.tensor(torch.inf))
        self.register_buffer("since_lowest", torch.tensor(0))

    @property
    def scored(self) -> bool:
        """Whether the linear start is still going on."""
        return bool(self.linear)

    def forward(self, facts: Int[Tensor, "B L W"] | Float[Tensor, "B L D"], words: Int[Tensor, "B J"]) -> Answers:
        """Compute u^{k+1} = u^k + o^k with o = sum_i p_i c_i (Sukhbaatar et al. 2015, eq. 2 and eq. 4), and the answer
        softmax(W u^{K+1}) (eq. 3)."""
        real, times = real_regions(facts), self._times(facts)
        facts = self.facts[0].prepared(facts)
        vectors = [embed(facts, times) for embed in self.facts]
        state = self.question.sentence(weighted_words(words, self.question.num_embeddings))  # u = B q
        maps = []
        for first, last in self.steps:
            alpha = self._weights(vectors[first] @ state[..., None], real)
            seen = (alpha[:, None] @ vectors[last]).squeeze(1)  # o = sum_i p_i c_i
            state = (state if self.between is None else self.between(state)) + seen  # u^{k+1}
            maps.append(alpha)
        return Answers(self.answer.scores(state).float().log_softmax(dim=-1), torch.stack(maps, dim=1))

    def _weights(self, scores: Float[Tensor, "B L 1"], real: Bool[Tensor, "B L"]) -> Float[Tensor, "B L"]:
        """Return p_i = softmax(u^T m_i) (Sukhbaatar et al. 2015, eq. 1), or u^T m_i during the linear start."""
        scores = scores.squeeze(-1)
        softmax = mask_padding(scores[:, None], real).squeeze(1).softmax(dim=-1)
        return torch.where(self.linear, scores * real, softmax)

    def _times(self, facts: Tensor) -> Int[Tensor, "B L"]:
        """Return i of T_A(i): the number of later facts, and in training also of later empty memories."""
        times = torch.arange(facts.shape[1], device=facts.device).expand(facts.shape[:2])
        if not self.training or not self.noise:
            return times
        return times + (torch.rand(facts.shape[:2], device=facts.device) < self.noise).cumsum(dim=1)

    def validated(self, nll: float) -> bool:
        """End the linear start once `nll` has not fallen for `linear_start` validations."""
        if not self.linear:
            return False
        if nll < self.lowest:
            self.lowest.fill_(nll)
            self.since_lowest.zero_()
        else:
            self.since_lowest += 1
            self.linear.fill_(int(self.since_lowest) < self.patience)
        return True

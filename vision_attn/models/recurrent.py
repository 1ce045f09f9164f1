"""`RecurrentCaptioner`, the base of captioners whose recurrent state attends to the regions once for each word."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.hard import sample
from vision_attn.attention.scores import Score
from vision_attn.attention.soft import Attention, AttentionOutput, EachRegion
from vision_attn.contracts import PAD, AttentionMap, Caption, Captioner, Forced
from vision_attn.contracts.nested import Nested
from vision_attn.layers.likelihood import WordLogProb
from vision_attn.layers.padding import mask_padding
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.checks import check_range, require
from vision_attn.system.console import with_article
from vision_attn.system.errors import UserError


class RecurrentMemory(NamedTuple):
    """The memory of a recurrent captioner, held once per image."""

    regions: Float[Tensor, "B L D"]
    """Annotation vectors a_i."""
    keys: Float[Tensor, "B L A"]
    """The projections of annotation vectors, which the score compares with the state."""
    expectation_mask: Bool[Tensor, "B"] | None
    """Hard attention in training: whether the image's samples are replaced by their expectation."""
    real: Bool[Tensor, "B L"] | None = None
    """Which regions are not padding; None: all."""
    from_mean: Float[Tensor, "B gates"] | None = None
    """The term that the mean region adds to the LSTM's pre-activations at every word; None: no such term."""
    step: Any = None
    """The layout of rows in a fast loop (`fast.models.recurrent`); None: by image and row."""
    forced: Forced | None = None
    """The maps (B, R, L) that the rows must use for the next word; None: the maps that the scores give."""


class StepOutput(NamedTuple):
    """The results of one time step: one word of each row."""

    state: Nested
    seen: AttentionOutput
    query: Float[Tensor, "*rows H"]
    """The hidden state from which the map was computed."""
    outputs: tuple[Float[Tensor, "*rows _"], ...]
    """The vectors from which `deep` computes the word."""


class RecurrentCaptioner(Captioner):
    """A captioner with a recurrent state that attends to the regions once for each word.

    Override `start`, `look` and `deep`, and make `embedding`, `word_to_lstm` and `output`, a linear layer. The state is
    a NamedTuple of hidden states and cells, with what the score and the attention remember, `carry` and `seen_before`,
    as its last two fields. The first word's embedding is zero: word 0 pads captions and starts them.

    score: constructed with the sizes of an annotation vector and of the state that it is compared with.
    attention: makes the context vector from the scores: `Soft`, `Hard`, or another `Attention`.
    """

    tied = False
    """Whether the output layer's weights are the embeddings; see `tie`."""
    own_words, own_words_batches = 0.0, 0
    """Scheduled sampling; see `schedule_sampling`."""
    score: Score
    attention: Attention
    embedding: nn.Embedding
    word_to_lstm: nn.Linear
    output: nn.Linear
    word_scale: Tensor
    """The factor on embeddings that are `tied`."""
    batches: Tensor
    """The number of training batches so far, if they are counted."""

    def __init__(
        self,
        region_size: int,
        hidden_size: int,
        word_size: int,
        score: Callable[[int, int], Score],
        attention: Callable[[], Attention],
    ):
        super().__init__()
        check_range(type(self).__name__, 1, 10**12, hidden_size=hidden_size, word_size=word_size)
        self.region_size, self.state_size = region_size, hidden_size
        self.score = score(region_size, hidden_size)
        self.attention = attention()
        self.word_log_prob = WordLogProb()
        self.reinforced, self.modes = self.attention.reinforced, self.attention.modes
        self.steerable = self.attention.steerable

    def leave_out_padding(self) -> None:
        if self.score.counts_regions:
            raise UserError(f"{type(self.score).__name__} counts regions, so it cannot leave out padding: take another")
        self.attention.pads = True

    def compile(self, **options) -> None:
        """Compile a time step, not the loop over words, whose length changes from batch to batch.

        options: as for `torch.compile`; sizes are dynamic by default.
        """
        self.__dict__["look"] = torch.compile(self.look, **{"dynamic": True} | options)

    @property
    def mode(self) -> str | None:
        return self.attention.mode

    def in_mode(self, mode: str) -> AbstractContextManager[None]:
        return self.attention.in_mode(mode)

    @contextmanager
    def seeing_each(self) -> Iterator[None]:
        attention, self.attention = self.attention, EachRegion()
        try:
            yield
        finally:
            self.attention = attention

    def steer(self, memory: RecurrentMemory, forced: Forced) -> RecurrentMemory:
        if (heads := forced.alpha.shape[1]) > 1:
            raise UserError(f"{type(self).__name__} has one map for each word, not those of {heads} attention heads")
        return memory._replace(forced=Forced(*(values[:, 0] for values in forced)))

    def tie(self) -> None:
        """Share weights between the output layer and the embedding (Press and Wolf 2017). Called at the end of
        constructors.

        Embeddings are then multiplied by sqrt(E), as in a Transformer, so that both uses start at their usual scale.
        Row 0 of the weights belongs to the output alone: the embedding of word 0 stays zero. Raises UserError if the
        input of the output layer has another size.
        """
        size = self.embedding.embedding_dim
        if self.output.in_features != size:
            owner, inputs = type(self).__name__, self.output.in_features
            raise UserError(f"{owner}: tied embeddings need a word_size of {inputs}, that of the output layer's input")
        nn.init.normal_(self.embedding.weight, std=size**-0.5)
        self.output.weight, self.tied = self.embedding.weight, True
        self.register_buffer("word_scale", torch.tensor(size**0.5))

    def embed(self, words: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows E"]:
        """Return the embeddings of words; zero for word 0."""
        embedded = self.embedding(words)
        return embedded * (self.word_scale * (words != PAD))[..., None] if self.tied else embedded

    @torch.no_grad()
    def sharpen(self, temperature: float) -> None:
        super().sharpen(temperature)
        if self.tied:
            self.word_scale.mul_(temperature)  # embeddings stay as they are

    def schedule_sampling(self, probability: float, batches: int) -> None:
        """In training, replace previous words by samples of the captioner (Bengio et al. 2015, section 2.4). Called by
        constructors.

        probability: the probability that a word is replaced; reached after `batches`.
        batches: the training batches over which the probability rises linearly from 0.
        """
        owner = type(self).__name__
        check_range(owner, 0, 1, scheduled_sampling=probability)
        check_range(owner, 0, 10**12, scheduled_sampling_batches=batches)
        self.own_words, self.own_words_batches = probability, batches
        if probability and batches:
            self.count_batches()

    def count_batches(self) -> None:
        """Count the training batches in `batches`, a buffer that checkpoints contain."""
        self.register_buffer("batches", torch.zeros(()))

    def count_batch(self) -> None:
        """Count a training batch, where batches are counted."""
        if self.training and "batches" in self._buffers:
            self.batches += 1

    def restart(self) -> None:
        self.attention.restart()
        if "batches" in self._buffers:
            self.batches.zero_()

    def look(self, from_word: Tensor, state: Nested, memory: RecurrentMemory, runs: int = 1) -> StepOutput:
        """Perform one time step.

        from_word: the term that the previous word of each row adds to the LSTM's pre-activations.
        runs: the number of neighbouring rows that are runs of the same caption.
        """
        raise NotImplementedError

    def deep(self, embedded: Tensor, *outputs: Tensor, runs: int = 1) -> Float[Tensor, "*rows E"]:
        """Compute the input of the vocabulary layer from the embedding of the previous word and the `outputs` of
        `look`."""
        raise NotImplementedError

    def memory(self, regions: Float[Tensor, "B L D"], real: Bool[Tensor, "B L"] | None = None) -> RecurrentMemory:
        """Compute the memory of `regions`."""
        if torch.is_autocast_enabled(regions.device.type) and not regions.requires_grad:  # or each word would cast them
            regions = regions.to(torch.get_autocast_dtype(regions.device.type))
        keys = self.score.project(regions)
        return RecurrentMemory(regions, keys, self.attention.sample_expectation_mask(regions.shape[0], regions), real)

    def attend(self, query: Tensor, state: Nested, memory: RecurrentMemory) -> tuple[AttentionOutput, Nested]:
        """Attend to the regions with a hidden state as the query. Returns the attention's output, and the score's next
        carry."""
        scored = self.score(query, memory.keys, state.carry)
        if not isinstance(scored, tuple) or len(scored) != 2:
            returned = with_article(type(scored).__name__)
            raise UserError(f"{type(self.score).__name__} must return (scores, carry), not {returned}")
        scores, carry = scored
        if scores.dim() != 3 or scores.shape[2] != memory.regions.shape[1]:
            sizes = {"B": memory.regions.shape[0], "L": memory.regions.shape[1]}
            require("scores", scores, "B R L", "float", hint=f", of {type(self.score).__name__}", **sizes)
        scores = mask_padding(scores, memory.real)
        steered = {} if memory.forced is None else {"forced": memory.forced}
        seen = self.attention(scores, memory.regions, memory.expectation_mask, state.seen_before, **steered)
        return seen, self.score.after(carry, seen.alpha)

    def for_rows(
        self, vectors: Float[Tensor, "B N"], memory: RecurrentMemory, like: Tensor
    ) -> Float[Tensor, "*rows N"]:
        """Give each row the vector of its image, in the layout of `like`."""
        return vectors[:, None].expand(-1, like.shape[1], -1)

    def step(
        self, word: Int[Tensor, "B R"], state: Nested, memory: RecurrentMemory
    ) -> tuple[Float[Tensor, "B R V"], Nested, AttentionMap]:
        require("word", word, "B R", "integer", B=memory.regions.shape[0])
        embedded = self.embed(word)
        state, seen, _, outputs = self.look(self.word_to_lstm(embedded), state, memory)
        return self.output(self.deep(embedded, *outputs)), state, AttentionMap(seen.alpha, seen.region)

    def forward(self, regions: Float[Tensor, "B L D"], words: Int[Tensor, "B R T"], runs: int = 1) -> Caption:
        """Run on given words. The loop over words computes only what depends on the previous state; the deep output and
        the vocabulary layer run on all words at once."""
        require("words", words, "B R T", "integer", B=regions.shape[0], hint=": ids of R captions per image")
        words = words.repeat_interleave(runs, dim=1) if runs > 1 else words
        self.count_batch()
        own = OwnWords(self, runs) if self.training and self.own_words else None
        memory, state = self.start(regions, words.shape[1])
        embedded, steps = [], []
        for word in F.pad(words, (1, -1)).unbind(dim=-1):
            word = own.mixed(word) if own else word
            embedded.append(self.embed(word))
            step = self.look(self.word_to_lstm(embedded[-1]), state, memory, runs)
            if own:
                own.sample(embedded[-1], step.outputs)
            state = step.state
            steps.append(step)
        outputs = (torch.stack(vectors, dim=1) for vectors in zip(*(step.outputs for step in steps), strict=True))
        deep = self.deep(torch.stack(embedded, dim=1), *outputs, runs=runs).transpose(1, 2)
        log_prob, mean = self.word_log_prob(self.output, deep, words, with_mean=self.with_mean, bars_pad=self.bars_pad)
        word_mask = words != PAD
        alpha = torch.stack([step.seen.alpha for step in steps], dim=2) * word_mask[..., None]
        regions_seen = [step.seen.region for step in steps if step.seen.region is not None]
        if not regions_seen:
            return Caption(log_prob, alpha, real=memory.real, mean_log_prob=mean)
        region = torch.stack(regions_seen, dim=2)
        queries = torch.stack([step.query.detach() for step in steps], dim=2)
        choice = self.attention.choice(alpha, region, word_mask, memory.expectation_mask, queries)
        return Caption(log_prob, alpha, region, choice, memory.real, mean)


class OwnWords:
    """Scheduled sampling in a loop over given words (Bengio et al. 2015): replaces some previous words by samples of
    the captioner. Samples have no gradient."""

    def __init__(self, model: RecurrentCaptioner, runs: int) -> None:
        self.model, self.runs = model, runs
        self.sampled: Tensor | None = None
        rising = (model.batches / model.own_words_batches).clamp(max=1) if model.own_words_batches else 1.0
        self.probability = model.own_words * rising

    def mixed(self, words: Int[Tensor, "*rows"]) -> Int[Tensor, "*rows"]:
        """Return the input words of the next time step: those of the caption, some replaced by samples."""
        if self.sampled is None:
            return words
        return torch.where(torch.rand(words.shape, device=words.device) < self.probability, self.sampled, words)

    @torch.no_grad()
    def sample(self, embedded: Tensor, outputs: tuple[Tensor, ...]) -> None:
        """Sample a word of each caption from p(y_t), but not PAD."""
        p = at_least_float32(self.model.output(self.model.deep(embedded, *outputs, runs=self.runs))).softmax(dim=-1)
        p[..., PAD] = 0
        self.sampled = sample(p)

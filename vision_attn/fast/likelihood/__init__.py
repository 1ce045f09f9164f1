"""Compute log-probabilities of given words under a vocabulary layer, without keeping all logits."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vision_attn.fast.products import linear, transposed_product
from vision_attn.fast.ragged import HasRows, places_of_words
from vision_attn.fast.versions import fast_version
from vision_attn.layers.likelihood import WordLogProb, barred
from vision_attn.layers.precision import at_least_float32

AT_ONCE = 2**24
"""The number of bytes of logits that are computed at once on a CPU."""
CACHED = 2**18
"""The number of elements of a tensor that fits into the cache of a CPU core together with others of its size: 1 MiB in
float32."""


UNSEEN = (
    "a hook on the vocabulary layer is not called where the log-probabilities of given words are computed without the "
    "logits of all words: use run.fast=false, or vision_attn.fast.restore(model)"
)


class FastWordLogProb(HasRows, WordLogProb):
    """`WordLogProb` without padding, and without keeping all logits. It never calls `output`, so hooks on `output` do
    not run."""

    weighted = False
    """Whether words have different weights in the loss: see `word_log_prob`."""

    def forward(
        self,
        output: nn.Linear,
        deep: Float[Tensor, "*rows E"],
        words: Int[Tensor, "B R T"],
        *,
        with_mean: bool = False,
        bars_pad: bool = False,
        position: Int[Tensor, "N"] | None = None,
    ) -> tuple[Float[Tensor, "B R T"], Float[Tensor, "B R T"] | None]:
        """position: the positions in `words.flatten()` of the words of `deep` (N, E); None: `deep` is of all words."""
        if position is None:
            if torch.compiler.is_compiling():  # the compiler fuses the plain expression
                return super().forward(output, deep, words, with_mean=with_mean, bars_pad=bars_pad)
            position = places_of_words(words, self.lengths)
            deep = deep.flatten(0, 2)[position]
        if output._forward_hooks or output._forward_pre_hooks:
            warnings.warn(UNSEEN, stacklevel=2)

        def placed(numbers: Tensor) -> Tensor:
            return numbers.new_zeros(words.numel()).scatter(0, position, numbers).view(words.shape)

        given = words.flatten()[position]
        log_prob = word_log_prob(output, deep, given, weighted=self.weighted, bars_pad=bars_pad)
        return placed(log_prob), placed(mean_log_prob(output, deep, given, log_prob)) if with_mean else None


@contextmanager
def weighted_words(model: nn.Module) -> Iterator[None]:
    """Context manager: words have different weights in the loss of `model`; see `word_log_prob`."""
    layers = [layer for layer in model.modules() if isinstance(layer, FastWordLogProb)]
    try:
        for layer in layers:
            layer.weighted = True
        yield
    finally:
        for layer in layers:
            del layer.weighted


def word_log_prob(
    output: nn.Linear,
    deep: Float[Tensor, "N E"],
    words: Int[Tensor, "N"],
    *,
    weighted: bool = False,
    bars_pad: bool = False,
) -> Float[Tensor, "N"]:
    """Return log softmax(output(deep))[words], in nats, in float32 or wider; 0 for PAD, word 0.

    The logits of a batch, (N, V), would be the largest tensor of a training step. On a CPU, the forward pass computes a
    part of them at a time, and from each part the gradients of the sum of all log-probabilities. If the gradient of the
    loss is the same for all words, as for a likelihood, the backward pass only multiplies these gradients by it. If it
    differs between words, the logits are computed a second time. On a GPU, and if words are `weighted`, logits are kept
    instead.

    The backward pass frees the kept tensors, so it can run only once.

    weighted: whether words have different weights in the loss.
    bars_pad: whether to take the softmax over all words but PAD.
    """
    bias: Tensor | None = output.bias
    if bars_pad:
        bias = barred(output.weight.new_zeros(len(output.weight)) if bias is None else bias)
    return _WordLogProb.apply(deep, output.weight, bias, words, torch.is_grad_enabled(), weighted)


def mean_log_prob(
    output: nn.Linear, deep: Float[Tensor, "N E"], words: Int[Tensor, "N"], log_prob: Float[Tensor, "N"]
) -> Float[Tensor, "N"]:
    """Return the mean over the vocabulary of log softmax(output(deep)), in nats, without the logits; 0 for PAD, word 0.

    All words have the same normaliser, so the mean is log p of the word plus the mean logit minus the logit of the
    word, W_mean deep + b_mean - W_word deep - b_word.

    log_prob: the output of `word_log_prob` for `words`.
    """
    weight, bias = at_least_float32(output.weight), output.bias
    # F.embedding adds its gradients fast, without a synchronisation
    difference = ((weight.mean(dim=0) - F.embedding(words, weight)) * deep).sum(dim=-1)
    if bias is not None:
        offset = at_least_float32(bias)
        difference = difference + offset.mean() - F.embedding(words, offset[:, None]).squeeze(-1)
    return log_prob + difference.where(words != 0, 0)


class _WordLogProb(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, deep: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, training: bool, weighted: bool
    ) -> Tensor:
        if torch.is_autocast_enabled(deep.device.type):
            half = torch.get_autocast_dtype(deep.device.type)
            deep, weight, bias = deep.to(half), weight.to(half), None if bias is None else bias.to(half)
        ctx.save_for_backward(deep, weight, bias, words)
        ctx.row_groups, ctx.kept, ctx.gradients = _row_groups(words, weight), [], None
        keep = training and (words.device.type != "cpu" or weighted)
        if training and not keep:
            ctx.gradients = _Gradients(deep, weight, ctx.needs_input_grad)
        dtype, log_prob = torch.promote_types(deep.dtype, torch.float32), []
        for rows in ctx.row_groups:
            logits = linear(deep[rows], weight, bias)
            if ctx.gradients:
                ones = torch.ones(len(logits), dtype=dtype, device=logits.device)
                log_prob.append(ctx.gradients.add(rows, logits, words[rows], ones))
            else:
                log_prob.append(_log_prob(logits, words[rows]))
            if keep:
                ctx.kept.append(logits)
        placed = _scatter_rows(ctx.row_groups, log_prob, lambda: words.new_zeros(len(words), dtype=dtype))
        return placed.masked_fill(words == 0, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        deep, weight, bias, words = ctx.saved_tensors
        if ctx.row_groups is None:
            raise RuntimeError("word_log_prob can be differentiated once: its backward pass frees what it kept")
        row_groups, kept, gradients = ctx.row_groups, ctx.kept, ctx.gradients
        ctx.row_groups = ctx.kept = ctx.gradients = None
        if gradients and (factor := _common_gradient(grad, row_groups)) is not None:
            return *gradients.times(factor), None, None, None
        grad, gradients = grad.masked_fill(words == 0, 0), _Gradients(deep, weight, ctx.needs_input_grad)
        for rows, logits in zip(row_groups, kept or repeat(None), strict=False):
            if logits is None:
                logits = linear(deep[rows], weight, bias)
            elif fast_version("likelihood", logits):  # which overwrites them
                logits = logits.clone()
            gradients.add(rows, logits, words[rows], grad[rows])
        return *gradients.times(None), None, None, None


def _row_groups(words: Tensor, weight: Tensor) -> list[Tensor] | list[slice]:
    """Return the groups of rows to compute together: on a CPU, some rows without PAD each; on a GPU, all rows."""
    if words.device.type != "cpu":  # where a synchronisation costs more than padding
        return [slice(None)]
    return [rows for rows in words.nonzero().squeeze(1).split(max(1, AT_ONCE // weight[:, 0].nbytes)) if len(rows)]


def _scatter_rows(row_groups: Sequence[Tensor | slice], values: list[Tensor], zeros: Callable[[], Tensor]) -> Tensor:
    """Return a tensor with the values of these groups of rows, and zeros elsewhere."""
    if not row_groups:
        return zeros()
    rows = [group for group in row_groups if isinstance(group, Tensor)]
    return zeros().index_copy(0, torch.cat(rows), torch.cat(values)) if rows else values[0]  # one slice, of all rows


def _common_gradient(grad: Tensor, row_groups: list[Tensor]) -> Tensor | None:
    """Return the gradient of every word if it is the same for all words; else None."""
    if not row_groups:
        return grad.new_zeros(())
    first = grad[row_groups[0][0]]
    return first if all((grad[rows] == first).all() for rows in row_groups) else None


class _Gradients:
    """The gradients of the input, the weight and the bias of a vocabulary layer, if they are needed."""

    def __init__(self, deep: Tensor, weight: Tensor, needed: Sequence[bool]) -> None:
        self.inputs, self.needed = (deep, weight), needed
        self.row_groups: list[Tensor | slice] = []
        self.deep: list[Tensor] = []
        self.weight: Tensor | None = None
        self.bias: Tensor | None = None

    def add(self, rows: Tensor | slice, logits: Tensor, words: Tensor, factor: Tensor) -> Tensor:
        """Add the gradients of log p(words), times `factor`. Returns log p(words). Fused loops overwrite the logits."""
        deep, weight = self.inputs
        log_prob, slopes, slopes_of_bias = _log_prob_and_slopes(logits, words, factor)
        self.row_groups.append(rows)
        if self.needed[0]:
            self.deep.append(linear(slopes, weight.mT))
        if self.needed[1]:
            product = transposed_product(slopes, deep[rows])
            product = at_least_float32(product) if product.device.type == "cpu" else product  # a GPU computes one
            self.weight = product if self.weight is None else _add(self.weight, product)
        if self.needed[2]:
            self.bias = slopes_of_bias if self.bias is None else self.bias.add_(slopes_of_bias)
        return log_prob

    def times(self, factor: Tensor | None) -> list[Tensor | None]:
        """Return the sums so far, times `factor`."""
        deep, weight = self.inputs
        if self.needed[1] and self.weight is None:
            self.weight = torch.zeros_like(weight)
            self.bias = weight.new_zeros(len(weight)) if self.needed[2] else None
        if factor is None and len(self.row_groups) > 1:
            factor = deep.new_ones(())  # the sums were added up in place, and stay here
        of_deep = _scatter_rows(self.row_groups, self.deep, lambda: torch.zeros_like(deep)) if self.needed[0] else None
        gradients = of_deep, self.weight, self.bias
        return [gradient if gradient is None or factor is None else gradient * factor for gradient in gradients]


def _add(total: Tensor, half: Tensor) -> Tensor:
    """total + half, in place. A sum of two types makes a copy of one of them."""
    for to, block in zip(total.split(CACHED // 2**10), half.split(CACHED // 2**10), strict=True):
        to += block
    return total


def _log_prob(logits: Tensor, words: Tensor) -> Tensor:
    log_prob = at_least_float32(logits.gather(-1, words[:, None]).squeeze(-1))
    for rows in _cached(logits):
        log_prob[rows] -= at_least_float32(logits[rows]).logsumexp(dim=-1)
    return log_prob


def _log_prob_and_slopes(logits: Tensor, words: Tensor, factor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log p(words); its derivatives with respect to the logits, times `factor`; and their sum over rows. Fused
    loops write the derivatives into the logits."""
    if loops := fast_version("likelihood", logits):
        logits.gather(-1, words[:, None])  # raises for what is no word; loops do not check
        log_prob, sums = loops.log_prob_and_slopes(logits, words, factor)
        return log_prob, logits, sums
    log_prob, sums, all_slopes = torch.empty_like(factor), factor.new_zeros(logits.shape[1]), []
    for rows in _cached(logits):  # d log p(word) / d logits = 1[word] - p
        all_words, word, by = at_least_float32(logits[rows]).log_softmax(dim=-1), words[rows, None], factor[rows, None]
        log_prob[rows] = all_words.gather(-1, word).squeeze(-1)
        slopes = all_words.exp_().mul_(-by).scatter_add_(-1, word, by)
        sums += slopes.sum(dim=0)
        all_slopes.append(slopes.to(logits.dtype))
    return log_prob, torch.cat(all_slopes) if len(all_slopes) > 1 else all_slopes[0], sums


def _cached(logits: Tensor) -> list[slice]:
    """Return slices of a few rows, so that the float32 intermediates between logits and gradient stay in a CPU's
    cache."""
    at_once = max(1, (2**26 if logits.is_cuda else CACHED) // logits.shape[1])
    return [slice(first, first + at_once) for first in range(0, len(logits), at_once)]

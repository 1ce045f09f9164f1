"""The papers read once more, apart from the package's own files: their equations, one number at a time.

Loops run over images, rows, words and regions; nothing is batched, padded, shared or fused, and no layer or cell of the
package is called. Everything stays in the
dtype of its inputs: give float64 for the sharpest comparison. Equations are those of Xu et al., ICML 2015.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

PAD, END = 0, 1


# Attention


def additive_scores(a: Tensor, h: Tensor, W_a: Tensor, W_h: Tensor, b: Tensor, v: Tensor) -> Tensor:
    """e_i = v^T tanh(W_a a_i + W_h h + b), for regions a (L, D) and one state h (H) (eq. 4)."""
    return torch.stack([v @ torch.tanh(W_a @ a_i + W_h @ h + b) for a_i in a])


def softmax(e: Tensor) -> Tensor:
    """alpha_i = exp(e_i) / sum_k exp(e_k) (eq. 5); taking the largest off first only avoids overflow."""
    exponentials = [torch.exp(e_i - e.max()) for e_i in e]
    return torch.stack([exponential / sum(exponentials) for exponential in exponentials])


def expected_context(alpha: Tensor, a: Tensor) -> Tensor:
    """z = sum_i alpha_i a_i (eq. 13)."""
    return sum((alpha_i * a_i for alpha_i, a_i in zip(alpha, a, strict=True)), torch.zeros_like(a[0]))


def doubly_stochastic(alpha: Tensor) -> Tensor:
    """sum_i (1 - sum_t alpha_ti)^2 of one caption, alpha (T, L) over its own words only (eq. 14)."""
    penalty = alpha.new_zeros(())
    for i in range(alpha.shape[1]):
        attention = alpha.new_zeros(())
        for t in range(alpha.shape[0]):
            attention = attention + alpha[t, i]
        penalty = penalty + (1 - attention) ** 2
    return penalty


# Show, Attend and Tell, soft, without dropout


class Turn(NamedTuple):
    """What one image and one caption carry from word to word."""

    h: Tensor
    c: Tensor
    alpha: Tensor | None = None


def paper_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a `ShowAttendTell` under the paper's symbols. The LSTM's are cut into its four gates."""
    weights = {
        "W_a": model.score.key.weight,
        "b": model.score.key.bias,
        "W_h": model.score.query.weight,
        "v": model.score.weight,
        "f_beta": model.gate.weight,
        "b_beta": model.gate.bias,
        "E": model.embedding.weight,
        "L_h": model.hidden_to_output.weight,
        "b_Lh": model.hidden_to_output.bias,
        "L_z": model.context_to_output.weight,
        "L_o": model.output.weight,
        "b_Lo": model.output.bias,
    }
    for symbol, mlp in (("h", model.initial_hidden), ("c", model.initial_cell)):
        first, last = (layer for layer in mlp if isinstance(layer, nn.Linear))
        weights |= {f"init_{symbol}1": first.weight, f"init_{symbol}1_b": first.bias}
        weights |= {f"init_{symbol}2": last.weight, f"init_{symbol}2_b": last.bias}
    for place, gate in enumerate("ifog"):  # input, forget, output, candidate
        weights[f"W_{gate}"] = model.word_to_lstm.weight.chunk(4)[place]
        weights[f"b_{gate}"] = model.word_to_lstm.bias.chunk(4)[place]
        weights[f"U_{gate}"] = model.hidden_to_lstm.weight.chunk(4)[place]
        weights[f"Z_{gate}"] = model.context_to_lstm.weight.chunk(4)[place]
    return weights


def first_turn(w: Mapping[str, Tensor], a: Tensor) -> Turn:
    """h_0 = f_init,h(mean of a), c_0 = f_init,c(mean of a): a hidden ReLU layer, then tanh."""
    mean = sum(a) / len(a)
    h, c = (
        torch.tanh(w[f"init_{s}2"] @ torch.relu(w[f"init_{s}1"] @ mean + w[f"init_{s}1_b"]) + w[f"init_{s}2_b"])
        for s in "hc"
    )
    return Turn(h, c)


def next_turn(
    w: Mapping[str, Tensor], a: Tensor, previous: int, turn: Turn, region: int | None = None
) -> tuple[Tensor, Turn]:
    """log p(y_t | y_1..t-1, image) of every word y_t, (V), after the word `previous`; eqs. 1 to 7. With a `region`,
    that one alone is seen (eq. 9)."""
    h, c, _ = turn
    y = torch.zeros_like(w["E"][0]) if previous == PAD else w["E"][previous]  # the first word's embedding is zero
    alpha = softmax(additive_scores(a, h, w["W_a"], w["W_h"], w["b"], w["v"]))
    beta = torch.sigmoid(w["f_beta"] @ h + w["b_beta"])
    z = beta * (expected_context(alpha, a) if region is None else a[region])
    input_gate, forget_gate, output_gate = (
        torch.sigmoid(w[f"W_{g}"] @ y + w[f"U_{g}"] @ h + w[f"Z_{g}"] @ z + w[f"b_{g}"]) for g in "ifo"
    )
    candidate = torch.tanh(w["W_g"] @ y + w["U_g"] @ h + w["Z_g"] @ z + w["b_g"])
    c = forget_gate * c + input_gate * candidate
    h = output_gate * torch.tanh(c)
    logits = w["L_o"] @ torch.tanh(y + w["L_h"] @ h + w["b_Lh"] + w["L_z"] @ z) + w["b_Lo"]
    return torch.log(softmax(logits)), Turn(h, c, alpha)


def show_attend_tell(w: Mapping[str, Tensor], regions: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """(B, L, D), (B, R, T) targets -> log-probabilities (B, R, T) and alpha (B, R, T, L), zero at padding."""
    B, R, T = words.shape
    log_prob = regions.new_zeros(B, R, T)
    alpha = regions.new_zeros(B, R, T, regions.shape[1])
    for b in range(B):
        for r in range(R):
            turn, previous = first_turn(w, regions[b]), PAD
            for t in range(T):
                word = int(words[b, r, t])
                if word == PAD:
                    break
                log_probs, turn = next_turn(w, regions[b], previous, turn)
                log_prob[b, r, t] = log_probs[word]
                alpha[b, r, t] = turn.alpha
                previous = word
    return log_prob, alpha


# Top-down attention, soft (Anderson et al. 2018), without dropout


def lstm_cell(W: Tensor, b: Tensor, x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """h_t and c_t of an LSTM whose input x has h_{t-1} in it; gates in the order input, forget, output, candidate."""
    i, f, o, g = (W @ x + b).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def top_down(model: nn.Module, regions: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """(B, L, D), (B, R, T) targets -> log-probabilities (B, R, T) and alpha (B, R, T, L), 0 at padding (eq. 1-7)."""
    (B, R, T), H = words.shape, model.state_size
    log_prob, alpha = regions.new_zeros(B, R, T), regions.new_zeros(B, R, T, regions.shape[1])
    score, zero = model.score, regions.new_zeros(H)
    W1 = torch.cat([model.hidden_to_lstm.weight, model.mean_to_lstm.weight, model.word_to_lstm.weight], dim=1)
    for b in range(B):
        a = regions[b]
        mean = sum(a) / len(a)
        for r in range(R):
            h1, c1, h2, c2, previous = zero, zero, zero, zero, PAD
            for t in range(int((words[b, r] != PAD).sum())):
                y = model.embedding.weight[previous] * (previous != PAD)
                h1, c1 = lstm_cell(W1, model.word_to_lstm.bias, torch.cat([h2, h1, mean, y]), c1)
                e = additive_scores(a, h1, score.key.weight, score.query.weight, score.key.bias, score.weight)
                alpha[b, r, t] = softmax(e)
                x2 = torch.cat([expected_context(alpha[b, r, t], a), h1, h2])
                h2, c2 = lstm_cell(model.to_language.weight, model.to_language.bias, x2, c2)
                previous = int(words[b, r, t])
                log_prob[b, r, t] = torch.log(softmax(model.output.weight @ h2 + model.output.bias))[previous]
    return log_prob, alpha


class Path(NamedTuple):
    """One way of looking at an image while saying a caption: a region for each word."""

    regions: tuple[int, ...]
    look: Tensor
    """log p(s_t | s_<t, y_<t, a) of each region, (T)."""
    said: Tensor
    """log p(y_t | s_<=t, y_<t, a) of each word, (T)."""
    entropy: Tensor
    """H[s_t] of each map, (T)."""


def every_path(w: Mapping[str, Tensor], a: Tensor, words: Iterable[int]) -> Iterator[Path]:
    """All L^T ways of looking at regions a (L, D) while saying `words`; sum of exp(sum of look) is 1."""
    words = tuple(words)
    for regions in itertools.product(range(len(a)), repeat=len(words)):
        turn, previous, look, said, entropy = first_turn(w, a), PAD, [], [], []
        for region, word in zip(regions, words, strict=True):
            log_probs, turn = next_turn(w, a, previous, turn, region)
            look.append(torch.log(turn.alpha[region]))
            said.append(log_probs[word])
            entropy.append(-sum(p * torch.log(p) for p in turn.alpha))
            previous = word
        yield Path(regions, torch.stack(look), torch.stack(said), torch.stack(entropy))


def expected_log_prob(w: Mapping[str, Tensor], a: Tensor, words: Iterable[int]) -> Tensor:
    """L_s = sum_s p(s | a) log p(y | s, a), the bound that hard attention climbs (eq. 10)."""
    return sum(torch.exp(path.look.sum()) * path.said.sum() for path in every_path(w, a, words))


def next_words(w: Mapping[str, Tensor], a: Tensor) -> Callable[[tuple[int, ...]], Tensor]:
    """For one image, the function from the words so far to log p of every next word."""

    @cache
    def turn_after(words: tuple[int, ...]) -> tuple:
        *before, last = words or (PAD,)
        return next_turn(w, a, last, turn_after(tuple(before))[1] if words else first_turn(w, a))

    return lambda words: turn_after(words)[0]


# Decoding


class Said(NamedTuple):
    """One caption: its words, the end included when it was said, and the log-probability of each."""

    words: tuple[int, ...]
    log_prob: tuple[float, ...]


def every_caption(
    after: Callable[[tuple[int, ...]], Tensor], words: Iterable[int], max_words: int, end: int = END
) -> Iterator[Said]:
    """Every caption over the vocabulary `words` (without the end): those that end within `max_words` words, the end
    counted, and those that are cut there. Their probabilities sum to 1 when nothing outside `words` has any."""
    words = tuple(words)
    for length in range(max_words):
        for said in itertools.product(words, repeat=length):
            yield _said((*said, end), after)
    for said in itertools.product(words, repeat=max_words):
        yield _said(said, after)


def _said(words: tuple[int, ...], after: Callable[[tuple[int, ...]], Tensor]) -> Said:
    return Said(words, tuple(after(words[:t])[word].item() for t, word in enumerate(words)))

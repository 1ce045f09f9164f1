"""CTC against the enumeration of all paths: its probability, its prefixes, both ways of decoding, its alignments."""

import math
from itertools import product
from typing import NamedTuple

import pytest
import torch
from torch.nn import functional as F

from vision_attn.contracts import Caption, Results
from vision_attn.criteria.ctc import CTCLoss
from vision_attn.decode import beam_search
from vision_attn.decode.ctc import align, best_path, prefix_beam_search
from vision_attn.metrics.evaluators import ReferenceLikelihood
from vision_attn.models.ctc import CTC, forward_variables

B, L, D, V = 3, 6, 4, 5  # words 3 and 4 are characters
CHARACTERS = (3, 4)


def model() -> CTC:
    torch.manual_seed(0)
    built = CTC(V, D, hidden_size=4).double().eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(4)
    return built


@pytest.fixture(scope="module")
def regions() -> torch.Tensor:
    return torch.randn(B, L, D, generator=torch.Generator().manual_seed(1)).double()


def collapsed(path: tuple[int, ...]) -> tuple[int, ...]:
    kept = [label for number, label in enumerate(path) if not number or label != path[number - 1]]
    return tuple(label for label in kept if label)


def enumerated(frames: torch.Tensor) -> dict[tuple[int, ...], tuple[float, tuple[int, ...], float]]:
    """p of every transcript of one line, and its most likely path with its p."""
    found: dict = {}
    p = frames.exp().tolist()
    for path in product(range(V), repeat=len(p)):
        if 1 in path:  # END is no label
            continue
        weight = 1.0
        for column, label in enumerate(path):
            weight *= p[column][label]
        total, best, highest = found.get(collapsed(path), (0.0, path, -1.0))
        found[collapsed(path)] = (total + weight, *((path, weight) if weight > highest else (best, highest)))
    return found


@pytest.fixture(scope="module")
def lines(regions) -> list[dict]:
    return [enumerated(frames) for frames in model().frames(regions)]


def padded(texts: list[tuple[int, ...]]) -> torch.Tensor:
    longest = max(map(len, texts)) + 1
    return torch.tensor([[*text, 1, *[0] * (longest - 1 - len(text))] for text in texts])


TEXTS = [(), (3,), (3, 3), (4, 3, 4), (3, 4, 2, 4), (4, 4, 4)]


def test_labels_are_probabilities_without_end(regions) -> None:
    frames = model().frames(regions)
    torch.testing.assert_close(frames.exp().sum(dim=-1), torch.ones(B, L).double())
    assert frames[..., 1].exp().max() == 0


def test_the_probability_of_a_transcript_is_the_sum_over_all_paths(regions, lines) -> None:
    words = padded(TEXTS)[None].expand(B, -1, -1)
    log_prob = model()(regions, words).log_prob
    for line, rows in zip(lines, log_prob, strict=True):
        assert sum(p for p, *_ in line.values()) == pytest.approx(1)
        for text, row in zip(TEXTS, rows, strict=True):
            assert row.sum().exp().item() == pytest.approx(line[text][0], rel=1e-9)
            assert row[: len(text)].abs().sum() == 0  # all of it is at END


def test_step_gives_the_same_character_by_character(regions, lines) -> None:
    captioner = model()
    memory, state = captioner.start(regions, 1)
    for text in TEXTS:
        now, word, prefix = state, torch.zeros(B, 1, dtype=torch.long), ()
        for following in (*text, 1):
            logits, now, look = captioner.step(word, now, memory)
            p = logits.softmax(dim=-1)[:, 0]
            torch.testing.assert_close(look.alpha.sum(dim=-1), torch.ones(B, 1).double())
            for line, row in zip(lines, p, strict=True):
                start = {text: weight for text, (weight, *_) in line.items() if text[: len(prefix)] == prefix}
                going = sum(p for text, p in start.items() if text[: len(prefix) + 1] == (*prefix, following))
                wanted = start[prefix] if following == 1 else going
                assert row[following].item() == pytest.approx(wanted / sum(start.values()), rel=1e-7)
            word, prefix = torch.full((B, 1), following), (*prefix, following)


def test_a_wide_prefix_beam_finds_what_enumeration_finds(regions, lines) -> None:
    captioner = model()
    decoded = prefix_beam_search(captioner.frames(regions), beams=40, never=(2,))
    barred = model().frames(regions).masked_fill(torch.arange(V) == 2, -1e30)
    for row, line in enumerate(map(enumerated, barred)):
        best = sorted(line.items(), key=lambda item: -item[1][0])[:5]
        for number, (text, (p, *_)) in enumerate(best):
            assert [word for word in decoded.words[row, number].tolist() if word > 1] == list(text)
            assert decoded.score[row, number].exp().item() == pytest.approx(p, rel=1e-9)
    whole = prefix_beam_search(captioner.frames(regions), beams=1100)  # as wide as everything
    general = beam_search(captioner, regions, beams=1100, max_words=L + 1)
    torch.testing.assert_close(whole.score[:, :5], general.score[:, :5])
    assert torch.equal(whole.words[:, 0], general.words[:, 0, : whole.words.shape[2]])


def test_transcripts_are_cut(regions) -> None:
    frames = model().frames(regions)
    for limit in (1, 2, 3):
        for decode in (best_path, prefix_beam_search):
            decoded = decode(frames, max_words=limit)
            assert decoded.words.shape[2] <= limit
            ended, length = (decoded.words == 1).sum(dim=-1), (decoded.words > 1).sum(dim=-1)
            assert torch.equal(ended == 1, (length < limit) & decoded.score.isfinite())  # one that is cut has no END
            torch.testing.assert_close(decoded.log_prob.sum(dim=-1), decoded.score.where(decoded.score.isfinite(), 0))


def test_the_best_path_is_the_most_likely_label_of_each_column(regions) -> None:
    frames = model().frames(regions)
    decoded = best_path(frames)
    for row, (path, score) in enumerate(zip(frames.argmax(-1).tolist(), decoded.score[:, 0], strict=True)):
        assert [word for word in decoded.words[row, 0].tolist() if word > 1] == list(collapsed(tuple(path)))
        assert score.item() == pytest.approx(frames[row].amax(-1).sum().item())


def test_the_map_of_a_character_is_its_part_of_the_most_likely_path(regions, lines) -> None:
    words = padded(TEXTS)[None].expand(B, -1, -1)
    alpha = align(model().frames(regions), words)
    for row, line in enumerate(lines):
        for number, text in enumerate(TEXTS):
            path = line[text][1]
            starts = [c for c, label in enumerate(path) if label and (not c or label != path[c - 1])]
            for place, start in enumerate(starts):
                end = next((c for c in range(start, L) if path[c] != path[start]), L)
                p = model().frames(regions)[row, start:end, path[start]].exp()
                wanted = torch.zeros(L).double()
                wanted[start:end] = p / p.sum()
                torch.testing.assert_close(alpha[row, number, place], wanted)
            assert alpha[row, number, len(text) :].abs().sum() == 0


def test_a_transcript_that_does_not_fit_is_left_out(regions) -> None:
    captioner = model()
    words = padded([(3, 3, 3, 3), (3, 4), (3, 4, 3)])[:, None]
    caption = captioner(regions, words)
    assert caption.log_prob.sum(dim=-1).flatten().isfinite().tolist() == [False, True, True]
    found = CTCLoss(captioner)(caption, words)
    assert found["too_long"].item() == pytest.approx(1 / 3)
    expected = -caption.log_prob[1:].sum() / 3
    torch.testing.assert_close(found["loss"], expected)
    found["loss"].backward()
    assert all(parameter.grad.isfinite().all() for parameter in captioner.parameters())
    assert captioner.output.weight.grad.abs().sum() > 0


def test_the_gradient_is_that_of_enumeration(regions) -> None:
    captioner, words = model(), padded([(3, 4)] * B)[:, None]
    frames = captioner.frames(regions)
    paths = torch.tensor([path for path in product((0, *CHARACTERS), repeat=L) if collapsed(path) == (3, 4)])
    summed = sum(frames[:, range(L), path].sum(dim=-1).exp() for path in paths).log().sum()
    expected = torch.autograd.grad(summed, captioner.output.weight)[0]
    got = torch.autograd.grad(captioner(regions, words).log_prob.sum(), captioner.output.weight)[0]
    torch.testing.assert_close(got, expected)
    assert isinstance(captioner(regions, words), Caption)


def test_not_a_number_is_not_too_long(regions):
    broken = model()
    broken.output.weight.data.fill_(torch.nan)
    words = torch.tensor([[[3, 1]]]).expand(B, -1, -1)
    found = CTCLoss(broken)(broken(regions, words), words)
    assert found["loss"].isnan() and found["too_long"] == 0


def test_what_does_not_fit_does_not_count_in_the_likelihood_of_references(regions):
    class Batch(NamedTuple):
        words: torch.Tensor

    built = model().requires_grad_(False)
    words = torch.tensor([[[3, 4, 3, 4, 3, 4, 3, 1]], [[3, 1, *[0] * 6]], [[4, 3, 1, *[0] * 5]]])
    log_prob = built(regions, words).log_prob
    assert log_prob[0].sum() == -torch.inf
    measured = ReferenceLikelihood()
    measured.update(Batch(words), Results(Caption(log_prob), [], {}, frozenset()))
    assert measured.compute()["nll"] == pytest.approx(-float(log_prob[1:].sum()) / 5)
    alone = ReferenceLikelihood()
    alone.update(Batch(words[:1]), Results(Caption(log_prob[:1]), [], {}, frozenset()))
    assert math.isnan(alone.compute()["nll"])


def test_forward_variables_are_the_loss_of_torch() -> None:
    """Which waits for a GPU. Also for repeated characters, padding, and no character at all."""
    torch.manual_seed(0)
    frames = torch.randn(6, 5, 5, dtype=torch.float64, requires_grad=True)  # (L, N, V)
    words = torch.tensor([[2, 3, 2, 0], [4, 4, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0], [2, 3, 4, 2]])
    length = (words != 0).sum(dim=1)
    log_prob = frames.log_softmax(dim=-1)
    expected = -F.ctc_loss(log_prob, words, torch.full_like(length, 6), length, reduction="none")
    found = forward_variables(log_prob, words)[0]
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(one.sum(), frames, retain_graph=True)[0] for one in (found, expected)]
    torch.testing.assert_close(*gradients)

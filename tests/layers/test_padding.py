"""Images with different numbers of regions: a batch gives what each image gives by itself."""

from functools import partial

import pytest
import torch
from torch import Tensor

from vision_attn.attention.hard import Hard, StraightThrough
from vision_attn.attention.location import Coverage, GaussianMixture, LocalPredictive
from vision_attn.attention.monotonic import HardMonotonic, Monotonic
from vision_attn.attention.scores import Additive, Cosine, General
from vision_attn.attention.soft import Soft
from vision_attn.contracts import Captioner
from vision_attn.criteria.doubly_stochastic import DoublyStochastic
from vision_attn.data.photographs.annotation_vectors.vectors import padded
from vision_attn.decode import beam_search, greedy
from vision_attn.layers.padding import mean_region, real_regions
from vision_attn.metrics.attention import map_statistics
from vision_attn.models.ctc import CTC
from vision_attn.models.encoder_decoder import RNNsearch
from vision_attn.models.ensemble import Ensemble, Share
from vision_attn.models.show_and_tell import ShowAndTell
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.top_down import TopDown
from vision_attn.models.transformer import Transformer
from vision_attn.system.errors import UserError

V, D, H = 9, 5, 6
SIZES = (3, 11, 1, 8)  # numbers of regions
WORDS = torch.tensor([[[3, 4, 5, 1], [6, 7, 1, 0]], [[4, 4, 1, 0], [3, 1, 0, 0]], [[5, 1, 0, 0], [1, 0, 0, 0]]])
WORDS = torch.cat([WORDS, WORDS[2:]])

attends = partial(ShowAttendTell, hidden_size=H, word_size=4, dropout=0.0)
additive = partial(Additive, attention_size=7)
MODELS = {
    "soft": partial(attends, score=additive),
    "bilinear": partial(attends, score=General),
    "cosine": lambda words, size: attends(words, size, hidden_size=D, score=Cosine),
    "coverage": partial(attends, score=partial(Coverage, attention_size=7)),
    "mixture": partial(attends, score=GaussianMixture),
    "hard": partial(attends, score=additive, attention=Hard),
    "most likely": partial(attends, score=additive, attention=partial(Hard, at_test="argmax")),
    "straight": partial(attends, score=additive, attention=StraightThrough),
    "monotonic": partial(attends, score=additive, attention=partial(Monotonic, at_test="expectation")),
    "advancing": partial(attends, score=additive, attention=partial(Monotonic, advance=2, at_test="expectation")),
    "online": partial(attends, score=additive, attention=partial(Monotonic, offset=0.0)),
    "hard monotonic": partial(attends, score=additive, attention=partial(HardMonotonic, at_test="expectation")),
    "top-down": partial(TopDown, hidden_size=H, word_size=4, score=additive),
    "transformer": partial(Transformer, hidden_size=8, num_layers=2, num_heads=2, feedforward_size=8, dropout=0.0),
    "none": partial(ShowAndTell, hidden_size=H, word_size=4, dropout=0.0),
}


def build(name: str) -> Captioner:
    torch.manual_seed(0)
    if name == "ensemble":
        members = [build(each) for each in ("soft", "none", "transformer")]
        model = Ensemble(members, [Share(None, slice(None))] * 3, same_regions=True)
    else:
        model = MODELS[name](V, D)
        for weight in model.parameters():  # so that maps are far from even
            weight.data.mul_(3)
    model.leave_out_padding()
    return model.double().eval()


def images() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, D, generator=generator, dtype=torch.float64) for size in SIZES]


def outcome(model: Captioner, regions: Tensor, words: Tensor) -> tuple[list, list[Tensor]]:
    """log p, the map without padding, the penalty, its statistics and the gradients."""
    model.zero_grad()
    caption = model(regions, words)
    penalty = DoublyStochastic(model)(caption, words)
    loss = -caption.log_prob.sum(dim=-1).mean() + penalty.get("loss", 0)
    loss.backward()
    gradients = [torch.zeros_like(w) if w.grad is None else w.grad.clone() for w in model.parameters()]
    statistics = {} if caption.alpha is None else map_statistics(caption.alpha.detach(), words != 0)
    return [caption, penalty.get("penalty", torch.zeros(())), statistics], gradients


@pytest.mark.parametrize("name", [*MODELS, "ensemble"])
def test_a_batch_gives_what_each_image_gives_by_itself(name: str) -> None:
    model, alone = build(name), images()
    regions = padded(alone)
    assert regions.shape == (4, 16, D)
    (caption, penalty, statistics), gradients = outcome(model, regions, WORDS)
    singles = [outcome(model, each[None], words[None]) for each, words in zip(alone, WORDS, strict=True)]
    for number, ((one, *_), _) in enumerate(singles):
        torch.testing.assert_close(caption.log_prob[number], one.log_prob[0])
        if caption.alpha is not None:
            size = SIZES[number]
            torch.testing.assert_close(caption.alpha[number, ..., :size], one.alpha[0])
            assert not caption.alpha[number, ..., size:].any()
    torch.testing.assert_close(penalty, torch.stack([part[1] for part, _ in singles]).mean())
    for whole, *parts in zip(gradients, *(parts for _, parts in singles), strict=True):
        torch.testing.assert_close(whole, torch.stack(parts).mean(dim=0))
    said = (WORDS != 0).sum(dim=(1, 2)).double()
    if statistics:
        entropies = torch.stack([part[2]["entropy"] for part, _ in singles])
        torch.testing.assert_close(statistics["entropy"], (entropies * said).sum() / said.sum())


@pytest.mark.parametrize("name", [*MODELS, "ensemble"])
def test_decoding_finds_the_same_captions(name: str) -> None:
    model, alone = build(name), images()
    for decode in (partial(beam_search, beams=3), greedy):
        whole = decode(model, padded(alone), max_words=6)
        for number, each in enumerate(alone):
            one = decode(model, each[None], max_words=6)
            length = one.words.shape[2]
            assert (
                torch.equal(whole.words[number, :, :length], one.words[0]) and not whole.words[number, :, length:].any()
            )
            torch.testing.assert_close(whole.score[number], one.score[0])
            if one.alpha is not None:
                torch.testing.assert_close(whole.alpha[number, :, :length, : len(each)], one.alpha[0])
                assert not whole.alpha[number, ..., len(each) :].any()


@pytest.mark.parametrize("attention", [Hard, HardMonotonic, partial(StraightThrough, temperature=100.0)])
def test_samples_never_fall_on_padding(attention) -> None:
    torch.manual_seed(0)
    model = attends(V, D, score=additive, attention=attention).train()
    model.leave_out_padding()
    regions = padded([each.float() for each in images()]).repeat(20, 1, 1).requires_grad_()
    caption = model(regions, WORDS.repeat(20, 1, 1))
    sizes = torch.tensor(SIZES).repeat(20)[:, None, None]
    assert (caption.region < sizes).all() and len(caption.region.unique()) > 5
    caption.log_prob.sum().backward()
    real = real_regions(regions)
    assert real.sum(dim=1).tolist() == list(SIZES) * 20
    if not isinstance(model.attention, HardMonotonic):  # means of the initial state apart, padding has no gradient
        model.zero_grad()
        seen = model.attention(torch.randn(80, 2, 16).masked_fill(~real[:, None], -torch.inf), regions)
        (gradient,) = torch.autograd.grad(seen.context.sum(), regions)
        assert not gradient[~real].any() and gradient[real].any()


def test_the_mean_and_an_image_without_a_region() -> None:
    alone = images()
    regions = padded(alone)
    torch.testing.assert_close(mean_region(regions, real_regions(regions)), torch.stack([a.mean(0) for a in alone]))
    assert real_regions(torch.zeros(1, 3, D)).all()
    assert build("soft")(torch.zeros(1, 3, D).double(), WORDS[:1]).log_prob.isfinite().all()


def test_models_without_padding_take_zeros_for_vectors() -> None:
    torch.manual_seed(0)
    model = attends(V, D, score=additive).eval()
    caption = model(padded([each.float() for each in images()]), WORDS)
    assert caption.real is None and (caption.alpha[WORDS != 0] > 0).all()


def test_captioners_that_would_read_padding_refuse_it() -> None:
    for model in (RNNsearch(V, D), CTC(V, D)):
        with pytest.raises(UserError, match=rf"{type(model).__name__} cannot leave out padding.*grid=\[1,36\]"):
            model.leave_out_padding()
    with pytest.raises(UserError, match="LocalPredictive counts regions"):
        attends(V, D, score=LocalPredictive).leave_out_padding()
    assert Soft().pads is False

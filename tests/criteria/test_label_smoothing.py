"""Label smoothing is that of torch's cross entropy, for every captioner, without the logits of all words."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests import pretend
from vision_attn.attention.glimpse import Retina
from vision_attn.attention.hard import Hard
from vision_attn.attention.scores import Additive
from vision_attn.contracts import Captioner
from vision_attn.criteria.likelihood import Likelihood
from vision_attn.fast import likelihood
from vision_attn.models.ctc import CTC
from vision_attn.models.dram import DRAM
from vision_attn.models.encoder_decoder import EncoderDecoder, RNNsearch
from vision_attn.models.ram import ContextLSTM, GlimpseNetwork
from vision_attn.models.show_and_tell import ShowAndTell
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.models.top_down import TopDown
from vision_attn.models.transformer import Transformer
from vision_attn.system.errors import UserError

B, L, D, V = 2, 6, 4, 9
SIZES = {"hidden_size": 6, "word_size": 8}
ADDITIVE = partial(Additive, attention_size=7)
GLIMPSES = {
    "retina": partial(Retina, size=2, num_scales=1),
    "glimpse": partial(GlimpseNetwork, what_size=4, where_size=4, glimpse_size=6),
    "core": partial(ContextLSTM, hidden_size=6),
}
MODELS: dict[str, Callable[[], Captioner]] = {
    "soft": partial(ShowAttendTell, V, D, score=ADDITIVE, **SIZES),
    "hard": partial(ShowAttendTell, V, D, score=ADDITIVE, attention=partial(Hard, at_test="argmax"), **SIZES),
    "top-down": partial(TopDown, V, D, score=ADDITIVE, **SIZES),
    "no attention": partial(ShowAndTell, V, D, **SIZES),
    "transformer": partial(Transformer, V, D, hidden_size=8, num_heads=2, num_layers=2, feedforward_size=8),
    "RNNsearch": partial(RNNsearch, V, D, encoder_size=3, score=ADDITIVE, **SIZES),
    "one vector": partial(EncoderDecoder, V, D, encoder_size=3, **SIZES),
    "DRAM": partial(DRAM, V, D, num_glimpses=2, **GLIMPSES),
}
WORDS = {
    "padded": torch.tensor([[[3, 8, 4, 1, 0, 0], [5, 1, 0, 0, 0, 0]], [[6, 7, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]]]),
    "full": torch.tensor([[[3, 2, 1], [4, 8, 1]], [[5, 6, 1], [7, 3, 1]]]),
}


def by_cross_entropy(model: Captioner, regions: Tensor, words: Tensor, smoothing: float) -> Tensor:
    """Of the logits of `step`, one word after the other."""
    memory, state = model.start(regions, words.shape[1])
    before, loss = torch.zeros_like(words[..., 0]), regions.new_zeros(())
    for word in words.unbind(dim=2):
        logits, state, _ = model.step(before, state, memory)
        every = F.cross_entropy(logits.flatten(0, 1), word.flatten(), reduction="none", label_smoothing=smoothing)
        loss, before = loss + every[word.flatten() != 0].sum(), word
    return loss / words[..., 0].numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_are_those_of_cross_entropy(name, words, dtype, monkeypatch) -> None:
    pretend.several_parts(monkeypatch)
    torch.manual_seed(0)
    model, words = MODELS[name]().to(dtype).eval(), WORDS[words]
    regions = torch.randn(B, L, D, dtype=dtype, requires_grad=True)
    everything = [regions, *model.parameters()]
    plain, smooth = Likelihood(model), Likelihood(model, smoothing=0.3)
    found, expected = smooth(model(regions, words), words), by_cross_entropy(model, regions, words, 0.3)
    torch.testing.assert_close(found["loss"], expected)
    gradients = (torch.autograd.grad(loss, everything, allow_unused=True) for loss in (found["loss"], expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4 if dtype == torch.float32 else 1e-7, atol=1e-6)
    unsmoothed = plain(model(regions, words), words)
    torch.testing.assert_close(unsmoothed["loss"], by_cross_entropy(model, regions, words, 0.0))
    torch.testing.assert_close(found["nll"], unsmoothed["nll"], rtol=0, atol=0)


@pytest.mark.parametrize("bias", [True, False])
def test_mean_log_prob_is_that_of_all_words(bias) -> None:
    """Also in bfloat16, where the mean is in float32; 0 at padding."""
    torch.manual_seed(0)
    output, deep, words = torch.nn.Linear(8, V, bias=bias), torch.randn(20, 8), torch.randint(0, V, (20,))
    expected = output(deep).log_softmax(dim=-1).mean(dim=-1) * (words != 0)
    found = likelihood.mean_log_prob(output, deep, words, likelihood.word_log_prob(output, deep, words))
    torch.testing.assert_close(found, expected)
    with torch.autocast("cpu", torch.bfloat16):
        rough = likelihood.mean_log_prob(
            output, deep.bfloat16(), words, likelihood.word_log_prob(output, deep.bfloat16(), words)
        )
    assert rough.dtype == torch.float32 and (rough[words == 0] == 0).all()
    torch.testing.assert_close(rough, expected, rtol=0.02, atol=0.02)


def test_only_what_is_asked_for_is_computed() -> None:
    model, regions = MODELS["soft"](), torch.randn(B, L, D)
    assert model(regions, WORDS["full"]).mean_log_prob is None
    Likelihood(model, smoothing=0.1)
    Likelihood(model)
    assert model(regions, WORDS["full"]).mean_log_prob is not None


def test_what_cannot_be_smoothed_is_refused() -> None:
    model = CTC(V, D, hidden_size=4)
    criterion = Likelihood(model, smoothing=0.1)
    with pytest.raises(UserError, match="mean_log_prob, so set the smoothing of Likelihood to 0"):
        criterion(model(torch.randn(B, L, D), WORDS["full"]), WORDS["full"])
    with pytest.raises(UserError, match="smoothing is 1.5"):
        Likelihood(model, smoothing=1.5)

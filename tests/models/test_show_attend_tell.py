"""Show, Attend and Tell against the paper's equations in loops, and its two ways of running against each other."""

from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests import pretend, references
from tests.ways import prepared
from vision_attn.attention.hard import Hard
from vision_attn.attention.scores import Additive
from vision_attn.attention.soft import Soft
from vision_attn.fast import accelerate, restore
from vision_attn.layers.linear import Linear
from vision_attn.models.recurrent import RecurrentCaptioner
from vision_attn.models.show_attend_tell import ShowAttendTell
from vision_attn.system.errors import UserError

pytestmark = pytest.mark.usefixtures("both_ways")

B, R, T, L, D, V = 3, 2, 6, 5, 4, 11


def build(captioner: type[RecurrentCaptioner] = ShowAttendTell, region_size=D, **options) -> RecurrentCaptioner:
    torch.manual_seed(0)
    sizes = {"hidden_size": 6, "word_size": 8, "score": partial(Additive, attention_size=7)}
    model = captioner(V, region_size, **{**sizes, **options}).double().eval()
    with torch.no_grad():  # larger than at initialisation, so that mistakes show
        for parameter in model.parameters():
            parameter.mul_(2)
    return prepared(model)


def draw(lengths) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    lengths = torch.tensor(lengths)
    turn = torch.arange(int(lengths.max()))
    words = torch.randint(3, V, (*lengths.shape, len(turn)))
    words = words.masked_fill(turn == lengths[..., None] - 1, 1) * (turn < lengths[..., None])
    return torch.randn(len(lengths), L, D).double(), words


SORTED = [[6, 4], [5, 5], [2, 1]]
UNSORTED = [[1, 3], [2, 6], [5, 1]]


@pytest.mark.parametrize("lengths", [SORTED, UNSORTED, [[1, 1]], [[4, 0], [0, 3]]])
def test_forward_is_the_papers_equations(lengths):
    model = build()
    regions, words = draw(lengths)
    caption = model(regions, words)
    log_prob, alpha = references.show_attend_tell(references.paper_weights(model), regions, words)
    torch.testing.assert_close(caption.log_prob, log_prob, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(caption.alpha, alpha, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("num_gates", [1, D])
def test_step_and_forward_agree(num_gates):
    model = build(num_gates=num_gates)
    regions, words = draw(UNSORTED)
    caption = model(regions, words)
    memory, state = model.start(regions, words.shape[1])
    before = torch.zeros_like(words[..., 0])
    for t in range(words.shape[2]):
        logits, state, look = model.step(before, state, memory)
        before = words[..., t]
        said = before != 0
        log_prob = logits.log_softmax(-1).gather(-1, before[..., None]).squeeze(-1)
        torch.testing.assert_close(caption.log_prob[..., t][said], log_prob[said])
        torch.testing.assert_close(caption.alpha[:, :, t][said], look.alpha[said])


REPEATING = torch.tensor([[[3, 4, 5, 1]]]).expand(2, 4, 4)
"""32 words, four of them different."""
DIFFERENT = torch.tensor([[[3, 4, 5, 1], [6, 7, 8, 1], [9, 10, 4, 1], [8, 6, 3, 1]]] * 2)


@pytest.mark.parametrize("words", [REPEATING, DIFFERENT], ids=["repeating", "different"])
def test_words_that_repeat_have_the_gradients_of_plain_torch(words):
    """Of fast versions, which compute what the LSTM gets of a word once for all of its places."""
    regions, found = torch.randn(2, L, D).double(), []
    for exchange in (accelerate, restore):
        model = build()
        exchange(model)
        log_prob = model(regions, words).log_prob
        gradients = torch.autograd.grad(log_prob.sum(), [*model.parameters()], allow_unused=True)
        found.append([log_prob, *gradients])
    torch.testing.assert_close(*found)


def test_words_that_repeat_take_fewer_operations():
    model, regions, operations = build(), torch.randn(2, L, D).double(), []
    accelerate(model)
    for words in (REPEATING, DIFFERENT):
        with FlopCounterMode(display=False) as counter:
            model(regions, words).log_prob.sum().backward()
        operations.append(counter.get_total_flops())
    assert operations[0] < operations[1]


@pytest.mark.parametrize("attention", [Soft, Hard])
def test_all_captions_in_all_time_steps_give_the_same(attention, monkeypatch):
    """As on a GPU, where nothing is packed."""
    model = build(attention=attention)
    accelerate(model)
    regions, words = draw(UNSORTED)
    weights = torch.randn(B, R, words.shape[2]).double()
    found = []
    for unpacked in (False, True):
        if unpacked:
            pretend.unread_words(monkeypatch)
        model.zero_grad()
        caption = model(regions, words)
        (caption.log_prob * weights).sum().backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        found.append([caption.log_prob.detach(), caption.alpha.detach(), *gradients])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_padding_and_order_change_nothing():
    """Longer padding, other row and image orders: the same loss and the same gradient."""
    model = build()
    regions, words = draw(UNSORTED)

    def gradient(regions, words):
        model.zero_grad()
        model(regions, words).log_prob.sum().backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    usual = gradient(regions, words)
    torch.testing.assert_close(gradient(regions, torch.nn.functional.pad(words, (0, 3))), usual)
    torch.testing.assert_close(gradient(regions.flip(0), words.flip(0, 1)), usual)
    assert model.embedding.weight.grad[0].abs().max() == 0, "the first word's embedding must stay zero"


def test_rows_share_an_image():
    """R captions of one image equal R images with one caption each."""
    model = build()
    regions, words = draw(SORTED)
    together = model(regions, words)
    apart = model(regions.repeat_interleave(R, 0), words.flatten(0, 1)[:, None])
    torch.testing.assert_close(together.log_prob.flatten(0, 1), apart.log_prob.flatten(0, 1))


def test_the_last_word_counts_and_maps_sum_to_one():
    regions, words = draw(SORTED)
    caption = build()(regions, words)
    assert ((caption.log_prob < 0) == (words != 0)).all()
    torch.testing.assert_close(caption.alpha.sum(-1), (words != 0).double())


def test_one_image_one_row():
    caption = build()(*draw([[3]]))
    assert caption.log_prob.shape == (1, 1, 3) and caption.alpha.shape == (1, 1, 3, L)


def test_odd_number_of_gates_is_refused():
    with pytest.raises(UserError, match=f"num_gates is 2: 1 .* or {D}"):
        build(num_gates=2)


def test_dropout_only_in_training():
    model = build(dropout=0.5)
    regions, words = draw(SORTED)
    assert torch.equal(model(regions, words).log_prob, model(regions, words).log_prob)
    model.train()
    assert not torch.equal(model(regions, words).log_prob, model(regions, words).log_prob)


def test_hidden_looks_reach_the_word_but_not_the_memory():
    model = build(dropout=0.0, context_dropout=1.0)
    regions, words = draw(SORTED)
    remembered = model(regions, words).log_prob
    model.train()
    forgotten = model(regions, words).log_prob
    assert not torch.allclose(remembered, forgotten)
    with torch.no_grad():
        model.context_to_lstm.weight.normal_()
    torch.testing.assert_close(model(regions, words).log_prob, forgotten)
    with torch.no_grad():
        model.context_to_output.weight.normal_()
    assert not torch.allclose(model(regions, words).log_prob, forgotten)


def test_looks_are_hidden_after_a_number_of_batches_which_a_checkpoint_keeps():
    model, other = (build(dropout=0.0, context_dropout=1.0, context_dropout_after=2).train() for _ in range(2))
    regions, words = draw(SORTED)
    first, second, third = (model(regions, words).log_prob for _ in range(3))
    assert torch.equal(first, second) and not torch.allclose(second, third)
    model.eval()
    torch.testing.assert_close(model(regions, words).log_prob, first)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(regions, words).log_prob, third)
    other.restart()
    assert torch.equal(other(regions, words).log_prob, first)


def test_autocast_casts_regions_once_unless_an_encoder_is_trained():
    model = build().float()
    regions, words = (part.float() if part.is_floating_point() else part for part in draw(SORTED))
    with torch.autocast("cpu", torch.bfloat16):
        assert model.start(regions, 2)[0].regions.dtype == torch.bfloat16
        once = model(regions, words)
        trained = regions.requires_grad_()
        assert model.start(trained, 2)[0].regions is trained
        each = model(trained, words)
    assert torch.equal(once.log_prob, each.log_prob) and torch.equal(once.alpha, each.alpha)


@pytest.mark.compile
def test_compiled_turns_equal_eager_ones_at_every_length():
    """With sizes that no number of captions has: where two are the same, the compiler begins again when one changes."""
    model = build(region_size=12, hidden_size=14, score=partial(Additive, attention_size=13)).float()
    batches = [(torch.randn(B, 9, 12), draw(lengths)[1]) for lengths in (SORTED, UNSORTED, [[2, 2], [2, 1], [1, 1]])]

    def gradients():
        for regions, words in batches:
            model.zero_grad()
            caption = model(regions, words)
            caption.log_prob.sum().backward()
            yield caption.log_prob.detach(), [parameter.grad.clone() for parameter in model.parameters()]

    eager = list(gradients())
    model.compile(backend="aot_eager")
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for one, other in zip(eager, gradients(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_sizes_must_be_positive():
    with pytest.raises(UserError, match="ShowAttendTell: hidden_size is 0, but must be from 1 "):
        ShowAttendTell(5, 3, hidden_size=0)
    with pytest.raises(UserError, match="a layer of 0 inputs and 3 outputs"):
        Linear(0, 3)

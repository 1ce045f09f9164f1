"""The Transformer decoder against torch's own layers, its cache against its causal mask, and its maps."""

import pytest
import torch
from torch import nn

from tests.models.test_show_attend_tell import SORTED, UNSORTED, B, D, L, R, T, V, draw
from tests.ways import prepared
from vision_attn.attention.multi_head import MultiHead
from vision_attn.attention.scores import ScaledDot
from vision_attn.decode import beam_search, greedy
from vision_attn.fast import accelerate
from vision_attn.models.transformer import Transformer, sinusoids
from vision_attn.system.errors import UserError

pytestmark = pytest.mark.usefixtures("both_ways")

H = 8
EVERY = pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "post"},
        {"positions": "learned"},
        {"num_heads": 1, "num_layers": 1},
        {"positions": "none", "shared_values": True},
    ],
    ids=str,
)


def build(**options) -> Transformer:
    torch.manual_seed(0)
    sizes = {"hidden_size": H, "num_layers": 2, "num_heads": 2, "feedforward_size": 12, "max_length": 9}
    model = Transformer(V, D, **{**sizes, **options}).double().eval()
    with torch.no_grad():  # larger than at initialisation, so that mistakes show
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return prepared(model)


@EVERY
@pytest.mark.parametrize("lengths", [SORTED, UNSORTED])
def test_step_equals_forward(options, lengths):
    model = build(**options)
    regions, words = draw(lengths)
    caption = model(regions, words)
    memory, state = model.start(regions, R)
    sizes = [part.shape for part in state.keys]
    before = torch.zeros_like(words[..., 0])
    for t in range(T):
        logits, state, look = model.step(before, state, memory)
        assert [part.shape for part in state.keys] == sizes, "the cache keeps its size"
        before = words[..., t]
        said = before != 0
        log_prob = logits.log_softmax(-1).gather(-1, before[..., None]).squeeze(-1)
        torch.testing.assert_close(caption.log_prob[..., t][said], log_prob[said])
        torch.testing.assert_close(caption.alpha[:, :, t][said], look.alpha[said])
        torch.testing.assert_close(look.heads.mean(2), look.alpha)
        torch.testing.assert_close(look.heads.sum(-1), torch.ones_like(look.heads[..., 0]))


@pytest.mark.parametrize("lengths", [SORTED, UNSORTED])
def test_padding_of_the_longest_caption_is_not_computed(lengths):
    """Accelerated, an image takes as many positions as the image with the most words has words."""
    model = build()
    accelerate(model)
    regions, words = draw(lengths)
    computed = []
    model.layers[0].to_words.query.register_forward_hook(lambda _, given, __: computed.append(given[0].shape[:2]))
    model(regions, words)
    most = max(sum(rows) for rows in lengths)
    assert computed == [(B, most)] and most < words[0].numel()


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_layers_are_torchs(norm):
    """The same weights in `nn.TransformerDecoderLayer`, caption by caption."""
    model = build(norm=norm, num_layers=1)
    regions, words = draw(SORTED)
    layer = model.layers[0]
    theirs = nn.TransformerDecoderLayer(H, 2, 12, batch_first=True, norm_first=norm == "pre", dtype=torch.double).eval()
    theirs.multihead_attn = nn.MultiheadAttention(H, 2, kdim=D, vdim=D, batch_first=True, dtype=torch.double)
    own, cross = layer.to_words, layer.to_regions
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(torch.cat([own.query.weight, own.key.weight, own.value.weight]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([own.query.bias, own.key.bias, own.value.bias]))
        theirs.self_attn.out_proj.load_state_dict(own.output.state_dict())
        for name in ("query", "key", "value"):
            getattr(theirs.multihead_attn, f"{name[0]}_proj_weight").copy_(getattr(cross, name).weight)
        theirs.multihead_attn.in_proj_bias.copy_(torch.cat([cross.query.bias, cross.key.bias, cross.value.bias]))
        theirs.multihead_attn.out_proj.load_state_dict(cross.output.state_dict())
        theirs.linear1.load_state_dict(layer.feedforward[0].state_dict())
        theirs.linear2.load_state_dict(layer.feedforward[3].state_dict())
        for number, norms in enumerate((theirs.norm1, theirs.norm2, theirs.norm3)):
            norms.load_state_dict(layer.norms[number].state_dict())
    caption = model(regions, words)
    for b in range(B):
        for r in range(R):
            ids = words[b, r][words[b, r] != 0]
            given = torch.cat([ids.new_zeros(1), ids[:-1]])[None]
            x = model.embedding(given) * H**0.5 + sinusoids(9, H)[: len(ids)].double()
            mask = nn.Transformer.generate_square_subsequent_mask(len(ids), dtype=torch.double)
            logits = model.output(model.norm(theirs(x, regions[b : b + 1], tgt_mask=mask)))
            log_prob = logits.log_softmax(-1)[0].gather(-1, ids[:, None]).squeeze(-1)
            torch.testing.assert_close(caption.log_prob[b, r, : len(ids)], log_prob)


def test_one_head_with_identity_projections_is_a_scaled_dot_product():
    attention = prepared(MultiHead(D, D, 1).double())
    with torch.no_grad():
        for layer in (attention.query, attention.key, attention.value, attention.output):
            layer.weight.copy_(torch.eye(D))
            layer.bias.zero_()
    regions, query = torch.randn(B, L, D).double(), torch.randn(B, R, D).double()
    seen, alpha = attention(query, *attention.remember(regions))
    score = ScaledDot(D, D)
    expected = score(query, score.project(regions))[0].softmax(-1)
    torch.testing.assert_close(alpha.squeeze(1), expected)
    torch.testing.assert_close(seen, expected @ regions)


def test_words_do_not_see_the_words_after_them():
    model = build()
    regions, words = draw([[T, T], [T, T], [T, T]])
    other = words.clone()
    other[..., 3:] = words[..., 3:].flip(-1) % (V - 3) + 3
    same = model(regions, words).log_prob[..., :3], model(regions, other).log_prob[..., :3]
    torch.testing.assert_close(*same)


def test_beams_reorder_the_cache():
    model = build().float()
    regions = torch.randn(4, L, D)
    for decoded in (beam_search(model, regions, beams=4, max_words=8), greedy(model, regions, max_words=8)):
        caption = model(regions, decoded.words)
        torch.testing.assert_close(decoded.log_prob, caption.log_prob, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(decoded.alpha, caption.alpha, rtol=1e-4, atol=1e-5)
        assert decoded.heads.shape == (*decoded.words.shape, 4, L)  # two layers of two heads


def test_every_weight_learns_and_dropout_acts_in_training():
    model = build().train()
    regions, words = draw(SORTED)
    caption = model(regions, words)
    caption.log_prob.sum().backward()
    assert all(parameter.grad.any() for parameter in model.parameters())
    assert not torch.equal(caption.log_prob, model(regions, words).log_prob)


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(UserError, match=r"hidden_size=10 must be a multiple of 2 \* num_heads=8"):
        Transformer(V, D, hidden_size=10, num_heads=4)
    regions, words = draw(SORTED)
    with pytest.raises(UserError, match="captions of 6 words, but max_length is 5"):
        build(max_length=5)(regions, words)
    with pytest.raises(UserError, match="max_words is 12, but must be .* at most the captioner's max_length, 9"):
        greedy(build(), regions, max_words=12)

"""Log-probabilities of given words under a vocabulary layer, word by word."""

import torch

from vision_attn.layers.likelihood import WordLogProb


def test_log_probabilities_of_words_and_their_mean_over_the_vocabulary():
    torch.manual_seed(0)
    output, deep, words = torch.nn.Linear(4, 7), torch.randn(2, 2, 3, 4), torch.randint(1, 7, (2, 2, 3))
    words[1, 0, 1:] = words[0, 1] = 0
    log_prob, mean = WordLogProb()(output, deep, words, with_mean=True)
    assert WordLogProb()(output, deep, words)[1] is None
    for place in torch.cartesian_prod(torch.arange(2), torch.arange(2), torch.arange(3)).tolist():
        each, word = output(deep[tuple(place)]).log_softmax(dim=-1), int(words[tuple(place)])
        torch.testing.assert_close(log_prob[tuple(place)], each[word] if word else torch.tensor(0.0))
        torch.testing.assert_close(mean[tuple(place)], each.mean() if word else torch.tensor(0.0))


def test_log_probabilities_are_not_rounded_under_autocast():
    output, deep, words = torch.nn.Linear(4, 7), torch.randn(2, 2, 3, 4), torch.randint(1, 7, (2, 2, 3))
    with torch.autocast("cpu", torch.bfloat16):
        log_prob, mean = WordLogProb()(output, deep, words, with_mean=True)
    assert log_prob.dtype == mean.dtype == torch.float32
    torch.testing.assert_close(log_prob, WordLogProb()(output, deep, words)[0], rtol=0.02, atol=0.02)


def test_barred_padding_has_no_probability_and_no_gradient():
    torch.manual_seed(0)
    output, deep = torch.nn.Linear(4, 7), torch.randn(1, 1, 6, 4)
    words = torch.arange(1, 7).view(1, 1, 6)
    log_prob, mean = WordLogProb()(output, deep, words, bars_pad=True)
    others = output(deep)[..., 1:].log_softmax(dim=-1)
    torch.testing.assert_close(log_prob, others.gather(-1, words[..., None] - 1).squeeze(-1))
    log_prob.sum().backward()
    assert mean is None and output.bias.grad[0] == 0 and not output.weight.grad[0].any()

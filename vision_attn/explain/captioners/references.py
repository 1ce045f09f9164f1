"""Compute log p of given captions, such as references, under a captioner of transformers."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.explain.captioners.generation import num_pictures
from vision_attn.explain.captioners.prompts import generated, generation_config
from vision_attn.explain.libraries.opening import OpenedModel
from vision_attn.system.errors import UserError


class _Given:
    """A logits processor that forces given tokens on each row of `generate`."""

    def __init__(self, tokens: Int[Tensor, "rows T"]) -> None:
        self.tokens, self.step = tokens, 0

    def __call__(self, _: Tensor, scores: Float[Tensor, "rows V"]) -> Float[Tensor, "rows V"]:
        given = self.tokens[:, self.step, None].to(scores.device)
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter(1, given, 0.0)


def ends_of(model: OpenedModel) -> list[int]:
    """Return the tokens that end a caption; empty if the model has none."""
    if hasattr(model.module, "text_decoder"):  # BLIP, which does not generate to the end that its settings name
        ends = model.module.config.text_config.sep_token_id
    else:
        ends = generation_config(model.module).eos_token_id
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


@torch.no_grad()
def log_prob_of_captions(
    model: OpenedModel, inputs: dict[str, Tensor], captions: Sequence[Sequence[str]]
) -> Float[Tensor, "B R T"]:
    """Return log p of each token of R captions of each picture, in nats. The last value is that of the end token; zeros
    follow it.

    The captions are forced on `generate`, so that any architecture handles prompts, images and positions as for its own
    captions. log p is taken before any rule of decoding. Each caption is tokenized by itself, without special tokens.

    inputs: the output of `prompts.inputs_of`.

    Raises UserError for a model without an end token.
    """
    tokenizer, ends = model.processor.tokenizer, ends_of(model)
    if not ends:
        raise UserError("this model has no token that ends a caption, so captions have no probability")
    # Tokens that the model's own settings put before any caption are certain: their log p is 0.
    first = getattr(generation_config(model.module), "forced_bos_token_id", None)
    before = [] if first is None else [first]
    rows = [
        before + tokenizer(text, add_special_tokens=False)["input_ids"] + ends[:1] for some in captions for text in some
    ]
    longest = max(map(len, rows))
    tokens = torch.tensor([row + ends[:1] * (longest - len(row)) for row in rows])
    logits = generated(
        model, inputs, num_beams=1, do_sample=True, num_return_sequences=len(rows) // num_pictures(inputs),
        max_new_tokens=longest, logits_processor=[_Given(tokens)], return_dict_in_generate=True, output_logits=True,
    ).logits  # fmt: skip
    log_probs, lengths = torch.zeros(len(rows), longest), torch.tensor([*map(len, rows)])
    for step in range(len(before), longest):
        log_prob = logits[step].float().log_softmax(dim=-1).cpu()
        token = log_prob.gather(1, tokens[:, step, None])[:, 0]
        end = log_prob[:, ends].logsumexp(dim=1)
        log_probs[:, step] = torch.where(lengths > step + 1, token, torch.where(lengths == step + 1, end, 0.0))
    return log_probs.unflatten(0, (len(captions), -1))

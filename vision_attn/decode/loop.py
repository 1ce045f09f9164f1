"""The loop over the words of a search. Its `Selector` decides whether it is greedy, sampled or a beam search."""

import torch
from jaxtyping import Float
from torch import Tensor

from vision_attn.contracts import AttentionMap, Captioner
from vision_attn.contracts.nested import take_images
from vision_attn.decode.hypotheses import Active, Decoded, Selector, best_first, map_fields, stacked, take_rows
from vision_attn.decode.replay import has_graphs, replayed
from vision_attn.decode.rules import Rules
from vision_attn.fast.linear import constant_weights
from vision_attn.fast.versions import plainly


@torch.no_grad()
def decoded(
    captioner: Captioner,
    regions: Float[Tensor, "B L D"],
    rows: int,
    rules: Rules,
    selector: Selector,
    length_power: float = 0.0,
    generator: torch.Generator | None = None,
) -> Decoded:
    """Decode `rows` captions of each image, sorted by log p / length ** length_power.

    rules: the words that may be produced.
    selector: chooses the next words of each row.
    generator: of random numbers, for a selector that samples.
    """
    if captioner.accelerated and has_graphs(regions.device):
        by_replays = replayed(captioner, regions, rows, rules, selector, length_power=length_power, generator=generator)
        if by_replays is not None:
            return by_replays
    with constant_weights(captioner), plainly(not captioner.accelerated):
        return _search(captioner, regions, rows, rules, selector, length_power, generator)


def _search(
    captioner: Captioner,
    regions: Float[Tensor, "B L D"],
    rows: int,
    rules: Rules,
    selector: Selector,
    length_power: float,
    generator: torch.Generator | None,
) -> Decoded:
    first = selector.groups if selector.reorders else rows  # all beams of a group begin as one
    memory, state = captioner.start(regions, first)
    word = torch.zeros(len(regions), first, dtype=torch.long, device=regions.device)
    ended, total = torch.zeros_like(word, dtype=torch.bool), torch.zeros(word.shape, device=word.device)
    active, steps, uniform = Active(len(regions), regions.device), [], None
    before = rules.start(word)
    for number in range(rules.max_words):
        logits, state, attention_map = captioner.step(word, state, memory)
        barred, width = rules.barred(before, number, logits.shape[-1]), word.shape[1]
        if selector.samples:
            uniform = 1 - torch.rand(*word.shape, 1, generator=generator, device=word.device)
        word, gained, total, ended, parent = selector(logits, barred, total, ended, uniform)
        step = {"word": word, "gained": gained} | map_fields(attention_map)
        if parent is not None:
            state, before = take_rows((state, before), parent)
            step |= {"parent": parent, "filled": total > -torch.inf}
        before = rules.extended(before, word)
        steps.append(active.scatter(step, width, selector.groups))
        if (going := active.going(ended)) is not None:
            if not len(going):
                break
            memory, state, word, before, total, ended = take_images((memory, state, word, before, total, ended), going)
    return _follow_parents(steps, length_power, selector.groups)


def _follow_parents(steps: list[dict[str, Tensor]], length_power: float, groups: int) -> Decoded:
    """Follow each row's parents from the last time step to the first, then sort the rows."""
    last = steps[-1]["word"]
    row = torch.arange(last.shape[1], device=last.device).expand_as(last)
    if "parent" not in steps[-1]:
        word, gained = (torch.stack([step[name] for step in steps], dim=2) for name in ("word", "gained"))
        filled, parents = gained.sum(dim=-1) > -torch.inf, row[..., None].expand_as(word)
    else:
        traced, rows = list[list[Tensor]](), list[Tensor]()
        for step in reversed(steps):
            traced.append([step[name].gather(1, row) for name in ("word", "gained", "filled")])
            row = step["parent"].gather(1, row)
            rows.append(row)
        word, gained, filled, parents = (
            torch.stack([*reversed(parts)], dim=2) for parts in (*zip(*traced, strict=True), rows)
        )
        filled = filled.all(dim=-1)
    maps = [{name: field for name, field in step.items() if name in AttentionMap._fields} for step in steps]
    return best_first(word, gained, filled, parents, stacked(maps), length_power, groups)

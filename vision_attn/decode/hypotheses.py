"""The hypotheses of a search: how a time step extends the rows of each image, and how the finished rows are sorted."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vision_attn.contracts import PAD, AttentionMap
from vision_attn.contracts.nested import Nested, map_tensors


class Decoded(NamedTuple):
    """Captions with their log-probabilities and maps. The rows of an image are sorted, best first.

    A caption that did not end within the limit has no END. Positions past a caption's end hold zeros. Rows that the
    search never filled, because the language has fewer captions or the rules bar all of them, come last with score -inf
    and no words.
    """

    words: Int[Tensor, "B R T"]
    log_prob: Float[Tensor, "B R T"]
    """log p of each word under the captioner, END included, in nats. It ignores temperature, `top_p` and the rules,
    which change the distribution that samples come from."""
    score: Float[Tensor, "B R"]
    """The score that sorts the rows: the sum of log-probabilities, divided by length ** length_power."""
    alpha: Float[Tensor, "B R T L"] | None = None
    """The map of each word; None where the captioner has none."""
    region: Int[Tensor, "B R T"] | None = None
    """The one region seen at each word; None where all regions were seen."""
    heads: Float[Tensor, "B R T K L"] | None = None
    """The maps of each attention head; None where there are no heads."""


class Selected(NamedTuple):
    """The next rows of each image, with one more word."""

    word: Int[Tensor, "B R"]
    gained: Float[Tensor, "B R"]
    """The log-probability of the word, in nats."""
    total: Float[Tensor, "B R"]
    """The sum by which beams are compared; -inf for a row that is not filled."""
    ended: Bool[Tensor, "B R"]
    parent: Int[Tensor, "B R"] | None = None
    """The row that each row continues; None: each continues itself."""


class Selector:
    """Selects the words of a time step. Searches with equal selectors share a graph, so selectors can be compared and
    hashed."""

    samples = False
    """Whether it needs random numbers."""
    reorders = False
    """Whether rows may continue others."""
    groups: int = 1
    """The number of groups in which rows continue each other. All rows of a group begin as one."""

    def words(self, logits: Tensor, barred: Tensor, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the log-probability of the next word of each row, and the word, (B, R) each. Only for a selector that
        does not reorder rows."""
        raise NotImplementedError

    def __call__(
        self,
        logits: Float[Tensor, "B R V"],
        barred: Int[Tensor, "N"] | Int[Tensor, "B R N"],
        total: Float[Tensor, "B R"],
        ended: Bool[Tensor, "B R"],
        uniform: Float[Tensor, "B R 1"] | None = None,
    ) -> Selected:
        """Return the next rows.

        barred: the words that may not be produced.
        uniform: random numbers in (0, 1], where `samples`.
        """
        raise NotImplementedError


class Active:
    """The images of a batch that are still being decoded.

    On a CPU, images whose captions have all ended leave the batch once they are a quarter of it. On a GPU, finding out
    would need a synchronisation, so all stay.
    """

    def __init__(self, num_images: int, device: torch.device):
        self.num_images, self.index = num_images, torch.arange(num_images, device=device)

    def going(self, ended: Bool[Tensor, "B R"]) -> Int[Tensor, "N"] | None:
        """Return which of the active images to continue with, as indices; None: all."""
        if ended.device.type != "cpu":
            return None
        going = (~ended.all(dim=1)).nonzero().squeeze(1)
        if 4 * len(going) > 3 * len(ended):
            return None
        self.index = self.index[going]
        return going

    def scatter(self, step: dict[str, Tensor], rows: int = 0, groups: int = 1) -> dict[str, Tensor]:
        """Scatter the active images' outputs of one time step to the full batch; finished images are unchanged.

        rows: the number of rows of each image before this time step, in `groups` of the same size; further rows of a
            finished image stay empty. 0: no beam search.
        """
        if len(self.index) == self.num_images:
            return step
        whole = {name: output.new_zeros(self.num_images, *output.shape[1:]) for name, output in step.items()}
        for name, output in step.items():
            whole[name][self.index] = output
        if "parent" in step:
            finished = torch.ones(self.num_images, dtype=torch.bool).index_fill(0, self.index, False)
            before, after = rows // groups, step["parent"].shape[1] // groups
            row = torch.arange(after).repeat(groups)
            whole["parent"][finished] = row.clamp(max=before - 1) + before * torch.arange(groups).repeat_interleave(
                after
            )
            whole["filled"][finished] = row < before
        return whole


def map_fields(attention_map: AttentionMap | None) -> dict[str, Tensor]:
    """Return the fields of an attention map that are not None, by their names."""
    fields = {} if attention_map is None else attention_map._asdict()
    return {name: field for name, field in fields.items() if field is not None}


def take_rows(nested: Nested, rows: Int[Tensor, "B K"]) -> Nested:
    """Select `rows` of each image, of tensors (B, R, ...): (B, K, ...)."""
    image = None

    def take(tensor: Tensor) -> Tensor:  # copies whole rows, which `gather` does not
        if rows.shape[1] == tensor.shape[1] == 1:  # there is no other
            return tensor
        nonlocal image
        image = torch.arange(len(rows), device=rows.device)[:, None] if image is None else image
        index = (image * tensor.shape[1] + rows).flatten()
        return tensor.flatten(0, 1).index_select(0, index).unflatten(0, rows.shape)

    return map_tensors(take, nested)


def best_first(
    word: Int[Tensor, "B R T"],
    gained: Float[Tensor, "B R T"],
    filled: Bool[Tensor, "B R"],
    parent_rows: Int[Tensor, "B R T"],
    maps_of: Callable[[Int[Tensor, "B R T"]], dict[str, Tensor]],
    length_power: float = 0.0,
    groups: int = 1,
) -> Decoded:
    """Sort the rows by score; with several groups, keep the best row of each. Rows that were never filled come last and
    are masked.

    parent_rows: at each time step, the row of the beam that had the map of this row's word.
    maps_of: returns the maps of such rows.
    """
    is_word = (word != PAD) & filled[..., None]
    score = gained.sum(dim=-1)
    if length_power:
        score = score / is_word.sum(dim=-1).clamp(min=1) ** length_power
    score, order = _sorted(score.where(filled, -torch.inf), groups)
    is_word, word, gained, parent_rows = take_rows((is_word, word, gained, parent_rows), order)
    sorted_maps = {name: _masked(field, is_word) for name, field in maps_of(parent_rows).items()}
    return Decoded(word * is_word, gained.where(is_word, 0), score, **sorted_maps)


def stacked(steps: list[dict[str, Tensor]]) -> Callable[[Int[Tensor, "B R T"]], dict[str, Tensor]]:
    """Make the argument `maps_of` of `best_first` from the maps (B, R, ...) of each time step."""

    def maps_of(rows: Int[Tensor, "B R T"]) -> dict[str, Tensor]:
        taken = [take_rows(tuple(step.values()), row) for step, row in zip(steps, rows.unbind(2), strict=True)]
        return {name: torch.stack(parts, dim=2) for name, *parts in zip(steps[0], *taken, strict=True)}

    return maps_of


def _sorted(score: Float[Tensor, "B R"], groups: int) -> tuple[Tensor, Tensor]:
    """Return the sorted scores, best first, and their rows; with several groups, only those of the best row of each
    group."""
    if groups == 1:
        return score.sort(dim=1, descending=True, stable=True)
    size = score.shape[1] // groups
    score, best = score.unflatten(1, (groups, size)).max(dim=2)
    score, order = score.sort(dim=1, descending=True, stable=True)
    return score, order * size + best.gather(1, order)


def _masked(maps: Tensor, word_mask: Bool[Tensor, "B R T"]) -> Tensor:
    """Set maps (B, R, T, ...) past a caption's end to zero, in place."""
    return maps.mul_(word_mask.view(*word_mask.shape, *[1] * (maps.dim() - 3)))

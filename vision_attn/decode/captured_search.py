"""A search on tensors of fixed shapes, so that one CUDA graph serves all of its time steps, and all searches of its
shape.

The search on a CPU (`loop`) leaves out finished images, and its tensors grow with each word. This one computes all rows
of all images at every time step, and writes its results at a position that is itself a tensor.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.contracts import END, PAD, Captioner
from vision_attn.contracts.nested import Nested, tensors_of, with_tensors
from vision_attn.decode.hypotheses import Decoded, Selected, Selector, best_first, map_fields, take_rows
from vision_attn.decode.rules import Rules
from vision_attn.fast.graphs import Later
from vision_attn.fast.versions import fast_version
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.errors import UserError

EVERY = 3
"""The number of words after which the search asks the device whether all captions have ended."""


class Growing(UserError):
    """Raised if the state of a captioner changes its shape after a word."""


class Search:
    """The buffers of a search: the captioner's memory and state, the latest word of each row, and the results of each
    time step. `advance` performs a time step; it reads and writes only these buffers and reads the weights.

    Raises Growing for a captioner whose state changes its shape.
    """

    def __init__(self, captioner: Captioner, memory: Nested, state: Nested, rules: Rules, selector: Selector):
        self.rules, self.selector = rules, selector
        images, rows = tensors_of(state)[0].shape[:2]
        self.word = torch.zeros(images, rows, dtype=torch.long, device=rules.device)
        logits, after, attention_map = captioner.step(self.word, state, memory)  # tells shapes and dtypes
        if [tensor.shape for tensor in tensors_of(state)] != [tensor.shape for tensor in tensors_of(after)]:
            raise Growing(f"the state of {type(captioner).__name__} changes its shape from word to word")
        pairs = zip(tensors_of(state), tensors_of(after), strict=True)
        dtypes = [torch.promote_types(old.dtype, new.dtype) for old, new in pairs]
        self.state = with_tensors(state, map(_empty, tensors_of(state), dtypes))
        self.memory = with_tensors(memory, map(_empty, tensors_of(memory)))
        T, options = rules.max_words, dict[str, Any](dtype=at_least_float32(logits[:0]).dtype, device=rules.device)
        self.position = torch.zeros(1, dtype=torch.long, device=rules.device)
        self.total = torch.zeros(images, rows, **options)
        self.ended = torch.zeros_like(self.word, dtype=torch.bool)
        self.before = self.word.new_zeros(images, rows, T) if rules.depend_on_words else None
        self.uniform = torch.empty(T, images, rows, 1, device=rules.device) if selector.samples else None
        self.words, self.gained = self.word.new_empty(T, images, rows), torch.empty(T, images, rows, **options)
        self.parents = torch.empty_like(self.words) if selector.reorders else None
        self.maps = {name: field.new_empty(T, *field.shape) for name, field in map_fields(attention_map).items()}
        self.num_words = logits.shape[-1]

    def start(self, memory: Nested, state: Nested, generator: torch.Generator | None = None) -> None:
        """Begin a search on other images, with a memory and a state of the same shapes."""
        _copy([*tensors_of(self.memory), *tensors_of(self.state)], [*tensors_of(memory), *tensors_of(state)])
        for buffer in (self.word, self.ended, self.position, self.total):
            buffer.zero_()
        if self.parents is not None:  # all beams of a group begin as one
            self.total.unflatten(1, (self.selector.groups, -1))[..., 1:] = -torch.inf
        if self.before is not None:
            self.before.fill_(PAD)
        if self.uniform is not None:
            self.uniform.uniform_(generator=generator).neg_().add_(1)

    def advance(self, captioner: Captioner) -> None:
        """Perform one time step."""
        logits, state, attention_map = captioner.step(self.word, self.state, self.memory)
        barred = self.rules.barred_at(self.before, self.position, logits.shape[-1])
        uniform = None if self.uniform is None else self.uniform.index_select(0, self.position)[0]
        selected = self._selected(logits, barred, uniform)
        self._write([(self.maps[name], field) for name, field in map_fields(attention_map).items()])
        before = self.before
        if selected.parent is not None:
            state, before = take_rows((state, before), selected.parent)
        buffers = [self.word, self.total, self.ended, *tensors_of(self.state)]
        sources = [selected.word, selected.total, selected.ended, *tensors_of(state)]
        if self.before is not None and before is not None:
            buffers.append(self.before)
            sources.append(before.index_copy(2, self.position, selected.word[..., None]))
        _copy(buffers, sources)
        self.position.add_(1)

    def _selected(self, logits: Float[Tensor, "B R V"], barred: Tensor, uniform: Tensor | None) -> Selected:
        """Select the words of this time step, and write them to `words` and `gained`. If each row continues itself, one
        GPU kernel also updates the latest words and the rows that have ended."""
        if not self.selector.reorders and (kernels := fast_version("words", self.gained)):
            gained, word = self.selector.words(logits, barred, uniform)
            buffers = self.word, self.ended, self.words, self.gained
            kernels.write_words(gained, word, self.position, *buffers, END, PAD)
            return Selected(self.word, gained, self.total, self.ended)
        selected = self.selector(logits, barred, self.total, self.ended, uniform)
        results = [(self.words, selected.word), (self.gained, selected.gained)]
        if self.parents is not None and selected.parent is not None:
            results.append((self.parents, selected.parent))
        self._write(results)
        return selected

    def _write(self, results: list[tuple[Tensor, Tensor]]) -> None:
        """Write results of this time step to buffers (T, ...) of all time steps: pairs of a buffer and a result."""
        for buffer, result in results:
            buffer.index_copy_(0, self.position, result[None].to(buffer.dtype))

    def run(self, advance: Callable[[], object], *, whole: bool) -> int:
        """Perform time steps until all captions have ended or are as long as the rules allow. Return the number of time
        steps.

        Whether all captions have ended is read `EVERY` words later, so that the device goes on working in the meantime.
        The number of time steps depends on the captions alone: if it depended on time, runs with the same seed would
        differ.

        whole: never ask the device whether captions have ended.
        """
        noted = None
        for number in range(1, self.rules.max_words + 1):
            advance()
            if not whole and number % EVERY == 0:
                if noted is not None and noted.read():
                    break
                noted = Later(self.ended.all())
        return number

    def decoded(self, number: int, length_power: float = 0.0) -> Decoded:
        """Return the captions after `number` time steps, in tensors of their own."""
        word, gained = (buffer[:number].permute(1, 2, 0) for buffer in (self.words, self.gained))
        if self.parents is None:
            parents = torch.arange(word.shape[1], device=word.device)[:, None].expand(word.shape)
            return best_first(word, gained, gained.sum(dim=-1) > -torch.inf, parents, self._maps_of)
        row, parents = self._traced(number)
        word, gained, filled = word.gather(1, row), gained.gather(1, row), self.total > -torch.inf
        decoded = best_first(word, gained, filled, parents, self._maps_of, length_power, self.selector.groups)
        if self.selector.groups > 1:
            return decoded
        most = self._most_rows(number)
        return Decoded._make(None if field is None else field[:, :most] for field in decoded)

    def _traced(self, number: int) -> tuple[Int[Tensor, "B R T"], Int[Tensor, "B R T"]]:
        """Trace each final row back through the search. Return its row at each time step, after the word and before the
        word."""
        assert self.parents is not None
        parents = self.parents[:number].unbind(0)
        rows = [torch.arange(parents[0].shape[1], device=parents[0].device).expand_as(parents[0])]
        for parent in reversed(parents):
            rows.append(parent.gather(1, rows[-1]))
        both = torch.stack(rows[::-1], dim=2)
        return both[..., 1:], both[..., :-1]

    def _maps_of(self, parents: Int[Tensor, "B R T"]) -> dict[str, Float[Tensor, "B R T *sizes"]]:
        """Return the maps of these rows at each time step."""
        (images, _, T), device = parents.shape, parents.device
        image = torch.arange(T, device=device) * images + torch.arange(images, device=device)[:, None]  # (B, T)
        index = (image[:, None] * self.word.shape[1] + parents).flatten()
        return {
            name: field.flatten(0, 2).index_select(0, index).unflatten(0, parents.shape)
            for name, field in self.maps.items()
        }

    def _most_rows(self, number: int) -> int:
        """Return the largest number of rows of a beam after `number` words: few, if the vocabulary is small."""
        beams, rows = self.word.shape[1], 1
        for _ in range(number):
            rows = min(beams, rows + rows * min(beams, self.num_words))
        return rows


def _empty(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return tensor.new_empty(tensor.shape, dtype=dtype)


def _copy(buffers: list[Tensor], sources: list[Tensor]) -> None:
    """Copy `sources` to `buffers`, with one kernel for each dtype. A source may itself be one of the buffers."""
    pairs = [(buffer, source) for buffer, source in zip(buffers, sources, strict=True) if buffer is not source]
    own = {buffer.untyped_storage() for buffer in buffers}
    buffers = [buffer for buffer, _ in pairs]
    sources = [source.clone() if source.untyped_storage() in own else source for _, source in pairs]
    dtypes = [(buffer.dtype, source.dtype) for buffer, source in zip(buffers, sources, strict=True)]
    for group in dict.fromkeys(dtypes):
        indices = [index for index, pair in enumerate(dtypes) if pair == group]
        torch._foreach_copy_([buffers[index] for index in indices], [sources[index] for index in indices])

"""A search on tensors of fixed shapes, so that one graph serves all of its time steps, and all searches of its shape.

The searches of a CPU (`beams`, `one_by_one`) leave finished images out and grow their rows. This one computes all rows
of all images at every time step, and writes what it finds at a position that is a tensor.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vision_attn.contracts import END, PAD, Captioner
from vision_attn.contracts.nested import Nested, tensors_of, with_tensors
from vision_attn.decode.rows import Choose, Chosen, Decoded, best_first, maps, take_rows
from vision_attn.decode.rules import Rules
from vision_attn.fast.graphs import Later
from vision_attn.fast.versions import fast_version
from vision_attn.layers.precision import at_least_float32
from vision_attn.system.errors import UserError

EVERY = 3
"""Words after which is looked up whether all captions have ended."""


class Growing(UserError):
    """The state of a captioner has another shape after a word."""


class Search:
    """The buffers of a search: of the captioner's memory and state, of the latest word of each row, and of what each
    time step finds. `advance` performs a time step, and reads and writes no other tensors but weights.

    Raises Growing for a captioner whose state changes its shape.
    """

    def __init__(self, captioner: Captioner, memory: Nested, state: Nested, rules: Rules, choose: Choose):
        self.rules, self.choose = rules, choose
        images, rows = tensors_of(state)[0].shape[:2]
        self.word = torch.zeros(images, rows, dtype=torch.long, device=rules.device)
        logits, after, look = captioner.step(self.word, state, memory)  # tells shapes and dtypes
        shapes = [[part.shape for part in tensors_of(one)] for one in (state, after)]
        if shapes[0] != shapes[1]:
            raise Growing(f"the state of {type(captioner).__name__} changes its shape from word to word")
        pairs = zip(tensors_of(state), tensors_of(after), strict=True)
        dtypes = [torch.promote_types(old.dtype, new.dtype) for old, new in pairs]
        self.state = with_tensors(state, [_empty(*each) for each in zip(tensors_of(state), dtypes, strict=True)])
        self.memory = with_tensors(memory, map(_empty, tensors_of(memory)))
        T, kind = rules.max_words, dict[str, Any](dtype=at_least_float32(logits[:0]).dtype, device=rules.device)
        self.position = torch.zeros(1, dtype=torch.long, device=rules.device)
        self.total = torch.zeros(images, rows, **kind)
        self.ended = torch.zeros_like(self.word, dtype=torch.bool)
        self.before = self.word.new_zeros(images, rows, T) if rules.depend_on_words else None
        self.uniform = torch.empty(T, images, rows, 1, device=rules.device) if choose.samples else None
        self.words, self.gained = self.word.new_empty(T, images, rows), torch.empty(T, images, rows, **kind)
        self.parents = torch.empty_like(self.words) if choose.reorders else None
        self.looks = {name: part.new_empty(T, *part.shape) for name, part in maps(look).items()}
        self.num_words = logits.shape[-1]

    def start(self, memory: Nested, state: Nested, generator: torch.Generator | None = None) -> None:
        """Begin with other images, of the same shapes."""
        _copy([*tensors_of(self.memory), *tensors_of(self.state)], [*tensors_of(memory), *tensors_of(state)])
        for buffer in (self.word, self.ended, self.position, self.total):
            buffer.zero_()
        if self.parents is not None:  # all beams of a group begin as one
            self.total.unflatten(1, (self.choose.groups, -1))[..., 1:] = -torch.inf
        if self.before is not None:
            self.before.fill_(PAD)
        if self.uniform is not None:
            self.uniform.uniform_(generator=generator).neg_().add_(1)

    def advance(self, captioner: Captioner) -> None:
        """Perform one time step."""
        logits, state, look = captioner.step(self.word, self.state, self.memory)
        barred = self.rules.barred_at(self.before, self.position, logits.shape[-1])
        uniform = None if self.uniform is None else self.uniform.index_select(0, self.position)[0]
        chosen = self._chosen(logits, barred, uniform)
        self._write([(self.looks[name], part) for name, part in maps(look).items()])
        before = self.before
        if chosen.parent is not None:
            state, before = take_rows((state, before), chosen.parent)
        buffers = [self.word, self.total, self.ended, *tensors_of(self.state)]
        parts = [chosen.word, chosen.total, chosen.ended, *tensors_of(state)]
        if self.before is not None and before is not None:
            buffers.append(self.before)
            parts.append(before.index_copy(2, self.position, chosen.word[..., None]))
        _copy(buffers, parts)
        self.position.add_(1)

    def _chosen(self, logits: Float[Tensor, "B R V"], barred: Tensor, uniform: Tensor | None) -> Chosen:
        """The words of this time step, which are written down. Where each row continues itself, one kernel of a GPU
        also updates the latest words, and which rows have ended."""
        if not self.choose.reorders and (kernels := fast_version("words", self.gained)):
            gained, word = self.choose.words(logits, barred, uniform)
            buffers = self.word, self.ended, self.words, self.gained
            kernels.write_words(gained, word, self.position, *buffers, END, PAD)
            return Chosen(self.word, gained, self.total, self.ended)
        chosen = self.choose(logits, barred, self.total, self.ended, uniform)
        found = [(self.words, chosen.word), (self.gained, chosen.gained)]
        if self.parents is not None and chosen.parent is not None:
            found.append((self.parents, chosen.parent))
        self._write(found)
        return chosen

    def _write(self, found: list[tuple[Tensor, Tensor]]) -> None:
        """Write what this time step found to tables of all time steps."""
        for buffer, part in found:
            buffer.index_copy_(0, self.position, part[None].to(buffer.dtype))

    def run(self, advance: Callable[[], object], *, whole: bool) -> int:
        """Perform time steps until all captions have ended, or there are as many as the rules allow. Returns their
        number. whole: never ask the device whether captions have ended.

        What is looked up is as old as `EVERY` words, so the device goes on working while the answer comes. The number
        depends on nothing but the captions: were it a matter of time, runs with one seed would differ.
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
        """The captions after `number` time steps, in tensors of their own."""
        word, gained = (part[:number].permute(1, 2, 0) for part in (self.words, self.gained))
        if self.parents is None:
            parents = torch.arange(word.shape[1], device=word.device)[:, None].expand(word.shape)
            return best_first(word, gained, gained.sum(dim=-1) > -torch.inf, parents, self._maps_of)
        row, parents = self._traced(number)
        word, gained, filled = word.gather(1, row), gained.gather(1, row), self.total > -torch.inf
        decoded = best_first(word, gained, filled, parents, self._maps_of, length_power, self.choose.groups)
        if self.choose.groups > 1:
            return decoded
        most = self._most_rows(number)
        return Decoded._make(None if part is None else part[:, :most] for part in decoded)

    def _traced(self, number: int) -> tuple[Int[Tensor, "B R T"], Int[Tensor, "B R T"]]:
        """The row at each time step that each row continues, after and before its word."""
        assert self.parents is not None
        parents = self.parents[:number].unbind(0)
        rows = [torch.arange(parents[0].shape[1], device=parents[0].device).expand_as(parents[0])]
        for parent in reversed(parents):
            rows.append(parent.gather(1, rows[-1]))
        both = torch.stack(rows[::-1], dim=2)
        return both[..., 1:], both[..., :-1]

    def _maps_of(self, parents: Int[Tensor, "B R T"]) -> dict[str, Float[Tensor, "B R T *sizes"]]:
        """The maps of these rows at each time step."""
        (images, _, T), device = parents.shape, parents.device
        image = torch.arange(T, device=device) * images + torch.arange(images, device=device)[:, None]  # (B, T)
        index = (image[:, None] * self.word.shape[1] + parents).flatten()
        return {
            name: part.flatten(0, 2).index_select(0, index).unflatten(0, parents.shape)
            for name, part in self.looks.items()
        }

    def _most_rows(self, number: int) -> int:
        """Rows that a beam has at most after this number of words: few, if the vocabulary is small."""
        beams, rows = self.word.shape[1], 1
        for _ in range(number):
            rows = min(beams, rows + rows * min(beams, self.num_words))
        return rows


def _empty(part: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return part.new_empty(part.shape, dtype=dtype)


def _copy(buffers: list[Tensor], parts: list[Tensor]) -> None:
    """Copy `parts` to `buffers`, those of one dtype by one kernel. A part may be a buffer, also another one."""
    pairs = [(buffer, part) for buffer, part in zip(buffers, parts, strict=True) if buffer is not part]
    own = {buffer.untyped_storage() for buffer in buffers}
    buffers = [buffer for buffer, _ in pairs]
    parts = [part.clone() if part.untyped_storage() in own else part for _, part in pairs]
    dtypes = [(buffer.dtype, part.dtype) for buffer, part in zip(buffers, parts, strict=True)]
    for one in dict.fromkeys(dtypes):
        chosen = [index for index, each in enumerate(dtypes) if each == one]
        torch._foreach_copy_([buffers[index] for index in chosen], [parts[index] for index in chosen])

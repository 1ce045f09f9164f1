"""Write the words of a time step of a greedy or sampled search on a GPU, by one kernel. The plain version is
`decode.one_by_one.OneByOne.__call__`, with the copies after it in `decode.captured_search`."""

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from vision_attn.fast.launch import launch, operation

BLOCK = 256


@operation("write_words", mutates_args=("word", "ended", "words", "log_prob"))
def write_words(
    gained: Tensor, best: Tensor, position: Tensor, word: Tensor, ended: Tensor, words: Tensor, log_prob: Tensor,
    end: int, pad: int,
) -> None:  # fmt: skip
    """Write the next word of each row, `best` (B, R), to `word` and `words[position]`, its log p `gained` to
    `log_prob[position]`, and whether the row has ended to `ended`. `words` and `log_prob` are (T, B, R)."""
    given = gained.contiguous(), best.contiguous(), position
    grid = (triton.cdiv(word.numel(), BLOCK),)
    launch(_write, grid, *given, word, ended, words, log_prob, word.numel(), end, pad, BLOCK, num_warps=4)


@write_words.register_fake
def _(gained, best, position, word, ended, words, log_prob, end: int, pad: int) -> None:
    return None


@triton.jit
@no_type_check
def _write(gained, best, position, word, ended, words, log_prob, N, end, pad, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < N
    gain = tl.load(gained + index, mask=inside, other=0.0)
    over = tl.load(ended + index, mask=inside, other=0) != 0
    nothing = over | (gain == -float("inf"))  # the rules bar all that is possible: the row ends without a caption
    said = tl.where(nothing, pad, tl.load(best + index, mask=inside, other=0)).to(tl.int64)
    at = tl.load(position) * N + index
    tl.store(word + index, said, mask=inside)
    tl.store(words + at, said, mask=inside)
    tl.store(log_prob + at, tl.where(over, 0.0, gain), mask=inside)
    tl.store(ended + index, nothing | (said == end), mask=inside)

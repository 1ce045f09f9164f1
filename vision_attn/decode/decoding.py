"""`Decoding`: a task's settings for decoding captions (beam width, lengths, temperature), and `decode`, which runs the
search that they ask for."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar, get_args

from jaxtyping import Float
from torch import Tensor

from vision_attn.contracts import Captioner
from vision_attn.decode.beams import beam_search
from vision_attn.decode.hypotheses import Decoded
from vision_attn.decode.one_by_one import sample
from vision_attn.system.checks import check_range
from vision_attn.system.console import suggest
from vision_attn.system.errors import UserError

Strategy = Literal["best", "diverse", "sampled"]
""""best": the best captions of a beam. "diverse": the best caption of each of several groups of beams (Vijayakumar
et al. 2018). "sampled": independent samples."""


D = TypeVar("D", bound="Decoding")


@dataclass(frozen=True)
class Decoding:
    """The settings of decoding. `tasks.caption.Captioning` explains them and holds their defaults. Raises UserError for
    numbers out of range."""

    beams: int
    max_words: int
    min_words: int
    no_repeat: int
    length_power: float
    diversity: float
    temperature: float
    top_p: float
    content_once: bool = False

    def __post_init__(self) -> None:
        check_range("decoding", 1, 1000, beams=self.beams, max_words=self.max_words)
        check_range("decoding", 0, self.max_words, min_words=self.min_words)
        check_range("decoding", 0, 1000, no_repeat=self.no_repeat, diversity=self.diversity)
        check_range("decoding", -1000, 1000, length_power=self.length_power)
        check_range("decoding", 0.001, 1000, temperature=self.temperature)
        check_range("decoding", 1e-6, 1, top_p=self.top_p)

    def changed(self: D, **settings: Any) -> D:
        """Return a copy with other `settings`. Raises UserError for an unknown name, or a value of another type."""
        types: dict[str, Any] = {field.name: field.type for field in fields(self)}
        for name, number in settings.items():
            if name not in types:
                raise UserError(f"{name} is no setting of decoding{suggest(name, types)}")
            if types[name] in (bool, str):
                if not isinstance(number, types[name]):
                    wanted = "True or False" if types[name] is bool else "text"
                    raise UserError(f"{name} must be {wanted}, not {number!r}")
                continue
            whole = types[name] is int
            if isinstance(number, bool) or not isinstance(number, int if whole else int | float):
                raise UserError(f"{name} must be {'a whole' if whole else 'a'} number, not {number!r}")
        return replace(self, **settings)

    def decode(
        self,
        model: Captioner,
        regions: Float[Tensor, "B L D"],
        *,
        captions: int = 1,
        strategy: str = "best",
        never: Sequence[int] = (),
        once: Sequence[int] = (),
    ) -> Decoded:
        """Return captions of each image, best first.

        captions: the number of captions of each image; a beam is at least as wide.
        strategy: one of `Strategy`.
        never: ids of words that do not occur.
        once: ids of words that occur at most once in a caption if `content_once` is set.
        """
        if strategy not in get_args(Strategy):
            raise UserError(f"the strategies are {', '.join(get_args(Strategy))}, not {strategy!r}")
        rules: dict[str, Any] = {"max_words": self.max_words, "min_words": self.min_words, "no_repeat": self.no_repeat}
        rules |= {"never": never, "once": once if self.content_once else ()}
        if strategy == "sampled":
            return sample(model, regions, rows=captions, temperature=self.temperature, top_p=self.top_p, **rules)
        groups = captions if strategy == "diverse" else 1
        return beam_search(
            model,
            regions,
            beams=max(self.beams * groups, captions),
            groups=groups,
            diversity=self.diversity,
            length_power=self.length_power,
            **rules,
        )

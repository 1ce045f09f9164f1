"""Seeded damage of files: flipped bits, lost, repeated and foreign blocks, and numbers that promise too much."""

import random
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

NUMBERS = [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


def damaged(samples: Sequence[bytes], number: int, seed: int, *, head: int = 256) -> list[bytes]:
    """`number` damaged copies of `samples` in turn. Every second change is made in the first `head` bytes."""
    draws = random.Random(seed)
    made = []
    for count in range(number):
        content = bytearray(samples[count % len(samples)])
        for _ in range(draws.choice((1, 1, 1, 2, 4, 8))):
            _change(content, samples, draws, head)
        made.append(bytes(content))
    return made


def _change(content: bytearray, samples: Sequence[bytes], draws: random.Random, head: int) -> None:
    """One change of `content`, in place."""
    within = len(content) if draws.random() < 0.5 else min(head, len(content))
    start = draws.randrange(within + 1)
    length = min(draws.choice((1, 2, 4, 16, 200)), len(content) - start)
    kind = draws.choice(("bits", "bytes", "number", "number", "cut", "lose", "repeat", "foreign", "digits"))
    if kind == "bits" and start < len(content):
        content[start] ^= 1 << draws.randrange(8)
    elif kind == "bytes":
        content[start : start + length] = draws.randbytes(length)
    elif kind == "number":
        size = draws.choice((1, 2, 4, 8))
        value = draws.choice(NUMBERS) % 256**size
        content[start : start + size] = value.to_bytes(size, draws.choice(("big", "little")))
    elif kind == "cut":
        del content[start:]
    elif kind == "lose":
        del content[start : start + length]
    elif kind == "repeat":
        content[start:start] = content[start : start + length] * draws.choice((1, 2, 50))
    elif kind == "foreign":
        other = draws.choice(samples)
        place = draws.randrange(len(other) + 1)
        content[start : start + length] = other[place : place + draws.choice((1, 8, 300))]
    elif kind == "digits":
        content[start:start] = draws.choice((b"9" * 20, b"-1", b"1e999", b"[" * 30, b'"', b"{", b"\xff", b"\\ud800"))


def drawn(strategy: SearchStrategy, number: int) -> list:
    """`number` examples of a Hypothesis strategy, always the same."""
    examples: list = []

    @settings(
        max_examples=number, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def collect(example: object) -> None:
        examples.append(example)

    collect()
    return examples


TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
"""Any characters: control characters and halves of characters (lone surrogates) too."""
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.integers(-(10**400), 10**400), st.floats(), TEXT,
    st.sampled_from(["", " ", "..", "../a.png", "/etc/passwd", "C:\\a", "a\0b", "x" * 5000, "\ud800", "train", "a"]),
)  # fmt: skip
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))
"""Whatever JSON can say."""


def perhaps(strategy: SearchStrategy) -> SearchStrategy:
    """Mostly what `strategy` gives, now and then any JSON."""
    return st.integers(0, 7).flatmap(lambda number: JSON if number == 0 else strategy)


def record(**fields: SearchStrategy) -> SearchStrategy:
    """An object with these fields, each of which may be missing or anything, and the object itself too."""
    whole = st.fixed_dictionaries({name: perhaps(strategy) for name, strategy in fields.items()})
    partly = st.fixed_dictionaries({}, optional=fields)
    return perhaps(st.one_of(whole, whole, whole, partly))

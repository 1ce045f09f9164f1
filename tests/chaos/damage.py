"""Seeded damage of files: flipped bits, lost, repeated and foreign blocks, and numbers that promise too much."""

import random
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

KINDS = ["bits", "bytes", "number", "number", "cut", "lose", "repeat", "foreign", "digits"]
NUMBERS = [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


def damaged(samples: Sequence[bytes], number: int, seed: int, *, head: int = 256, text: bool = False) -> list[bytes]:
    """`number` damaged copies of `samples` in turn. Every second change is made in the first `head` bytes.

    text: keep to characters that occur in JSON and YAML, so that more than their coding is put to the test.
    """
    draws = random.Random(seed)
    made = []
    for count in range(number):
        content = bytearray(samples[count % len(samples)])
        for _ in range(draws.choice((1, 1, 1, 2, 4, 8))):
            _change(content, samples, draws, head, text)
        made.append(bytes(content))
    return made


def _change(content: bytearray, samples: Sequence[bytes], draws: random.Random, head: int, text: bool) -> None:
    """One change of `content`, in place."""
    within = len(content) if draws.random() < 0.5 else min(head, len(content))
    start = draws.randrange(within + 1)
    length = min(draws.choice((1, 2, 4, 16, 200)), len(content) - start)
    kinds = ["cut", "lose", "repeat", "foreign", "digits", "mark", "mark"] if text else KINDS
    kind = draws.choice(kinds)
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
        content[start:start] = draws.choice(
            (b"9" * 20, b"-1", b"1e999", b"[" * 30, b"null", b"true", b"\xff", b"\\ud800")
        )
    elif kind == "mark":
        content[start : start + draws.choice((0, 1))] = bytes([draws.choice(b'[]{}",:-0129.eE \n#&*!ab')])


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
    return st.integers(0, 29).flatmap(lambda number: JSON if number == 29 else strategy)


def record(**fields: SearchStrategy) -> SearchStrategy:
    """An object with these fields, of which now and then some are missing, or anything; or the object itself is."""
    whole = st.fixed_dictionaries({name: perhaps(strategy) for name, strategy in fields.items()})
    partly = st.fixed_dictionaries({}, optional=fields)
    return perhaps(st.integers(0, 29).flatmap(lambda number: partly if number == 29 else whole))


def numbered(key: str, records: SearchStrategy) -> SearchStrategy:
    """A list of records that count up from 0 under `key`, mostly: two may have the same number, or none."""

    def count(listed: list) -> list:
        for number, entry in enumerate(listed):
            if isinstance(entry, dict) and type(entry.get(key)) is int and entry[key] != 7:
                entry[key] = number
        return listed

    return st.lists(records, min_size=1, max_size=6).map(count)

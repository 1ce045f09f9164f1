"""YAML from anyone: small files that unfold, nest or repeat without end are refused, in one line that says where."""

from pathlib import Path

import pytest

from vision_attn.system.bounded_yaml import BYTES, read_yaml
from vision_attn.system.errors import UserError


def unfolding(first: str, form: str) -> str:
    """Nine aliases of nine aliases of ..., ten deep: billions of values."""
    lines = [f"a0: &a0 {first}"]
    return "\n".join(lines + [f"a{n}: &a{n} {form.format(','.join([f'*a{n - 1}'] * 9))}" for n in range(1, 11)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (unfolding("[1, 1]", "[{}]"), "line 5: has more than 10,000 keys and values, with aliases expanded"),
        (unfolding("{x: 1}", "{{<<: [{}]}}"), "with aliases expanded"),
        (f"a: &a {'x' * 4000}\nb: [{'*a,' * 9000}]", "line 2: has more than 262,144 characters, with aliases expanded"),
        (f"a: [{'1,' * 100_000}1]", "has more than 10,000 keys and values"),
        ("a: &a [*a]", "line 1: contains itself"),
        ("a: &a {<<: *a}", "line 1: contains itself"),
        ("a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 2000)), "more than 100 levels deep"),
        ("a: " + "[" * 100_000, "line 1: is nested more than 100 levels deep"),
        ("- " * 100_000, "line 1: is nested more than 100 levels deep"),
        ("? " * 100_000, "line 1: is nested more than 100 levels deep"),
        ("x: 1\na: " + "x" * 5000, "line 2: a value has more than 4,096 characters"),
        ("a: " + "1:" * 100_000 + "1", "a value has more than 4,096 characters"),
        ('a: "\\ud800"', "line 1: a value contains a lone surrogate"),
        ("x: 1\n1: 2", "line 2: a key must be text, not 1"),
        ("? [a]\n: b", "line 1: a key must be text"),
        ("a: !!int x", "is not valid YAML: a value does not fit its tag"),
        ("a: !!float ''", "is not valid YAML: a value does not fit its tag"),
        ("a: 2020-99-99", "is not valid YAML: a value does not fit its tag (month must be in 1..12)"),
        ("a: !!python/object/apply:os.getcwd []", "line 1 is not valid YAML: could not determine a constructor"),
        ("a: {b", "line 1 is not valid YAML"),
        ("a: \0", "is not valid YAML: unacceptable character"),
        ("#" * (BYTES + 1), "is not a config: it has more than 256 KiB"),
    ],
)
def test_bounds(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_yaml(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and said in message and "\n" not in message and len(message) < 400


def test_ordinary_files(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: &a {b: [1, 2.5, null, true, text]}\nc: {<<: *a, d: 1}\n")
    inner = [1, 2.5, None, True, "text"]
    assert read_yaml(path) == {"a": {"b": inner}, "c": {"b": inner, "d": 1}}
    path.write_text("")
    assert read_yaml(path) is None
    with pytest.raises(UserError, match="nothing.yaml does not exist"):
        read_yaml(tmp_path / "nothing.yaml")
    with pytest.raises(UserError, match="cannot be read as a config"):
        read_yaml(tmp_path)

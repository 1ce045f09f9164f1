"""Values of a config: read by the types of parameters, in the order that keeps text from naming code."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from torch import nn

from vision_attn.configuration.options import parse_options
from vision_attn.configuration.parts import PartConfig, built, plain
from vision_attn.configuration.reader import ConfigReader, UnknownKey
from vision_attn.configuration.trust import Names, RunFolder, Untrusted, Wrong
from vision_attn.system.errors import UserError

LAYER = Callable[[int, int], nn.Module]
LINEAR = {"class_path": "torch.nn.Linear", "init_args": {"bias": False}}


@dataclass
class Sizes:
    width: int = 3
    names: tuple[str, ...] = ()


class Base(nn.Module):
    def __init__(self, first: int, *, rate: float = 0.5, kind: Literal["a", "b"] = "a") -> None:
        super().__init__()
        self.rate, self.kind = rate, kind


class Derived(Base):
    """Passes on what it does not know, and one argument itself."""

    def __init__(self, first: int, *, layer: LAYER = nn.Linear, sizes: Sizes, **others: Any) -> None:
        super().__init__(first, kind="b", **others)
        self.layer, self.sizes = layer, sizes


def read(value: Any, annotation: Any, *options: str, names: Names | None = None, **more: Any) -> Any:
    below = [option._replace(path=option.path[1:]) for option in parse_options(options)]
    return ConfigReader(names or Names()).value(value, annotation, "key", below, **more)


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (1, float, 1.0),
        ("1e-3", float, 0.001),
        ("9" * 5000, float, math.inf),  # more digits than Python makes an int of
        ("12", int, 12),
        (True, bool | Literal["auto"], True),
        ("auto", bool | Literal["auto"], "auto"),
        (None, int | None, None),
        ([1, "2.5"], tuple[int, float], (1, 2.5)),
        ([1, 2], Sequence[int], [1, 2]),
        ([[1], []], list[list[int]], [[1], []]),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        ({"class_path": "os.system"}, str | dict[str, str], {"class_path": "os.system"}),
        ("os.system", str | Path, "os.system"),
        (16, Literal[16, 19], 16),
    ],
)
def test_values_by_their_types(value: object, annotation: object, expected: object) -> None:
    found = read(value, annotation)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("123", str, "123"),
        ("null", str, "null"),
        ("null", str | None, None),
        ("no", str, "no"),
        ("a: b", str, "a: b"),
        ("{a: b}", str | dict[str, str], {"a": "b"}),
        ("true", bool | str, True),
        ("features.13", bool | str, "features.13"),
        ("1e-3", float, 0.001),
        ("[3,4]", tuple[int, int], (3, 4)),
        ("", str, ""),
    ],
)
def test_options_are_text_where_the_parameter_takes_text(text: str, annotation: object, expected: object) -> None:
    assert read(0, annotation, f"--key={text}") == expected


@pytest.mark.parametrize(
    ("value", "annotation", "said"),
    [
        (1.5, int, "key: expected an int, got '1.5'"),
        (True, int, "key: expected an int, got 'True'"),
        ("9" * 400, float, "key: expected a float, got '9999"),
        ("true", bool, "key: expected true or false, got 'true'"),
        (2, Literal["a", 1], "key: expected one of 'a', 1, got '2'"),
        ([1, 2, 3], tuple[int, int], "key: expected a list of 2, got '[1, 2, 3]'"),
        ([1, "x"], list[int], "key.1: expected an int, got 'x'"),
        ({"a": "x"}, dict[str, int], "key.a: expected an int, got 'x'"),
        (None, float, "key: null is no value for it"),
        ("fast", LAYER, "key: expected a class path such as"),
        ("os.path.join", LAYER | None, ""),
        ({"class_path": "torch.nn.Linear", "bias": 1}, LAYER, "key.bias: there is no such key here: write it under"),
    ],
)
def test_what_does_not_fit_is_named(value: object, annotation: object, said: str) -> None:
    if not said:  # a function may make the object, in a config of the user's own
        assert read(value, annotation).constructor is __import__("os").path.join
        return
    with pytest.raises(Wrong) as caught:
        read(value, annotation)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("annotation", [str, str | None, Path, Literal["a"], int, float | None, bool, list[str], Any])
@pytest.mark.parametrize("form", ["code_of_mine.Evil", {"class_path": "code_of_mine.Evil"}, ["code_of_mine.Evil"]])
def test_only_an_expected_object_is_ever_imported(
    annotation: object, form: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code_of_mine.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for names in (Names(), RunFolder(), RunFolder(["code_of_mine"])):
        try:
            found = read(form, annotation, names=names)
        except UserError:
            continue
        assert found == form
    with pytest.raises(Untrusted):
        read("code_of_mine.Evil", LAYER | None, names=RunFolder())
    assert "code_of_mine" not in sys.modules


def test_a_part_has_its_defaults_and_those_of_its_classes() -> None:
    derived = f"{__name__}.Derived"
    written = {"class_path": derived, "init_args": {"rate": 1, "sizes": {"names": ["x"]}}}
    part = read(written, Callable[[int], nn.Module])
    assert part.factory and part.arguments["rate"] == 1.0 and "kind" not in part.arguments, "the class passes it itself"
    assert plain(part)["init_args"]["sizes"] == {"width": 3, "names": ["x"]}
    assert plain(part)["init_args"]["layer"]["init_args"] == {"bias": True, "device": None, "dtype": None}
    assert read(plain(part), Callable[[int], nn.Module]) == part
    made = built(part)(7)
    assert (made.rate, made.kind, made.sizes) == (1.0, "b", Sizes(names=("x",)))
    assert made.layer(2, 5).weight.shape == (5, 2)
    with pytest.raises(UnknownKey, match=r"key.rat: there is no such key; did you mean rate\?"):
        read({"class_path": derived, "init_args": {"rat": 1}}, Callable[[int], nn.Module])
    with pytest.raises(Wrong, match="key.sizes: missing but required"):
        read(derived, Callable[[int], nn.Module])


def test_options_reach_into_parts() -> None:
    assert read(LINEAR, LAYER, "--key.bias=true").arguments["bias"] is True
    other = read(LINEAR, LAYER, "--key=torch.nn.Bilinear", "--key.out_features=4")
    assert other == read("torch.nn.Bilinear", LAYER, "--key.bias=false", "--key.out_features=4"), "bias is kept"
    assert "bias" not in read(LINEAR, LAYER, "--key=torch.nn.Identity").arguments, "which it does not have"
    parts = {"one": LINEAR, "two": LINEAR}
    assert list(read(parts, dict[str, LAYER], "--key.one=null", "--key.three=torch.nn.Linear")) == ["two", "three"]
    assert isinstance(read(None, dict[str, LAYER] | None, "--key.one=torch.nn.Linear")["one"], PartConfig)
    with pytest.raises(Wrong, match="key.three: this config has none: give its class first, --key.three=..."):
        read(parts, dict[str, LAYER], "--key.three.bias=true")
    with pytest.raises(UnknownKey, match="key.x: there is no such key"):
        read(3, int, "--key.x=4")


@pytest.mark.parametrize("word", ["--key", "key=3", "-k=3", "--=3", "--a..b=3", "--a b=3", "--init_args=3"])
def test_what_is_no_option_is_said(word: str) -> None:
    with pytest.raises(UserError, match="is not an option|its value is missing"):
        parse_options([word])

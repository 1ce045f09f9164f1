"""Public docstrings describe parameters that exist, in each of the styles that `vision-attn keys` reads."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from vision_attn.commands.keys import NAMED

ROOT = Path(__file__).parents[1] / "vision_attn"
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def entries(text: str) -> Iterator[str]:
    """The names that a docstring describes: "size: ", "`size`, `width`: " or "lr (float, optional): ", where a line or
    a sentence begins. A word in the middle of a sentence that a line break sets in front is none."""
    for found in NAMED.finditer(text):
        before = text[: found.start()].rstrip(" \t")
        within = before.endswith("\n") and not before.endswith("\n\n") and before.rstrip()[-1:] not in tuple(".;:")
        if not within and found[1].strip("`")[0].islower():
            yield from re.findall(r"\w+", found[1])


@cache
def trees() -> dict[str, ast.Module]:
    """The modules of the package by their names."""
    paths = {path: ".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in ROOT.rglob("*.py")}
    return {name.removesuffix(".__init__"): ast.parse(path.read_text()) for path, name in paths.items()}


def base(module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """The class of this name as a module knows it, and the module that defines it; None for those of other packages."""
    for node in trees()[module].body if module in trees() else ():
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return base(node.module or "", alias.name)
    return None


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    given = function.args
    every = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    return (one.arg for one in every if one is not None)


def written(node: ast.AST) -> set[str]:
    """The strings of code without its docstrings, such as the names of metrics that it returns."""
    remarks = {id(one.value) for one in ast.walk(node) if isinstance(one, ast.Expr)}
    strings = (one for one in ast.walk(node) if isinstance(one, ast.Constant) and id(one) not in remarks)
    return {one.value for one in strings if isinstance(one.value, str)}


def fields(module: str, node: ast.ClassDef) -> Iterator[str]:
    """The fields, attributes and methods of a class and its bases, and the parameters of its constructor."""
    for one in node.body:
        if isinstance(one, ast.AnnAssign | ast.Assign):
            targets = [one.target] if isinstance(one, ast.AnnAssign) else one.targets
            yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (one.name, *(parameters(one) if one.name in {"__init__", "__new__", "__call__"} else ()))
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self":
            yield one.attr
    for one in node.bases:
        one = one.value if isinstance(one, ast.Subscript) else one
        if isinstance(one, ast.Name) and (found := base(module, one.id)):
            yield from fields(*found)


def described(module: str, nodes: Iterable[ast.stmt], around: frozenset[str]) -> Iterator[tuple[str, int, str]]:
    """Each name that a public docstring describes although there is none, with the definition and its line."""
    for node in nodes:
        if not isinstance(node, Definition) or (node.name.startswith("_") and not node.name.startswith("__")):
            continue
        own = fields(module, node) if isinstance(node, ast.ClassDef) else parameters(node)
        known = around | {*own} | written(node)
        for name in entries(ast.get_docstring(node) or ""):
            if name not in known:
                yield node.name, node.lineno, name
        if isinstance(node, ast.ClassDef):
            yield from described(module, node.body, known)


def mistakes() -> Iterator[str]:
    for module, tree in trees().items():
        for definition, line, name in described(module, tree.body, frozenset()):
            yield f"{module}:{line}: {definition} has no {name}"


def test_public_docstrings_describe_what_exists() -> None:
    assert list(mistakes()) == []


CODE = '''
class Outer(NamedTuple):
    """Something. size: how large. `wide`, depth: neither."""
    size: int

    def method(self, mode: str, *others, **options):
        """`way`: how. `mode`: how. Every one of the
        things: some. size: as above.

        Args:
            others (int): some
            given (list, optional): more
        Returns: {"loss"} and loss: the loss, gain: no key.
        """
        return {"loss": options}

    def _hidden(self):
        """nothing: no one reads this."""
'''


def test_names_of_all_styles_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_docstrings.trees", lambda: {"a": ast.parse(CODE)})
    found = [mistake.split(": ")[1].split(" has no ") for mistake in mistakes()]
    assert found == [["Outer", "wide"], ["Outer", "depth"], ["method", "way"], ["method", "given"]]


def test_fields_of_bases_count_in_whichever_module_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    first = "class Base:\n    near: int\n    def __init__(self, far): ..."
    second = 'from a import Base as Other\nclass Child(Other[int]):\n    """near: x\n    far: y\n    gone: z"""'
    monkeypatch.setattr("tests.test_docstrings.trees", lambda: {"a": ast.parse(first), "b": ast.parse(second)})
    assert list(mistakes()) == ["b:2: Child has no gone"]

"""Public docstrings describe parameters that exist, in each of the styles that `vision-attn keys` reads."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from vision_attn.commands.keys import NAMED

ROOT = Path(__file__).parents[1] / "vision_attn"
Modules = dict[str, ast.Module]
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def entries(text: str) -> Iterator[str]:
    """The names that a docstring describes: "size: ", "`size`, `width`: " or "lr (float, optional): ", where a line or
    a sentence begins. A word in the middle of a sentence that a line break sets in front is none."""
    for found in NAMED.finditer(text):
        before = text[: found.start()]
        plain = re.match(r"\w+:", found[0])  # neither indented nor marked
        within = plain and before.endswith("\n") and not re.search(r"[.;:]\n|\n\n", before[-2:])
        if not within and found[1].strip("`")[0].islower():
            yield from re.findall(r"\w+", found[1])


def package() -> Modules:
    paths = {path: ".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in ROOT.rglob("*.py")}
    return {name.removesuffix(".__init__"): ast.parse(path.read_text()) for path, name in paths.items()}


def base(modules: Modules, module: str, name: str) -> tuple[str, ast.ClassDef] | None:
    """The class of this name as a module knows it, and the module that defines it; None for those of other packages."""
    for node in modules[module].body if module in modules else ():
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return base(modules, node.module or "", alias.name)
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


def fields(modules: Modules, module: str, node: ast.ClassDef) -> Iterator[str]:
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
        if isinstance(one, ast.Name) and (found := base(modules, module, one.id)):
            yield from fields(modules, *found)


def described(
    modules: Modules, module: str, nodes: Iterable[ast.stmt], around: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Each name that a public docstring describes although there is none."""
    for node in nodes:
        if not isinstance(node, Definition) or (node.name.startswith("_") and not node.name.startswith("__")):
            continue
        own = fields(modules, module, node) if isinstance(node, ast.ClassDef) else parameters(node)
        known = around | {*own} | written(node)
        for name in entries(ast.get_docstring(node) or ""):
            if name not in known:
                yield f"{module}:{node.lineno}: {node.name} has no {name}"
        if isinstance(node, ast.ClassDef):
            yield from described(modules, module, node.body, known)


def mistakes(modules: Modules) -> list[str]:
    return [each for module, tree in modules.items() for each in described(modules, module, tree.body)]


def test_public_docstrings_describe_what_exists() -> None:
    assert mistakes(package()) == []


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


def test_names_of_all_styles_are_found() -> None:
    found = [mistake.split(": ")[1] for mistake in mistakes({"a": ast.parse(CODE)})]
    assert found == ["Outer has no wide", "Outer has no depth", "method has no way", "method has no given"]


def test_fields_of_bases_count_in_whichever_module_they_are() -> None:
    first = "class Base:\n    near: int\n    def __init__(self, far): ..."
    second = 'from a import Base as Other\nclass Child(Other[int]):\n    """near: x.\n    far: y.\n    gone: z."""'
    assert mistakes({"a": ast.parse(first), "b": ast.parse(second)}) == ["b:2: Child has no gone"]

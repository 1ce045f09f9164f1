"""What documents and examples show is public: no name that begins with an underscore, of this package or another."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PUBLIC = {"_asdict", "_fields", "_replace"}
"""Documented names of named tuples."""
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
TOLD = {"README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))}


def programs() -> Iterator[tuple[str, str]]:
    """The name and the text of every example."""
    for name in sorted(TOLD):
        for number, text in enumerate(BLOCK.findall((ROOT / name).read_text(encoding="utf-8")), 1):
            yield f"{name}, block {number}", text
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"], 1):
            if cell["cell_type"] == "code":
                lines = "".join(cell["source"]).splitlines()
                yield f"examples/{path.name}, cell {number}", "\n".join(x for x in lines if x[:1] not in ("%", "!"))
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield f"examples/{path.name}", path.read_text(encoding="utf-8")


def private(tree: ast.AST) -> list[str]:
    """The private names that a program imports or asks of an object."""
    found = []
    for node in ast.walk(tree):
        names = [node.attr] if isinstance(node, ast.Attribute) else []
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names = [part for name in [*module, *(one.name for one in node.names)] for part in name.split(".")]
        found += [name for name in names if name.startswith("_") and not name.startswith("__") and name not in PUBLIC]
    return found


@pytest.mark.parametrize(("name", "text"), [*programs()], ids=lambda one: one if "," in one or "/" in one else "")
def test_an_example_uses_no_private_name(name: str, text: str) -> None:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        pytest.skip("a fragment that is no program by itself")
    assert private(tree) == [], f"{name} shows what may change in any version"


def test_private_names_are_found() -> None:
    text = (
        "from vision_attn.commands._files import place\nimport vision_attn._x\nmodel._turn\nmodel.turn\nx._replace(a=1)"
    )
    assert private(ast.parse(text)) == ["_files", "_x", "_turn"]
    assert len(list(programs())) > 10

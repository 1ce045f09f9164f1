"""The house rules: floors, what is declared, what must never lie in the repository."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from grimp import build_graph

ROOT = Path(__file__).parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text()
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
ADDRESS = re.compile(r"https?://|git\+|@ file:|--(?:extra-)?index-url|--find-links|^-[if]\s", re.MULTILINE)


@cache
def files() -> list[Path]:
    """What git tracks, or would if asked; everything where this is no repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("this is no git repository")
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def test_imports_run_down_the_floors_only() -> None:
    call = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    done = subprocess.run([sys.executable, "-c", call], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kept, 0 broken" in done.stdout


def test_no_imports_go_in_a_circle() -> None:
    """Neither among modules nor among the files and folders of a folder. In `fast/`, operations ask `choice` for a
    version, and it imports those that it chooses from, so that there modules alone are checked."""
    graph = build_graph("vision_attn", cache_dir=None)
    modules = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(modules).prepare()  # raises CycleError, which names them
    for folder in (module for module in modules if graph.find_children(module)):
        if folder in ("vision_attn", "vision_attn.fast"):
            continue
        part = {child: child for child in graph.find_children(folder)}
        part |= {module: child for child in list(part) for module in graph.find_descendants(child)}
        siblings = {child: set() for child in part.values()}
        for module, child in part.items():
            siblings[child] |= {part[one] for one in modules[module] if part.get(one, child) != child}
        TopologicalSorter(siblings).prepare()


def test_no_room_has_more_than_16_files() -> None:
    """But `commands/`, which has a file for each verb."""
    rooms = [path.parent for path in (ROOT / "vision_attn").rglob("__init__.py")]
    crowded = {room.name for room in rooms if len([*room.glob("[!_]*.py")]) > 16}
    assert crowded <= {"commands"}, crowded


def test_a_public_name_of_a_class_has_one_meaning() -> None:
    """A class that only its file uses begins with an underscore."""
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / "vision_attn").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert len(places) > 300
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def test_floors_name_every_room() -> None:
    rooms = {path.stem for path in (ROOT / "vision_attn").iterdir() if path.suffix == ".py" or path.is_dir()}
    for room in rooms - {"__init__", "__pycache__"}:
        assert f"vision_attn.{room}" in PROJECT, f"{room} stands on no floor of pyproject.toml"


def test_everything_imported_is_declared() -> None:
    declared = {name.lower().replace("-", "_") for name in re.findall(r'^\s+"([\w-]+)', PROJECT, re.MULTILINE)}
    declared |= {"pil", "yaml", "vision_attn"}
    found: dict[str, str] = {}
    for path in (ROOT / "vision_attn").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            found |= {name.split(".")[0]: path.name for name in names}
    del found["typing_extensions"]  # for type checkers alone, which bring it along
    undeclared = {name: path for name, path in found.items() if name.lower() not in declared}
    assert {name: path for name, path in undeclared.items() if name not in sys.stdlib_module_names} == {}


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-oldest.txt"])
def test_every_requirement_is_pinned_exactly(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    python = r'python_version (?:<|>=) "3\.1[0-3]"'
    assert all(re.fullmatch(rf"[\w.-]+==[\w.!]+(?: ; {python}(?: and {python})?)?", line) for line in lines)
    pinned = {line.split("==")[0].lower() for line in lines}
    needed = re.findall(
        r'"([\w-]+)(?:\[\w+\])?(?:[><=]=[\d.]+)?"', PROJECT.split("dependencies = [")[1].split("[tool")[0]
    )
    assert {"torch", "torchvision", "pytest"} <= set(needed) and set(needed) <= pinned


@pytest.mark.slow
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.13"])
@pytest.mark.parametrize("name", ["constraints.txt", "constraints-oldest.txt"])
def test_every_python_can_install_the_pinned_versions(name: str, python: str) -> None:
    """The first patch release of each: Debian 12 has 3.11.2. Asks the package index."""
    uv = [sys.executable, "-m", "uv"] if find_spec("uv") else [shutil.which("uv") or pytest.skip("needs uv")]
    resolve = [*uv, "pip", "compile", "-q", "--extra=dev", "pyproject.toml", "-c", name, "--python-version", python]
    done = subprocess.run(resolve, cwd=ROOT, capture_output=True, text=True)
    if done.returncode and "No solution found" not in done.stderr:
        pytest.skip(f"the package index does not answer: {done.stderr[:200]}")
    assert done.returncode == 0, done.stderr


def test_lower_bounds_are_the_versions_that_are_tested() -> None:
    """Of what everyone installs, on the Python of which constraints-oldest.txt speaks."""
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    pinned = dict(line.split(" ;")[0].split("==") for line in reversed(lines) if "==" in line)  # first is for 3.11
    needed = PROJECT.split("dependencies = [")[1].split("\n]")[0]
    for name, bound in re.findall(r'^\s+"([\w-]+)(?:\[\w+\])?(?:>=([\d.]+))?"', needed, re.MULTILINE):
        parts = [int(part) for part in pinned[name.lower()].split(".")]
        asked = [int(part) for part in bound.split(".")] if bound else []
        assert bound and parts[: len(asked)] == asked, f"{name}: at least {bound or 'anything'}, tested {pinned[name]}"


def test_no_addresses_of_indexes_and_no_paths_of_machines() -> None:
    for path in files():
        if path.suffix in {".txt", ".toml", ".yml", ".yaml", ".lock", ".cfg"} or path.name in {
            "Makefile",
            "run",
            "venv",
        }:
            found = ADDRESS.search(path.read_text())
            assert not found, f"{path}: {found}"
        if path.suffix in {".py", ".md", ".yaml", ".toml", ".txt"} and path != Path(__file__):
            found = re.search(r"(?<![\w.])/(?:work|root|home|Users)/\w+", path.read_text())
            assert not found, f"{path}: {found}"


def test_nothing_large_and_no_data_in_the_repository() -> None:
    for path in files():
        if path.match("weights/*/model.safetensors"):  # trained by our own code; the captioner holds its encoder too
            assert path.stat().st_size < (25_000_000 if path.match("photographs/*") else 5_000_000), path
            continue
        if path.match("docs/photographs/*.jpg"):  # free to redistribute, see the README.md there
            assert path.stat().st_size < 100_000, path
            continue
        assert path.suffix not in {".npy", ".npz", ".pt", ".pth", ".pkl", ".safetensors", ".gz", ".zip", ".jpg"}, path
        lesson = path.match("docs/lesson/index.html")  # with the weights of five models: see tests/web/test_lesson.py
        assert path.stat().st_size < (3_000_000 if lesson else 2_000_000), path


def test_code_keeps_to_the_house_style() -> None:
    for path in files():
        if path.suffix != ".py":
            continue
        text = path.read_text()
        assert path.stem not in {"utils", "helpers", "common", "misc"}, path
        assert "from __future__ import annotations" not in text or path == Path(__file__), path
        assert "import pickle" not in text or path == Path(__file__), path
        if path.is_relative_to(ROOT / "vision_attn"):
            assert all("weights_only=True" in call for call in re.findall(r"torch\.load\([^)]*\)", text)), path
            assert ast.get_docstring(ast.parse(text)) or path.stat().st_size == 0, f"{path} does not say what it is"


def patches(tree: ast.Module) -> Iterator[ast.expr]:
    """Each `setattr` of a `monkeypatch`, called or handed on, except of other libraries' names and of the tests'."""
    foreign = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                module = (isinstance(node, ast.ImportFrom) and node.module) or alias.name
                if module.split(".")[0] != "vision_attn":
                    foreign.add((alias.asname or alias.name).split(".")[0])
    calls = {node.func: node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "setattr":
            changed = ast.unparse(calls[node].args[0]) if node in calls else ""
            quote, name = re.match(r"(f?['\"])?(\w*)", changed).groups()
            if name == "vision_attn" if quote else name not in foreign:
                yield node


def has_reason(node: ast.expr, tree: ast.Module, lines: list[str]) -> bool:
    """Whether a comment stands on the line or the one above, or a docstring in the helper function around it."""
    helpers = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and not one.name.startswith("test_")]
    around = [one for one in helpers if one.lineno <= node.lineno <= one.end_lineno]
    comments = re.search(r"# (?!noqa|fmt|type)", "".join(lines[node.lineno - 2 : node.lineno]))
    return comments is not None or any(map(ast.get_docstring, around))


def test_every_name_of_ours_that_a_test_replaces_has_a_reason() -> None:
    """Such a test breaks when the package is rearranged inside. Better: hand in an argument, or an object of a
    subclass."""
    places, without = 0, []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        lines = path.read_text().splitlines(keepends=True)
        tree = ast.parse("".join(lines) if any(".setattr" in line for line in lines) else "")
        for node in patches(tree):
            places += 1
            if not has_reason(node, tree, lines):
                without.append(f"{path.relative_to(ROOT)}:{node.lineno}: {lines[node.lineno - 1].strip()}")
    assert without == [], "say why the test cannot do without"
    assert places <= 100, "see whether an argument, a subclass or a smaller input does"


def test_a_replaced_name_is_found_in_each_form() -> None:
    found = """
import torch
from vision_attn.engine import fit
class Ours: ...
patch.setattr(f"vision_attn.{name}", 1)
patch.setattr("vision_attn.api.load", 1)  # a reason
# a reason
patch.setattr(fit.Run, "folder", 1)
patch.setattr(type(model), "step", 1)
change(monkeypatch.setattr)
patch.setattr(torch, "compile", 1), patch.setattr("os.replace", 1), patch.setattr(Ours, "calls", 1)
def helper(patch):
    'Says why.'
    patch.setattr(fit, "Run", 1)
"""
    tree, lines = ast.parse(found), found.splitlines(keepends=True)
    reasons = {node.lineno: has_reason(node, tree, lines) for node in patches(tree)}
    assert reasons == {5: False, 6: True, 8: True, 9: False, 10: False, 14: True}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_says_what_it_reproduces_and_builds(path: Path, monkeypatch, tmp_path: Path) -> None:
    from vision_attn.configuration.config import build, read

    head = path.read_text().splitlines()[:4]
    assert [line[:2] for line in head[:3]] == ["# "] * 3 and head[3][:1] not in ("#", "")
    assert path.name in head[1] or "demo" in head[1]
    assert "last reached" in head[2]
    assert "format" not in yaml.safe_load(path.read_text())
    monkeypatch.chdir(tmp_path)
    written = yaml.safe_load(path.read_text())
    start = written.get("run", {}).get("start_from")
    if start and "class_path" not in (written.get("task") or {}) and not (ROOT / start).is_dir():
        pytest.skip(f"{start} is not here")
    parts = build(read(path))
    assert parts["run"].folder == f"runs/{path.stem}" and callable(parts["task"])
    assert not list(tmp_path.iterdir())

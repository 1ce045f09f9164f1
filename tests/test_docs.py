"""The documents and the code say the same.

docs/equations.md links to lines of code, and CONTRIBUTING.md has a picture of the floors of the package. After an edit
that moves lines or folders, this sets all line numbers, and draws the picture from pyproject.toml. It also writes the
tables at the head of docs/results.md from the numbers in docs/results.yaml, and the plan in docs/gpu.md:

    python tests/test_docs.py --update
"""

import ast
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.result_tables import GPU, RESULTS, plan, tables, with_plan, with_tables

ROOT = Path(__file__).parents[1]
EQUATIONS = ROOT / "docs" / "equations.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
RUNS, SPEED = RESULTS.with_name("results_runs.md"), RESULTS.with_name("results_speed.md")
UPDATE = "python tests/test_docs.py --update"
TOLERANCE = 5
"""Lines by which a link may miss its symbol."""
SECTIONS = ("--data", "--task", "--optimizer", "--schedule")
"""What a command may replace of a config as a whole."""

LINK = re.compile(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)#L(\d+)\)")
PICTURE = re.compile(r"(<!-- floors: .*? -->\n```text\n)(.*?)```", re.DOTALL)
ROW = re.compile(r"^\|(.+)\|$", re.MULTILINE)
NUMBER = re.compile(r"\b(?:eq\.|section|table) [\d.]*\d")

NUMBERED = {
    "Xu et al. 2015": {
        "attention/hard.py": [8, 9],
        "attention/reinforce.py": [10, 11, 12],
        "attention/scores.py": [4],
        "attention/soft.py": [5, 6, 13, 14],
        "criteria/doubly_stochastic.py": [14],
        "criteria/reinforce_attention.py": [12],
        "layers/lstm.py": [1, 2, 3],
        "models/show_attend_tell.py": [1, 2, 3, 4, 5, 6, 7],
    },
    "Vinyals et al. 2015": {"models/show_and_tell.py": [10, 11, 12]},
    "Anderson et al. 2018": {"models/top_down.py": [1, 2, 3, 4, 5, 6, 7]},
    "Vaswani et al. 2017": {"attention/scores.py": [1], "attention/multi_head.py": [1], "models/transformer.py": [2]},
    "Chorowski et al. 2015": {"attention/location.py": [8, 9]},
    "Luong et al. 2015": {"attention/location.py": [8, 9, 10]},
    "Graves et al. 2014": {"attention/scores.py": [5]},
    "Mnih et al. 2014": {"attention/reinforce.py": [2, 3], "tasks/classify.py": [1]},
    "Gregor et al. 2015": {
        "attention/filterbank.py": [19, 20, 21, 22, 23, 24, 25, 26, 27, 29],
        "models/draw.py": [*range(1, 12), 13, 14, 15, 16, 17, 18, 27, 28, 29],
        "tasks/generate.py": [9, 10, 12],
    },
    "Jang et al. 2017": {"attention/hard.py": [1, 2]},
    "Dosovitskiy et al. 2021": {"models/vit.py": [1, 2, 3, 5]},
    "Chefer et al. 2021": {"explain/relevance.py": [5, 6]},
    "Selvaraju et al. 2017": {"explain/relevance.py": [1, 2]},
    "Kool et al. 2019": {"attention/reinforce.py": []},
    "Burda et al. 2016": {"tasks/generate.py": [8]},
    "Graves et al. 2006": {"criteria/ctc.py": [12], "decode/ctc.py": [4], "models/ctc.py": [3]},
    "Raffel et al. 2017": {"attention/monotonic.py": [13, 14]},
    "Vedantam et al. 2015": {"metrics/cider.py": [1, 3, 4]},
    "Rennie et al. 2017": {"criteria/self_critical.py": []},
    "Williams 1992": {"attention/reinforce.py": []},
}
"""Where each equation is computed: a search of that file for "eq. N" finds the paper and the number."""


@cache
def symbols(path: Path) -> dict[str, tuple[int, int]]:
    """First and last line of each class, function and attribute of a module: "Additive", "Additive.key"."""
    found: dict[str, tuple[int, int]] = {}

    def define(name: str, node: ast.AST) -> None:
        found.setdefault(name, (node.lineno, node.end_lineno))

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                define(prefix + child.name, child)
                visit(child, prefix + child.name + "." if isinstance(child, ast.ClassDef) else prefix)
            elif isinstance(child, ast.Assign | ast.AnnAssign):
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                for target in [part for each in targets for part in getattr(each, "elts", [each])]:
                    if isinstance(target, ast.Name) and not isinstance(node, ast.FunctionDef):
                        define(prefix + target.id, child)
                    elif isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self":
                        define(prefix + target.attr, child)
            else:
                visit(child, prefix)

    visit(ast.parse(path.read_text()), "")
    return found


def source(path: Path, symbol: str) -> str:
    """The text of a symbol, with the line breaks of docstrings as spaces."""
    first, last = symbols(path)[symbol]
    return " ".join(" ".join(path.read_text().splitlines()[first - 1 : last]).split())


def updated(text: str) -> str:
    """The document with the line of every symbol that exists."""

    def moved(link: re.Match) -> str:
        symbol, path, _ = link.groups()
        first = symbols(ROOT / path).get(symbol, (0, 0))[0] if (ROOT / path).is_file() else 0
        return f"[`{symbol}`](../{path}#L{first})" if first else link[0]

    return LINK.sub(moved, text)


def floors() -> list[list[str]]:
    """The rooms of each floor, from the top: the contract of the linter in pyproject.toml."""
    written = (ROOT / "pyproject.toml").read_text().split("layers = [")[1].split("\n]")[0]
    return [re.findall(r"vision_attn\.(\w+)", floor) for floor in written.splitlines() if "vision_attn." in floor]


def picture() -> str:
    """A line for each room of the package: its floor, counted from the ground, its name and what it holds."""
    package, lines = ROOT / "vision_attn", []
    stack = floors()
    for number, rooms in enumerate(stack):
        floor = str(len(stack) - number)
        for room in rooms:
            inner = sorted(path.parent for path in (package / room).glob("*/__init__.py"))
            for path in [package / room, *inner]:
                file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
                said = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n")[0].rstrip(".")
                name = path.relative_to(package).as_posix() + ("/" if path.is_dir() else ".py")
                lines.append(f"{floor:>2}  {name:19}  {said}")
                floor = ""
    return "".join(f"{line.rstrip()}\n" for line in lines)


def pictured(text: str) -> str:
    return PICTURE.sub(lambda found: f"{found[1]}{picture()}```", text)


def test_the_picture_of_the_floors_is_that_of_the_linter() -> None:
    text = CONTRIBUTING.read_text()
    assert len(PICTURE.findall(text)) == 1 and pictured(text) == text, f"CONTRIBUTING.md is out of date: run `{UPDATE}`"


def test_every_room_of_at_most_ten_floors_says_in_a_line_what_it_is_for() -> None:
    lines = picture().splitlines()
    assert len(floors()) <= 10
    assert len(lines) > 20 and all(re.fullmatch(r"[ \d]{4}\S+ {2,}[A-Z`].{10,}", line) for line in lines), lines
    assert max(map(len, lines)) <= 120


def test_the_glossary_is_short_and_names_what_exists() -> None:
    text = CONTRIBUTING.read_text().split("## Glossary")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in row.split("|")] for row in ROW.findall(text)][2:]
    assert 20 <= len(rows) <= 30 and len({word for word, *_ in rows}) == len(rows)
    for word, *_, place in rows:
        module, name = place.strip("`").rsplit(".", 1)
        path = ROOT / "vision_attn" / module.replace(".", "/")
        files = path.glob("*.py") if path.is_dir() else [path.with_suffix(".py")]
        assert any(name in symbols(file) for file in files), (word, place)


def test_the_places_that_contributing_names_exist() -> None:
    text = CONTRIBUTING.read_text().split("## Where a thing belongs")[1].split("\n## ")[0]
    named = re.findall(r"`([\w/]+/(?:\w+\.py)?)`", PICTURE.sub("", text))
    missing = {name for name in named if not any((at / name).exists() for at in (ROOT, ROOT / "vision_attn"))}
    assert len(named) > 15 and not missing


def test_every_link_leads_to_its_symbol() -> None:
    wrong = []
    for symbol, name, line in LINK.findall(EQUATIONS.read_text()):
        path = ROOT / name
        if not path.is_file():
            wrong.append(f"{name} does not exist")
        elif symbol not in symbols(path):
            wrong.append(f"{name} has no {symbol}: correct the name in docs/equations.md")
        elif abs(symbols(path)[symbol][0] - int(line)) > TOLERANCE:
            wrong.append(f"{symbol} is at {name}:{symbols(path)[symbol][0]}, not {line}: run `{UPDATE}`")
    assert not wrong, "docs/equations.md:\n" + "\n".join(wrong)


def test_every_link_is_one_that_is_checked() -> None:
    text = EQUATIONS.read_text()
    assert len(re.findall(r"\]\(", text)) == len(LINK.findall(text)) > 100


def numbered_rows() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The number in each row of the document, and the links of the row."""
    for row in ROW.findall(EQUATIONS.read_text()):
        numbers, links = NUMBER.findall(row.rsplit("|", 1)[0]), LINK.findall(row)
        if numbers and links:
            yield numbers[0], [(symbol, path) for symbol, path, _ in links]


def test_the_docstring_of_each_row_has_the_number_of_its_equation() -> None:
    rows = list(numbered_rows())
    missing = [
        f"{number}: in none of {', '.join(f'{path} {symbol}' for symbol, path in links)}"
        for number, links in rows
        if number.startswith("eq.")
        and not any(re.search(re.escape(number) + r"(?!\d)", source(ROOT / path, symbol)) for symbol, path in links)
    ]
    assert len(rows) > 60 and not missing, "\n".join(missing)


@pytest.mark.parametrize("paper", NUMBERED)
def test_a_search_for_the_number_of_an_equation_finds_it(paper: str) -> None:
    author, year = paper.split(" ")[0], paper.rsplit(" ", 1)[1]
    for name, numbers in NUMBERED[paper].items():
        text = " ".join((ROOT / "vision_attn" / name).read_text().split())
        assert re.search(rf"{author}\b.{{0,60}}\b{year}", text), f"{name} does not name {paper}"
        missing = [f"eq. {number}" for number in numbers if not re.search(rf"eq\. {number}(?!\d)", text)]
        assert not missing, f"{name}: {missing} of {paper} cannot be found"


def test_update_sets_lines_and_nothing_else() -> None:
    text = EQUATIONS.read_text()
    shifted = LINK.sub(lambda link: link[0].replace(f"#L{link[3]})", "#L99999)"), text)
    assert updated(shifted) == updated(text) and LINK.sub("", shifted) == LINK.sub("", text)


def test_the_results_have_the_costs_that_the_configs_have() -> None:
    """Pixels and multiply-adds of an answer, counted on untrained models."""
    import torch

    from vision_attn.configuration.config import build, read
    from vision_attn.tasks.cost import multiply_adds

    rows = re.findall(r"\| `(\w+)` \|.*\| (\d+); ([\d.]+)M \|", RUNS.read_text())
    assert len(rows) == 7
    for name, pixels, millions in rows:
        parts = build(read(ROOT / "configs" / f"{name}.yaml"))
        task = parts["task"](parts["data"]).eval()
        counted = multiply_adds(task.model, torch.rand(1, *parts["data"].image_shape))
        assert (str(task.model.pixels), f"{counted / 1e6:.2f}") == (pixels, millions), name


def test_the_numbers_of_the_readme_are_those_of_the_results() -> None:
    """Every row of its table: at most ten, and ours and the paper's numbers all stand in the results."""
    section = (ROOT / "README.md").read_text().split("## Results")[1].split("\n## ")[0]
    rows = [row.split("|") for row in ROW.findall(section)][2:]
    results = set(re.findall(r"\d[\d.]*\d", "".join(path.read_text() for path in (RESULTS, RUNS, SPEED))))
    assert 5 <= len(rows) <= 10
    for *_, ours, paper in rows:
        numbers = re.findall(r"\d+\.\d+", ours + paper)
        assert (numbers or "%" in ours) and set(numbers) <= results, (ours, paper)


def test_the_tables_of_each_paper_sum_up_the_runs() -> None:
    """Every number in docs/results.md occurs among the runs or speeds, and every config named there exists."""
    above, below = RESULTS.read_text(), RUNS.read_text() + SPEED.read_text()
    numbers, measured = (set(re.findall(r"\d+\.\d+", text)) for text in ("".join(ROW.findall(above)), below))
    named = set(re.findall(r"`([a-z]\w+_\w+)`", above))
    assert len(numbers) > 80 and numbers <= measured, numbers - measured
    assert len(named) > 20 and all((ROOT / "configs" / f"{name}.yaml").is_file() for name in named)


def test_each_number_at_the_head_of_the_results_is_of_a_row_with_seeds_and_a_split() -> None:
    """The tables are written from docs/results.yaml: no number stands there alone."""
    text = RESULTS.read_text()
    assert with_tables(text) == text, f"docs/results.md is out of date: run `{UPDATE}`"
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == [*(table["heading"] for table in tables()), "Speed, in brief"]
    for table in tables():
        assert table["split"] in ("val", "test") and re.match(r"[\d,]+ \w+", table["items"])
        for row in table["rows"]:
            measured = [value for value in row.values() if isinstance(value, list) and not isinstance(value[0], str)]
            assert bool(row.get("seeds")) == bool(measured), row
            assert {*row} <= {*table["columns"], "seeds", "bold", "name", "runs", "theirs", "weights"}, row


def test_the_plan_of_half_an_hour_is_that_of_the_rows() -> None:
    text = GPU.read_text()
    assert with_plan(text) == text and plan() in text, f"docs/gpu.md is out of date: run `{UPDATE}`"


def test_a_number_that_is_changed_in_the_results_is_noticed() -> None:
    text = RESULTS.read_text()
    for table in tables():
        before, rest = text.split(f"\n## {table['heading']}\n")
        changed = before + f"\n## {table['heading']}\n" + re.sub(r"\| \**(\d+\.\d+)", "| 5.4321", rest, count=1)
        assert changed != text and with_tables(changed) == text, table["heading"]


def test_links_to_headings_lead_to_one() -> None:
    """As GitHub names them: in lower case, spaces as hyphens, without punctuation."""
    missing = []
    for path in (ROOT / "README.md", CONTRIBUTING, *(ROOT / "docs").glob("*.md")):
        for name, heading in re.findall(r"\]\(([\w./]*)#([\w-]+)\)", path.read_text()):
            target = path.parent / name if name else path
            if target.suffix == ".md":
                headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}
                missing += [] if heading in anchors else [f"{path.name}: {name}#{heading}"]
    assert not missing, missing


def commands(path: Path) -> Iterator[list[str]]:
    """The words of each command `vision-attn ...` in a document's blocks."""
    for block in re.findall(r"```bash\n(.*?)```", path.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0].endswith("vision-attn"):
                yield words[1:]


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.stem
)
def test_the_commands_of_a_document_exist(path: Path) -> None:
    """Their verbs, the options of verbs, and the configs and weights that they name."""
    from vision_attn.commands import parser_of

    for verb, *words in commands(path):
        parsers = parser_of(verb)[1]
        assert verb in parsers, f"vision-attn {verb}"
        for word in words:
            option = word.split("=")[0]
            if option.startswith("--") and "." not in option and option not in SECTIONS:
                assert option in parsers[verb].options, f"vision-attn {verb} {word}"
            if word.startswith(("configs/", "weights/", "docs/")):
                assert (ROOT / word).exists(), f"vision-attn {verb}: {word} does not exist"
        if verb in ("train", "keys") and not words[0].startswith(("configs/", "CONFIG", "runs/")):
            assert (ROOT / "configs" / f"{words[0]}.yaml").is_file(), (
                f"vision-attn {verb}: there is no config {words[0]}"
            )


def test_the_readme_names_keys_that_configs_have(monkeypatch) -> None:
    from vision_attn.configuration.config import read

    monkeypatch.chdir(ROOT)
    trained = [words[1:] for words in commands(ROOT / "README.md") if words[0] == "train"]
    for name, *options in trained:
        read(ROOT / "configs" / f"{Path(name).stem}.yaml", options)
    assert len(trained) > 3


def test_each_use_in_the_readme_takes_few_lines() -> None:
    """What one can do, each in five lines at most."""
    uses = (ROOT / "README.md").read_text().split("## What you can do")[1].split("**In Python**")[0].split("\n**")[1:]
    lines = [[line for line in use.splitlines() if line and not line.startswith("```")] for use in uses]
    assert len(uses) == 4 and all(len(use) <= 5 for use in lines)


def test_each_cell_of_commands_and_events_names_a_test() -> None:
    """Of every verb, and each test is where the letter before it says, and runs on this verb."""
    from vision_attn.commands import all_verbs

    text = (ROOT / "docs" / "reliability.md").read_text().split("## What may happen to a command")[1]
    files = dict(re.findall(r"\((\w)\)\s`(tests/[\w/]+\.py)`", text))
    rows = [[cell.strip() for cell in row.split("|")] for row in ROW.findall(text)]
    (_, *events), _, *rows = rows
    assert len(events) == 7 and len(files) == 3
    assert [row[0].strip("`") for row in rows] == [*all_verbs()], "a row for each verb in docs/reliability.md"
    for verb, *cells in rows:
        for event, cell in zip(events, cells, strict=True):
            tests = re.findall(r"\((\w)\) `(\w+)`", cell)
            assert tests or (cell == "-" and event == "full disk"), (verb, event)
            assert all(name in symbols(ROOT / files[letter]) for letter, name in tests), (verb, event)
    text = (ROOT / files["a"]).with_name("every_verb.py").read_text()
    assert [name for name in all_verbs() if f'    "{name}": Verb(' not in text] == [], "not in VERBS of every_verb.py"


def test_hooks_and_the_workflow_run_what_make_runs() -> None:
    lint = re.search(r"^lint:.*\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    (hooks,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert hooks["repo"] == "local" and [hook["entry"] for hook in hooks["hooks"]] == lint.strip().split("\n\t")
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yaml").read_text())["jobs"].values()
    assert job["steps"][-1]["run"] == ".ci/run"
    supported = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert supported in job["strategy"]["matrix"]["python"]


def test_the_gradients_of_scale_are_those_of_the_captioner() -> None:
    import torch

    from vision_attn.models.show_attend_tell import ShowAttendTell

    with torch.device("meta"):
        size = sum(weight.numel() for weight in ShowAttendTell(10_000, 512).parameters())
    text = (ROOT / "docs" / "scale.md").read_text()
    assert f"{size / 1e6:.1f} million parameters" in text and f"{4 * size / 1e6:.0f} MB of gradients" in text


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        sys.exit(f"usage: {UPDATE}")
    EQUATIONS.write_text(updated(EQUATIONS.read_text()))
    CONTRIBUTING.write_text(pictured(CONTRIBUTING.read_text()))
    RESULTS.write_text(with_tables(RESULTS.read_text()))
    GPU.write_text(with_plan(GPU.read_text()))

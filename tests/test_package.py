"""The package away from its checkout: the wheel, its metadata, and what it brings along."""

import email
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import yaml

from tests.untrained import SIZES
from vision_attn import __version__
from vision_attn.commands import _hints, main
from vision_attn.commands.keys import GENERAL, descriptions
from vision_attn.system.errors import UserError

ROOT = Path(__file__).parents[1]
NEEDED = "building the package needs hatchling, of the extra [dev]"
ADDRESS = "https://example.org/vision_attn"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """What is in a wheel of the checkout, which is what an installation copies."""
    wheels = pytest.importorskip("hatchling.builders.wheel", reason=NEEDED)
    dist, site = (tmp_path_factory.mktemp(name) for name in ("dist", "site"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VISION_ATTN_REPOSITORY", ADDRESS)
        (wheel,) = wheels.WheelBuilder(str(ROOT)).build(directory=str(dist), versions=["standard"])
    shutil.unpack_archive(wheel, site, "zip")
    return site


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The site-packages of a new environment, into which pip has installed the wheel and nothing else: the wheel of
    the sdist, as of a release. It borrows what the package depends on from this environment. Without hatchling, these
    tests are skipped."""
    wheels = pytest.importorskip("hatchling.builders.wheel", reason=NEEDED)
    sdists = pytest.importorskip("hatchling.builders.sdist", reason=NEEDED)
    source, dist, home = (tmp_path_factory.mktemp(name) for name in ("source", "dist", "home"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VISION_ATTN_REPOSITORY", ADDRESS)
        (archive,) = sdists.SdistBuilder(str(ROOT)).build(directory=str(source), versions=["standard"])
        shutil.unpack_archive(archive, source)
        unpacked = source / f"vision_attn-{__version__}"
        list(wheels.WheelBuilder(str(unpacked)).build(directory=str(dist), versions=["standard"]))
    venv.create(home, with_pip=False)
    (site,) = (Path(path) for path in home.glob("lib/python*/site-packages"))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        home / "bin/python",
        "install",
        "--no-index",
        "--no-deps",
        "--quiet",
    ]
    subprocess.run([*pip, "--disable-pip-version-check", next(dist.iterdir())], check=True)
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return site


@pytest.mark.slow
def test_commands_of_an_installed_wheel_find_what_comes_along(installed, tmp_path) -> None:
    """From an empty folder: the demo, which captions photographs, trains, measures and shows; the same again, which
    finds the run finished; and a config and a run by their names."""
    script = """
import sys
sys.modules["numba"] = None  # which would compile its loops again in a new folder
import vision_attn
from vision_attn.commands import caption, eval, main
from vision_attn.system.files import ours
from vision_attn.metrics.coco import captions
assert vision_attn.__file__.startswith(sys.argv[1])
run = captions.run  # without METEOR, which takes long to start, and is Java as the tokenizer is
captions.run = lambda jobs, *rest, **options: run([job for job in jobs if job != "meteor"], *rest, **options)
photograph = str(ours() / "docs/photographs/coffee.jpg")
assert main(["demo", *sys.argv[2:]]) == 0
assert main(["keys", "finetune_photographs"]) == 0
assert main(["look", "weights/photographs", photograph, "--out", "look"]) == 0
print("AGAIN")
caption.run = eval.run = lambda _: 0
assert main(["demo", *sys.argv[2:]]) == 0
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = partial(subprocess.run, cwd=tmp_path, env=environment, capture_output=True, text=True)
    tools = installed.parents[2] / "bin"
    done = run([tools / "python", "-c", script, installed, *SIZES["sat_soft_scenes"]])
    assert done.returncode == 0, done.stderr
    said, again = done.stdout.split("AGAIN\n")
    assert re.search(r"^\S*coffee\.jpg\t\w+( \S+){3,}$", said, re.MULTILINE)
    assert "\n--run.start_from=weights/photographs  # Folder of a run" in said
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "look"}
    demo = tmp_path / "runs/demo"
    record, page = json.loads((demo / "metrics_test.json").read_text()), demo / "pictures_test/index.html"
    assert {"BLEU-4", "CIDEr", "pointing", "pointing_uniform"} <= set(record)
    assert f" s: BLEU-4 {record['BLEU-4']:.3f}, pointing {record['pointing']:.3f}\n" in said
    assert (demo / "best/model.safetensors").is_file() and page.is_file() and str(page.resolve()) in said
    assert (demo / "photographs/index.html").is_file() and "finished" in again
    done = run([tools / "vision-attn", "--version"])
    assert done.returncode == 0 and done.stdout.startswith("vision-attn "), done.stderr


def test_the_wheel_holds_all_of_the_package(unpacked: Path) -> None:
    """Also what is no code, such as the templates of pages."""
    ours = {path.relative_to(ROOT) for path in (ROOT / "vision_attn").rglob("*") if path.is_file()}
    ours = {path for path in ours if "__pycache__" not in path.parts}
    assert {path.suffix for path in ours} >= {".py", ".html", ".css", ".js", ".typed"}
    assert {str(path) for path in ours if not (unpacked / path).is_file()} == set()


def test_the_wheel_is_typed_and_says_where_the_project_is(unpacked) -> None:
    assert (unpacked / "vision_attn/py.typed").is_file()
    (path,) = unpacked.glob("*.dist-info/METADATA")
    metadata = email.message_from_string(path.read_text())
    assert f"Repository, {ADDRESS}" in metadata.get_all("Project-URL")
    assert metadata["Requires-Python"] == ">=3.10" and "Typing :: Typed" in metadata.get_all("Classifier")
    links = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())
    assert f"{ADDRESS}/raw/main/docs/pictures/scene.png" in links
    assert f"{ADDRESS}/blob/main/docs/captioning.md" in links
    assert all(link.startswith(ADDRESS) for link in links)
    readme = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(readme) == len(links) and not any(link.startswith("http") for link in readme)
    assert metadata["Version"] == __version__
    rendered = pytest.importorskip("readme_renderer.markdown").render(metadata.get_payload())
    assert rendered and "<table>" in rendered and f'src="{ADDRESS}/raw/main/docs/pictures/scene.png"' in rendered


def test_the_citation_and_the_changelog_are_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # which the format requires
    assert citation["version"] == __version__
    releases = re.findall(r"^## \[(\d.*)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == (__version__, str(citation["date-released"]))


def test_the_sdist_is_complete() -> None:
    """All that git tracks."""
    sdists = pytest.importorskip("hatchling.builders.sdist", reason=NEEDED)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no git repository")
    packed = {file.relative_path for file in sdists.SdistBuilder(str(ROOT)).recurse_included_files()}
    always = {"pyproject.toml", "LICENSE", ".gitignore"}  # which hatchling adds
    assert {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()} <= packed | always


def test_python_m_runs_commands() -> None:
    done = subprocess.run([sys.executable, "-m", "vision_attn", "--version"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("vision-attn ")


def test_a_config_is_found_by_its_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    theirs = ROOT / "configs" / "sat_soft_scenes.yaml"
    for name in ("sat_soft_scenes", "sat_soft_scenes.yaml", "configs/sat_soft_scenes.yaml"):
        assert _hints.config_file(name) == theirs
    with pytest.raises(UserError, match="does not exist"):
        _hints.config_file("elsewhere/sat_soft_scenes")
    Path("configs").mkdir()
    Path("configs/sat_soft_scenes.yaml").write_text("of mine")
    assert _hints.config_file("sat_soft_scenes") == Path("configs/sat_soft_scenes.yaml")


def test_options_may_stand_before_the_config_with_their_value_as_the_next_word(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["keys", "--run.epochs", "3", "--optimizer.lr", "1e-3", "sat_soft_scenes", "--run.seed", "-1"]) == 0
    lines = [line.partition("  # ")[0] for line in capsys.readouterr().out.splitlines()]
    assert {"--run.epochs=3", "--optimizer.lr=0.001", "--run.seed=-1"} <= set(lines)
    assert "--task.model=vision_attn.models.show_attend_tell.ShowAttendTell" in lines
    assert main(["keys", "--run.epoch", "3", "sat_soft_scenes"]) == 1
    assert "did you mean epochs" in capsys.readouterr().err
    assert _hints.joined(["--beams", "3", "--data.images", "x", "--a=b", "c", "--", "d"], {"--beams"}) == [
        "--beams", "3", "--data.images=x", "--a=b", "c", "--", "d",
    ]  # fmt: skip


def test_an_option_with_spaces_in_its_value_is_no_name(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    sources = "--data.sources=[{name: everyday, images: nowhere, annotations: nowhere.json}]"
    assert main(["eval", "weights/photographs", "--data.images=null", "--data.annotations=null", sources]) == 1
    assert "nowhere.json was not found" in capsys.readouterr().err
    assert main(["keys", "sat_photographs", "--data.images=null", sources, "--data.sources=null"]) == 0
    assert "--data.sources=null" in capsys.readouterr().out  # options keep their order
    held = _hints.spaces_held(["--a=b c", "--beams=1 2", "--odd name.jpg", "--", "--d=e f"], {"--beams"})
    assert held == [f"--a=b{_hints.HELD}c", "--beams=1 2", "--odd name.jpg", "--", "--d=e f"]


def test_every_key_that_is_listed_can_be_overridden(capsys) -> None:
    assert main(["keys", "sat_soft_scenes"]) == 0
    printed = capsys.readouterr().out
    listed = shlex.split(printed, comments=True)  # as a shell reads what is pasted
    assert len(listed) > 60 and all(option.startswith("--") for option in listed)
    assert main(["keys", "sat_soft_scenes", *(option for option in listed if not option.endswith("=null"))]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("config", sorted(path.stem for path in (ROOT / "configs").glob("*.yaml")))
def test_every_key_of_every_config_is_explained(config: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["keys", config]) == 0
    lines = [line.split("  # ") for line in capsys.readouterr().out.splitlines()]
    own = [line for line in lines if not line[0].startswith(("--optimizer", "--schedule"))]
    assert [line for line in own if len(line) != 2] == []
    assert all(text == text.strip(" .;") or text.endswith("..") for _, text in own)


class Seeded:
    """Something else. seed: where it begins."""

    def __init__(self, seed: int): ...


def test_descriptions_are_found_in_docstrings_of_any_style() -> None:
    @dataclass
    class Parent:
        """First sentence of the class. Second."""

        depth: int
        """How deep, e.g. 3. More of it."""

    class Child(Parent):
        """A class that goes `far` away; it stops there.

        `width`, `height`: in pixels (Xu et al. 2015, eq. 4). Later. size: both, so
        that they are equal. Other: nothing.

        ways: a, b, ...
        seed: as for `Seeded`.
        """

        def __init__(
            self, depth, width, height, size, ways, far, dropout, rate, kind: Literal["a", "b"] | None, seed, unknown
        ):
            """
            Args:
                rate (float, optional): the `rate`; default: 3
            """

    assert descriptions(Child) == {
        "depth": "How deep, e.g. 3. More of it", "width": "in pixels (Xu et al. 2015, eq. 4). Later",
        "height": "in pixels (Xu et al. 2015, eq. 4). Later", "size": "both, so that they are equal. Other: nothing",
        "ways": "a, b, ...", "far": "A class that goes far away", "dropout": GENERAL["dropout"],
        "rate": "the rate; default: 3", "kind": "(a or b)", "seed": "where it begins", "unknown": "",
    }  # fmt: skip
    assert descriptions(None) == {}


def test_completion_knows_verbs_and_options(capsys) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert "--recursive" in script and all(verb in script for verb in ("train", "caption", "completion"))
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_the_container_has_a_compiler_and_installs_torch_before_the_code() -> None:
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    steps = text.replace("\\\n", "").splitlines()
    (system,) = (step for step in steps if "apt-get install" in step)
    assert {"gcc", "libc6-dev"} <= set(system.split())
    torch, code = (number for number, step in enumerate(steps) if re.search(r" torch |COPY \. ", step))
    assert steps[torch].startswith("RUN pip install") and torch < code
    assert re.search(r'"[^"]+\[cuda,hub,scale,web\]"$', steps[code + 1])

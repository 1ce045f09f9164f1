"""Run folders from anyone: what their configs may name, how much they may ask for, and what opening them never does."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from tests.untrained import write_run
from vision_attn.commands import main
from vision_attn.configuration.parts import plain
from vision_attn.configuration.reader import ConfigReader
from vision_attn.configuration.run_folder import open_run
from vision_attn.configuration.trust import RunFolder, Untrusted, confined
from vision_attn.encoders.backbone import Backbone
from vision_attn.encoders.vgg import VGG
from vision_attn.engine.fit import fit
from vision_attn.system.errors import UserError
from vision_attn.task import Source

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
EVIL = "from pathlib import Path\n\n(Path(__file__).parent / 'ran').touch()\n\n\nclass Evil:\n    pass\n"
ATTENTION = ("task", "init_args", "model", "init_args", "attention")
SCORE = (*ATTENTION[:-1], "score")
HARD = "vision_attn.attention.hard.Hard"


@pytest.fixture(scope="module")
def captioner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny captioner."""
    return write_run("sat_soft_scenes", tmp_path_factory.mktemp("good") / "run")


@pytest.fixture
def evil(captioner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes another config for the captioner, in a folder that holds code which would leave a file named `ran`.

    Called with a path of keys and a value; returns the run folder. The current folder is the one above it.
    """
    folder = tmp_path / "runs" / "evil"
    folder.mkdir(parents=True)
    for file in (captioner / "best").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    for place in (folder, tmp_path):
        (place / "helper.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def write(path: tuple[str, ...], value: object) -> Path:
        content = yaml.safe_load((captioner / "best" / "config.yaml").read_text())
        node = content
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value
        (folder / "config.yaml").write_text(yaml.safe_dump(content))
        return folder

    yield write
    assert not list(tmp_path.rglob("ran"))
    assert not {"helper", "runs", "runs.evil", "runs.evil.helper"} & set(sys.modules)


def refused(folder: Path, **options) -> str:
    """The one line with which opening `folder` fails."""
    with pytest.raises(UserError) as caught:
        open_run(folder, **options)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "target", "arguments"),
    [
        (ATTENTION, "vision_attn.commands.main", {"argv": ["train", "evil.yaml"]}),
        (ATTENTION, "vision_attn.system.files.replacing", {"path": "made"}),
        (ATTENTION, "vision_attn.encoders.torchvision_networks.get_model", {"name": "resnet18", "weights": "DEFAULT"}),
        (SCORE, "torchvision.models.resnet18", {"weights": "DEFAULT"}),
        (SCORE, "torchvision.datasets.utils.download_url", {"url": "file:helper.py", "root": "made"}),
        (SCORE, "torch.hub.load", {"repo_or_dir": ".", "model": "x", "source": "local"}),
        (SCORE, "torch.nn.functional.importlib.import_module", {"name": "helper"}),
        (("data",), "vision_attn.data.digits.mnist_files.fetch", {"place": "made", "names": []}),
        (("task",), "vision_attn.configuration.run_folder.open_run", {"folder": "runs/evil", "trust": ["helper"]}),
        (("task",), "subprocess.run", {"args": ["touch", "made"]}),
    ],
)
def test_functions_are_never_called(evil, tmp_path: Path, path, target: str, arguments: dict) -> None:
    for value in ({"class_path": target, "init_args": arguments}, target):
        said = refused(evil(path, value))
        assert target in said and "--trust vision" not in said and "--trust torch" not in said
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("path", [ATTENTION, SCORE, ("task",), ("data",)])
@pytest.mark.parametrize("target", ["runs.evil.helper.Evil", "helper.Evil"])
def test_the_hint_of_a_mistake_imports_nothing(evil, path, target: str) -> None:
    said = refused(evil(path, {"class_path": target, "init_args": {"unknown": 1}}))
    assert f"names {target}, which is third-party code: if you trust it, add --trust {target.split('.')[0]}" in said


def test_a_name_without_a_module_is_named(capsys) -> None:
    assert main(["keys", "sat_soft_scenes", "--task.model=mine"]) == 1
    said = "task.model: expected a class path such as vision_attn.models.show_attend_tell.ShowAttendTell, got 'mine'"
    assert said in capsys.readouterr().err
    assert main(["keys", "sat_soft_scenes", "--task.model.score=cosine"]) == 1
    said = "task.model.score: expected a class path, got 'cosine'; did you mean vision_attn.attention.scores.Cosine?"
    assert said in capsys.readouterr().err
    assert main(["keys", "sat_soft_scenes", "--optimizer=sgd"]) == 1
    assert "optimizer: expected a class path, got 'sgd'; did you mean torch.optim.SGD?" in capsys.readouterr().err
    assert main(["keys", "sat_soft_scenes", "--task.model.score=vision_attn.attention.soft.Soft"]) == 1
    assert "is not a subclass of Score, as are vision_attn.attention.scores." in capsys.readouterr().err


def test_classes_must_derive_from_what_is_expected(evil) -> None:
    vocabulary = "vision_attn.data.vocabulary.Vocabulary"
    assert f"{vocabulary} is not a subclass of Attention" in refused(evil(ATTENTION, vocabulary))
    assert "models.ram.RAM is not a subclass of Task" in refused(evil(("task",), "vision_attn.models.ram.RAM"))
    assert "not a subclass of Source" in refused(
        evil(("data",), {"class_path": "vision_attn.tasks.caption.Captioning"})
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("Soft", "expected a class path, got 'Soft'; did you mean vision_attn.attention.soft.Soft?"),
        ("{class_path: helper.Evil}", "expected a class path"),
        (["helper.Evil"], "expected a class path"),
        ({"class_path": {"class_path": "helper.Evil"}}, "expected a class path"),
        ("vision_attn.attention.soft.Sofd", "there is no Sofd in vision_attn.attention.soft; did you mean Soft?"),
        ("vision_attn.attention.soft.nn.Module", "No module named 'vision_attn.attention.soft.nn'"),
        ("vision_attn.attention.soft.nn", "names vision_attn.attention.soft.nn, which no run folder may use"),
        ("vision_attn.attention.soft.normalised", "is not a class"),
        ("torch.nn.LSTM", "names torch.nn.LSTM, which no run folder may use"),
        ({"class_path": "vision_attn.attention.soft.Soft", "dict_kwargs": {}},
        "attention.dict_kwargs: there is no such"), ({"class_path": "vision_attn.attention.soft.Soft", "__path__": "x"},
        "attention.__path__: there is no such"), ({"class_path": "vision_attn.attention.soft.Soft", "init_args": "{}"},
        "attention.init_args: expected keys"),
        ({"class_path": HARD, "init_args": {"soft_strat": 1}}, "did you mean soft_start?"),
        ({"class_path": HARD, "init_args": {"expectation_probability": {"a": 1}}}, "expected a float, got"),
        ({"class_path": HARD, "init_args": {"expectation_probability": float("nan")}}, "nan is outside the range"),
        ({"class_path": HARD, "init_args": {"soft_start": 10**16}}, "outside the range"),
        ({"class_path": "torch.nn.Linear", "init_args": {"device": "cpu"}}, "is not a subclass of Attention"),
    ],
)  # fmt: skip
def test_other_ways_to_name_code(evil, value: object, said: str) -> None:
    assert said in refused(evil(ATTENTION, value))


def test_a_string_of_plain_text_is_never_taken_for_a_class(evil) -> None:
    folder = evil(("data",), {"class_path": "vision_attn.data.photographs.captions.Captions", "init_args": {
        "images": {"class_path": "helper.Evil"}, "annotations": "{class_path: helper.Evil}"}})  # fmt: skip
    _, source, _ = open_run(folder)
    assert source.sources[0].images == {"class_path": "helper.Evil"}


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ((*ATTENTION[:-1], "hidden_size"), 10**8, "does not fit the model"),
        ((*ATTENTION[:-1], "hidden_size"), 10**9, "a model that cannot be built (RuntimeError: Storage size"),
        ((*ATTENTION[:-1], "hidden_size"), 10**12, "a model that cannot be built (RuntimeError: Storage size"),
        ((*ATTENTION[:-1], "hidden_size"), -1, "hidden_size is -1, but must be from 1"),
        ((*SCORE, "init_args", "attention_size"), 10**12, "does not fit the model"),
        (("task", "init_args", "encoder", "init_args", "width"), 16 * 10**5, "does not fit the model"),
        (("task", "init_args", "encoder", "init_args", "resolution"), 4 * 10**6, "resolution is 4000000, but must be"),
        (("task", "init_args", "beams"), 10**6, "beams is 1000000, but must be from 1 to 1,000"),
        (("task", "init_args", "max_words"), 10**9, "max_words is 1000000000, but must be from 1 to 1,000"),
        (("data", "init_args", "size"), 10**5, "size is 100000, but must be from 40 to 512"),
        (("data", "init_args", "batch_size"), 10**8, "must hold at least one batch"),
        (("data", "init_args", "test_images"), 10**7, "test_images is 10000000, but must be from 1 to 100,000"),
        (("data", "init_args", "size"), "9" * 4000, "is outside the range of numbers in a run folder"),
        (("task", "init_args", "length_power"), ".inf", "expected a float, got '.inf'"),
        (("run", "seed"), "x", "run.seed must be a whole number"),
        (("run",), [1], "run.seed must be a whole number"),
    ],
)
def test_a_config_asks_for_no_more_than_its_weights_hold(evil, path, value: object, said: str) -> None:
    assert said in refused(evil(path, value))


def test_overrides_are_the_users_and_checked_too(captioner: Path) -> None:
    penalty = "vision_attn.criteria.doubly_stochastic.DoublyStochastic"
    overrides = ["--data.test_images=2", f"--task.criteria.penalty={penalty}", "--task.beams=5"]
    task, source, config = open_run(captioner, overrides=overrides)
    assert task.decoding.beams == 5 and source.split_images["test"] == 2
    assert config["task"]["init_args"]["criteria"]["penalty"]["class_path"] == penalty
    said = refused(captioner, overrides=["--task.model.score=helper.Evil"])
    assert said.startswith("one of the options names helper.Evil, which is third-party code")
    said = refused(captioner, overrides=["--task.model.score=torch.nn.LSTM"])
    assert said == "one of the options names torch.nn.LSTM, which no run folder may use"


def test_nothing_is_run_to_learn_the_types_of_a_signature(evil, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that is started in the current folder would import a json.py from there."""

    def start(*_, **__) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", start)
    said = refused(evil(SCORE, {"class_path": "torch.nn.Bilinear", "init_args": {"out_features": 1}}))
    assert "process" not in said


def test_every_config_of_ours_may_be_opened() -> None:
    """Or runs trained by them could not."""
    for path in CONFIGS:
        content = yaml.safe_load(path.read_text())
        for key, expected in (("task", fit.__annotations__["task"]), ("data", Source)):
            if "class_path" not in content[key]:  # the task of the run that it starts from, which is checked there
                assert content["run"]["start_from"]
                continue
            kept = plain(ConfigReader(RunFolder()).value(content[key], expected, key))
            assert kept["class_path"] == content[key]["class_path"]
            assert kept["init_args"].keys() >= content[key].get("init_args", {}).keys()


def checked(value: object, expected: object, key: str, trust: tuple[str, ...] = ()) -> object:
    return plain(ConfigReader(RunFolder(trust)).value(value, expected, key))


def test_trusted_packages(tmp_path: Path) -> None:
    plane = {"class_path": "toy.Plane", "init_args": {"hidden": 8}}
    expected = fit.__annotations__["task"]
    with pytest.raises(Untrusted, match="--trust toy"):
        checked(plane, expected, "task")
    assert checked(plane, expected, "task", trust=["toy"])["init_args"] == {"hidden": 8, "dropout": 0.3}
    with pytest.raises(UserError, match="toy.Points is not a subclass of Task"):
        checked({"class_path": "toy.Points"}, expected, "task", trust=["toy"])
    with pytest.raises(UserError, match="toy.AdamW is defined in torch.optim.adamw, not in toy"):
        checked({"class_path": "toy.AdamW"}, expected, "task", trust=["toy"])
    for package in ("os", "torch", "torch.nn", "torchvision", "vision_attn", "vision_attn.commands"):
        with pytest.raises(UserError, match=f"--trust {package}: .* can do anything"):
            checked(plane, expected, "task", trust=[package])
    for package, more in (
        ("", "$"),
        ("a b", "$"),
        ("../x", "$"),
        ("toy.", "$"),
        ("--x", "$"),
        ("a,b", "; repeat --trust"),
    ):
        with pytest.raises(UserError, match=f"is not a package name{more}"):
            checked(plane, expected, "task", trust=[package])
    with pytest.raises(UserError, match="task: No module named 'nowhere'; if it is your own, name its folder"):
        checked({"class_path": "nowhere.Plane"}, expected, "task", trust=["nowhere"])


def test_a_run_may_not_download_nor_cache_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def cache(place: object) -> object:
        return confined({"class_path": "x", "init_args": {"cache": place}})["init_args"]["cache"]

    downloading = {"class_path": "x", "init_args": {"download": True, "a": 1}}
    assert confined(downloading)["init_args"] == {"download": False, "a": 1}
    assert (cache(None), cache("cache"), cache("a/b")) == (None, "cache", "a/b")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for place in (str(elsewhere), "../elsewhere", "a/../../x", "~", "~nobody-here/x", "/proc/nope"):
        assert cache(place) == "cache"
    (elsewhere / "convnet-1").mkdir()
    (elsewhere / "convnet-1" / "index.json").touch()
    assert cache(str(elsewhere)) == str(elsewhere)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "store").symlink_to(elsewhere / "convnet-1")  # below this folder, and of no caches
    monkeypatch.chdir(tmp_path / "run")
    assert cache("store") == cache("store/x") == "cache"


def test_backbones_are_classifiers_cut_at_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision downloads half of a detector when it is built, and takes a node for a regular expression."""
    monkeypatch.setattr("torch.hub.load_state_dict_from_url", lambda *_, **__: pytest.fail("downloads"))
    with pytest.raises(UserError, match="no classification network 'fasterrcnn_resnet50_fpn'"):
        Backbone(name="fasterrcnn_resnet50_fpn", node="backbone.body.conv1")
    with pytest.raises(UserError, match="is not a node of alexnet"):
        Backbone(name="alexnet", node="((.|.)*)*X")
    with pytest.raises(UserError, match="resolution is 10000, but must be from 1 to 4,096"):
        Backbone(name="alexnet", node="features.2", resolution=10000)
    with pytest.raises(UserError, match="regnet_x_16gf cannot be cut"):
        Backbone(name="regnet_x_16gf", node="trunk_output")


def test_models_are_built_without_memory() -> None:
    with torch.device("meta"):
        encoder = VGG(layers=16, resolution=32, weights=None)
    assert all(weights.is_meta for weights in encoder.state_dict().values())
    assert not any(weights.is_meta for weights in Backbone(name="alexnet", node="features.2").state_dict().values())

"""Configs of run folders that try to run code, to reach the network or the disk, or to take all time and memory.

Each is made of a good config. Names of places: `OUTSIDE` is replaced by a folder in which nothing may change, and the
modules of `CANARIES` lie where the attack runs and must never be imported.
"""

import copy
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

import vision_attn
from vision_attn.task import Source

CANARIES = ("evil_package", "helper", "runs")

Config = dict[str, Any]
Content = Config | str
"""Of a file: a config that is still to be written as YAML, or any text."""

TOUCH = ["touch", "OUTSIDE/canary"]
EXECUTORS: dict[str, dict] = {
    "vision_attn.commands.main": {"argv": ["train", "evil.yaml"]},
    "vision_attn.configuration.run_folder.open_run": {"folder": "runs/evil", "trust": ["evil_package"]},
    "vision_attn.configuration.config.read": {"path": "evil.yaml"},
    "vision_attn.engine.fit.fit": {},
    "vision_attn.configuration.weights.save_weights": {"path": "OUTSIDE/canary"},
    "vision_attn.system.files.replacing": {"path": "OUTSIDE/canary"},
    "vision_attn.system.files.os.system": {"command": "touch OUTSIDE/canary"},
    "vision_attn.system.files.shutil.rmtree": {"path": "OUTSIDE"},
    "vision_attn.metrics.coco.isolated.start": {"job": "tokenize", "folder": "OUTSIDE"},
    "vision_attn.metrics.coco.child.main": {"job": "tokenize", "folder": "OUTSIDE"},
    "vision_attn.metrics.caption_metrics": {},
    "vision_attn.data.digits.mnist_files.fetch": {"place": "OUTSIDE", "names": ["x"]},
    "vision_attn.data.digits.mnist.datasets.MNIST": {"root": "OUTSIDE", "download": True},
    "vision_attn.data.vocabulary.Vocabulary": {"words": "x"},
    "vision_attn.data.vocabulary.Tokenizer": {"identifier": "x"},
    "vision_attn.data.vocabulary.Tokenizer.from_pretrained": {"identifier": "x"},
    "vision_attn.data.photographs.annotation_vectors.features.Features": {
        "folder": "OUTSIDE",
        "residency": "memory",
        "device": "cpu",
    },
    "vision_attn.data.images.squares.Image.open": {"fp": "OUTSIDE/x"},
    "vision_attn.encoders.backbone.hashlib.sha256": {},
    "vision_attn.encoders.torchvision_networks.get_model": {"name": "resnet18", "weights": "DEFAULT"},
    "vision_attn.tasks.caption.draw": {"folder": "OUTSIDE"},
    "torchvision.datasets.utils.download_url": {"url": "file:x", "root": "OUTSIDE", "filename": "canary"},
    "torchvision.datasets.MNIST": {"root": "OUTSIDE", "download": True},
    "torchvision.models.resnet18": {"weights": "DEFAULT"},
    "torchvision.models.resnet.ResNet": {"layers": [1, 1, 1, 1]},
    "torchvision.io.write_file": {"filename": "OUTSIDE/canary"},
    "torch.hub.load": {"repo_or_dir": ".", "model": "x", "source": "local"},
    "torch.hub.download_url_to_file": {"url": "file:x", "dst": "OUTSIDE/canary"},
    "torch.load": {"f": "evil.pt", "weights_only": False},
    "torch.save": {"obj": 1, "f": "OUTSIDE/canary"},
    "torch.jit.load": {"f": "evil.pt"},
    "torch.package.PackageImporter": {"file_or_buffer": "evil.pt"},
    "torch.utils.cpp_extension.load": {"name": "x", "sources": ["x.cpp"]},
    "torch.utils.data.DataLoader": {"dataset": [1], "num_workers": 4},
    "torch.multiprocessing.spawn": {"fn": "os.system"},
    "torch.distributed.init_process_group": {"backend": "gloo", "init_method": "tcp://127.0.0.1:1"},
    "torch.nn.DataParallel": {"module": "x"},
    "torch.nn.Transformer": {"num_encoder_layers": 10**6},
    "torch.nn.LSTM": {"input_size": 1, "hidden_size": 1, "num_layers": 10**8},
    "torch.nn.Sequential": {},
    "torch.nn.functional.relu": {},
    "torch.nn.functional.importlib.import_module": {"name": "helper"},
    "torch.optim.Adam": {"lr": 0.1},
    "os.system": {"command": "touch OUTSIDE/canary"},
    "os.execvp": {"file": "touch", "args": TOUCH},
    "os.mkdir": {"path": "OUTSIDE/canary"},
    "os._exit": {"status": 0},
    "posix.system": {"command": "touch OUTSIDE/canary"},
    "subprocess.Popen": {"args": TOUCH},
    "subprocess.run": {"args": TOUCH},
    "pty.spawn": {"argv": TOUCH},
    "builtins.eval": {"source": "open('OUTSIDE/canary', 'w')"},
    "builtins.exec": {"source": "import helper"},
    "builtins.open": {"file": "OUTSIDE/canary", "mode": "w"},
    "builtins.__import__": {"name": "helper"},
    "importlib.import_module": {"name": "helper"},
    "runpy.run_path": {"path_name": "helper.py"},
    "runpy.run_module": {"mod_name": "helper"},
    "helper.Evil": {},
    "helper.make": {},
    "runs.evil.helper.Evil": {},
    "runs.evil.best.helper.Evil": {},
    "evil_package.Evil": {},
    "pathlib.Path": {"args": ["OUTSIDE"]},
    "tempfile.mkdtemp": {"dir": "OUTSIDE"},
    "tempfile.NamedTemporaryFile": {"dir": "OUTSIDE", "delete": False},
    "shutil.rmtree": {"path": "OUTSIDE"},
    "shutil.copyfile": {"src": "evil.yaml", "dst": "OUTSIDE/canary"},
    "webbrowser.open": {"url": "file:x"},
    "socket.create_connection": {"address": ["127.0.0.1", 9]},
    "urllib.request.urlopen": {"url": "file:x"},
    "urllib.request.urlretrieve": {"url": "file:x", "filename": "OUTSIDE/canary"},
    "ctypes.CDLL": {"name": "evil.so"},
    "pickle.load": {"file": "evil.pt"},
    "shelve.open": {"filename": "OUTSIDE/canary"},
    "logging.FileHandler": {"filename": "OUTSIDE/canary"},
    "logging.config.fileConfig": {"fname": "evil.yaml"},
    "sqlite3.connect": {"database": "OUTSIDE/canary"},
    "multiprocessing.Process": {},
    "time.sleep": {"secs": 100},
    "sys.exit": {"status": 0},
    "site.addsitedir": {"sitedir": "."},
    "yaml.unsafe_load": {"stream": "!!python/object/apply:os.system ['touch OUTSIDE/canary']"},
    "numpy.save": {"file": "OUTSIDE/canary", "arr": [1]},
    "numpy.load": {"file": "evil.pt", "allow_pickle": True},
    "PIL.Image.open": {"fp": "evil.pt"},
    "tokenizers.Tokenizer.from_pretrained": {"identifier": "x"},
    "wandb.init": {"dir": "OUTSIDE"},
    "pytest.main": {"args": ["."]},
}
"""What a class path may call, and with which arguments, if anything could be called."""


def slots(config: Config) -> Iterator[tuple[str, ...]]:
    """The keys at which a config makes an object."""

    def below(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if isinstance(node, dict):
            if "class_path" in node:
                yield path
            for key, value in node.items():
                yield from below(value, (*path, key))

    for key in ("task", "data"):
        yield from below(config[key], (key,))


def leaves(config: Config) -> Iterator[tuple[str, ...]]:
    """The keys at which a config gives a value to a constructor."""

    def below(node: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if not isinstance(node, dict):
            yield path
        elif path[-1] != "class_path":
            for key, value in node.items():
                if key != "class_path":
                    yield from below(value, (*path, key))

    for key in ("task", "data"):
        yield from below(config[key], (key,))


def replaced(config: Config, path: tuple[str, ...], value: Any) -> Config:
    """A copy with another value at `path`."""
    config = copy.deepcopy(config)
    node = config
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return config


def executing(config: Config) -> Iterator[tuple[str, Content]]:
    """Every target of `EXECUTORS` in every slot, with its arguments and as a bare path."""
    for path in slots(config):
        for target, arguments in EXECUTORS.items():
            for value in ({"class_path": target, "init_args": arguments}, target):
                yield f"{'.'.join(path)} {target}", replaced(config, path, value)


def misplaced(config: Config) -> Iterator[tuple[str, Content]]:
    """Every model, part of a model, task and source of the package in every slot, with its default arguments."""
    root = Path(vision_attn.__file__).parent
    paths = [path.relative_to(root.parent).with_suffix("") for path in root.rglob("[a-z]*.py")]
    classes = [
        f"{module}.{name}"
        for module in sorted(".".join(path.parts) for path in paths)
        if ".commands" not in module
        for name, thing in vars(import_module(module)).items()
        if inspect.isclass(thing) and issubclass(thing, (nn.Module, Source)) and thing.__module__ == module
    ]
    for path in slots(config):
        for target in [*classes, "torch.nn.Identity", "torch.nn.Linear", "torch.nn.Bilinear", "torch.nn.BatchNorm2d"]:
            yield f"{'.'.join(path)} {target}", replaced(config, path, {"class_path": target})


VALUES = (
    0, -1, 1.5, 1000, 1001, 16_000, 64_000, 10**5, 10**6, 10**9, 10**12, 2**31, 2**63, 2**64, 10**30, -(10**9),
    float("nan"), float("inf"), 1e308, True, "", "text", "9" * 4000, "[1, 2]",
    "{class_path: os.system, init_args: {command: touch OUTSIDE/canary}}", "os.system", "OUTSIDE/canary", "/dev/zero",
    "../../x", "!!python/name:os.system", "\x1b]0;x\x07", "x\ny", "x" * 4096, "(x+x+)+y", "((.|.)*)*y", [], [[]], {},
    [10**9, 10**9], [1] * 1000, {"class_path": "os.system"}, {"a": {"b": 1}}, {"class_path": "helper.Evil",
    "init_args": {}}, [{"class_path": "helper.Evil"}], {"__path__": "x"},
)  # fmt: skip


def odd_values(config: Config) -> Iterator[tuple[str, Content]]:
    """Every value of `VALUES` for every parameter."""
    for path in leaves(config):
        for value in VALUES:
            yield f"{'.'.join(path)} = {value!r:.40}", replaced(config, path, value)

"""Private names of torch and of other libraries that the package uses: each is listed here with what breaks without it,
so that no new one comes unseen, and a version of a library without one fails here by name, before a user meets it.

A private name is one that begins with an underscore and that the package does not define itself, as an attribute, an
import or a string; and a method of ours that overrides a private one of theirs.
"""

import argparse
import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from tqdm import tqdm

PACKAGE = Path(__file__).parents[1] / "vision_attn"
PRIVATE = re.compile(r"_[A-Za-z]\w*")
PUBLIC = {"_asdict", "_fields", "_make", "_replace", "_exit"}
"""Documented names: of named tuples, and of `os`."""
ENDINGS = {"_box", "_JAVA_OPTIONS"}
"""Strings that are no names of Python: the end of a folder's name, and a variable of the environment."""


class Foreign(NamedTuple):
    """A private name of a library."""

    where: str
    """The only file that uses it, or the folder fast/, whose files are fast versions."""
    without: str
    """What a user would meet without it."""
    look_up: Callable[[], Any]
    """Returns what has the name. Raises, or returns None, where there is none."""


def onednn(name: str) -> Callable[[], Any]:
    return lambda: getattr(torch.ops.mkldnn, name)


def saved_names() -> Any:
    """The text of the library that writes the name, which it keeps in a file."""
    library = pytest.importorskip("datasets", reason="datasets is not installed")
    return re.search('"_data_files"', (Path(library.__file__).parent / "arrow_dataset.py").read_text())


def of_a_compiled_model(name: str) -> Callable[[], Any]:
    def look_up() -> Any:
        layer = nn.Linear(1, 1)
        layer.forward = torch.compile(layer.forward)
        return getattr({"_orig_mod": torch.compile(nn.Linear(1, 1))}.get(name, layer.forward), name)

    return look_up


FOREIGN = {
    "_actions": Foreign("commands/__init__.py", "shells complete no files, and options of a config take no value that "
                        "follows a space", lambda: argparse.ArgumentParser()._actions),
    "_version": Foreign("geometry/receptive_fields.py", "maps are drawn where the weights before saw, and folded "
                        "networks keep old weights", lambda: torch.ones(1)._version + 1),
    "_data_files": Foreign("data/photographs/annotation_files/hub_datasets.py",
                           "no folder of `save_to_disk` is read", saved_names),
    "_foreach_copy_": Foreign("decode/captured_search.py", "no search is captured", lambda: torch._foreach_copy_),
    "_dynamo": Foreign("encoders/torchvision_networks.py", "the first caption takes a second longer",
                       lambda: __import__("torch._dynamo.utils")._dynamo.utils.is_compile_supported),
    "_inductor": Foreign("engine/compiling.py", "errors of run.compile are shown as tracebacks",
                         lambda: __import__("torch._inductor.exc")._inductor.exc.InductorError),
    "_compiled_call_impl": Foreign("explain/record.py", "compiled models are looked into, and nothing is found",
                                   lambda: [nn.Linear(1, 1)._compiled_call_impl]),
    "_torchdynamo_orig_callable": Foreign("explain/record.py", "compiled models are looked into, and nothing is found",
                                          of_a_compiled_model("_torchdynamo_orig_callable")),
    "_orig_mod": Foreign("explain/record.py", "messages on compiled models say less", of_a_compiled_model("_orig_mod")),
    "_native_multi_head_attention": Foreign("explain/attention_mode.py", "nn.MultiheadAttention has no maps",
                                            lambda: torch._native_multi_head_attention),
    "_instances": Foreign("system/console.py", "a progress bar is drawn again below an error message",
                          lambda: [*tqdm._instances] or [None]),
    "_is_mkldnn_bf16_supported": Foreign("system/machine.py", "runs in bf16 compute in fp32 on every CPU",
                                         onednn("_is_mkldnn_bf16_supported")),
    "_C": Foreign("fast/", "the same as _current_graph_task_id", lambda: torch._C),
    "_current_graph_task_id": Foreign("fast/", "no model trains with run.fast", torch._C._current_graph_task_id),
    "_parameters": Foreign("fast/", "weights are cast in every time step", lambda: [nn.Linear(1, 1)._parameters]),
    "_forward_hooks": Foreign("fast/", "no likelihood is computed with run.fast",
                              lambda: [nn.Linear(1, 1)._forward_hooks]),
    "_forward_pre_hooks": Foreign("fast/", "no likelihood is computed with run.fast",
                                  lambda: [nn.Linear(1, 1)._forward_pre_hooks]),
    "_addmm_activation": Foreign("fast/", "no model with a rectified layer runs on a GPU with run.fast",
                                 lambda: torch._addmm_activation),
    "_softmax_backward_data": Foreign("fast/", "DRAW does not train on a GPU with run.fast",
                                      lambda: torch.ops.aten._softmax_backward_data),
    "_convolution_pointwise": Foreign("encoders/folding.py", "no photograph is encoded on a CPU",
                                      onednn("_convolution_pointwise")),
    "_linear_pointwise": Foreign("fast/", "products on CPUs of AMD are slower", onednn("_linear_pointwise")),
    "_reorder_linear_weight": Foreign("fast/", "decoding on CPUs fails with a TypeError",
                                      onednn("_reorder_linear_weight")),
}  # fmt: skip

FURTHER = {
    # whose messages and errors it tells from others, by the name of the module, and which says when it compiles
    "_dynamo": {"engine/compiling.py"},
    "_version": {"fast/"},
    "_foreach_copy_": {"fast/"},
}
"""More places of a name, each for a reason of its own."""


@cache
def trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def defined(tree: ast.AST) -> Iterator[str]:
    """Names that a file defines: of functions, classes, arguments, variables and attributes of `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "self.__dict__":
            yield ast.literal_eval(node.slice)


def used(tree: ast.AST) -> Iterator[str]:
    """Names that a file uses of others: attributes, imports, and strings that are names or paths of names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            paths = [module, *(alias.name for alias in node.names)]
            yield from () if module.startswith("vision_attn") else (part for path in paths for part in path.split("."))
        elif isinstance(node, ast.JoinedStr):
            for part in node.values:
                if isinstance(part, ast.Constant):
                    part.value = ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"[\w.]+", node.value):
            yield from node.value.split(".")


def foreign(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """The files that use each private name which none of `trees` defines."""
    own = {name for tree in trees.values() for name in defined(tree)} | {Path(file).stem for file in trees}
    found = defaultdict(set)
    for file, tree in trees.items():
        for name in used(tree):
            if PRIVATE.fullmatch(name) and name not in own | PUBLIC | ENDINGS:
                found[name].add("fast/" if file.startswith("fast/") else file)
    return dict(found)


def test_every_private_name_is_listed_with_its_place() -> None:
    found = foreign(trees())
    listed = {name: {one.where, *FURTHER.get(name, ())} for name, one in FOREIGN.items()}
    unseen = {name: places - listed.get(name, set()) for name, places in found.items()}
    assert {name: places for name, places in unseen.items() if places} == {}, "use a public name, or list it here"
    gone = {name: places - found.get(name, set()) - {"fast/"} for name, places in listed.items()}
    assert {name: places for name, places in gone.items() if places} == {}, "take it off the list"


@pytest.mark.parametrize("name", FOREIGN)
def test_every_private_name_is_still_there(name: str) -> None:
    try:
        there = FOREIGN[name].look_up()
    except (AttributeError, ImportError, RuntimeError) as error:
        there = error
    assert there is not None and not isinstance(there, Exception), f"without {name}, {FOREIGN[name].without}: {there}"


def test_a_private_name_is_found_in_each_form() -> None:
    code = """
import torch._one
from torch import _two
def f(x): return x._three, getattr(x, "_four"), x.own._replace(), x._mine, f"a_{x}_five", "torch._six.seven"
_mine = "a sentence of _words"
"""
    assert foreign({"a.py": ast.parse(code)}).keys() == {"_one", "_two", "_three", "_four", "_six"}


def test_no_method_overrides_a_private_one() -> None:
    """A library calls it under this name, or, in another version, does not."""
    theirs = (nn.Module, torch.Tensor, torch.optim.Optimizer, torch.autograd.Function, argparse.ArgumentParser)
    names = {name for kind in theirs for name in dir(kind) if PRIVATE.fullmatch(name)}
    found = {
        f"{file}: {method.name}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name in names
    }
    assert found == set()


def outside_fast(*names: str) -> set[str]:
    """The files outside fast/ that use any of the names."""
    return {
        file
        for file, tree in trees().items()
        if not file.startswith("fast/")
        and any(isinstance(n, ast.Attribute) and n.attr in names for n in ast.walk(tree))
    }


def test_only_fast_versions_ask_what_compiles_and_read_the_graph_of_gradients() -> None:
    """Elsewhere the line that is read is the line that runs, watched or not."""
    assert outside_fast("is_compiling", "is_dynamo_compiling", "is_exporting") == set()
    assert outside_fast("grad_fn", "_parameters", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks") == set()


def test_hooks_are_registered_only_by_what_records() -> None:
    """Explanations, the updates of LSTM cells for their pictures, the count of operations, and the order of layers."""
    hooks = [
        name for kind in (nn.Module, torch.Tensor) for name in dir(kind) if re.fullmatch(r"register_\w*hook", name)
    ]
    assert {"register_forward_hook", "register_full_backward_hook", "register_hook"} <= set(hooks)
    hooks.remove("register_load_state_dict_pre_hook")  # of checkpoints
    found = {file for file in outside_fast(*hooks) if not file.startswith("explain/")}
    assert found == {"layers/lstm.py", "tasks/cost.py", "faithfulness/random_weights.py"}


def test_at_most_two_settings_come_from_the_context_instead_of_an_argument() -> None:
    found = [
        f"{file}: {ast.unparse(node)}"
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "ContextVar"
    ]
    assert len(found) <= 2, found

"""The weights of a task, in a safetensors file: written, compared with a model, and loaded."""

import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_model
from torch import Tensor, nn

from vision_attn.task import Task

NAME = "model.safetensors"
"""The file that holds the weights, in last/ as in best/."""

HEADER = 2**22
"""Bytes of a header at most: names and shapes of some 40,000 tensors."""


def save_weights(task: nn.Module, path: Path) -> None:
    """The whole state dict as safetensors; tensors that share memory are written once."""
    save_model(task, str(path))
    path.chmod(0o644)  # safetensors leaves it readable by its owner alone.


def load_weights(task: Task, folder: Path, *, another: bool = False) -> None:
    """Load `folder`/model.safetensors, which must hold exactly the weights of `task`.

    another: the weights are those of another run, with which this one starts. What `task.own` names may be missing,
        left over or different; the task keeps its own.

    Raises ValueError as `check_weights` does.
    """
    check_weights(task, folder, another=another)
    path = Path(folder) / NAME
    try:
        renamed = {_renamed(name, task): tensor for name, tensor in load_file(path).items()}
        kept = {name: tensor for name, tensor in renamed.items() if not (another and _is_own(name, task))}
        task.load_state_dict(kept, strict=False)
    except (SafetensorError, RuntimeError, KeyError) as error:  # numbers of a kind that torch cannot convert
        raise ValueError(f"{path} cannot be loaded: {' '.join(str(error).split())}") from error


def check_weights(task: Task, folder: Path, *, another: bool = False) -> None:
    """Compare the names and shapes in `folder`/model.safetensors with those of `task`, reading the file's header alone.

    `task` may be on the meta device, where it takes no memory. Raises ValueError when the file is missing or damaged,
    and naming the first weights that are missing, left over or of another shape. `another`: see `load_weights`.
    """
    path = Path(folder) / NAME
    own = task.state_dict()
    shapes = {_renamed(name, task): shape for name, shape in read_shapes(path).items()}
    if another:
        own = {name: tensor for name, tensor in own.items() if not _is_own(name, task)}
        shapes = {name: shape for name, shape in shapes.items() if not _is_own(name, task)}
    stored = {_place(own[name]) for name in shapes if name in own}
    missing = [name for name in own if name not in shapes and _place(own[name]) not in stored]
    extra = [name for name in shapes if name not in own]
    other = [f"{name} is {shape} there and {tuple(own[name].shape)} here" for name, shape in shapes.items()
             if name in own and tuple(own[name].shape) != shape]  # fmt: skip
    problems = {"missing": missing, "left over": extra, "of another shape": other}
    lines = [f"{kind}: {_few(names)}" for kind, names in problems.items() if names]
    if lines:
        raise ValueError(f"{path} does not fit the model that the config describes; {'; '.join(lines)}")
    _check_memory(path)


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in a safetensors file. Raises ValueError when the file is missing or damaged."""
    if not path.is_file():
        raise ValueError(f"{path} is missing: {path.parent} holds no weights")
    try:
        with open(path, "rb") as file:
            header = int.from_bytes(file.read(8), "little")
        if header > HEADER:
            raise ValueError(f"{path} is not a whole safetensors file: its header claims {header:,} bytes")
        with safe_open(str(path), framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from error


def _renamed(name: str, task: Task) -> str:
    """The name that a weight has in this version."""
    return next((new + name.removeprefix(old) for old, new in task.renamed.items() if name.startswith(old)), name)


def _is_own(name: str, task: Task) -> bool:
    return name.startswith(tuple(task.own))


def _check_memory(path: Path) -> None:
    """A file with holes may claim any size."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if path.stat().st_size > machine:
        raise ValueError(f"{path} holds {path.stat().st_size:,} bytes of weights, and this machine has {machine:,}")


def _place(tensor: Tensor) -> tuple[int, int]:
    """The same for tensors that share memory. `data_ptr` would be 0 for everything on the meta device."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset()


def _few(names: list[str], count: int = 3) -> str:
    rest = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + rest

"""Save, check and load the weights of a task as a safetensors file."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file, save_model
from torch import Tensor, nn

from vision_attn.system.console import few, reason_of
from vision_attn.system.errors import UserError
from vision_attn.task import Task

NAME = "model.safetensors"
"""The file of weights in last/ and best/."""

Sizes = tuple[int, int]
"""A size of weights, such as the number of words: in the run from which training starts, and in the new run."""

HEADER = 2**22
"""The largest header in bytes: names and shapes of about 40,000 tensors."""


def save_weights(task: nn.Module, path: Path) -> None:
    """Write the whole state dict as safetensors; tensors that share memory are written once."""
    with _usual_mode(path):
        save_model(task, str(path))
    _sort_metadata(path)


@contextmanager
def _usual_mode(path: Path) -> Iterator[None]:
    """Context manager: give a new file the permissions that the user's umask allows. safetensors would make it readable
    only by its owner."""
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    yield
    path.chmod(mode)


def _sort_metadata(path: Path) -> None:
    """Sort the list of tensors that share memory, in place: safetensors writes it in a random order, and equal weights
    are to be equal files."""
    with open(path, "r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        if "__metadata__" in header:
            header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
            file.seek(8)
            file.write(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(size))


def in_half(source: Path, target: Path) -> None:
    """Copy a file of weights in float16. A tensor with numbers beyond the range of float16, 65,504, is copied as it is.
    Counts of a criterion (document frequencies, 0.9 MB of Flickr8k) are left out: training counts again. Raises
    UserError if the file cannot be read, and OSError if it cannot be written."""

    def half(name: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return torch.zeros_like(tensor[:0] if tensor.dim() else tensor) if name.startswith("criteria.") else tensor
        small = tensor.half()
        return small if small.isfinite().all() else tensor

    try:
        tensors = {name: half(name, tensor) for name, tensor in load_file(source).items()}
    except (SafetensorError, RuntimeError) as error:
        raise UserError(f"{source} cannot be copied: {reason_of(error)}") from error
    try:
        with _usual_mode(target):
            save_file(tensors, target)
    except SafetensorError as error:
        raise OSError(f"{target} cannot be written: {reason_of(error)}") from error


def is_half(path: Path) -> bool:
    """Return whether `in_half` wrote a file of weights: some of its tensors are of float16. Raises UserError if the
    file is damaged."""
    read_shapes(path)
    with safe_open(str(path), framework="pt") as file:
        return any(file.get_slice(name).get_dtype() == "F16" for name in file.keys())  # noqa: SIM118


def load_weights(task: Task, folder: Path, *, another: bool = False, sizes: Sizes | None = None) -> None:
    """Load `folder`/model.safetensors, which must hold exactly the weights of `task`, in any floating-point type.

    another: the weights are those of another run, from which this one starts. Weights that `task.own` names are not
        loaded, and may be missing, unexpected or of another shape.
    sizes: see `Source.extend`; weights whose shape has the first size in the file and the second one in `task` are
        extended, as in `grown`.

    Raises UserError as `check_weights` does.
    """
    check_weights(task, folder, another=another, sizes=sizes)
    path = Path(folder) / NAME
    try:
        kept = {name: tensor for name, tensor in load_file(path).items() if not (another and _is_own(name, task))}
        parameters = dict(task.named_parameters(remove_duplicate=False))
        for name, weight in parameters.items():
            if name in kept and kept[name].shape != weight.shape:
                kept[name] = grown(kept[name].float(), weight.shape)
        task.load_state_dict(kept, strict=False)
    except (SafetensorError, RuntimeError, KeyError) as error:  # a dtype that torch cannot convert
        raise UserError(f"{path} cannot be loaded: {reason_of(error)}") from error


def grown(weight: Tensor, shape: torch.Size) -> Tensor:
    """Extend a float weight to `shape`, by rows for new words (or columns, wherever the shapes differ).

    Words are sorted by their count, so the last tenth of the known words are the rarest. The rows of new words are
    sampled from a normal distribution with the column-wise mean and variance of these rows, so that new words start
    about as likely as the rarest known ones.
    """
    for dim, size in enumerate(shape):
        known = weight.shape[dim]
        rare = weight.narrow(dim, known - max(1, known // 10), max(1, known // 10))
        mean, std = rare.mean(dim, keepdim=True), rare.std(dim, correction=0, keepdim=True)
        new = (*weight.shape[:dim], size - known, *weight.shape[dim + 1 :])
        weight = torch.cat([weight, mean + std * torch.randn(new)], dim)
    return weight


def check_weights(task: Task, folder: Path, *, another: bool = False, sizes: Sizes | None = None) -> None:
    """Compare the names and shapes in `folder`/model.safetensors with those of `task`. Reads only the file's header.

    The task may be on the meta device, where it takes no memory. Raises UserError if the file is missing or damaged, or
    if weights are missing, unexpected or of another shape; it names the first ones. A buffer of `task` without elements
    may have any length in the file.

    another, sizes: as for `load_weights`.
    """
    path = Path(folder) / NAME
    own = task.state_dict()
    shapes = read_shapes(path)
    if another:
        own = {name: tensor for name, tensor in own.items() if not _is_own(name, task)}
        shapes = {name: shape for name, shape in shapes.items() if not _is_own(name, task)}
    stored = {_place(own[name]) for name in shapes if name in own}
    missing = [name for name in own if name not in shapes and _place(own[name]) not in stored]
    extra = [name for name in shapes if name not in own]
    other = [f"{name} is {shape} in the file, {tuple(own[name].shape)} in the model" for name, shape in shapes.items()
             if name in own and own[name].shape != (0,) and not _fits(shape, own[name].shape, sizes)]  # fmt: skip
    problems = {"missing": missing, "unexpected": extra, "of another shape": other}
    lines = [f"{problem}: {few(names)}" for problem, names in problems.items() if names]
    if another and any(name.startswith("encoder.") for names in problems.values() for name in names):
        raise UserError(
            f"{path} holds the weights of another encoder, and a run that starts from another keeps its encoder: leave "
            "out the options of task.encoder, or train from scratch, without run.start_from"
        )
    if lines:
        raise UserError(f"{path} does not fit the model that the config describes; {'; '.join(lines)}")
    _check_memory(path)


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the shapes of all tensors in a safetensors file. Raises UserError if it is missing or damaged."""
    if not path.is_file():
        raise UserError(f"{path} is missing: {path.parent} holds no weights")
    try:
        with open(path, "rb") as file:
            header = int.from_bytes(file.read(8), "little")
        if header > HEADER:
            raise UserError(f"{path} is not a complete safetensors file: its header claims {header:,} bytes")
        with safe_open(str(path), framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a complete safetensors file: {error}") from error


def _fits(stored: tuple[int, ...], wanted: torch.Size, sizes: Sizes | None) -> bool:
    """Return whether two shapes are equal, or differ only where `sizes` says so."""
    pairs = list(zip(stored, wanted, strict=False))
    return len(stored) == len(wanted) and all(pair[0] == pair[1] or pair == sizes for pair in pairs)


def _is_own(name: str, task: Task) -> bool:
    return name.startswith(tuple(task.own))


def _check_memory(path: Path) -> None:
    """Raise UserError if the weights exceed the machine's memory: a sparse file can have any size."""
    if not hasattr(os, "sysconf"):  # Windows
        return
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if path.stat().st_size > machine:
        raise UserError(f"{path} holds {path.stat().st_size:,} bytes of weights, and this machine has {machine:,}")


def _place(tensor: Tensor) -> tuple[torch.UntypedStorage, Any]:
    """Return a key equal for tensors that share memory. `data_ptr` is 0 for every tensor on the meta device."""
    return tensor.untyped_storage(), tensor.storage_offset()

"""Fast versions that compute the same numbers: `accelerate` replaces parts of a model by them.

The papers' files (models, attention, criteria, encoders, layers) are plain torch. A part is replaced in place: the
object gets the class of the fast version, which derives from its own class and adds no weights. So its parameters, its
hooks and the keys of its `state_dict` stay the same, and copies and pickles have the fast class. Each operation has a
folder, with loops for a CPU in `cpu.py` and kernels for a GPU in `gpu.py`.
"""

from importlib import import_module

import torch
from torch import nn

from vision_attn.contracts import Captioner

FAST = {
    "attention.location.ContentLocation": "location.FastContentLocation",
    "attention.location.Coverage": "location.FastCoverage",
    "attention.location.LocalPredictive": "location.FastLocalPredictive",
    "attention.filterbank.Filterbank": "filterbank.FastFilterbank",
    "attention.glimpse.Retina": "glimpse.FastRetina",
    "attention.hard.Hard": "attend.FastHard",
    "attention.hard.StraightThrough": "attend.FastStraightThrough",
    "attention.monotonic.HardMonotonic": "attend.FastHardMonotonic",
    "attention.monotonic.Monotonic": "attend.FastMonotonic",
    "attention.multi_head.MultiHead": "multi_head.FastMultiHead",
    "attention.reinforce.Learned": "models.over_time.FastLearned",
    "attention.scores.Additive": "additive.FastAdditive",
    "attention.soft.Soft": "attend.FastSoft",
    "layers.dropout.Dropout": "dropout.FastDropout",
    "layers.likelihood.WordLogProb": "likelihood.FastWordLogProb",
    "layers.linear.Linear": "linear.FastLinear",
    "layers.linear.Rectified": "linear.FastRectified",
    "layers.lstm.LSTMCell": "lstm.FastLSTMCell",
    "layers.norm.PreNorm": "norm.FastPreNorm",
    "models.dram.ConvolutionalGlimpse": "models.over_time.FastConvolutionalGlimpse",
    "models.dram.DRAM": "models.over_time.FastDRAM",
    "models.draw.DRAW": "models.over_time.FastDRAW",
    "models.draw.DRAWReader": "models.over_time.FastDRAWReader",
    "models.encoder_decoder.RNNsearch": "models.recurrent.FastRNNsearch",
    "models.ram.GlimpseNetwork": "models.over_time.FastGlimpseNetwork",
    "models.ram.RAM": "models.over_time.FastRAM",
    "models.show_attend_tell.Gate": "models.recurrent.FastGate",
    "models.show_attend_tell.ShowAttendTell": "models.recurrent.FastShowAttendTell",
    "models.top_down.TopDown": "models.recurrent.FastTopDown",
    "models.transformer.Transformer": "models.transformer.FastTransformer",
}
"""The fast version of each class, imported if a task has such a part."""


def accelerate(task: nn.Module, device: torch.device | str | None = None) -> None:
    """Replace the parts of `task` that have a fast version, in place. Idempotent.

    Call it after weights are loaded, and before `DistributedDataParallel`. Your own class that derives from one of ours
    is not replaced, but its layers and its attention are.

    device: the device to which `task` was moved.
    """
    if device is not None:
        task.to(device)
    for submodule in task.modules():
        if fast := FAST.get(_name(type(submodule))):
            module, name = fast.rsplit(".", 1)
            submodule.__class__ = getattr(import_module(f"vision_attn.fast.{module}"), name)
        if isinstance(submodule, Captioner):
            submodule.accelerated = True


def restore(task: nn.Module) -> None:
    """Undo `accelerate`."""
    for submodule in task.modules():
        if type(submodule).__module__.startswith("vision_attn.fast."):
            submodule.__class__ = next(
                base for base in type(submodule).__mro__ if FAST.get(_name(base)) == _name(type(submodule))
            )
        submodule.__dict__.pop("accelerated", None)


def _name(cls: type) -> str:
    """Return the path of a class, within the package or within this folder."""
    path = f"{cls.__module__}.{cls.__qualname__}"
    return path.removeprefix("vision_attn.fast.").removeprefix("vision_attn.")

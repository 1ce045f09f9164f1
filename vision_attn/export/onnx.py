"""Export models to formats that run without vision_attn: ONNX and `torch.export`, with any batch size.

A captioner becomes three files: `encoder` and `start` run once per image, `step` once per word. A classifier, a
generator or an answerer becomes one file.
"""

import json
import warnings
from collections.abc import Callable, Sequence
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vision_attn.contracts import Encoder, Nested
from vision_attn.contracts.nested import tensors_of, with_tensors
from vision_attn.data.vocabulary import UNKNOWN
from vision_attn.encoders.backbone import Backbone
from vision_attn.models.draw import DRAW
from vision_attn.models.ram import RAM
from vision_attn.system.errors import UserError
from vision_attn.system.files import replacing
from vision_attn.system.word_spacing import SPACELESS
from vision_attn.task import Task
from vision_attn.tasks.answer import Answering
from vision_attn.tasks.caption import Captioning
from vision_attn.tasks.classify import Classification
from vision_attn.tasks.generate import Generation

TOLERANCE = 1e-4
"""The largest difference from PyTorch that is accepted, in probability or in units of the outputs."""
STORY = (50, 20)
"""For an exported answerer: the number of sentences of a story, and of words of a sentence or a question. Shorter ones
are padded with 0."""
EXAMPLES, OTHERS = 2, 3
"""The number of images to export with, and a different number to check with, since any number must work."""


class _Module(NamedTuple):
    """A function of tensors to export."""

    name: str
    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: list[str]


class Function(nn.Module):
    """A function of tensors that uses the weights of `model`."""

    def __init__(self, model: nn.Module, call: Callable[..., tuple[Tensor, ...]]):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.call(*tensors)


@torch.no_grad()
def export(task: Task, folder: Path, *, onnx: bool = True) -> dict[str, float]:
    """Write the modules of `task` into `folder` as NAME.pt2 (`torch.export`) and, if `onnx`, as NAME.onnx.

    The files compute in float32, and so does the encoder of `task` from then on. Returns the largest difference of each
    file from PyTorch. It is measured on another number of images than the export was traced with. They are noise, on
    which glimpses hardly move. On real images, a glimpse depends on the previous one, so rounding differences grow from
    glimpse to glimpse; in PyTorch, those between two sizes of a batch grow alike.

    Raises UserError for a task or model that cannot be exported, and if a difference exceeds `TOLERANCE`.
    """
    task = task.cpu().eval()
    for module in task.modules():
        if isinstance(module, Encoder):
            module.precision = "fp32"  # ONNX's convolutions have no bfloat16 on a CPU
        if isinstance(module, Backbone):
            module.unfold()
    differences: dict[str, float] = {}
    checks = {module.name: module for module in _parts(task, OTHERS)}
    for exported in _parts(task, EXAMPLES):
        sizes = tuple({0: torch.export.Dim.DYNAMIC} for _ in exported.inputs)
        try:
            program = torch.export.export(exported.module, tuple(exported.inputs.values()), dynamic_shapes=(sizes,))
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise UserError(f"the {exported.name} of this {task.kind} cannot be exported ({reason})") from error
        given = list(checks[exported.name].inputs.values())
        expected = exported.module(*given)
        content = BytesIO()  # on a full disk, torch's own writer ends the process
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "No complete tensor found")  # told of weights on a GPU
            torch.export.save(program, content)
        with replacing(folder / f"{exported.name}.pt2") as path:
            path.write_bytes(content.getbuffer())
        differences[f"{exported.name}.pt2"] = _difference(program.module()(*given), expected)
        if onnx:
            onnx_file = folder / f"{exported.name}.onnx"
            made = _to_onnx(program, exported)
            with replacing(onnx_file) as path:
                made.save(str(path), external_data=False)
            differences[onnx_file.name] = _difference(_run_onnx(onnx_file, exported, given), expected)
    wrong = {name: value for name, value in differences.items() if not value <= TOLERANCE}
    if wrong:
        raise UserError(f"{folder}: results differ from PyTorch's by more than {TOLERANCE}: {wrong}")
    if isinstance(task, Captioning):
        _write_captioner(task, folder)
    return differences


def _parts(task: Task, number: int) -> list[_Module]:
    """Return the functions of a task to export, with inputs for `number` images."""
    generator = torch.Generator().manual_seed(number)
    options: dict[str, Any] = {"generator": generator, "dtype": next(task.parameters()).dtype}
    if isinstance(task, Captioning) and task.unit != "line":
        return _captioner(task, number, generator)
    if isinstance(task, Classification):
        if isinstance(task.model, RAM) and task.model.first == "random":
            raise UserError("the first glimpse of this model is at a random place, which cannot be exported")
        if 0 in task.image_shape:
            raise UserError(
                "this model takes images of any size, which cannot be exported: train it with data.side and "
                "data.square=true"
            )

        def classify(images: Tensor) -> tuple[Tensor, ...]:
            glance = task.model(images, mode="mean")
            where = () if glance.locations is None else (glance.locations[:, 0],)
            return glance.log_prob[:, 0].exp(), *where

        images = torch.rand(number, *task.image_shape, **options)
        outputs = ["probabilities", "locations"][: len(classify(images))]
        return [_Module("classifier", Function(task.model, classify), {"images": images}, outputs)]
    if isinstance(task, Answering):

        def answer(facts: Tensor, words: Tensor) -> tuple[Tensor, ...]:
            log_prob, alpha = task.answered(facts, words)
            return log_prob.exp(), alpha

        side, num_words = task.resolution, len(task.vocabulary)
        images = torch.randint(256, (number, 3, side or 1, side or 1), dtype=torch.uint8, generator=generator)
        facts = images if task.encoder else torch.randint(num_words, (number, *STORY), generator=generator)
        words = torch.randint(num_words, (number, STORY[1]), generator=generator)
        inputs = {"facts": facts, "words": words}
        return [_Module("answerer", Function(task, answer), inputs, ["probabilities", "alpha"])]
    if isinstance(task, Generation) and isinstance(task.model, DRAW):

        def generate(noise: Tensor) -> tuple[Tensor, ...]:
            return (task.model.decode(noise.transpose(0, 1)[:, :, None]).canvases[-1].sigmoid(),)

        noise = torch.randn(number, task.model.num_steps, task.model.latent_size, **options)
        return [_Module("generator", Function(task.model, generate), {"noise": noise}, ["images"])]
    raise UserError(f"a {type(task).__name__} of {type(task.model).__name__} cannot be exported")


def _captioner(task: Captioning, number: int, generator: torch.Generator) -> list[_Module]:
    side = task.encoder.resolution
    film = [task.frames] * (task.frames > 1)
    images = torch.randint(256, (number, *film, 3, side, side), dtype=torch.uint8, generator=generator)
    regions = task.encoder(images)
    memory, state = task.model.start(regions, 1)
    word = torch.randint(2, 4, (number, 1), generator=generator)
    for _ in range(2):
        state = task.model.step(word, state, memory)[1]
    kept, going = tensors_of(memory), tensors_of(state)

    def start(regions: Tensor) -> tuple[Tensor, ...]:
        return _copied(task.model.start(regions, 1))

    def step(word: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        held = with_tensors(state, tensors[len(kept) :]), with_tensors(memory, tensors[: len(kept)])
        logits, after, attention = task.model.step(word, *held)
        return logits[:, 0], *_copied(after), *(() if attention is None else (attention.alpha[:, 0],))

    names = [f"memory_{place}" for place in range(len(kept))]
    state_names = [f"state_{place}" for place in range(len(going))]
    seen = [] if len(step(word, *kept, *going)) == 1 + len(going) else ["alpha"]
    inputs = {"word": word, **dict(zip(names, kept, strict=True)), **dict(zip(state_names, going, strict=True))}
    after = ["logits", *(f"next_{name}" for name in state_names), *seen]
    encode = Function(task.encoder, lambda images: (task.encoder(images),))
    return [
        _Module("encoder", encode, {"images": images}, ["regions"]),
        _Module("start", Function(task.model, start), {"regions": regions}, [*names, *state_names]),
        _Module("step", Function(task.model, step), inputs, after),
    ]


def _copied(nested: Nested) -> tuple[Tensor, ...]:
    """Copy the tensors: an exported function may not return its inputs, or views of them."""
    return tuple(tensor.clone() for tensor in tensors_of(nested))


def _to_onnx(program: Any, module: _Module) -> Any:
    import logging

    for library in ("torch.onnx", "onnxscript", "onnx_ir"):  # which report each constant that they fold
        logging.getLogger(library).setLevel(logging.ERROR)
    return torch.onnx.export(
        program, input_names=list(module.inputs), output_names=module.outputs, dynamo=True, verbose=False, optimize=True
    )


def _run_onnx(file: Path, module: _Module, given: Sequence[Tensor]) -> list[Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    asked = {tensor.name for tensor in session.get_inputs()}
    named = {name: tensor.numpy() for name, tensor in zip(module.inputs, given, strict=True) if name in asked}
    return [torch.from_numpy(array) for array in session.run(module.outputs, named)]


def _difference(computed: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the largest difference of any output, relative where numbers are larger than 1."""
    differences = [
        ((tensor.double() - other.double()).abs() / other.double().abs().clamp(min=1)).max()
        for tensor, other in zip(computed, expected, strict=True)
        if tensor.numel()
    ]
    return float(torch.stack(differences).max())


def _write_captioner(task: Captioning, folder: Path) -> None:
    """Write the files that the exported captioner needs: its words and sizes, and a program that captions with it."""
    content: dict[str, Any] = {
        "parts": ["encoder", "start", "step"],
        "words": list(task.vocabulary.words),
        "gap": " " if task.vocabulary.splitter.content else "",
        "spaceless": SPACELESS,
        "never": [UNKNOWN],
        "once": task.content_ids if task.decoding.content_once else [],
        "beams": task.decoding.beams,
        "max_words": task.decoding.max_words,
        "min_words": task.decoding.min_words,
        "no_repeat": task.decoding.no_repeat,
        "length_power": task.decoding.length_power,
        "resolution": task.encoder.resolution,
        "fit": task.encoder.fit,
        "frames": task.frames,
    }
    content |= {"grid": list(task.encoder.grid), "extent": list(task.encoder.extent())}
    with replacing(folder / "captioner.json") as path:
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    program = files("vision_attn.export").joinpath("caption_onnx.py").read_text(encoding="utf-8")
    with replacing(folder / "caption.py") as path:
        path.write_text(program, encoding="utf-8")
